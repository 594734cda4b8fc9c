"""Returning freed memory to the operating system.

Thread-safety: any thread.
"""

from __future__ import annotations

import ctypes


def give_memory_back() -> None:
    """Return freed memory to the operating system; without effect if the C library does not support it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return
