"""What tools ask a broker, and what a broker asks clients for them.

Fields in the order required, then optional; see ``base`` for their encoding.
Corresponds to remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.protocol.wire.headers.base import Header, Int, Long


@dataclass(slots=True, eq=False, repr=False)
class CreateTopicRequestHeader(Header):
    """UPDATE_AND_CREATE_TOPIC."""

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


@dataclass(slots=True, eq=False, repr=False)
class DeleteTopicRequestHeader(Header):
    """DELETE_TOPIC_IN_BROKER."""

    topic: str


@dataclass(slots=True, eq=False, repr=False)
class GetAllTopicConfigRequestHeader(Header):
    """GET_ALL_TOPIC_CONFIG."""

    topic_seq: Int = 0
    data_version: str | None = None
    max_topic_num: Int | None = None


@dataclass(slots=True, eq=False, repr=False)
class GetTopicConfigRequestHeader(Header):
    """GET_TOPIC_CONFIG."""

    topic: str


@dataclass(slots=True, eq=False, repr=False)
class GetTopicStatsInfoRequestHeader(Header):
    """GET_TOPIC_STATS_INFO."""

    topic: str


@dataclass(slots=True, eq=False, repr=False)
class GetConsumeStatsRequestHeader(Header):
    """GET_CONSUME_STATS."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class GetConsumeStatsInBrokerRequestHeader(Header):
    """GET_BROKER_CONSUME_STATS: of topics that are ordered only, or of all."""

    is_order: bool = False


@dataclass(slots=True, eq=False, repr=False)
class GetConsumerConnectionListRequestHeader(Header):
    """GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: str


@dataclass(slots=True, eq=False, repr=False)
class GetProducerConnectionListRequestHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


@dataclass(slots=True, eq=False, repr=False)
class ResetOffsetRequestHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET."""

    group: str
    topic: str
    timestamp: Long
    is_force: bool
    queue_id: Int = -1
    offset: Long | None = None


@dataclass(slots=True, eq=False, repr=False)
class DeleteSubscriptionGroupRequestHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    clean_offset: bool = False
    remove_offset: bool = False  # what 4.9 clients call it


@dataclass(slots=True, eq=False, repr=False)
class GetAllSubscriptionGroupRequestHeader(Header):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""

    group_seq: Int = 0
    data_version: str | None = None
    max_group_num: Int | None = None


@dataclass(slots=True, eq=False, repr=False)
class GetSubscriptionGroupConfigRequestHeader(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str


@dataclass(slots=True, eq=False, repr=False)
class QueryTopicConsumeByWhoRequestHeader(Header):
    """QUERY_TOPIC_CONSUME_BY_WHO."""

    topic: str


@dataclass(slots=True, eq=False, repr=False)
class QueryTopicsByConsumerRequestHeader(Header):
    """QUERY_TOPICS_BY_CONSUMER."""

    group: str


@dataclass(slots=True, eq=False, repr=False)
class QuerySubscriptionByConsumerRequestHeader(Header):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class QueryConsumeTimeSpanRequestHeader(Header):
    """QUERY_CONSUME_TIME_SPAN."""

    topic: str
    group: str


@dataclass(slots=True, eq=False, repr=False)
class CloneGroupOffsetRequestHeader(Header):
    """CLONE_GROUP_OFFSET."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


@dataclass(slots=True, eq=False, repr=False)
class GetConsumerRunningInfoRequestHeader(Header):
    """GET_CONSUMER_RUNNING_INFO."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


@dataclass(slots=True, eq=False, repr=False)
class GetConsumerStatusRequestHeader(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    topic: str
    group: str
    client_addr: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class ConsumeMessageDirectlyResultRequestHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


@dataclass(slots=True, eq=False, repr=False)
class ResumeCheckHalfMessageRequestHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE."""

    topic: str | None = None
    msg_id: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class ViewBrokerStatsDataRequestHeader(Header):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


# --- accounts (ACL 1.0) -----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class CreateAccessConfigRequestHeader(Header):
    """UPDATE_AND_CREATE_ACL_CONFIG: lists with commas between; what is absent stays, but ``admin``, which is false."""

    access_key: str
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class DeleteAccessConfigRequestHeader(Header):
    """DELETE_ACL_CONFIG."""

    access_key: str


@dataclass(slots=True, eq=False, repr=False)
class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: the whole list, with commas between."""

    global_white_addrs: str
    acl_file_full_path: str | None = None  # 5.x, whose brokers have several files


@dataclass(slots=True, eq=False, repr=False)
class GetBrokerAclConfigResponseHeader(Header):
    """Response to GET_BROKER_CLUSTER_ACL_INFO: the file's DataVersion, as JSON."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None  # 5.x: such versions by path


# --- users and policies (ACL 2.0) ------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class UserRequestHeader(Header):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER and AUTH_GET_USER. The first two have a UserInfo as body."""

    username: str


@dataclass(slots=True, eq=False, repr=False)
class ListUsersRequestHeader(Header):
    """AUTH_LIST_USER: users whose name contains ``filter``."""

    filter: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class UpdateAclRequestHeader(Header):
    """AUTH_CREATE_ACL and AUTH_UPDATE_ACL, which add the entries of an AclInfo, and AUTH_GET_ACL."""

    subject: str


@dataclass(slots=True, eq=False, repr=False)
class DeleteAclRequestHeader(Header):
    """AUTH_DELETE_ACL: the entry of ``resource``; without it all of the subject."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class ListAclsRequestHeader(Header):
    """AUTH_LIST_ACL."""

    subject_filter: str | None = None
    resource_filter: str | None = None
