"""Data that brokers store in ``config/*.json`` and send to name servers and slaves: topics, groups, offsets.

Corresponds to common.TopicConfig, remoting.protocol.{DataVersion, subscription.SubscriptionGroupConfig} and the
SerializeWrapper classes of remoting.protocol.body.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.codes import PERM_READ, PERM_WRITE
from spark_rocket.protocol.wire.json import REQUEST_LIMITS, dumps_standard, loads_tolerant


@dataclass(slots=True, eq=False, repr=False)
class DataVersion(Body):
    """The version of a table: grows with each change. Compared as a whole; ``timestamp`` is the time in ms."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """Return the version after one more change."""
        return DataVersion(self.state_version, now_ms, self.counter + 1)


@dataclass(slots=True, eq=False, repr=False)
class TopicConfig(Body):
    """A topic on one broker."""

    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    def to_line(self) -> str:
        """Return the one-line form in a compressed registration."""
        line = f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} {self.topic_filter_type}"
        return f"{line} {dumps_standard(self.attributes).decode()}" if self.attributes else line

    @classmethod
    def from_line(cls, line: str) -> TopicConfig:
        """Parse the one-line form: name, read queues, write queues, perm, filter type, attributes (5.x)."""
        parts = line.split(" ", 5)
        try:
            name, reads, writes, perm, filter_type = parts[:5]
            numbers = int(reads), int(writes), int(perm)
            if max(map(abs, numbers)) >= 1 << 31:
                raise ValueError
        except ValueError:
            raise ProtocolError(
                f"Invalid topic configuration {line[:80]!r}.",
                remedy="Use: name, read queues, write queues, permission, filter type, each after a space.",
            ) from None
        topic = cls(name, *numbers, filter_type)
        if len(parts) > 5 and parts[5].strip():
            topic.attributes = cls.from_value({"attributes": loads_tolerant(parts[5], REQUEST_LIMITS)}).attributes
        return topic


@dataclass(slots=True, eq=False, repr=False)
class TopicConfigSerializeWrapper(Body):
    """``topics.json``, the response to GET_ALL_TOPIC_CONFIG, and the topics of a registration."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    topic_queue_mapping_info_map: object | None = None
    topic_queue_mapping_detail_map: object | None = None
    mapping_data_version: DataVersion | None = None


@dataclass(slots=True, eq=False, repr=False)
class SubscriptionGroupConfig(Body):
    """A consumer group on one broker."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: object | None = None
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: object | None = None
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class SubscriptionGroupWrapper(Body):
    """``subscriptionGroup.json`` and the response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(slots=True, eq=False, repr=False)
class ConsumerOffsetSerializeWrapper(Body):
    """``consumerOffset.json`` and the response to GET_ALL_CONSUMER_OFFSET: ``topic@group`` -> queue -> next offset."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(slots=True, eq=False, repr=False)
class DelayOffsetSerializeWrapper(Body):
    """``delayOffset.json`` and the response to GET_ALL_DELAY_OFFSET: delay level -> next offset."""

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(slots=True, eq=False, repr=False)
class CreateTopicListRequestBody(Body):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class SubscriptionGroupList(Body):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


# --- accounts (ACL 1.0): common.PlainAccessConfig, GetBrokerClusterAclConfigResponseBody -----------------------------


@dataclass(slots=True, eq=False, repr=False)
class PlainAccessConfig(Body):
    """An account of ``plain_acl.yml``; None for missing values. The secret is excluded from the repr."""

    access_key: str = ""
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


@dataclass(slots=True, eq=False, repr=False)
class ClusterAclConfig(Body):
    """Response to GET_BROKER_CLUSTER_ACL_CONFIG."""

    global_white_addrs: list[str] = field(default_factory=list)
    plain_access_configs: list[PlainAccessConfig] = field(default_factory=list)

    def account(self, access_key: str) -> PlainAccessConfig | None:
        return next((one for one in self.plain_access_configs if one.access_key == access_key), None)


# --- users and policies (ACL 2.0): remoting.protocol.body.{UserInfo, AclInfo} ----------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class UserInfo(Body):
    """A user; None for what does not change. The password is excluded from the repr."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    user_type: str | None = None
    user_status: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class PolicyEntryInfo(Body):
    """A permission: actions on a resource (``Topic:orders``, ``Topic:orders*``, ``*``), allowed or denied."""

    resource: str = ""
    actions: list[str] = field(default_factory=list)
    source_ips: list[str] | None = None
    decision: str = "Allow"


@dataclass(slots=True, eq=False, repr=False)
class PolicyInfo(Body):
    """Permissions of one type: Custom, or Default, which apply where no custom one does."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class AclInfo(Body):
    """The permissions of a subject (``User:alice``)."""

    subject: str = ""
    policies: list[PolicyInfo] = field(default_factory=list)
