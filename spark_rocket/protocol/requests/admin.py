"""The rows of topics, groups and the broker itself, as tools and slaves ask for them."""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.requests import state
from spark_rocket.protocol.requests.needs import Action, Resource, cluster, every, fields, group, in_body, topic
from spark_rocket.protocol.requests.request_type import KIB, MIB, RawBody, RequestType, table
from spark_rocket.protocol.wire.bodies.config import (
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.headers.admin import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetAllTopicConfigRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)

_LARGE = (state.LARGE_RESPONSES,)
_GET = (cluster(Action.GET),)
_UPDATE = (cluster(Action.UPDATE),)


def _created_topics(body: CreateTopicListRequestBody) -> list[str]:
    return [config.topic_name for config in body.topic_config_list]


def _created_groups(body: SubscriptionGroupList) -> list[str]:
    return [config.group_name for config in body.group_config_list]


ADMIN: Mapping[int, RequestType] = table(
    # --- topics
    RequestType(
        code=Code.UPDATE_AND_CREATE_TOPIC,
        header=CreateTopicRequestHeader,
        max_entries={"attributes": 1_000},
        state=(state.TOPICS,),
        needs=(topic(Action.CREATE),),
    ),
    RequestType(
        code=Code.UPDATE_AND_CREATE_TOPIC_LIST,
        body=CreateTopicListRequestBody,
        max_body_bytes=MIB,
        max_entries={"topicConfigList": 1_000, "topicConfigList.attributes": 10_000},
        state=(state.TOPICS,),
        needs=(topic(Action.CREATE, where=in_body(CreateTopicListRequestBody, _created_topics)),),
    ),
    RequestType(code=Code.DELETE_TOPIC_IN_BROKER, header=DeleteTopicRequestHeader, needs=(topic(Action.DELETE),)),
    RequestType(
        code=Code.GET_ALL_TOPIC_CONFIG,
        header=GetAllTopicConfigRequestHeader,
        state=_LARGE,
        needs=(every(Resource.TOPIC, Action.LIST),),
    ),
    RequestType(code=Code.GET_TOPIC_CONFIG, header=GetTopicConfigRequestHeader, needs=(topic(Action.GET),)),
    RequestType(code=Code.CLEAN_UNUSED_TOPIC, state=_LARGE, needs=_UPDATE),
    RequestType(code=Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, needs=_GET),
    # --- groups
    RequestType(
        code=Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        body=SubscriptionGroupConfig,
        max_body_bytes=256 * KIB,
        max_entries={"groupRetryPolicy": 1_000, "subscriptionDataSet": 2_000, "attributes": 1_000},
        state=(state.CONSUMER_GROUPS,),
        needs=(group(Action.CREATE, where=in_body(SubscriptionGroupConfig, lambda body: [body.group_name])),),
    ),
    RequestType(
        code=Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        body=SubscriptionGroupList,
        max_body_bytes=MIB,
        max_entries={
            "groupConfigList": 200,
            "groupConfigList.groupRetryPolicy": 2_000,
            "groupConfigList.subscriptionDataSet": 2_000,
            "groupConfigList.attributes": 2_000,
        },
        state=(state.CONSUMER_GROUPS,),
        needs=(group(Action.CREATE, where=in_body(SubscriptionGroupList, _created_groups)),),
    ),
    RequestType(
        code=Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        header=GetAllSubscriptionGroupRequestHeader,
        state=_LARGE,
        needs=(every(Resource.GROUP, Action.LIST),),
    ),
    RequestType(
        code=Code.GET_SUBSCRIPTIONGROUP_CONFIG,
        header=GetSubscriptionGroupConfigRequestHeader,
        needs=(group(Action.GET, where=fields("group")),),
    ),
    RequestType(
        code=Code.DELETE_SUBSCRIPTIONGROUP,
        header=DeleteSubscriptionGroupRequestHeader,
        needs=(group(Action.DELETE, where=fields("groupName")),),
    ),
    # --- the broker
    RequestType(code=Code.UPDATE_BROKER_CONFIG, body=RawBody.PROPERTIES, max_body_bytes=32 * KIB, needs=_UPDATE),
    RequestType(code=Code.GET_BROKER_CONFIG, needs=_GET),
    RequestType(code=Code.DELETE_EXPIRED_COMMITLOG, needs=_UPDATE),
    RequestType(code=Code.CLEAN_EXPIRED_CONSUMEQUEUE, needs=_UPDATE),
    RequestType(code=Code.GET_ALL_DELAY_OFFSET, needs=_GET),
    RequestType(code=Code.GET_TIMER_CHECK_POINT, needs=_GET),
    RequestType(code=Code.GET_TIMER_METRICS, state=_LARGE, needs=_GET),
    RequestType(code=Code.VIEW_BROKER_STATS_DATA, header=ViewBrokerStatsDataRequestHeader, needs=_GET),
    RequestType(code=Code.GET_BROKER_HA_STATUS, needs=_GET),
    RequestType(code=Code.GET_BROKER_RUNTIME_INFO, needs=_GET),
)
"""Request code -> its row."""
