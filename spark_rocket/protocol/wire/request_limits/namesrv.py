"""The bounds of the name server's request codes.

Thread-safety: immutable values.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.wire.bodies import every as bodies
from spark_rocket.protocol.wire.bodies.register import MAX_FILTER_SERVERS, MAX_TOPICS
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.protocol.wire.headers import every as headers
from spark_rocket.protocol.wire.request_limits import state
from spark_rocket.protocol.wire.request_limits.limit import KIB, RawBody, RequestLimit

_NOTHING = RequestLimit(None)

_TABLE: Mapping[int, RequestLimit] = {
    # --- brokers
    Code.REGISTER_BROKER: RequestLimit(
        headers.RegisterBrokerRequestHeader,
        RawBody.REGISTRATION,
        max_body_bytes=MAX_FRAME_LENGTH,  # decoded by a worker if it is large (namesrv/large_registrations.py)
        max_entries={
            "topicConfigSerializeWrapper.topicConfigTable": MAX_TOPICS,
            "filterServerList": MAX_FILTER_SERVERS,
        },
        state=(state.BROKERS, state.REGISTERED_TOPICS),
    ),
    Code.UNREGISTER_BROKER: RequestLimit(headers.UnRegisterBrokerRequestHeader),
    Code.BROKER_HEARTBEAT: RequestLimit(headers.BrokerHeartbeatRequestHeader),
    Code.QUERY_DATA_VERSION: RequestLimit(headers.QueryDataVersionRequestHeader, bodies.DataVersion),
    Code.GET_BROKER_MEMBER_GROUP: RequestLimit(headers.GetBrokerMemberGroupRequestHeader),
    Code.GET_BROKER_CLUSTER_INFO: _NOTHING,
    Code.WIPE_WRITE_PERM_OF_BROKER: RequestLimit(headers.WipeWritePermOfBrokerRequestHeader),
    Code.ADD_WRITE_PERM_OF_BROKER: RequestLimit(headers.AddWritePermOfBrokerRequestHeader),
    # --- topics
    Code.GET_ROUTEINFO_BY_TOPIC: RequestLimit(headers.GetRouteInfoRequestHeader),
    Code.REGISTER_TOPIC_IN_NAMESRV: RequestLimit(
        headers.RegisterTopicRequestHeader,
        bodies.TopicRouteData,
        max_body_bytes=256 * KIB,
        max_entries={
            "queueDatas": 1_000,
            "brokerDatas": 1_000,
            "brokerDatas.brokerAddrs": 2_000,
            "filterServerTable": 1_000,
            "topicQueueMappingByBroker": 1_000,
        },
        state=(state.REGISTERED_TOPICS,),
    ),
    Code.DELETE_TOPIC_IN_NAMESRV: RequestLimit(headers.DeleteTopicFromNamesrvRequestHeader),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _NOTHING,
    Code.GET_TOPICS_BY_CLUSTER: RequestLimit(headers.GetTopicsByClusterRequestHeader),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: _NOTHING,
    Code.GET_UNIT_TOPIC_LIST: _NOTHING,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: _NOTHING,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _NOTHING,
    # --- configuration
    Code.PUT_KV_CONFIG: RequestLimit(  # a value of 64 KiB, see namesrv/kv_config.py
        headers.PutKVConfigRequestHeader, max_header_bytes=80 * KIB, state=(state.KV_ENTRIES,)
    ),
    Code.GET_KV_CONFIG: RequestLimit(headers.GetKVConfigRequestHeader),
    Code.DELETE_KV_CONFIG: RequestLimit(headers.DeleteKVConfigRequestHeader),
    Code.GET_KVLIST_BY_NAMESPACE: RequestLimit(headers.GetKVListByNamespaceRequestHeader),
    Code.UPDATE_NAMESRV_CONFIG: RequestLimit(None, RawBody.PROPERTIES, max_body_bytes=64 * KIB),
    Code.GET_NAMESRV_CONFIG: _NOTHING,
}

NAMESRV_LIMITS: Mapping[int, RequestLimit] = {int(code): limit for code, limit in _TABLE.items()}
"""Request code -> its bounds."""
