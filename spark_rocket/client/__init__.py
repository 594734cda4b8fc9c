"""A Python client of RocketMQ: Producer, Reader, Admin. Blocking, thread-safe, without registration at brokers."""

from spark_rocket.client.admin import Admin, QueueLag
from spark_rocket.client.config import ClientConfig
from spark_rocket.client.producer import Producer, select_by_sharding_key, split_batch
from spark_rocket.client.reader import PullResult, PullStatus, Reader
from spark_rocket.client.transaction import (
    LocalTransactionState,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
)

__all__ = [
    "Admin",
    "ClientConfig",
    "LocalTransactionState",
    "Producer",
    "PullResult",
    "PullStatus",
    "QueueLag",
    "Reader",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "select_by_sharding_key",
    "split_batch",
]
