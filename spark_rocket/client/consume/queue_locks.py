"""The broker's locks of queues in ordered consumption.

A lock is valid for 60 s at the broker, and for 30 s for its owner (``ProcessQueue.is_lock_expired``), which renews it
every 20 s: without a response, the owner stops well before another member may start.

Thread-safety: the caller excludes other calls for the same queues. Corresponds to the lock methods of RebalanceImpl.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand

logger = logging.getLogger(__name__)

RENEW_SECONDS = 20.0
EXPIRED_AT_BROKER_SECONDS = 60.0
UNLOCK_SECONDS = 1.0


class QueueLocks:
    """The queue locks of one client in one group."""

    def __init__(self, instance: Callable[[], ClientInstance], group: str) -> None:
        self._instance = instance
        self._group = group
        self._silent: set[str] = set()  # brokers without a response

    def acquire(self, process_queue: ProcessQueue) -> bool:
        """Lock one queue; False if another member has it. Raises an error if the broker is unavailable."""
        self._lock_at_broker([process_queue])
        return process_queue.locked

    def renew(self, process_queues: Iterable[ProcessQueue]) -> list[ProcessQueue]:
        """Renew locks; return the queues that other members have, or may have had since the last renewal.

        Queues of an unavailable broker keep their locks until they expire.
        """
        lost = []
        brokers: dict[str, list[ProcessQueue]] = {}
        for one in process_queues:
            brokers.setdefault(one.queue.broker_name, []).append(one)
        # Unavailable brokers come last: the locks of the others must not expire in the meantime.
        for broker_name, theirs in sorted(brokers.items(), key=lambda item: item[0] in self._silent):
            try:
                lost += self._lock_at_broker(theirs)
            except RocketError as error:
                logger.warning("group %s: queues at broker %s not locked: %s", self._group, broker_name, error)
        return lost

    def _lock_at_broker(self, process_queues: list[ProcessQueue]) -> list[ProcessQueue]:
        broker_name, sent_at = process_queues[0].queue.broker_name, time.monotonic()
        try:
            response = self._ask(RequestCode.LOCK_BATCH_MQ, [one.queue for one in process_queues], None)
            held = set(LockBatchResponseBody.from_json(response.body).lock_ok_mq_set)
        except RocketError:
            self._silent.add(broker_name)
            raise
        self._silent.discard(broker_name)
        lost = []
        for one in process_queues:
            before, one.locked = one.last_lock, one.queue in held
            if not one.locked or (before and sent_at - before > EXPIRED_AT_BROKER_SECONDS):
                lost.append(one)
            if one.locked:
                one.last_lock = sent_at
        return lost

    def unlock(self, queues: Iterable[MessageQueue]) -> None:
        brokers: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            brokers.setdefault(queue.broker_name, []).append(queue)
        for broker_name, theirs in brokers.items():
            try:
                self._ask(RequestCode.UNLOCK_BATCH_MQ, theirs, UNLOCK_SECONDS)
            except RocketError as error:  # the locks expire
                logger.info("group %s: queues at broker %s not unlocked: %s", self._group, broker_name, error)

    def _ask(self, code: RequestCode, queues: list[MessageQueue], timeout: float | None) -> RemotingCommand:
        instance = self._instance()
        body = LockBatchRequestBody(self._group, instance.client_id, mq_set=queues)
        request = RemotingCommand.request(code, {}, body.to_json())
        address = instance.routes.master(queues[0])
        return instance.invoke(address, request, f"the locks of {self._group}", timeout=timeout)
