"""Delayed and timed messages: where they are stored until they are due.

===================================  ===================================================================================
property                             meaning
===================================  ===================================================================================
DELAY                                level of ``messageDelayLevel``, starting at 1; higher levels are reduced to the
                                     highest one, 0 and negative levels mean no delay. The others are dropped then
TIMER_DELAY_SEC, TIMER_DELAY_MS      delay from now
TIMER_DELIVER_MS                     delivery time; used if both delays are missing
TIMER_OUT_MS                         set by the broker; a message that already has it is delivered at once
TIMER_DEL_UNIQKEY                    recalls a pending message; requires a delivery time in the future
===================================  ===================================================================================

Such a message is stored in a system topic: ``SCHEDULE_TOPIC_XXXX`` (queue level − 1) or ``rmq_sys_wheel_timer``
(queue 0). REAL_TOPIC and REAL_QID have its destination. Delivery times are rounded down to the greatest multiple of
``timerPrecisionMs`` below them. A message whose time has passed is delivered at once.

Corresponds to broker.util.HookUtils.{handleScheduleMessage, transformDelayLevelMessage, transformTimerMessage}.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import RefusedError
from spark_rocket.model import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from spark_rocket.protocol.wire.codes import ResponseCode

TIMER_PROPERTIES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_NUMBER = re.compile(r"[+-]?[0-9]+")


class PendingPlace(NamedTuple):
    """Where and until when (ms) a message is pending; the time for its recall handle, or None if it has none."""

    topic: str
    queue_id: int
    due: int
    recall_time: int | None = None


class DelayRules:
    """Rules of delayed delivery with the settings of one broker."""

    def __init__(self, config: BrokerConfig, clock: Callable[[], int]) -> None:
        self._config = config
        self._clock = clock
        self._levels = config.store.delay_levels()

    def apply(self, properties: dict[str, str], topic: str, queue_id: int) -> PendingPlace | None:
        """Change ``properties`` to those to store and return the place; None if the message is not delayed.

        Raises RefusedError with Apache's code if a time is not a number or, with Apache's remark, too far in the
        future.
        """
        level = delay_level(properties)
        if level > 0:
            for name in TIMER_PROPERTIES:
                properties.pop(name, None)
            level = min(level, len(self._levels))
            properties["DELAY"] = str(level)
            _remember(properties, topic, queue_id)
            return PendingPlace(SCHEDULE_TOPIC, level - 1, self._clock() + self._levels[level - 1])
        if "TIMER_OUT_MS" in properties or not is_timed(properties):
            return None
        recalled = properties.get("TIMER_DEL_UNIQKEY")
        if recalled is not None and self._config.is_guarded and not recalled.startswith(f"{topic}+"):
            raise RefusedError(
                f"a message to {topic} cannot recall a message of another topic", ResponseCode.NO_PERMISSION
            )
        if not self._config.timer_wheel_enable:
            raise RefusedError(
                "accurate timer message is not enabled, timerWheelEnable is false", ResponseCode.SYSTEM_ERROR
            )
        now = self._clock()
        deliver = self._deliver_time(properties, now)
        if deliver <= now:
            if "TIMER_DEL_UNIQKEY" in properties:
                raise self._illegal()
            return None
        if deliver - now > self._config.timer_max_delay_sec * 1000:
            raise self._illegal()
        precision = self._config.timer_precision
        due = (deliver - 1) // precision * precision
        properties["TIMER_OUT_MS"] = str(due)
        _remember(properties, topic, queue_id)
        return PendingPlace(TIMER_TOPIC, 0, due, None if topic.startswith(RETRY_PREFIX) else due + 1)

    def _deliver_time(self, properties: dict[str, str], now: int) -> int:
        for name, factor in (("TIMER_DELAY_SEC", 1000), ("TIMER_DELAY_MS", 1)):
            if name in properties:
                return now + _number(name, properties[name]) * factor
        return _number("TIMER_DELIVER_MS", properties["TIMER_DELIVER_MS"])

    def _illegal(self) -> RefusedError:
        return RefusedError(
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self._config.timer_max_delay_sec * 1000}ms; or if set del msg, the delay time should be bigger than the "
            "current time",
            ResponseCode.MESSAGE_ILLEGAL,
        )


def delay_level(properties: dict[str, str]) -> int:
    """The requested delay level, 0 for none; RefusedError if it is not a number."""
    text = properties.get("DELAY")
    if not text:
        return 0
    return _number("DELAY", text)


def _number(name: str, text: str) -> int:
    if len(text) > 20 or not _NUMBER.fullmatch(text):
        what = {"DELAY": "the number of a delay level", "TIMER_DELAY_SEC": "a whole number of seconds"}
        raise RefusedError(
            f"invalid property {name} {text[:20]!r}: use {what.get(name, 'a whole number of milliseconds')}",
            ResponseCode.MESSAGE_ILLEGAL,
        )
    return int(text)


def is_timed(properties: dict[str, str]) -> bool:
    return any(name in properties for name in TIMER_PROPERTIES)


def _remember(properties: dict[str, str], topic: str, queue_id: int) -> None:
    properties["REAL_TOPIC"] = topic
    properties["REAL_QID"] = str(queue_id)
