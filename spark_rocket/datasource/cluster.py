"""What the data source asks of RocketMQ: a few questions about queues, asked with patience.

``Cluster`` puts retries with back-off around the client's ``Reader``: a broker that restarts under a query is a
delay, not a failure, until ``retryTimeout`` is over. Python workers are reused, so clients are kept per process and
name server and found again by the next task; the client itself sees to forks.

Thread-safe as the client is. Nothing here needs ``close``: Spark kills workers without notice, and brokers drop dead
connections by themselves. Corresponds to the pull side of RocketMQ's DefaultMQPullConsumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TypeVar

from spark_rocket.client.reader import Reader
from spark_rocket.datasource.options import ReadOptions
from spark_rocket.datasource.patience import Patience
from spark_rocket.errors import NameServerUnreachableError
from spark_rocket.model import MessageQueue

T = TypeVar("T")

READER_GROUP = "spark_rocket_reader"


class Cluster:
    """A RocketMQ cluster as the driver sees it."""

    def __init__(self, options: ReadOptions) -> None:
        self._reader = reader_for(options.name_server, options.request_timeout_ms)
        self._retry_timeout_ms = options.retry_timeout_ms
        self._met = False

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        found: list[MessageQueue] = []
        for topic in topics:
            found += self._ask(partial(_queues_now, topic), f"to find {topic}")
        return found

    def min_offset(self, queue: MessageQueue) -> int:
        return self._ask(lambda reader: reader.min_offset(queue), "to ask for a queue's first offset")

    def max_offset(self, queue: MessageQueue) -> int:
        return self._ask(lambda reader: reader.max_offset(queue), "to ask for a queue's end")

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return self._ask(lambda reader: reader.offset_for_time(queue, timestamp_ms), "to search by time")

    def committed_offset(self, group: str, queue: MessageQueue, *, patient: bool = True) -> int | None:
        if not patient:
            return self._reader.committed_offset(group, queue)
        return self._ask(lambda reader: reader.committed_offset(group, queue), "to ask for a group's offset")

    def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        self._reader.commit_offset(group, queue, offset)

    def _ask(self, question: Callable[[Reader], T], doing: str) -> T:
        patience = Patience(self._retry_timeout_ms)

        def ask() -> T:
            try:
                return question(self._reader)
            except NameServerUnreachableError as error:
                # Never reached: a wrong address is likelier than a restart, so say so at once.
                error.retriable = self._met
                raise

        answer = patience.call(ask, doing)
        self._met = True
        return answer


def _queues_now(topic: str, reader: Reader) -> list[MessageQueue]:
    """Asked anew: queues may have been added since."""
    return reader.refresh(topic)


@cache
def reader_for(name_server: str, request_timeout_ms: int) -> Reader:
    """This process's reader for a name server."""
    return Reader(name_server, group=READER_GROUP, request_timeout=request_timeout_ms / 1000)
