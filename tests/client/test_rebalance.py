"""Acquiring and releasing queues, with fake brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from spark_rocket.client.consume import rebalance as module
from spark_rocket.client.consume.allocation import AllocateAveragely, AllocateStrategy, QueueShare
from spark_rocket.client.consume.listeners import ConsumeFromWhere
from spark_rocket.client.consume.process_queue import LOCK_EXPIRED_SECONDS, ProcessQueue
from spark_rocket.client.consume.rebalance import EXPIRED_AT_BROKER_SECONDS, QueueLocks, Rebalance
from spark_rocket.errors import RemotingConnectError, RemotingTimeoutError, RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody, LockBatchResponseBody
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.client.consuming import ManualTimer, message

Q = [MessageQueue("t", "b", number) for number in range(4)]


class World:
    """The instance, members, routes, brokers and offsets that a Rebalance uses."""

    client_id = "me"

    def __init__(self) -> None:
        self.members = self
        self.routes = self
        self.brokers = {"b": {0: "b:1"}}
        self.readable = tuple(Q)
        self.ids: list[str] | None = ["me"]
        self.greeted = 0
        self.knows_after_heartbeat = False
        self.owners: dict[MessageQueue, str] = {}
        self.away = False
        self.log: list[tuple[str, Any]] = []
        self.offsets: dict[MessageQueue, int] = {}
        self.call_later = ManualTimer()
        self.soon = 0
        self.refusals = 0  # failures of the next commits
        self.in_memory: set[MessageQueue] = set()

    def route(self, _: str) -> World:
        return self

    def master(self, _: MessageQueue) -> str:
        return "b:1"

    def consumer_ids(self, group: str, topic: str) -> list[str] | None:
        return self.ids

    def send_heartbeats(self) -> None:
        self.greeted += 1
        if self.knows_after_heartbeat:
            self.ids = ["me"]

    def rebalance_soon(self) -> None:
        self.soon += 1

    def invoke(self, address: str, request: RemotingCommand, what: str, timeout: float | None = None) -> Any:
        if self.away:
            raise RemotingConnectError("the broker is unavailable")
        queues = LockBatchRequestBody.from_json(request.body).mq_set
        mine = [queue for queue in queues if self.owners.get(queue, "me") == "me"]
        if request.code == RequestCode.LOCK_BATCH_MQ:
            self.owners.update(dict.fromkeys(mine, "me"))
            answer = RemotingCommand.response(request, 0)
            answer.body = LockBatchResponseBody(lock_ok_mq_set=mine).to_json()
            return answer
        self.log += [("unlock", queue.queue_id) for queue in mine]
        for queue in mine:
            del self.owners[queue]
        return RemotingCommand.response(request, 0)

    # the offset store and the reader
    def read(self, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    def begin_new(self, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue, 0 if queue in self.in_memory else None)

    def persist(self, offsets: dict[MessageQueue, int]) -> None:
        self.offsets.update(offsets)
        self.log += [("commit", queue.queue_id, offset) for queue, offset in offsets.items()]  # type: ignore[misc]

    def commit(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, RocketError]:
        if self.refusals:
            self.refusals -= 1
            return {queue: RemotingTimeoutError("the broker does not answer") for queue in offsets}
        self.persist(offsets)
        return {}

    def max_offset(self, _: MessageQueue) -> int:
        return 100

    def min_offset(self, _: MessageQueue) -> int:
        return 7

    def offset_for_time(self, _: MessageQueue, moment: int) -> int:
        return moment


class PullerFake:
    def __init__(self, process_queue: ProcessQueue, offset: int) -> None:
        self.process_queue, self.offset, self.pulls = process_queue, offset, 0

    def pull(self) -> None:
        self.pulls += 1


def build(
    world: World,
    *,
    orderly: bool = False,
    strategy: AllocateStrategy | None = AllocateAveragely(),  # noqa: B008  # it has no state
    where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    timestamp_ms: int | None = None,
    first_queues: Iterable[MessageQueue] | None = None,
    **more: Any,
) -> Rebalance:
    anything: Any = world
    share = QueueShare("g", lambda: anything, anything, anything, strategy, where, timestamp_ms)
    if first_queues is not None:
        share.note("t", first_queues)
    settings: dict[str, Any] = {"make_puller": PullerFake, "is_subscribed": lambda _: True} | more
    return Rebalance("g", anything, share, anything, locks=QueueLocks(anything, "g") if orderly else None, **settings)


def owned(rebalance: Rebalance) -> list[int]:
    return sorted(one.queue.queue_id for one in rebalance.process_queues())


@pytest.fixture
def world() -> World:
    return World()


def test_queues_move_with_members(world: World) -> None:
    one = build(world)
    one.balance(["t"])
    assert owned(one) == [0, 1, 2, 3]
    gone = next(queue for queue in one.process_queues() if queue.queue == Q[0])
    gone.put([message(100), message(101)], 102)
    gone.remove([100])
    world.ids = ["before", "me"]
    one.balance(["t"])
    assert owned(one) == [2, 3]
    assert gone.dropped
    assert world.offsets[Q[0]] == 101
    world.log.clear()
    gone.remove([101])  # a call that ended late
    one.persist()
    assert all(what[1] in (2, 3) for what in world.log)
    one.close()
    one.balance(["t"])
    assert owned(one) == []


def test_without_a_member_list_nothing_changes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    one = build(world)
    one.balance(["t"])
    assert not caplog.records
    world.ids = None
    one.balance(["t"])
    assert "autoCreateSubscriptionGroup=false" in caplog.text, "5.x does not report it in response to heartbeats"
    world.ids = ["other"]  # a restarted broker does not know this one yet
    one.balance(["t"])
    assert owned(one) == [0, 1, 2, 3]
    assert world.greeted == 1
    world.knows_after_heartbeat = True
    world.readable = tuple(Q[:2])
    one.balance(["t"])
    assert owned(one) == [0, 1]


@pytest.mark.parametrize(
    ("where", "topic", "begins"),
    [
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, "t", 100),
        (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, "t", 7),
        (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, "t", 55),
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, "%RETRY%g", 7),
        (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, "%RETRY%g", 7),
    ],
)
def test_start_of_a_queue_without_an_offset(world: World, where: ConsumeFromWhere, topic: str, begins: int) -> None:
    world.readable = (MessageQueue(topic, "b", 0),)
    one = build(world, where=where, timestamp_ms=55)
    one.balance([topic])
    assert [queue.commit_offset for queue in one.process_queues()] == [begins]
    assert [puller.pulls for puller in one.pullers()] == [1]  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
def test_new_queues_start_at_their_first_message(world: World, where: ConsumeFromWhere) -> None:
    """The broker returns 0 while the first message is in its memory, for requests like those of Java's consumers."""
    one = build(world, where=where, timestamp_ms=55, first_queues=Q[:2])
    world.in_memory = {Q[0], Q[2]}
    one.balance(["t"])
    begins = {queue.queue: queue.commit_offset for queue in one.process_queues()}
    usual = {"CONSUME_FROM_LAST_OFFSET": 100, "CONSUME_FROM_FIRST_OFFSET": 7, "CONSUME_FROM_TIMESTAMP": 55}[where.name]
    assert begins == {Q[0]: usual, Q[1]: usual, Q[2]: 0, Q[3]: usual}


def test_detection_of_new_queues(world: World) -> None:
    anything: Any = world
    share = QueueShare("g", lambda: anything, anything, anything, None, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    share.note("t", Q[:2])
    share.note("t", Q)
    share.note("later", ())
    assigned, later = MessageQueue("assigned", "b", 0), MessageQueue("later", "b", 0)
    world.in_memory = {*Q, assigned, later}
    assert [share.first_offset(queue) for queue in Q] == [100, 100, 0, 0]
    assert share.first_offset(assigned) == 100, "no broker was asked for that topic's queues"
    assert share.first_offset(later) == 0


def test_a_reset_and_a_correction_restart_at_their_offset(world: World) -> None:
    one = build(world)
    one.balance(["t"])
    before = {puller.process_queue.queue: puller for puller in one.pullers()}
    one.reset({Q[1]: 5, MessageQueue("t", "elsewhere", 0): 6})
    one.correct(before[Q[2]], 8)
    one.correct(before[Q[1]], 9)  # too late: the queue has already been restarted
    after = {puller.process_queue.queue: puller.process_queue.commit_offset for puller in one.pullers()}
    assert after == {Q[0]: 100, Q[1]: 5, Q[2]: 8, Q[3]: 100}
    assert world.offsets == {Q[1]: 5, Q[2]: 8}
    assert before[Q[1]].process_queue.dropped


def test_a_queue_under_correction_is_skipped(world: World) -> None:
    one = build(world)
    one.balance(["t"])
    puller = one.pullers()[0]
    puller.process_queue.stale = puller.process_queue.dropped = True
    one.balance(["t"])
    assert one.pullers()[0] is puller
    one.persist()
    assert puller.process_queue.queue not in world.offsets


def test_a_queue_without_pulls_is_restarted(world: World) -> None:
    one = build(world)
    one.balance(["t"])
    stuck = one.process_queues()[0]
    stuck.last_pull -= 121
    one.balance(["t"])
    assert stuck.dropped
    assert owned(one) == [0, 1, 2, 3]


@pytest.mark.parametrize("orderly", [False, True])
def test_an_unresponsive_broker_is_asked_once_a_round(
    world: World, monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    """Waiting for it would delay the queues of the other brokers."""
    silent = [MessageQueue("t", "a", number) for number in range(4)]
    world.readable = (*silent, *Q)
    asked: list[str] = []
    invoke, read = world.invoke, world.read

    def ask(broker: str) -> None:
        asked.append(broker)
        if broker == "a":
            raise RemotingTimeoutError("the broker does not answer")

    def lock(address: str, request: RemotingCommand, what: str, timeout: float | None = None) -> Any:
        ask(LockBatchRequestBody.from_json(request.body).mq_set[0].broker_name)
        return invoke(address, request, what, timeout)

    def committed(queue: MessageQueue) -> int | None:
        ask(queue.broker_name)
        return read(queue)

    monkeypatch.setattr(world, "invoke", lock)
    monkeypatch.setattr(world, "read", committed)
    one = build(world, orderly=orderly)
    one.balance(["t", "u"])
    assert asked.count("a") == 1
    assert [process_queue.queue for process_queue in one.process_queues()] == Q
    one.balance(["t"])
    assert asked.count("a") == 2


def test_locks_at_unresponsive_brokers_are_renewed_last(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unresponsive broker costs a timeout, during which the locks at the other brokers age."""
    asked: list[str] = []
    silent = {"a", "b"}

    def ask(address: str, request: RemotingCommand, what: str, timeout: float | None = None) -> Any:
        queues = LockBatchRequestBody.from_json(request.body).mq_set
        asked.append(queues[0].broker_name)
        if asked[-1] in silent:
            raise RemotingTimeoutError("the broker does not answer")
        answer = RemotingCommand.response(request, 0)
        answer.body = LockBatchResponseBody(lock_ok_mq_set=queues).to_json()
        return answer

    monkeypatch.setattr(world, "invoke", ask)
    anything: Any = world
    locks = QueueLocks(anything, "g")
    queues = [ProcessQueue(MessageQueue("t", name, 0), 0) for name in "abcd"]
    orders = []
    for who_is_silent in ({"a", "b"}, {"a"}, set[str](), set[str]()):
        silent = who_is_silent
        asked.clear()
        assert locks.lock(queues) == []
        orders.append("".join(asked))
    assert orders == ["abcd", "cdab", "bcda", "abcd"]
    assert all(one.locked for one in queues)


# --- in order -------------------------------------------------------------------------------------------------------


def test_queues_locked_by_others_are_retried(world: World) -> None:
    world.owners = {Q[0]: "other", Q[1]: "other"}
    one = build(world, orderly=True)
    one.balance(["t"])
    assert owned(one) == [2, 3]
    world.owners.clear()
    assert world.call_later.run() == 1.0
    assert world.soon == 1
    one.balance(["t"])
    assert owned(one) == [0, 1, 2, 3]


def test_a_lock_is_held_until_the_call_ends_and_commits(world: World) -> None:
    one = build(world, orderly=True)
    one.balance(["t"])
    queue = next(queue for queue in one.process_queues() if queue.queue == Q[0])
    queue.put([message(100)], 101)
    queue.take(1)
    calling, ended = threading.Event(), threading.Event()

    def call() -> None:
        with queue.lock_consume:
            calling.set()
            assert ended.wait(10)
            queue.commit()
        one.released(queue)

    thread = threading.Thread(target=call)
    thread.start()
    assert calling.wait(10)
    world.ids = ["before", "me"]
    world.log.clear()
    one.balance(["t"])
    assert ("unlock", 1) in world.log
    assert ("unlock", 0) not in world.log
    one.renew_locks()
    assert world.owners[Q[0]] == "me"
    world.ids = ["me"]
    one.balance(["t"])  # not even this member may start now
    assert owned(one) == [1, 2, 3]
    world.log.clear()
    ended.set()
    thread.join()
    assert world.log == [("commit", 0, 101), ("unlock", 0)]
    one.released(queue)
    assert world.log == [("commit", 0, 101), ("unlock", 0)]
    one.balance(["t"])
    assert owned(one) == [0, 1, 2, 3]


def test_close_commits_every_queue_at_once_and_only_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that hangs costs every commit its time-out."""
    commits: list[dict[MessageQueue, int]] = []
    monkeypatch.setattr(world, "persist", lambda offsets: commits.append(dict(offsets)))
    one = build(world, orderly=True)
    one.balance(["t"])
    one.persist()
    one.close()
    assert commits == [dict.fromkeys(Q, 100)] * 2
    assert world.owners == {}


def test_nothing_is_committed_after_the_unlock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends and its thread unlocks the queue before the releasing thread has committed."""
    one = build(world, orderly=True)
    one.balance(["t"])
    queue = next(queue for queue in one.process_queues() if queue.queue == Q[0])
    calling, ended, commit = threading.Event(), threading.Event(), one._commit

    def call() -> None:
        with queue.lock_consume:
            calling.set()
            assert ended.wait(10)
        one.released(queue)

    thread = threading.Thread(target=call)
    thread.start()
    assert calling.wait(10)

    def late(*args: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            ended.set()
            thread.join()
        commit(*args)

    monkeypatch.setattr(one, "_commit", late)
    world.readable = tuple(Q[1:])
    world.log.clear()
    one.balance(["t"])
    thread.join()
    assert world.log == [("commit", 0, 100), ("unlock", 0)]


@pytest.mark.parametrize(
    ("refusals", "expired", "log"),
    [(1, False, [("commit", 0, 100), ("unlock", 0)]), (9, False, [("unlock", 0)]), (1, True, [("unlock", 0)])],
    ids=["once", "permanently", "the lock has expired"],
)
def test_a_failed_last_commit_is_retried_before_the_unlock(
    world: World, monkeypatch: pytest.MonkeyPatch, refusals: int, expired: bool, log: list[Any]
) -> None:
    monkeypatch.setattr(module, "COMMIT_RETRY_SECONDS", 0.0)
    one = build(world, orderly=True)
    one.balance(["t"])
    queue = next(queue for queue in one.process_queues() if queue.queue == Q[0])
    if expired:
        queue.last_lock -= LOCK_EXPIRED_SECONDS + 1
    world.readable = tuple(Q[1:])
    world.log.clear()
    world.refusals = refusals
    one.balance(["t"])
    assert world.log == log
    assert world.refusals == max(0, refusals - 3)


def test_concurrent_releases_unlock_a_queue_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second unlock could arrive when the queue is locked again."""
    one = build(world, orderly=True)
    one.balance(["t"])
    queue, invoke = one.process_queues()[0], world.invoke

    def invoke_and_release(address: str, request: RemotingCommand, what: str, timeout: float | None = None) -> Any:
        other = threading.Thread(target=one.released, args=(queue,), daemon=True)
        other.start()
        other.join(10)
        assert not other.is_alive()
        return invoke(address, request, what, timeout)

    world.readable = tuple(Q[1:])
    monkeypatch.setattr(world, "invoke", invoke_and_release)
    one.balance(["t"])
    assert world.log.count(("unlock", 0)) == 1


def test_a_queue_locked_by_others_is_dropped_without_a_commit(world: World) -> None:
    one = build(world, orderly=True)
    one.balance(["t"])
    lost = next(queue for queue in one.process_queues() if queue.queue == Q[1])
    world.owners[Q[1]] = "other"
    world.log.clear()
    one.renew_locks()
    assert lost.dropped
    assert owned(one) == [0, 2, 3]
    assert world.log == []
    assert world.soon == 1


@pytest.mark.parametrize(
    ("seconds", "valid"), [(LOCK_EXPIRED_SECONDS + 1, True), (EXPIRED_AT_BROKER_SECONDS + 1, False)]
)
def test_a_queue_restarts_after_an_expired_lock(world: World, seconds: float, valid: bool) -> None:
    one = build(world, orderly=True)
    one.balance(["t"])
    queue = one.process_queues()[0]
    world.away = True
    one.renew_locks()
    assert queue.locked  # it is valid until it expires
    queue.last_lock -= seconds
    assert queue.is_lock_expired()
    assert not one.lock(queue)
    world.away = False
    assert one.lock(queue) is valid
    assert queue.dropped is not valid


def test_a_released_lock_is_not_renewed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = build(world, orderly=True)
    one.balance(["t"])
    gone = one.process_queues()[0]
    asked, go, invoke = threading.Event(), threading.Event(), world.invoke

    def slowly(address: str, request: RemotingCommand, what: str, timeout: float | None = None) -> Any:
        if request.code == RequestCode.LOCK_BATCH_MQ:
            asked.set()
            assert go.wait(10)
        return invoke(address, request, what, timeout)

    monkeypatch.setattr(world, "invoke", slowly)
    renewing = threading.Thread(target=one.renew_locks)
    renewing.start()
    assert asked.wait(10)
    closing = threading.Thread(target=one.close)
    closing.start()  # the unlock has to wait for the renewal, which would otherwise lock queues without an owner
    go.set()
    renewing.join()
    closing.join()
    assert world.owners == {}
    assert not one.lock(gone)
    assert world.owners == {}


def test_a_queue_that_fails_to_start_is_unlocked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: MessageQueue) -> int:
        raise RemotingConnectError("the broker is unavailable")

    monkeypatch.setattr(world, "max_offset", away)
    one = build(world, orderly=True)
    one.balance(["t"])
    assert owned(one) == []
    assert world.owners == {}


def test_broadcasting_owns_every_queue_and_commits_all_at_once(world: World) -> None:
    world.ids = None
    one = build(world, strategy=None)
    one.balance(["t"])
    assert owned(one) == [0, 1, 2, 3]
    one.persist()
    assert len(world.offsets) == 4
