"""Client-side checks of names and numbers that brokers would reject.

Pure. Corresponds to org.apache.rocketmq.client.Validators.
"""

from __future__ import annotations

from spark_rocket.errors import ClientError, IllegalNameError
from spark_rocket.model import NOT_ALLOWED_SEND, TIMER_TOPIC, is_legal_name, max_topic_length

MAX_GROUP_CHARACTERS = 255
_NOT_ALLOWED_SEND = NOT_ALLOWED_SEND - {TIMER_TOPIC}  # as in Validators; only the broker rejects the timer topic
_REMEDY = "Use letters, digits, %, |, _ and -."


def check_group(group: str) -> str:
    """Return the group name if it is valid."""
    _check_text("group", group)
    if not is_legal_name(group):
        raise IllegalNameError(f"Invalid characters in the group name {group[:80]!r}.", remedy=_REMEDY)
    if len(group) > MAX_GROUP_CHARACTERS:
        raise IllegalNameError(
            f"Group name {group[:80]!r}… is too long: {len(group)} characters, at most {MAX_GROUP_CHARACTERS}.",
            remedy=_REMEDY,
        )
    return group


def check_topic(topic: str) -> str:
    """Return the topic name if it is valid."""
    _check_text("topic", topic)
    if not is_legal_name(topic):
        raise IllegalNameError(f"Invalid characters in the topic name {topic[:80]!r}.", remedy=_REMEDY)
    limit = max_topic_length(topic)
    if len(topic) > limit:
        raise IllegalNameError(
            f"Topic name {topic[:80]!r}… is too long: {len(topic)} characters, at most {limit}.", remedy=_REMEDY
        )
    return topic


def _check_text(kind: str, name: object) -> None:
    if not name or (isinstance(name, str) and name.isspace()):
        raise IllegalNameError(f"The {kind} name is blank.", remedy=_REMEDY)
    if not isinstance(name, str):
        raise IllegalNameError(f"The {kind} name must be a string, not {type(name).__name__}.", remedy=_REMEDY)


def check_topic_to_send(topic: str) -> str:
    """Return the topic name if applications may send to the topic."""
    if check_topic(topic) in _NOT_ALLOWED_SEND:
        raise IllegalNameError(f"Topic {topic!r} is reserved for the broker.", remedy="Send to another topic.")
    return topic


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Check that a setting is within its range."""
    if not low <= value <= high:
        raise ClientError(f"{name} is out of range: {value}.", remedy=f"Set {name} to a value from {low} to {high}.")
