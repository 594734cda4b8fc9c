"""A name server and a broker for tests: free ports, a directory of their own, gone at the end.

By default they run in one process of their own, started as ``rocket up`` starts them, so that they do not share the
test's interpreter; ``in_process=True`` runs them on a thread instead. Nobody sleeps to find out whether they are up:
the process says so on a pipe. Should the test's process die, the end of another pipe stops the servers.

Thread-safety: one thread at a time. After ``kill_broker`` the data directory is as the kill left it.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import spark_rocket
from spark_rocket.broker.config import BrokerConfig
from spark_rocket.broker.java_properties import render_properties
from spark_rocket.broker.server import Broker
from spark_rocket.broker.service import BrokerService
from spark_rocket.errors import BrokerError, StateError
from spark_rocket.namesrv.server import NameServer
from spark_rocket.protocol.bodies import SubscriptionGroupConfig
from spark_rocket.protocol.codes import RequestCode, ResponseCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from spark_rocket.proxy.startup import start_proxy
from spark_rocket.remoting.client import RemotingClient
from spark_rocket.remoting.server import new_event_loop

if TYPE_CHECKING:
    from spark_rocket.proxy.server import ProxyServer

_HOST = "127.0.0.1"
_STOP_SECONDS = 60.0
# A test's few messages are taken on a machine whose disk is nearly full, and none of them disappears.
_DISK_RATIOS = {"diskMaxUsedSpaceRatio": 100, "diskSpaceCleanForciblyRatio": 100, "diskSpaceWarningLevelRatio": 100}


class LocalCluster:
    """``with LocalCluster() as cluster: … cluster.name_server …``

    ``config`` holds broker settings under Apache's names (``{"flushDiskType": "SYNC_FLUSH"}``). With ``data_dir`` the
    messages outlive the cluster and the next one on the same directory has them again.
    """

    def __init__(
        self,
        *,
        data_dir: Path | str | None = None,
        config: Mapping[str, object] | None = None,
        in_process: bool = False,
        start_timeout: float = 60.0,
    ) -> None:
        self._temporary = data_dir is None
        self._given = None if data_dir is None else Path(data_dir)
        self._config: dict[str, object] = {**_DISK_RATIOS, "grpcServerPort": 0, **(config or {})}
        self._in_process = in_process
        self._start_timeout = start_timeout
        self._ports = (0, 0)
        self._grpc_port: int | None = None
        self._server: _ServerProcess | _ServerThread | None = None
        self._client: RemotingClient | None = None
        self.data_dir = Path()

    def __repr__(self) -> str:
        return f"<LocalCluster {self.name_server if self._server is not None else 'not running'}>"

    # --- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start both servers and wait until they answer."""
        if self._server is not None:
            raise StateError("This cluster is already running.")
        self.data_dir = self._given or Path(tempfile.mkdtemp(prefix="rocket-"))
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._start_servers()

    def stop(self) -> None:
        """Stop cleanly; a temporary data directory is removed."""
        if self._client is not None:
            self._client.close()
            self._client = None
        server, self._server = self._server, None
        try:
            if server is not None:
                server.stop()
        finally:
            self._ports = (0, 0)
            self._grpc_port = None
            if self._temporary:
                shutil.rmtree(self.data_dir, ignore_errors=True)

    def kill_broker(self) -> None:
        """SIGKILL for the servers' process, as a power cut for the broker would be for its connections."""
        server = self._running()
        if not isinstance(server, _ServerProcess):
            raise StateError("A cluster inside this process cannot be killed.", remedy="Leave in_process out.")
        server.kill()
        self._server = None

    def restart_broker(self) -> None:
        """Start again on the same data and ports, after a kill or instead of what runs."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        self._start_servers()

    def _start_servers(self) -> None:
        kind = _ServerThread if self._in_process else _ServerProcess
        again = {} if self._grpc_port is None else {"grpcServerPort": self._grpc_port}
        self._server = kind(self.data_dir, {**self._config, **again}, self._ports, self._start_timeout)
        self._ports = (_port(self.name_server), _port(self.broker_address))
        self._grpc_port = None if self._server.grpc is None else _port(self._server.grpc)

    def _running(self) -> _ServerProcess | _ServerThread:
        if self._server is None:
            raise StateError("This cluster is not running.", remedy="Use it inside a with block, or call start().")
        return self._server

    # --- where and what -----------------------------------------------------------------------------------------

    @property
    def name_server(self) -> str:
        """The name server's address, for the ``nameServer`` option."""
        return self._running().name_server

    @property
    def broker_address(self) -> str:
        return self._running().broker

    @property
    def grpc_endpoint(self) -> str:
        """What RocketMQ 5's own clients call ``endpoints``, ``host:port``."""
        endpoint = self._running().grpc
        if endpoint is None:
            raise StateError(
                "This cluster has no gRPC endpoint.",
                remedy="Leave grpcServerPort out of its settings, and install protobuf.",
            )
        return endpoint

    @property
    def store_dir(self) -> Path:
        """The broker's store directory, for ``check_store`` once the broker is stopped."""
        return self.data_dir / "store"

    @property
    def pid(self) -> int:
        """The process that the servers run in."""
        return self._running().pid

    @property
    def log(self) -> str:
        """What the servers have written so far (nothing when they run in this process)."""
        path = self.data_dir / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def create_topic(self, name: str, queues: int = 4, *, perm: int = 6, message_type: str | None = None) -> str:
        """Create a topic; it can be used as soon as this returns.

        ``message_type``: what RocketMQ 5's own clients may send to it, NORMAL, FIFO, DELAY or TRANSACTION; else any.
        """
        header = CreateTopicRequestHeader(
            topic=name,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
            attributes=None if message_type is None else f"+message.type={message_type}",
        )
        self._invoke(RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext()))
        return name

    def create_group(self, name: str, *, ordered: bool = False, retry_max_times: int = 16) -> str:
        """Create a consumer group; ``ordered``: its consumers are given messages in order, one after another's ack."""
        group = SubscriptionGroupConfig(
            group_name=name, consume_message_orderly=ordered, retry_max_times=retry_max_times
        )
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        self._invoke(RemotingCommand.request(code, body=group.to_json()))
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages; the name server forgets it too."""
        ext = DeleteTopicRequestHeader(topic=name).to_ext()
        self._invoke(RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, ext))
        self._invoke(RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext), self.name_server)

    def _invoke(self, request: RemotingCommand, address: str | None = None) -> None:
        if self._client is None:
            self._client = RemotingClient()
        answer = self._client.invoke(address or self.broker_address, request, timeout=10.0)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(
                f"{address or self.broker_address} answered {answer.code}: {answer.remark or 'no remark'}.",
                response_code=answer.code,
            )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class _ServerProcess:
    """``rocket up`` in a process of its own."""

    def __init__(self, data_dir: Path, config: Mapping[str, object], ports: tuple[int, int], timeout: float) -> None:
        conf = data_dir / "broker.conf"
        BrokerConfig.from_properties(config)  # a wrong setting is told here, not in the server's log
        conf.write_text(render_properties((name, _text(value)) for name, value in config.items()), encoding="utf-8")
        (data_dir / "store").mkdir(exist_ok=True)
        ready_read, ready_write = os.pipe()
        lifeline_read, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "spark_rocket.cli", "up"]
        command += ["--data", str(data_dir), "-c", str(conf)]
        command += ["--nameserver-port", str(ports[0]), "--broker-port", str(ports[1])]
        command += ["--ready-fd", str(ready_write), "--lifeline-fd", str(lifeline_read)]
        log_path = data_dir / "server.log"
        try:
            with log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(ready_write, lifeline_read),
                    env=_environment(),
                    start_new_session=True,  # a Ctrl-C in the terminal is for the test, which then stops this
                )
        except BaseException:
            os.close(ready_read)
            os.close(self._lifeline)
            raise
        finally:
            os.close(ready_write)
            os.close(lifeline_read)
        self.pid = self._process.pid
        try:
            facts = _read_line(ready_read, timeout)
            self.name_server: str = facts["nameServer"]
            self.broker: str = facts["broker"]
            self.grpc: str | None = facts.get("grpc")
        except (ValueError, KeyError) as error:
            self.kill()
            tail = log_path.read_text(errors="replace")[-2_000:].strip()
            raise StateError(f"The servers did not start: {tail or error}") from None
        finally:
            os.close(ready_read)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise StateError(f"The servers did not stop within {_STOP_SECONDS:.0f} s and were killed.") from None
        os.close(self._lifeline)
        if status != 0:
            raise StateError(f"The servers stopped with exit status {status}; see server.log in the data directory.")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._lifeline)


def _read_line(descriptor: int, timeout: float) -> dict[str, str]:
    """The JSON line that the servers send; ValueError when they end or take too long before that."""
    deadline = time.monotonic() + timeout
    received = b""
    while not received.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))
        piece = os.read(descriptor, 4096) if readable else b""
        if not piece:
            raise ValueError("they ended before that" if readable else f"not ready within {timeout:.0f} s")
        received += piece
    facts: dict[str, str] = json.loads(received)
    return facts


def _environment() -> dict[str, str]:
    """This process's, with this package importable however it came to be importable here."""
    root = str(Path(spark_rocket.__file__).resolve().parents[1])
    others = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in (root, others) if part)}


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


class _ServerThread:
    """Both servers on an event loop in a thread of this process."""

    def __init__(self, data_dir: Path, config: Mapping[str, object], ports: tuple[int, int], timeout: float) -> None:
        self.pid = os.getpid()
        self.name_server = ""
        self.broker = ""
        self.grpc: str | None = None
        self.service: BrokerService | None = None  # for tests of the broker itself
        self.proxy: ProxyServer | None = None  # and of the proxy
        self._data_dir = data_dir
        self._config = config
        self._ports = ports
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop = new_event_loop()
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="local-cluster", daemon=True)
        self._thread.start()
        if not self._ready.wait(timeout):
            raise StateError(f"The servers were not ready within {timeout:.0f} s.")
        if self._error is not None:
            self._thread.join()
            raise self._error

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            self._ready.set()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        as_up_has_it = {"recallMessageEnable": True, "enablePropertyFilter": True, "enableMixedMessageType": True}
        config = BrokerConfig.from_properties({**as_up_has_it, **self._config})
        config.bind_address = _HOST
        config.listen_port = self._ports[1]
        config.store_path_root_dir = self._data_dir / "store"
        namesrv = NameServer(_HOST, self._ports[0], kv_config_path=self._data_dir / "namesrv" / "kvConfig.json")
        await namesrv.start()
        try:
            config.namesrv_addr = namesrv.address
            broker = Broker(config)
            await broker.start()
            try:
                await asyncio.wait([broker.service.registration.register()], timeout=2.0)
                proxy = await start_proxy(broker)
                try:
                    self.name_server, self.broker = namesrv.address, broker.address
                    self.grpc = None if proxy is None else proxy.address
                    self.service, self.proxy = broker.service, proxy
                    self._ready.set()
                    await self._stop.wait()
                finally:
                    if proxy is not None:
                        await proxy.close()
            finally:
                await broker.close()
        finally:
            await namesrv.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            raise StateError(f"The servers did not stop within {_STOP_SECONDS:.0f} s.")
        if self._error is not None:
            raise self._error
