"""Requests of brokers to consumers on behalf of tools: offsets, state, reset, consumption of one message.

Maps with message queues as keys can only be written in fastjson's syntax.
Corresponds to remoting.protocol.body.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.client import SubscriptionData

# Results of the direct consumption of a message.
CR_SUCCESS = "CR_SUCCESS"
CR_LATER = "CR_LATER"
CR_ROLLBACK = "CR_ROLLBACK"
CR_COMMIT = "CR_COMMIT"
CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
CR_RETURN_NULL = "CR_RETURN_NULL"

# Names among the properties of ConsumerRunningInfo.
PROP_NAMESERVER_ADDR = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP = "PROP_CONSUMER_START_TIMESTAMP"


@dataclass(slots=True, eq=False, repr=False)
class ResetOffsetBody(Body):
    """Response to INVOKE_BROKER_TO_RESET_OFFSET, body of RESET_CONSUMER_CLIENT_OFFSET."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class MessageQueueForC(Body):
    """A queue and an offset, for clients that cannot read maps with queues as keys."""

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0
    offset: int = 0


@dataclass(slots=True, eq=False, repr=False)
class ResetOffsetBodyForC(Body):
    """Body of RESET_CONSUMER_CLIENT_OFFSET to a client in C++."""

    offset_table: list[MessageQueueForC] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class GetConsumerStatusBody(Body):
    """Response to GET_CONSUMER_STATUS_FROM_CLIENT: a client sends its own offsets, the broker those by client id."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class ProcessQueueInfo(Body):
    """A queue assigned to a consumer."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(default=0, metadata={"wire": "cachedMsgSizeInMiB"})
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = field(default=False, metadata={"wire": "droped"})
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(slots=True, eq=False, repr=False)
class PopProcessQueueInfo(Body):
    """A queue that a consumer pops from."""

    wait_ack_count: int = 0
    dropped: bool = field(default=False, metadata={"wire": "droped"})
    last_pop_timestamp: int = 0


@dataclass(slots=True, eq=False, repr=False)
class ConsumeStatus(Body):
    """The pull and consume rates of a topic; times in ms, numbers per second."""

    pull_rt: float = field(default=0.0, metadata={"wire": "pullRT"})
    pull_tps: float = field(default=0.0, metadata={"wire": "pullTPS"})
    consume_rt: float = field(default=0.0, metadata={"wire": "consumeRT"})
    consume_ok_tps: float = field(default=0.0, metadata={"wire": "consumeOKTPS"})
    consume_failed_tps: float = field(default=0.0, metadata={"wire": "consumeFailedTPS"})
    consume_failed_msgs: int = 0


@dataclass(slots=True, eq=False, repr=False)
class ConsumerRunningInfo(Body):
    """Response to GET_CONSUMER_RUNNING_INFO: ``status_table`` is by topic, ``jstack`` has requested thread stacks."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class ConsumeMessageDirectlyResult(Body):
    """Response to CONSUME_MESSAGE_DIRECTLY; ``consume_result`` is one of the ``CR_`` words."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str = CR_SUCCESS
    remark: str | None = None
    spent_time_mills: int = 0


# --- POP: BatchAck, BatchAckMessageRequestBody -----------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class BatchAck(Body):
    """Acks of one check point. ``retry``: the flag of its topic; ``bit_set``: base64, or a list of bytes."""

    consumer_group: str = field(default="", metadata={"wire": "c"})
    topic: str = field(default="", metadata={"wire": "t"})
    retry: str = field(default="0", metadata={"wire": "r"})
    start_offset: int = field(default=0, metadata={"wire": "so"})
    queue_id: int = field(default=0, metadata={"wire": "q"})
    revive_queue_id: int = field(default=0, metadata={"wire": "rq"})
    pop_time: int = field(default=0, metadata={"wire": "pt"})
    invisible_time: int = field(default=0, metadata={"wire": "it"})
    bit_set: object = field(default=None, metadata={"wire": "b", "unit": "bits"})


@dataclass(slots=True, eq=False, repr=False)
class BatchAckMessageRequestBody(Body):
    """BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)
