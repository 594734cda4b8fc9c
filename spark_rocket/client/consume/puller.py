"""Continuous pulls of one queue: one pull is always in flight, unless the queue is full, paused or dropped.

======================  ===========================================================================================
result of a pull        next step
======================  ===========================================================================================
messages                they go to the consume service; the next pull follows immediately, or after the interval
no (matching) messages  the next pull at the offset that the broker returned; it is committed when all earlier messages
                        are consumed
offset out of range     the queue is dropped; 10 s later the broker's offset is committed and the queue continues there
outdated filter         the same offset is pulled again, because skipped messages may match now; after a change of the
                        filter, ``pull`` replaces a long poll in flight
an error                retry after 3 s, also for SYSTEM_BUSY; FLOW_CONTROL after 20 ms
a full batch            there is a backlog: the next pull requests more messages, if the settings allow it
no pull was sent        queue full: when it has room again, at the latest after 50 ms; paused: after 1 s; not locked
                        (orderly): after 3 s
======================  ===========================================================================================

Unlike in the original, pulls carry no commits: a delayed pull, or one sent while the queue moved to another member,
would reset a newer commit. Offsets are committed separately, every 5 s and when a queue is released.

Pulls are started on any thread. Responses arrive on the thread that reads the connection, which must not block.
Corresponds to DefaultMQPushConsumerImpl.pullMessage and PullMessageService.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import WAITS_TEXT, PullResult, PullStatus
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.consume.subscriptions import Filter
from spark_rocket.errors import RocketError, StateError
from spark_rocket.protocol.record.messages import UndecodableError
from spark_rocket.protocol.wire.codes import ResponseCode

logger = logging.getLogger(__name__)

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

    def forget(self, process_queue: ProcessQueue) -> None:
        """Discard the messages of a dropped queue; it may be called again."""


@dataclass(frozen=True, slots=True)
class PullSettings:
    """The settings of a consumer's pulls; with a backlog, the next pull requests ``backlog_msgs`` messages.

    ``interval``: seconds between a response with messages and the next pull.
    """

    max_msgs: int
    max_bytes: int | None
    backlog_msgs: int
    must_lock: bool
    interval: float = 0.0


class PullSource(Protocol):
    """The consumer of a puller; implemented by ``OwnedQueues``. ``suspended``: nothing is pulled."""

    reader: Reader
    receiver: PullReceiver
    pull_settings: PullSettings
    suspended: bool

    @property
    def filter_of(self) -> Callable[[str], Filter | None]:
        """Returns the filter of the next pull of a topic; None stops its pulls."""

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
        self._lock = threading.RLock()
        self._response_lock = threading.RLock()  # acquired before _lock
        self._backlog = False
        self._turn = 0  # identifies the current pull or timer; older ones are ignored
        self._waiting_for_room = False

    def pull(self) -> None:
        """Start pulling, or restart with a new filter: the response of a pull in flight is ignored."""
        with self._response_lock, self._lock:  # a response being processed is finished first
            self._turn += 1
            self._waiting_for_room = False
            turn = self._turn
        self._pull(turn)

    def _filter(self) -> Filter | None:
        return self._source.filter_of(self.process_queue.queue.topic)

    def _pull(self, turn: int) -> None:
        """Send a pull now, or later if the queue is paused, not locked or full."""
        process_queue, settings, wanted = self.process_queue, self._source.pull_settings, self._filter()
        if process_queue.dropped or wanted is None or turn != self._turn:
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
                    tags=wanted.tags,
                    sql=wanted.sql,
                    suspend_ms=SUSPEND_MS,
                    timeout=PULL_TIMEOUT_S,
                )
            except StateError:  # closed in the meantime
                return
            pending.add_done_callback(lambda response: self._done(turn, wanted, response))

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

    def _done(self, turn: int, wanted: Filter, response: Future[PullResult]) -> None:
        with self._response_lock:
            if turn != self._turn:
                return
            goes_on = self._process(turn, wanted, response)
        if goes_on:
            self._pull(turn)

    def _process(self, turn: int, wanted: Filter, response: Future[PullResult]) -> bool:
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
        if wanted != self._filter():
            return True
        if found.status is PullStatus.OFFSET_ILLEGAL:
            if not found.from_master:  # a slave that lags behind has outdated offsets
                self._later(turn, ERROR_DELAY_S)
                return False
            is_reset = found.min_offset <= self.next_offset <= found.max_offset
            logger.warning(
                "%s: the offset %d %s (offsets %d to %d): the group continues at %d",
                process_queue.queue,
                self.next_offset,
                "was reset" if is_reset else "has no message",
                found.min_offset,
                found.max_offset,
                found.next_offset,
            )
            process_queue.stale = process_queue.dropped = True
            self._source.call_later(CORRECTION_DELAY_S, lambda: self._source.correct(process_queue, found.next_offset))
            return False
        settings = self._source.pull_settings
        before, self.next_offset = self.next_offset, found.next_offset
        self._backlog = (
            settings.backlog_msgs > settings.max_msgs
            and found.status is PullStatus.FOUND
            and found.next_offset - before >= settings.max_msgs
        )
        try:
            self._service.receive(process_queue, found)
        except Exception as error:
            if isinstance(error, UndecodableError):
                logger.error(WAITS_TEXT, process_queue.queue, error.message)
            else:
                logger.exception("pulled messages of %s not processed; they are pulled again", process_queue.queue)
            self.next_offset = process_queue.end
            self._later(turn, ERROR_DELAY_S)
            return False
        if settings.interval > 0 and found.status is PullStatus.FOUND:
            self._later(turn, settings.interval)
            return False
        return True
