"""The message store: messages on disk in Apache RocketMQ's layout. Independent of the network.

One thread uses a store, except where a module says otherwise: a broker's event loop.
"""

from spark_rocket.protocol.durability import FlushDiskType
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import GetMessageResult, GetMessageStatus, PutResult, PutStatus, QueryMessageResult

__all__ = [
    "FlushDiskType",
    "GetMessageResult",
    "GetMessageStatus",
    "MessageStore",
    "PutResult",
    "PutStatus",
    "QueryMessageResult",
    "StoreConfig",
]
