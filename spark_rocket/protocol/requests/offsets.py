"""The rows of offsets: of groups, ends and times of queues, and statistics made of both."""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.requests import state
from spark_rocket.protocol.requests.needs import Action, PlainAccess, cluster, fields, group, topic
from spark_rocket.protocol.requests.request_type import KIB, RequestType, table
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.headers.admin import (
    CloneGroupOffsetRequestHeader,
    GetConsumeStatsInBrokerRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from spark_rocket.protocol.wire.headers.pull import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

_LARGE = (state.LARGE_RESPONSES,)
_GROUP = fields("group")
_GET_TOPIC = (topic(Action.GET),)

OFFSETS: Mapping[int, RequestType] = table(
    RequestType(
        code=Code.QUERY_CONSUMER_OFFSET,
        header=QueryConsumerOffsetRequestHeader,
        needs=(topic(Action.SUB, Action.GET), group(Action.SUB, Action.GET)),
        plain_exception=PlainAccess.ANY_ACCOUNT,
    ),
    RequestType(
        code=Code.UPDATE_CONSUMER_OFFSET,
        header=UpdateConsumerOffsetRequestHeader,
        state=(state.CONSUMER_OFFSETS, state.GROUP_TOPICS, state.CONSUMER_GROUPS),
        needs=(topic(Action.SUB, Action.UPDATE), group(Action.SUB, Action.UPDATE)),
    ),
    RequestType(code=Code.SEARCH_OFFSET_BY_TIMESTAMP, header=SearchOffsetRequestHeader, needs=_GET_TOPIC),
    RequestType(code=Code.GET_MAX_OFFSET, header=GetMaxOffsetRequestHeader, needs=_GET_TOPIC),
    RequestType(code=Code.GET_MIN_OFFSET, header=GetMinOffsetRequestHeader, needs=_GET_TOPIC),
    RequestType(code=Code.GET_EARLIEST_MSG_STORETIME, header=GetEarliestMsgStoretimeRequestHeader, needs=_GET_TOPIC),
    RequestType(code=Code.GET_TOPIC_STATS_INFO, header=GetTopicStatsInfoRequestHeader, state=_LARGE, needs=_GET_TOPIC),
    RequestType(
        code=Code.GET_CONSUME_STATS,
        header=GetConsumeStatsRequestHeader,
        max_header_bytes=256 * KIB,
        max_entries={"topicList": 1_000},
        state=_LARGE,
        needs=(
            group(Action.GET),
            topic(Action.GET),
            topic(Action.GET, where=fields("topicList", separator=";")),
        ),
    ),
    RequestType(
        code=Code.GET_BROKER_CONSUME_STATS,
        header=GetConsumeStatsInBrokerRequestHeader,
        state=_LARGE,
        needs=(cluster(Action.GET),),
    ),
    RequestType(code=Code.QUERY_TOPIC_CONSUME_BY_WHO, header=QueryTopicConsumeByWhoRequestHeader, needs=_GET_TOPIC),
    RequestType(
        code=Code.QUERY_TOPICS_BY_CONSUMER,
        header=QueryTopicsByConsumerRequestHeader,
        needs=(group(Action.GET, where=_GROUP),),
    ),
    RequestType(
        code=Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
        header=QuerySubscriptionByConsumerRequestHeader,
        needs=(group(Action.GET, where=_GROUP), topic(Action.GET)),
    ),
    RequestType(
        code=Code.QUERY_CONSUME_TIME_SPAN,
        header=QueryConsumeTimeSpanRequestHeader,
        state=_LARGE,
        needs=(topic(Action.GET), group(Action.GET, where=_GROUP)),
    ),
    RequestType(
        code=Code.CLONE_GROUP_OFFSET,
        header=CloneGroupOffsetRequestHeader,
        state=(state.LARGE_RESPONSES, state.CONSUMER_OFFSETS, state.GROUP_TOPICS),
        needs=(group(Action.UPDATE, where=fields("destGroup")), topic(Action.UPDATE)),
    ),
    RequestType(code=Code.GET_ALL_CONSUMER_OFFSET, state=_LARGE, needs=(cluster(Action.GET),)),
)
"""Request code -> its row."""
