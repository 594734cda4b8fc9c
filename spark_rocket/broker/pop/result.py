"""What a pop found, and which offsets its records have.

Thread-safety: plain values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.errors import RefusedError, StoreCorruptError


@dataclass(slots=True)
class PopResult:
    """What a pop found.

    ``rest_num``: how many messages are still there in the queues looked at; ``passed``: whether messages that the
    filter does not want were left behind, or there are some that cannot be had just now, so that it is worth looking
    again; ``problem``: a queue is damaged, or the store takes no check point.
    """

    pop_time: int
    invisible_time: int
    revive_queue_id: int
    rest_num: int = 0
    count: int = 0
    size: int = 0
    passed: bool = False
    problem: StoreCorruptError | RefusedError | None = None
    records: list[bytes | memoryview] = field(default_factory=list)
    start_offset_infos: list[str] = field(default_factory=list)
    msg_offset_infos: list[str] = field(default_factory=list)
    order_count_infos: list[str] = field(default_factory=list)


def offsets_of(records: bytes | memoryview) -> list[int]:
    """Queue offsets of a run of records."""
    offsets = []
    position = 0
    while position < len(records):
        offsets.append(int.from_bytes(records[position + 20 : position + 28], "big"))
        position += int.from_bytes(records[position : position + 4], "big")
    return offsets
