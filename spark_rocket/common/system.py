"""The operating system: supported systems, standard streams, the clock, available cores, the C library's memory.

Supported are Linux and macOS. Windows lacks system calls that connections and files need: ``poll``, ``flock``, timeouts
of blocking sends, ``fork``.

Thread-safety: any thread. :func:`keep_freed_memory` corresponds to Netty's pooled buffers; RocketMQ has no equivalent
of the rest.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cache

from spark_rocket.errors import StateError

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MAX_MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024  # glibc's upper limit for this setting
_TRIM_BYTES = 64 * 1024 * 1024


def check_system() -> None:
    """Raise StateError on Windows. Called before connections, so that no missing module hides the reason."""
    if sys.platform == "win32":
        raise StateError(
            "spark_rocket does not support Windows; it supports Linux and macOS.",
            remedy="Run it in WSL 2 (wsl --install), together with Spark and Python.",
        )


def hold_standard_descriptors() -> None:
    """Open /dev/null as each standard stream that the parent process has closed.

    Otherwise a socket or a file gets its number: libuv aborts the process when it closes one below 3, and messages of
    libraries on the standard error stream end in a file.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(opened)


def now_ms() -> int:
    """Return the wall clock's time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def time_left(deadline: float) -> float:
    """Return the seconds until a deadline on the monotonic clock, for the next request of a call with a timeout.

    Never 0, so that the request raises its own timeout error.
    """
    return max(0.001, deadline - time.monotonic())


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def keep_freed_memory() -> bool:
    """Reuse freed memory for the next large frame; return False without glibc. Takes effect once per process.

    A pull response or a batch of messages is a buffer of some MiB. By default the C library maps a new buffer
    each time, and every page costs a page fault: some microseconds per page on a virtual machine, which was three
    quarters of a broker's work with large pulls. With these settings it reuses up to 64 MiB of mapped pages.
    """
    mallopt = _allocator("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


def give_memory_back() -> None:
    """Return freed memory to the operating system; without effect if the C library does not support it."""
    trim = _allocator("malloc_trim")
    if trim is not None:
        trim(0)


def _allocator(name: str) -> Callable[..., int] | None:
    """Return a function of glibc's allocator; None elsewhere (macOS, musl). Python has no other way to it."""
    import ctypes

    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
    return function
