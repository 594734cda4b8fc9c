"""The rows of clients and groups of clients: heartbeats, locks, what tools ask of running clients, and what brokers
send to clients.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.requests import state
from spark_rocket.protocol.requests.needs import Action, PlainAccess, cluster, fields, group, in_body, topic
from spark_rocket.protocol.requests.request_type import KIB, MIB, RawBody, RequestType, table
from spark_rocket.protocol.wire.bodies.assignment import LockBatchRequestBody
from spark_rocket.protocol.wire.bodies.client import CheckClientRequestBody, HeartbeatData
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.headers.admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetProducerConnectionListRequestHeader,
    ResetOffsetRequestHeader,
)
from spark_rocket.protocol.wire.headers.membership import (
    GetConsumerListByGroupRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from spark_rocket.protocol.wire.headers.producer import CheckTransactionStateRequestHeader, ReplyMessageRequestHeader

_LARGE = (state.LARGE_RESPONSES,)


def _lock(code: int) -> RequestType:
    return RequestType(
        code=code,
        body=LockBatchRequestBody,
        max_body_bytes=MIB,
        max_entries={"mqSet": 5_000},
        state=(state.QUEUE_LOCKS,),
        needs=(
            group(Action.SUB, where=in_body(LockBatchRequestBody, lambda body: [body.consumer_group])),
            topic(Action.SUB, where=in_body(LockBatchRequestBody, lambda body: [queue.topic for queue in body.mq_set])),
        ),
    )


def _subscribed(heartbeat: HeartbeatData) -> list[str]:
    return [data.topic for consumer in heartbeat.consumer_data_set for data in consumer.subscription_data_set]


CLIENTS: Mapping[int, RequestType] = table(
    RequestType(
        code=Code.HEART_BEAT,
        body=HeartbeatData,
        max_body_bytes=MIB,
        max_entries={
            "producerDataSet": 1_000,
            "consumerDataSet": 500,
            "consumerDataSet.subscriptionDataSet": 5_000,
            "consumerDataSet.subscriptionDataSet.tagsSet": 20_000,
            "consumerDataSet.subscriptionDataSet.codeSet": 20_000,
        },
        state=(state.PRODUCERS, state.CONSUMERS, state.SUBSCRIPTIONS, state.CONSUMER_GROUPS, state.TOPICS),
        needs=(
            group(
                Action.SUB,
                where=in_body(HeartbeatData, lambda body: [consumer.group_name for consumer in body.consumer_data_set]),
            ),
            topic(Action.SUB, where=in_body(HeartbeatData, _subscribed)),
        ),
    ),
    RequestType(code=Code.UNREGISTER_CLIENT, header=UnregisterClientRequestHeader, needs=(group(Action.SUB),)),
    RequestType(
        code=Code.GET_CONSUMER_LIST_BY_GROUP,
        header=GetConsumerListByGroupRequestHeader,
        needs=(group(Action.SUB, Action.GET),),
    ),
    RequestType(
        code=Code.GET_CONSUMER_CONNECTION_LIST,
        header=GetConsumerConnectionListRequestHeader,
        state=_LARGE,
        needs=(group(Action.GET),),
    ),
    RequestType(
        code=Code.GET_PRODUCER_CONNECTION_LIST,
        header=GetProducerConnectionListRequestHeader,
        state=_LARGE,
        needs=(cluster(Action.GET),),
    ),
    RequestType(code=Code.GET_ALL_PRODUCER_INFO, state=_LARGE, needs=(cluster(Action.GET),)),
    _lock(Code.LOCK_BATCH_MQ),
    _lock(Code.UNLOCK_BATCH_MQ),
    RequestType(
        code=Code.CHECK_CLIENT_CONFIG,
        body=CheckClientRequestBody,
        max_body_bytes=256 * KIB,
        max_entries={"subscriptionData.tagsSet": 10_000, "subscriptionData.codeSet": 10_000},
        needs=(),
    ),
    RequestType(
        code=Code.INVOKE_BROKER_TO_RESET_OFFSET,
        header=ResetOffsetRequestHeader,
        state=(state.LARGE_RESPONSES, state.CONSUMER_OFFSETS, state.GROUP_TOPICS),
        needs=(topic(Action.UPDATE), group(Action.UPDATE, where=fields("group"))),
    ),
    RequestType(
        code=Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        header=GetConsumerStatusRequestHeader,
        state=(state.RELAYED_REQUESTS,),
        needs=(topic(Action.GET), group(Action.GET, where=fields("group"))),
    ),
    RequestType(
        code=Code.GET_CONSUMER_RUNNING_INFO,
        header=GetConsumerRunningInfoRequestHeader,
        state=(state.RELAYED_REQUESTS,),
        needs=(group(Action.GET),),
    ),
    RequestType(
        code=Code.CONSUME_MESSAGE_DIRECTLY,
        header=ConsumeMessageDirectlyResultRequestHeader,
        state=(state.RELAYED_REQUESTS,),
        needs=(group(Action.SUB), topic(Action.SUB)),
        plain_exception=PlainAccess.ADMIN,
    ),
)
"""Request code -> its row."""

SENT_TO_CLIENTS: Mapping[int, RequestType] = table(
    RequestType(code=Code.CHECK_TRANSACTION_STATE, header=CheckTransactionStateRequestHeader, needs=()),
    RequestType(code=Code.NOTIFY_CONSUMER_IDS_CHANGED, header=NotifyConsumerIdsChangedRequestHeader, needs=()),
    RequestType(code=Code.RESET_CONSUMER_CLIENT_OFFSET, header=ResetOffsetRequestHeader, needs=()),
    RequestType(code=Code.GET_CONSUMER_STATUS_FROM_CLIENT, header=GetConsumerStatusRequestHeader, needs=()),
    RequestType(
        code=Code.PUSH_REPLY_MESSAGE_TO_CLIENT, header=ReplyMessageRequestHeader, body=RawBody.MESSAGE, needs=()
    ),
)
"""Request code -> its row. Clients have no bounds and no access control."""
