"""The console's connections to the cluster, and bounded thread pools for the requests of pages.

Clients block, and an event loop serves the pages. More than ``MAX_PENDING_REQUESTS`` pending requests are refused, so
that an unresponsive cluster does not block the console. Searches take seconds: they have threads of their own, so that
they do not delay other pages.

Thread-safety: all methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from spark_rocket.client import Admin, Reader
from spark_rocket.console.responses import Refused
from spark_rocket.remoting.name_server_list import parse_name_servers

T = TypeVar("T")

THREADS = 8
SEARCH_THREADS = 4
MAX_PENDING_REQUESTS = 64
REQUEST_SECONDS = 4.0
CHANGE_SECONDS = 15.0  # brokers respond to a change after fsync


class Links:
    """An admin and a reader for pages, an admin for changes, and an admin for the sampler, each started on first use.

    The sampler has its own connections: on a large cluster it sends hundreds of requests at once, and responses for a
    page would be queued behind theirs.
    """

    def __init__(self, name_server: str, connecting: Mapping[str, Any]) -> None:
        self.admin = Admin(name_server, request_timeout=REQUEST_SECONDS, **connecting)
        self.changing = Admin(name_server, request_timeout=CHANGE_SECONDS, instance_name="changes", **connecting)
        self.sampling = Admin(name_server, request_timeout=REQUEST_SECONDS, instance_name="sampler", **connecting)
        self.reader = Reader(name_server, request_timeout=REQUEST_SECONDS, **connecting)
        self._name_server = name_server
        self._pool = ThreadPoolExecutor(THREADS, "console-page")
        self._search_pool = ThreadPoolExecutor(SEARCH_THREADS, "console-find")
        self._waiting = 0

    async def run(self, ask: Callable[[], T], *, is_search: bool = False) -> T:
        """Run ``ask()`` on a thread of a pool. Await it on one event loop only."""
        if self._waiting >= MAX_PENDING_REQUESTS:
            raise Refused(
                f"Too many pending requests to the cluster ({self._waiting}).",
                remedy="Retry in a few seconds; the overview shows unresponsive brokers.",
                code="CONSOLE_BUSY",
            )
        self._waiting += 1
        try:
            pool = self._search_pool if is_search else self._pool
            return await asyncio.get_running_loop().run_in_executor(pool, ask)
        finally:
            self._waiting -= 1

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers; empty if an address server provides them."""
        return list(parse_name_servers(self._name_server).addresses)

    @property
    def waiting(self) -> int:
        return self._waiting

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._search_pool.shutdown(wait=False, cancel_futures=True)
        self.reader.close()
        self.sampling.close()
        self.changing.close()
        self.admin.close()
