"""SIGKILL of the broker while consumers return messages: each returned one is redelivered or a dead letter."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from spark_rocket.errors import RemotingError
from spark_rocket.model import Message
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.crash.test_kill_broker import read_all

pytestmark = pytest.mark.crash


def give_back_until_the_end(
    address: str, first: int, step: int, taken: dict[bytes, str], enough: threading.Event
) -> None:
    """Return every message of a share, with new groups; record accepted ones by topic."""
    with RemotingClient() as client:
        wire = Wire(client, address)
        try:
            for offset in range(first, 600, step):
                (message,) = wire.messages("Orders", offset, maxMsgNums=1)
                group, level = f"GID-{offset // 60}", 1 if offset % 3 else -1
                fields = {"offset": message.physical_offset, "group": group, "delayLevel": level}
                if wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **fields).code == ResponseCode.SUCCESS:
                    taken[message.body] = f"%{'RETRY' if level > 0 else 'DLQ'}%{group}"
                if len(taken) >= 300:
                    enough.set()
        except RemotingError:
            return


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_no_returned_message_is_lost(tmp_path: Path, flush: str) -> None:
    taken: dict[bytes, str] = {}
    enough = threading.Event()
    with LocalCluster(data_dir=tmp_path, config={"flushDiskType": flush}) as cluster:
        cluster.create_topic("Orders", 1)
        with RemotingClient() as client:
            Wire(client, cluster.broker_address).send_batch(
                "Orders", [Message.of("Orders", b"%d" % n) for n in range(600)]
            )
        threads = [
            threading.Thread(target=give_back_until_the_end, args=(cluster.broker_address, n, 4, taken, enough))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        assert enough.wait(60)
        cluster.kill_broker()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        cluster.restart_broker()
        with RemotingClient() as client:
            wire = Wire(client, cluster.broker_address)
            deadline = time.monotonic() + 60
            while True:
                found = {(m.body, topic) for topic in set(taken.values()) for m in read_all(wire, topic, 0)}
                if set(taken.items()) <= found:
                    break
                assert time.monotonic() < deadline, f"{len(set(taken.items()) - found)} did not come"
                time.sleep(0.1)
