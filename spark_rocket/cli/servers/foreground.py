"""What every server in the foreground does: say where it is, serve metrics, wait for the signal to stop.

A port for metrics that is taken does not stop a server: that is printed.

Imports no server, so that a process of one of them has none of the others in memory. Thread-safety: one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_rocket.errors import ConfigError
from spark_rocket.remoting.http.monitor import MetricsExporterType, MetricsSource, Monitor
from spark_rocket.remoting.server.sockets import is_loopback
from spark_rocket.remoting.tls.contexts import server_tls
from spark_rocket.remoting.tls.settings import TlsMode, TlsSettings
from spark_rocket.system import keep_freed_memory

if TYPE_CHECKING:
    from spark_rocket.broker.state.config import BrokerConfig
    from spark_rocket.proxy.config import ProxyConfig

_log = logging.getLogger(__name__)

NO_PORT = -1
_LOOPBACK = "127.0.0.1"
_OPEN = ("0.0.0.0", "::")


def reachable(address: str) -> str:
    """A name server on every interface, as a process on this machine calls it."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK}:{port}" if host.strip("[]") in _OPEN else address


def tls_line(settings: TlsSettings) -> list[str]:
    return {
        TlsMode.DISABLED: [],
        TlsMode.PERMISSIVE: ["  TLS          permissive: whoever calls with TLS is answered with it"],
        TlsMode.ENFORCING: ["  TLS          enforcing: whoever calls without TLS (tls=true) is not served"],
    }[settings.server_mode]


def warn_open(host: str, *, checked: bool = False) -> list[str]:
    """``checked``: the broker asks who is asking."""
    if host not in _OPEN:
        return []
    if checked:
        return [
            f"OPEN: listening on every interface ({host}). The broker serves whom its accounts allow (aclEnable); the "
            "name server and the port for slaves serve everybody.\n"
        ]
    return [
        f"OPEN TO EVERYONE: listening on every interface ({host}). There is no access control: whoever reaches this "
        "machine can read and write every topic.\n"
    ]


def say(*lines: str) -> None:
    print("\n".join(lines), flush=True)


def tell(text: str) -> None:
    """Say it, if the terminal is still there."""
    with contextlib.suppress(OSError):
        say(text)


def ready(descriptor: int | None, facts: dict[str, str]) -> None:
    """Tell the program that started this one."""
    if descriptor is not None:
        os.write(descriptor, json.dumps(facts).encode() + b"\n")
        os.close(descriptor)


class Stopping:
    """Waits for SIGTERM, SIGINT, SIGHUP or the end of a lifeline: a pipe whose other end the parent process holds.

    SIGHUP, the end of the terminal, does nothing where it was ignored before the start: nohup means that.
    """

    def __init__(self, lifeline: int | None = None) -> None:
        self._lifeline = lifeline
        self._signals = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._signals.append(signal.SIGHUP)

    async def __aenter__(self) -> Callable[[], Awaitable[None]]:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for signal_number in self._signals:
            loop.add_signal_handler(signal_number, stop.set)
        if self._lifeline is not None:
            lifeline = self._lifeline

            def ended() -> None:
                loop.remove_reader(lifeline)
                stop.set()

            loop.add_reader(lifeline, ended)

        async def wait() -> None:
            _tune_collector()
            await stop.wait()

        return wait

    async def __aexit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for signal_number in self._signals:
            loop.remove_signal_handler(signal_number)


def raise_file_limit() -> None:
    """As many open files as the system lets this process have: each connection and each consume queue is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # where unlimited is not meant literally
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tune_collector() -> None:
    """What is there after the start stays; requests leave no cycles, so the collector need not look often.

    Memory of large answers is kept for the next one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    keep_freed_memory()


# --- figures and health ----------------------------------------------------------------------------------------------


def metrics_port(config: BrokerConfig | ProxyConfig) -> int:
    """The port that the settings ask for; NO_PORT for none."""
    kind = config.metrics_exporter_type
    if kind is MetricsExporterType.PROM:
        return config.metrics_prom_exporter_port
    if kind is not MetricsExporterType.DISABLE:
        _log.warning("metricsExporterType=%s is not served here: set PROM, and let its collector scrape.", kind.value)
    return NO_PORT


@dataclass(frozen=True)
class Started:
    """What to tell whoever started it: people, a line or none, and programs."""

    lines: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


async def start_monitor(
    servers: AsyncExitStack,
    *sources: MetricsSource,
    host: str = "",
    port: int,
    tls: TlsSettings | None = None,
) -> Started:
    """Serve until ``servers`` are closed. It is HTTPS where ``tls`` enforces TLS."""
    if port == NO_PORT:
        return Started()
    host = host or _LOOPBACK
    wanted = server_tls(tls, (host, "localhost", _LOOPBACK)) if tls and tls.mode is TlsMode.ENFORCING else None
    monitor = Monitor(host, port, sources, ssl=wanted.listening() if wanted is not None else None)
    try:
        await monitor.start()
    except ConfigError as error:
        return Started([f"  metrics      none: {error.message} Choose another port (--metrics-port)."])
    servers.push_async_callback(monitor.close)
    whose = "" if is_loopback(host) else " (open to everyone)"
    return Started([f"  metrics      {monitor.url}/metrics, /health and /ready{whose}"], {"metrics": monitor.url})
