"""Settings for a client: the sent settings, with the values that the server defines.

==================  ====================================================================================================
producers           bodies of at most ``maxMessageSize`` (4 MiB), validation of message types; 3 attempts per send with
                    a backoff of 10 ms, 20 ms … 1 s
consumers           batches of 32 messages, polls of 20 s; order (``fifo``), attempts and backoff from the group;
                    by default 17 attempts with a backoff of 1 s, 5 s, 10 s, 30 s, 1 min … 2 h
both                no metrics
other settings      as sent by the client
==================  ====================================================================================================

Corresponds to org.apache.rocketmq.proxy.grpc.v2.common.GrpcClientSettingsManager and
remoting.protocol.subscription.GroupRetryPolicy.
"""

from __future__ import annotations

from typing import Any

from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig

PRODUCER_ATTEMPTS = 3
PRODUCER_BACKOFF_MS = (10, 1_000, 2.0)
RECEIVE_BATCH_SIZE = 32
LONG_POLLING_SECONDS = 20
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
CONSUMER_BACKOFF_MS = (
    *(_SECOND * seconds for seconds in (1, 5, 10, 30)),
    *(_MINUTE * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(_HOUR * hours for hours in (1, 2)),
)
_EXPONENTIAL_MS = (5_000, 2 * _HOUR, 2.0)  # for a group with this policy but without numbers
_MAX_BACKOFF_MS = 365 * 24 * _HOUR


def merged_settings(sent: Any, *, max_body_size: int, group: SubscriptionGroupConfig | None) -> Any:
    """Return the ``definitions.Settings`` for a client. ``group``: the broker's configuration of its group."""
    merged = type(sent)()
    merged.CopyFrom(sent)
    merged.metric.Clear()
    merged.metric.on = False
    if merged.WhichOneof("pub_sub") == "publishing":
        merged.publishing.max_body_size = max_body_size
        merged.publishing.validate_message_type = True
        merged.backoff_policy.max_attempts = PRODUCER_ATTEMPTS
        _set_exponential(merged.backoff_policy, *PRODUCER_BACKOFF_MS)
    else:
        _merge_group(merged, group or SubscriptionGroupConfig())
    return merged


def _merge_group(merged: Any, group: SubscriptionGroupConfig) -> None:
    subscription = merged.subscription
    subscription.fifo = group.consume_message_orderly
    subscription.receive_batch_size = RECEIVE_BATCH_SIZE
    subscription.long_polling_timeout.seconds = LONG_POLLING_SECONDS
    subscription.long_polling_timeout.nanos = 0
    backoff = merged.backoff_policy
    backoff.max_attempts = min(max(group.retry_max_times, 0), 2**31 - 2) + 1
    policy = group.group_retry_policy  # unvalidated JSON
    kind = policy.get("type") if isinstance(policy, dict) else None
    if kind == "EXPONENTIAL":
        found = _part(policy, "exponentialRetryPolicy")
        _set_exponential(
            backoff,
            *(
                _number(found.get(name), default)
                for name, default in zip(("initial", "max", "multiplier"), _EXPONENTIAL_MS, strict=True)
            ),
        )
        return
    pauses = _part(policy, "customizedRetryPolicy").get("next")
    backoff.ClearField("strategy")
    backoff.customized_backoff.SetInParent()
    given = [_number(pause, _SECOND) for pause in pauses] if isinstance(pauses, list) else []
    for pause in given or CONSUMER_BACKOFF_MS:
        backoff.customized_backoff.next.add().FromMilliseconds(int(pause))


def _set_exponential(backoff: Any, initial_ms: float, max_ms: float, multiplier: float) -> None:
    backoff.ClearField("strategy")
    exponential = backoff.exponential_backoff
    exponential.initial.FromMilliseconds(int(initial_ms))
    exponential.max.FromMilliseconds(int(max_ms))
    exponential.multiplier = multiplier


def _part(policy: object, name: str) -> dict[str, Any]:
    found = policy.get(name) if isinstance(policy, dict) else None
    return found if isinstance(found, dict) else {}


def _number(value: object, default: float) -> float:
    """Return a number of milliseconds or times if it is valid, else the default."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_BACKOFF_MS:
        return default
    return value
