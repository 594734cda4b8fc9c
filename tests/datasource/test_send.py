from __future__ import annotations

from concurrent.futures import Future

import pytest

from spark_rocket.datasource.patience import Patience
from spark_rocket.datasource.rows import Block
from spark_rocket.datasource.send import BlockSender
from spark_rocket.errors import BrokerError, RemotingTimeoutError, RocketError, RowError, TopicNotFoundError
from spark_rocket.model import MessageQueue

QUEUES = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(2)]


class Wire:
    """Answers requests when told to, or at once."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.sent: list[tuple[Block, MessageQueue]] = []
        self.open: list[Future[object]] = []
        self.errors: dict[int, RocketError] = {}
        self.most_open = 0

    def submit(self, block: Block, queue: MessageQueue) -> Future[object]:
        future: Future[object] = Future()
        number = len(self.sent)
        self.sent.append((block, queue))
        self.open.append(future)
        self.most_open = max(self.most_open, sum(not each.done() for each in self.open))
        if number in self.errors:
            future.set_exception(self.errors[number])
        elif self.at_once:
            future.set_result(None)
        return future

    def sender(self, limit: int = 3) -> BlockSender:
        return BlockSender(
            self.submit,
            lambda topic: QUEUES,
            limit=limit,
            first_turn=0,
            patience=lambda: Patience(1000, clock=lambda: 0.0, sleep=lambda seconds: None),
        )


def block(number: int, queue: MessageQueue | None = None) -> Block:
    return Block("t", queue, memoryview(b"x" * 10), 5, number)


def test_free_blocks_take_the_queues_in_turn() -> None:
    wire = Wire()
    sender = wire.sender()
    for number in range(8):
        sender.put(block(number))
    sender.finish()
    used = [queue for _, queue in wire.sent]
    assert set(used[:4]) == set(QUEUES)
    assert used[:4] == used[4:]
    assert (sender.messages, sender.bytes, sender.requests) == (40, 80, 8)


def test_a_block_for_a_queue_waits_for_the_one_before_it() -> None:
    wire = Wire(at_once=False)
    sender = wire.sender()
    sender.put(block(0, QUEUES[0]))
    sender.put(block(1, QUEUES[1]))
    wire.open[0].set_result(None)
    sender.put(block(2, QUEUES[0]))
    assert [each.first_row for each, _ in wire.sent] == [0, 1, 2]
    for future in wire.open[1:]:
        future.set_result(None)
    sender.finish()
    assert sender.requests == 3


def test_no_more_than_the_limit_is_under_way() -> None:
    wire = Wire(at_once=False)
    sender = wire.sender(limit=2)
    sender.put(block(0))
    sender.put(block(1))
    wire.open[1].set_result(None)
    sender.put(block(2))
    assert wire.most_open == 2


def test_a_failed_free_block_goes_to_another_broker() -> None:
    wire = Wire()
    wire.errors = {0: RemotingTimeoutError("late"), 1: BrokerError("busy", response_code=2)}
    sender = wire.sender()
    sender.put(block(0))
    sender.finish()
    brokers = [queue.broker_name for _, queue in wire.sent]
    assert brokers[0] != brokers[1] != brokers[2]
    assert sender.messages == 5


def test_a_failed_block_for_a_queue_stays_with_it() -> None:
    wire = Wire()
    wire.errors = {0: RemotingTimeoutError("late")}
    sender = wire.sender()
    sender.put(block(0, QUEUES[3]))
    sender.finish()
    assert [queue for _, queue in wire.sent] == [QUEUES[3], QUEUES[3]]


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (TopicNotFoundError("gone"), TopicNotFoundError, "gone"),
        (BrokerError("no right", response_code=16), BrokerError, "no right"),
        (BrokerError("too big", response_code=13), RowError, "5 rows from row 7 on .*too big.*maxMessageSize"),
    ],
)
def test_an_error_that_is_final_surfaces(error: RocketError, expected: type[RocketError], text: str) -> None:
    wire = Wire()
    wire.errors = {0: error}
    sender = wire.sender()
    sender.put(block(7))
    with pytest.raises(expected, match=text):
        sender.finish()
    assert len(wire.sent) == 1
