"""The queues of a push consumer: assigned ones are taken and locked where needed, others are released.

A released queue is no longer pulled, and its consumed messages are committed. An ordered queue is unlocked only
after its listener call has ended and its offset was committed, so that the next owner continues there. A queue
whose call has not ended is not taken again either.

``balance``, ``release_topic``, ``reset`` and ``close`` are mutually exclusive; they wait for brokers. Commits of a
queue are sequential, and none follows the unlocking of a released queue: it would reset the offset of the next owner.
The last commit is retried a few times while the lock is valid, because the next owner starts at that offset.

Brokers hold the locks of queues in ordered consumption. A lock is valid for 60 s at the broker, and for 30 s for its
owner, which renews it every 20 s: without a response, the owner stops well before another member may start.

Thread-safety: all methods. Corresponds to RebalanceImpl and RebalancePushImpl.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TypeVar

from spark_rocket.client.consume.allocation import QueueShare
from spark_rocket.client.consume.offset_store import OffsetStore
from spark_rocket.client.consume.process_queue import ProcessQueue, Puller
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RemotingError, RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
LAST_COMMIT_ATTEMPTS = 3  # attempts of the last commit of a queue
LAST_COMMIT_SECONDS = 5.0  # no further attempt after this time
COMMIT_RETRY_SECONDS = 0.2
RENEW_SECONDS = 20.0
EXPIRED_AT_BROKER_SECONDS = 60.0
UNLOCK_SECONDS = 1.0

Thing = TypeVar("Thing")


class QueueLocks:
    """The queue locks of one client in one group."""

    def __init__(self, instance: ClientInstance, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._instance = instance
        self._group = group
        self._clock = clock
        self._silent: set[str] = set()  # brokers without a response

    def lock(self, process_queues: Iterable[ProcessQueue], *, strict: bool = False) -> list[ProcessQueue]:
        """Acquire or renew locks; return queues that other members have, or may have had since the last renewal.

        Queues of an unavailable broker keep their locks until they expire; ``strict`` raises an error instead.
        """
        lost = []
        brokers = _by_broker(process_queues, lambda one: one.queue.broker_name)
        # Unavailable brokers come last: the locks of the others must not expire in the meantime.
        for broker_name, theirs in sorted(brokers.items(), key=lambda item: item[0] in self._silent):
            queues = [one.queue for one in theirs]
            sent_at = self._clock()
            try:
                answer = self._ask(RequestCode.LOCK_BATCH_MQ, queues, None)
                held = set(LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set)
            except RocketError as error:
                self._silent.add(broker_name)
                if strict:
                    raise
                logger.warning("group %s: queues at broker %s not locked: %s", self._group, broker_name, error)
                continue
            self._silent.discard(broker_name)
            for one in theirs:
                had, one.locked = one.last_lock, one.queue in held
                if not one.locked or (had and sent_at - had > EXPIRED_AT_BROKER_SECONDS):
                    lost.append(one)
                if one.locked:
                    one.last_lock = sent_at
        return lost

    def unlock(self, queues: Iterable[MessageQueue]) -> None:
        for broker_name, theirs in _by_broker(queues, lambda queue: queue.broker_name).items():
            try:
                self._ask(RequestCode.UNLOCK_BATCH_MQ, theirs, UNLOCK_SECONDS)
            except RocketError as error:  # the locks expire
                logger.info("group %s: queues at broker %s not unlocked: %s", self._group, broker_name, error)

    def _ask(self, code: RequestCode, queues: list[MessageQueue], timeout: float | None) -> RemotingCommand:
        body = LockBatchRequestBody(self._group, self._instance.client_id, mq_set=queues)
        request = RemotingCommand.request(code, {}, body.to_json())
        address = self._instance.routes.master(queues[0])
        return self._instance.invoke(address, request, f"the locks of {self._group}", timeout=timeout)


def _by_broker(things: Iterable[Thing], name: Callable[[Thing], str]) -> dict[str, list[Thing]]:
    found: dict[str, list[Thing]] = {}
    for thing in things:
        found.setdefault(name(thing), []).append(thing)
    return found


class Rebalance:
    """The queues of one consumer. ``locks``: None except in ordered consumption."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        share: QueueShare,
        offsets: OffsetStore,
        *,
        locks: QueueLocks | None,
        make_puller: Callable[[ProcessQueue, int], Puller],
        is_subscribed: Callable[[str], bool],
    ) -> None:
        self._group = group
        self._instance = instance
        self._share = share
        self._offsets = offsets
        self._locks = locks
        self._make_puller = make_puller
        self._is_subscribed = is_subscribed
        self._closed = False
        self._retry_pending = False
        self._round = threading.RLock()
        self._table = threading.Lock()
        self._locking = threading.Lock()  # held during lock and unlock requests, so that none is acquired by mistake
        self._pullers: dict[MessageQueue, Puller] = {}
        self._leaving: set[ProcessQueue] = set()  # released, with a running call of an orderly listener
        self._releasing: set[ProcessQueue] = set()  # those being unlocked by a thread

    # --- state ------------------------------------------------------------------------------------------------

    def pullers(self) -> list[Puller]:
        with self._table:
            return list(self._pullers.values())

    def process_queues(self) -> list[ProcessQueue]:
        return [puller.process_queue for puller in self.pullers()]

    def has_room(self, process_queue: ProcessQueue) -> None:
        """Continue the pulls of a queue after messages were consumed."""
        puller = self._pullers.get(process_queue.queue)
        if puller is not None:
            puller.has_room()

    def queues_of(self, topic: str) -> int:
        """Return the number of assigned queues of a topic."""
        return sum(_topic_of(puller) == topic for puller in self.pullers())

    def restart_pulls(self, topic: str) -> None:
        """Restart the pulls of a topic after a change of its filter, without waiting for long polls in flight."""
        for puller in self.pullers():
            if _topic_of(puller) == topic:
                puller.pull()

    def persist(self) -> None:
        """Store the offsets of all queues."""
        if self._share.is_broadcast:
            self._offsets.persist({one.queue: one.commit_offset for one in self.process_queues() if not one.stale})
            return
        self._commit(self.process_queues(), lambda one: not one.dropped)

    # --- rounds -----------------------------------------------------------------------------------------------

    def balance(self, topics: Iterable[str]) -> None:
        """Take and release queues of each topic. Topics whose share cannot be determined stay unchanged."""
        silent: set[str] = set()  # unavailable brokers: queried once per round, so that others are not delayed
        with self._round:
            for topic in topics:
                if self._closed:
                    return
                try:
                    mine = self._share.queues_of(topic)
                except RocketError as error:
                    logger.info("queues of topic %s not rebalanced: %s", topic, error)
                    continue
                if mine is not None and self._is_subscribed(topic):
                    self._take(topic, mine, silent)

    def release_topic(self, topic: str) -> None:
        """Release the queues of a topic."""
        with self._round:
            self._drop([puller.process_queue.queue for puller in self.pullers() if _topic_of(puller) == topic])

    def close(self) -> None:
        """Release all queues permanently."""
        self._closed = True
        with self._round:
            self._drop([puller.process_queue.queue for puller in self.pullers()])

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at the given offsets in assigned queues."""
        with self._round:
            mine = [puller for puller in self.pullers() if puller.process_queue.queue in offsets]
            for puller in mine:
                self._restart_at(puller, offsets[puller.process_queue.queue])

    def correct(self, puller: Puller, offset: int) -> None:
        """Continue a queue at the broker's offset after an invalid one."""
        with self._round:
            if self._pullers.get(puller.process_queue.queue) is puller:
                self._restart_at(puller, offset)

    def _restart_at(self, puller: Puller, offset: int) -> None:
        process_queue = puller.process_queue
        process_queue.stale = process_queue.dropped = True
        with process_queue.lock_commit:
            self._offsets.persist({process_queue.queue: offset})
        self._drop([process_queue.queue], unlock=False)
        self._try_to_begin(process_queue.queue, offset)

    def _take(self, topic: str, mine: list[MessageQueue], silent: set[str]) -> None:
        wanted = set(mine)
        self._drop(
            [
                puller.process_queue.queue
                for puller in self.pullers()
                if _topic_of(puller) == topic
                and (puller.process_queue.queue not in wanted or puller.process_queue.is_pull_expired())
            ]
        )
        for queue in mine:
            if self._closed:
                return
            if queue not in self._pullers and queue.broker_name not in silent and not self._try_to_begin(queue):
                silent.add(queue.broker_name)

    # --- taking -----------------------------------------------------------------------------------------------

    def _try_to_begin(self, queue: MessageQueue, offset: int | None = None) -> bool:
        """Return False if the broker is unavailable."""
        available = True
        try:
            if self._begin(queue, offset):
                return True
        except RocketError as error:
            logger.warning("%s not taken yet: %s", queue, error)
            available = not isinstance(error, RemotingError)
        if not self._retry_pending:
            self._retry_pending = True
            self._instance.call_later(RETRY_SECONDS, self._balance_again)
        return available

    def _balance_again(self) -> None:
        self._retry_pending = False
        self._instance.members.rebalance_soon()

    def _begin(self, queue: MessageQueue, offset: int | None) -> bool:
        """Take a queue; False while a call of another member, or an earlier one of this member, has not ended."""
        if self._closed:
            return True
        process_queue = ProcessQueue(queue, 0)
        if self._locks is not None:
            with self._table:
                if any(one.queue == queue for one in self._leaving):
                    return False
            self._locks.lock([process_queue], strict=True)
            if not process_queue.locked:
                logger.info("%s not taken yet: locked by another member", queue)
                return False
        try:
            if offset is None:
                offset = self._share.first_offset(queue)
            process_queue.put((), offset)
            puller = self._make_puller(process_queue, offset)
        except RocketError:
            if self._locks is not None:  # so that the next owner need not wait until the lock expires
                self._locks.unlock([queue])
            raise
        with self._table:
            self._pullers[queue] = puller
        logger.info("group %s took %s at offset %d", self._group, queue, offset)
        puller.pull()
        return True

    # --- releasing --------------------------------------------------------------------------------------------

    def _drop(self, queues: list[MessageQueue], *, unlock: bool = True) -> None:
        with self._table:
            gone = [self._pullers.pop(queue).process_queue for queue in queues]
            for process_queue in gone:
                process_queue.stale |= process_queue.dropped
                process_queue.dropped = True
            if self._locks is not None:
                self._leaving.update(gone)
        for process_queue in gone:
            logger.info("group %s released %s", self._group, process_queue.queue)
        if self._locks is None:
            self._commit(gone)
            return
        ended, calling = [], []
        for process_queue in gone:
            if process_queue.lock_consume.acquire(blocking=False):  # otherwise the thread of the call notices the drop
                process_queue.lock_consume.release()
                ended.append(process_queue)
            else:
                calling.append(process_queue)
        self._commit(calling)
        self._release(ended, unlock=unlock)

    def released(self, process_queue: ProcessQueue) -> None:
        """Release a dropped queue whose last listener call has ended."""
        self._release([process_queue])

    def _release(self, process_queues: list[ProcessQueue], *, unlock: bool = True) -> None:
        with self._table:
            mine = [one for one in process_queues if one in self._leaving and one not in self._releasing]
            self._releasing.update(mine)
        if not mine:
            return
        self._commit_last(mine)
        with self._locking:
            if unlock and self._locks is not None:
                self._locks.unlock(one.queue for one in mine)
            with self._table:
                self._leaving.difference_update(mine)
                self._releasing.difference_update(mine)

    def _commit_last(self, process_queues: list[ProcessQueue]) -> None:
        """Commit queues before they are unlocked, and mark them as stale, which prevents later commits."""
        until = time.monotonic() + LAST_COMMIT_SECONDS
        with ExitStack() as locks:
            for one in _in_order(process_queues):
                locks.enter_context(one.lock_commit)
            left = {one.queue: one.commit_offset for one in process_queues if not one.stale}
            for attempt in range(LAST_COMMIT_ATTEMPTS):
                failed = self._offsets.commit(left) if left else {}
                left = {queue: left[queue] for queue in failed}
                expired = all(one.is_lock_expired() for one in process_queues if one.queue in failed)
                if not failed or expired or attempt == LAST_COMMIT_ATTEMPTS - 1 or time.monotonic() > until:
                    break
                time.sleep(COMMIT_RETRY_SECONDS)
            for queue, error in failed.items():
                offset = left[queue]
                logger.warning("offset %d of group %s in %s not committed: %s", offset, self._group, queue, error)
            for one in process_queues:
                one.stale = True

    def _commit(
        self,
        process_queues: list[ProcessQueue],
        counts: Callable[[ProcessQueue], bool] = lambda one: not one.stale,
    ) -> None:
        """Commit queues in parallel, because a hanging broker costs a timeout."""
        with ExitStack() as locks:
            for one in _in_order(process_queues):
                locks.enter_context(one.lock_commit)
            offsets = {one.queue: one.commit_offset for one in process_queues if counts(one)}
            if offsets:
                self._offsets.persist(offsets)

    # --- locks ------------------------------------------------------------------------------------------------

    def renew_locks(self) -> None:
        """Renew the locks of assigned queues, and of released ones whose call has not ended."""
        if self._locks is not None:
            with self._locking:
                with self._table:
                    every = [puller.process_queue for puller in self._pullers.values()] + list(self._leaving)
                lost = self._locks.lock(every)
            self._lose(lost)

    def lock(self, process_queue: ProcessQueue) -> bool:
        """Renew the expired lock of a queue."""
        assert self._locks is not None
        with self._locking:
            lost = self._locks.lock([process_queue]) if not process_queue.dropped else []
        self._lose(lost)
        return not process_queue.dropped and process_queue.locked and not process_queue.is_lock_expired()

    def _lose(self, process_queues: list[ProcessQueue]) -> None:
        """Discard queues that another member has owned in the meantime."""
        for process_queue in process_queues:
            logger.warning("group %s lost the lock of %s: restarting the queue", self._group, process_queue.queue)
            process_queue.stale = process_queue.dropped = True
            with self._round:
                puller = self._pullers.get(process_queue.queue)
                if puller is not None and puller.process_queue is process_queue:
                    self._drop([process_queue.queue], unlock=process_queue.locked)
        if process_queues:
            self._instance.members.rebalance_soon()


def _in_order(process_queues: Iterable[ProcessQueue]) -> list[ProcessQueue]:
    """Sort queues, so that their locks are always acquired in the same order: no deadlock."""
    return sorted(process_queues, key=lambda one: one.queue)


def _topic_of(puller: Puller) -> str:
    return puller.process_queue.queue.topic
