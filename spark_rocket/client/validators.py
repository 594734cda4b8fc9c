"""Names and numbers that brokers would refuse, refused before anything is sent.

Pure. Corresponds to org.apache.rocketmq.client.Validators.
"""

from __future__ import annotations

import re

from spark_rocket.errors import ClientError

MAX_GROUP = 255
MAX_TOPIC = 127
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_REMEDY = "Use letters, digits, %, |, _ and -."


def check_group(group: str) -> str:
    """The group's name, if it is one."""
    if not group or group.isspace():
        raise ClientError("The group's name is blank.", remedy=_REMEDY)
    if not _LEGAL.match(group):
        raise ClientError(f"Group {group[:80]!r} has characters that no group may have.", remedy=_REMEDY)
    if len(group) > MAX_GROUP:
        raise ClientError(f"Group {group[:80]!r}… has {len(group)} characters, more than {MAX_GROUP}.", remedy=_REMEDY)
    return group


def check_topic(topic: str) -> str:
    """The topic's name, if it is one."""
    if not topic or topic.isspace():
        raise ClientError("The topic's name is blank.", remedy=_REMEDY)
    if not _LEGAL.match(topic):
        raise ClientError(f"Topic {topic[:80]!r} has characters that no topic may have.", remedy=_REMEDY)
    limit = MAX_GROUP if topic.startswith(("%RETRY%", "%DLQ%")) else MAX_TOPIC
    if len(topic) > limit:
        raise ClientError(f"Topic {topic[:80]!r}… has {len(topic)} characters, more than {limit}.", remedy=_REMEDY)
    return topic


def check_range(name: str, value: float, low: float, high: float) -> None:
    """A setting within its bounds."""
    if not low <= value <= high:
        raise ClientError(f"{name} is {value}, outside {low} to {high}.", remedy=f"Give {name} a value between them.")
