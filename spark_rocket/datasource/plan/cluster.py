"""The requests of planning to RocketMQ, retried until a deadline: ``Queues`` of ``queues.py``.

``Cluster`` adds retries with back-off to the client's ``Reader``: a broker restart during a query is a delay, not a
failure, until ``retryTimeout`` has passed.

Used by one thread. Corresponds to the administrative part of RocketMQ's DefaultMQPullConsumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from spark_rocket.client.consume.commits import commit_each
from spark_rocket.client.consume.reader import UNAVAILABLE_ERRORS, Reader
from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.readers import explained, reader_of
from spark_rocket.datasource.retry_deadline import RetryDeadline, is_retriable
from spark_rocket.datasource.stream_offsets import Positions
from spark_rocket.errors import (
    BrokerError,
    NameServerUnreachableError,
    OffsetsError,
    RemotingConnectError,
    RocketError,
)
from spark_rocket.model import MessageQueue

T = TypeVar("T")
log = logging.getLogger("spark_rocket.datasource")

_MAX_PARALLEL_SEARCHES = 8  # concurrent searches by time; each is a few sequential requests


class Cluster:
    """A RocketMQ cluster, for planning on the driver."""

    def __init__(self, options: ReadOptions) -> None:
        self._reader = reader_of(options)
        self._timeout = options.request_timeout_ms / 1000
        self._retry_timeout_ms = options.retry_timeout_ms
        self._was_reached = False
        self._sql_filter = options.sql_filter
        self._filtered: set[str] = set()
        self._configured: dict[str, frozenset[str]] | None = None
        self.from_slaves: dict[MessageQueue, int] = {}
        """The queues whose end a slave reported last, with that end."""

    def route(self, topic: str) -> TopicRoute:
        found = self._ask(lambda reader: reader.route(topic), f"to find {topic}")
        if self._sql_filter is not None and topic not in self._filtered:
            self._reader.check_filter(topic, self._sql_filter)
            self._filtered.add(topic)
        return found

    def configured(self) -> dict[str, frozenset[str]]:
        """Request ORDER_TOPIC_CONFIG once per query: brokers that join later are in the checkpoint."""
        if self._configured is None:
            try:
                doing = "to ask for ORDER_TOPIC_CONFIG"
                self._configured = self._ask(lambda reader: reader.configured_brokers(), doing)
            except BrokerError as refused:
                log.warning("cannot detect unavailable brokers by ORDER_TOPIC_CONFIG: %s", refused)
                self._configured = {}
        return self._configured

    def brokers(self) -> Collection[str] | None:
        try:
            return self._ask(lambda reader: reader.brokers(), "to ask for the list of brokers").keys()
        except BrokerError as refused:  # a proxy instead of a name server
            log.info("%s", refused)
            return None

    def topics(self) -> list[str]:
        return self._ask(lambda reader: reader.topics(), "to ask for the list of topics")

    def min_offsets(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        return self._ask_each(queues, self._reader.min_offset_later, "to ask for queues' first offsets")

    def first_times(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        found = self._ask_each(queues, self._reader.earliest_store_time_later, "to ask for queues' first times")
        return {queue: stored for queue, stored in found.items() if stored is not None}

    def store_times(self, at: Positions) -> dict[MessageQueue, int]:
        def question(queue: MessageQueue) -> Future[int]:
            return self._reader.store_time_later(queue, at[queue])

        def of_slave(queue: MessageQueue) -> int | None:
            return self._reader.slave_store_time(queue, at[queue]) if queue in self.from_slaves else None

        found = self._ask_each(at.keys(), question, "to ask for messages' times", of_slave)
        return {queue: stored for queue, stored in found.items() if stored >= 0}

    def max_offsets(
        self, queues: Collection[MessageQueue], going_on: Positions = MappingProxyType({})
    ) -> dict[MessageQueue, int]:
        def of_slave(queue: MessageQueue) -> int | None:
            if queue not in going_on:
                return None
            end = self._reader.slave_max_offset(queue)
            if end is not None:
                end = self.from_slaves[queue] = max(end, going_on[queue])
            return end

        for queue in queues:
            self.from_slaves.pop(queue, None)
        return self._ask_each(queues, self._reader.max_offset_later, "to ask for queues' ends", of_slave)

    def message_sizes(self, starts: Positions, count: int) -> dict[MessageQueue, list[int]]:
        def question(queue: MessageQueue) -> Future[list[int]]:
            return self._reader.message_sizes_later(queue, starts[queue], count)

        def of_slave(queue: MessageQueue) -> list[int] | None:
            if queue not in self.from_slaves:
                return None
            return self._reader.slave_message_sizes(queue, starts[queue], count)

        return self._ask_each(starts.keys(), question, "to ask for sizes of messages", of_slave)

    def known_sizes(self, starts: Positions, count: int) -> dict[MessageQueue, list[int]]:
        found, failed = _ask_in_parallel(
            starts.keys(), lambda queue: self._reader.message_sizes_later(queue, starts[queue], count)
        )
        for queue in failed.keys() & self.from_slaves.keys():
            sizes = self._reader.slave_message_sizes(queue, starts[queue], count)
            if sizes is not None:
                found[queue] = sizes
                del failed[queue]
        if failed:
            queue, problem = next(iter(failed.items()))
            log.info("planning without the message sizes of %d queues; %s: %s", len(failed), queue.name, problem)
        return found

    def offsets_for_times(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        def search(queue: MessageQueue) -> int:
            return self._ask(lambda reader: reader.offset_for_time(queue, times_ms[queue]), "to search by time")

        if not times_ms:
            return {}
        with ThreadPoolExecutor(min(_MAX_PARALLEL_SEARCHES, len(times_ms))) as pool:
            return dict(zip(times_ms, pool.map(search, times_ms), strict=True))

    def committed_offsets(self, group: str, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        question = partial(self._reader.committed_offset_later, group)
        found = self._ask_each(queues, question, "to ask for a group's offsets")
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def commit_offsets(self, group: str, ends: Positions) -> dict[MessageQueue, RocketError]:
        wanted, failures = self._to_commit(group, ends)
        return failures | commit_each(self._reader, group, wanted, self._timeout)

    def _to_commit(
        self, group: str, ends: Positions
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, RocketError]]:
        """Return the offsets to commit, and the queues that failed."""
        known, failures = _ask_in_parallel(ends.keys(), partial(self._reader.committed_offset_later, group))
        others = [queue for queue, offset in known.items() if offset != ends[queue]]
        latest, failed = _ask_in_parallel(others, self._reader.max_offset_later)
        failures |= failed
        wanted: dict[MessageQueue, int] = {}
        for queue, last in latest.items():
            offset, end = known[queue], ends[queue]
            if end > last:
                failures[queue] = OffsetsError(f"offset {end} is beyond the end of the queue, {last}.")
            elif offset is None or offset < end or offset > last:
                wanted[queue] = end
        return wanted, failures

    def _ask_each(
        self,
        queues: Collection[MessageQueue],
        question: Callable[[MessageQueue], Future[T]],
        doing: str,
        of_slave: Callable[[MessageQueue], T | None] | None = None,
    ) -> dict[MessageQueue, T]:
        retry_deadline = RetryDeadline(self._retry_timeout_ms)
        found, failed = _ask_in_parallel(queues, question)
        while failed:
            if of_slave is not None:
                for queue in [queue for queue, error in failed.items() if isinstance(error, UNAVAILABLE_ERRORS)]:
                    answer = of_slave(queue)
                    if answer is not None:
                        found[queue] = answer
                        del failed[queue]
                if not failed:
                    break
            queue, error = min(failed.items(), key=lambda one: is_retriable(one[1]))
            retry_deadline.wait(self._set_retriable(explained(error, queue, self._reader)), doing)
            again, failed = _ask_in_parallel(failed.keys(), question)
            found |= again
        self._was_reached = True
        return {queue: found[queue] for queue in queues}

    def _ask(self, question: Callable[[Reader], T], doing: str) -> T:
        retry_deadline = RetryDeadline(self._retry_timeout_ms)

        def ask() -> T:
            try:
                return question(self._reader)
            except RocketError as error:
                raise self._set_retriable(error) from None

        answer = retry_deadline.call(ask, doing)
        self._was_reached = True
        return answer

    def _set_retriable(self, error: RocketError) -> RocketError:
        """Make an unreachable name server final if it was never reached: a wrong address is likelier than a restart."""
        if isinstance(error, NameServerUnreachableError):
            error.retriable = self._was_reached
        return error


def _ask_in_parallel(
    queues: Collection[MessageQueue], question: Callable[[MessageQueue], Future[T]]
) -> tuple[dict[MessageQueue, T], dict[MessageQueue, RocketError]]:
    """Send requests for all queues before waiting for responses; return the results and the failures.

    A failed connection to a broker counts for all of its queues.
    """
    asked: dict[MessageQueue, Future[T]] = {}
    unreachable: dict[str, Future[T]] = {}
    for queue in queues:
        pending = unreachable.get(queue.broker_name) or question(queue)
        if pending.done() and isinstance(pending.exception(), RemotingConnectError):
            unreachable[queue.broker_name] = pending
        asked[queue] = pending
    found: dict[MessageQueue, T] = {}
    failed: dict[MessageQueue, RocketError] = {}
    for queue, pending in asked.items():
        try:
            found[queue] = pending.result()
        except RocketError as error:
            failed[queue] = error
    return found, failed
