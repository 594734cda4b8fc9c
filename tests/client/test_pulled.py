"""Messages that were pulled and not yet polled."""

from __future__ import annotations

import threading
import zlib
from itertools import accumulate

import pytest

from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.pulled_messages import PulledMessages
from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.filter.tags import parse_tags
from spark_rocket.protocol.record import messages, unwrap
from spark_rocket.protocol.record.layout import COMPRESSED, UNWRAP_MASK
from tests.kit.scripted import record, undecodable


class Rig:
    """Two queues, with results of pulls as pullers report them."""

    def __init__(self, tags: str = "*", /, **limits: int) -> None:
        self.roomy: list[int] = []
        self.pulled = PulledMessages(
            pull_batch_size=limits.get("batch", 10),
            max_messages=limits.get("messages", 1000),
            max_bytes=limits.get("size", 1 << 20),
            max_of_all=limits.get("all", 10_000),
            tags_of=lambda _: parse_tags(tags),
            has_room=lambda queue: self.roomy.append(queue.queue.queue_id),
            lock=threading.RLock(),
        )
        self.queues = [ProcessQueue(MessageQueue("t", "b", i), 0) for i in (0, 1)]

    def pull(self, queue: int, count: int, tags: str = "a") -> None:
        start = self.queues[queue].end
        offsets = range(start, start + count)
        records = b"".join(record(offset, queue_id=queue, TAGS=tags) for offset in offsets)
        status = PullStatus.FOUND if count else PullStatus.NO_NEW_MSG
        result = PullResult(status, start + count, 0, start + count, memoryview(records))
        self.pulled.receive(self.queues[queue], result)

    def take(self, limit: int | None = None) -> list[tuple[int, int]]:
        return [(message.queue_id, message.queue_offset) for message in self.pulled.take_messages(0, limit)]

    def positions(self) -> list[int]:
        return [self.pulled.position(queue) for queue in self.queues]


def test_queues_take_turns_and_keep_their_order() -> None:
    rig = Rig()
    for _ in range(3):
        rig.pull(0, 2)
    rig.pull(1, 1)
    assert rig.positions() == [0, 0]
    assert [rig.take() for _ in range(5)] == [
        [(0, 0), (0, 1)],
        [(1, 0)],
        [(0, 2), (0, 3)],
        [(0, 4), (0, 5)],
        [],
    ]
    assert rig.positions() == [6, 1]


def test_a_partial_take_leaves_the_position_within_a_pull() -> None:
    rig = Rig()
    rig.pull(0, 3)
    assert rig.take(limit=2) == [(0, 0), (0, 1)]
    assert rig.positions()[0] == 2
    assert [len(batch) for batch in rig.pulled.take_batches(0)] == [1]
    assert rig.positions()[0] == 3


def test_the_position_never_passes_pending_messages() -> None:
    """An empty pull advances the end, not the position."""
    rig = Rig()
    rig.pull(0, 2)
    rig.pull(0, 0)
    rig.queues[0].put((), 50)
    assert rig.positions()[0] == 0
    rig.take()
    assert rig.positions()[0] == 50


def test_messages_with_another_tag_are_skipped() -> None:
    rig = Rig("b")
    rig.pull(0, 2, tags="a")
    rig.pull(1, 1, tags="b")
    assert rig.take() == [(1, 0)]
    assert rig.take() == []
    assert rig.positions() == [2, 1]


def test_dropped_messages_are_not_returned() -> None:
    rig = Rig()
    rig.pull(0, 2)
    assert rig.take(limit=1) == [(0, 0)]
    rig.pulled.forget(rig.queues[0])
    rig.pull(0, 2)
    assert rig.take() == []
    assert not rig.pulled.holds(rig.queues[0])


@pytest.mark.parametrize("limits", [{"messages": 3}, {"size": 250}, {"all": 3}])
def test_full_until_messages_are_taken(limits: dict[str, int]) -> None:
    rig = Rig(**limits)
    queue = rig.queues[0]
    full = []
    for _ in range(3):
        rig.pull(0, 2)
        full.append(rig.pulled.is_full(queue))
    assert full == list(accumulate(full, max)), "once full, always fuller"
    assert full[-1]
    while rig.pulled.is_full(queue):
        assert rig.take()
    assert rig.roomy == [0]


def test_messages_of_a_paused_queue_do_not_count() -> None:
    rig = Rig(all=3)
    paused, other = rig.queues
    rig.pull(0, 4)
    assert rig.pulled.is_full(other)
    paused.paused = True
    assert not rig.pulled.is_full(other)
    rig.pull(1, 4)
    assert rig.pulled.is_full(other)
    assert len(rig.take()) == 4
    assert not rig.pulled.is_full(other)
    paused.paused = False
    assert rig.pulled.is_full(other)


def test_a_sparse_pull_counts_its_records_not_its_range() -> None:
    rig = Rig(batch=10, messages=100)
    result = PullResult(PullStatus.FOUND, 50_000, 0, 50_000, memoryview(b""))
    rig.pulled.receive(rig.queues[0], result)
    assert not rig.pulled.is_full(rig.queues[0])


def test_undecodable_messages_are_named_and_kept() -> None:
    rig = Rig()
    rig.pulled.receive(rig.queues[0], PullResult(PullStatus.FOUND, 4, 0, 4, memoryview(b"\1\2\3")))
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"queue_id=0\) at offset 0: .*Seek to offset 4"):
            rig.take()
    assert rig.positions()[0] == 0


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_messages_before_an_undecodable_one_are_returned(limit: int | None) -> None:
    rig = Rig("a")
    records = record(0, TAGS="a") + record(1, TAGS="b") + record(2, TAGS="a") + undecodable(3) + record(4, TAGS="a")
    rig.pulled.receive(rig.queues[0], PullResult(PullStatus.FOUND, 5, 0, 5, memoryview(records)))
    rig.pull(0, 1)
    taken = [offset for _, offset in [*rig.take(limit), *(rig.take(limit) if limit == 1 else [])]]
    assert taken == [0, 2]
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"offset 3: The message at offset 3: Invalid zlib.*Seek to offset 4 "):
            rig.take(limit)
        with pytest.raises(ProtocolError):
            rig.pulled.take_batches(0)
    assert rig.positions()[0] == 3


@pytest.mark.parametrize("damaged", [undecodable(3), record(3)[:-2] + b"\xff\xff"], ids=["body", "properties"])
def test_batches_before_an_undecodable_message_are_returned(damaged: bytes) -> None:
    rig = Rig("a")
    records = record(0, TAGS="a") + record(1, TAGS="b") + record(2, TAGS="a") + damaged + record(4, TAGS="a")
    rig.pulled.receive(rig.queues[0], PullResult(PullStatus.FOUND, 5, 0, 5, memoryview(records)))
    [batch] = rig.pulled.take_batches(0)
    assert batch.column("queueOffset").to_pylist() == [0, 2]
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"offset 3: The message at offset 3: .*Seek to offset 4 "):
            rig.pulled.take_batches(0)
        with pytest.raises(ProtocolError, match=r"offset 3: The message at offset 3: .*Seek to offset 4 "):
            rig.take()
    assert rig.positions()[0] == 3


def test_batches_before_an_undecodable_message_though_the_bodies_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for decoder in (messages, unwrap):
        monkeypatch.setattr(decoder, "MAX_RUN_BYTES", 5_000)
    rig = Rig()
    large = [record(offset, zlib.compress(bytes(2_000)), sys_flag=COMPRESSED) for offset in range(4)]
    records = b"".join([*large, undecodable(4), record(5)])
    rig.pulled.receive(rig.queues[0], PullResult(PullStatus.FOUND, 6, 0, 6, memoryview(records)))
    batches = rig.pulled.take_batches(0)
    assert [batch.column("queueOffset").to_pylist() for batch in batches] == [[0, 1], [2, 3]]
    with pytest.raises(ProtocolError, match=r"Seek to offset 5 "):
        rig.pulled.take_batches(0)


def test_the_way_past_an_undecodable_inner_batch_that_begins_earlier() -> None:
    """A pull within it returns all of it."""
    rig = Rig()
    rig.queues[0].begin(3)
    inner_batch = record(0, b"not compressed", sys_flag=COMPRESSED | UNWRAP_MASK)
    rig.pulled.receive(rig.queues[0], PullResult(PullStatus.FOUND, 9, 0, 9, memoryview(inner_batch)))
    for take in (rig.take, lambda: rig.pulled.take_batches(0)):
        with pytest.raises(ProtocolError, match=r"at offset 3: .*Seek to offset 4 "):
            take()


def test_batches_and_messages_of_one_pull() -> None:
    rig = Rig()
    records = b"".join(map(record, range(4))) + undecodable(4)
    rig.pulled.receive(rig.queues[0], PullResult(PullStatus.FOUND, 5, 0, 5, memoryview(records)))
    assert [offset for _, offset in rig.take(1)] == [0]
    [batch] = rig.pulled.take_batches(0)
    assert batch.column("queueOffset").to_pylist() == [1, 2, 3]
    with pytest.raises(ProtocolError):
        rig.take()


def test_closing() -> None:
    rig = Rig()
    woken: list[int] = []
    rig.pulled.wakers.add(lambda: woken.append(1))
    rig.pull(0, 1)
    rig.pulled.close()
    rig.pull(0, 1)
    assert rig.pulled.take_messages(60) == []
    assert len(woken) == 2
