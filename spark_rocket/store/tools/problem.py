"""One thing that is wrong with a store directory. A plain value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Problem:
    """``kind`` is a short stable word; ``offset`` is a physical offset or an entry's number, −1 where there is none."""

    kind: str
    path: Path
    text: str
    offset: int = -1

    def __str__(self) -> str:
        place = f" at {self.offset}" if self.offset >= 0 else ""
        return f"{self.kind}: {self.path}{place}: {self.text}"
