"""The queues that a consumer owns: from the wanted ones to pulls, locks, positions and commits.

The wanted queues are set by ``own``: they are the member's share of a topic, or assigned by the application. Each of
them passes through these states:

=========  ===========================================  ==============================================================
state      meaning                                      next
=========  ===========================================  ==============================================================
WAITING    wanted                                       STARTING by ``start``, unless the queue is leaving
STARTING   a thread locks it and finds its offset       RUNNING; WAITING after an error, or if another member has the
                                                        lock: retried after a second
RUNNING    it is pulled                                 LEAVING when it is no longer wanted or restarts at another
                                                        offset (reset, seek, lost lock)
LEAVING    dropped; an orderly listener may still run   ENDED when its call has ended
ENDED      its last offset is committed, then it is     removed
           unlocked
=========  ===========================================  ==============================================================

So a queue starts only after its last commit and, in ordered consumption, its last listener call. That holds for the
next owner of an orderly queue, which waits for the lock, and for this consumer, if it owns the queue again. Commits are
sequential, and none follows the last one: it would reset the offset of the next owner. A queue that restarts at another
offset is *stale* and commits nothing any more.

The last commit of a locked queue is retried a few times while the lock is valid, because the next owner starts there.

Thread-safety: ``OwnedQueues`` all methods, ``QueueTable`` none. ``_lock`` guards the table and is never held while
waiting for a server. ``_committing`` is held during commits, ``_locking`` during lock and unlock requests, so that no
lock is acquired for a released queue. Order: _committing or _locking, then _lock.
Corresponds to RebalanceImpl, RebalancePushImpl, AssignedMessageQueue and the pull tasks of DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from enum import Enum

from spark_rocket.client.consume.allocation import QueueShare
from spark_rocket.client.consume.offset_store import OffsetStore
from spark_rocket.client.consume.process_queue import ProcessQueue, Puller, PullReceiver, PullSettings
from spark_rocket.client.consume.queue_locks import QueueLocks
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RemotingError, RocketError, StateError
from spark_rocket.model import MessageQueue

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
LAST_COMMIT_ATTEMPTS = 3
LAST_COMMIT_SECONDS = 5.0  # no further attempt after this time
COMMIT_RETRY_SECONDS = 0.2
CORRECT_RETRY_SECONDS = 1.0


class QueueState(Enum):
    """The state of an owned queue; see the table above."""

    WAITING = "WAITING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    LEAVING = "LEAVING"
    ENDED = "ENDED"


class OwnedQueue:
    """One queue between two starts. ``offset``: where to start, None: to be found out.

    ``marked``: the offset to commit, if the application marks it.
    """

    __slots__ = ("marked", "offset", "process_queue", "puller", "queue", "state")

    def __init__(self, queue: MessageQueue, offset: int | None = None) -> None:
        self.queue = queue
        self.process_queue = ProcessQueue(queue, 0)
        self.offset = offset
        self.state = QueueState.WAITING
        self.puller: Puller | None = None
        self.marked: int | None = None


class QueueTable:
    """Which queues to start, to keep and to release. Without I/O."""

    def __init__(self) -> None:
        self.wanted: dict[MessageQueue, OwnedQueue] = {}
        self.leaving: dict[MessageQueue, OwnedQueue] = {}
        self.closed = False

    def want(self, queues: Iterable[MessageQueue], topic: str | None = None) -> list[OwnedQueue]:
        """Want exactly these queues, of one topic or of all topics. Return the running ones to release."""
        wanted = dict.fromkeys(() if self.closed else queues)
        gone = [queue for queue in self.wanted if topic in (None, queue.topic) and queue not in wanted]
        running = [one for queue in gone if (one := self._drop(queue)) is not None]
        self.wanted |= {queue: OwnedQueue(queue) for queue in wanted if queue not in self.wanted}
        return running

    def restart(self, queue: MessageQueue, offset: int | None = None) -> list[OwnedQueue]:
        """Restart a wanted queue, without a commit of its old position. Return the running one to release."""
        paused = self.wanted[queue].process_queue.paused
        old = self._drop(queue)
        if old is not None:
            old.process_queue.stale, old.marked = True, None
        new = self.wanted[queue] = OwnedQueue(queue, offset)
        new.process_queue.paused = paused
        return [] if old is None else [old]

    def _drop(self, queue: MessageQueue) -> OwnedQueue | None:
        """Return the queue if it was running. A starting one is released by the thread that starts it."""
        one = self.wanted.pop(queue)
        one.process_queue.dropped = True
        if one.state is not QueueState.WAITING:
            self.leaving[queue] = one
        if one.state is not QueueState.RUNNING:
            return None
        one.state = QueueState.LEAVING
        return one

    def may_start(self, one: OwnedQueue) -> bool:
        is_waiting = one.state is QueueState.WAITING and self.wanted.get(one.queue) is one
        return is_waiting and one.queue not in self.leaving

    def running(self) -> list[OwnedQueue]:
        return [one for one in self.wanted.values() if one.state is QueueState.RUNNING]

    def claim(self, one: OwnedQueue) -> bool:
        """Make a waiting queue a starting one; False if it may not start, or another thread starts it."""
        free = self.may_start(one)
        if free:
            one.state = QueueState.STARTING
        return free

    def settle(self, one: OwnedQueue, *, runs: bool) -> bool:
        """End the start of a queue; False if it was dropped meanwhile."""
        if self.wanted.get(one.queue) is not one:
            one.state = QueueState.LEAVING
            return False
        one.state = QueueState.RUNNING if runs else QueueState.WAITING
        return True

    def unfinished(self) -> list[OwnedQueue]:
        """Return the leaving queues that a thread is starting, committing or unlocking."""
        return [one for one in self.leaving.values() if one.state is not QueueState.LEAVING]

    def end(self, one: OwnedQueue) -> bool:
        """Make a leaving queue an ended one; False if another thread did."""
        ends = one.state is QueueState.LEAVING
        if ends:
            one.state = QueueState.ENDED
        return ends

    def remove(self, one: OwnedQueue) -> None:
        """Remove an ended queue: it may be started again."""
        del self.leaving[one.queue]

    def is_running(self, process_queue: ProcessQueue) -> bool:
        one = self.wanted.get(process_queue.queue)
        return one is not None and one.process_queue is process_queue and one.state is QueueState.RUNNING


class OwnedQueues:
    """The queues of one consumer. ``pull_settings`` returns None for a topic without a subscription.

    ``locks``: None except in ordered consumption. ``marks``: only marked positions are committed, not all of them.
    """

    receiver: PullReceiver

    def __init__(
        self,
        group: str,
        instance: Callable[[], ClientInstance],
        share: QueueShare,
        reader: Reader,
        offsets: OffsetStore,
        pull_settings: Callable[[str], PullSettings | None],
    ) -> None:
        self.instance = instance
        self.reader = reader
        self.pull_settings = pull_settings
        self.locks: QueueLocks | None = None
        self.marks = False
        self.suspended = False
        self._group = group
        self._share = share
        self._offsets = offsets
        self._table = QueueTable()
        self._retry_pending = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._committing = threading.Lock()
        self._locking = threading.Lock()

    # --- state ------------------------------------------------------------------------------------------------

    def queues(self) -> list[MessageQueue]:
        """Return the wanted queues, sorted."""
        with self._lock:
            return sorted(self._table.wanted)

    def process_queues(self) -> list[ProcessQueue]:
        """Return the running queues."""
        with self._lock:
            return [one.process_queue for one in self._table.running()]

    def count_of(self, topic: str) -> int:
        """Return the number of running queues of a topic."""
        return sum(one.queue.topic == topic for one in self.process_queues())

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset of the first message of each running queue that is not consumed."""
        with self._lock:
            return {one.queue: self.receiver.position(one.process_queue) for one in self._table.running()}

    def check(self, queues: Iterable[MessageQueue]) -> None:
        """StateError if a queue is not assigned."""
        with self._lock:
            for queue in queues:
                if queue not in self._table.wanted:
                    raise StateError(
                        f"{queue} is not assigned to this consumer.",
                        remedy="Check assignment(); a rebalance may have assigned it to another member.",
                    )

    # --- owning -----------------------------------------------------------------------------------------------

    def own(self, queues: Iterable[MessageQueue], topic: str | None = None, *, mark: bool = False) -> None:
        """Own exactly these queues, of one topic or of all topics: release others now; ``start`` starts new ones.

        ``mark``: commit the positions of released queues, not only offsets that are already marked.
        """
        wanted = list(queues)
        with self._lock:
            expired = {one.queue for one in self._table.running() if one.process_queue.is_pull_expired()}
            alive = wanted if self.marks else [queue for queue in wanted if queue not in expired]
            gone = self._table.want(alive, topic)
            self._table.want(wanted, topic)  # a queue whose pulls have stopped starts again
            self._forget(gone, mark=mark)
        self._release(gone)

    def close(self, *, mark: bool = False) -> None:
        """Release all queues permanently. Waits for requests of other threads, but not for calls of the listener."""
        self._table.closed = True
        self.own((), mark=mark)
        with self._lock:
            leaving = [one for one in self._table.leaving.values() if one.state is QueueState.LEAVING]
        self._release(leaving)  # another thread may have dropped them just now
        with self._lock:
            self._changed.wait_for(lambda: not self._table.unfinished())

    def restart(self, offsets: Mapping[MessageQueue, int], *, commit: bool, of: ProcessQueue | None = None) -> None:
        """Continue at the given offsets in owned queues; drop their pulled messages. ``of``: only this running one."""
        with self._committing if commit else nullcontext():
            with self._lock:
                if of is not None and not self._table.is_running(of):
                    return
                mine = {queue: offset for queue, offset in offsets.items() if queue in self._table.wanted}
                gone = [one for queue, offset in mine.items() for one in self._table.restart(queue, offset)]
                self._forget(gone)
                started = [self._table.wanted[queue] for queue in mine]
                for one in started if commit else ():
                    one.marked = one.offset
            if mine and commit:
                self._offsets.persist(mine)
        self._release(gone)
        self._start_each(started)

    def correct(self, puller: Puller, offset: int) -> None:
        """Continue at the broker's offset after an invalid one, when no earlier message is to be returned."""
        process_queue = puller.process_queue
        if self.receiver.holds(process_queue):
            self.call_later(CORRECT_RETRY_SECONDS, lambda: self.correct(puller, offset))
        else:
            self.restart({process_queue.queue: offset}, commit=not self.marks, of=process_queue)

    def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Pause or continue the pulls of queues. StateError if one is not assigned."""
        every = list(queues)
        with self._lock:
            self.check(every)
            for queue in every:
                self._table.wanted[queue].process_queue.paused = paused

    # --- starting ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the waiting queues, later those whose offset or lock is not available.

        Of a broker that does not respond only one queue is tried, so that the others are not delayed.
        """
        with self._lock:
            waiting = list(self._table.wanted.values())
        self._start_each(waiting)

    def _start_each(self, waiting: list[OwnedQueue]) -> None:
        silent: set[str] = set()
        for one in waiting:
            if one.queue.broker_name not in silent:
                with self._lock:
                    claimed = self._table.claim(one)
                if claimed and not self._start(one):
                    silent.add(one.queue.broker_name)
        with self._lock:
            if not self._retry_pending and any(map(self._table.may_start, self._table.wanted.values())):
                self._retry_pending = True
                self.call_later(RETRY_SECONDS, self._start_again)

    def _start_again(self) -> None:
        """Retry on a separate thread: a hanging broker must not block the instance's tasks."""
        self._retry_pending = False
        threading.Thread(target=self.start, name="rocket-start", daemon=True).start()

    def call_later(self, seconds: float, task: Callable[[], object]) -> None:
        """Run a task later, unless the consumer is closed by then."""
        with self._lock:
            if not self._table.closed:
                self.instance().call_later(seconds, task)

    def _start(self, one: OwnedQueue) -> bool:
        """Start a claimed queue. Return False if its broker does not respond."""
        process_queue, responds = one.process_queue, True
        offset: int | None = None
        try:
            if self.locks is not None and not self.locks.acquire(process_queue):
                logger.info("%s not started yet: locked by another member", one.queue)
            else:
                offset = self._share.first_offset(one.queue) if one.offset is None else one.offset
        except RocketError as error:
            responds = not isinstance(error, RemotingError)
            if not self._table.closed:
                logger.warning("%s not started yet: %s", one.queue, error)
            if self.locks is not None and process_queue.locked:  # so that the next owner need not wait
                self.locks.unlock([one.queue])
                process_queue.locked = False
        finally:
            with self._lock:
                wanted = self._table.settle(one, runs=offset is not None)
                if wanted and offset is not None:
                    process_queue.put((), offset)
                    process_queue.last_pull = time.monotonic()
                    one.puller = Puller(self, process_queue, offset)
        if not wanted:
            self._end([one])
        elif one.puller is not None:
            logger.info("group %s started %s at offset %d", self._group, one.queue, one.puller.next_offset)
            one.puller.pull()
        return responds

    def has_room(self, process_queue: ProcessQueue) -> None:
        """Continue the pulls of a queue after messages were consumed."""
        one = self._table.wanted.get(process_queue.queue)
        if one is not None and one.puller is not None:
            one.puller.has_room()

    def restart_pulls(self, topic: str) -> None:
        """Restart the pulls of a topic after a change of its filter, without waiting for long polls in flight."""
        with self._lock:
            pullers = [one.puller for one in self._table.running() if one.queue.topic == topic]
        for puller in pullers:
            if puller is not None:
                puller.pull()

    # --- releasing --------------------------------------------------------------------------------------------

    def _forget(self, gone: list[OwnedQueue], *, mark: bool = False) -> None:
        """Discard the pulled messages of dropped queues. Lock held."""
        for one in gone:
            position = self.receiver.forget(one.process_queue)
            if mark:
                one.marked = position

    def _release(self, gone: list[OwnedQueue]) -> None:
        ended = []
        for one in gone:
            logger.info("group %s released %s", self._group, one.queue)
            if one.process_queue.lock_consume.acquire(blocking=False):  # otherwise the thread of the call notices it
                one.process_queue.lock_consume.release()
                ended.append(one)
        self._commit([one for one in gone if one not in ended])
        self._end(ended)

    def released(self, process_queue: ProcessQueue) -> None:
        """The last listener call of a dropped queue has ended."""
        with self._lock:
            one = self._table.leaving.get(process_queue.queue)
        if one is not None and one.process_queue is process_queue:
            self._end([one])

    def _end(self, gone: list[OwnedQueue]) -> None:
        """Commit and unlock dropped queues, once each; start those that are wanted again."""
        with self._lock:
            gone = [one for one in gone if self._table.end(one)]
        if not gone:
            return
        self._commit_last(gone)
        with self._locking:
            if self.locks is not None:
                self.locks.unlock(one.queue for one in gone if one.process_queue.locked)
            with self._lock:
                for one in gone:
                    self._table.remove(one)
                self._changed.notify_all()
                again = [self._table.wanted[one.queue] for one in gone if one.queue in self._table.wanted]
        if again:
            self._start_each(again)

    # --- committing -------------------------------------------------------------------------------------------

    def _offset_of(self, one: OwnedQueue) -> int | None:
        """Return the offset to commit."""
        if self.marks:
            return one.marked
        started = one.puller is not None and not one.process_queue.stale
        return self.receiver.position(one.process_queue) if started else None

    def _offsets_of(self, owned: Iterable[OwnedQueue]) -> dict[MessageQueue, int]:
        return {one.queue: offset for one in owned if (offset := self._offset_of(one)) is not None}

    def mark(self) -> None:
        """Mark the positions of all queues for commit."""
        with self._lock:
            for one in self._table.running():
                one.marked = self.receiver.position(one.process_queue)

    def persist(self) -> None:
        """Commit the offsets of all queues; failures are logged and retried with the next call."""
        with self._lock:
            owned = list(self._table.wanted.values())
        self._commit(owned)

    def _commit(self, owned: list[OwnedQueue]) -> None:
        """Commit queues that have not ended in the meantime."""
        with self._committing:
            with self._lock:
                offsets = self._offsets_of(one for one in owned if one.state is not QueueState.ENDED)
            if offsets:
                self._offsets.persist(offsets)

    def _commit_last(self, gone: list[OwnedQueue]) -> None:
        """Commit queues before they are unlocked."""
        left = self._offsets_of(gone)
        if not left:
            return
        until = time.monotonic() + LAST_COMMIT_SECONDS
        with self._committing:
            for attempt in range(LAST_COMMIT_ATTEMPTS):
                if attempt:
                    time.sleep(COMMIT_RETRY_SECONDS)
                failed = self._offsets.commit(left)
                left = {queue: left[queue] for queue in failed}
                locked = any(one.queue in left and not one.process_queue.is_lock_expired() for one in gone)
                if not locked or time.monotonic() > until:
                    break
        for queue, error in failed.items():
            logger.warning("offset %d of group %s in %s not committed: %s", left[queue], self._group, queue, error)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit these offsets, or all positions, and wait: in parallel, with one timeout. Raises the first error."""
        with self._committing:
            offsets = self.positions() if offsets is None else offsets
            failed = self._offsets.commit(offsets)
            with self._lock:
                for queue, offset in offsets.items():
                    if queue in self._table.wanted and queue not in failed:
                        self._table.wanted[queue].marked = offset
        for error in failed.values():
            raise error

    def committed(self, queue: MessageQueue) -> int | None:
        with self._committing:
            return self._offsets.read(queue)

    # --- locks ------------------------------------------------------------------------------------------------

    def renew_locks(self) -> None:
        """Renew the locks of running queues, and of released ones whose call has not ended."""
        if self.locks is not None:
            with self._locking:
                with self._lock:
                    owned = self._table.running() + list(self._table.leaving.values())
                lost = self.locks.renew(one.process_queue for one in owned if one.process_queue.locked)
            self._lose(lost)

    def lock(self, process_queue: ProcessQueue) -> bool:
        """Renew the expired lock of a queue."""
        assert self.locks is not None
        with self._locking:
            lost = self.locks.renew([process_queue]) if not process_queue.dropped else []
        self._lose(lost)
        return not process_queue.dropped and process_queue.locked and not process_queue.is_lock_expired()

    def _lose(self, process_queues: list[ProcessQueue]) -> None:
        """Restart queues that another member has owned in the meantime."""
        gone = []
        with self._lock:
            for process_queue in process_queues:
                logger.warning("group %s lost the lock of %s: restarting the queue", self._group, process_queue.queue)
                process_queue.stale = process_queue.dropped = True
                if self._table.is_running(process_queue):
                    gone += self._table.restart(process_queue.queue)
            self._forget(gone)
        self._release(gone)
