"""Requests of the exactly-once sink to brokers, all in RocketMQ's public protocol.

A send has one of three outcomes: stored, refused (``is_refused``) or unknown. Only refused sends may be retried without
reading back.

One ``Brokers`` per process and set of options, apart from the name of a write; writes to different topics share their
connections. Thread-safe. Corresponds to DefaultMQProducer and DefaultMQPullConsumer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa

from spark_rocket.client.consume.pull import PullStatus, messages_of
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.send.producer import Producer
from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import internal_read
from spark_rocket.datasource.options.parsers import Position, Start
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.read.pull_ranges import pull_chunks
from spark_rocket.datasource.retry_deadline import RetryDeadline, is_retriable
from spark_rocket.datasource.write.row_encoder import Block
from spark_rocket.datasource.write.send import sink_for
from spark_rocket.errors import (
    DataSourceError,
    MessageTooLargeError,
    QueueNotFoundError,
    RocketError,
    TopicNotFoundError,
)
from spark_rocket.model import Message, MessageExt, MessageQueue, SendResult, SendStatus
from spark_rocket.protocol.filter.tags import parse_tags
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.record import view_record
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import GetTopicConfigRequestHeader
from spark_rocket.remoting.client.promise import Promise

log = logging.getLogger("spark_rocket.datasource")

# Brokers send these codes before they store anything.
_REFUSED = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
_BARRIER_MS = 5000
_PERMANENT = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.MESSAGE_ILLEGAL})


def is_refused(error: RocketError) -> bool:
    """Whether the broker certainly stored nothing.

    A DLedger broker also answers ``[PC_SYNCHRONIZED]`` when it has appended a message and too few replicas confirm it.
    """
    return error.response_code in _REFUSED and "[PC_SYNCHRONIZED]" not in error.message


def elapsed_seconds() -> float:
    """A clock that also counts the time in which the machine was suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(frozen=True, slots=True)
class Timing:
    """Limits of time, with the clock they are measured by."""

    grace: float
    retry_timeout_ms: int
    clock: Callable[[], float] = elapsed_seconds
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def of(cls, options: WriteOptions) -> Timing:
        return cls(options.grace_period_ms / 1000, options.retry_timeout_ms)

    def deadline(self) -> RetryDeadline:
        return RetryDeadline(self.retry_timeout_ms, clock=self.clock, sleep=self.sleep)


class Brokers:
    """Sends, pulls and offsets."""

    def __init__(self, options: WriteOptions) -> None:
        self.group = options.ledger_group
        """The consumer group of pulls, queries and registers."""
        self.name_server = options.name_server
        self._max_message_size = options.max_message_size
        self._request_timeout = options.request_timeout_ms / 1000
        self._expected_topics = (options.topic, options.staging_topic, options.ledger_topic)
        self._checked_targets: set[tuple[str, str]] = set()
        self._connection = options.connection.arguments()
        self._producer, self.reader = _clients_for(replace(options, write_id=None, topic=None))
        self._sink = sink_for(options)
        self._reading = internal_read(
            name_server=options.name_server,
            topics=(),
            starting=Position(Start.EARLIEST),
            ending=Position(Start.LATEST),
            request_timeout_ms=options.request_timeout_ms,
            retry_timeout_ms=options.retry_timeout_ms,
            connection=options.connection,
        )

    # --- sending ----------------------------------------------------------------------------------------------

    def queues(self, topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        """The writable queues; with ``ordered`` also the queues of unreachable brokers.

        The topics of options existed when the query started, so TopicNotFoundError is retriable for these: a topic has
        no route while all its masters are down, for example until a slave is promoted.
        """
        try:
            return self._producer.queues(topic, ordered=ordered)
        except TopicNotFoundError as error:
            error.retriable = topic in self._expected_topics
            raise

    def append(
        self, queue: MessageQueue, body: bytes, *, tags: str | None = None, keys: str | None = None
    ) -> SendResult:
        """Send one message."""
        with self._existing(queue):
            return self._producer.send(Message.of(queue.topic, body, tags=tags, keys=keys), queue=queue)

    def stage_async(self, queue: MessageQueue, body: memoryview) -> Promise[SendResult]:
        """Send a block as one message's body, without a copy."""
        return self._producer.attempt(Message(queue.topic, body), queue)  # type: ignore[arg-type]

    def publish(self, block: Block, queue: MessageQueue) -> SendResult:
        """Send rows as an at-least-once write sends them, once."""
        if len(block.body) > self._max_message_size and (block.count > 1 or block.sys_flag):
            raise MessageTooLargeError(
                f"{block.rows()} take {len(block.body)} bytes, and maxMessageSize is {self._max_message_size}."
            )
        return self._sink.submit(block, queue).result()

    # --- reading ----------------------------------------------------------------------------------------------

    @contextmanager
    def _existing(self, queue: MessageQueue) -> Iterator[None]:
        """Requests about a queue that existed: only its master knows that it no longer does.

        A topic has no route while its broker is unavailable or not registered yet.
        """
        try:
            yield
        except (TopicNotFoundError, QueueNotFoundError) as error:
            if self.lacks(queue):
                raise
            raise _unavailable(queue) from error

    def start(self, queue: MessageQueue) -> int:
        with self._existing(queue):
            return self.reader.min_offset(queue)

    def end(self, queue: MessageQueue) -> int:
        with self._existing(queue):
            return self.reader.max_offset(queue)

    def ends(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The end of each queue, requested at once. Queues of a topic that does not exist yet end at 0."""
        asked = {queue: self.reader.max_offset_later(queue) for queue in queues}
        ends = {}
        for queue, answer in asked.items():
            try:
                with self._existing(queue):
                    ends[queue] = answer.result()
            except TopicNotFoundError:
                ends[queue] = 0
        return ends

    def messages(
        self, queue: MessageQueue, offset: int, *, tags: str = "*", wait_ms: int = 0
    ) -> tuple[list[MessageExt], int]:
        """Messages from ``offset``, and the next offset. ``wait_ms``: the time of a long poll."""
        with self._existing(queue):
            found = self.reader.pull(queue, offset, tags=tags, suspend_ms=wait_ms)
        if not found.from_master and found.status is not PullStatus.FOUND:
            return [], offset  # a slave may lag behind, or keep less; the next pull asks the master
        if found.status is PullStatus.OFFSET_ILLEGAL and offset < found.min_offset:
            return [], found.min_offset
        going_on = found.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
        messages = messages_of(found, queue, offset, parse_tags(tags)) if found.status is PullStatus.FOUND else []
        return messages, max(offset, found.next_offset) if going_on else offset

    def staged_later(self, queue: MessageQueue, offset: int) -> Callable[[], memoryview]:
        """Request a staged block. The returned function waits for its body.

        It raises DATA_LOSS.STAGED_BLOCK if the broker does not have the block. The error is retriable if the broker may
        show the block soon: brokers acknowledge a message before it can be pulled.
        """
        answer = self.reader.pull_async(queue, offset, max_msgs=1)
        gone = condition("DATA_LOSS.STAGED_BLOCK", queue=queue.name, offset=offset)

        def body() -> memoryview:
            try:
                found = answer.result()
            except (TopicNotFoundError, QueueNotFoundError) as error:
                raise gone if self.lacks(queue) else _unavailable(queue) from error
            if found.status is PullStatus.FOUND:
                record = view_record(found.records, check_crc=False)
                if record.queue_offset == offset:
                    return record.body
            gone.retriable = not found.from_master or offset >= found.max_offset
            raise gone

        return body

    def ids(self, queue: MessageQueue, start: int, end: int) -> Iterator[pa.Array]:
        """The message ids of ``start`` to ``end`` in order."""
        options = replace(self._reading, topics=(queue.topic,))
        for chunk in pull_chunks(OffsetRange(queue, start, end), options, self.reader):
            yield decode_records(
                chunk.records, ["msgId"], broker_name=queue.broker_name, start_offset=chunk.start, end_offset=end
            ).column(0)

    def lacks(self, queue: MessageQueue) -> bool:
        """Whether the master reports that it does not have the queue."""
        return self.reader.lacks(queue) is not None

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        with self._existing(queue):
            return self.reader.committed_offset(group, queue)

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        with self._existing(queue):
            self.reader.commit_offset(group, queue, offset)

    def remove_group(self, group: str) -> bool:
        """Remove a group and its offsets. Returns False if that may succeed later."""
        from spark_rocket.client.admin import Admin  # only for the groups of earlier versions

        try:
            with Admin(self.name_server, request_timeout=self._request_timeout, **self._connection) as admin:
                admin.delete_group(group)
        except RocketError as problem:
            log.info("group %s is no longer used and could not be removed: %s", group, problem)
            return not is_retriable(problem)
        return True

    # --- what brokers can do ------------------------------------------------------------------------------------

    def check_target(self, queue: MessageQueue) -> None:
        """Raise EXACTLY_ONCE.BATCH_QUEUES if the rows of a target topic cannot be counted.

        Asks each broker once for each topic. Brokers before 5.0 know neither the request nor the attribute. Others may
        refuse it.
        """
        place = (queue.topic, queue.broker_name)
        if place in self._checked_targets:
            return
        request = RemotingCommand.request(
            RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic=queue.topic).to_ext()
        )
        try:
            answer = self.reader.remoting.invoke(self.reader.address(queue), request, self._request_timeout)
            attributes = TopicConfig.from_json(answer.body).attributes if answer.code == ResponseCode.SUCCESS else {}
        except RocketError as problem:
            log.info("the attributes of topic %s on %s are unknown: %s", *place, problem)
            return
        if attributes.get("queue.type") == "BatchCQ":
            raise condition("EXACTLY_ONCE.BATCH_QUEUES", topic=queue.topic, broker=queue.broker_name)
        self._checked_targets.add(place)

    # --- confirming ---------------------------------------------------------------------------------------------

    def confirm(self, broker: str, staging: str, timing: Timing) -> None:
        """Wait until the messages that a broker has stored are flushed, replicated and readable, as it is configured.

        All three advance in log order. So they have passed all earlier messages when a new message is answered with
        SEND_OK and can be read from the master.
        """

        def barrier() -> None:
            queue = next((queue for queue in self.queues(staging) if queue.broker_name == broker), None)
            if queue is None:
                self._producer.running().routes.refresh(staging)  # the cached route may lack this broker
                raise QueueNotFoundError(f"it has no queue of {staging}", retriable=True)
            result = self.append(queue, b"barrier")
            if result.status is not SendStatus.SEND_OK:
                raise DataSourceError(f"it answers {result.status.value}", retriable=True)
            found = self.reader.pull(queue, result.queue_offset, suspend_ms=_BARRIER_MS)
            if found.status is not PullStatus.FOUND or not found.from_master:  # a slave's answer proves nothing
                raise DataSourceError("its master does not show a message that it has acknowledged", retriable=True)

        try:
            timing.deadline().call(barrier, f"to confirm what {broker} has stored")
        except RocketError as failure:
            raise condition("EXACTLY_ONCE.NOT_DURABLE", broker=broker, problem=failure.message) from failure


def brokers_for(options: WriteOptions) -> Brokers:
    """The ``Brokers`` of this process, reused by its next tasks. Writes that differ only in their name share it."""
    return _brokers_for(replace(options, write_id=None))


@cache
def _brokers_for(options: WriteOptions) -> Brokers:
    return Brokers(options)


@cache
def _clients_for(options: WriteOptions) -> tuple[Producer, Reader]:
    timeout, connection = options.request_timeout_ms / 1000, options.connection.arguments()
    producer = Producer(
        options.producer_group,
        name_server=options.name_server,
        send_timeout=timeout,
        max_message_size=max(options.max_message_size, 1 << 20),
        compress_msg_body_over_howmuch=1 << 31,  # bodies are stored unchanged
        member=False,
        **connection,
    )
    return producer, Reader(options.name_server, group=options.ledger_group, request_timeout=timeout, **connection)


def _unavailable(queue: MessageQueue) -> QueueNotFoundError:
    return QueueNotFoundError(
        f"{queue.name} has no route: its broker is unavailable or not registered yet.",
        remedy="Start the broker.",
        retriable=True,
    )


def mark_retriable(error: RocketError) -> RocketError:
    """The error with ``retriable`` set if the broker refused the request only for now."""
    if is_refused(error) and error.response_code not in _PERMANENT:
        error.retriable = True
    return error
