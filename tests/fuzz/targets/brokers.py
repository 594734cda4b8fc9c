"""What brokers send each other, keep of POP and of messages' ways, and have on disk."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from spark_rocket.broker.pop.check_points import decode_ack, decode_check_point, encode_ack, encode_check_point
from spark_rocket.errors import ProtocolError, StoreCorruptError
from spark_rocket.protocol.message_trace import decode_trace_data, encode_trace_data, trace_keys
from spark_rocket.protocol.wire import ha
from spark_rocket.store.delay.timer_checkpoint import TIMER_CHECKPOINT_SIZE, TimerCheckpoint
from spark_rocket.store.index.index_file import HEADER_SIZE, IndexFile
from spark_rocket.store.log.checkpoint import CHECKPOINT_SIZE, StoreCheckpoint
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue
from spark_rocket.store.queues.consume_queue import ConsumeQueue, MappingCache
from tests.fuzz.targets.base import directory, file_of, target
from tests.golden import store_files


@target(struct.pack(">qi", 100, 4) + b"data" + struct.pack(">qi", 104, 0), struct.pack(">q", 7) * 3)
def ha_frames(raw: bytes) -> None:
    reports = ha.ReportDecoder()
    transfers = ha.TransferDecoder()
    cut = raw[-1] % 32 + 1 if raw else 1
    pieces = [raw[at : at + cut] for at in range(0, len(raw), cut)]
    try:
        for piece in pieces:
            assert all(offset >= 0 for offset in reports.feed(piece))
            assert reports.pending < ha.REPORT_SIZE
    except ProtocolError:
        pass
    for piece in pieces:
        transfers.feed(piece)
        assert 0 <= transfers.pending <= ha.MAX_TRANSFER_SIZE


@target(
    b'{"bm":0,"bn":"b","c":"g","d":[0,1],"it":60000,"n":2,"pt":17,"q":0,"ro":0,"so":5,"t":"T"}',
    b'{"ao":5,"bn":"b","c":"g","pt":17,"q":0,"so":5,"t":"T"}',
    b'{"ao":-1,"aol":[5,6],"bn":"b","c":"g","pt":17,"q":0,"so":5,"t":"T"}',
    longest=1024,
)
def revive_log(raw: bytes) -> None:
    """POP's check points and acks."""
    try:
        ack = decode_ack(raw, "b")
        encode_ack(*ack)
    except ProtocolError:
        pass
    point = decode_check_point(raw, "b")
    point.ack([point.key[3]])
    point.open_offsets()
    assert decode_check_point(encode_check_point(point), "b").key == point.key


@target(
    b"Pub\x011\x01r\x01g\x01T\x01id\x01tag\x01key\x01host\x015\x016\x010\x01oid\x01true\x02",
    b"SubBefore\x011\x01r\x01g\x01q\x01id\x010\x01k\x02SubAfter\x01q\x01id\x013\x01true\x01k\x010\x011\x01g\x02",
    b"EndTransaction\x011\x01r\x01g\x01T\x01id\x01t\x01k\x01h\x012\x01x\x01COMMIT\x01false\x02Recall\x011\x01r\x01g\x01T\x01id\x01true\x02",
    errors=(),
)
def message_trace(raw: bytes) -> None:
    for context in decode_trace_data(raw):
        encode_trace_data(context)
        trace_keys(context)


_STORE_ERRORS = (StoreCorruptError,)


@target(
    lambda: [store_files("clean")["checkpoint"][:64]],
    b"\0" * 56,
    struct.pack(">7q", 1, 2, 3, 4, 5, 6, 7),
    errors=_STORE_ERRORS,
    longest=64,
)
def checkpoints(raw: bytes) -> None:
    """The store's checkpoint and the timer's; a slave is sent the latter."""
    store = StoreCheckpoint(file_of("checkpoint", raw.ljust(CHECKPOINT_SIZE, b"\0") if len(raw) > 40 else raw))
    store.load()
    store.correct(1 << 40)
    timer = TimerCheckpoint(directory())
    timer.take_over(raw, "a master")
    assert len(timer.encode()) <= TIMER_CHECKPOINT_SIZE


@target(
    struct.pack(">qiq", 0, 100, 7) * 3,
    struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * 2 + struct.pack(">qiq", 500, 100, 7),
    errors=_STORE_ERRORS,
    longest=200,
)
def consume_queue(raw: bytes) -> None:
    path = directory() / "queue"
    path.mkdir(exist_ok=True)
    (path / f"{0:020}").write_bytes(raw.ljust(200, b"\0")[:200])
    queue = ConsumeQueue(MappedFileQueue(path, 200, setting="", derived=True), "T", 0, MappingCache(4))
    try:
        queue.load()
        assert 0 <= queue.min_offset <= queue.max_offset <= 10
        queue.correct_min_offset(300)
        queue.read(queue.min_offset, 32)
        queue.cut(500)
    finally:
        queue.close()


def _index_seeds() -> list[bytes]:
    head = struct.pack(">4q2i", 1, 2, 3, 4, 1, 3)
    return [
        head + struct.pack(">4i", 0, 2, 0, 0) + struct.pack(">iqii", 1, 100, 0, 0) + struct.pack(">iqii", 1, 200, 0, 1)
    ]


@target(_index_seeds, errors=_STORE_ERRORS, longest=200)
def index_file(raw: bytes) -> None:
    size = HEADER_SIZE + 4 * 4 + 20 * 7
    index = IndexFile(file_of("20240101000000000", raw.ljust(size, b"\0")[:size]), 4, 7)
    try:
        for key in (0, 1, 2, 5):
            found = index.find(key, 0, 1 << 62)
            assert len(list(_at_most(found, 1000))) < 1000
    finally:
        index.close()


def _at_most(found: Iterator[Any], count: int) -> Iterator[Any]:
    for number, each in enumerate(found):
        if number >= count:
            return
        yield each
