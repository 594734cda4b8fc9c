"""Results of puts, gets and queries. Plain values without behaviour.

Corresponds to PutMessageResult/PutMessageStatus, GetMessageResult/GetMessageStatus and QueryMessageResult.
The statuses have Apache's names, because a pull response carries them as its remark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class PutStatus(Enum):
    """Outcome of a put. The message is in the store only with ``PUT_OK`` and ``FLUSH_DISK_TIMEOUT``."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"


class PutError(Exception):
    """Reason why a put stores nothing. Internal: never raised out of the store."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class GetMessageStatus(Enum):
    """Outcome of a get, by Apache's names; the broker maps them to response codes."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class PutResult:
    """Result of a put. For a batch, the offsets are those of its first message."""

    status: PutStatus
    queue_offset: int = -1
    physical_offset: int = -1
    end_physical_offset: int = -1
    count: int = 0
    store_timestamp: int = 0
    physical_offsets: npt.NDArray[np.int64] | tuple[()] = ()
    """Offset of every message of a batch; empty for a single message."""
    reason: str = ""
    """Why nothing was stored, for the response's remark."""


@dataclass(slots=True)
class GetMessageResult:
    """A run of raw records, and the offset of the next read."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: bytes | memoryview = b""
    count: int = 0


@dataclass(slots=True)
class QueryMessageResult:
    """Records found by key, in log order, and the end of the index."""

    records: list[bytes] = field(default_factory=list)
    index_last_update_timestamp: int = 0
    index_last_update_physical_offset: int = 0
