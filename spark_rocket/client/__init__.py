"""A Python client of RocketMQ: producers, consumers, Reader and Admin; see docs/guides/python-client.md.

Objects may be shared by threads, except where a module says otherwise.

The module of a name is imported on first access, so that a command line that uses only Admin starts faster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_rocket.client.admin import Admin, QueueLag
    from spark_rocket.client.consume.allocation import (
        AllocateAveragely,
        AllocateByCircle,
        AllocateByConfig,
        AllocateByConsistentHash,
        AllocateByMachineRoom,
        AllocateMachineRoomNearby,
        AllocateStrategy,
    )
    from spark_rocket.client.consume.listeners import (
        ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus,
        ConsumeFromWhere,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
        MessageModel,
    )
    from spark_rocket.client.consume.lite_pull_consumer import LitePullConsumer
    from spark_rocket.client.consume.pull import PullResult, PullStatus
    from spark_rocket.client.consume.push_consumer import PushConsumer
    from spark_rocket.client.consume.reader import Reader
    from spark_rocket.client.core.client_config import ClientConfig
    from spark_rocket.client.core.lifecycle import ServiceState
    from spark_rocket.client.core.metrics import client_metrics, serve_client_metrics
    from spark_rocket.client.send.outgoing import split_batch
    from spark_rocket.client.send.producer import Producer
    from spark_rocket.client.send.request_reply import create_reply_message
    from spark_rocket.client.send.router import select_by_random, select_by_sharding_key
    from spark_rocket.client.send.transaction import (
        LocalTransactionState,
        TransactionListener,
        TransactionProducer,
        TransactionSendResult,
    )
    from spark_rocket.remoting.tls.settings import TlsSettings

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

_NAMES = {  # the names above, at run time
    "client.admin": "Admin QueueLag",
    "client.consume.allocation": "AllocateAveragely AllocateByCircle AllocateByConfig AllocateByConsistentHash "
    "AllocateByMachineRoom AllocateMachineRoomNearby AllocateStrategy",
    "client.core.client_config": "ClientConfig",
    "client.core.lifecycle": "ServiceState",
    "client.consume.listeners": "ConsumeConcurrentlyContext ConsumeConcurrentlyStatus ConsumeFromWhere "
    "ConsumeOrderlyContext ConsumeOrderlyStatus MessageModel",
    "client.consume.lite_pull_consumer": "LitePullConsumer",
    "client.core.metrics": "client_metrics serve_client_metrics",
    "client.send.producer": "Producer select_by_random select_by_sharding_key split_batch",
    "client.consume.pull": "PullResult PullStatus",
    "client.consume.push_consumer": "PushConsumer",
    "client.consume.reader": "Reader",
    "client.send.request_reply": "create_reply_message",
    "client.send.transaction": "LocalTransactionState TransactionListener TransactionProducer TransactionSendResult",
    "remoting.tls.settings": "TlsSettings",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"spark_rocket.{module}"), name)
    globals()[name] = value  # __getattr__ runs once per name
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
