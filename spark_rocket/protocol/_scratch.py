"""Memory that the columnar codec uses again and again instead of asking for fresh pages at every call.

On virtual machines the first touch of a page can cost more than decoding all the records on it.
Thread-safety: one store of blocks per thread. What is handed out is valid until
the same thread asks for the slot again.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

_KEEP = 32 * 1024 * 1024  # bytes; larger blocks are not kept

_local = threading.local()


def scratch(slot: str, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """``size`` bytes of whatever was in them before."""
    kept: np.ndarray[Any, np.dtype[np.uint8]] | None = getattr(_local, slot, None)
    if kept is None or len(kept) < size:
        kept = np.empty(size + size // 4, np.uint8)
        if len(kept) <= _KEEP:
            setattr(_local, slot, kept)
    return kept[:size]
