from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

import pytest

from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.write.row_encoder import Block, TaskQueues
from spark_rocket.datasource.write.send import BlockSender, StoredCounts
from spark_rocket.errors import (
    BrokerError,
    MessageTooLargeError,
    NameServerUnreachableError,
    QueueNotFoundError,
    RemotingTimeoutError,
    RocketError,
    RowError,
    TopicNotFoundError,
)
from spark_rocket.model import MessageQueue, SendResult, SendStatus
from spark_rocket.remoting.client.promise import Promise

QUEUES = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(2)]


def answer(queue: MessageQueue, status: SendStatus = SendStatus.SEND_OK) -> SendResult:
    return SendResult(status, "", "", queue, 0)


def retry_deadline() -> RetryDeadline:
    return RetryDeadline(1000, clock=lambda: 0.0, sleep=lambda seconds: None)


class Wire:
    """Responds to requests on demand, or at once."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.sent: list[tuple[Block, MessageQueue]] = []
        self.open: list[Promise[SendResult]] = []
        self.errors: dict[int, RocketError] = {}
        self.most_open = 0
        self.status = SendStatus.SEND_OK
        self.route: list[list[MessageQueue] | RocketError] = []  # results of the next route lookups; then QUEUES
        self.queues = TaskQueues(self._queues_of, b"key", retry_deadline)

    def _queues_of(self, topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        found = self.route.pop(0) if self.route else QUEUES
        if isinstance(found, RocketError):
            raise found
        return found

    def block(self, number: int) -> Block:
        """A free block, as the encoder yields it."""
        return replace(block(number, self.queues.drawn("t", number)), is_free=True)

    def submit(self, block: Block, queue: MessageQueue) -> Promise[SendResult]:
        future: Promise[SendResult] = Promise()
        number = len(self.sent)
        self.sent.append((block, queue))
        self.open.append(future)
        self.most_open = max(self.most_open, sum(not each.done() for each in self.open))
        if number in self.errors:
            future.fail(self.errors[number])
        elif self.at_once:
            future.resolve(answer(queue, self.status))
        return future

    def sender(self, limit: int = 3) -> BlockSender:
        return BlockSender(
            self.submit,
            self.queues,
            limit=limit,
            delayed_limit=4,
            retry_deadline=retry_deadline,
            where="partition 2",
        )


def block(number: int, queue: MessageQueue) -> Block:
    return Block("t", queue, memoryview(b"x" * 10), 5, number, lot=number)


def messages(sender: BlockSender) -> int:
    return sum(sent.messages for sent in sender.topics.values())


def test_free_blocks_are_spread_and_a_removed_queue_moves_only_its_blocks() -> None:
    wire = Wire()
    sender = wire.sender()
    for number in range(200):
        sender.put(wire.block(number))
    wire.route = [[queue for queue in QUEUES if queue != QUEUES[1]]] * 200
    for number in range(200):
        sender.put(wire.block(number))
    sender.finish()
    used = [queue for _, queue in wire.sent]
    assert min(used[:200].count(queue) for queue in QUEUES) > 30
    before, after = used[:200], used[200:]
    assert [queue for queue in before if queue != QUEUES[1]] == [
        queue for queue, was in zip(after, before, strict=True) if was != QUEUES[1]
    ]
    assert sender.topics == {"t": StoredCounts(messages=2000, bytes=4000, requests=400)}


def test_delayed_rows_have_a_separate_limit_and_are_ordered_by_key() -> None:
    wire = Wire(at_once=False)
    sender = wire.sender(limit=1)

    def delayed(number: int, key: str | None) -> Block:
        return Block("t", QUEUES[0], memoryview(b"x"), 1, number, is_delayed=True, order=key)

    sender.put(block(0, QUEUES[0]))
    for number, key in enumerate(("a", "b", None), 1):
        sender.put(delayed(number, key))
    assert wire.most_open == 4, "neither of them waits for the plain rows of its queue"
    wire.open[2].resolve(answer(QUEUES[0]))
    wire.open[1].fail(RemotingTimeoutError("late"))
    wire.at_once = True
    sender.put(delayed(4, "a"))
    assert [each.first_row for each, _ in wire.sent] == [0, 1, 2, 3, 1, 4], "behind what is sent again"
    for future in wire.open:
        if not future.done():
            future.resolve(answer(QUEUES[0]))
    sender.finish()
    assert (messages(sender), sender.retries) == (9, 1)


def test_a_retried_block_is_not_overtaken() -> None:
    wire = Wire()
    wire.errors = {0: RemotingTimeoutError("late"), 1: RemotingTimeoutError("late")}
    sender = wire.sender()
    for number in range(3):
        sender.put(block(number, QUEUES[number % 2]))
    sender.finish()
    assert [each.first_row for each, queue in wire.sent if queue == QUEUES[0]] in ([0, 0, 2], [0, 0, 0, 2])


def test_a_block_for_a_queue_waits_for_the_previous_one() -> None:
    wire = Wire(at_once=False)
    sender = wire.sender()
    sender.put(block(0, QUEUES[0]))
    sender.put(block(1, QUEUES[1]))
    wire.open[0].resolve(answer(QUEUES[0]))
    sender.put(block(2, QUEUES[0]))
    assert [each.first_row for each, _ in wire.sent] == [0, 1, 2]
    for future in wire.open[1:]:
        future.resolve(answer(QUEUES[0]))
    sender.finish()
    assert sender.topics["t"].requests == 3


def test_requests_in_flight_are_limited() -> None:
    wire = Wire(at_once=False)
    sender = wire.sender(limit=2)
    sender.put(wire.block(0))
    sender.put(wire.block(1))
    wire.open[1].resolve(answer(QUEUES[1]))
    sender.put(wire.block(2))
    assert wire.most_open == 2


def test_a_failed_free_block_goes_to_another_broker() -> None:
    wire = Wire()
    wire.errors = {0: RemotingTimeoutError("late"), 1: BrokerError("busy", response_code=2)}
    sender = wire.sender()
    sender.put(wire.block(0))
    sender.finish()
    brokers = [queue.broker_name for _, queue in wire.sent]
    assert brokers[0] != brokers[1] != brokers[2]
    assert messages(sender) == 5


def test_a_failed_block_for_a_queue_keeps_its_queue() -> None:
    wire = Wire()
    wire.errors = {0: RemotingTimeoutError("late")}
    sender = wire.sender()
    sender.put(block(0, QUEUES[3]))
    sender.finish()
    assert [queue for _, queue in wire.sent] == [QUEUES[3], QUEUES[3]]


def test_a_broker_that_refuses_the_topic_is_excluded() -> None:
    for error in (
        BrokerError("no right", response_code=16),
        TopicNotFoundError("not here", response_code=17),
        BrokerError("disk", response_code=1),
    ):
        wire = Wire()
        wire.errors = {0: error, 1: RemotingTimeoutError("late")}
        sender = wire.sender()
        sender.put(wire.block(0))
        sender.finish()
        first, *others = [queue.broker_name for _, queue in wire.sent]
        assert len(others) == 2
        assert first not in others, "not even after the other one was late"
        assert messages(sender) == 5


def test_when_every_broker_refuses_the_error_is_final() -> None:
    wire = Wire()
    wire.errors = {number: BrokerError(f"no right {number}", response_code=16) for number in range(10)}
    sender = wire.sender()
    sender.put(wire.block(0))
    with pytest.raises(BrokerError, match="no right 1"):
        sender.finish()
    assert len(wire.sent) == 2


def test_a_block_for_a_queue_is_not_moved() -> None:
    wire = Wire()
    wire.errors = {0: BrokerError("no right", response_code=16)}
    sender = wire.sender()
    sender.put(block(0, QUEUES[0]))
    with pytest.raises(BrokerError, match="no right"):
        sender.finish()


def test_a_block_goes_to_its_queue_without_a_look_up() -> None:
    wire = Wire()
    sender = wire.sender()
    found = [wire.block(number) for number in range(8)]
    wire.route = [NameServerUnreachableError("not to be asked")]
    for each in found:
        sender.put(each)
    sender.finish()
    assert [queue for _, queue in wire.sent] == [each.queue for each in found]
    assert len(wire.route) == 1


def test_an_unavailable_route_is_retried() -> None:
    wire = Wire()
    wire.route = [NameServerUnreachableError("restarting"), NameServerUnreachableError("restarting")]
    sender = wire.sender()
    sender.put(wire.block(0))
    sender.finish()
    assert (messages(sender), wire.route) == (5, [])
    wire.route = [TopicNotFoundError("no such topic")]
    with pytest.raises(TopicNotFoundError):
        sender.put(wire.block(1))


def test_a_failed_free_block_keeps_its_queue_without_a_route() -> None:
    wire = Wire()
    wire.errors = {0: RemotingTimeoutError("late")}
    wire.route = [QUEUES, QueueNotFoundError("no master now", retriable=True)]
    sender = wire.sender()
    sender.put(wire.block(0))
    sender.finish()
    assert wire.sent[0][1] == wire.sent[1][1]
    assert messages(sender) == 5


@pytest.mark.parametrize("status", [status for status in SendStatus if status is not SendStatus.SEND_OK])
def test_unconfirmed_rows_are_counted_and_logged_once(status: SendStatus, caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire()
    sender = wire.sender()
    sender.put(wire.block(0))
    wire.status = status
    sender.put(wire.block(1))
    sender.put(wire.block(2))
    with caplog.at_level(logging.WARNING):
        sender.finish()
    assert (messages(sender), sender.unconfirmed, len(wire.sent)) == (15, 10, 3)
    assert caplog.text.count(status.value) == 1


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (TopicNotFoundError("gone"), TopicNotFoundError, "gone"),
        (BrokerError("no such request", response_code=3), BrokerError, "no such request"),
        (
            BrokerError("maybe msg body or properties length not matched", response_code=13),
            RowError,
            "5 rows from row 7 on .*not matched Make it smaller",
        ),
        (
            BrokerError("topic too long", response_code=13, remedy="Shorten it."),
            RowError,
            "5 rows from row 7 on .*topic too long Shorten it",
        ),
        (
            MessageTooLargeError("32,770 bytes of properties", remedy="Move them into the body."),
            RowError,
            "5 rows from row 7 on .*of properties Move them into the body",
        ),
    ],
)
def test_a_final_error_is_raised(error: RocketError, expected: type[RocketError], text: str) -> None:
    wire = Wire()
    wire.errors = {0: error}
    sender = wire.sender()
    sender.put(wire.block(7))
    with pytest.raises(expected, match=text):
        sender.finish()
    assert len(wire.sent) == 1


def test_a_sender_that_failed_raises_its_error_again() -> None:
    """The failed block will not be answered: a wait for it would not end."""
    wire = Wire()
    wire.errors = {0: BrokerError("no such request", response_code=3)}
    sender = wire.sender(limit=1)
    sender.put(wire.block(0))
    for call in (partial(sender.put, wire.block(1)), partial(sender.put, wire.block(2)), sender.finish):
        with pytest.raises(BrokerError, match="no such request"):
            call()
    assert len(wire.sent) == 1


def test_a_rejected_delivery_time_names_its_column() -> None:
    wire = Wire()
    wire.errors = {0: BrokerError("timer message illegal, the delay time should not be bigger", response_code=13)}
    sender = wire.sender()
    sender.put(replace(wire.block(7), is_delayed=True, count=1))
    with pytest.raises(RowError, match=r"row 7 of partition 2: the broker rejects deliverAt .*timerMax"):
        sender.finish()
