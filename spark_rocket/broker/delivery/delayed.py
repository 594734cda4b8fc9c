"""What becomes of a message that asks to be delivered later.

===================================  ===================================================================================
property                             meaning
===================================  ===================================================================================
DELAY                                a level of ``messageDelayLevel``, from 1 on; more than there are counts as the
                                     highest, 0 and less as none. Wins over the others, which are then dropped
TIMER_DELAY_SEC, TIMER_DELAY_MS      from now on
TIMER_DELIVER_MS                     the time itself; used when none of the two before is there
TIMER_OUT_MS                         set by the broker; a message that already has it is an ordinary one
TIMER_DEL_UNIQKEY                    recalls a waiting message; only with a time that is still to come
===================================  ===================================================================================

Such a message is stored in a topic of the broker's own, ``SCHEDULE_TOPIC_XXXX`` (queue level − 1) or
``rmq_sys_wheel_timer`` (queue 0), with where it was sent in REAL_TOPIC and REAL_QID. A time is made a multiple of
``timerPrecisionMs``, the greatest below it; one that is over already makes an ordinary message.

Thread-safety: used on the event loop only. Corresponds to broker.util.HookUtils.{handleScheduleMessage,
transformDelayLevelMessage, transformTimerMessage}.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.errors import RefusedError
from spark_rocket.model import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.store.config import delay_levels

TIMER_PROPERTIES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_NUMBER = re.compile(r"[+-]?[0-9]+")


class Waiting(NamedTuple):
    """Where a message waits, until when (ms), and the time for its recall handle (None: it cannot be recalled)."""

    topic: str
    queue_id: int
    due: int
    recall_time: int | None = None


class DelayRules:
    """The rules with one broker's settings."""

    def __init__(self, config: BrokerConfig, clock: Callable[[], int]) -> None:
        self._config = config
        self._clock = clock
        self._levels = delay_levels(config.message_delay_level)

    def apply(self, properties: dict[str, str], topic: str, queue_id: int) -> Waiting | None:
        """Change the properties of a message to ``topic`` to what is stored, and say where; None: as it was sent.

        RefusedError, with Apache's code, for a time that is no number or (with Apache's remark) too far away.
        """
        level = delay_level(properties)
        if level > 0:
            for name in TIMER_PROPERTIES:
                properties.pop(name, None)
            level = min(level, len(self._levels))
            properties["DELAY"] = str(level)
            _remember(properties, topic, queue_id)
            return Waiting(SCHEDULE_TOPIC, level - 1, self._clock() + self._levels[level - 1])
        if "TIMER_OUT_MS" in properties or not is_timed(properties):
            return None
        recalled = properties.get("TIMER_DEL_UNIQKEY")
        if recalled is not None and self._config.acl_enable and not recalled.startswith(f"{topic}+"):
            raise RefusedError(f"a message to {topic} recalls none of another topic", ResponseCode.NO_PERMISSION)
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
        return Waiting(TIMER_TOPIC, 0, due, None if topic.startswith(RETRY_PREFIX) else due + 1)

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
    """The level asked for, 0 for none; RefusedError if it is no number."""
    text = properties.get("DELAY")
    if not text:
        return 0
    return _number("DELAY", text)


def _number(name: str, text: str) -> int:
    if len(text) > 20 or not _NUMBER.fullmatch(text):
        what = {"DELAY": "the number of a delay level", "TIMER_DELAY_SEC": "a whole number of seconds"}
        raise RefusedError(
            f"the property {name} is {text[:20]!r}, not {what.get(name, 'a whole number of milliseconds')}",
            ResponseCode.MESSAGE_ILLEGAL,
        )
    return int(text)


def is_timed(properties: dict[str, str]) -> bool:
    """Whether a delivery time is asked for."""
    return any(name in properties for name in TIMER_PROPERTIES)


def _remember(properties: dict[str, str], topic: str, queue_id: int) -> None:
    properties["REAL_TOPIC"] = topic
    properties["REAL_QID"] = str(queue_id)
