"""The topics that messages are stored into: checks that do not depend on the message, cached for the fast path.

Refusals have the code and the order of Apache's broker in the same case.

Corresponds to AbstractSendMessageProcessor.{msgCheck, handleRetryAndDLQ, randomQueueId}.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_rocket.broker.settling_topics import SettlingTopics
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats, TopicCounts
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import SIMPLE_QUEUES, TopicConfigManager
from spark_rocket.errors import RefusedError
from spark_rocket.model import DLQ_PREFIX, NOT_ALLOWED_SEND, RETRY_PREFIX, topic_problem
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.codes import PERM_WRITE, SEE_FAQ, ResponseCode


class SendTarget:
    """A topic that has passed all checks that do not depend on the message."""

    __slots__ = ("counts", "is_retry", "queue_limit", "topic", "write_queues")

    def __init__(self, config: TopicConfig, counts: TopicCounts) -> None:
        self.counts = counts
        self.topic = config.topic_name
        self.is_retry = config.topic_name.startswith(RETRY_PREFIX)
        self.write_queues = config.write_queue_nums
        self.queue_limit = max(config.write_queue_nums, config.read_queue_nums)

    def choose_queue(self, queue_id: int) -> int:
        """The requested queue, or a random one if that is negative; RefusedError for an invalid queue."""
        if queue_id >= self.queue_limit:
            raise RefusedError(
                f"request queueId[{queue_id}] is illegal, topic:[{self.topic}] has {self.queue_limit} queues",
                ResponseCode.INVALID_PARAMETER,
            )
        if queue_id < 0:
            if not self.write_queues:
                raise RefusedError(
                    f"topic:[{self.topic}] has no queue to write to, its writeQueueNums is 0",
                    ResponseCode.INVALID_PARAMETER,
                )
            return random.randrange(self.write_queues)
        return queue_id


@dataclass(eq=False, kw_only=True)
class SendTargets:
    """The targets of one broker. ``cached``: targets whose checks depend neither on the clock nor on a setting."""

    config: BrokerConfig
    clock: Callable[[], int]
    host: str
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    stats: BrokerStats
    settling_topics: SettlingTopics
    cached: dict[str, SendTarget] = field(init=False, default_factory=dict)

    def forget(self, topic: str) -> None:
        self.cached.pop(topic, None)

    def clear(self) -> None:
        """Check all topics again: settings or topics have changed."""
        self.cached.clear()

    def find(self, topic: str, default_topic: str, wanted_queues: int) -> SendTarget:
        """The topic to store into, created if allowed; RefusedError if messages to it are not accepted."""
        target = self.cached.get(topic)
        if target is not None:
            return target
        config = self.config
        if self.clock() < config.start_accept_send_request_time_stamp:
            raise RefusedError(
                f"broker unable to service, until {_human_time(config.start_accept_send_request_time_stamp)}",
                ResponseCode.SYSTEM_ERROR,
            )
        known = self.topics.get(topic)
        if not config.broker_permission & PERM_WRITE and known is not None and known.order:
            raise RefusedError(f"the broker[{self.host}] sending message is forbidden", ResponseCode.NO_PERMISSION)
        problem = topic_problem(topic)
        if problem is not None:
            raise RefusedError(problem, ResponseCode.INVALID_PARAMETER)
        if topic in NOT_ALLOWED_SEND:
            raise RefusedError(f"Sending message to topic[{topic}] is forbidden.", ResponseCode.NO_PERMISSION)
        if known is None and topic.startswith(RETRY_PREFIX):  # no topic for a group that is not created
            self.groups.to_retry(self._group_of_retry_topic(topic[len(RETRY_PREFIX) :]))
        found = known or self.topics.auto_create(topic, default_topic, wanted_queues)
        if found is None:
            raise RefusedError(f"topic[{topic}] not exist, apply first please!{SEE_FAQ}", ResponseCode.TOPIC_NOT_EXIST)
        if found.attributes.get("queue.type", SIMPLE_QUEUES) != SIMPLE_QUEUES:  # in a topics.json of RocketMQ 5
            raise RefusedError(
                f"topic[{topic}] has queue.type={found.attributes['queue.type']}, which is not supported.",
                ResponseCode.NO_PERMISSION,
            )
        self.settling_topics.refuse_unsaved(found.topic_name)
        target = SendTarget(found, self.stats.topic(found.topic_name))
        if config.start_accept_send_request_time_stamp == 0 and not found.order:
            self.cached[topic] = target
        return target

    def dead_letters(self, topic: str, reconsume_times: int, max_reconsume_times: int | None) -> SendTarget | None:
        """The dead-letter topic for a message to this retry topic that has used up its retries; otherwise None."""
        group = self._group_of_retry_topic(topic[len(RETRY_PREFIX) :])
        settings = self.groups.to_retry(group)
        limit = settings.retry_max_times if max_reconsume_times is None else max_reconsume_times
        if reconsume_times < limit:
            return None
        self.stats.group(group, topic).dead_letters += 1
        dead = self.topics.ensure(DLQ_PREFIX + group)
        self.settling_topics.refuse_unsaved(dead.topic_name)
        return SendTarget(dead, self.stats.topic(dead.topic_name))

    def _group_of_retry_topic(self, name: str) -> str:
        """The group of a retry topic: the name is the group, or for POP ``group_topic`` or ``group+topic``.

        Apache's broker uses the latter as a group name, too, and creates such a group.
        """
        groups, topics = self.groups.table, self.topics.table
        if name not in groups:
            for at, character in enumerate(name):
                if character in "_+" and name[:at] in groups and name[at + 1 :] in topics:
                    return name[:at]
        return name


def check_size(config: BrokerConfig, body: bytes | bytearray | memoryview) -> None:
    if len(body) > config.store.max_message_size:
        raise RefusedError(
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{config.store.max_message_size}B, msg properties length limit 32KB.",
            ResponseCode.MESSAGE_ILLEGAL,
        )


def _human_time(timestamp_ms: int) -> str:
    """Local time with milliseconds, in Apache's format."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(timestamp_ms / 1000))},{timestamp_ms % 1000:03}"
