"""Which typed header each request code has.

Thread-safety: a constant. Corresponds to the RequestHeader classes' own RocketMQAction annotations.
"""

from __future__ import annotations

from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import admin, consumer, namesrv, producer
from spark_rocket.protocol.wire.headers.base import Header

REQUEST_HEADERS: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE: producer.SendMessageRequestHeader,
    RequestCode.SEND_REPLY_MESSAGE: producer.SendMessageRequestHeader,
    RequestCode.END_TRANSACTION: producer.EndTransactionRequestHeader,
    RequestCode.CHECK_TRANSACTION_STATE: producer.CheckTransactionStateRequestHeader,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: producer.ReplyMessageRequestHeader,
    RequestCode.RECALL_MESSAGE: producer.RecallMessageRequestHeader,
    RequestCode.UNREGISTER_CLIENT: producer.UnregisterClientRequestHeader,
    RequestCode.PULL_MESSAGE: consumer.PullMessageRequestHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: consumer.QueryConsumerOffsetRequestHeader,
    RequestCode.UPDATE_CONSUMER_OFFSET: consumer.UpdateConsumerOffsetRequestHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: consumer.SearchOffsetRequestHeader,
    RequestCode.GET_MAX_OFFSET: consumer.GetMaxOffsetRequestHeader,
    RequestCode.GET_MIN_OFFSET: consumer.GetMinOffsetRequestHeader,
    RequestCode.GET_EARLIEST_MSG_STORETIME: consumer.GetEarliestMsgStoretimeRequestHeader,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer.GetConsumerListByGroupRequestHeader,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: consumer.NotifyConsumerIdsChangedRequestHeader,
    RequestCode.CONSUMER_SEND_MSG_BACK: consumer.ConsumerSendMsgBackRequestHeader,
    RequestCode.POP_MESSAGE: consumer.PopMessageRequestHeader,
    RequestCode.ACK_MESSAGE: consumer.AckMessageRequestHeader,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: consumer.ChangeInvisibleTimeRequestHeader,
    RequestCode.PEEK_MESSAGE: consumer.PeekMessageRequestHeader,
    RequestCode.NOTIFICATION: consumer.NotificationRequestHeader,
    RequestCode.POLLING_INFO: consumer.PollingInfoRequestHeader,
    RequestCode.REGISTER_BROKER: namesrv.RegisterBrokerRequestHeader,
    RequestCode.UNREGISTER_BROKER: namesrv.UnRegisterBrokerRequestHeader,
    RequestCode.BROKER_HEARTBEAT: namesrv.BrokerHeartbeatRequestHeader,
    RequestCode.QUERY_DATA_VERSION: namesrv.QueryDataVersionRequestHeader,
    RequestCode.GET_BROKER_MEMBER_GROUP: namesrv.GetBrokerMemberGroupRequestHeader,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: namesrv.GetRouteInfoRequestHeader,
    RequestCode.GET_TOPICS_BY_CLUSTER: namesrv.GetTopicsByClusterRequestHeader,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: namesrv.RegisterTopicRequestHeader,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: namesrv.DeleteTopicFromNamesrvRequestHeader,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: namesrv.WipeWritePermOfBrokerRequestHeader,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: namesrv.AddWritePermOfBrokerRequestHeader,
    RequestCode.PUT_KV_CONFIG: namesrv.PutKVConfigRequestHeader,
    RequestCode.GET_KV_CONFIG: namesrv.GetKVConfigRequestHeader,
    RequestCode.DELETE_KV_CONFIG: namesrv.DeleteKVConfigRequestHeader,
    RequestCode.GET_KVLIST_BY_NAMESPACE: namesrv.GetKVListByNamespaceRequestHeader,
    RequestCode.UPDATE_AND_CREATE_TOPIC: admin.CreateTopicRequestHeader,
    RequestCode.DELETE_TOPIC_IN_BROKER: admin.DeleteTopicRequestHeader,
    RequestCode.GET_ALL_TOPIC_CONFIG: admin.GetAllTopicConfigRequestHeader,
    RequestCode.GET_TOPIC_CONFIG: admin.GetTopicConfigRequestHeader,
    RequestCode.GET_TOPIC_STATS_INFO: admin.GetTopicStatsInfoRequestHeader,
    RequestCode.QUERY_MESSAGE: admin.QueryMessageRequestHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: admin.ViewMessageRequestHeader,
    RequestCode.GET_CONSUME_STATS: admin.GetConsumeStatsRequestHeader,
    RequestCode.GET_BROKER_CONSUME_STATS: admin.GetConsumeStatsInBrokerRequestHeader,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: admin.GetConsumerConnectionListRequestHeader,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: admin.GetProducerConnectionListRequestHeader,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: admin.ResetOffsetRequestHeader,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: admin.DeleteSubscriptionGroupRequestHeader,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.GetAllSubscriptionGroupRequestHeader,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: admin.GetSubscriptionGroupConfigRequestHeader,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin.QueryTopicConsumeByWhoRequestHeader,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: admin.QueryTopicsByConsumerRequestHeader,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: admin.QuerySubscriptionByConsumerRequestHeader,
    RequestCode.QUERY_CONSUME_TIME_SPAN: admin.QueryConsumeTimeSpanRequestHeader,
    RequestCode.QUERY_CONSUME_QUEUE: admin.QueryConsumeQueueRequestHeader,
    RequestCode.CLONE_GROUP_OFFSET: admin.CloneGroupOffsetRequestHeader,
    RequestCode.GET_CONSUMER_RUNNING_INFO: admin.GetConsumerRunningInfoRequestHeader,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: admin.GetConsumerStatusRequestHeader,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: admin.ConsumeMessageDirectlyResultRequestHeader,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: admin.ResumeCheckHalfMessageRequestHeader,
    RequestCode.VIEW_BROKER_STATS_DATA: admin.ViewBrokerStatsDataRequestHeader,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: admin.UpdateGroupForbiddenRequestHeader,
    RequestCode.LITE_PULL_MESSAGE: consumer.PullMessageRequestHeader,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: admin.CreateAccessConfigRequestHeader,
    RequestCode.DELETE_ACL_CONFIG: admin.DeleteAccessConfigRequestHeader,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: admin.UpdateGlobalWhiteAddrsConfigRequestHeader,
}

_ONE_LETTER = {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}


def decode_request_header(command: RemotingCommand) -> Header | None:
    """The typed header of a request, or ``None`` when its code has none."""
    if command.code in _ONE_LETTER:
        return producer.SendMessageRequestHeader.from_ext_v2(command.ext_fields)
    header = REQUEST_HEADERS.get(command.code)
    return None if header is None else header.from_ext(command.ext_fields)
