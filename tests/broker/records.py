"""The records that parts of a broker take, for tests of a part alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_rocket.broker.background_tasks import BackgroundTasks
from spark_rocket.broker.broker_environment import BrokerEnvironment
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.broker_stats import BrokerStats
from spark_rocket.broker.state.broker_tables import BrokerTables
from spark_rocket.broker.state.client_manager import ClientManager
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.state.message_request_mode_manager import MessageRequestModeManager
from spark_rocket.broker.state.rebalance_lock_manager import RebalanceLockManager
from spark_rocket.broker.state.subscription_group_manager import SubscriptionGroupManager
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager


def broker_records(
    config: BrokerConfig, clock: Callable[[], int], host: tuple[str, int], **tables: Any
) -> tuple[BrokerEnvironment, BrokerTables]:
    """Settings, clock and address, with these tables and empty ones; without an event loop."""
    no_loop: Any = None
    empty: dict[str, Any] = {
        "topics": TopicConfigManager(config, clock),
        "groups": SubscriptionGroupManager(config, clock),
        "offsets": ConsumerOffsetManager(),
        "message_request_modes": MessageRequestModeManager(),
        "clients": ClientManager(clock, lambda *_: None),
        "rebalance_locks": RebalanceLockManager(clock, 60_000),
        "stats": BrokerStats(),
    }
    return BrokerEnvironment(config, clock, clock, host, no_loop, BackgroundTasks()), BrokerTables(**(empty | tables))
