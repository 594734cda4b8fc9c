"""Common parts of servers in the foreground: print the address, serve metrics, wait for the signal to stop.

If the metrics port is in use, the server prints that and runs without metrics.

This module imports no server, so that a server's process does not load the others. Thread-safety: one event loop.
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

from spark_rocket.common.system import keep_freed_memory
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.address import is_loopback
from spark_rocket.remoting.http.monitor import MetricsExporterType, MetricsSource, Monitor
from spark_rocket.remoting.tls.contexts import server_tls
from spark_rocket.remoting.tls.settings import TlsMode, TlsSettings

if TYPE_CHECKING:
    from spark_rocket.broker.state.broker_config import BrokerConfig
    from spark_rocket.proxy.proxy_config import ProxyConfig

_log = logging.getLogger(__name__)

NO_PORT = -1
_LOOPBACK = "127.0.0.1"
_OPEN = ("0.0.0.0", "::")


def reachable(address: str) -> str:
    """Return the address by which a process on this machine reaches a server, which may listen on every interface."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK}:{port}" if host.strip("[]") in _OPEN else address


def tls_line(settings: TlsSettings) -> list[str]:
    return {
        TlsMode.DISABLED: [],
        TlsMode.PERMISSIVE: ["  TLS          permissive: TLS and plaintext connections are accepted"],
        TlsMode.ENFORCING: ["  TLS          enforcing: clients must use TLS (tls=true)"],
    }[settings.server_mode]


def open_warning(host: str, *, checked: bool = False) -> list[str]:
    """Warn if ``host`` is every interface. ``checked``: access control is enabled."""
    if host not in _OPEN:
        return []
    if checked:
        return [
            f"OPEN: listening on every interface ({host}). The broker checks accounts (aclEnable); the name server and "
            "the port for slaves are open to everyone.\n"
        ]
    return [
        f"OPEN TO EVERYONE: listening on every interface ({host}) without access control. Every host that can reach "
        "this machine can read and write every topic.\n"
    ]


def print_lines(*lines: str) -> None:
    print("\n".join(lines), flush=True)


def print_line(text: str) -> None:
    """Print a line. A closed terminal is ignored."""
    with contextlib.suppress(OSError):
        print_lines(text)


def ready(descriptor: int | None, facts: dict[str, str]) -> None:
    """Report these facts to the parent process."""
    if descriptor is not None:
        os.write(descriptor, json.dumps(facts).encode() + b"\n")
        os.close(descriptor)


class StopSignals:
    """Waits for SIGTERM, SIGINT, SIGHUP or the end of a lifeline: a pipe whose other end the parent process holds.

    SIGHUP (the terminal was closed) stays ignored if it was ignored at the start, as under nohup.
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
    """Raise the limit of open files to the hard limit: each connection and each consume queue needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems reject "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tune_collector() -> None:
    """Run the garbage collector less often: objects of the start are permanent, and requests create no cycles.

    Freed memory of large responses is retained for reuse.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    keep_freed_memory()


# --- metrics and health ----------------------------------------------------------------------------------------------


def metrics_port(config: BrokerConfig | ProxyConfig) -> int:
    """Return the configured metrics port; NO_PORT for none."""
    kind = config.metrics_exporter_type
    if kind is MetricsExporterType.PROM:
        return config.metrics_prom_exporter_port
    if kind is not MetricsExporterType.DISABLE:
        _log.warning("unsupported metricsExporterType=%s: set PROM and scrape /metrics", kind.value)
    return NO_PORT


@dataclass(frozen=True)
class Started:
    """What a started monitor reports: lines for users, facts for programs."""

    lines: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


async def start_monitor(
    servers: AsyncExitStack,
    *sources: MetricsSource,
    host: str | None = None,
    port: int,
    tls: TlsSettings | None = None,
) -> Started:
    """Serve metrics and health until ``servers`` are closed. HTTPS if ``tls`` enforces TLS."""
    if port == NO_PORT:
        return Started()
    host = host or _LOOPBACK
    wanted = server_tls(tls, (host, "localhost", _LOOPBACK)) if tls and tls.mode is TlsMode.ENFORCING else None
    monitor = Monitor(host, port, sources, ssl=wanted.listening() if wanted is not None else None)
    try:
        await monitor.start()
    except ConfigError as error:
        return Started([f"  metrics      disabled: {error.message} Set another port with --metrics-port."])
    servers.push_async_callback(monitor.close)
    whose = "" if is_loopback(host) else " (open to everyone)"
    return Started([f"  metrics      {monitor.url}/metrics, /health and /ready{whose}"], {"metrics": monitor.url})
