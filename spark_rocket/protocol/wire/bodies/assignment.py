"""Locks on queues and assignments of queues to consumers.

Corresponds to remoting.protocol.body.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.client import CLUSTERING


@dataclass(slots=True, eq=False, repr=False)
class LockBatchRequestBody(Body):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class LockBatchResponseBody(Body):
    """Response to LOCK_BATCH_MQ: the queues that are now locked for the caller."""

    lock_ok_mq_set: list[MessageQueue] = field(default_factory=list, metadata={"wire": "lockOKMQSet"})


@dataclass(slots=True, eq=False, repr=False)
class QueryAssignmentRequestBody(Body):
    """Body of QUERY_ASSIGNMENT."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str = ""
    message_model: str = CLUSTERING


@dataclass(slots=True, eq=False, repr=False)
class MessageQueueAssignment(Body):
    """One queue of a consumer's share. ``mode`` is PULL or POP."""

    message_queue: MessageQueue | None = None
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


@dataclass(slots=True, eq=False, repr=False)
class QueryAssignmentResponseBody(Body):
    """Response to QUERY_ASSIGNMENT. None: the assignment is unchanged; an empty list removes all queues."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


@dataclass(slots=True, eq=False, repr=False)
class SetMessageRequestModeRequestBody(Body):
    """Body of SET_MESSAGE_REQUEST_MODE."""

    topic: str = ""
    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: int = 0
