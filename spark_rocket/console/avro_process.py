"""Decodes Avro bodies in a process that may die: one for each body, with a limit on its time, CPU and memory.

A hostile body or schema can end its decoder: by a native stack overflow, by taking all of the memory, by looping. In a
process of its own that is an error message on one page. Starting a process takes about 0.2 s, and only a person who
opens an Avro body waits for it. So no process is kept, and none has to be replaced.

The process reads the schema's length (four bytes, big endian; 0: none), the schema and the body from its standard input
and writes ``{"text": …}`` or ``{"problem": …, "remedy": …}``.

Thread-safety: every function. Corresponds to nothing in RocketMQ.
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
_MOST_AT_ONCE = 2

_COMMAND = (sys.executable, "-m", "spark_rocket.console.avro_process")
_LENGTH = struct.Struct(">I")
_REMEDY = "Download the body and read it elsewhere."
_places = threading.BoundedSemaphore(_MOST_AT_ONCE)


def decode_avro(body: bytes, schema: str | None, *, command: Sequence[str] = _COMMAND) -> str:
    """The datum, or the first records of a container, as JSON in lines. ProtocolError says why not.

    Blocks, for ``WALL_SECONDS`` to get a place and as long again to decode.
    """
    check_avro()
    if not _places.acquire(timeout=WALL_SECONDS):
        raise ProtocolError("Too many Avro bodies are being decoded.", remedy="Try again.")
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
        raise _failed(f"it takes longer than {WALL_SECONDS:g} s") from None
    except OSError as error:
        raise _failed(f"no process can be started: {error.strerror or error}") from None
    finally:
        _places.release()
    if done.returncode < 0:
        raise _failed(f"the decoder was ended by {signal.Signals(-done.returncode).name}")
    try:
        said = json.loads(done.stdout)
        if "text" in said:
            return str(said["text"])
        problem, remedy = said["problem"], said["remedy"]
    except (ValueError, KeyError, TypeError):
        raise _failed(f"the decoder ended with status {done.returncode}") from None
    raise ProtocolError(problem, remedy=remedy)


def _failed(why: str) -> ProtocolError:
    return ProtocolError(f"The Avro body could not be decoded: {why}.", remedy=_REMEDY)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    with contextlib.suppress(ValueError, OSError):  # macOS refuses some; there the time is limited
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main() -> None:
    """The process: decodes one body."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, CPU_SECONDS)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    given = sys.stdin.buffer.read()
    (length,) = _LENGTH.unpack_from(given)
    schema, body = given[_LENGTH.size : _LENGTH.size + length].decode(), given[_LENGTH.size + length :]
    try:
        said = {"text": avro_text(body, schema)}
    except ProtocolError as error:
        said = {"problem": error.message, "remedy": error.remedy}
    except MemoryError:
        problem = f"The Avro body could not be decoded: it takes more than {MEMORY_BYTES >> 20} MiB of memory."
        said = {"problem": problem, "remedy": _REMEDY}
    # A schema may have lone surrogates, which the console's own JSON cannot have.
    sys.stdout.buffer.write(json.dumps(said, ensure_ascii=False).encode(errors="replace"))


if __name__ == "__main__":
    main()
