"""Acquiring and releasing queues, with simulated brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from spark_rocket.client.consume import owned_queues
from spark_rocket.client.consume.listeners import ConsumeFromWhere
from spark_rocket.client.consume.process_queue import LOCK_EXPIRED_SECONDS, ProcessQueue
from spark_rocket.client.consume.queue_locks import EXPIRED_AT_BROKER_SECONDS, QueueLocks
from spark_rocket.errors import RemotingTimeoutError
from spark_rocket.model import MessageQueue
from tests.client.consuming import message
from tests.client.owning import Brokers, Owner, Q
from tests.client.test_interrupts_everywhere import at_line, interrupt
from tests.kit.waiting import until

PARTS = ("client/consume/owned_queues.py",)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def orderly(brokers: Brokers) -> Owner:
    """A consumer that owns all queues in ordered consumption."""
    one = Owner(brokers, orderly=True)
    one.balance()
    return one


@contextmanager
def listener_call(one: Owner, queue: ProcessQueue) -> Iterator[Callable[[], None]]:
    """A call of an orderly listener on a thread of its own. It ends when the yielded function is called."""
    calling, ended = threading.Event(), threading.Event()

    def call() -> None:
        with queue.lock_consume:
            calling.set()
            assert ended.wait(10)
            queue.commit()
        if queue.dropped:
            one.queues.released(queue)

    thread = threading.Thread(target=call)
    thread.start()
    assert calling.wait(10)

    def end() -> None:
        ended.set()
        thread.join()

    try:
        yield end
    finally:
        end()


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("ends", ["close", "own"])
def test_a_release_that_is_interrupted_is_completed(monkeypatch: pytest.MonkeyPatch, ends: str, marks: bool) -> None:
    """By the next call, at each line. Another thread has started the queues."""
    monkeypatch.setattr(owned_queues, "CLOSE_SECONDS", 0.0)
    for at in range(1, 1_000):
        brokers = Brokers()
        one = Owner(brokers, orderly=not marks, marks=marks)
        starting = threading.Thread(target=one.balance)
        starting.start()
        starting.join()
        every = [one.of(queue) for queue in Q]
        one.held.update(every)
        close = partial(one.queues.close, mark=marks)
        release = close if ends == "close" else partial(one.queues.own, (), mark=marks)
        reached, _ = at_line(at, interrupt, release, PARTS)
        if ends == "own":
            one.balance()
            assert one.owned() == [0, 1, 2, 3], at
            for queue in every:
                assert queue.dropped is not (one.of(queue.queue) is queue), at
        close()
        assert one.held == set(), at
        assert brokers.owners == {}, at
        assert brokers.offsets.keys() == set(Q), at
        assert one.queues._table.leaving == one.queues._table.wanted == {}, at
        if not reached:
            break
    assert at > 100


def test_a_start_that_is_interrupted_is_completed() -> None:
    """By the next call, at each line, on another thread."""
    for at in range(1, 1_000):
        one = Owner(Brokers(), orderly=True)
        reached, _ = at_line(at, interrupt, one.balance, PARTS)
        next_call = threading.Thread(target=one.balance)
        next_call.start()
        next_call.join()
        assert one.owned() == [0, 1, 2, 3], at
        assert {queue for queue, _ in one.pulls} == set(Q), at
        if not reached:
            break
    assert at > 50


def test_a_rebalance_during_a_close_drops_no_position() -> None:
    brokers = Brokers()
    one = Owner(brokers, marks=True)
    one.balance()
    lock = one.queues._lock

    class Taken:
        """Another thread has it first."""

        def __enter__(self) -> None:
            one.queues._lock = lock
            balancing = threading.Thread(target=one.balance)
            balancing.start()
            balancing.join()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    one.queues._lock = Taken()  # type: ignore[assignment]
    one.queues.close(mark=True)
    assert brokers.offsets.keys() == set(Q)


def test_queues_move_with_members(brokers: Brokers) -> None:
    one = Owner(brokers)
    one.balance()
    assert one.owned() == [0, 1, 2, 3]
    gone = one.of(Q[0])
    gone.put([message(100), message(101)], 102)
    gone.remove([100])
    brokers.ids = ["before", "me"]
    one.balance()
    assert one.owned() == [2, 3]
    assert gone.dropped
    assert brokers.offsets[Q[0]] == 101
    brokers.log.clear()
    gone.remove([101])  # a call that ended late
    one.queues.persist()
    assert brokers.log == [("commit", 2, 100), ("commit", 3, 100)]
    one.queues.close()
    one.balance()
    assert one.owned() == []


def test_without_a_member_list_nothing_changes(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    one = Owner(brokers)
    one.balance()
    assert not caplog.records
    brokers.ids = None
    one.balance()
    assert "autoCreateSubscriptionGroup=false" in caplog.text, "5.x does not report it in response to heartbeats"
    brokers.ids = ["other"]  # a restarted broker does not know this one yet
    one.balance()
    assert one.owned() == [0, 1, 2, 3]
    assert one.greeted == 1


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
def test_start_of_a_queue_without_an_offset(brokers: Brokers, where: ConsumeFromWhere, topic: str, begins: int) -> None:
    brokers.readable = (MessageQueue(topic, "b", 0),)
    one = Owner(brokers, where=where, timestamp_ms=55)
    one.balance(topic)
    assert one.pulls == [(brokers.readable[0], begins)]
    assert one.queues.positions() == {brokers.readable[0]: begins}


@pytest.mark.parametrize(("where", "usual"), list(zip(ConsumeFromWhere, (100, 7, 55), strict=True)))
def test_new_queues_start_at_their_first_message(brokers: Brokers, where: ConsumeFromWhere, usual: int) -> None:
    one = Owner(brokers, where=where, timestamp_ms=55)
    one.share.note("t", Q[:2])
    one.balance()
    assert one.queues.positions() == {Q[0]: usual, Q[1]: usual, Q[2]: 7, Q[3]: 7}


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
def test_queues_added_while_the_group_was_stopped(brokers: Brokers, where: ConsumeFromWhere) -> None:
    """The group has consumed the topic before: it starts nowhere but at its offset, or at the first message."""
    brokers.offsets = {Q[1]: 30}
    one = Owner(brokers, where=where, timestamp_ms=55)
    one.share.note("t", Q)
    one.balance()
    assert one.queues.positions() == {Q[0]: 7, Q[1]: 30, Q[2]: 7, Q[3]: 7}


def test_own_commits_do_not_make_a_group_an_old_one(brokers: Brokers) -> None:
    """A queue of a new group that starts late starts where the others did."""
    one = Owner(brokers)
    one.share.note("t", Q)
    assert one.share.first_offset(Q[0]) == 100
    brokers.offsets = {Q[0]: 100}
    assert one.share.first_offset(Q[3]) == 100


def test_detection_of_new_queues(brokers: Brokers) -> None:
    share = Owner(brokers, strategy=None).share
    share.note("t", Q[:2])
    share.note("t", Q)
    share.note("later", ())
    assigned, later = MessageQueue("assigned", "b", 0), MessageQueue("later", "b", 0)
    assert [share.first_offset(queue) for queue in Q] == [100, 100, 7, 7]
    assert share.first_offset(assigned) == 100, "no broker was asked for that topic's queues"
    assert share.first_offset(later) == 7


def test_a_reset_and_a_correction_restart_at_their_offset(brokers: Brokers) -> None:
    one = Owner(brokers)
    one.balance()
    second, third = one.of(Q[1]), one.of(Q[2])
    one.queues.restart({Q[1]: 5, MessageQueue("t", "elsewhere", 0): 6}, commit=True)
    one.queues.correct(third, 8)
    one.queues.correct(second, 9)  # too late: the queue has already been restarted
    assert one.queues.positions() == {Q[0]: 100, Q[1]: 5, Q[2]: 8, Q[3]: 100}
    assert brokers.offsets == {Q[1]: 5, Q[2]: 8}
    assert second.dropped


def test_a_seek_commits_nothing_and_stays_paused(brokers: Brokers) -> None:
    one = Owner(brokers, marks=True)
    one.queues.own(Q[:1])
    one.queues.start()
    one.queues.mark()
    one.queues.pause(Q[:1], paused=True)
    one.queues.restart({Q[0]: 5}, commit=False)
    one.queues.persist()
    assert brokers.offsets == {}
    assert one.of(Q[0]).paused
    one.queues.mark()
    one.queues.persist()
    assert brokers.offsets == {Q[0]: 5}


def test_a_correction_waits_for_messages_that_are_still_returned(brokers: Brokers) -> None:
    one = Owner(brokers, marks=True)
    one.queues.own(Q[:1])
    one.queues.start()
    invalid = one.of(Q[0])
    one.held = {invalid}
    one.queues.correct(invalid, 8)
    assert one.queues.positions() == {Q[0]: 100}
    one.held.clear()
    assert one.call_later.run() == 1.0
    assert one.queues.positions() == {Q[0]: 8}
    assert brokers.offsets == {}, "only marked offsets are committed"


def test_a_queue_under_correction_is_skipped(brokers: Brokers) -> None:
    one = Owner(brokers)
    one.balance()
    queue = one.of(Q[0])
    queue.stale = queue.dropped = True
    one.balance()
    assert one.of(Q[0]) is queue
    one.queues.persist()
    assert Q[0] not in brokers.offsets


def test_a_queue_without_pulls_is_restarted(brokers: Brokers) -> None:
    one = Owner(brokers)
    one.balance()
    stuck = one.of(Q[0])
    stuck.last_pull -= 121
    one.balance()
    assert stuck.dropped
    assert one.owned() == [0, 1, 2, 3]
    assert brokers.offsets == {Q[0]: 100}


def test_only_marked_positions_are_committed_unless_all_are_released(brokers: Brokers) -> None:
    one = Owner(brokers, marks=True)
    one.queues.own(Q)
    one.queues.start()
    one.queues.own(Q[1:])
    assert brokers.offsets == {}
    one.queues.commit({Q[1]: 50})
    one.queues.own(Q[2:])
    assert brokers.offsets == {Q[1]: 50}
    one.queues.own(Q[3:], mark=True)
    one.queues.close(mark=True)
    assert brokers.offsets == {Q[1]: 50, Q[2]: 100, Q[3]: 100}


@pytest.mark.parametrize("in_order", [False, True])
def test_an_unresponsive_broker_is_asked_once_a_round(brokers: Brokers, in_order: bool) -> None:
    """Waiting for it would delay the queues of the other brokers."""
    brokers.readable = (*(MessageQueue("t", "a", number) for number in range(4)), *Q)
    brokers.silent = {"a"}
    one = Owner(brokers, orderly=in_order)
    one.balance("t", "u")
    assert [broker for _, broker in brokers.asked].count("a") == 1
    assert [process_queue.queue for process_queue in one.queues.process_queues()] == Q
    brokers.silent.clear()
    assert one.call_later.run() == 1.0
    until(lambda: len(one.owned()) == 8)


def test_a_reset_of_one_queue_does_not_wait_for_others(brokers: Brokers) -> None:
    brokers.readable = (MessageQueue("t", "a", 0), *Q)
    brokers.silent = {"a"}
    one = Owner(brokers)
    one.balance()
    brokers.asked.clear()
    one.queues.restart({Q[0]: 5}, commit=False)
    assert [broker for _, broker in brokers.asked] == []
    assert one.queues.positions()[Q[0]] == 5


def test_locks_at_unresponsive_brokers_are_renewed_last(brokers: Brokers) -> None:
    """Each unresponsive broker costs a timeout, during which the locks at the other brokers age."""
    one: Any = Owner(brokers)
    locks = QueueLocks(lambda: one, "g")
    queues = [ProcessQueue(MessageQueue("t", name, 0), 0) for name in "abcd"]
    orders = []
    for silent in ({"a", "b"}, {"a"}, set[str](), set[str]()):
        brokers.silent = silent
        brokers.asked.clear()
        assert locks.renew(queues) == []
        orders.append("".join(broker for _, broker in brokers.asked))
    assert orders == ["abcd", "cdab", "bcda", "abcd"]
    assert all(one.locked for one in queues)


# --- in order -------------------------------------------------------------------------------------------------------


def test_queues_locked_by_others_are_retried(brokers: Brokers) -> None:
    brokers.owners = {Q[0]: "other", Q[1]: "other"}
    one = Owner(brokers, orderly=True)
    one.balance()
    assert one.owned() == [2, 3]
    assert one.queues.queues() == Q
    brokers.owners.clear()
    assert one.call_later.run() == 1.0
    until(lambda: one.owned() == [0, 1, 2, 3])


def test_a_lock_is_held_until_the_call_ends_and_commits(brokers: Brokers, orderly: Owner) -> None:
    queue = orderly.of(Q[0])
    queue.put([message(100)], 101)
    queue.take(1)
    with listener_call(orderly, queue) as end:
        brokers.ids = ["before", "me"]
        brokers.log.clear()
        orderly.balance()
        assert ("unlock", 1) in brokers.log
        assert ("unlock", 0) not in brokers.log
        orderly.queues.renew_locks()
        assert brokers.owners[Q[0]] == "me"
        brokers.ids = ["me"]
        orderly.balance()  # not even this member may start now
        assert orderly.owned() == [1, 2, 3]
        brokers.log.clear()
        end()
        assert brokers.log == [("commit", 0, 101), ("unlock", 0)]
    assert orderly.owned() == [0, 1, 2, 3], "it starts when the call has ended"
    assert orderly.queues.positions()[Q[0]] == 101
    orderly.queues.released(queue)
    assert brokers.log == [("commit", 0, 101), ("unlock", 0)]


def test_a_reset_waits_for_the_call_and_drops_its_commit(brokers: Brokers, orderly: Owner) -> None:
    queue = orderly.of(Q[0])
    queue.put([message(100)], 101)
    queue.take(1)
    with listener_call(orderly, queue) as end:
        orderly.queues.restart({Q[0]: 5}, commit=True)
        assert orderly.owned() == [1, 2, 3]
        end()
    assert brokers.offsets == {Q[0]: 5}
    assert orderly.queues.positions()[Q[0]] == 5


def test_close_commits_every_queue_once(brokers: Brokers, orderly: Owner) -> None:
    orderly.queues.persist()
    orderly.queues.close()
    commits = [("commit", number, 100) for number in range(4)]
    assert brokers.log == [*commits, *commits, *(("unlock", number) for number in range(4))]
    assert brokers.owners == {}


@pytest.mark.parametrize("kind", ["commit", "unlock"])
def test_close_ends_after_an_interrupted_release(brokers: Brokers, orderly: Owner, kind: str) -> None:
    def interrupt(asked: str) -> None:
        if asked == kind:
            brokers.on_request = lambda _: None
            raise KeyboardInterrupt

    orderly.queues.mark()
    brokers.on_request = interrupt
    with pytest.raises(KeyboardInterrupt):
        orderly.queues.own(())
    orderly.balance()
    assert orderly.owned() == [0, 1, 2, 3]
    closing = threading.Thread(target=orderly.queues.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert brokers.owners == {}


def test_a_reset_with_an_interrupted_commit(brokers: Brokers, orderly: Owner) -> None:
    def interrupt(asked: str) -> None:
        if asked == "commit":
            brokers.on_request = lambda _: None
            raise KeyboardInterrupt

    brokers.on_request = interrupt
    with pytest.raises(KeyboardInterrupt):
        orderly.queues.restart({Q[0]: 5}, commit=True)
    orderly.balance()
    assert orderly.queues.positions()[Q[0]] == 5


def test_close_waits_for_starts_of_other_threads(brokers: Brokers) -> None:
    """Without a connection they could not unlock their queues any more."""
    one = Owner(brokers, orderly=True)
    locking, go = threading.Event(), threading.Event()

    def wait(kind: str) -> None:
        if kind == "lock":
            locking.set()
            assert go.wait(10)

    brokers.on_request = wait
    starting = threading.Thread(target=one.balance)
    starting.start()
    assert locking.wait(10)
    closing = threading.Thread(target=one.queues.close)
    closing.start()
    until(lambda: not one.queues.queues())
    assert closing.is_alive()
    go.set()
    closing.join(10)
    assert not closing.is_alive()
    assert brokers.owners == {}
    starting.join()
    assert one.owned() == []


def test_nothing_is_committed_after_the_unlock(brokers: Brokers, orderly: Owner) -> None:
    """The call ends, and its thread unlocks the queue, before the releasing thread has committed it."""
    queue = orderly.of(Q[0])

    class EndingCall:
        def locked(self) -> bool:
            orderly.queues.released(queue)
            return False

    queue.lock_consume = EndingCall()  # type: ignore[assignment]
    brokers.readable = tuple(Q[1:])
    orderly.balance()
    assert brokers.log == [("commit", 0, 100), ("unlock", 0)]


@pytest.mark.parametrize(
    ("refusals", "expired", "log"),
    [(1, False, [("commit", 0, 100), ("unlock", 0)]), (9, False, [("unlock", 0)]), (1, True, [("unlock", 0)])],
    ids=["once", "permanently", "the lock has expired"],
)
def test_a_failed_last_commit_is_retried_before_the_unlock(
    brokers: Brokers, orderly: Owner, monkeypatch: pytest.MonkeyPatch, refusals: int, expired: bool, log: list[Any]
) -> None:
    monkeypatch.setattr(owned_queues, "COMMIT_RETRY_SECONDS", 0.0)
    left = refusals

    def refuse(kind: str) -> None:
        nonlocal left
        if kind == "commit" and left:
            left -= 1
            raise RemotingTimeoutError("no response")

    if expired:
        orderly.of(Q[0]).last_lock -= LOCK_EXPIRED_SECONDS + 1
    brokers.readable = tuple(Q[1:])
    brokers.on_request = refuse
    orderly.balance()
    assert brokers.log == log
    assert left == max(0, refusals - 3)


def test_concurrent_releases_unlock_a_queue_once(brokers: Brokers, orderly: Owner) -> None:
    """A second unlock could arrive when the queue is locked again."""
    queue = orderly.of(Q[0])

    def release(kind: str) -> None:
        if kind == "unlock":
            other = threading.Thread(target=orderly.queues.released, args=(queue,), daemon=True)
            other.start()
            other.join(10)
            assert not other.is_alive()

    brokers.readable = tuple(Q[1:])
    brokers.on_request = release
    orderly.balance()
    assert brokers.log.count(("unlock", 0)) == 1


def test_a_queue_locked_by_others_restarts_without_a_commit(brokers: Brokers, orderly: Owner) -> None:
    lost = orderly.of(Q[1])
    brokers.owners[Q[1]] = "other"
    orderly.queues.renew_locks()
    assert lost.dropped
    assert orderly.owned() == [0, 2, 3]
    assert brokers.log == []
    brokers.offsets[Q[1]] = 200
    del brokers.owners[Q[1]]
    assert orderly.call_later.run() == 1.0
    until(lambda: orderly.owned() == [0, 1, 2, 3])
    assert orderly.queues.positions()[Q[1]] == 200


@pytest.mark.parametrize(
    ("seconds", "valid"), [(LOCK_EXPIRED_SECONDS + 1, True), (EXPIRED_AT_BROKER_SECONDS + 1, False)]
)
def test_a_queue_restarts_after_an_expired_lock(brokers: Brokers, orderly: Owner, seconds: float, valid: bool) -> None:
    queue = orderly.of(Q[0])
    brokers.silent = {"b"}
    orderly.queues.renew_locks()
    assert queue.locked  # it is valid until it expires
    queue.last_lock -= seconds
    assert queue.is_lock_expired()
    assert not orderly.queues.lock(queue)
    brokers.silent = set()
    assert orderly.queues.lock(queue) is valid
    assert queue.dropped is not valid


def test_a_released_lock_is_not_renewed(brokers: Brokers, orderly: Owner) -> None:
    gone = orderly.of(Q[0])
    asked, go = threading.Event(), threading.Event()

    def slowly(kind: str) -> None:
        if kind == "lock":
            asked.set()
            assert go.wait(10)

    brokers.on_request = slowly
    renewing = threading.Thread(target=orderly.queues.renew_locks)
    renewing.start()
    assert asked.wait(10)
    closing = threading.Thread(target=orderly.queues.close)
    closing.start()  # the unlock has to wait for the renewal, which would otherwise lock queues without an owner
    go.set()
    renewing.join()
    closing.join()
    assert brokers.owners == {}
    assert not orderly.queues.lock(gone)
    assert brokers.owners == {}


def test_a_queue_that_fails_to_start_is_unlocked(brokers: Brokers) -> None:
    def away(kind: str) -> None:
        if kind == "read":
            raise RemotingTimeoutError("no response")

    brokers.on_request = away
    one = Owner(brokers, orderly=True)
    one.balance()
    assert one.owned() == []
    assert brokers.owners == {}


def test_broadcasting_owns_every_queue(brokers: Brokers) -> None:
    brokers.ids = None
    one = Owner(brokers, strategy=None)
    one.balance()
    assert one.owned() == [0, 1, 2, 3]
    one.queues.persist()
    assert len(brokers.offsets) == 4
