"""Whether messages count as in memory: near enough to the end of the log (``accessMessageInMemoryMaxRatio``).

Pure functions of the store and the settings. Corresponds to DefaultMessageStore.{checkInMemByCommitOffset,
checkInDiskByConsumeOffset}.
"""

from __future__ import annotations

import os

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.store.message_store import MessageStore


def is_in_memory(store: MessageStore, config: BrokerConfig, physical_offset: int) -> bool:
    memory = _PHYSICAL_MEMORY * config.access_message_in_memory_max_ratio // 100
    return store.max_physical_offset - physical_offset <= memory


def first_is_in_memory(store: MessageStore, config: BrokerConfig, topic: str, queue_id: int) -> bool:
    """Whether message 0 of a queue is in memory; True for a queue that never had a message."""
    first = store.get_entries(topic, queue_id, 0, 1)
    return not first or is_in_memory(store, config, first[0][0])


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 4 << 30


_PHYSICAL_MEMORY = _physical_memory()
