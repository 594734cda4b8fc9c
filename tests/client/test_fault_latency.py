"""Choice of a broker when some are slow: Java's tables, with a simulated clock."""

from __future__ import annotations

import pytest

from spark_rocket.client.send.router import FaultStrategy
from spark_rocket.model import MessageQueue
from tests.kit.clock import Clock

QUEUES = [MessageQueue("t", broker, i) for broker in ("a", "b", "c") for i in range(2)]


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


def brokers(strategy: FaultStrategy, last: str | None = None, rounds: int = 12) -> set[str]:
    return {strategy.select(QUEUES, last).broker_name for _ in range(rounds)}


@pytest.mark.parametrize(
    ("latency", "isolated", "seconds"),
    [
        (0.01, False, 0),
        (0.06, False, 0),
        (0.2, False, 0),
        (0.55, False, 30),
        (1.0, False, 60),
        (2.5, False, 120),
        (3.0, False, 180),
        (20.0, False, 600),
        (0.01, True, 600),
    ],
)
def test_duration_of_a_brokers_exclusion(clock: Clock, latency: float, isolated: bool, seconds: int) -> None:
    strategy = FaultStrategy(clock, enabled=True)
    strategy.update("a", latency, isolated=isolated)
    if seconds:
        clock.now += seconds - 0.001
        assert brokers(strategy) == {"b", "c"}
        clock.now += 0.001
    assert brokers(strategy) == {"a", "b", "c"}


def test_if_all_are_slow_the_better_half_is_used(clock: Clock) -> None:
    strategy = FaultStrategy(clock, enabled=True)
    for broker, latency in (("a", 3.0), ("b", 0.6), ("c", 1.0)):
        strategy.update(broker, latency)
    assert brokers(strategy) == {"b"}
    strategy.update("b", 0.01)
    assert brokers(strategy) == {"b"}, "it is available again"


def test_without_latency_faults_only_the_last_broker_is_avoided(clock: Clock) -> None:
    strategy = FaultStrategy(clock)
    strategy.update("a", 100.0, isolated=True)
    assert strategy.is_available("a")
    assert brokers(strategy) == {"a", "b", "c"}
    assert brokers(strategy, "a") == {"b", "c"}
    only = QUEUES[:2]
    assert strategy.select(only, "a") in only, "there is no other"


def test_queues_take_turns(clock: Clock) -> None:
    for enabled in (False, True):
        strategy = FaultStrategy(clock, enabled=enabled)
        strategy.update("c", 0.0)
        assert {strategy.select(QUEUES, None) for _ in QUEUES} == set(QUEUES)
