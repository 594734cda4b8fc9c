"""The pulled and not yet consumed messages of one queue.

The position of a group in a queue is the offset of the first message that is not consumed. Later messages may be
consumed already; they are consumed again if the consumer crashes. The offset to commit depends only on the state here.
Messages are identified by the offsets that they had when received, because a listener may modify its messages.

``lock_consume`` is held while an orderly listener runs. Corresponds to ProcessQueue.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.bodies.consumer import ProcessQueueInfo

PULL_EXPIRED_SECONDS = 120.0
LOCK_EXPIRED_SECONDS = 30.0
START_TIME = "CONSUME_START_TIME"


class StartTime(str):
    """When a listener got a message, in ms. Its type tells it from that of a consumer which forwarded the message."""

    __slots__ = ()


class Ownership(Enum):
    """The state of a consumer's queue; see owned_queues.py."""

    WAITING = "WAITING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    LEAVING = "LEAVING"
    ENDED = "ENDED"


class QueuePuller(Protocol):
    """The puller of a queue; see puller.py."""

    def pull(self) -> None: ...

    def has_room(self) -> None: ...


class ProcessQueue:
    """One queue, from its assignment to its release, and its cached messages.

    ``dropped``: the queue is no longer assigned, or restarts at another offset; its messages are discarded.
    ``stale``: the group continues at another offset, so this queue commits no more offsets.
    ``start_offset``: None until it is known. ``marked``: the offset to commit, if the application marks it.
    """

    def __init__(self, queue: MessageQueue, start_offset: int | None = None) -> None:
        self.queue = queue
        self.state = Ownership.WAITING
        self.thread = 0  # that starts or ends it
        self.start_offset = start_offset
        self.has_begun = False
        self.marked: int | None = None
        self.puller: QueuePuller | None = None
        self.dropped = False
        self.stale = False
        self.paused = False
        self.locked = False
        self.last_lock = 0.0
        self.last_pull = time.monotonic()
        self.last_consume = self.last_pull
        self.pull_seconds = 0.0  # duration of the last pull
        self.broker_end = 0  # end of the queue, from the last response
        self.lock_consume = threading.Lock()
        self._lock = threading.RLock()
        self._order: deque[int] = deque()  # ascending offsets; consumed ones are skipped
        self._messages: dict[int, MessageExt] = {}
        self._sizes: dict[int, int] = {}
        self._taken: dict[int, MessageExt] = {}  # messages at an orderly listener
        self._next = start_offset or 0  # the offset after all received messages
        self.size = 0

    def begin(self, offset: int) -> None:
        """Start at an offset: from now on there is a position to commit."""
        self.state, self.has_begun, self._next = Ownership.RUNNING, True, offset
        self.last_pull = time.monotonic()

    # --- adding and taking ------------------------------------------------------------------------------------

    def put(self, messages: Iterable[MessageExt], next_offset: int) -> None:
        """Add messages in ascending order; ``next_offset`` is that of the next pull, an upper limit for commits."""
        every = {message.queue_offset: message for message in messages}
        with self._lock:
            if every and next(iter(every)) < self._next:  # messages that were pulled again may be cached
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
        """Remove messages that were consumed or sent to a retry topic."""
        with self._lock:
            messages, sizes, done = self._messages, self._sizes, 0
            for offset in offsets:
                if messages.pop(offset, None) is not None:
                    done += sizes.pop(offset)
            self.size -= done
            self._skip_consumed()
        self.last_consume = time.monotonic()

    def take(self, count: int) -> list[MessageExt]:
        """Take the first messages for an orderly listener; call ``commit`` or ``give_back`` next."""
        with self._lock:
            while self._order and len(self._taken) < count:
                offset = self._order.popleft()
                message = self._messages.pop(offset, None)
                if message is not None:
                    self._taken[offset] = message
            return list(self._taken.values())

    def commit(self) -> None:
        """Remove the taken messages: they are consumed."""
        with self._lock:
            self.size -= sum(map(self._sizes.pop, self._taken))
            self._taken.clear()
            self._skip_consumed()
        self.last_consume = time.monotonic()

    def give_back(self) -> None:
        """Put the taken messages back, to be taken again."""
        with self._lock:
            for offset in sorted(self._taken, reverse=True):
                self._messages[offset] = self._taken[offset]
                self._order.appendleft(offset)
            self._taken.clear()

    def _skip_consumed(self) -> None:
        order, messages = self._order, self._messages
        while order and order[0] not in messages:
            order.popleft()

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self._messages) + len(self._taken)

    @property
    def commit_offset(self) -> int:
        """The offset of the first message that is not consumed."""
        with self._lock:
            if self._taken:
                return min(self._taken)
            return self._order[0] if self._order else self._next

    @property
    def end(self) -> int:
        """The offset after all received messages."""
        return self._next

    @property
    def span(self) -> int:
        """The distance from the first cached offset to the last."""
        with self._lock:
            return self._order[-1] - self._order[0] if self._order else 0

    def first_started_before(self, limit_ms: int) -> tuple[int, MessageExt] | None:
        """Return the first message and its offset if a concurrent listener has had it since before ``limit_ms``."""
        with self._lock:
            offset = self._order[0] if self._order else -1
            message = self._messages.get(offset)
        if message is None:
            return None
        try:
            started = message.get_property(START_TIME)
        except Exception:  # the listener may have corrupted its properties
            started = StartTime(0)
        return (offset, message) if isinstance(started, StartTime) and int(started) < limit_ms else None

    def is_lock_expired(self) -> bool:
        return time.monotonic() - self.last_lock > LOCK_EXPIRED_SECONDS

    def is_pull_expired(self) -> bool:
        return time.monotonic() - self.last_pull > PULL_EXPIRED_SECONDS

    def info(self) -> ProcessQueueInfo:
        """Return the state for tools (307)."""
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
