"""Names and numbers that brokers would refuse, refused before anything is sent.

Pure. Corresponds to org.apache.rocketmq.client.Validators.
"""

from __future__ import annotations

from spark_rocket.errors import ClientError, IllegalNameError
from spark_rocket.model import NOT_ALLOWED_SEND, TIMER_TOPIC, is_legal_name, max_topic_length

MAX_GROUP = 255
_NOT_ALLOWED_SEND = NOT_ALLOWED_SEND - {TIMER_TOPIC}  # as Validators; only the broker refuses the timer topic
_REMEDY = "Use letters, digits, %, |, _ and -."


def check_group(group: str) -> str:
    """The group's name, if it is one."""
    _check_text("group", group)
    if not is_legal_name(group):
        raise IllegalNameError(f"Group {group[:80]!r} has characters that no group may have.", remedy=_REMEDY)
    if len(group) > MAX_GROUP:
        raise IllegalNameError(
            f"Group {group[:80]!r}… has {len(group)} characters, more than {MAX_GROUP}.", remedy=_REMEDY
        )
    return group


def check_topic(topic: str) -> str:
    """The topic's name, if it is one."""
    _check_text("topic", topic)
    if not is_legal_name(topic):
        raise IllegalNameError(f"Topic {topic[:80]!r} has characters that no topic may have.", remedy=_REMEDY)
    limit = max_topic_length(topic)
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
    if check_topic(topic) in _NOT_ALLOWED_SEND:
        raise IllegalNameError(f"Topic {topic!r} is the broker's own.", remedy="Send to a topic of yours.")
    return topic


def check_range(name: str, value: float, low: float, high: float) -> None:
    """A setting within its bounds."""
    if not low <= value <= high:
        raise ClientError(f"{name} is {value}, outside {low} to {high}.", remedy=f"Give {name} a value between them.")
