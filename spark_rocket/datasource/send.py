"""Blocks on their way to the brokers: several under way at once, in order where order matters, again where that may
help.

A block for a given queue waits until the queue's last one is answered, so that rows keep their order even if a broker
handles requests of one connection in several threads. A free block goes to the next queue in turn, and after a
failure to another one; a broker that will not take the topic (codes 1, 16, 17) is left out from then on. A request
that failed may have been carried out, so rows may be stored twice: at least once, and the repeat has the same UNIQ_KEY.

A broker that could not flush or replicate in time has the messages all the same (RocketMQ counts it as sent). They are
counted as ``unconfirmed`` and logged once.

Belongs to one task and thread. Corresponds to DefaultMQProducerImpl's retries and its back-pressure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from spark_rocket.datasource.patience import Patience
from spark_rocket.datasource.rows import Block
from spark_rocket.errors import MessageTooLargeError, RocketError, RowError
from spark_rocket.model import MessageQueue, SendResult, SendStatus
from spark_rocket.protocol.codes import ResponseCode

log = logging.getLogger("spark_rocket.datasource")

# This broker does not take the topic; another one may, as the client's producer has it.
_ELSEWHERE = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})

Submit = Callable[[Block, MessageQueue], Future[SendResult]]


@dataclass(slots=True)
class _Flight:
    block: Block
    queue: MessageQueue
    patience: Patience
    refused_by: set[str] = field(default_factory=set)


class BlockSender:
    """Keeps up to ``limit`` requests under way; errors surface in ``put`` or ``finish``."""

    def __init__(
        self,
        submit: Submit,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        *,
        limit: int,
        first_turn: int,
        patience: Callable[[], Patience],
    ) -> None:
        self._submit = submit
        self._queues_of = queues_of
        self._limit = limit
        self._turn = first_turn
        self._patience = patience
        self._under_way: dict[Future[SendResult], _Flight] = {}
        self.messages = 0
        self.bytes = 0
        self.requests = 0
        self.unconfirmed = 0

    def put(self, block: Block) -> None:
        """Send a block as soon as there is room."""
        while len(self._under_way) >= self._limit or (block.queue is not None and self._is_busy(block.queue)):
            self._settle()
        patience = self._patience()
        queue = block.queue or patience.call(lambda: self._next_queue(block.topic), f"to find {block.topic}")
        self._launch(_Flight(block, queue, patience))

    def finish(self) -> None:
        """Wait until everything is stored."""
        while self._under_way:
            self._settle()

    def _is_busy(self, queue: MessageQueue) -> bool:
        return any(flight.queue == queue for flight in self._under_way.values())

    def _next_queue(self, topic: str) -> MessageQueue:
        queues = sorted(self._queues_of(topic))
        self._turn += 1
        return queues[self._turn % len(queues)]

    def _launch(self, flight: _Flight) -> None:
        while True:
            try:
                self._under_way[self._submit(flight.block, flight.queue)] = flight
            except RocketError as error:
                self._failed(flight, error)
            else:
                return

    def _settle(self) -> None:
        done, _ = wait(self._under_way, return_when=FIRST_COMPLETED)
        for future in done:
            flight = self._under_way.pop(future)
            try:
                result = future.result()
            except RocketError as error:
                self._failed(flight, error)
                self._launch(flight)
            else:
                self.requests += 1
                self.messages += flight.block.count
                self.bytes += len(flight.block.body)
                if result.status is not SendStatus.SEND_OK:
                    self._note_unconfirmed(flight, result.status)

    def _note_unconfirmed(self, flight: _Flight, status: SendStatus) -> None:
        if not self.unconfirmed:
            log.warning(
                "%s stored %s but answered %s: they could be lost if it fails right now. This is said once per task.",
                flight.queue.broker_name,
                flight.block.rows(),
                status.value,
            )
        self.unconfirmed += flight.block.count

    def _failed(self, flight: _Flight, error: RocketError) -> None:
        """Prepare the next try, or raise: ``error``, or the RowError that it means."""
        if error.response_code == ResponseCode.MESSAGE_ILLEGAL or isinstance(error, MessageTooLargeError):
            about_body = error.response_code is not None and "body" in error.message.lower()
            raise RowError(
                f"{flight.block.rows()} ({len(flight.block.body)} bytes) cannot be sent: {error.message}",
                remedy="Make it smaller, or raise the broker's maxMessageSize and set the option maxMessageSize to it."
                if about_body
                else error.remedy,
            ) from error
        free = flight.block.queue is None
        elsewhere = self._elsewhere(flight) if free else []
        if elsewhere and error.response_code in _ELSEWHERE:
            flight.refused_by.add(flight.queue.broker_name)
        else:
            flight.patience.wait(error, f"to send to {flight.queue.topic}/{flight.queue.broker_name}")
        if elsewhere:
            self._turn += 1
            flight.queue = elsewhere[self._turn % len(elsewhere)]

    def _elsewhere(self, flight: _Flight) -> list[MessageQueue]:
        """Queues of other brokers than the one that just failed and those that refused; none if none is known now."""
        avoid = flight.refused_by | {flight.queue.broker_name}
        try:
            return [queue for queue in sorted(self._queues_of(flight.block.topic)) if queue.broker_name not in avoid]
        except RocketError:
            return []
