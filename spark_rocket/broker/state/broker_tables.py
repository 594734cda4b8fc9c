"""The tables of one broker: what its clients and administrators have sent.

After a crash: see each table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.client_manager import ClientManager, notify_consumer_ids_changed
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

    @classmethod
    def empty(cls, config: BrokerConfig, clock: Callable[[], int], monotonic: Callable[[], int]) -> BrokerTables:
        """The tables of a new broker. The clocks are in milliseconds; see ``broker_environment``."""
        return cls(
            topics=TopicConfigManager(config, clock),
            groups=SubscriptionGroupManager(config, clock),
            offsets=ConsumerOffsetManager(),
            message_request_modes=MessageRequestModeManager(),
            clients=ClientManager(clock, notify_consumer_ids_changed, monotonic),
            rebalance_locks=RebalanceLockManager(monotonic, config.rebalance_lock_max_live_time),
            stats=BrokerStats(),
        )
