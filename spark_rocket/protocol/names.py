"""Names of topics and groups: those of RocketMQ's own, and what a legal name is.

Thread-safety: values and pure functions. Corresponds to org.apache.rocketmq.common.topic.TopicValidator and
common.MixAll.
"""

from __future__ import annotations

import re

AUTO_CREATE_TOPIC_KEY = "TBW102"
BENCHMARK_TOPIC = "BenchmarkTest"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SYSTEM_PREFIX = "rmq_sys_"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

MAX_TOPIC_LENGTH = 127
MAX_RETRY_TOPIC_LENGTH = 255
MAX_GROUP_LENGTH = 120

#: Topics that only the broker itself writes.
NOT_ALLOWED_SEND = frozenset(
    (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_EVENT)
)
SYSTEM_TOPICS = NOT_ALLOWED_SEND | {AUTO_CREATE_TOPIC_KEY, BENCHMARK_TOPIC, TRACE_TOPIC}
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def topic_problem(topic: str) -> str | None:
    """What is wrong with a topic's name, or None."""
    if not topic or topic.isspace():
        return "The specified topic is blank."
    if not _LEGAL_NAME.match(topic):
        return f"The specified topic[{topic}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    limit = MAX_RETRY_TOPIC_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_LENGTH
    if len(topic) > limit:
        return f"The specified topic[{topic[:40]}...] is longer than topic max length {limit}."
    return None


def group_problem(group: str) -> str | None:
    """What is wrong with a group's name, or None."""
    if not group or group.isspace():
        return "The specified group is blank."
    if not _LEGAL_NAME.match(group):
        return f"The specified group[{group}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > MAX_GROUP_LENGTH:
        return f"The specified group[{group[:40]}...] is longer than group max length {MAX_GROUP_LENGTH}."
    return None


def is_system_topic(topic: str) -> bool:
    """Whether the name is one that Apache keeps for itself."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)
