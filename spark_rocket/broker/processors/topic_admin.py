"""Topics: create (17, 18), delete (215), list (21, 305), show (351).

The response to the creation of a topic is sent when ``topics.json`` is written and all reachable name servers know the
topic, so the client can use it at once. If the file cannot be written, the response is SYSTEM_ERROR.
Corresponds to the topics of org.apache.rocketmq.broker.processor.AdminBrokerProcessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from spark_rocket.broker.delivery.held_requests import HeldRequests
from spark_rocket.broker.pop.consumer_order_info_manager import ConsumerOrderInfoManager
from spark_rocket.broker.processors.processor import Processor, Steps, encoded, handles, handles_in_steps
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager, alter_attributes
from spark_rocket.broker.state.versioned_table import int_problem
from spark_rocket.errors import RefusedError
from spark_rocket.model import topic_problem
from spark_rocket.protocol.ids import retry_topic
from spark_rocket.protocol.requests import body_of
from spark_rocket.protocol.wire.bodies.config import CreateTopicListRequestBody, TopicConfig
from spark_rocket.protocol.wire.bodies.route import MAX_QUEUES, TopicList
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore

_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


@dataclass(eq=False, kw_only=True)
class TopicAdminProcessor(Processor):
    """Administration of topics."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicConfigManager
    offsets: ConsumerOffsetManager
    stats: BrokerStats
    responses: Responses
    order_info: ConsumerOrderInfoManager
    held_requests: HeldRequests

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def create_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = CreateTopicRequestHeader.from_ext(request.ext_fields)
        topic = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type or "SINGLE_TAG",
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        self._check_topic(topic, header.attributes)
        self._put_topics([topic])
        return self.responses.when_settled(channel, request, [header.topic])

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    def create_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        topics = body_of(request, CreateTopicListRequestBody).topic_config_list
        for topic in topics:
            attributes = ",".join(f"+{name.lstrip('+')}={value}" for name, value in topic.attributes.items())
            self._check_topic(topic, attributes)
        self._put_topics(topics)
        names = [topic.topic_name for topic in topics]
        return self.responses.when_settled(channel, request, names)

    def _put_topics(self, topics: Sequence[TopicConfig]) -> None:
        self.topics.check_fits({topic.topic_name: topic for topic in topics})
        for topic in topics:
            if self.topics.get(topic.topic_name) != topic:
                self.topics.put(topic)

    def _check_topic(self, topic: TopicConfig, attributes: str | None) -> None:
        """Raise RefusedError for an invalid topic; set the resulting attributes of a valid one."""
        name = topic.topic_name
        problem = topic_problem(name)
        if problem is None and self.topics.is_system(name):
            problem = f"The topic[{name}] is conflict with system topic."
        for what, queues in (("readQueueNums", topic.read_queue_nums), ("writeQueueNums", topic.write_queue_nums)):
            if not 0 <= queues <= MAX_QUEUES:
                problem = problem or f"Invalid {what} {queues} of topic {name}: use 0 to {MAX_QUEUES}."
        if not 0 <= topic.perm <= 15:
            problem = problem or f"Invalid perm {topic.perm} of topic {name}: use a combination of 1, 2, 4 and 8."
        if topic.topic_filter_type not in _FILTER_TYPES:
            problem = problem or f"Invalid topicFilterType of topic {name}: use {' or '.join(_FILTER_TYPES)}."
        problem = problem or int_problem(topicSysFlag=topic.topic_sys_flag)
        known = self.topics.get(name)
        try:
            topic.attributes = alter_attributes(known.attributes if known else {}, attributes, create=known is None)
        except ValueError as error:
            problem = problem or str(error)
        if problem is not None:
            raise RefusedError(problem, ResponseCode.INVALID_PARAMETER)
        if topic.attributes.get("message.type") == "MIXED" and not self.config.enable_mixed_message_type:
            raise RefusedError(
                "MIXED message type is not supported.",
                ResponseCode.SYSTEM_ERROR,
                remedy="Set enableMixedMessageType=true at the broker, or omit the attribute to allow all types.",
            )

    @handles(RequestCode.DELETE_TOPIC_IN_BROKER)
    def delete_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        topic = DeleteTopicRequestHeader.from_ext(request.ext_fields).topic
        if not topic or topic.isspace():
            raise RefusedError("The specified topic is blank.", ResponseCode.INVALID_PARAMETER)
        if self.topics.is_system(topic):
            raise RefusedError(f"The topic[{topic}] is conflict with system topic.", ResponseCode.INVALID_PARAMETER)
        self._delete(topic)
        return self.responses.when_settled(channel, request, [topic], files=["offsets"])

    def _delete(self, topic: str) -> None:
        """Delete a topic: settings, queues, offsets, and the retry topics of popped messages.

        RefusedError if the deletion cannot be written to disk; then the topic is unchanged.
        """
        for group in self.offsets.groups_of(topic):
            for v2 in (False, True):
                retry = retry_topic(topic, group, v2=v2)
                if retry in self.topics.table:
                    self._delete(retry)
        try:
            self.store.delete_topic(topic)
        except OSError as error:
            raise RefusedError(
                f"topic {topic} cannot be deleted: {error.strerror or error}", ResponseCode.SYSTEM_ERROR
            ) from error
        self.topics.delete(topic)
        self.offsets.remove_topic(topic)
        self.order_info.remove_topic(topic)
        self.stats.forget_topic(topic)
        self.held_requests.wake_topic(topic)

    @handles_in_steps(RequestCode.GET_ALL_TOPIC_CONFIG)
    def all_topics(self, channel: Channel, request: RemotingCommand) -> Steps:
        topics, header = self.topics, GetAllTopicConfigRequestHeader.from_ext(request.ext_fields)
        is_paged = "topicSeq" in request.ext_fields
        snapshot = partial(topics.page, header.topic_seq, header.max_topic_num) if is_paged else topics.snapshot
        ext = {"totalTopicNum": str(len(topics.table))}
        return encoded(request, ext, snapshot)

    @handles(RequestCode.GET_TOPIC_CONFIG)
    def topic_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetTopicConfigRequestHeader.from_ext(request.ext_fields)
        topic = self.topics.get(header.topic)
        if topic is None:
            raise RefusedError(f"No topic in this broker. topic: {header.topic}", ResponseCode.TOPIC_NOT_EXIST)
        return RemotingCommand.response(request, body=dumps_fastjson(topic.to_value()))

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=TopicList(sorted(self.topics.system)).to_json())
