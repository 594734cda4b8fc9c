"""The console's connections to the cluster, and the bounded pool of threads on which pages ask it.

Clients block; pages are served by an event loop. More than ``MOST_WAITING`` questions at once are refused, so that a
cluster that hangs does not take the console with it.

Thread-safety: all methods. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from spark_rocket.client import Admin, Reader
from spark_rocket.console.answers import Refused

T = TypeVar("T")

THREADS = 8
MOST_WAITING = 64
REQUEST_SECONDS = 4.0
CHANGE_SECONDS = 15.0  # a broker answers a change when its files are synced to disk


class Links:
    """An admin and a reader for pages, an admin for changes, started by their first use, and an admin for the sampler.

    That has connections of its own: on a large cluster it asks for hundreds of things at once, and the answer to a
    page would come behind all of theirs.
    """

    def __init__(self, name_server: str, connecting: Mapping[str, Any]) -> None:
        self.admin = Admin(name_server, request_timeout=REQUEST_SECONDS, **connecting)
        self.changing = Admin(name_server, request_timeout=CHANGE_SECONDS, instance_name="changes", **connecting)
        self.sampling = Admin(name_server, request_timeout=REQUEST_SECONDS, instance_name="sampler", **connecting)
        self.reader = Reader(name_server, request_timeout=REQUEST_SECONDS, **connecting)
        self._name_server = name_server
        self._pool = ThreadPoolExecutor(THREADS, "console-page")
        self._waiting = 0

    async def run(self, ask: Callable[[], T]) -> T:
        """``ask()`` on a thread of the pool. To be awaited on one event loop only."""
        if self._waiting >= MOST_WAITING:
            raise Refused(
                f"{self._waiting} questions to the cluster are waiting already.",
                remedy="Try again in a few seconds; brokers that hang are shown on the overview.",
                status=503,
                code="CONSOLE_BUSY",
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, ask)
        finally:
            self._waiting -= 1

    @property
    def name_servers(self) -> list[str]:
        """Their addresses; none while only an address server knows them."""
        return [] if self._name_server.startswith("http") else self.admin.name_server.split(";")

    @property
    def waiting(self) -> int:
        return self._waiting

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.reader.close()
        self.sampling.close()
        self.changing.close()
        self.admin.close()
