"""The kind of a group, poll by poll: with members, of a running or stopped Spark stream, or without readers."""

from __future__ import annotations

import pytest

from spark_rocket.client.admin import STOPPED_SECONDS, GroupHistory, GroupKind, GroupState, Member, QueueProgress
from spark_rocket.model import MessageQueue

MEMBER = Member("client", "10.0.0.5:4", "JAVA", "V5_3_3", ["a"])
NO_VALUE: frozenset[str] = frozenset()
CONSUMERS = frozenset(["orders", "%RETRY%g"])


def state(*committed: int, end: int = 100, members: int = 0) -> GroupState:
    queues = [QueueProgress(MessageQueue("orders", "a", i), end, offset, None, 0) for i, offset in enumerate(committed)]
    return GroupState("g", [MEMBER] * members, {}, None, None, None, queues, 0.0)


def after(*looks: tuple[float, GroupState], topics: frozenset[str] = NO_VALUE) -> GroupKind:
    history = GroupHistory()
    for moment, found in looks:
        history.update(moment, found, topics)
    return history.kind


def test_groups_with_members_and_without_offsets() -> None:
    assert after((0, state(5, members=2))) is GroupKind.ONLINE
    assert after((0, state(-1, 0))) is GroupKind.NEW
    assert after((0, state())) is GroupKind.NEW


@pytest.mark.parametrize("retry", ["%RETRY%g", "%RETRY%g_orders", "%RETRY%g+orders"])
def test_one_poll_distinguishes_streams_from_offline_consumers(retry: str) -> None:
    assert after((0, state(5))) is GroupKind.STREAM
    assert after((0, state(5)), topics=frozenset([retry])) is GroupKind.IDLE
    assert after((0, state(5)), topics=frozenset(["%RETRY%g2", "%RETRY%other"])) is GroupKind.STREAM


def test_a_stream_with_lag_and_no_commits_has_stopped() -> None:
    begun = (0.0, state(5, 5))
    assert after(begun, (STOPPED_SECONDS - 1, state(5, 5))) is GroupKind.STREAM
    assert after(begun, (STOPPED_SECONDS, state(5, 5, end=200))) is GroupKind.STOPPED
    again = (STOPPED_SECONDS + 1, state(5, 6, end=200))
    assert after(begun, (STOPPED_SECONDS, state(5, 5)), again) is GroupKind.STREAM
    moved = (STOPPED_SECONDS - 1, state(5, 6))
    assert after(begun, moved, (2 * STOPPED_SECONDS - 2, state(5, 6))) is GroupKind.STREAM
    assert after(begun, moved, (2 * STOPPED_SECONDS - 1, state(5, 6))) is GroupKind.STOPPED


def test_a_stream_without_lag_has_not_stopped() -> None:
    done = state(100)
    assert after((0, done), (10 * STOPPED_SECONDS, done)) is GroupKind.STREAM
    late = [(10 * STOPPED_SECONDS, state(100, end=101)), (11 * STOPPED_SECONDS, state(100, end=102))]
    assert after((0, done), late[0]) is GroupKind.STREAM
    assert after((0, done), *late) is GroupKind.STOPPED


def test_start_of_the_lag() -> None:
    history = GroupHistory()
    for moment, found in [(1, state(100)), (2, state(100, end=101)), (3, state(100, end=102))]:
        history.update(moment, found, NO_VALUE)
    assert history.waiting_since == 2
    history.update(4, state(101, end=103), NO_VALUE)
    assert history.waiting_since == 4
    history.update(5, state(103, end=103), NO_VALUE)
    assert history.waiting_since is None


def test_consumers_that_left_are_not_a_stream() -> None:
    """Clients of RocketMQ 5 have no retry topic until a message is consumed again."""
    online = (0.0, state(5, members=1))
    assert after(online, (1, state(5))) is GroupKind.IDLE
    assert after(online, (1, state(9))) is GroupKind.IDLE  # the consumers committed when they left
    assert after(online, (1, state(9)), (10 * STOPPED_SECONDS, state(9))) is GroupKind.IDLE


def test_a_stream_in_a_former_consumer_group() -> None:
    looks = [(0, state(5)), (1, state(6)), (2, state(7))]
    assert after(*looks[:2], topics=CONSUMERS) is GroupKind.IDLE  # one commit may be a reset
    assert after(*looks, topics=CONSUMERS) is GroupKind.STREAM
    assert after(*looks, (2 + STOPPED_SECONDS, state(7)), topics=CONSUMERS) is GroupKind.STOPPED
    assert after(*looks, (3, state(8, members=1)), (4, state(8)), topics=CONSUMERS) is GroupKind.IDLE


def test_an_unavailable_broker_is_not_progress() -> None:
    away = state(5)
    looks = [(0, state(5, 5)), (1, away), (2, state(5, 5)), (3, away), (4, state(5, 5))]
    assert after(*looks, topics=CONSUMERS) is GroupKind.IDLE


def test_labels_of_the_kinds() -> None:
    assert [kind.label for kind in GroupKind] == [
        "online",
        "Spark stream",
        "Spark stream, stopped",
        "no consumers",
        "nothing consumed yet",
    ]
    assert [str(kind) for kind in GroupKind] == ["online", "stream", "stopped", "idle", "new"]
