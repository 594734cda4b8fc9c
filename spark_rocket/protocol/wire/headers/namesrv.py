"""Requests of brokers, clients and tools to name servers.

Fields in the order required, then optional; see ``base`` for the encoding.
Corresponds to remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.protocol.wire.headers.base import Header, Int, Long


@dataclass(slots=True, eq=False, repr=False)
class RegisterBrokerRequestHeader(Header):
    """REGISTER_BROKER."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool | None = None
    body_crc32: Int = 0


@dataclass(slots=True, eq=False, repr=False)
class RegisterBrokerResponseHeader(Header):
    """Response to REGISTER_BROKER."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class UnRegisterBrokerRequestHeader(Header):
    """UNREGISTER_BROKER."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True, eq=False, repr=False)
class BrokerHeartbeatRequestHeader(Header):
    """BROKER_HEARTBEAT."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None


@dataclass(slots=True, eq=False, repr=False)
class QueryDataVersionRequestHeader(Header):
    """QUERY_DATA_VERSION."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True, eq=False, repr=False)
class QueryDataVersionResponseHeader(Header):
    """Response to QUERY_DATA_VERSION."""

    changed: bool


@dataclass(slots=True, eq=False, repr=False)
class GetBrokerMemberGroupRequestHeader(Header):
    """GET_BROKER_MEMBER_GROUP."""

    cluster_name: str
    broker_name: str


@dataclass(slots=True, eq=False, repr=False)
class GetTopicsByClusterRequestHeader(Header):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


@dataclass(slots=True, eq=False, repr=False)
class RegisterTopicRequestHeader(Header):
    """REGISTER_TOPIC_IN_NAMESRV."""

    topic: str


@dataclass(slots=True, eq=False, repr=False)
class DeleteTopicFromNamesrvRequestHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV."""

    topic: str
    cluster_name: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class WipeWritePermOfBrokerRequestHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER."""

    broker_name: str


@dataclass(slots=True, eq=False, repr=False)
class WipeWritePermOfBrokerResponseHeader(Header):
    """Response to WIPE_WRITE_PERM_OF_BROKER."""

    wipe_topic_count: Int


@dataclass(slots=True, eq=False, repr=False)
class AddWritePermOfBrokerRequestHeader(Header):
    """ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


@dataclass(slots=True, eq=False, repr=False)
class AddWritePermOfBrokerResponseHeader(Header):
    """Response to ADD_WRITE_PERM_OF_BROKER."""

    add_topic_count: Int


@dataclass(slots=True, eq=False, repr=False)
class PutKVConfigRequestHeader(Header):
    """PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


@dataclass(slots=True, eq=False, repr=False)
class GetKVConfigRequestHeader(Header):
    """GET_KV_CONFIG."""

    namespace: str
    key: str


@dataclass(slots=True, eq=False, repr=False)
class GetKVConfigResponseHeader(Header):
    """Response to GET_KV_CONFIG."""

    value: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class DeleteKVConfigRequestHeader(Header):
    """DELETE_KV_CONFIG."""

    namespace: str
    key: str
