"""What POP's requests carry in their bodies.

Corresponds to remoting.protocol.body.{BatchAck, BatchAckMessageRequestBody}.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.protocol.wire.bodies.base import Body


@dataclass(slots=True)
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
    bit_set: object = field(default=None, metadata={"wire": "b"})


@dataclass(slots=True)
class BatchAckMessageRequestBody(Body):
    """BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)
