"""The pulled and not yet consumed messages of one queue, and its pulls.

The position of a group in a queue is the offset of the first message that is not consumed. Later messages may be
consumed already; they are consumed again if the consumer crashes. The offset to commit depends only on the state here.
Messages are identified by the offsets that they had when received, because a listener may modify its messages.

A ``Puller`` continuously pulls one queue: one pull is always in flight, unless the queue is full, paused or dropped.

======================  ===========================================================================================
result of a pull        next step
======================  ===========================================================================================
messages                they go to the consume service; the next pull follows immediately, or after the interval
no (matching) messages  the next pull at the offset that the broker returned; it is committed when all earlier messages
                        are consumed
offset out of range     the queue is dropped; 10 s later the broker's offset is committed and the queue continues there
outdated settings       the same offset is pulled again, because skipped messages may match now; after a change of the
                        settings, ``pull`` replaces a long poll in flight
an error                retry after 3 s, also for SYSTEM_BUSY; FLOW_CONTROL after 20 ms
a full batch            there is a backlog: the next pull requests more messages, if the settings allow it
no pull was sent        queue full: when it has room again, at the latest after 50 ms; paused: after 1 s; not locked
                        (orderly): after 3 s
======================  ===========================================================================================

Unlike in the original, pulls carry no commits: a delayed pull, or one sent while the queue moved to another member,
would reset a newer commit. Offsets are committed separately, every 5 s and when a queue is released.

Thread-safety: all methods. Pulls are started on any thread. Responses arrive on the thread that reads the connection,
which must not block. ``lock_consume`` is held while an orderly listener runs.
Corresponds to ProcessQueue, DefaultMQPushConsumerImpl.pullMessage and PullMessageService.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.reader import Reader
from spark_rocket.errors import RocketError, StateError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.bodies.consumer import ProcessQueueInfo
from spark_rocket.protocol.wire.codes import ResponseCode

logger = logging.getLogger(__name__)

PULL_EXPIRED_SECONDS = 120.0
LOCK_EXPIRED_SECONDS = 30.0
START_TIME = "CONSUME_START_TIME"


class Ownership(Enum):
    """The state of a consumer's queue; see owned_queues.py."""

    WAITING = "WAITING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    LEAVING = "LEAVING"
    ENDED = "ENDED"


class ProcessQueue:
    """One queue, from its assignment to its release, and its cached messages.

    ``dropped``: the queue is no longer assigned, or restarts at another offset; its messages are discarded.
    ``stale``: the group continues at another offset, so this queue commits no more offsets.
    ``start_offset``: None until it is known. ``marked``: the offset to commit, if the application marks it.
    """

    def __init__(self, queue: MessageQueue, start_offset: int | None = None) -> None:
        self.queue = queue
        self.state = Ownership.WAITING
        self.start_offset = start_offset
        self.has_begun = False
        self.marked: int | None = None
        self.puller: Puller | None = None
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
        self._lock = threading.Lock()
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
            started = message.get_property(START_TIME) or ""
        except Exception:  # the listener may have corrupted its properties
            started = "0"
        return (offset, message) if started.isdecimal() and int(started) < limit_ms else None

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


ERROR_DELAY_S = 3.0
BUSY_DELAY_S = 0.02
FULL_DELAY_S = 0.05
PAUSED_DELAY_S = 1.0
UNLOCKED_DELAY_S = 3.0
SUSPEND_MS = 15_000
PULL_TIMEOUT_S = 15.0  # in addition to the broker's suspension
CORRECTION_DELAY_S = 10.0
BACKLOG_BYTES = 1 << 20
_BUSY = frozenset({int(ResponseCode.FLOW_CONTROL), int(ResponseCode.SYSTEM_BUSY)})


def pause_after(error: Exception) -> float:
    """Return the delay before a failed pull is retried; long for a busy broker, to reduce its load."""
    code = error.response_code if isinstance(error, RocketError) else None
    return BUSY_DELAY_S if code == ResponseCode.FLOW_CONTROL else ERROR_DELAY_S


class PullReceiver(Protocol):
    """The receiver of pulled messages."""

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        """Accept the result of a pull, which may be empty; called on a reading thread, so it must not block."""

    def is_full(self, process_queue: ProcessQueue) -> bool:
        """Whether to stop pulling the queue for now."""

    def position(self, process_queue: ProcessQueue) -> int:
        """Return the offset of the first message that is not consumed."""

    def holds(self, process_queue: ProcessQueue) -> bool:
        """Whether messages of the queue will be consumed even if its next offset turns out to be invalid."""

    def forget(self, process_queue: ProcessQueue) -> int:
        """Discard the messages of a dropped queue; return its position."""


@dataclass(frozen=True, slots=True)
class PullSettings:
    """The settings of pulls of a topic; with a backlog, the next pull requests ``backlog_msgs`` messages.

    ``interval``: seconds between a response with messages and the next pull.
    """

    max_msgs: int
    max_bytes: int | None
    backlog_msgs: int
    tags: str
    sql: str | None
    must_lock: bool
    interval: float = 0.0


class PullSource(Protocol):
    """The consumer of a puller; implemented by ``OwnedQueues``. ``suspended``: nothing is pulled."""

    reader: Reader
    receiver: PullReceiver
    suspended: bool

    @property
    def pull_settings(self) -> Callable[[str], PullSettings | None]:
        """Returns the settings of the next pull of a topic; None stops its pulls."""

    def call_later(self, seconds: float, task: Callable[[], object]) -> None: ...

    def correct(self, process_queue: ProcessQueue, offset: int) -> None:
        """Continue a queue at the broker's offset after an invalid one."""


class Puller:
    """Continuously pulls one queue."""

    def __init__(self, source: PullSource, process_queue: ProcessQueue, offset: int) -> None:
        self.process_queue = process_queue
        self.next_offset = offset
        self._source = source
        self._service = source.receiver
        self._lock = threading.Lock()
        self._response_lock = threading.Lock()  # acquired before _lock
        self._backlog = False
        self._turn = 0  # identifies the current pull or timer; older ones are ignored
        self._waiting_for_room = False

    def pull(self) -> None:
        """Start pulling, or restart with new settings: the response of a pull in flight is ignored."""
        with self._response_lock, self._lock:  # a response being processed is finished first
            self._turn += 1
            self._waiting_for_room = False
            turn = self._turn
        self._pull(turn)

    def _settings(self) -> PullSettings | None:
        return self._source.pull_settings(self.process_queue.queue.topic)

    def _pull(self, turn: int) -> None:
        """Send a pull now, or later if the queue is paused, not locked or full."""
        process_queue, settings = self.process_queue, self._settings()
        if process_queue.dropped or settings is None or turn != self._turn:
            return
        process_queue.last_pull = time.monotonic()
        if self._source.suspended or process_queue.paused:
            self._later(turn, PAUSED_DELAY_S)
        elif settings.must_lock and not process_queue.locked:
            self._later(turn, UNLOCKED_DELAY_S)
        elif self._service.is_full(process_queue):
            self._later(turn, FULL_DELAY_S, for_room=True)
        else:
            try:
                pending = self._source.reader.pull_async(
                    process_queue.queue,
                    self.next_offset,
                    max_msgs=settings.backlog_msgs if self._backlog else settings.max_msgs,
                    max_bytes=settings.max_bytes or (BACKLOG_BYTES if self._backlog else None),
                    tags=settings.tags,
                    sql=settings.sql,
                    suspend_ms=SUSPEND_MS,
                    timeout=PULL_TIMEOUT_S,
                )
            except StateError:  # closed in the meantime
                return
            pending.add_done_callback(lambda response: self._done(turn, settings, response))

    def has_room(self) -> None:
        """Continue if pulling was waiting for room in the queue."""
        if self._waiting_for_room and not self._service.is_full(self.process_queue):
            with self._lock:
                if not self._waiting_for_room:
                    return
                self._waiting_for_room = False
                self._turn += 1  # invalidates the pending timer
                turn = self._turn
            self._pull(turn)

    def _later(self, turn: int, seconds: float, *, for_room: bool = False) -> None:
        with self._lock:
            if turn != self._turn:
                return
            self._waiting_for_room = for_room
        self._source.call_later(seconds, lambda: self._resume(turn))

    def _resume(self, turn: int) -> None:
        with self._lock:
            if turn != self._turn:
                return
            self._waiting_for_room = False
        self._pull(turn)

    def _done(self, turn: int, settings: PullSettings, response: Future[PullResult]) -> None:
        with self._response_lock:
            if turn != self._turn:
                return
            goes_on = self._process(turn, settings, response)
        if goes_on:
            self._pull(turn)

    def _process(self, turn: int, settings: PullSettings, response: Future[PullResult]) -> bool:
        """Process a response; return whether the next pull follows immediately."""
        process_queue = self.process_queue
        try:
            found = response.result()
        except Exception as error:
            if not process_queue.dropped:
                busy = isinstance(error, RocketError) and error.response_code in _BUSY
                level = logging.INFO if busy else logging.WARNING
                logger.log(level, "pull of %s failed: %s", process_queue.queue, error)
                self._later(turn, pause_after(error))
            return False
        if process_queue.dropped:
            return False
        process_queue.pull_seconds = time.monotonic() - process_queue.last_pull
        process_queue.broker_end = found.max_offset
        if settings != self._settings():
            return True
        if found.status is PullStatus.OFFSET_ILLEGAL:
            if not found.from_master:  # a slave that lags behind has outdated offsets
                self._later(turn, ERROR_DELAY_S)
                return False
            logger.warning(
                "%s has no message at offset %d (offsets %d to %d): the group continues at %d",
                process_queue.queue,
                self.next_offset,
                found.min_offset,
                found.max_offset,
                found.next_offset,
            )
            process_queue.stale = process_queue.dropped = True
            self._source.call_later(CORRECTION_DELAY_S, lambda: self._source.correct(process_queue, found.next_offset))
            return False
        before, self.next_offset = self.next_offset, found.next_offset
        self._backlog = (
            settings.backlog_msgs > settings.max_msgs
            and found.status is PullStatus.FOUND
            and found.next_offset - before >= settings.max_msgs
        )
        try:
            self._service.receive(process_queue, found)
        except Exception:
            logger.exception("pulled messages of %s not processed; they are pulled again", process_queue.queue)
            self.next_offset = process_queue.end
            self._later(turn, ERROR_DELAY_S)
            return False
        if settings.interval > 0 and found.status is PullStatus.FOUND:
            self._later(turn, settings.interval)
            return False
        return True
