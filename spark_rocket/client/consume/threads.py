"""The threads of a consume service: they take work from one queue until the service is closed.

Thread-safety: ``start`` and ``close`` once each; ``close`` may be called by a listener, which does not wait for itself.
Corresponds to the consumeExecutor of ConsumeMessageConcurrentlyService and ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Generic, TypeVar

Work = TypeVar("Work")


class ConsumeThreads(Generic[Work]):
    """What the consume services have in common; each says in ``_consume_forever`` what a thread does."""

    def __init__(self, threads: int) -> None:
        self._work: SimpleQueue[Work | None] = SimpleQueue()  # None: there is no more
        self._closing = False
        self._threads = [
            threading.Thread(target=self._consume_forever, name=f"rocket-consume-{number}", daemon=True)
            for number in range(threads)
        ]

    def _consume_forever(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin nothing new."""
        self._closing = True

    def is_one_of_them(self, thread: threading.Thread) -> bool:
        return thread in self._threads

    def close(self, timeout: float) -> None:
        """Begin nothing new, and wait up to so many seconds for what listeners are at."""
        self.stop()
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
