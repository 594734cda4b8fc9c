"""The tables of one broker: what its clients and administrators have sent.

After a crash: see each table.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.message_request_mode_manager import MessageRequestModeManager
from spark_rocket.broker.state.rebalance_lock_manager import RebalanceLockManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager


@dataclass(frozen=True, slots=True)
class BrokerTables:
    """The tables, by what they hold."""

    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    message_request_modes: MessageRequestModeManager
    clients: ClientManager
    rebalance_locks: RebalanceLockManager
    stats: BrokerStats
