"""Decodes each Avro body in a separate process, with limits on its time, CPU and memory.

A hostile body or schema can crash or block its decoder: by a native stack overflow, by memory exhaustion, by a loop. In
a separate process that is only an error message on one page. Starting a process takes about 0.2 s, which only delays
the page of an Avro body. So there is no pool of processes.

The process reads the schema's length (four bytes, big endian; 0: no schema), the schema and the body from stdin, and
writes ``{"text": …}`` or ``{"problem": …, "remedy": …}``.

RocketMQ has no counterpart.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence

from spark_rocket.console.avro import avro_text, check_avro
from spark_rocket.errors import ProtocolError

WALL_SECONDS = 10.0
CPU_SECONDS = 3
MEMORY_BYTES = 512 << 20
_MAX_PROCESSES = 2

_COMMAND = (sys.executable, "-m", "spark_rocket.console.avro_process")
_LENGTH = struct.Struct(">I")
_REMEDY = "Download the body and read it elsewhere."
_places = threading.BoundedSemaphore(_MAX_PROCESSES)


def decode_avro(body: bytes, schema: str | None, *, command: Sequence[str] = _COMMAND) -> str:
    """Decode a datum, or the first records of a container, as indented JSON. ProtocolError if it fails.

    Blocks at most ``WALL_SECONDS`` for a free slot and ``WALL_SECONDS`` for decoding.
    """
    check_avro()
    if not _places.acquire(timeout=WALL_SECONDS):
        raise ProtocolError("Too many Avro bodies are being decoded.", remedy="Retry later.")
    try:
        written = (schema or "").encode(errors="replace")
        done = subprocess.run(
            command,
            input=_LENGTH.pack(len(written)) + written + body,
            capture_output=True,
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _failed(f"timeout after {WALL_SECONDS:g} s") from None
    except OSError as error:
        raise _failed(f"cannot start a process: {error.strerror or error}") from None
    finally:
        _places.release()
    if done.returncode < 0:
        raise _failed(f"the decoder was terminated by {signal.Signals(-done.returncode).name}")
    try:
        result = json.loads(done.stdout)
        if "text" in result:
            return str(result["text"])
        problem, remedy = result["problem"], result["remedy"]
    except (ValueError, KeyError, TypeError):
        raise _failed(f"the decoder exited with status {done.returncode}") from None
    raise ProtocolError(problem, remedy=remedy)


def _failed(why: str) -> ProtocolError:
    return ProtocolError(f"The Avro body could not be decoded: {why}.", remedy=_REMEDY)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    with contextlib.suppress(ValueError, OSError):  # macOS refuses some limits; the time limit remains
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main() -> None:
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, CPU_SECONDS)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    given = sys.stdin.buffer.read()
    (length,) = _LENGTH.unpack_from(given)
    schema, body = given[_LENGTH.size : _LENGTH.size + length].decode(), given[_LENGTH.size + length :]
    try:
        result = {"text": avro_text(body, schema)}
    except ProtocolError as error:
        result = {"problem": error.message, "remedy": error.remedy}
    except MemoryError:
        problem = f"The Avro body could not be decoded: it needs more than {MEMORY_BYTES >> 20} MiB of memory."
        result = {"problem": problem, "remedy": _REMEDY}
    # A schema may contain lone surrogates, which the console's JSON does not support.
    sys.stdout.buffer.write(json.dumps(result, ensure_ascii=False).encode(errors="replace"))


if __name__ == "__main__":
    main()
