"""Ctrl-C for a test: a signal that reaches the main thread wherever it waits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def interrupted_at(event: threading.Event) -> Iterator[None]:
    """Interrupt the block once, after an event, and expect KeyboardInterrupt.

    The signal is repeated, because one that arrives right before a thread blocks in the kernel does not wake it.
    """
    done = threading.Event()
    is_interrupted = False  # not an event: a second signal may come while the handler holds its lock

    def interrupt(*_: object) -> None:
        nonlocal is_interrupted
        if not is_interrupted:
            is_interrupted = True
            raise KeyboardInterrupt

    def send_signals() -> None:
        assert event.wait(30)
        while not done.wait(0.1):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt)
    thread = threading.Thread(target=send_signals)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        done.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
