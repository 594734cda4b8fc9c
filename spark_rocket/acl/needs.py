"""What names of topics need, whichever protocol names them.

Thread-safety: pure. Corresponds to PlainAccessResource.
"""

from __future__ import annotations

from spark_rocket.acl.rules import GROUP, SUB, TOPIC, Need
from spark_rocket.model import RETRY_PREFIX, TRACE_TOPIC

Needs = tuple[Need, ...]

_REPLY_SUFFIX = "_REPLY_TOPIC"


def need_of_topic(topic: str, permission: int) -> Need:
    """What a topic of this name needs: a retry topic is its group's."""
    if topic.startswith(RETRY_PREFIX):
        return (GROUP, topic[len(RETRY_PREFIX) :], SUB)
    return (TOPIC, topic, permission)


def for_all(topic: str) -> bool:
    """Whether everybody may send there: who may send a message may trace it, who got a request may reply."""
    return topic == TRACE_TOPIC or topic.endswith(_REPLY_SUFFIX)
