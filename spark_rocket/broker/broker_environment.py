"""What all parts of a broker share: its settings, clocks, address, event loop and tasks.

Thread-safety: the record never changes, and the clocks may be read by any thread; tasks belong to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.remoting.address import format_address


class BackgroundTasks:
    """The tasks that requests and timers start. Holds references to running ones, and waits for them at the stop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine as a task; holds a reference to prevent its garbage collection."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def settle(self) -> None:
        """Wait for all spawned tasks, and for the tasks that they spawn."""
        while self._running:
            await asyncio.wait(self._running)


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """The broker that a part belongs to."""

    config: BrokerConfig
    clock: Callable[[], int]
    """The wall clock, in milliseconds."""
    monotonic: Callable[[], int]
    """A clock for timeouts, in milliseconds: changes of the wall clock do not affect it."""
    store_host: tuple[str, int]
    """The address for clients, which is also stored with messages."""
    loop: asyncio.AbstractEventLoop
    tasks: BackgroundTasks
    rules: Callable[[], object] = lambda: None
    """Returns the accounts and permissions in force, another object after each change. A request that is held for
    longer than that is not answered with messages: its client asks again, and is checked again."""

    @property
    def host(self) -> str:
        return self.store_host[0]

    @property
    def address(self) -> str:
        return format_address(*self.store_host)

    @property
    def name(self) -> str:
        """The broker's name in log lines."""
        return f"{self.config.broker_name}[{self.config.broker_id}] at {self.address}"
