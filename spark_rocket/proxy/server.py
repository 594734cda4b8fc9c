"""The proxy: the messaging service on a gRPC server, beside a started broker in the same process and loop.

Most brokers are never called by gRPC, so that nothing is loaded until one is: the port is bound at the start, and
protobuf and all that rests on it are imported, on a thread, when the first client waits there. It waits a tenth of a
second longer for that; all others are as quick to start and as small as without this.

TLS is spoken on the same port, as the settings of TLS say (``tls.server.…``): with the certificate of ``tlsCertPath``
and ``tlsKeyPath`` if this endpoint has one for itself, or else with one of our own making (``tlsTestModeEnable``).

Thread-safety: made, started and closed on the broker's event loop. Nothing is kept on disk.
Corresponds to org.apache.rocketmq.proxy.ProxyStartup in LOCAL mode.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from spark_rocket.broker.config import BrokerConfig
from spark_rocket.broker.server import Broker
from spark_rocket.errors import ConfigError
from spark_rocket.proxy.grpc_server import Http2Server
from spark_rocket.remoting.address import format_address
from spark_rocket.remoting.tls_contexts import ServerTls, server_tls

if TYPE_CHECKING:
    from spark_rocket.proxy.families import Families

_log = logging.getLogger(__name__)

_WILDCARDS = ("0.0.0.0", "::", "")


class ProxyServer:
    """One endpoint for one broker."""

    def __init__(self, broker: Broker, host: str, port: int) -> None:
        self._broker = broker
        self._host = host
        self._port = port
        self._server: Http2Server | None = None
        self._families: Families | None = None
        self._loading: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The real port, also when 0 was asked for."""
        return self._port

    @property
    def address(self) -> str:
        """``host:port`` that it listens on."""
        return format_address(self._host, self._port)

    @property
    def families(self) -> Families | None:
        """What serves; None before the first client has called."""
        return self._families

    async def start(self) -> None:
        """Serve whoever calls. ConfigError when the address cannot be had, or the certificate is none."""
        tls = _tls(self._broker.config, (*self._called_hosts(), "localhost", "127.0.0.1", "::1"))
        overload = self._broker.service.overload
        server = Http2Server(
            self._host,
            self._port,
            tls=tls,
            limits=overload.limits,
            overload=overload.stats,
            max_held=overload.limits.max_request_bytes,
        )
        await server.bind()
        self._server = server
        self._port = server.port
        server.when_called(self._load)

    def _load(self) -> None:
        self._loading = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        server = self._server
        try:
            module = await asyncio.to_thread(import_module, "spark_rocket.proxy.families")
        except Exception as error:
            _log.error("Nobody is served by gRPC: %s. Install what it needs (pip install protobuf).", error)
            if server is not None:
                await server.close()
            return
        if server is not None and server is self._server:
            families: Families = module.Families(self._broker, self._advertised)
            self._families = families
            server.serve(families.rpcs())

    def _called_hosts(self) -> tuple[str, ...]:
        host, own = self._host, self._broker.service.store_host[0]
        return (own,) if host in _WILDCARDS else tuple({host: None, own: None})

    def _advertised(self) -> tuple[str, int]:
        """The address for clients that do not say what they called."""
        return self._called_hosts()[0], self._port

    async def close(self) -> None:
        """Take no more calls and end those under way."""
        server, self._server = self._server, None
        if self._loading is not None:
            await asyncio.wait([self._loading])
        if self._families is not None:
            self._families.clients.end_streams()
        if server is not None:
            await server.close()
        if self._families is not None:
            self._families.close()
            self._families = None


def _tls(config: BrokerConfig, hosts: tuple[str, ...]) -> ServerTls | None:
    """What to speak TLS with, if at all."""
    settings = config.tls_settings()
    if bool(config.tls_cert_path) != bool(config.tls_key_path):
        raise ConfigError(
            "tlsCertPath and tlsKeyPath belong together, and only one of them is set.",
            remedy="Give both, or none for the certificate of tls.server.certPath, or one of our own making.",
        )
    if config.tls_cert_path:
        settings = replace(
            settings,
            server_cert_path=config.tls_cert_path,
            server_key_path=config.tls_key_path,
            server_key_password="",
        )
    elif not settings.server_cert_path:
        settings = replace(settings, test_mode=settings.test_mode or config.tls_test_mode_enable)
    return server_tls(settings, hosts, alpn=["h2"])
