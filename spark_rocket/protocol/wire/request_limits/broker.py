"""The bounds of the broker's request codes.

One request of 1 MiB may cost 100 ms of CPU time and 32 MiB of memory. The bounds allow what Apache's clients and tools
send to a broker with 10,000 topics, and heartbeats with 500 consumer groups.

Thread-safety: immutable values.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.wire.bodies import every as bodies
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.protocol.wire.headers import every as headers
from spark_rocket.protocol.wire.request_limits import state
from spark_rocket.protocol.wire.request_limits.limit import KIB, MIB, RawBody, RequestLimit

# Message properties have at most 32,767 bytes; clients that escape JSON as ASCII send six for one.
_PROPERTIES_HEADER = 256 * KIB
# A filter expression has at most 65,536 characters (protocol/filter/tags.py).
_FILTER_HEADER = 256 * KIB
_ALL_HEADER = 256 * KIB  # of a list of names

_SEND = RequestLimit(
    headers.SendMessageRequestHeader,
    RawBody.MESSAGE_BATCH,
    max_header_bytes=_PROPERTIES_HEADER,
    max_body_bytes=MAX_FRAME_LENGTH,  # maxMessageSize is smaller and a setting; the processor checks it
    state=(state.TOPICS,),
)
_PULL = RequestLimit(
    headers.PullMessageRequestHeader,
    max_header_bytes=_FILTER_HEADER,
    state=(state.HELD_PULLS, state.CONSUMER_GROUPS, state.CONSUMER_OFFSETS),
)
_REPLY = RequestLimit(
    headers.SendMessageRequestHeader,
    RawBody.MESSAGE,
    max_header_bytes=_PROPERTIES_HEADER,
    max_body_bytes=MAX_FRAME_LENGTH,
    state=(state.RELAYED_REQUESTS, state.TOPICS),
)
_LOCK = RequestLimit(
    None,
    bodies.LockBatchRequestBody,
    max_body_bytes=MIB,
    max_entries={"mqSet": 5_000},
    state=(state.QUEUE_LOCKS,),
)
_NOTHING = RequestLimit(None)
_LARGE = (state.LARGE_RESPONSES,)
_LARGE_OFFSETS = (state.LARGE_RESPONSES, state.CONSUMER_OFFSETS)
_TABLE = RequestLimit(None, state=_LARGE)

_MESSAGES: Mapping[int, RequestLimit] = {
    Code.SEND_MESSAGE: _SEND,
    Code.SEND_MESSAGE_V2: _SEND,
    Code.SEND_BATCH_MESSAGE: _SEND,
    Code.SEND_REPLY_MESSAGE: _REPLY,
    Code.SEND_REPLY_MESSAGE_V2: _REPLY,
    Code.CONSUMER_SEND_MSG_BACK: RequestLimit(
        headers.ConsumerSendMsgBackRequestHeader, state=(state.TOPICS, state.CONSUMER_GROUPS)
    ),
    Code.END_TRANSACTION: RequestLimit(headers.EndTransactionRequestHeader),
    Code.RESUME_CHECK_HALF_MESSAGE: RequestLimit(headers.ResumeCheckHalfMessageRequestHeader),
    Code.RECALL_MESSAGE: RequestLimit(headers.RecallMessageRequestHeader),
    Code.PULL_MESSAGE: _PULL,
    Code.LITE_PULL_MESSAGE: _PULL,
    Code.QUERY_MESSAGE: RequestLimit(headers.QueryMessageRequestHeader),
    Code.VIEW_MESSAGE_BY_ID: RequestLimit(headers.ViewMessageRequestHeader),
    Code.QUERY_CONSUME_QUEUE: RequestLimit(headers.QueryConsumeQueueRequestHeader, state=_LARGE),
}

_POPS: Mapping[int, RequestLimit] = {
    Code.POP_MESSAGE: RequestLimit(
        headers.PopMessageRequestHeader,
        max_header_bytes=_FILTER_HEADER,
        state=(state.HELD_POPS, state.CONSUMER_GROUPS, state.CONSUMER_OFFSETS),
    ),
    Code.NOTIFICATION: RequestLimit(
        headers.NotificationRequestHeader, max_header_bytes=_FILTER_HEADER, state=(state.HELD_POPS,)
    ),
    Code.PEEK_MESSAGE: RequestLimit(headers.PeekMessageRequestHeader, state=(state.CONSUMER_GROUPS,)),
    Code.POLLING_INFO: RequestLimit(headers.PollingInfoRequestHeader, state=(state.CONSUMER_GROUPS,)),
    Code.ACK_MESSAGE: RequestLimit(headers.AckMessageRequestHeader, state=(state.ACKS,)),
    Code.BATCH_ACK_MESSAGE: RequestLimit(
        None,
        bodies.BatchAckMessageRequestBody,
        max_body_bytes=MIB,
        max_entries={"acks": 1_000, "acks.b": 4 * MIB},
        state=(state.ACKS,),
    ),
    Code.CHANGE_MESSAGE_INVISIBLETIME: RequestLimit(headers.ChangeInvisibleTimeRequestHeader, state=(state.ACKS,)),
}

_CLIENTS: Mapping[int, RequestLimit] = {
    Code.HEART_BEAT: RequestLimit(
        None,
        bodies.HeartbeatData,
        max_body_bytes=MIB,
        max_entries={
            "producerDataSet": 1_000,
            "consumerDataSet": 500,
            "consumerDataSet.subscriptionDataSet": 5_000,
            "consumerDataSet.subscriptionDataSet.tagsSet": 20_000,
            "consumerDataSet.subscriptionDataSet.codeSet": 20_000,
        },
        state=(state.PRODUCERS, state.CONSUMERS, state.SUBSCRIPTIONS, state.CONSUMER_GROUPS, state.TOPICS),
    ),
    Code.UNREGISTER_CLIENT: RequestLimit(headers.UnregisterClientRequestHeader),
    Code.GET_CONSUMER_LIST_BY_GROUP: RequestLimit(headers.GetConsumerListByGroupRequestHeader),
    Code.GET_CONSUMER_CONNECTION_LIST: RequestLimit(headers.GetConsumerConnectionListRequestHeader, state=_LARGE),
    Code.GET_PRODUCER_CONNECTION_LIST: RequestLimit(headers.GetProducerConnectionListRequestHeader, state=_LARGE),
    Code.GET_ALL_PRODUCER_INFO: _TABLE,
    Code.LOCK_BATCH_MQ: _LOCK,
    Code.UNLOCK_BATCH_MQ: _LOCK,
    Code.CHECK_CLIENT_CONFIG: RequestLimit(
        None,
        bodies.CheckClientRequestBody,
        max_body_bytes=256 * KIB,
        max_entries={"subscriptionData.tagsSet": 10_000, "subscriptionData.codeSet": 10_000},
    ),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: RequestLimit(headers.ResetOffsetRequestHeader, state=_LARGE_OFFSETS),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: RequestLimit(
        headers.GetConsumerStatusRequestHeader, state=(state.RELAYED_REQUESTS,)
    ),
    Code.GET_CONSUMER_RUNNING_INFO: RequestLimit(
        headers.GetConsumerRunningInfoRequestHeader, state=(state.RELAYED_REQUESTS,)
    ),
    Code.CONSUME_MESSAGE_DIRECTLY: RequestLimit(
        headers.ConsumeMessageDirectlyResultRequestHeader, state=(state.RELAYED_REQUESTS,)
    ),
    Code.QUERY_ASSIGNMENT: RequestLimit(
        None, bodies.QueryAssignmentRequestBody, max_body_bytes=64 * KIB, state=(state.ASSIGNMENT_ROUTES,)
    ),
    Code.SET_MESSAGE_REQUEST_MODE: RequestLimit(
        None, bodies.SetMessageRequestModeRequestBody, max_body_bytes=64 * KIB, state=(state.REQUEST_MODES,)
    ),
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _TABLE,
}

_OFFSETS: Mapping[int, RequestLimit] = {
    Code.QUERY_CONSUMER_OFFSET: RequestLimit(headers.QueryConsumerOffsetRequestHeader),
    Code.UPDATE_CONSUMER_OFFSET: RequestLimit(
        headers.UpdateConsumerOffsetRequestHeader, state=(state.CONSUMER_OFFSETS, state.CONSUMER_GROUPS)
    ),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: RequestLimit(headers.SearchOffsetRequestHeader),
    Code.GET_MAX_OFFSET: RequestLimit(headers.GetMaxOffsetRequestHeader),
    Code.GET_MIN_OFFSET: RequestLimit(headers.GetMinOffsetRequestHeader),
    Code.GET_EARLIEST_MSG_STORETIME: RequestLimit(headers.GetEarliestMsgStoretimeRequestHeader),
    Code.GET_TOPIC_STATS_INFO: RequestLimit(headers.GetTopicStatsInfoRequestHeader, state=_LARGE),
    Code.GET_CONSUME_STATS: RequestLimit(
        headers.GetConsumeStatsRequestHeader,
        max_header_bytes=_ALL_HEADER,
        max_entries={"topicList": 1_000},
        state=_LARGE,
    ),
    Code.GET_BROKER_CONSUME_STATS: RequestLimit(headers.GetConsumeStatsInBrokerRequestHeader, state=_LARGE),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: RequestLimit(headers.QueryTopicConsumeByWhoRequestHeader),
    Code.QUERY_TOPICS_BY_CONSUMER: RequestLimit(headers.QueryTopicsByConsumerRequestHeader),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: RequestLimit(headers.QuerySubscriptionByConsumerRequestHeader),
    Code.QUERY_CONSUME_TIME_SPAN: RequestLimit(headers.QueryConsumeTimeSpanRequestHeader, state=_LARGE),
    Code.CLONE_GROUP_OFFSET: RequestLimit(headers.CloneGroupOffsetRequestHeader, state=_LARGE_OFFSETS),
    Code.GET_ALL_CONSUMER_OFFSET: _TABLE,
}

_ADMIN: Mapping[int, RequestLimit] = {
    Code.UPDATE_AND_CREATE_TOPIC: RequestLimit(
        headers.CreateTopicRequestHeader, max_entries={"attributes": 1_000}, state=(state.TOPICS,)
    ),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: RequestLimit(
        None,
        bodies.CreateTopicListRequestBody,
        max_body_bytes=MIB,
        max_entries={"topicConfigList": 1_000, "topicConfigList.attributes": 10_000},
        state=(state.TOPICS,),
    ),
    Code.DELETE_TOPIC_IN_BROKER: RequestLimit(headers.DeleteTopicRequestHeader),
    Code.GET_ALL_TOPIC_CONFIG: RequestLimit(headers.GetAllTopicConfigRequestHeader, state=_LARGE),
    Code.GET_TOPIC_CONFIG: RequestLimit(headers.GetTopicConfigRequestHeader),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: RequestLimit(
        None,
        bodies.SubscriptionGroupConfig,
        max_body_bytes=256 * KIB,
        max_entries={"groupRetryPolicy": 1_000, "subscriptionDataSet": 2_000, "attributes": 1_000},
        state=(state.CONSUMER_GROUPS,),
    ),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: RequestLimit(
        None,
        bodies.SubscriptionGroupList,
        max_body_bytes=MIB,
        max_entries={
            "groupConfigList": 200,
            "groupConfigList.groupRetryPolicy": 2_000,
            "groupConfigList.subscriptionDataSet": 2_000,
            "groupConfigList.attributes": 2_000,
        },
        state=(state.CONSUMER_GROUPS,),
    ),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: RequestLimit(headers.GetAllSubscriptionGroupRequestHeader, state=_LARGE),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: RequestLimit(headers.GetSubscriptionGroupConfigRequestHeader),
    Code.DELETE_SUBSCRIPTIONGROUP: RequestLimit(headers.DeleteSubscriptionGroupRequestHeader),
    Code.UPDATE_BROKER_CONFIG: RequestLimit(None, RawBody.PROPERTIES, max_body_bytes=32 * KIB),
    Code.GET_BROKER_CONFIG: _NOTHING,
    Code.DELETE_EXPIRED_COMMITLOG: _NOTHING,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _NOTHING,
    Code.CLEAN_UNUSED_TOPIC: _TABLE,
    Code.GET_ALL_DELAY_OFFSET: _NOTHING,
    Code.GET_TIMER_CHECK_POINT: _NOTHING,
    Code.GET_TIMER_METRICS: _TABLE,
    Code.VIEW_BROKER_STATS_DATA: RequestLimit(headers.ViewBrokerStatsDataRequestHeader),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _NOTHING,
    Code.GET_BROKER_HA_STATUS: _NOTHING,
    Code.GET_BROKER_RUNTIME_INFO: _NOTHING,
}

_ACCOUNTS: Mapping[int, RequestLimit] = {
    Code.UPDATE_AND_CREATE_ACL_CONFIG: RequestLimit(
        headers.CreateAccessConfigRequestHeader,
        max_header_bytes=_ALL_HEADER,
        max_entries={"whiteRemoteAddress": 1_000, "topicPerms": 2_000, "groupPerms": 2_000},
    ),
    Code.DELETE_ACL_CONFIG: RequestLimit(headers.DeleteAccessConfigRequestHeader),
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: RequestLimit(
        headers.UpdateGlobalWhiteAddrsConfigRequestHeader,
        max_header_bytes=_ALL_HEADER,
        max_entries={"globalWhiteAddrs": 2_000},
    ),
    Code.GET_BROKER_CLUSTER_ACL_INFO: _NOTHING,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: _NOTHING,
}

# A slave refuses these (broker/processors/refusals.py); a master has no handler for them.
_REFUSED: Mapping[int, RequestLimit] = {Code.POP_ROLLBACK: _NOTHING}

BROKER_LIMITS: Mapping[int, RequestLimit] = {
    int(code): limit
    for family in (_MESSAGES, _POPS, _CLIENTS, _OFFSETS, _ADMIN, _ACCOUNTS, _REFUSED)
    for code, limit in family.items()
}
"""Request code -> its bounds."""
