"""Consumers that own queues of a simulated broker, without sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from spark_rocket.client.consume.allocation import AllocateAveragely, AllocateStrategy, QueueShare
from spark_rocket.client.consume.listeners import ConsumeFromWhere
from spark_rocket.client.consume.owned_queues import OwnedQueues
from spark_rocket.client.consume.process_queue import ProcessQueue
from spark_rocket.client.consume.pull import PullResult
from spark_rocket.client.consume.puller import PullSettings
from spark_rocket.client.consume.queue_locks import QueueLocks
from spark_rocket.client.consume.subscriptions import Filter
from spark_rocket.errors import RemotingTimeoutError, RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.bodies.client import GetConsumerListByGroupResponseBody
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.client.consuming import ManualTimer

Q = [MessageQueue("t", "b", number) for number in range(4)]
SETTINGS = PullSettings(32, None, 32, must_lock=False)


class Brokers:
    """Locks, offsets and members of one group. ``on_request`` is called before each request with its kind."""

    def __init__(self) -> None:
        self.readable = tuple(Q)
        self.ids: list[str] | None = ["me"]
        self.owners: dict[MessageQueue, str] = {}
        self.offsets: dict[MessageQueue, int] = {}
        self.log: list[tuple[Any, ...]] = []
        self.asked: list[tuple[str, str]] = []  # kinds and brokers
        self.silent: set[str] = set()
        self.on_request: Callable[[str], None] = lambda _: None

    def ask(self, kind: str, queues: Iterable[MessageQueue]) -> None:
        brokers = {queue.broker_name for queue in queues}
        self.asked += [(kind, broker) for broker in brokers]
        self.on_request(kind)
        if brokers & self.silent:
            raise RemotingTimeoutError("no response")


class Owner:
    """The instance, routes, members, offset store, reader and receiver of one consumer, and its ``queues``."""

    def __init__(
        self,
        brokers: Brokers,
        client_id: str = "me",
        *,
        orderly: bool = False,
        marks: bool = False,
        strategy: AllocateStrategy | None = AllocateAveragely(),  # noqa: B008  # it has no state
        where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        timestamp_ms: int | None = None,
    ) -> None:
        self.brokers_of_group, self.client_id = brokers, client_id
        self.call_later = ManualTimer()
        self.greeted = 0
        self.pulls: list[tuple[MessageQueue, int]] = []
        self.held: set[ProcessQueue] = set()
        this: Any = self
        self.members = self.routes = self.remoting = this
        self.share = QueueShare("g", lambda: this, this, this, strategy, where, timestamp_ms)
        self.queues = OwnedQueues("g", lambda: this, self.share, this, this, lambda _: Filter())
        self.queues.pull_settings = SETTINGS
        self.queues.receiver = this
        self.queues.marks = marks
        if orderly:
            self.queues.locks = QueueLocks(lambda: this, "g")

    def balance(self, *topics: str) -> None:
        for topic in topics or ("t",):
            mine = self.share.queues_of(topic)
            if mine is not None:
                self.queues.own(mine, topic)
        self.queues.start()

    def owned(self) -> list[int]:
        return sorted(one.queue.queue_id for one in self.queues.process_queues())

    def of(self, queue: MessageQueue) -> ProcessQueue:
        return next(one for one in self.queues.process_queues() if one.queue == queue)

    # the instance, its routes and its members
    @property
    def readable(self) -> tuple[MessageQueue, ...]:
        return self.brokers_of_group.readable

    def route(self, _: str) -> Owner:
        return self

    def master(self, queue: MessageQueue) -> str:
        return queue.broker_name

    @property
    def brokers(self) -> dict[str, dict[int, str]]:
        return {"a": {0: "a"}}

    def is_connected(self, address: str) -> bool:
        return True

    def send_heartbeats(self) -> None:
        self.greeted += 1

    def invoke(self, address: str, request: RemotingCommand, what: str, timeout: float | None = None) -> Any:
        brokers = self.brokers_of_group
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            if brokers.ids is None:
                raise RocketError("no members")
            return RemotingCommand.response(request, 0, body=GetConsumerListByGroupResponseBody(brokers.ids).to_json())
        queues = LockBatchRequestBody.from_json(request.body).mq_set
        locks = request.code == RequestCode.LOCK_BATCH_MQ
        brokers.ask("lock" if locks else "unlock", queues)
        mine = [queue for queue in queues if brokers.owners.get(queue, self.client_id) == self.client_id]
        response = RemotingCommand.response(request, 0)
        if locks:
            brokers.owners.update(dict.fromkeys(mine, self.client_id))
            response.body = LockBatchResponseBody(lock_ok_mq_set=mine).to_json()
        else:
            brokers.log += [("unlock", queue.queue_id) for queue in mine]
            for queue in mine:
                brokers.owners.pop(queue, None)
        return response

    # the offset store and the reader
    def read(self, queue: MessageQueue) -> int | None:
        self.brokers_of_group.ask("read", [queue])
        return self.brokers_of_group.offsets.get(queue)

    def has_any(self, queues: Iterable[MessageQueue]) -> bool:
        every = list(queues)
        self.brokers_of_group.ask("read", every)
        return any(queue in self.brokers_of_group.offsets for queue in every)

    def commit(self, offsets: dict[MessageQueue, int], seconds: float = 0.0) -> dict[MessageQueue, RocketError]:
        failed: dict[MessageQueue, RocketError] = {}
        for queue, offset in offsets.items():
            try:
                self.brokers_of_group.ask("commit", [queue])
            except RocketError as error:
                failed[queue] = error
            else:
                self.brokers_of_group.offsets[queue] = offset
                self.brokers_of_group.log.append(("commit", queue.queue_id, offset))
        return failed

    def persist(self, offsets: dict[MessageQueue, int]) -> None:
        self.commit(offsets)

    def max_offset(self, _: MessageQueue) -> int:
        return 100

    def min_offset(self, _: MessageQueue) -> int:
        return 7

    def offset_for_time(self, _: MessageQueue, moment: int) -> int:
        return moment

    def pull_async(self, queue: MessageQueue, offset: int, **_: Any) -> Future[PullResult]:
        self.pulls.append((queue, offset))
        return Future()

    # the receiver
    def is_full(self, _: ProcessQueue) -> bool:
        return False

    def position(self, process_queue: ProcessQueue) -> int:
        return process_queue.commit_offset

    def holds(self, process_queue: ProcessQueue) -> bool:
        return process_queue in self.held

    def forget(self, process_queue: ProcessQueue) -> None:
        self.held.discard(process_queue)
