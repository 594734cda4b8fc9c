"""A proxy's cluster and families on a loop of its own, called as functions, beside brokers that are processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from spark_rocket.proxy.cluster.cluster import Cluster
from spark_rocket.proxy.server import Families
from tests.proxy.caller import consumer_settings
from tests.proxy.direct import DirectCaller

T = TypeVar("T")
LIMIT = 60.0


class ProxyThread:
    """One proxy. ``client`` gives callers."""

    def __init__(self, name_server: str, **settings: Any) -> None:
        self.readers: list[asyncio.Task[None]] = []
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.server = self  # for DirectCaller
        self.cluster = Cluster(name_server, **settings)
        self.do(self.cluster.start())
        self.families: Families = self.run(
            lambda: Families(self.cluster, lambda: ("127.0.0.1", 8081), min_polling_ms=100)
        )
        self.clients = self.families.clients
        self.rpcs = self.families.rpcs()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT)

    def run(self, call: Callable[[], T]) -> T:
        async def on_the_loop() -> T:
            return call()

        return self.do(on_the_loop())

    def client(self, client_id: str = "direct@1") -> ThreadCaller:
        return ThreadCaller(self, client_id)

    def close(self) -> None:
        self.do(self._close())
        self.stop()

    async def _close(self) -> None:
        for reader in self.readers:
            reader.cancel()
        await asyncio.gather(*self.readers, return_exceptions=True)
        await self.families.close()
        await self.cluster.close()

    def stop(self) -> None:
        """Without a word, as a process that is killed."""
        self.do(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LIMIT)
        self.loop.close()

    async def _end(self) -> None:
        await self.cluster.remoting.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ThreadCaller(DirectCaller):
    """A client of a :class:`ProxyThread`."""

    def __init__(self, proxy: ProxyThread, client_id: str) -> None:
        super().__init__(proxy, client_id)  # type: ignore[arg-type]
        self.proxy = proxy

    def consume(self, group: str, *topics: str) -> None:
        """Say a consumer's settings on a stream that stays open."""
        self.proxy.do(self._open(consumer_settings(group, *topics)))

    def messages(self, group: str, topic: str, broker: str = "", **fields: Any) -> list[Any]:
        """The messages that are there; none of a broker that is away."""
        answers = self.answers(group, topic, broker, seconds=0.1, **fields)
        return [answer.message for answer in answers if answer.WhichOneof("content") == "message"]


@contextmanager
def proxy_of(name_server: str, **settings: Any) -> Iterator[ProxyThread]:
    proxy = ProxyThread(name_server, **settings)
    try:
        yield proxy
    finally:
        proxy.close()
