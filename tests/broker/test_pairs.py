"""State of pairs of a group and a topic: numbers that are products of names are bounded where they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from spark_rocket.broker.delivery.filters import ALL
from spark_rocket.broker.pop.consumer_order_info_manager import ConsumerOrderInfoManager
from spark_rocket.broker.pop.requests import PopRequest
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import MESSAGES, BrokerStats
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import GROUP_COUNTS, GROUP_TOPICS, ORDERED_POPS

MOST = 4


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (GROUP_COUNTS, GROUP_TOPICS, ORDERED_POPS):
        monkeypatch.setitem(STATE_LIMITS, name, replace(STATE_LIMITS[name], total=MOST))


# --- counts -----------------------------------------------------------------------------------------------------------


def test_the_pair_that_has_not_changed_for_the_longest_time_is_forgotten() -> None:
    stats = BrokerStats()
    for number in range(MOST):
        stats.fetched("g", f"t{number}", 1, 10)
    stats.sample()
    stats.fetched("g", "t0", 1, 10)
    stats.sample()
    stats.fetched("g", "new", 1, 10)
    stats.sample()
    assert {topic for _, topic in stats.groups} == {"t0", "t2", "t3", "new"}
    assert stats.windows.window(("t1", "g"), MESSAGES) == (0, 30, 0)
    assert stats.windows.window(("t0", "g"), MESSAGES).sum == 2
    assert stats.gets == 6
    for number in range(1_000):
        stats.fetched(f"g{number}", "t", 1, 10)
        if not number % 10:
            stats.sample()
        assert len(stats.groups) <= MOST
    for samples in stats.windows._retained:
        assert all(len(sample) <= 2 * MOST for _, sample in samples)


def test_queues_of_a_pair_count_too() -> None:
    """Numbers of queues are a third factor: 16 queues are one more pair."""
    stats = BrokerStats()
    for queue_id in range(16 * MOST):
        stats.pulled("g", "wide", queue_id, 1, 10, queue_id + 1)
    assert list(stats.groups) == [("g", "wide")]
    assert stats.pulled_of("g", "wide")[5] == 6
    stats.pulled("g", "t", 0, 1, 10, 1)
    assert list(stats.groups) == [("g", "t")]
    assert stats.pulled_of("g", "wide") == {}
    for number in range(MOST - 1):
        stats.group(f"g{number}", "t")
    assert len(stats.groups) == MOST
    stats.forget_topic("t")
    for number in range(MOST):
        stats.group(f"g{number}", "u")
    assert len(stats.groups) == MOST  # groups of a deleted topic are no longer counted


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_a_pair_too_many_has_no_offsets() -> None:
    offsets = ConsumerOffsetManager()
    for number in range(MOST):
        offsets.commit("g", f"t{number}", 0, 1)
    changes: tuple[Callable[[], object], ...] = (
        lambda: offsets.commit("g", "new", 0, 1),
        lambda: offsets.reset("g", "new", 0, 1),
        lambda: offsets.clone("g", "another", "t0"),
    )
    for change in changes:
        with pytest.raises(RefusedError, match="too many topics of groups: at most 4 in all"):
            change()
    assert len(offsets.table) == MOST
    assert not offsets.has_reset("g", "new", 0)
    offsets.commit("g", "t0", 1, 7)  # of a pair that exists
    offsets.remove_topic("t1")
    offsets.commit("g", "new", 0, 1)
    assert offsets.topics_of("g") == {"t0", "t2", "t3", "new"}


def test_the_brokers_own_commits_are_not_refused() -> None:
    """A message that is visible again must reach its group, and a broker must start."""
    offsets = ConsumerOffsetManager()
    for number in range(MOST):
        offsets.commit("g", f"t{number}", 0, 1)
    offsets.commit("g", "%RETRY%g_t0", 0, 0, is_own=True)
    assert offsets.query("g", "%RETRY%g_t0", 0) == 0


def test_a_slaves_resets_have_offsets() -> None:
    offsets = ConsumerOffsetManager()
    offsets.reset("g", "t", 0, 5)
    offsets.replace({"offsetTable": {"u@g": {0: 1}}})
    assert not offsets.has_reset("g", "t", 0)
    assert offsets.topics_of("g") == {"u"}


# --- ordered pops -----------------------------------------------------------------------------------------------------


class Ordered:
    """Ordered pops of a group from queues of a topic."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        config = BrokerConfig()
        self.now = 1_000_000
        self.offsets = ConsumerOffsetManager()
        topics = TopicConfigManager(config, lambda: self.now)
        groups = SubscriptionGroupManager(config, lambda: self.now)
        topics.ensure("T", 100)
        groups.find("G")
        self.manager = ConsumerOrderInfoManager(
            loop, lambda: self.now, self.offsets, topics, groups, lambda group, topic, queue_id: None
        )

    def pop(self, queue_id: int, invisible: int = 60_000, attempt: str | None = None) -> None:
        self.manager.check_room("G", "T", queue_id, self.now)
        request = PopRequest("G", "T", queue_id, 32, invisible, 0, 0, 0, ALL, True, attempt)
        self.manager.popped(request, "0", "T", queue_id, self.now, [0])

    @property
    def queues(self) -> set[int]:
        return set(self.manager.table.get("T@G", {}))


@pytest.fixture
def ordered() -> Iterator[Ordered]:
    loop = asyncio.new_event_loop()
    yield Ordered(loop)
    loop.close()


def test_a_queue_in_flight_too_many_is_not_popped(ordered: Ordered) -> None:
    for queue_id in range(MOST):
        ordered.pop(queue_id)
    with pytest.raises(RefusedError, match="too many ordered pops: at most 4 queues in all"):
        ordered.pop(MOST)
    ordered.pop(0)  # of a queue that is in flight
    ordered.manager.ack("G", "T", 2, 0, ordered.now, ordered.now)
    with pytest.raises(RefusedError):
        ordered.pop(MOST)  # it examines all entries once a second
    ordered.now += 1_000
    ordered.pop(MOST)
    assert ordered.queues == {0, 1, 3, 4}
    ordered.now += 60_000  # all are visible again
    ordered.pop(5)
    assert ordered.queues == {5}


def test_ends_of_blocks_that_are_replaced_are_forgotten(ordered: Ordered) -> None:
    """An attempt may be repeated with a shorter time as often as a client likes."""
    for less in range(2_000):
        ordered.pop(0, 600_000 - less, "attempt")
    assert len(ordered.manager._ends) <= 100
    assert ordered.manager.free(ordered.now) == ordered.now + 600_000 - 1_999
    ordered.manager.clear("G", "T", 0)
    assert not ordered.manager._expected
