"""Selectors: which of a topic's queues a message goes to.

Pure functions. Correspond to org.apache.rocketmq.client.producer.selector.{SelectMessageQueueByHash,
SelectMessageQueueByRandom}.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from spark_rocket.model import SHARDING_KEY, Message, MessageQueue
from spark_rocket.protocol.filter.tags import java_hash

Selector: TypeAlias = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


def select_by_sharding_key(queues: Sequence[MessageQueue], message: Message, key: Any = None) -> MessageQueue:
    """Messages with the same key (the argument, else ``__SHARDINGKEY``) go to the same queue while the queues stand.

    The queue that Java's client chooses for the same text: the size of its hash, modulo the number of queues.
    """
    text = message.properties.get(SHARDING_KEY, "") if key is None else str(key)
    return queues[abs(java_hash(text)) % len(queues)]


def select_by_random(queues: Sequence[MessageQueue], message: Message, arg: Any = None) -> MessageQueue:
    """Any queue."""
    return random.choice(queues)
