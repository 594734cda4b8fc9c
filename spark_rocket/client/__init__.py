"""A Python client of RocketMQ: producers, consumers, Reader, Admin; docs/client.md explains them."""

from spark_rocket.client.admin import Admin, QueueLag
from spark_rocket.client.allocation import (
    AllocateAveragely,
    AllocateByCircle,
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    AllocateStrategy,
)
from spark_rocket.client.config import ClientConfig
from spark_rocket.client.instance import ServiceState
from spark_rocket.client.listeners import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageModel,
)
from spark_rocket.client.lite_pull_consumer import LitePullConsumer
from spark_rocket.client.metrics import client_metrics, serve_client_metrics
from spark_rocket.client.producer import Producer, select_by_random, select_by_sharding_key, split_batch
from spark_rocket.client.pull import PullResult, PullStatus
from spark_rocket.client.push_consumer import PushConsumer
from spark_rocket.client.reader import Reader
from spark_rocket.client.request_reply import create_reply_message
from spark_rocket.client.transaction import (
    LocalTransactionState,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
)
from spark_rocket.remoting.tls import TlsSettings

__all__ = [
    "Admin",
    "AllocateAveragely",
    "AllocateByCircle",
    "AllocateByConfig",
    "AllocateByConsistentHash",
    "AllocateByMachineRoom",
    "AllocateMachineRoomNearby",
    "AllocateStrategy",
    "ClientConfig",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "LitePullConsumer",
    "LocalTransactionState",
    "MessageModel",
    "Producer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "QueueLag",
    "Reader",
    "ServiceState",
    "TlsSettings",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "client_metrics",
    "create_reply_message",
    "select_by_random",
    "select_by_sharding_key",
    "serve_client_metrics",
    "split_batch",
]
