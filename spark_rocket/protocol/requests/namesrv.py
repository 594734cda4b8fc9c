"""The rows of all requests to name servers, which have no accounts. The need of 105 is for proxies that serve it."""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.requests import state
from spark_rocket.protocol.requests.needs import Action, cluster, topic
from spark_rocket.protocol.requests.request_type import KIB, RawBody, RequestType, table
from spark_rocket.protocol.wire.bodies.config import DataVersion
from spark_rocket.protocol.wire.bodies.register import MAX_FILTER_SERVERS, MAX_TOPICS
from spark_rocket.protocol.wire.bodies.route import TopicRouteData
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.protocol.wire.headers.namesrv import (
    AddWritePermOfBrokerRequestHeader,
    BrokerHeartbeatRequestHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    GetKVConfigRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterTopicRequestHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)
from spark_rocket.protocol.wire.headers.routes import GetKVListByNamespaceRequestHeader, GetRouteInfoRequestHeader

_GET = (cluster(Action.GET),)
_UPDATE = (cluster(Action.UPDATE),)

NAMESRV_REQUESTS: Mapping[int, RequestType] = table(
    # --- brokers
    RequestType(
        code=Code.REGISTER_BROKER,
        header=RegisterBrokerRequestHeader,
        body=RawBody.REGISTRATION,
        max_body_bytes=MAX_FRAME_LENGTH,  # decoded by a worker if it is large (namesrv/large_registrations.py)
        max_entries={
            "topicConfigSerializeWrapper.topicConfigTable": MAX_TOPICS,
            "filterServerList": MAX_FILTER_SERVERS,
        },
        state=(state.BROKERS, state.REGISTERED_TOPICS),
        needs=_UPDATE,
    ),
    RequestType(code=Code.UNREGISTER_BROKER, header=UnRegisterBrokerRequestHeader, needs=_UPDATE),
    RequestType(code=Code.BROKER_HEARTBEAT, header=BrokerHeartbeatRequestHeader, needs=_UPDATE),
    RequestType(code=Code.QUERY_DATA_VERSION, header=QueryDataVersionRequestHeader, body=DataVersion, needs=_GET),
    RequestType(code=Code.GET_BROKER_MEMBER_GROUP, header=GetBrokerMemberGroupRequestHeader, needs=_GET),
    RequestType(code=Code.GET_BROKER_CLUSTER_INFO, needs=_GET),
    RequestType(code=Code.WIPE_WRITE_PERM_OF_BROKER, header=WipeWritePermOfBrokerRequestHeader, needs=_UPDATE),
    RequestType(code=Code.ADD_WRITE_PERM_OF_BROKER, header=AddWritePermOfBrokerRequestHeader, needs=_UPDATE),
    # --- topics
    RequestType(
        code=Code.GET_ROUTEINFO_BY_TOPIC,
        header=GetRouteInfoRequestHeader,
        needs=(topic(Action.PUB, Action.SUB, Action.GET),),
    ),
    RequestType(
        code=Code.REGISTER_TOPIC_IN_NAMESRV,
        header=RegisterTopicRequestHeader,
        body=TopicRouteData,
        max_body_bytes=256 * KIB,
        max_entries={
            "queueDatas": 1_000,
            "brokerDatas": 1_000,
            "brokerDatas.brokerAddrs": 2_000,
            "filterServerTable": 1_000,
            "topicQueueMappingByBroker": 1_000,
        },
        state=(state.REGISTERED_TOPICS,),
        needs=_UPDATE,
    ),
    RequestType(code=Code.DELETE_TOPIC_IN_NAMESRV, header=DeleteTopicFromNamesrvRequestHeader, needs=_UPDATE),
    RequestType(code=Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, needs=_GET),
    RequestType(code=Code.GET_TOPICS_BY_CLUSTER, header=GetTopicsByClusterRequestHeader, needs=_GET),
    RequestType(code=Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, needs=_GET),
    RequestType(code=Code.GET_UNIT_TOPIC_LIST, needs=_GET),
    RequestType(code=Code.GET_HAS_UNIT_SUB_TOPIC_LIST, needs=_GET),
    RequestType(code=Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, needs=_GET),
    # --- configuration
    RequestType(  # a value of 64 KiB, see namesrv/kv_config.py
        code=Code.PUT_KV_CONFIG,
        header=PutKVConfigRequestHeader,
        max_header_bytes=80 * KIB,
        state=(state.KV_ENTRIES,),
        needs=_UPDATE,
    ),
    RequestType(code=Code.GET_KV_CONFIG, header=GetKVConfigRequestHeader, needs=_GET),
    RequestType(code=Code.DELETE_KV_CONFIG, header=DeleteKVConfigRequestHeader, needs=_UPDATE),
    RequestType(code=Code.GET_KVLIST_BY_NAMESPACE, header=GetKVListByNamespaceRequestHeader, needs=_GET),
    RequestType(code=Code.UPDATE_NAMESRV_CONFIG, body=RawBody.PROPERTIES, max_body_bytes=64 * KIB, needs=_UPDATE),
    RequestType(code=Code.GET_NAMESRV_CONFIG, needs=_GET),
)
"""Request code -> its row."""
