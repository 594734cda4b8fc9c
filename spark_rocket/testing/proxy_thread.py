"""The gRPC proxy on an event loop of its own, in a thread of the test's process.

It speaks with the brokers over Remoting, so it needs no more of them than their name server, wherever they run.
Thread-safety: one thread at a time; ``server`` is used on its loop only.
"""

from __future__ import annotations

import asyncio
import threading

from spark_rocket.errors import StateError
from spark_rocket.proxy.config import ProxyConfig
from spark_rocket.proxy.server import ProxyServer
from spark_rocket.testing.processes import STOP_SECONDS


class ProxyThread:
    """A started proxy. ConfigError when it cannot start."""

    def __init__(self, config: ProxyConfig, timeout: float) -> None:
        self.loop = asyncio.new_event_loop()
        self.server: ProxyServer
        """For tests of the proxy itself."""
        self.address = ""
        self._config = config
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="grpc-proxy", daemon=True)
        self._thread.start()
        if not self._ready.wait(timeout):
            raise StateError(f"The gRPC proxy was not ready within {timeout:.0f} s.")
        if self._error is not None:
            self._thread.join()
            raise self._error

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            self._ready.set()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self.server = ProxyServer(self._config)
        await self.server.start()
        try:
            self.address = self.server.address
            self._ready.set()
            await self._stop.wait()
        finally:
            await self.server.close()

    def stop(self) -> None:
        """End calls in progress and wait for its end. Idempotent."""
        if not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise StateError(f"The gRPC proxy did not stop within {STOP_SECONDS:.0f} s.")
        if self._error is not None:
            raise self._error
