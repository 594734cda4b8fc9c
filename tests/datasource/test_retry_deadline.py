from __future__ import annotations

import pytest

from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.errors import BrokerError, RemotingConnectError, RocketError, TopicNotFoundError
from tests.kit.clock import Clock


def failing(times: int, error: RocketError, answer: str = "answer") -> object:
    left = [times]

    def ask() -> str:
        if left[0]:
            left[0] -= 1
            raise error
        return answer

    return ask


def test_a_restart_is_a_delay() -> None:
    clock = Clock(0.0)
    retry_deadline = RetryDeadline(10_000, clock=clock, sleep=clock.sleep)
    assert retry_deadline.call(failing(5, RemotingConnectError("away")), "to ask") == "answer"  # type: ignore[arg-type]
    assert clock.pauses == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert retry_deadline.call(failing(1, BrokerError("busy", response_code=2)), "to ask") == "answer"  # type: ignore[arg-type]
    assert clock.pauses[-1] == 0.1, "after a success it begins again"


def test_retries_end_and_the_error_names_the_attempt() -> None:
    clock = Clock(0.0)
    retry_deadline = RetryDeadline(10_000, clock=clock, sleep=clock.sleep)
    with pytest.raises(RemotingConnectError, match=r"away.*Tried to ask for \d+ s \(option retryTimeout\)"):
        retry_deadline.call(failing(1000, RemotingConnectError("away", remedy="Start it.")), "to ask")  # type: ignore[arg-type]
    assert 6 < clock.now <= 10


def test_permanent_errors_are_not_retried() -> None:
    clock = Clock(0.0)
    with pytest.raises(TopicNotFoundError):
        RetryDeadline(10_000, clock=clock, sleep=clock.sleep).call(failing(1, TopicNotFoundError("no")), "to ask")  # type: ignore[arg-type]
    assert clock.pauses == []
