"""The endpoint of a process of clients: ``/metrics`` and ``/health`` on an event loop of its own thread.

Thread-safety: all methods.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from spark_rocket.client.core.metrics import client_metrics
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.http.exposition import CONTENT_TYPE
from spark_rocket.remoting.http.server import HttpAnswer, HttpServer


class ClientMetricsServer:
    """``/metrics`` and ``/health`` of this process, served by a thread of its own until it is closed."""

    def __init__(self, port: int, host: str) -> None:
        self.url = ""
        self._server = HttpServer(
            host, port, {"/metrics": self._metrics, "/health": self._health}, name="client's metrics endpoint"
        )
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._error: ConfigError | None = None
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="rocket-client-metrics", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving. Closing twice is closing once."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        try:
            await self._server.start()
            self.url = self._server.url
        except ConfigError as error:
            self._error = error
            return
        finally:
            self._started.set()
        await self._stop.wait()
        await self._server.close()

    async def _metrics(self) -> HttpAnswer:
        return HttpAnswer(client_metrics(), CONTENT_TYPE)

    async def _health(self) -> HttpAnswer:
        return HttpAnswer.of_json({"status": "UP"})
