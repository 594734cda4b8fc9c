"""The state of one broker that transactions and POP share.

Thread-safety: used on the event loop only, like its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spark_rocket.broker.state.config import BrokerConfig
from spark_rocket.broker.state.groups import SubscriptionGroupManager
from spark_rocket.broker.state.offsets import ConsumerOffsetManager
from spark_rocket.broker.state.stats import BrokerStats
from spark_rocket.broker.state.topics import TopicConfigManager
from spark_rocket.store.message_store import MessageStore


@dataclass(slots=True)
class SharedState:
    """State shared by transactions and POP.

    ``host``: the broker's address in the records that it writes. ``clock``: the wall clock (ms).
    """

    config: BrokerConfig
    store: MessageStore
    topics: TopicConfigManager
    offsets: ConsumerOffsetManager
    groups: SubscriptionGroupManager
    clock: Callable[[], int]
    host: tuple[str, int]
    stats: BrokerStats = field(default_factory=BrokerStats)
