"""Names and numbers that brokers would refuse, refused before anything is sent.

Pure. Corresponds to org.apache.rocketmq.client.Validators.
"""

from __future__ import annotations

import re

from spark_rocket.errors import ClientError, IllegalNameError

MAX_GROUP = 255
MAX_TOPIC = 127
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
# What only brokers write to.
_NOT_TO_BE_SENT_TO = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
_REMEDY = "Use letters, digits, %, |, _ and -."


def check_group(group: str) -> str:
    """The group's name, if it is one."""
    _check_text("group", group)
    if not _LEGAL.match(group):
        raise IllegalNameError(f"Group {group[:80]!r} has characters that no group may have.", remedy=_REMEDY)
    if len(group) > MAX_GROUP:
        raise IllegalNameError(
            f"Group {group[:80]!r}… has {len(group)} characters, more than {MAX_GROUP}.", remedy=_REMEDY
        )
    return group


def check_topic(topic: str) -> str:
    """The topic's name, if it is one."""
    _check_text("topic", topic)
    if not _LEGAL.match(topic):
        raise IllegalNameError(f"Topic {topic[:80]!r} has characters that no topic may have.", remedy=_REMEDY)
    limit = MAX_GROUP if topic.startswith(("%RETRY%", "%DLQ%")) else MAX_TOPIC
    if len(topic) > limit:
        raise IllegalNameError(f"Topic {topic[:80]!r}… has {len(topic)} characters, more than {limit}.", remedy=_REMEDY)
    return topic


def _check_text(kind: str, name: object) -> None:
    if not name or (isinstance(name, str) and name.isspace()):
        raise IllegalNameError(f"The {kind}'s name is blank.", remedy=_REMEDY)
    if not isinstance(name, str):
        raise IllegalNameError(f"A {kind}'s name is a text, and no {type(name).__name__}.", remedy=_REMEDY)


def check_topic_to_send(topic: str) -> str:
    """The topic's name, if applications may send to it."""
    if check_topic(topic) in _NOT_TO_BE_SENT_TO:
        raise IllegalNameError(f"Topic {topic!r} is the broker's own.", remedy="Send to a topic of yours.")
    return topic


def check_range(name: str, value: float, low: float, high: float) -> None:
    """A setting within its bounds."""
    if not low <= value <= high:
        raise ClientError(f"{name} is {value}, outside {low} to {high}.", remedy=f"Give {name} a value between them.")
