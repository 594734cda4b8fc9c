"""Spark's Python daemon, which keeps the CPU time of workers that have ended (``spark.python.daemon.module``).

``pyspark.daemon`` ignores SIGCHLD. The kernel then forgets a worker's CPU time when the worker ends, and a measurement
over a whole query misses it. Here, the daemon waits for its workers, so that the kernel adds their time to its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None


def keep_cpu_times() -> None:
    """Make ``signal.signal(SIGCHLD, SIG_IGN)`` wait for children that end, instead of ignoring them."""
    set_handler = signal.signal

    def signal_and_wait(number: int, handler: Handler) -> Handler:
        is_ignored = number == signal.SIGCHLD and handler == signal.SIG_IGN
        return set_handler(number, _wait_for_children if is_ignored else handler)

    signal.signal = signal_and_wait  # type: ignore[assignment]


def _wait_for_children(number: int, frame: FrameType | None) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    import pyspark.daemon as daemon

    keep_cpu_times()
    daemon.manager()
