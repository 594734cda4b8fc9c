"""Administration: topics (17, 18, 215, 21, 351), groups (200, 225, 201, 352, 207), settings (25, 26), state (43, 45).

The response to the creation of a topic is sent when ``topics.json`` is written and all reachable name servers know the
topic, so the client can use it at once. Changes of groups also wait for their file. Settings take effect when
``broker.conf`` has them. If a file cannot be written, the response is SYSTEM_ERROR.
Corresponds to org.apache.rocketmq.broker.processor.AdminBrokerProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.broker.service import BrokerService
from spark_rocket.broker.state.config import shown_text
from spark_rocket.broker.state.config_files import change_properties
from spark_rocket.broker.state.topics import alter_attributes
from spark_rocket.errors import ConfigError, ProtocolError, RefusedError
from spark_rocket.model import group_problem, topic_problem
from spark_rocket.protocol.java_properties import render_properties
from spark_rocket.protocol.setting import DYNAMIC_SETTINGS, SettingsUpdate
from spark_rocket.protocol.wire.bodies.config import (
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
)
from spark_rocket.protocol.wire.bodies.route import MAX_QUEUES
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
)
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.protocol.wire.request_limits import body_of
from spark_rocket.remoting.server.channel import Channel

_log = logging.getLogger(__name__)

_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_RETRY_POLICIES = ("EXPONENTIAL", "CUSTOMIZED")


class AdminProcessor(Processor):
    """Administration of topics, groups and settings."""

    def __init__(self, service: BrokerService) -> None:
        super().__init__(service)
        self._changing = asyncio.Lock()

    # --- topics -------------------------------------------------------------------------------------------------

    @answers(RequestCode.UPDATE_AND_CREATE_TOPIC)
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
        return self._when_settled(channel, request, [header.topic])

    @answers(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    def create_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        topics = body_of(request, CreateTopicListRequestBody).topic_config_list
        for topic in topics:
            attributes = ",".join(f"+{name.lstrip('+')}={value}" for name, value in topic.attributes.items())
            self._check_topic(topic, attributes)
        self._put_topics(topics)
        names = [topic.topic_name for topic in topics]
        return self._when_settled(channel, request, names)

    def _when_settled(
        self, channel: Channel, request: RemotingCommand, topics: Sequence[str] = (), files: Sequence[str] = ()
    ) -> RemotingCommand | None:
        if request.is_oneway:
            return None
        return self._service.when_settled(channel, RemotingCommand.response(request), topics, files=files)

    def _put_topics(self, topics: Sequence[TopicConfig]) -> None:
        self._service.topics.check_fits({topic.topic_name: topic for topic in topics})
        for topic in topics:
            if self._service.topics.get(topic.topic_name) != topic:
                self._service.topics.put(topic)

    def _check_topic(self, topic: TopicConfig, attributes: str | None) -> None:
        """Raise RefusedError for an invalid topic; set the resulting attributes of a valid one."""
        name = topic.topic_name
        problem = topic_problem(name)
        if problem is None and self._service.topics.is_system(name):
            problem = f"The topic[{name}] is conflict with system topic."
        for what, queues in (("readQueueNums", topic.read_queue_nums), ("writeQueueNums", topic.write_queue_nums)):
            if not 0 <= queues <= MAX_QUEUES:
                problem = problem or f"Invalid {what} {queues} of topic {name}: use 0 to {MAX_QUEUES}."
        if not 0 <= topic.perm <= 15:
            problem = problem or f"Invalid perm {topic.perm} of topic {name}: use a combination of 1, 2, 4 and 8."
        if topic.topic_filter_type not in _FILTER_TYPES:
            problem = problem or f"Invalid topicFilterType of topic {name}: use {' or '.join(_FILTER_TYPES)}."
        problem = problem or _int_problem(topicSysFlag=topic.topic_sys_flag)
        known = self._service.topics.get(name)
        try:
            topic.attributes = alter_attributes(known.attributes if known else {}, attributes, create=known is None)
        except ValueError as error:
            problem = problem or str(error)
        if problem is not None:
            raise RefusedError(problem, ResponseCode.INVALID_PARAMETER)
        if topic.attributes.get("message.type") == "MIXED" and not self._service.config.enable_mixed_message_type:
            raise RefusedError(
                "MIXED message type is not supported.",
                ResponseCode.SYSTEM_ERROR,
                remedy="Set enableMixedMessageType=true at the broker, or omit the attribute to allow all types.",
            )

    @answers(RequestCode.DELETE_TOPIC_IN_BROKER)
    def delete_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        topic = DeleteTopicRequestHeader.from_ext(request.ext_fields).topic
        if not topic or topic.isspace():
            raise RefusedError("The specified topic is blank.", ResponseCode.INVALID_PARAMETER)
        if self._service.topics.is_system(topic):
            raise RefusedError(f"The topic[{topic}] is conflict with system topic.", ResponseCode.INVALID_PARAMETER)
        self._service.delete_topic(topic)
        return self._when_settled(channel, request, [topic], ["offsets"])

    @answers(RequestCode.GET_ALL_TOPIC_CONFIG)
    def all_topics(self, channel: Channel, request: RemotingCommand) -> None:
        topics, header = self._service.topics, GetAllTopicConfigRequestHeader.from_ext(request.ext_fields)
        is_paged = "topicSeq" in request.ext_fields
        snapshot = partial(topics.page, header.topic_seq, header.max_topic_num) if is_paged else topics.snapshot
        ext = {"totalTopicNum": str(len(topics.table))}
        self.answer_in_steps(channel, request, _encoded(request, ext, snapshot))

    @answers(RequestCode.GET_TOPIC_CONFIG)
    def topic_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetTopicConfigRequestHeader.from_ext(request.ext_fields)
        topic = self._service.topics.get(header.topic)
        if topic is None:
            raise RefusedError(f"No topic in this broker. topic: {header.topic}", ResponseCode.TOPIC_NOT_EXIST)
        return RemotingCommand.response(request, body=dumps_fastjson(topic.to_value()))

    # --- groups -------------------------------------------------------------------------------------------------

    @answers(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def create_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        self._put_groups([body_of(request, SubscriptionGroupConfig)])
        return self._when_settled(channel, request, files=["groups"])

    @answers(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def create_groups(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        self._put_groups(body_of(request, SubscriptionGroupList).group_config_list)
        return self._when_settled(channel, request, files=["groups"])

    def _put_groups(self, groups: Sequence[SubscriptionGroupConfig]) -> None:
        for group in groups:
            _check_group(group)
        for group in groups:
            known = self._service.groups.get(group.group_name)
            group.attributes = _altered(known.attributes if known else {}, group.attributes)
        self._service.groups.check_fits({group.group_name: group for group in groups})
        for group in groups:
            if self._service.groups.get(group.group_name) != group:
                self._service.groups.put(group)

    @answers(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def all_groups(self, channel: Channel, request: RemotingCommand) -> None:
        groups, header = self._service.groups, GetAllSubscriptionGroupRequestHeader.from_ext(request.ext_fields)
        is_paged = "groupSeq" in request.ext_fields
        snapshot = partial(groups.page, header.group_seq, header.max_group_num) if is_paged else groups.snapshot
        ext = {"totalGroupNum": str(len(groups.table))}
        self.answer_in_steps(channel, request, _encoded(request, ext, snapshot))

    @answers(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def group_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetSubscriptionGroupConfigRequestHeader.from_ext(request.ext_fields)
        group = self._service.groups.get(header.group)
        if group is None:
            raise RefusedError(
                f"No group in this broker. group: {header.group}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            )
        return RemotingCommand.response(request, body=group.to_json())

    @answers(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = DeleteSubscriptionGroupRequestHeader.from_ext(request.ext_fields)
        self._service.groups.delete(header.group_name)
        self._service.stats.forget_group(header.group_name)
        clean = header.clean_offset or request.ext_fields.get("removeOffset") == "true"
        if clean:
            self._service.offsets.remove_group(header.group_name)
            self._service.order.remove_group(header.group_name)
        return self._when_settled(channel, request, files=["groups", "offsets"] if clean else ["groups"])

    # --- settings and state -------------------------------------------------------------------------------------

    @answers(RequestCode.UPDATE_BROKER_CONFIG)
    def update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Change settings; respond when broker.conf is on disk. If writing it fails, nothing is changed."""
        try:
            update = self._service.config.parse_update(bytes(request.body).decode("utf-8"))
        except UnicodeDecodeError:
            raise RefusedError("the settings are not valid UTF-8", ResponseCode.SYSTEM_ERROR) from None
        except ConfigError as error:
            raise _refusal(error) from None
        file, values = self._service.config.source, update.to_file()
        if file is None or not values:
            return self._settings_changed(channel, request, update)

        async def write() -> RemotingCommand:
            try:
                async with self._changing:
                    await asyncio.to_thread(change_properties, file, values)
                    return self._settings_changed(channel, request, update)
            except ConfigError as error:
                raise _refusal(error) from None

        self.answer_later(channel, request, write())
        return None

    def _settings_changed(self, channel: Channel, request: RemotingCommand, update: SettingsUpdate) -> RemotingCommand:
        config = self._service.config
        permission = config.broker_permission
        warnings = config.apply(update)
        if config.broker_permission != permission:
            self._service.topics.next_version()
        for warning in warnings:
            _log.warning("%s", warning)
        self._service.settings_changed()
        _log.info("settings changed by %s: %s", channel.remote_addr, shown_text(bytes(request.body).decode("utf-8")))
        if update.values and config.source is None:
            warnings.append("This broker was started without a broker.conf: the change is lost on restart.")
        return RemotingCommand.response(request, 0, " ".join(warnings) or None)

    @answers(RequestCode.GET_BROKER_CONFIG)
    def get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        version = self._service.topics.data_version
        config = self._service.config
        ext = {
            "version": dumps_fastjson(version.to_value()).decode(),
            DYNAMIC_SETTINGS: ",".join(config.dynamic_names()),
        }
        # mqadmin's exportConfigs fails if one of these is missing.
        wanted = {"filterServerNums": "0", "useTLS": "false" if config.client_tls() is None else "true"}
        text = render_properties(list({**wanted, **dict(config.to_properties())}.items()))
        return RemotingCommand.response(request, 0, None, ext, text.encode())

    @answers(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired_log(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        retention = self._service.store.retention
        retention.delete_expired()
        retention.run(self._service.clock())
        return RemotingCommand.response(request)

    @answers(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    def clean_expired_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Trim the consume queues. Unlike Apache's broker, keep empty queues, so that offsets never restart at 0."""
        self._service.store.retention.trim_again()
        return RemotingCommand.response(request)

    @answers(RequestCode.GET_ALL_CONSUMER_OFFSET)
    def all_offsets(self, channel: Channel, request: RemotingCommand) -> None:
        async def answer() -> RemotingCommand:
            snapshot = await self._service.offsets.snapshot_in_steps()
            return await _encoded(request, None, lambda: snapshot)

        self.answer_in_steps(channel, request, answer())

    @answers(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_delay_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=dumps_fastjson(self._service.schedule.snapshot()))

    @answers(RequestCode.GET_TIMER_CHECK_POINT)
    def timer_check_point(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        timer = self._service.timer
        if timer is None:
            raise RefusedError(
                "this broker has no timer",
                ResponseCode.SYSTEM_ERROR,
                remedy="Send the request to a master with timerWheelEnable=true.",
            )
        return RemotingCommand.response(request, body=timer.checkpoint())


async def _encoded(
    request: RemotingCommand, ext: dict[str, str] | None, snapshot: Callable[[], object]
) -> RemotingCommand:
    """Respond with a snapshot that any thread may take; taken and encoded on a worker thread."""
    body = await asyncio.to_thread(lambda: dumps_fastjson(snapshot()))
    return RemotingCommand.response(request, 0, None, ext, body)


def _refusal(error: ConfigError) -> RefusedError:
    return RefusedError(error.message, ResponseCode.SYSTEM_ERROR, remedy=error.remedy)


def _check_group(group: SubscriptionGroupConfig) -> None:
    """Raise RefusedError for an invalid group."""
    problem = group_problem(group.group_name)
    if not 0 <= group.retry_queue_nums <= MAX_QUEUES:
        problem = problem or f"Invalid retryQueueNums {group.retry_queue_nums}: use 0 to {MAX_QUEUES}."
    problem = problem or _int_problem(
        retryMaxTimes=group.retry_max_times,
        groupSysFlag=group.group_sys_flag,
        consumeTimeoutMinute=group.consume_timeout_minute,
    )
    policy = group.group_retry_policy
    if policy is not None and (not isinstance(policy, dict) or policy.get("type") not in _RETRY_POLICIES):
        problem = problem or f"Invalid type of groupRetryPolicy: use {' or '.join(_RETRY_POLICIES)}."
    try:
        dumps_fastjson([[group.to_value()]])  # nested as deep as in the file
    except ProtocolError as error:
        problem = problem or error.message
    if problem is not None:
        raise RefusedError(problem, ResponseCode.INVALID_PARAMETER)


def _altered(current: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """Apply ``+name`` and ``-name`` to a group's attributes; names without signs, as in a file, replace all."""
    if not all(name[:1] in ("+", "-") for name in given):
        return given
    removed = {name[1:] for name in given if name[0] == "-"}
    kept = {name: value for name, value in current.items() if name not in removed}
    return kept | {name[1:]: value for name, value in given.items() if name[0] == "+"}


def _int_problem(**numbers: int) -> str | None:
    """Describe the first number that does not fit into a Java int; None if all fit."""
    for name, number in numbers.items():
        if not -(1 << 31) <= number < 1 << 31:
            return f"Invalid {name} {number}: use a 32-bit integer."
    return None
