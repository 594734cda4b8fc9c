"""Servers with their own event loop, in a thread of the test's process.

Thread-safety: one thread at a time; the servers themselves are used on their loop only.
"""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_rocket.broker.broker import Broker
from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.cluster_layout import UP_DEFAULTS
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import StateError
from spark_rocket.namesrv.name_server import NameServer
from spark_rocket.remoting.event_loop import new_event_loop
from spark_rocket.testing.processes import STOP_SECONDS

if TYPE_CHECKING:
    from spark_rocket.proxy.proxy_config import ProxyConfig
    from spark_rocket.proxy.server import ProxyServer

_HOST = "127.0.0.1"


class ServingThread(ABC):
    """A thread with a loop that serves until :meth:`stop`. The constructor raises errors of the start.

    ``what`` names the servers in errors.
    """

    def __init__(self, what: str, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self.loop = loop
        self._what = what
        self._up = threading.Event()
        self._error: BaseException | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._thread.start()
        if not self._up.wait(timeout):
            raise StateError(f"{what} did not start within {timeout:.0f} s.")
        if self._error is not None:
            self._thread.join()
            raise self._error

    @abstractmethod
    async def serve(self) -> None:
        """Start the servers, await :meth:`wait_for_stop`, close them."""

    async def wait_for_stop(self) -> None:
        """Report that the start is complete, and wait for :meth:`stop`."""
        self._up.set()
        await self._stop.wait()

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self.serve())
        except BaseException as error:
            self._error = error
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            self._up.set()

    def stop(self) -> None:
        """Stop the servers and wait for their end. Idempotent."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise StateError(f"{self._what} did not stop within {STOP_SECONDS:.0f} s.")
        if self._error is not None:
            raise self._error


class ServerThread(ServingThread):
    """A name server and a broker."""

    def __init__(self, data_dir: Path, config: Mapping[str, object], ports: tuple[int, int], timeout: float) -> None:
        self.pid = os.getpid()
        self.name_server = ""
        self.broker = ""
        self.metrics: str | None = None
        self.parts: BrokerParts | None = None  # for tests of the broker itself
        self.servers: tuple[NameServer, Broker] | None = None
        self._data_dir = data_dir
        self._config = config
        self._ports = ports
        super().__init__("The servers", new_event_loop(), timeout)

    async def serve(self) -> None:
        config = BrokerConfig.from_properties({**UP_DEFAULTS, **self._config})
        config.bind_address = _HOST
        config.listen_port = self._ports[1]
        config.store = replace(config.store, store_path_root_dir=self._data_dir / "store")
        kv_config = self._data_dir / "namesrv" / "kvConfig.json"
        namesrv = NameServer(_HOST, self._ports[0], kv_config_path=kv_config, tls=config.tls_settings())
        await namesrv.start()
        try:
            config.namesrv_addr = namesrv.address
            broker = Broker(config)
            await broker.start()
            try:
                await asyncio.wait([broker.parts.registration.register()], timeout=2.0)
                self.name_server, self.broker = namesrv.address, broker.address
                self.parts, self.servers = broker.parts, (namesrv, broker)
                await self.wait_for_stop()
            finally:
                await broker.close()
        finally:
            await namesrv.close()


class ProxyThread(ServingThread):
    """A running gRPC proxy. ConfigError if it cannot start.

    It uses Remoting to call the brokers, so it only needs their name server, wherever they run.
    """

    def __init__(self, config: ProxyConfig, timeout: float) -> None:
        self.server: ProxyServer
        """For tests of the proxy itself."""
        self.address = ""
        self._config = config
        super().__init__("The gRPC proxy", asyncio.new_event_loop(), timeout)

    async def serve(self) -> None:
        from spark_rocket.proxy.server import ProxyServer  # only if used: gRPC is an optional dependency

        self.server = ProxyServer(self._config)
        await self.server.start()
        try:
            self.address = self.server.address
            await self.wait_for_stop()
        finally:
            await self.server.close()
