"""One queue's pulls: always one under way, unless the queue is full, paused or somebody else's.

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

Thread-safety: pulls are started from any thread; answers come on the thread that reads the connection, which must not
wait. Corresponds to DefaultMQPushConsumerImpl.pullMessage and PullMessageService.
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
from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RocketError, StateError
from spark_rocket.protocol.wire.codes import ResponseCode

logger = logging.getLogger(__name__)

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
