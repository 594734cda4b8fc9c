"""SIGKILL of the broker while consumers pop and ack: every message is acked in the end, none is lost."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from spark_rocket.errors import RemotingError
from spark_rocket.model import Message
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.broker.popping import Popper
from tests.broker.wire import Wire

pytestmark = pytest.mark.crash

MESSAGES = 2_000


def pop_until_the_end(address: str, number: int, acked: set[bytes], enough: threading.Event) -> None:
    """Acks two messages of three, with what was popped invisible for a second; others are left to come back."""
    with RemotingClient() as client:
        popper = Popper(Wire(client, address), "GID", "Orders")
        try:
            while True:
                for message, receipt in popper.take(maxMsgNums=8, invisibleTime=1_000, pollTime=1_000):
                    real = f"%RETRY%GID_{message.topic}" if receipt.split(" ")[4] == "1" else message.topic
                    given_up = (message.queue_offset + number) % 3 == 0 and message.reconsume_times == 0
                    if not given_up and popper.ack(message, receipt, topic=real).code == ResponseCode.SUCCESS:
                        acked.add(message.body)
                if len(acked) >= MESSAGES // 3:
                    enough.set()
        except RemotingError:
            return


def test_popped_messages_are_acked_or_redelivered(tmp_path: Path) -> None:
    acked: set[bytes] = set()
    enough = threading.Event()
    everything = [b"%d" % number for number in range(MESSAGES)]
    with LocalCluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("Orders", 2)
        with RemotingClient() as client:
            wire = Wire(client, cluster.broker_address)
            for queue_id in (0, 1):
                wire.send_batch(
                    "Orders", [Message.of("Orders", body) for body in everything[queue_id::2]], queue_id=queue_id
                )
        arguments = (cluster.broker_address, 0, acked, enough)
        threads = [threading.Thread(target=pop_until_the_end, args=arguments) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert enough.wait(60)
        cluster.kill_broker()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        cluster.restart_broker()
        with RemotingClient() as client:
            popper = Popper(Wire(client, cluster.broker_address), "GID", "Orders")
            deadline = time.monotonic() + 60
            while len(acked) < MESSAGES:
                assert time.monotonic() < deadline, f"{MESSAGES - len(acked)} did not come"
                for message, receipt in popper.take(pollTime=1_000):
                    real = f"%RETRY%GID_{message.topic}" if receipt.split(" ")[4] == "1" else message.topic
                    assert popper.ack(message, receipt, topic=real).code == ResponseCode.SUCCESS
                    acked.add(message.body)
        assert acked == set(everything)
    assert check_store(tmp_path / "store", StoreConfig(tmp_path / "store")) == []
