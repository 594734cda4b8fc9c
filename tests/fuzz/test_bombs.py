"""Bodies that claim to be small: decompression stops at a limit with an error.

The decoders run in a process that may take 700 MiB more than it has when it is ready; most bombs would be 4 GiB.
"""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import pytest

from spark_rocket.errors import ProtocolError, RunTooLargeError
from spark_rocket.model import Message
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record import messages
from spark_rocket.protocol.record import unwrap as columnar_unwrap
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.compression import MAX_BATCH_LENGTH, decompress_body
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.proxy.messages.message_in import MAX_GZIP_MEMBERS, read_message
from spark_rocket.proxy.messages.statuses import StatusError
from tests.proxy.outgoing import message

SIZE = 4 << 30


def zlib_bomb(window_bits: int = 15, size: int = SIZE) -> bytes:
    """Four GiB of zeros in four MiB, without compressing four GiB: a MiB's blocks over and over."""
    packer = zlib.compressobj(9, zlib.DEFLATED, window_bits)
    head = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * ((size >> 20) - 1) + b"\x03\0"


def zstd_bomb(size: int = SIZE) -> bytes:
    """The same in 128 KiB: every block means "this byte, 131,072 times"."""
    block = (0 | 1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (size >> 17)


def lz4_bomb(size: int = 1 << 29) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        zeros = bytes(1 << 20)
        for _ in range(size >> 20):
            stream.write(zeros)
    return bytes(sink.getvalue())


def stored(body: bytes, sys_flag: int, offset: int = 0) -> bytes:
    return encode_record(
        b"T",
        0,
        body,
        b"",
        queue_offset=offset,
        physical_offset=0,
        born_timestamp=1,
        born_host=pack_host(("127.0.0.1", 1)),
        store_timestamp=2,
        store_host=pack_host(("127.0.0.1", 1)),
        sys_flag=sys_flag,
    )


_PROGRAM = """
import resource, sys
from pathlib import Path
import pyarrow as pa
from spark_rocket.console import bodies
from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.record import unwrap as columnar_unwrap
from spark_rocket.protocol.record import record
from spark_rocket.protocol.wire.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.compression import decompress_body
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.proxy.messages.message_in import _gunzip
from spark_rocket.proxy.messages.message_in import read_message
from spark_rocket.proxy.messages.statuses import StatusError
from tests.fuzz.test_bombs import lz4_bomb, stored, zlib_bomb, zstd_bomb
from tests.proxy.outgoing import message

kinds = {1: zlib_bomb(), 0x101: lz4_bomb(), 0x201: zstd_bomb()}
gzip = message("T", zlib_bomb(31), body_encoding="GZIP")
decode_records(stored(b"", 0), broker_name="b")
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (700 << 20), resource.RLIM_INFINITY))

def refused(errors, function, *arguments, **more):
    try:
        function(*arguments, **more)
    except errors as error:
        print("refused:", str(error)[:100])
    else:
        sys.exit(f"{function} took a bomb")

for flag, bomb in kinds.items():
    refused(ProtocolError, decompress_body, bomb, flag)
record.MAX_BODY_LENGTH = columnar_unwrap.MAX_BODY_LENGTH = 16 << 20  # the same, sooner
for flag, bomb in kinds.items():
    refused(ProtocolError, decode_messages, stored(bomb, flag))
    refused(ProtocolError, decode_messages, stored(bomb, flag | 0xC0))
    refused(ProtocolError, decode_records, stored(bomb, flag), broker_name="b")
    assert len(decode_messages(stored(bomb, flag), decompress=False)[0].body) == len(bomb)
refused(ProtocolError, RegisterBrokerBody.decode, kinds[1], compressed=True)
refused(ProtocolError, RegisterBrokerBody.decode, b"[" + b"[]," * 5_000_000 + b"0]")
refused(ProtocolError, RegisterBrokerBody.decode, b"{" + b"a:[{}]," * 2_000_000 + b"}")
refused(StatusError, read_message, gzip, "T", 1, 8 << 20)
meta = b"\\x04\\x14avro.codec\\x0edeflate\\x16avro.schema\\x0c\\"long\\"\\0"
packed = zlib_bomb(-15)
number, length = len(packed) << 1, b""
while number > 127:
    length, number = length + bytes([number & 127 | 128]), number >> 7
container = b"Obj\\x01" + meta + b"s" * 16 + b"\\x02" + length + bytes([number]) + packed + b"s" * 16
shown = bodies.show(container)
assert "larger than 4 MiB" in shown["avroProblem"], shown["avroProblem"]
print("shown:", shown["avroProblem"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the bound on memory is Linux's")
def test_nobody_unpacks_four_gib() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("refused:") == 16
    assert done.stdout.count("shown:") == 1


def test_many_small_bombs_in_one_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each within a message's bound, all together beyond that of a run; one alone is always read."""
    for module in (messages, columnar_unwrap):
        monkeypatch.setattr(module, "MAX_RUN_BYTES", 1 << 20)
    packed = zlib.compress(bytes(400 << 10))
    run = b"".join(stored(packed, 1, offset) for offset in range(4))
    with pytest.raises(RunTooLargeError) as caught:
        decode_messages(run)
    assert caught.value.queue_offset == 2
    assert "Pull fewer" in str(caught.value)
    with pytest.raises(RunTooLargeError):
        decode_records(run, broker_name="b")
    assert [len(message.body) for message in decode_messages(run, decompress=False)] == [len(packed)] * 4
    assert len(decode_messages(stored(packed, 1))) == 1


def test_a_batch_of_nothing_but_messages() -> None:
    """Of a compressed batch each 22 bytes may become a message: it is bounded more tightly than a body."""
    one = encode_batch_body([Message("T", b"")])
    batch = zlib.compress(one * (MAX_BATCH_LENGTH // len(one) + 1))
    assert len(batch) < 100_000
    for decode in (decode_messages, lambda raw: decode_records(raw, broker_name="b")):
        with pytest.raises(ProtocolError, match="exceeds 16,777,216 bytes"):
            decode(stored(batch, 0xC1))
    (packed,) = decode_messages(stored(batch, 0xC1), decompress=False)
    assert packed.body == batch


def test_gzip_of_very_many_members() -> None:
    """Four MiB of empty members: each would cost a copy of those behind it, a minute of the proxy's in all."""
    empty = gzip.compress(b"", mtime=0)
    most = 4 << 20
    packed = message("T", empty * MAX_GZIP_MEMBERS, body_encoding="GZIP")
    assert zlib.decompress(read_message(packed, "T", 1, most).body) == b""
    with pytest.raises(StatusError, match="members"):
        read_message(message("T", empty * (most // len(empty)), body_encoding="GZIP"), "T", 1, most)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the memory")
@pytest.mark.parametrize("flag", [0x101, 0x201])
def test_damaged_bodies_leave_nothing_behind(flag: int) -> None:
    """PyArrow's read() loses 64 KiB for each; a consumer meets a damaged body again and again."""

    def damaged(count: int) -> int:
        for _ in range(count):
            with pytest.raises(ProtocolError):
                decompress_body(b"\xea", flag)
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    before = damaged(100)
    assert damaged(2000) - before < 64 << 20  # 125 MiB
