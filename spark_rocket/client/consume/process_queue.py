"""The messages of one queue that a consumer has pulled and not consumed yet.

How far a group is in a queue is where the first message is that is not consumed: later ones may be done already, and
are consumed again should the consumer die. The offset to commit follows from what is here, and from nothing else.
Messages are known by the offsets that they had when they came: a listener may change what it is given.

Thread-safety: all methods; ``lock_consume`` is held while an orderly listener runs, ``lock_commit`` while an
offset is on its way, so that no older one comes after it.
Corresponds to org.apache.rocketmq.client.impl.consumer.ProcessQueue.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable

from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.bodies import ProcessQueueInfo

PULL_EXPIRED_SECONDS = 120.0
LOCK_LIVES_SECONDS = 30.0
START_TIME = "CONSUME_START_TIME"


class ProcessQueue:
    """See the module. ``dropped``: the queue is somebody else's now; what is left of it is forgotten.

    ``stale``: the group goes on somewhere else than this says, so that nothing of it is committed any more.
    """

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.dropped = False
        self.stale = False
        self.paused = False
        self.locked = False
        self.last_lock = 0.0
        self.last_pull = time.monotonic()
        self.last_consume = self.last_pull
        self.pull_seconds = 0.0  # that the last pull took
        self.broker_end = 0  # of the queue, as the last answer said
        self.lock_consume = threading.Lock()
        self.lock_commit = threading.Lock()
        self._lock = threading.Lock()
        self._order: deque[int] = deque()  # offsets in ascending order; those that are done are skipped
        self._messages: dict[int, MessageExt] = {}
        self._sizes: dict[int, int] = {}
        self._taken: dict[int, MessageExt] = {}  # by an orderly listener, which has not answered yet
        self._next = next_offset  # behind everything that was ever put here
        self.size = 0

    # --- putting and taking -----------------------------------------------------------------------------------

    def put(self, messages: Iterable[MessageExt], next_offset: int) -> None:
        """Add messages, ascending; ``next_offset`` is where the next pull goes on, which commits cannot pass."""
        every = {message.queue_offset: message for message in messages}
        with self._lock:
            if every and next(iter(every)) < self._next:  # what was pulled again may be here
                every = {
                    offset: message
                    for offset, message in every.items()
                    if offset not in self._messages and offset not in self._taken
                }
            sizes = [len(message.body) for message in every.values()]
            self._messages.update(every)
            self._sizes.update(zip(every, sizes, strict=True))
            self._order.extend(every)
            self.size += sum(sizes)
            self._next = max(self._next, next_offset)

    def remove(self, offsets: Iterable[int]) -> None:
        """Messages that are done, here or by having gone to a retry topic."""
        with self._lock:
            messages, sizes, done = self._messages, self._sizes, 0
            for offset in offsets:
                if messages.pop(offset, None) is not None:
                    done += sizes.pop(offset)
            self.size -= done
            self._forget_done()
        self.last_consume = time.monotonic()

    def take(self, count: int) -> list[MessageExt]:
        """The first messages, for an orderly listener; ``commit`` or ``give_back`` comes next."""
        with self._lock:
            while self._order and len(self._taken) < count:
                offset = self._order.popleft()
                message = self._messages.pop(offset, None)
                if message is not None:
                    self._taken[offset] = message
            return list(self._taken.values())

    def commit(self) -> None:
        """What was taken is done."""
        with self._lock:
            self.size -= sum(map(self._sizes.pop, self._taken))
            self._taken.clear()
            self._forget_done()
        self.last_consume = time.monotonic()

    def give_back(self) -> None:
        """What was taken is to be taken again."""
        with self._lock:
            for offset in sorted(self._taken, reverse=True):
                self._messages[offset] = self._taken[offset]
                self._order.appendleft(offset)
            self._taken.clear()

    def _forget_done(self) -> None:
        order, messages = self._order, self._messages
        while order and order[0] not in messages:
            order.popleft()

    # --- asking -----------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self._messages) + len(self._taken)

    @property
    def commit_offset(self) -> int:
        """The first offset that is not consumed."""
        with self._lock:
            if self._taken:
                return min(self._taken)
            return self._order[0] if self._order else self._next

    @property
    def end(self) -> int:
        """Behind everything that was ever put here."""
        return self._next

    @property
    def span(self) -> int:
        """From the first message here to the last."""
        with self._lock:
            return self._order[-1] - self._order[0] if self._order else 0

    def first_started_before(self, limit_ms: int) -> tuple[int, MessageExt] | None:
        """The first message and its offset, if a concurrent listener has had it since before ``limit_ms``."""
        with self._lock:
            offset = self._order[0] if self._order else -1
            message = self._messages.get(offset)
        if message is None:
            return None
        try:
            started = message.get_property(START_TIME) or ""
        except Exception:  # a listener that had it made nonsense of its properties
            started = "0"
        return (offset, message) if started.isdecimal() and int(started) < limit_ms else None

    def is_lock_expired(self) -> bool:
        return time.monotonic() - self.last_lock > LOCK_LIVES_SECONDS

    def is_pull_expired(self) -> bool:
        return time.monotonic() - self.last_pull > PULL_EXPIRED_SECONDS

    def info(self) -> ProcessQueueInfo:
        """As tools show it (307)."""
        commit_offset = self.commit_offset
        with self._lock:
            cached, taken = self._messages, self._taken
            return ProcessQueueInfo(
                commit_offset=commit_offset,
                cached_msg_min_offset=min(cached, default=0),
                cached_msg_max_offset=max(cached, default=0),
                cached_msg_count=len(cached),
                cached_msg_size_in_mib=self.size >> 20,
                transaction_msg_min_offset=min(taken, default=0),
                transaction_msg_max_offset=max(taken, default=0),
                transaction_msg_count=len(taken),
                locked=self.locked,
                last_lock_timestamp=_wall(self.last_lock),
                dropped=self.dropped,
                last_pull_timestamp=_wall(self.last_pull),
                last_consume_timestamp=_wall(self.last_consume),
            )


def _wall(moment: float) -> int:
    return int((time.time() - time.monotonic() + moment) * 1000) if moment else 0
