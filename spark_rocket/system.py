"""The operating system: those that this package runs on, its cores, and how the C library keeps memory.

Linux and macOS. Windows lacks what connections and files need: ``poll``, ``flock``, time limits of blocking sends,
``fork``.

Thread-safety: any thread. Corresponds to nothing in RocketMQ, but :func:`keep_freed_memory` to Netty's pooled buffers.
"""

from __future__ import annotations

import os
import sys
from functools import cache

from spark_rocket.errors import StateError

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MAX_MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024  # glibc's own upper limit for this setting
_KEPT_BYTES = 64 * 1024 * 1024


def check_system() -> None:
    """StateError on Windows. Called where connections begin, before anything fails because of a missing module."""
    if sys.platform == "win32":
        raise StateError(
            "spark_rocket runs on Linux and macOS, not on Windows.",
            remedy="Use it in WSL 2 (wsl --install), with Spark and Python in there too.",
        )


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory for the next large frame, once per process; False where there is no glibc.

    A pull answer or a batch of messages is a buffer of some MiB. By default the C library maps such a buffer anew each
    time, so every page of it is touched cold: some microseconds a page on a virtual machine, which was three quarters
    of a broker's work with large pulls. With this it hands out up to 64 MiB of warm pages again.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc: macOS, musl, Windows
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
