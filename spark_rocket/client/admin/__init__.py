"""Operations of an administrator: query and change brokers, topics, groups, offsets, messages and name servers.

Every query goes to the servers; nothing is cached. Only Apache's own request codes are used, so all operations work
with Apache clusters of 4.x and 5.x, except where a method documents a minimum version.
"""

from spark_rocket.client.admin.accounts import AccessMode, AclVersion, BrokerAccess, BrokerAccounts, default_perms
from spark_rocket.client.admin.admin import Admin
from spark_rocket.client.admin.broker_rows import (
    BrokerRuntime,
    BrokerSettings,
    BrokerStatsData,
    BrokerStatus,
    Failures,
    StatsItem,
)
from spark_rocket.client.admin.group_kind import STOPPED_SECONDS, GroupHistory, GroupKind
from spark_rocket.client.admin.group_rows import (
    ClientConnection,
    GroupInfo,
    GroupState,
    Member,
    PlannedReset,
    QueueLag,
    QueueProgress,
)
from spark_rocket.client.admin.message_rows import (
    ConsumeQueueEntry,
    ConsumeQueuePage,
    DeadLetterTopic,
    MessageTrace,
    MessageTrack,
    TraceEvent,
    TrackStatus,
)
from spark_rocket.client.admin.origin import Origin, origin_of
from spark_rocket.client.admin.topic_rows import (
    QueueState,
    TopicInfo,
    TopicKind,
    TopicRow,
    TopicState,
    perm_text,
    topic_kind,
)
from spark_rocket.client.admin.users import BrokerUsers
from spark_rocket.model import is_system_group

__all__ = [
    "STOPPED_SECONDS",
    "AccessMode",
    "AclVersion",
    "Admin",
    "BrokerAccess",
    "BrokerAccounts",
    "BrokerRuntime",
    "BrokerSettings",
    "BrokerStatsData",
    "BrokerStatus",
    "BrokerUsers",
    "ClientConnection",
    "ConsumeQueueEntry",
    "ConsumeQueuePage",
    "DeadLetterTopic",
    "Failures",
    "GroupHistory",
    "GroupInfo",
    "GroupKind",
    "GroupState",
    "Member",
    "MessageTrace",
    "MessageTrack",
    "Origin",
    "PlannedReset",
    "QueueLag",
    "QueueProgress",
    "QueueState",
    "StatsItem",
    "TopicInfo",
    "TopicKind",
    "TopicRow",
    "TopicState",
    "TraceEvent",
    "TrackStatus",
    "default_perms",
    "is_system_group",
    "origin_of",
    "perm_text",
    "topic_kind",
]
