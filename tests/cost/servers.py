"""The servers under test, each in a process of its own, and their CPU time and memory as Linux reports them."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.java_properties import render_properties
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.frame import FrameSplitter
from spark_rocket.testing.processes import ServerProcess
from tests.kit.waiting import until

_TICKS = os.sysconf("SC_CLK_TCK")
_PAUSE_S = 0.02
_LIMIT_S = 240.0
_SLACK_MB = 3.0
UNKNOWN_CODE = 9_999
PROXY_IDLE_MS = 10_000
"""After this time without a call the proxy removes a client: grpcClientIdleTimeMills, 120 s by default."""


class Measured:
    """A server process, seen from outside."""

    def __init__(self, name: str, process: ServerProcess) -> None:
        self.name = name
        self.process = process
        self.pid = process.pid

    def cpu(self) -> float:
        """Seconds of CPU time, of user and system."""
        raw = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(raw[11]) + int(raw[12])) / _TICKS

    def memory(self) -> float:
        """Anonymous memory in MB."""
        return self._status("RssAnon")

    def peak(self) -> float:
        """The highest anonymous memory since :meth:`reset_peak` in MB, without mapped files."""
        return self._status("VmHWM") - self._status("RssFile") - self._status("RssShmem")

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def settle(self, quiet: float = 2 * _PAUSE_S) -> float:
        """Wait until it uses no CPU for ``quiet`` seconds; return its CPU time."""
        deadline, last, since = time.monotonic() + _LIMIT_S, self.cpu(), time.monotonic()
        while time.monotonic() - since < quiet:
            time.sleep(_PAUSE_S)
            now = self.cpu()
            if now > last + 0.011:  # a tick is its own timers
                last, since = now, time.monotonic()
            assert time.monotonic() < deadline, f"{self.name} is still busy after {_LIMIT_S:.0f} s"
        return self.cpu()

    def idle(self, seconds: float) -> None:
        """Let it alone for so long: what it does then is periodic work."""
        time.sleep(seconds)

    def memory_back(self, before: float) -> float:
        """Wait at most a minute until the memory is what it was, or a tenth more; return what it has more."""
        with suppress(AssertionError):
            until(lambda: self.is_back(before), "memory")
        return self.memory() - before

    def is_back(self, before: float) -> bool:
        return self.memory() <= 1.1 * before + _SLACK_MB

    def _status(self, name: str) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) / 1000
        raise AssertionError(name)


class Line:
    """A connection that sends frames and collects responses."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self.answers: dict[int, RemotingCommand] = {}
        self.received = 0
        """Bytes of responses."""
        self._opaque = 0
        self._connect()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        self.is_closed = False
        self._news = threading.Condition()
        self._socket = socket.create_connection(self._address, timeout=_LIMIT_S)
        self._reader = threading.Thread(target=self._read, args=(self._socket,), daemon=True)
        self._reader.start()

    def _read(self, sock: socket.socket) -> None:
        decoder = FrameSplitter()
        with suppress(OSError, ProtocolError):  # a response that no client reads ends the connection
            while data := sock.recv(1 << 18):
                self.received += len(data)
                for frame in decoder.feed(data):
                    answer = RemotingCommand.decode(frame)
                    answer.body = bytes(answer.body[:64])
                    with self._news:
                        self.answers[answer.opaque] = answer
                        self._news.notify_all()
        with self._news:
            self.is_closed = True
            self._news.notify_all()

    def send(self, request: RemotingCommand) -> int:
        """Send without waiting; return the request's number. After a close by the server it connects again."""
        if self.is_closed:
            self.close()
            self._connect()
        self._opaque += 1
        request.opaque = self._opaque
        with suppress(OSError):
            self._socket.sendall(request.encode())
        return self._opaque

    def ask(self, request: RemotingCommand) -> RemotingCommand | None:
        """The response; None if the server closed the connection."""
        number = self.send(request)
        with self._news:
            assert self._news.wait_for(lambda: number in self.answers or self.is_closed, _LIMIT_S)
            return self.answers.pop(number, None)

    def pass_through(self) -> None:
        """Wait until the server has begun all earlier requests of this connection, or has closed it."""
        self.ask(RemotingCommand(UNKNOWN_CODE))

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()


class Servers:
    """A name server, a broker, and on demand a proxy and a console."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self._directory = directory
        self._settings = settings
        self._started: list[Measured] = []

    def __enter__(self) -> Servers:
        name_server = self._start("name server", "namesrv", "--port", "0", "--data", str(self._directory / "namesrv"))
        self.name_server = str(name_server.process.facts["nameServer"])
        self.namesrv = name_server
        conf = self._directory / "broker.conf"
        own: dict[str, Any] = {
            "namesrvAddr": self.name_server,
            "brokerName": "broker-a",
            "listenPort": "0",
            "storePathRootDir": str(self._directory / "store"),
            "vipChannelEnable": "false",
            "diskMaxUsedSpaceRatio": "100",
            "diskSpaceWarningLevelRatio": "100",
            "diskSpaceCleanForciblyRatio": "100",
            "registerNameServerPeriod": "10000",
            "metricsExporterType": "PROM",
            "metricsPromExporterPort": "0",
            **self._settings,
        }
        conf.write_text(render_properties((name, str(value)) for name, value in own.items()))
        self.broker = self._start("broker", "broker", "-c", str(conf))
        self.broker_address = str(self.broker.process.facts["broker"])
        self.topics_file = self._directory / "store" / "config" / "topics.json"
        self.metrics_url = str(self.broker.process.facts["metrics"])
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._started):
            server.process.kill()

    def proxy(self) -> tuple[Measured, str]:
        conf = self._directory / "proxy.conf"
        conf.write_text(f"grpcClientIdleTimeMills={PROXY_IDLE_MS}\n")
        server = self._start("proxy", "proxy", "-c", str(conf), "-n", self.name_server, "--grpc-port", "0")
        return server, str(server.process.facts["grpc"])

    def console(self) -> tuple[Measured, str]:
        server = self._start("console", "console", "-n", self.name_server, "--port", "0")
        return server, str(server.process.facts["console"])

    def _start(self, name: str, *arguments: str) -> Measured:
        log = self._directory / f"{name.replace(' ', '-')}.log"
        server = Measured(name, ServerProcess(list(arguments), log, 60.0))
        self._started.append(server)
        return server
