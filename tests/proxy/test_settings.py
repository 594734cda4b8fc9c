"""Settings that a client receives: the server's own ones and those of its group."""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.proxy import definitions
from spark_rocket.proxy.methods.settings import CONSUMER_BACKOFF_MS, merged_settings
from tests.proxy.caller import consumer_settings, producer_settings


def merged(settings: Any, group: SubscriptionGroupConfig | None = None) -> Any:
    return merged_settings(settings, max_body_size=4_194_304, group=group)


def pauses(settings: Any) -> list[int]:
    return [pause.ToMilliseconds() for pause in settings.backoff_policy.customized_backoff.next]


def test_of_a_producer() -> None:
    sent = producer_settings("T")
    sent.request_timeout.seconds = 3
    sent.user_agent.version = "5.1.2"
    sent.access_point.addresses.add(host="h", port=1)
    sent.backoff_policy.customized_backoff.next.add(seconds=9)
    sent.metric.on = True
    found = merged(sent)
    assert sent.metric.on, "what was sent is as it was"
    assert found.client_type == definitions.ClientType.PRODUCER
    assert (found.request_timeout.seconds, found.user_agent.version) == (3, "5.1.2")
    assert found.access_point == sent.access_point
    assert found.publishing.topics == sent.publishing.topics
    assert (found.publishing.max_body_size, found.publishing.validate_message_type) == (4_194_304, True)
    backoff = found.backoff_policy
    assert backoff.max_attempts == 3
    assert backoff.exponential_backoff.initial.ToMilliseconds() == 10
    assert backoff.exponential_backoff.max.ToMilliseconds() == 1_000
    assert backoff.exponential_backoff.multiplier == 2.0
    assert found.HasField("metric")
    assert not found.metric.on


def test_of_a_consumer() -> None:
    sent = consumer_settings("readers", "T", kind="PUSH_CONSUMER")
    sent.subscription.receive_batch_size = 1_000
    sent.subscription.fifo = True
    sent.subscription.long_polling_timeout.nanos = 5
    found = merged(sent)
    subscription = found.subscription
    assert (subscription.fifo, subscription.receive_batch_size) == (False, 32)
    assert subscription.long_polling_timeout.ToMilliseconds() == 20_000
    assert subscription.subscriptions == sent.subscription.subscriptions
    assert found.backoff_policy.max_attempts == 17
    assert pauses(found) == list(CONSUMER_BACKOFF_MS)
    assert (len(CONSUMER_BACKOFF_MS), CONSUMER_BACKOFF_MS[0], CONSUMER_BACKOFF_MS[-1]) == (18, 1_000, 7_200_000)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [100, 2000]}}, [100, 2_000]),
        ({"type": "CUSTOMIZED"}, list(CONSUMER_BACKOFF_MS)),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": []}}, list(CONSUMER_BACKOFF_MS)),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": ["x", -1, 1 << 80, True, 3]}}, [1_000] * 4 + [3]),
        ("CUSTOMIZED", list(CONSUMER_BACKOFF_MS)),
        ({"type": ["EXPONENTIAL"], "customizedRetryPolicy": 7}, list(CONSUMER_BACKOFF_MS)),
    ],
)
def test_delays_configured_by_a_group(policy: object, expected: list[int]) -> None:
    group = SubscriptionGroupConfig(group_name="g", retry_max_times=3, group_retry_policy=policy)
    found = merged(consumer_settings("g"), group)
    assert found.backoff_policy.max_attempts == 4
    assert pauses(found) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"initial": 50, "max": 900, "multiplier": 1.5}, (50, 900, 1.5)),
        ({"initial": "soon", "max": None}, (5_000, 7_200_000, 2.0)),
        (None, (5_000, 7_200_000, 2.0)),
    ],
)
def test_increasing_delays(policy: object, expected: tuple[int, int, float]) -> None:
    group = SubscriptionGroupConfig(
        group_name="g",
        consume_message_orderly=True,
        group_retry_policy={"type": "EXPONENTIAL", "exponentialRetryPolicy": policy},
    )
    found = merged(consumer_settings("g"), group)
    assert found.subscription.fifo
    backoff = found.backoff_policy.exponential_backoff
    assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds(), backoff.multiplier) == expected


@pytest.mark.parametrize("times", [-1, 2**31 - 1, 1 << 40])
def test_invalid_numbers_of_attempts(times: int) -> None:
    group = SubscriptionGroupConfig(group_name="g", retry_max_times=times)
    assert 1 <= merged(consumer_settings("g"), group).backoff_policy.max_attempts < 2**31
