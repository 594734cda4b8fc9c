"""A process without free descriptors refuses connections on every port and continues to store."""

from __future__ import annotations

import re
import resource
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import RocketError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.ports import free_port
from tests.kit.waiting import until

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="prlimit and /proc are Linux's"), pytest.mark.live]

SETTINGS = {"mappedFileSizeCommitLog": 65_536, "mappedFileSizeConsumeQueue": 400, "metricsExporterType": "PROM"}
MARGIN = 100  # descriptors beyond those in use; 32 of them are not for connections
CALLERS = 50  # on each port


def in_use(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@contextmanager
def few_descriptors(pid: int) -> Iterator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (in_use(pid) + MARGIN, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def is_closed(sock: socket.socket) -> bool:
    """By the other side: without any data."""
    return bool(select.select([sock], [], [], 0)[0])


def test_connections_leave_descriptors_for_the_store(tmp_path: Path) -> None:
    ha_port = free_port()
    settings = {**SETTINGS, "haListenPort": ha_port}
    with LocalCluster(data_dir=tmp_path, config=settings) as cluster, RemotingClient() as client, ExitStack() as stack:
        wire = Wire(client, cluster.broker_address)
        cluster.create_topic("T")
        stored = 0

        def store(count: int) -> None:
            nonlocal stored
            for _ in range(count):
                answer = wire.send("T", b"x" * 4000)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                assert answer.ext_fields["queueOffset"] == str(stored)
                stored += 1

        store(1)
        ports = [int(cluster.broker_address.rpartition(":")[2])]
        ports += [int(cluster.name_server.rpartition(":")[2]), ha_port, int(cluster.metrics_url.rpartition(":")[2])]
        before = in_use(cluster.pid)
        with few_descriptors(cluster.pid):
            callers = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                for _ in range(CALLERS)
                for port in ports
            ]
            refused = len(callers) - MARGIN
            until(lambda: sum(map(is_closed, callers)) >= refused)
            assert in_use(cluster.pid) > before  # the others are connected
            store(100)  # six files of the log, five of the queue
            assert wire.send("Another").code == ResponseCode.SUCCESS  # its topic is written to the disk, too
            wire.create_group("g")
            assert wire.commit("g", "T", 1).code == ResponseCode.SUCCESS
            assert len(wire.messages("T", 0, maxMsgNums=32)) == 32
            for name in ("broker", "name server", "HA port of", "metrics"):
                assert re.search(rf"The {name}.* rejected the connection of", cluster.log), name
            for caller in callers:
                caller.close()

            def is_let_in() -> bool:
                with RemotingClient() as other:
                    try:
                        return Wire(other, cluster.broker_address).send("T", b"y" * 4000).code == ResponseCode.SUCCESS
                    except RocketError:
                        return False

            until(is_let_in)
        stored += 1
        store(20)
        log = cluster.log
    assert "flush of the" not in log
    assert "No room for messages" not in log
    config = BrokerConfig.from_properties({**settings, "storePathRootDir": cluster.store_dir}).store_config()
    assert check_store(cluster.store_dir, config) == []
