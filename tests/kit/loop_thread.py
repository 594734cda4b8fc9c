"""An event loop on a thread of a test's process, for servers and clients that run there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from spark_rocket.remoting.event_loop import new_event_loop

T = TypeVar("T")


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop) -> None:
        self.loop = loop_factory()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def run(self, call: Callable[[], T]) -> T:
        async def on_the_loop() -> T:
            return call()

        return self.do(on_the_loop())

    def stop_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()
