"""Blocks on their way to the brokers: several under way at once, in order where order matters, again where that may
help.

A block for a given queue waits until the queue's last one is answered, so that rows keep their order even if a broker
handles requests of one connection in several threads. A free block goes to the next queue in turn, and after a
failure to another one. A request that failed may have been carried out, so rows may be stored twice: at least once,
and the repeat has the same UNIQ_KEY.

Belongs to one task and thread. Corresponds to DefaultMQProducerImpl's retries and its back-pressure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from spark_rocket.datasource.patience import Patience
from spark_rocket.datasource.rows import Block
from spark_rocket.errors import RocketError, RowError
from spark_rocket.model import MessageQueue, SendResult
from spark_rocket.protocol.codes import ResponseCode

Submit = Callable[[Block, MessageQueue], Future[SendResult]]


@dataclass(slots=True)
class _Flight:
    block: Block
    queue: MessageQueue
    patience: Patience


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

    def put(self, block: Block) -> None:
        """Send a block as soon as there is room."""
        while len(self._under_way) >= self._limit or (block.queue is not None and self._is_busy(block.queue)):
            self._settle()
        self._launch(_Flight(block, block.queue or self._next_queue(block.topic), self._patience()))

    def finish(self) -> None:
        """Wait until everything is stored."""
        while self._under_way:
            self._settle()

    def _is_busy(self, queue: MessageQueue) -> bool:
        return any(flight.queue == queue for flight in self._under_way.values())

    def _next_queue(self, topic: str, avoid: str | None = None) -> MessageQueue:
        """The next queue in turn, on another broker than the one that just failed if there is one."""
        queues = sorted(self._queues_of(topic))
        elsewhere = [queue for queue in queues if queue.broker_name != avoid]
        self._turn += 1
        candidates = elsewhere or queues
        return candidates[self._turn % len(candidates)]

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
                future.result()
            except RocketError as error:
                self._failed(flight, error)
                self._launch(flight)
            else:
                self.requests += 1
                self.messages += flight.block.count
                self.bytes += len(flight.block.body)

    def _failed(self, flight: _Flight, error: RocketError) -> None:
        if error.response_code == ResponseCode.MESSAGE_ILLEGAL:
            raise RowError(
                f"{flight.block.rows()} ({len(flight.block.body)} bytes): the broker refused: {error.message}",
                remedy="Set the option maxMessageSize to the broker's maxMessageSize.",
            ) from error
        flight.patience.wait(error, f"to send to {flight.queue.topic}/{flight.queue.broker_name}")
        if flight.block.queue is None:
            flight.queue = self._next_queue(flight.block.topic, avoid=flight.queue.broker_name)
