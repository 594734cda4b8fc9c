"""Locks that brokers keep of queues that are consumed in order: one member of a group has a queue at a time.

A lock lives 60 s at the broker, and 30 s for its owner, who renews it every 20 s: with no broker to ask, the owner
stops well before anybody else may begin.

Thread-safety: all methods. Corresponds to the locking half of RebalanceImpl.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand

logger = logging.getLogger(__name__)

RENEW_SECONDS = 20.0
LIVES_AT_BROKER_SECONDS = 60.0
UNLOCK_SECONDS = 1.0

Thing = TypeVar("Thing")


class QueueLocks:
    """Locks of one group for one client."""

    def __init__(self, instance: ClientInstance, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._instance = instance
        self._group = group
        self._clock = clock
        self._silent: set[str] = set()  # brokers that have not answered

    def lock(self, process_queues: Iterable[ProcessQueue], *, strict: bool = False) -> list[ProcessQueue]:
        """Take or renew locks. Comes back: queues that others have, or may have had since the last time.

        Queues of a broker that does not answer keep what they have, until it expires; ``strict`` raises instead.
        """
        lost = []
        brokers = _by_broker(process_queues, lambda one: one.queue.broker_name)
        # Those that did not answer the last time come last: the others' locks must not expire in the meantime.
        for broker_name, theirs in sorted(brokers.items(), key=lambda item: item[0] in self._silent):
            queues = [one.queue for one in theirs]
            asked = self._clock()
            try:
                answer = self._ask(RequestCode.LOCK_BATCH_MQ, queues, None)
                held = set(LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set)
            except RocketError as error:
                self._silent.add(broker_name)
                if strict:
                    raise
                logger.warning("%s could not lock queues at %s: %s", self._group, broker_name, error)
                continue
            self._silent.discard(broker_name)
            for one in theirs:
                had, one.locked = one.last_lock, one.queue in held
                if not one.locked or (had and asked - had > LIVES_AT_BROKER_SECONDS):
                    lost.append(one)
                if one.locked:
                    one.last_lock = asked
        return lost

    def unlock(self, queues: Iterable[MessageQueue]) -> None:
        for broker_name, theirs in _by_broker(queues, lambda queue: queue.broker_name).items():
            try:
                self._ask(RequestCode.UNLOCK_BATCH_MQ, theirs, UNLOCK_SECONDS)
            except RocketError as error:  # they expire by themselves
                logger.info("%s could not unlock queues at %s: %s", self._group, broker_name, error)

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
