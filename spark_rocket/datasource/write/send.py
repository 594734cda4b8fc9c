"""Send blocks to brokers: several requests in flight, in order where order matters, with retries.

A block in flight is in one table, as the request of its connection's session, which has the deadline of the attempt
(``client.send.producer.Attempt``). The sender counts blocks in flight, and has the deadline of all attempts of each.

A block for a given queue waits until the queue's previous block is acknowledged, retries included. Rows then keep their
order even if a broker handles requests of one connection in several threads. Delayed rows wait only for rows with the
same sharding key. After a failure a free block goes to another broker. A broker that rejects the topic (codes 1, 16,
17) is skipped from then on. A request that failed may have been executed, so rows may be stored twice: the guarantee is
at least once, and a duplicate has the same UNIQ_KEY.

A broker that could not flush or replicate in time has stored the messages (RocketMQ counts them as sent). They are
counted as ``unconfirmed`` and logged once.

A block is sent as one batch. A message that is delayed, or too large for a batch, is sent alone. Each process has one
``Producer`` per set of options, which its tasks share.

A ``BlockSender`` belongs to one task and thread. A ``Sink`` is thread-safe like the producer. Corresponds to
DefaultMQProducerImpl's retries and its backpressure.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from queue import SimpleQueue

from spark_rocket.client.send.producer import Producer
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.write.row_encoder import Block, TaskQueues
from spark_rocket.errors import MessageTooLargeError, RocketError, RowError
from spark_rocket.model import Message, MessageQueue, SendResult, SendStatus
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.client.promise import Promise


class Sink:
    """The topics to send blocks to."""

    def __init__(self, options: WriteOptions) -> None:
        self._limit = options.max_message_size
        self._producer = Producer(
            options.producer_group,
            name_server=options.name_server,
            send_timeout=options.request_timeout_ms / 1000,
            max_message_size=options.max_message_size,
            # For messages that are sent alone; blocks are compressed already.
            compress_msg_body_over_howmuch=options.max_message_size
            if options.compression == "none"
            else options.compress_above - 1,
            compress_type="zlib" if options.compression == "none" else options.compression,
            member=False,  # tasks are short-lived: brokers need not register them
            **options.connection.arguments(),
        )

    def queues(self, topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        """Return the writable queues; ``ordered``: for sharding keys, including queues of unavailable brokers.

        Raises TopicNotFoundError or NameServerUnreachableError.
        """
        return self._producer.queues(topic, ordered=ordered)

    def submit(self, block: Block, queue: MessageQueue) -> Promise[SendResult]:
        """Send once; the promise's error tells whether a retry is possible."""
        if len(block.body) <= self._limit and not block.is_delayed:
            return self._producer.attempt_batch_body(queue, block.body, block.count, sys_flag=block.sys_flag)
        ((flag, body, properties),) = decode_batch_body(block.body)
        message = Message(queue.topic, bytes(body), decode_properties(bytes(properties)), flag)
        return self._producer.attempt(message, queue)


def sink_for(options: WriteOptions) -> Sink:
    """Return this process's sink for these options. Writes that differ only in their name or topic share it."""
    return _sink_for(replace(options, write_id=None, topic=None))


@cache
def _sink_for(options: WriteOptions) -> Sink:
    return Sink(options)


log = logging.getLogger("spark_rocket.datasource")

# The broker rejects the topic; another broker may accept it, as in the client's producer.
_TRY_OTHER_BROKER = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})

Submit = Callable[[Block, MessageQueue], Promise[SendResult]]


@dataclass(slots=True)
class _Flight:
    """A block until it is stored: its present queue and attempt, and the deadline of all attempts."""

    block: Block
    queue: MessageQueue
    retry_deadline: RetryDeadline
    refused_by: set[str] = field(default_factory=set)
    answer: Promise[SendResult] = field(default_factory=Promise)


@dataclass(slots=True)
class StoredCounts:
    """The messages stored in a topic."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0


class BlockSender:
    """Keeps up to ``limit`` requests in flight, and ``delayed_limit`` of delayed rows.

    ``put`` and ``finish`` raise the first error, and raise it again in each later call.
    """

    def __init__(
        self,
        submit: Submit,
        queues: TaskQueues,
        *,
        limit: int,
        delayed_limit: int,
        retry_deadline: Callable[[], RetryDeadline],
        where: str = "",
        on_stored: Callable[[Block, SendResult], None] = lambda block, result: None,
    ) -> None:
        self._on_stored = on_stored
        self._submit = submit
        self._queues = queues
        self._limits = {False: limit, True: delayed_limit}
        self._retry_deadline = retry_deadline
        self._where = where and f" of {where}"  # for error messages
        self._counts = {False: 0, True: 0}  # of blocks in flight, by whether they are delayed
        self._busy: set[Hashable] = set()
        self._answered: SimpleQueue[_Flight] = SimpleQueue()
        self._error: BaseException | None = None
        self.topics: dict[str, StoredCounts] = {}
        self.retries = 0
        self.unconfirmed = 0

    def put(self, block: Block) -> None:
        """Send a block as soon as fewer than the maximum are in flight."""
        order = _order(block)
        with self._until_an_error():
            while self._counts[block.is_delayed] >= self._limits[block.is_delayed] or order in self._busy:
                self._settle()
            if order is not None:
                self._busy.add(order)
            self._counts[block.is_delayed] += 1
            self._launch(_Flight(block, block.queue, self._retry_deadline()))

    def finish(self) -> None:
        """Wait until all blocks are stored."""
        with self._until_an_error():
            while any(self._counts.values()):
                self._settle()

    @contextmanager
    def _until_an_error(self) -> Iterator[None]:
        """Keep the error: its block stays counted as in flight, but nothing answers for it any more."""
        if self._error is not None:
            raise self._error
        try:
            yield
        except BaseException as error:
            self._error = error
            raise

    def _launch(self, flight: _Flight) -> None:
        while True:
            try:
                flight.answer = self._submit(flight.block, flight.queue)
            except RocketError as error:
                self._failed(flight, error)
            else:
                flight.answer.when_settled(lambda _: self._answered.put(flight))
                return

    def _settle(self) -> None:
        flight = self._answered.get()
        block = flight.block
        try:
            result = flight.answer.result()
        except RocketError as error:
            self._failed(flight, error)
            self._launch(flight)
            return
        self._counts[block.is_delayed] -= 1
        self._busy.discard(_order(block))
        sent = self.topics.setdefault(block.topic, StoredCounts())
        sent.requests += 1
        sent.messages += block.count
        sent.bytes += len(block.body)
        self._on_stored(block, result)
        if result.status is not SendStatus.SEND_OK:
            self._note_unconfirmed(flight, result.status)

    def _note_unconfirmed(self, flight: _Flight, status: SendStatus) -> None:
        if not self.unconfirmed:
            log.warning(
                "%s stored %s but responded %s: they could be lost if it fails right now. Logged once per task.",
                flight.queue.broker_name,
                flight.block.rows(),
                status.value,
            )
        self.unconfirmed += flight.block.count

    def _failed(self, flight: _Flight, error: RocketError) -> None:
        """Prepare the next attempt, or raise ``error`` or the RowError that it indicates."""
        if error.response_code == ResponseCode.MESSAGE_ILLEGAL or isinstance(error, MessageTooLargeError):
            about_body = error.response_code is not None and "body" in error.message.lower()
            if flight.block.is_delayed and re.search("timer|delay", error.message, re.IGNORECASE):
                raise RowError(
                    f"{flight.block.rows()}{self._where}: the broker rejects deliverAt or delayLevel: {error.message}",
                    remedy="Choose an earlier deliverAt, or raise the broker's timerMaxDelaySec.",
                ) from error
            raise RowError(
                f"{flight.block.rows()}{self._where} ({len(flight.block.body)} bytes) cannot be sent: {error.message}",
                remedy="Make it smaller, or raise the broker's maxMessageSize and set the option maxMessageSize to it."
                if about_body
                else error.remedy,
            ) from error
        self.retries += 1
        elsewhere = self._elsewhere(flight)
        if elsewhere and error.response_code in _TRY_OTHER_BROKER:
            flight.refused_by.add(flight.queue.broker_name)
        else:
            flight.retry_deadline.wait(error, f"to send to {flight.queue.topic}/{flight.queue.broker_name}")
        flight.queue = elsewhere or flight.queue

    def _elsewhere(self, flight: _Flight) -> MessageQueue | None:
        """Draw a queue of brokers that neither just failed nor rejected the topic; None if there is none now."""
        if not flight.block.is_free:
            return None
        avoid = flight.refused_by | {flight.queue.broker_name}
        return self._queues.drawn_elsewhere(flight.block.topic, flight.block.lot, avoid)


def _order(block: Block) -> Hashable:
    """Return the ordering key: blocks with the same key are sent one after another; None if order is free."""
    if block.is_free or (block.is_delayed and block.order is None):
        return None
    return (block.queue, block.order) if block.is_delayed else block.queue
