"""SIGKILL of the broker's process under load: what it acknowledged is there afterwards, where it said.

A kill proves nothing about flushing (what is in the page cache survives it); it proves that a broker which is stopped
between any two instructions leaves a store that recovers to at least everything that was acknowledged. The torn images
of the store's own crash tests prove the flushing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spark_rocket.broker.config import BrokerConfig
from spark_rocket.errors import RemotingError
from spark_rocket.model import Message, MessageExt
from spark_rocket.protocol.codes import ResponseCode
from spark_rocket.remoting.client import RemotingClient
from spark_rocket.store.check import check_store
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire

pytestmark = pytest.mark.crash

SMALL_FILES = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 2_000}
SENDERS = 4
QUEUES = 4


@dataclass
class Acknowledged:
    """Every message that a broker said it had: topic and queue -> offset -> body."""

    table: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    count: int = 0
    enough: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    wanted: int = 0

    def want(self, more: int) -> None:
        self.wanted = self.count + more
        self.enough.clear()

    def add(self, topic: str, queue_id: int, first: int, bodies: list[bytes]) -> None:
        with self.lock:
            queue = self.table.setdefault((topic, queue_id), {})
            for offset, body in enumerate(bodies, start=first):
                assert offset not in queue, f"offset {offset} of {topic} queue {queue_id} was given twice"
                queue[offset] = body
            self.count += len(bodies)
            if self.count >= self.wanted:
                self.enough.set()


def send_until_the_end(address: str, sender: int, round_number: int, acknowledged: Acknowledged) -> None:
    """Single sends and batches, to one old topic and to topics that come into being under several senders at once."""
    with RemotingClient() as client:
        wire = Wire(client, address)
        number = 0
        while True:
            topic = "Shared" if number % 3 else f"Auto-{round_number}-{number // 30}"
            queue_id = number % QUEUES
            count = 20 if number % 5 == 0 else 1
            bodies = [b"%d/%d/%d/%d " % (round_number, sender, number, index) * 20 for index in range(count)]
            try:
                if count > 1:
                    answer = wire.send_batch(topic, [Message.of(topic, body) for body in bodies], queue_id=queue_id)
                else:
                    answer = wire.send(topic, bodies[0], queue_id=queue_id)
            except RemotingError:
                return
            assert answer.code == ResponseCode.SUCCESS, answer
            acknowledged.add(topic, queue_id, int(answer.ext_fields["queueOffset"]), bodies)
            number += 1


def read_all(wire: Wire, topic: str, queue_id: int) -> list[MessageExt]:
    messages: list[MessageExt] = []
    while found := wire.messages(topic, len(messages), queue_id=queue_id, maxMsgNums=10_000, maxMsgBytes=1 << 23):
        messages += found
    return messages


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, flush: str) -> None:
    config = {"flushDiskType": flush, **SMALL_FILES}
    acknowledged = Acknowledged()
    with LocalCluster(data_dir=tmp_path, config=config) as cluster:
        cluster.create_topic("Shared", QUEUES)
        for round_number in range(3):
            acknowledged.want(1_000)
            senders = [
                threading.Thread(
                    target=send_until_the_end, args=(cluster.broker_address, sender, round_number, acknowledged)
                )
                for sender in range(SENDERS)
            ]
            for sender in senders:
                sender.start()
            assert acknowledged.enough.wait(60)
            cluster.kill_broker()
            for sender in senders:
                sender.join(60)
                assert not sender.is_alive()
            cluster.restart_broker()
        with RemotingClient() as client:
            wire = Wire(client, cluster.broker_address)
            for (topic, queue_id), expected in acknowledged.table.items():
                stored = read_all(wire, topic, queue_id)
                assert [message.queue_offset for message in stored] == list(range(len(stored)))
                assert {offset: stored[offset].body for offset in expected} == expected
                # What came unacknowledged is whole too: reading it back checked every record's CRC.
    problems = check_store(cluster.store_dir, BrokerConfig.from_properties(config).store_config())
    assert problems == []


def test_a_topic_that_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path) as cluster:
        for number in range(20):
            cluster.create_topic(f"Topic-{number}", 3)
        cluster.kill_broker()
        cluster.restart_broker()
        with RemotingClient() as client:
            wire = Wire(client, cluster.broker_address)
            for number in range(20):
                # A default topic that does not exist: it is not created again by this.
                assert wire.send(f"Topic-{number}", queue_id=2, c="NoDefault").code == ResponseCode.SUCCESS
