"""POP's operations: pop, ack, change of the invisible time.

Thread-safety: used on the event loop only.
Corresponds to PopMessageProcessor, AckMessageProcessor and ChangeInvisibleTimeProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PopResult:
    """What a pop found. ``rest_num``: how many messages are still there in the queues looked at."""

    pop_time: int
    invisible_time: int
    revive_queue_id: int
    rest_num: int = 0
    count: int = 0
    records: list[bytes] = field(default_factory=list)
    start_offset_infos: list[str] = field(default_factory=list)
    msg_offset_infos: list[str] = field(default_factory=list)
    order_count_infos: list[str] = field(default_factory=list)
