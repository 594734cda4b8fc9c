"""Settings of groups: create (200, 225), delete (207), list (201), show (352).

The response to a change is sent when ``subscriptionGroup.json`` has it; SYSTEM_ERROR if the file cannot be written.
Corresponds to the groups of org.apache.rocketmq.broker.processor.AdminBrokerProcessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from spark_rocket.broker.pop.consumer_order_info_manager import ConsumerOrderInfoManager
from spark_rocket.broker.processors.processor import Processor, Steps, encoded, handles, handles_in_steps
from spark_rocket.broker.responses import Responses
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.versioned_table import int_problem
from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.model import group_problem
from spark_rocket.protocol.requests import body_of
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig, SubscriptionGroupList
from spark_rocket.protocol.wire.bodies.route import MAX_QUEUES
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from spark_rocket.protocol.wire.json import dumps_fastjson
from spark_rocket.remoting.server.channel import Channel

_RETRY_POLICIES = ("EXPONENTIAL", "CUSTOMIZED")


@dataclass(eq=False, kw_only=True)
class GroupAdminProcessor(Processor):
    """Administration of groups."""

    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    stats: BrokerStats
    responses: Responses
    order_info: ConsumerOrderInfoManager

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def create_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        self._put_groups([body_of(request, SubscriptionGroupConfig)])
        return self.responses.when_settled(channel, request, files=["groups"])

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def create_groups(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        self._put_groups(body_of(request, SubscriptionGroupList).group_config_list)
        return self.responses.when_settled(channel, request, files=["groups"])

    def _put_groups(self, groups: Sequence[SubscriptionGroupConfig]) -> None:
        for group in groups:
            _check_group(group)
        for group in groups:
            known = self.groups.get(group.group_name)
            group.attributes = _altered(known.attributes if known else {}, group.attributes)
        self.groups.check_fits({group.group_name: group for group in groups})
        for group in groups:
            if self.groups.get(group.group_name) != group:
                self.groups.put(group)

    @handles_in_steps(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def all_groups(self, channel: Channel, request: RemotingCommand) -> Steps:
        groups, header = self.groups, GetAllSubscriptionGroupRequestHeader.from_ext(request.ext_fields)
        is_paged = "groupSeq" in request.ext_fields
        snapshot = partial(groups.page, header.group_seq, header.max_group_num) if is_paged else groups.snapshot
        ext = {"totalGroupNum": str(len(groups.table))}
        return encoded(request, ext, snapshot)

    @handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def group_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = GetSubscriptionGroupConfigRequestHeader.from_ext(request.ext_fields)
        group = self.groups.get(header.group)
        if group is None:
            raise RefusedError(
                f"No group in this broker. group: {header.group}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            )
        return RemotingCommand.response(request, body=group.to_json())

    @handles(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        header = DeleteSubscriptionGroupRequestHeader.from_ext(request.ext_fields)
        self.groups.delete(header.group_name)
        self.stats.forget_group(header.group_name)
        clean = header.clean_offset or request.ext_fields.get("removeOffset") == "true"
        if clean:
            self.offsets.remove_group(header.group_name)
            self.order_info.remove_group(header.group_name)
        return self.responses.when_settled(channel, request, files=["groups", "offsets"] if clean else ["groups"])


def _check_group(group: SubscriptionGroupConfig) -> None:
    problem = group_problem(group.group_name)
    if not 0 <= group.retry_queue_nums <= MAX_QUEUES:
        problem = problem or f"Invalid retryQueueNums {group.retry_queue_nums}: use 0 to {MAX_QUEUES}."
    problem = problem or int_problem(
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
