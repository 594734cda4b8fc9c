"""Keeps freed memory for the next large frame instead of giving it back to the kernel.

A pull answer or a batch of messages is a buffer of some MiB. The C library by default maps such a buffer anew each time
and unmaps it when it is freed, so every page of every frame is touched cold: a few microseconds a page on a virtual
machine, which was three quarters of a broker's work when serving large pulls. Told to keep up to 64 MiB, it hands out
the same warm pages again.

Idempotent and thread-safe; does nothing where there is no glibc. Corresponds to Netty's pooled buffers.
"""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_FROM_THE_HEAP = 32 * 1024 * 1024  # glibc's own upper limit for this setting
_KEPT = 64 * 1024 * 1024


@cache
def keep_freed_memory() -> bool:
    """Tell the C library, once per process; whether it could be told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc: macOS, musl, Windows
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_THE_HEAP)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT))
