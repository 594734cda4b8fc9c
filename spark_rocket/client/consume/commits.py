"""Commits of many offsets of one group, in parallel within one timeout.

Of each topic at a broker one queue is committed first, the others when it has been: Apache's brokers of 4.x and 5.x can
lose acknowledged offsets if the first commits of a group in a topic arrive together, because each creates the table of
its offsets without a lock (``ConsumerOffsetManager.commitOffset``). Nothing is remembered about earlier commits: a
broker that was killed may have lost its table.

Java's consumers commit all queues without waiting.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import Future
from queue import SimpleQueue

from spark_rocket.client.consume.reader import Reader
from spark_rocket.errors import RemotingTimeoutError, RocketError
from spark_rocket.model import MessageQueue


def commit_each(
    reader: Reader, group: str, offsets: Mapping[MessageQueue, int], seconds: float
) -> dict[MessageQueue, RocketError]:
    """Commit offsets and wait; return the errors of those that failed. Unavailable brokers do not delay the others."""
    deadline = time.monotonic() + seconds
    failed: dict[MessageQueue, RocketError] = {}
    settled: SimpleQueue[tuple[MessageQueue, Future[bool]]] = SimpleQueue()

    def begin(queue: MessageQueue) -> int:
        """Return the number of commits in flight that this adds."""
        try:
            response = reader.commit_offset_async(group, queue, offsets[queue], _left(deadline))
        except RocketError as error:
            failed[queue] = error
            return 0
        # Not by a callback: a broker's request to reset offsets waits here on the thread of the callbacks.
        response.when_settled(lambda done: settled.put((queue, done)))
        return 1

    later: dict[tuple[str, str], list[MessageQueue]] = defaultdict(list)
    for queue in sorted(offsets):
        later[queue.broker_name, queue.topic].append(queue)
    in_flight = sum(begin(queues.pop(0)) for queues in later.values())
    while in_flight:
        queue, response = settled.get()
        in_flight -= 1
        try:
            if not response.result():  # the broker does not know the group
                reader.commit_offset(group, queue, offsets[queue], timeout=_left(deadline))
        except RocketError as error:
            failed[queue] = error
        for other in later.pop((queue.broker_name, queue.topic), ()):
            in_flight += begin(other)
    for queues in later.values():  # those whose first one was not sent in time
        failed |= {queue: late_commit() for queue in queues}
    return failed


def _left(deadline: float) -> float:
    """Return the rest of a timeout. RemotingTimeoutError if there is none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise late_commit()
    return left


def late_commit() -> RemotingTimeoutError:
    return RemotingTimeoutError("The timeout was exceeded by brokers that do not respond.")
