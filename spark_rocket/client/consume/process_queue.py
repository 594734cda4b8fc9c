"""The messages of one queue that a consumer has pulled and not consumed yet.

How far a group is in a queue is where the first message is that is not consumed: later ones may be done already, and
are consumed again should the consumer die. The offset to commit follows from what is here, and from nothing else.
Messages are known by the offsets that they had when they came: a listener may change what it is given.

A ``Puller`` keeps the pulls of one queue going: one is always in flight, unless the queue is full, paused or given up.

======================  ===========================================================================================
what comes back         then
======================  ===========================================================================================
messages                they go to the consume service, the next pull follows at once, or after the interval
none, or none wanted    the next pull at the offset that the broker says; commits follow, when all before is done
offset out of range     the queue is dropped; 10 s later the broker's offset is committed and the queue goes on there
asked otherwise         the settings are others now: the same offset again, for what was passed over may be wanted;
                        whoever changes them calls ``pull`` and need not wait for the end of a long poll
an error                again after 3 s, SYSTEM_BUSY too; FLOW_CONTROL after 20 ms
as many as asked for    a backlog: the next pull asks for more, if the settings say how many
nothing was asked       queue full: when it has room again, at the latest after 50 ms; paused: after 1 s; not locked
                        (orderly): after 3 s
======================  ===========================================================================================

No pull carries a commit, as the original's do: one that is late, or was made while the queue went to another member,
would take back what was committed since. Offsets are committed by themselves, every 5 s and when a queue is left.

Thread-safety: all methods. Pulls are started from any thread; answers come on the thread that reads the connection,
which must not wait. ``lock_consume`` is held while an orderly listener runs, ``lock_commit`` while an
offset is on its way, so that no older one comes after it.
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
from typing import Protocol

from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RocketError, StateError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.bodies import ProcessQueueInfo
from spark_rocket.protocol.wire.codes import ResponseCode

logger = logging.getLogger(__name__)

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


AFTER_ERROR = 3.0
AFTER_BUSY = 0.02
WHEN_FULL = 0.05
WHEN_PAUSED = 1.0
WHEN_NOT_LOCKED = 3.0
BROKER_SUSPENDS_MS = 15_000
PULL_SECONDS = 15.0  # beyond the broker's suspension
CORRECT_AFTER = 10.0
BACKLOG_BYTES = 1 << 20
_BUSY = frozenset({int(ResponseCode.FLOW_CONTROL), int(ResponseCode.SYSTEM_BUSY)})


def pause_after(error: Exception) -> float:
    """Seconds until a failed pull is tried again: whoever has too much to do is not asked fifty times a second."""
    code = error.response_code if isinstance(error, RocketError) else None
    return AFTER_BUSY if code == ResponseCode.FLOW_CONTROL else AFTER_ERROR


class PullReceiver(Protocol):
    """What becomes of pulled messages."""

    def receive(self, process_queue: ProcessQueue, found: PullResult) -> None:
        """Take over what a pull found, which may be nothing; quick, on a reading thread."""

    def is_full(self, process_queue: ProcessQueue) -> bool:
        """Whether the queue should not be pulled now."""


@dataclass(frozen=True, slots=True)
class PullSettings:
    """What a consumer asks of every pull of a topic; of the next ones, while there is a backlog, ``backlog_msgs``.

    ``interval``: seconds between an answer with messages and the next pull.
    """

    max_msgs: int
    max_bytes: int | None
    backlog_msgs: int
    tags: str
    sql: str | None
    must_lock: bool
    interval: float = 0.0


class Puller:
    """Keeps one queue's pulls going; see the module. ``settings`` are asked for each pull: None when it has to stop."""

    def __init__(
        self,
        instance: ClientInstance,
        reader: Reader,
        service: PullReceiver,
        process_queue: ProcessQueue,
        offset: int,
        settings: Callable[[], PullSettings | None],
        *,
        is_paused: Callable[[], bool],
        correct_offset: Callable[[Puller, int], None],
    ) -> None:
        self.process_queue = process_queue
        self.next_offset = offset
        self._settings = settings
        self._instance = instance
        self._reader = reader
        self._service = service
        self._is_paused = is_paused
        self._correct_offset = correct_offset
        self._lock = threading.Lock()
        self._taking_over = threading.Lock()  # an answer: before the other, if both are held
        self._backlog = False
        self._turn = 0  # whoever waits, for an answer or for its time, knows by it whether it is still awaited
        self._waiting_for_room = False

    def pull(self) -> None:
        """Begin; or begin anew with other settings: an answer that is waited for is not used any more."""
        with self._taking_over, self._lock:  # one that is being used is used first
            self._turn += 1
            self._waiting_for_room = False
            turn = self._turn
        self._pull(turn)

    def _pull(self, turn: int) -> None:
        """Ask for messages now, or later if now is no time for it."""
        process_queue, settings = self.process_queue, self._settings()
        if process_queue.dropped or settings is None or turn != self._turn:
            return
        process_queue.last_pull = time.monotonic()
        if self._is_paused() or process_queue.paused:
            self._later(turn, WHEN_PAUSED)
        elif settings.must_lock and not process_queue.locked:
            self._later(turn, WHEN_NOT_LOCKED)
        elif self._service.is_full(process_queue):
            self._later(turn, WHEN_FULL, for_room=True)
        else:
            try:
                pending = self._reader.pull_async(
                    process_queue.queue,
                    self.next_offset,
                    max_msgs=settings.backlog_msgs if self._backlog else settings.max_msgs,
                    max_bytes=settings.max_bytes or (BACKLOG_BYTES if self._backlog else None),
                    tags=settings.tags,
                    sql=settings.sql,
                    suspend_ms=BROKER_SUSPENDS_MS,
                    timeout=PULL_SECONDS,
                )
            except StateError:  # closed meanwhile
                return
            pending.add_done_callback(lambda answered: self._done(turn, settings, answered))

    def has_room(self) -> None:
        """Messages were consumed: go on, if that is what was waited for."""
        if self._waiting_for_room and not self._service.is_full(self.process_queue):
            with self._lock:
                if not self._waiting_for_room:
                    return
                self._waiting_for_room = False
                self._turn += 1  # not once more when the time is up
                turn = self._turn
            self._pull(turn)

    def _later(self, turn: int, seconds: float, *, for_room: bool = False) -> None:
        with self._lock:
            if turn != self._turn:
                return
            self._waiting_for_room = for_room
        self._instance.call_later(seconds, lambda: self._resume(turn))

    def _resume(self, turn: int) -> None:
        with self._lock:
            if turn != self._turn:
                return
            self._waiting_for_room = False
        self._pull(turn)

    def _done(self, turn: int, settings: PullSettings, answered: Future[PullResult]) -> None:
        with self._taking_over:
            if turn != self._turn:
                return
            goes_on = self._take_over(turn, settings, answered)
        if goes_on:
            self._pull(turn)

    def _take_over(self, turn: int, settings: PullSettings, answered: Future[PullResult]) -> bool:
        """Use an answer; whether the next pull follows at once."""
        process_queue = self.process_queue
        try:
            found = answered.result()
        except Exception as error:
            if not process_queue.dropped:
                busy = isinstance(error, RocketError) and error.response_code in _BUSY
                logger.log(logging.INFO if busy else logging.WARNING, "a pull of %s: %s", process_queue.queue, error)
                self._later(turn, pause_after(error))
            return False
        if process_queue.dropped:
            return False
        process_queue.pull_seconds = time.monotonic() - process_queue.last_pull
        process_queue.broker_end = found.max_offset
        if settings != self._settings():
            return True
        if found.status is PullStatus.OFFSET_ILLEGAL:
            if not found.from_master:  # a slave that lags behind knows nothing about the queue's ends
                self._later(turn, AFTER_ERROR)
                return False
            logger.warning(
                "%s has nothing at offset %d (it has %d to %d): the group goes on at %d",
                process_queue.queue,
                self.next_offset,
                found.min_offset,
                found.max_offset,
                found.next_offset,
            )
            process_queue.stale = process_queue.dropped = True
            self._instance.call_later(CORRECT_AFTER, lambda: self._correct_offset(self, found.next_offset))
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
            logger.exception("what was pulled from %s cannot be used; it is pulled again", process_queue.queue)
            self.next_offset = process_queue.end
            self._later(turn, AFTER_ERROR)
            return False
        if settings.interval > 0 and found.status is PullStatus.FOUND:
            self._later(turn, settings.interval)
            return False
        return True
