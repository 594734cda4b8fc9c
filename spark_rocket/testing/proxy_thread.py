"""The gRPC proxy in a thread of the test's process.

It speaks with the brokers over Remoting, so it needs no more of them than their name server, wherever they run.
Thread-safety: one thread at a time; ``server`` is used on its loop only.
"""

from __future__ import annotations

import asyncio

from spark_rocket.proxy.config import ProxyConfig
from spark_rocket.proxy.server import ProxyServer
from spark_rocket.testing.threads import LoopThread


class ProxyThread(LoopThread):
    """A started proxy. ConfigError when it cannot start."""

    def __init__(self, config: ProxyConfig, timeout: float) -> None:
        self.server: ProxyServer
        """For tests of the proxy itself."""
        self.address = ""
        self._config = config
        super().__init__("The gRPC proxy", asyncio.new_event_loop(), timeout)

    async def serve(self) -> None:
        self.server = ProxyServer(self._config)
        await self.server.start()
        try:
            self.address = self.server.address
            await self.wait_for_stop()
        finally:
            await self.server.close()
