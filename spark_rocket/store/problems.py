"""What can be wrong with a stopped store, as a read-only open and the check of a store report it."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class ProblemKind(StrEnum):
    """What is wrong, as ``rocket store check`` prints and sorts it."""

    FILES = "files"
    UNREADABLE = "unreadable"
    LOCK = "lock"
    ABORT = "abort"
    RECORD = "record"
    HIDDEN = "hidden"
    BEGIN = "begin"
    END = "end"
    TAIL = "tail"
    QUEUE = "queue"
    OFFSETS = "offsets"
    ENTRY = "entry"
    FILLER = "filler"
    INDEX = "index"
    INDEX_BEHIND = "index.behind"
    CHECKPOINT = "checkpoint"
    TIMER = "timer"


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """``offset`` is a physical offset or an entry's number, or −1."""

    kind: ProblemKind
    path: Path
    text: str
    offset: int = -1

    def __str__(self) -> str:
        place = f" at {self.offset}" if self.offset >= 0 else ""
        return f"{self.kind}: {self.path}{place}: {self.text}"


def read_error_text(error: OSError | None = None) -> str:
    """Return the text of a problem: of an error, or else of a missing permission."""
    return f"it cannot be read: {(error and error.strerror) or os.strerror(errno.EACCES)}"
