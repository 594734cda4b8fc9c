"""The tasks of one broker that requests and timers start."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class BackgroundTasks:
    """Holds references to running tasks, and waits for them at the stop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine as a task; holds a reference to prevent its garbage collection."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def settle(self) -> None:
        """Wait for all spawned tasks, and those that they spawn."""
        while self._running:
            await asyncio.wait(self._running)
