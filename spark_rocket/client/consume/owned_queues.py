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
waiting for a server. ``_locking`` is held during lock and unlock requests, so that no lock is acquired for a released
queue. Commits run on a thread of their own, one after the other. That thread and the holder of ``_locking`` wait for
servers only, not for other locks: a signal handler that closes may wait for them, whatever it has interrupted.
Corresponds to RebalanceImpl, RebalancePushImpl, AssignedMessageQueue and the pull tasks of DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from spark_rocket.client.consume.allocation import QueueShare
from spark_rocket.client.consume.commits import late_commit
from spark_rocket.client.consume.offset_store import PERSIST_SECONDS, OffsetStore
from spark_rocket.client.consume.process_queue import Ownership, ProcessQueue
from spark_rocket.client.consume.puller import Puller, PullReceiver, PullSettings
from spark_rocket.client.consume.queue_locks import QueueLocks
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.consume.subscriptions import Filter
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RemotingError, RocketError, StateError
from spark_rocket.model import MessageQueue
from spark_rocket.remoting.client.promise import Promise, resolved, run_on, submitted
from spark_rocket.remoting.client.request import LOOP_MARGIN_S
from spark_rocket.remoting.event_loop import CallbackThread

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
LAST_COMMIT_ATTEMPTS = 3
LAST_COMMIT_SECONDS = 5.0  # no further attempt after this time
COMMIT_RETRY_SECONDS = 0.2
CORRECT_RETRY_SECONDS = 1.0
CLOSE_SECONDS = 30.0  # more than other threads need for their last commits


class QueueTable:
    """Which queues to start, to keep and to release. Without I/O."""

    def __init__(self) -> None:
        self.wanted: dict[MessageQueue, ProcessQueue] = {}
        self.leaving: dict[MessageQueue, ProcessQueue] = {}
        self.closed = False

    def want(self, queues: Iterable[MessageQueue], topic: str | None = None) -> None:
        """Want exactly these queues, of one topic or of all topics. Others leave."""
        wanted = dict.fromkeys(() if self.closed else queues)
        gone = [
            queue
            for queue, one in self.wanted.items()
            if topic in (None, queue.topic) and (queue not in wanted or self._is_leaving(one))
        ]
        for queue in gone:
            self._drop(queue)
        self.wanted |= {queue: ProcessQueue(queue) for queue in wanted if queue not in self.wanted}

    def restart(self, queue: MessageQueue, offset: int | None = None) -> list[ProcessQueue]:
        """Restart a wanted queue, without a commit of its old position. Return the running one to release."""
        paused, old = self.wanted[queue].paused, self._drop(queue)
        new = self.wanted[queue] = ProcessQueue(queue, offset)
        new.paused = paused
        if old is None:
            return []
        old.stale, old.marked = True, None
        return [old]

    def _drop(self, queue: MessageQueue) -> ProcessQueue | None:
        """Return the queue if it was running. A starting one is released by the thread that starts it.

        What an interrupt (Ctrl-C) cuts off, the next change of the wanted queues completes.
        """
        one = self.wanted[queue]
        if one.state is Ownership.WAITING:
            one.state = Ownership.ENDED
        elif one.state is not Ownership.ENDED:
            self.leaving[queue] = one
            if one.state is Ownership.RUNNING:
                one.state = Ownership.LEAVING
        one.dropped = True
        del self.wanted[queue]
        return one if one.state is Ownership.LEAVING else None

    def _is_leaving(self, one: ProcessQueue) -> bool:
        """Whether a wanted queue was about to be dropped."""
        return one.state is Ownership.ENDED or self.leaving.get(one.queue) is one

    def running(self) -> list[ProcessQueue]:
        return [one for one in list(self.wanted.values()) if one.state is Ownership.RUNNING]

    def may_start(self, one: ProcessQueue) -> bool:
        return one.state is Ownership.WAITING and one.queue not in self.leaving

    def settle(self, one: ProcessQueue, offset: int | None) -> bool:
        """End the start of a queue, with its offset if it was successful; False if it was dropped meanwhile."""
        if one.dropped:
            one.state = Ownership.LEAVING
        elif offset is None:
            one.state = Ownership.WAITING
        else:
            one.begin(offset)
        return not one.dropped


class OwnedQueues:
    """The queues of one consumer. ``filter_of`` returns None for a topic without a subscription.

    ``locks``: None except in ordered consumption. ``marks``: only marked positions are committed, not all of them.
    """

    receiver: PullReceiver
    pull_settings: PullSettings

    def __init__(
        self,
        group: str,
        instance: Callable[[], ClientInstance],
        share: QueueShare,
        reader: Reader,
        offsets: OffsetStore,
        filter_of: Callable[[str], Filter | None],
    ) -> None:
        self.instance = instance
        self.reader = reader
        self.filter_of = filter_of
        self.locks: QueueLocks | None = None
        self.marks = False
        self.suspended = False
        self._group = group
        self._share = share
        self._offsets = offsets
        self._table = QueueTable()
        self._retry_pending = False
        self.guard = self._lock = threading.RLock()
        """Guards the table, and what a receiver has of running queues: with two locks, a signal handler that closes
        would wait for the one, and its holder for the other, which the interrupted code holds."""
        self._changed = threading.Condition(self._lock)
        self._locking = threading.RLock()
        self._restarts = CallbackThread("rocket-restarts")
        self._commits = CallbackThread("rocket-commits")

    # --- state ------------------------------------------------------------------------------------------------

    def queues(self) -> list[MessageQueue]:
        """Return the wanted queues, sorted."""
        with self._lock:
            return sorted(self._table.wanted)

    def process_queues(self) -> list[ProcessQueue]:
        """Return the running queues."""
        with self._lock:
            return self._table.running()

    def count_of(self, topic: str) -> int:
        return sum(one.queue.topic == topic for one in self.process_queues())

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset of the first message of each running queue that is not consumed."""
        with self._lock:
            return {one.queue: self.receiver.position(one) for one in self._table.running()}

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

    def own(
        self, queues: Iterable[MessageQueue], topic: str | None = None, *, mark: bool = False, forever: bool = False
    ) -> None:
        """Own exactly these queues, of one topic or of all topics: release others now; ``start`` starts new ones.

        ``mark``: commit the positions of released queues, not only offsets that are already marked. ``forever``: own no
        others later.
        """
        wanted = dict.fromkeys(queues)
        with self._lock:
            running = self._table.running()
            expired = set() if self.marks else {one.queue for one in running if one.is_pull_expired()}
            alive = [queue for queue in wanted if queue not in expired]
            if mark:  # first: the next call after an interrupt (Ctrl-C) sees only queues that did not leave
                for one in running:
                    if topic in (None, one.queue.topic) and one.queue not in wanted:
                        one.marked = self.receiver.position(one)
            self._table.closed |= forever
            self._table.want(alive, topic)
            self._table.want(wanted, topic)  # a queue whose pulls have stopped starts again
            leaving = list(self._table.leaving.values())  # also those of a call that was interrupted
            self._forget(leaving)
        self._release(leaving)

    def close(self, *, mark: bool = False) -> None:
        """Release all queues permanently. Waits for requests of other threads, but not for calls of the listener."""
        self.own((), mark=mark, forever=True)
        with self._lock:
            if not self._changed.wait_for(self._is_released, CLOSE_SECONDS):
                left = ", ".join(map(str, self._table.leaving))
                logger.warning("group %s: closed before these queues were released: %s", self._group, left)

    def _is_released(self) -> bool:
        """Whether no other thread starts or ends a queue. This one cannot, if a signal handler or interrupt closes."""
        me, leaving = threading.get_ident(), self._table.leaving.values()
        return all(one.state is Ownership.LEAVING or one.thread == me for one in leaving)

    def restart(self, offsets: Mapping[MessageQueue, int], *, commit: bool, of: ProcessQueue | None = None) -> None:
        """Continue at the given offsets in owned queues; drop their pulled messages. ``of``: only this running one.

        An interrupt (Ctrl-C) ends the wait for it, not the restart: half of one would leave a queue without an owner.
        """
        run_on(self._restarts, partial(self._restart, offsets, commit=commit, of=of))

    def _restart(self, offsets: Mapping[MessageQueue, int], *, commit: bool, of: ProcessQueue | None) -> None:
        gone: list[ProcessQueue] = []
        try:
            with self._lock:
                if of is not None and of.state is not Ownership.RUNNING:
                    return
                mine = {queue: offset for queue, offset in offsets.items() if queue in self._table.wanted}
                gone = [one for queue, offset in mine.items() for one in self._table.restart(queue, offset)]
                self._forget(gone)
                started = [(self._table.wanted[queue], offset) for queue, offset in mine.items()]
                for one, offset in started:
                    one.marked = offset if commit else None
                committed = self._submit(started if commit else [])
            committed.result()
        finally:
            self._release(gone)
        self._start_each([one for one, _ in started])

    def correct(self, process_queue: ProcessQueue, offset: int) -> None:
        """Continue at the broker's offset after an invalid one, when no earlier message is to be returned."""
        if self.receiver.holds(process_queue):
            self.call_later(CORRECT_RETRY_SECONDS, lambda: self.correct(process_queue, offset))
        else:
            self.restart({process_queue.queue: offset}, commit=not self.marks, of=process_queue)

    def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Pause or continue the pulls of queues. StateError if one is not assigned."""
        every = list(queues)
        with self._lock:
            self.check(every)
            for one in [self._table.wanted.get(queue) for queue in every]:
                if one is not None:  # a signal handler may have closed the consumer
                    one.paused = paused

    # --- starting ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the waiting queues, later those whose offset or lock is not available.

        Of a broker that does not respond only one queue is tried, so that the others are not delayed.
        """
        with self._lock:
            waiting = list(self._table.wanted.values())
        self._start_each(waiting)

    def _start_each(self, waiting: list[ProcessQueue]) -> None:
        silent: set[str] = set()
        for one in waiting:
            try:
                with self._lock:
                    if one.queue.broker_name in silent or not self._table.may_start(one):
                        continue
                    one.thread, one.state = threading.get_ident(), Ownership.STARTING
                if not self._start(one):
                    silent.add(one.queue.broker_name)
            except BaseException:  # an interrupt
                self._undo_start(one)
                raise
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

    def _start(self, one: ProcessQueue) -> bool:
        """Lock and start a queue. Return False if its broker does not respond."""
        offset, responds = None, True
        try:
            if self.locks is not None and not self.locks.acquire(one):
                logger.info("%s not started yet: locked by another member", one.queue)
            else:
                offset = self._share.first_offset(one.queue) if one.start_offset is None else one.start_offset
        except RocketError as error:
            responds = not isinstance(error, RemotingError)
            if not self._table.closed:
                logger.warning("%s not started yet: %s", one.queue, error)
            if self.locks is not None and one.locked:  # so that the next owner need not wait
                self.locks.unlock([one.queue])
                one.locked = False
        finally:
            with self._lock:
                wanted = self._table.settle(one, offset)
        if not wanted:
            self._end([one])
        elif offset is not None:
            logger.info("group %s started %s at offset %d", self._group, one.queue, offset)
            one.puller = Puller(self, one, offset)
            one.puller.pull()
        return responds

    def _undo_start(self, one: ProcessQueue) -> None:
        """Let the next call start a queue whose start by this thread was interrupted."""
        with self._lock:
            if one.thread != threading.get_ident():
                return
            if one.state is Ownership.STARTING:
                self._table.settle(one, None)
            elif one.state is Ownership.RUNNING and one.puller is None:
                one.state = Ownership.WAITING
        if one.puller is not None:
            one.puller.pull()

    def has_room(self, process_queue: ProcessQueue) -> None:
        if process_queue.puller is not None:
            process_queue.puller.has_room()

    def restart_pulls(self, topic: str) -> None:
        """Restart the pulls of a topic after a change of its filter, without waiting for long polls in flight."""
        for one in self.process_queues():
            if one.queue.topic == topic and one.puller is not None:
                one.puller.pull()

    # --- releasing --------------------------------------------------------------------------------------------

    def _forget(self, gone: list[ProcessQueue]) -> None:
        """Discard the pulled messages of dropped queues. Lock held."""
        for one in gone:
            self.receiver.forget(one)

    def _release(self, gone: list[ProcessQueue]) -> None:
        ended = [one for one in gone if not one.lock_consume.locked()]  # otherwise the thread of the call notices it
        try:
            if len(ended) < len(gone):
                self._commit([one for one in gone if one not in ended])
        finally:
            self._end(ended)

    def released(self, process_queue: ProcessQueue) -> None:
        """The last listener call of a dropped queue has ended."""
        self._end([process_queue])

    def _end(self, gone: list[ProcessQueue]) -> None:
        """Commit and unlock dropped queues, once each; start those that are wanted again.

        The next call does again what an interrupt (Ctrl-C) has cut off.
        """
        ending: list[ProcessQueue] = []
        me = threading.get_ident()
        try:
            with self._lock:
                for one in gone:
                    mine = one.state is Ownership.ENDED and one.thread == me
                    if (mine or one.state is Ownership.LEAVING) and self._table.leaving.get(one.queue) is one:
                        one.thread, one.state = me, Ownership.ENDED
                        ending.append(one)
                        logger.info("group %s released %s", self._group, one.queue)
            self._commit_last(ending)
            again = self._remove(ending)
        except BaseException:
            with self._lock:
                for one in ending:
                    one.state = Ownership.LEAVING
                self._changed.notify_all()
            raise
        if again:
            self._start_each(again)

    def _remove(self, gone: list[ProcessQueue]) -> list[ProcessQueue]:
        """Unlock ended queues; return those that are wanted again."""
        if self.locks is not None and any(one.locked for one in gone):
            with self._locking:
                self.locks.unlock(one.queue for one in gone if one.locked)
        with self._lock:
            for one in gone:
                self._table.leaving.pop(one.queue, None)
            self._changed.notify_all()
            return [self._table.wanted[one.queue] for one in gone if one.queue in self._table.wanted]

    # --- committing -------------------------------------------------------------------------------------------

    def _found(self, owned: Iterable[ProcessQueue]) -> list[tuple[ProcessQueue, int]]:
        """Return the offsets to commit."""
        if self.marks:
            return [(one, one.marked) for one in owned if one.marked is not None]
        return [(one, self.receiver.position(one)) for one in owned if one.has_begun and not one.stale]

    def _latest(self, found: list[tuple[ProcessQueue, int]]) -> dict[MessageQueue, int]:
        """Return offsets that were found before; of marked ones, what is marked now."""
        if self.marks:
            return {one.queue: one.marked for one, _ in found if one.marked is not None}
        return {one.queue: offset for one, offset in found}

    def mark(self) -> None:
        """Mark the positions of all queues for commit."""
        with self._lock:
            for one in self._table.running():
                one.marked = self.receiver.position(one)

    def persist(self) -> None:
        """Commit the offsets of all queues; failures are logged and retried with the next call."""
        with self._lock:
            owned = list(self._table.wanted.values())
        self._commit(owned)

    def _commit(self, owned: list[ProcessQueue]) -> None:
        with self._lock:
            committed = self._submit(self._found(owned))
        committed.result()

    def _submit(self, found: list[tuple[ProcessQueue, int]]) -> Promise[None]:
        """Commit offsets later. The lock is held since they were found, so that commits have the order of positions."""
        return submitted(self._commits, partial(self._persist, found)) if found else resolved(None)

    def _commit_latest(self, found: list[tuple[ProcessQueue, int]]) -> dict[MessageQueue, RocketError]:
        """Commit queues that were not unlocked in the meantime."""
        leaving = [(one, offset) for one, offset in found if self._table.leaving.get(one.queue) is one]
        return self._offsets.commit(self._latest(leaving))

    def _persist(self, found: list[tuple[ProcessQueue, int]]) -> None:
        """Commit queues that have not ended, or restarted at another offset, in the meantime."""
        owned = [(one, offset) for one, offset in found if one.state is not Ownership.ENDED and not one.stale]
        self._offsets.persist(self._latest(owned))

    def _commit_last(self, gone: list[ProcessQueue]) -> None:
        """Commit queues before they are unlocked."""
        with self._lock:
            found = self._found(gone)
        failed: dict[MessageQueue, RocketError] = {}
        until = time.monotonic() + LAST_COMMIT_SECONDS
        for attempt in range(LAST_COMMIT_ATTEMPTS if found else 0):
            if attempt:
                time.sleep(COMMIT_RETRY_SECONDS)
            failed = submitted(self._commits, partial(self._commit_latest, found)).result()
            found = [(one, offset) for one, offset in found if one.queue in failed]
            locked = any(not one.is_lock_expired() for one, _ in found)
            if not locked or time.monotonic() > until:
                break
        for one, offset in found:
            logger.warning(
                "offset %d of group %s in %s not committed: %s", offset, self._group, one.queue, failed[one.queue]
            )

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit these offsets, or all positions, and wait: in parallel, with one timeout. Raises the first error."""
        deadline = time.monotonic() + PERSIST_SECONDS
        with self._lock:
            found = self.positions() if offsets is None else offsets
            committed = submitted(self._commits, partial(self._commit_now, found, deadline))
        try:
            failed = committed.result(PERSIST_SECONDS + LOOP_MARGIN_S)
        except TimeoutError:  # a broker does not respond to earlier commits
            raise late_commit() from None
        for error in failed.values():
            raise error

    def _commit_now(self, offsets: Mapping[MessageQueue, int], deadline: float) -> dict[MessageQueue, RocketError]:
        failed = self._offsets.commit(offsets, max(0.0, deadline - time.monotonic()))
        for queue, offset in offsets.items():
            one = self._table.wanted.get(queue)
            if one is not None and queue not in failed:
                one.marked = offset
        return failed

    def committed(self, queue: MessageQueue) -> int | None:
        return run_on(self._commits, partial(self._offsets.read, queue))

    # --- locks ------------------------------------------------------------------------------------------------

    def renew_locks(self) -> None:
        """Renew the locks of running queues, and of released ones whose call has not ended."""
        with self._lock:
            owned = self._table.running() + list(self._table.leaving.values())
        self._renew(owned)

    def lock(self, process_queue: ProcessQueue) -> bool:
        """Renew the expired lock of a queue."""
        self._renew([process_queue])
        return not process_queue.dropped and process_queue.locked and not process_queue.is_lock_expired()

    def _renew(self, owned: list[ProcessQueue]) -> None:
        """Renew locks; restart queues that another member has owned in the meantime."""
        if self.locks is None:
            return
        with self._locking:
            lost = self.locks.renew(one for one in owned if one.locked and one.state is not Ownership.ENDED)
        gone = []
        with self._lock:
            for one in lost:
                logger.warning("group %s lost the lock of %s: restarting the queue", self._group, one.queue)
                one.stale = one.dropped = True
                if one.state is Ownership.RUNNING:
                    gone += self._table.restart(one.queue)
            self._forget(gone)
        self._release(gone)
