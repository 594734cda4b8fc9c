"""SIGKILL of the broker's process under load: every acknowledged message is there afterwards, at its offset.

A kill proves nothing about flushing (what is in the page cache survives it); it proves that a broker which is stopped
between any two instructions leaves a store that recovers to at least everything that was acknowledged. The torn images
of the store's own crash tests prove the flushing.

KILL_ROUNDS=50 in the environment makes as many rounds (``make crash``). The seed of the moments of death is printed.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import RemotingError
from spark_rocket.model import Message, MessageExt
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store import MessageStore, StoreConfig
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.waiting import until

pytestmark = pytest.mark.crash

SMALL_FILES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1_000,
}
ROUNDS = int(os.environ.get("KILL_ROUNDS", "4"))
SENDERS = 4
QUEUES = 4


@dataclass
class Acknowledged:
    """Every acknowledged message: topic and queue -> offset -> body."""

    table: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    delayed: set[bytes] = field(default_factory=set)
    count: int = 0
    enough: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    wanted: int = 0
    wrong: list[str] = field(default_factory=list)

    def want(self, more: int) -> None:
        self.wanted = self.count + more
        self.enough.clear()

    def add(self, topic: str, queue_id: int, first: int, bodies: list[bytes]) -> None:
        with self.lock:
            queue = self.table.setdefault((topic, queue_id), {})
            for offset, body in enumerate(bodies, start=first):
                if offset in queue:
                    self.wrong.append(f"offset {offset} of {topic} queue {queue_id} was given twice")
                queue[offset] = body
            self._count(len(bodies))

    def add_delayed(self, body: bytes) -> None:
        with self.lock:
            self.delayed.add(body)
            self._count(1)

    def _count(self, more: int) -> None:
        self.count += more
        if self.count >= self.wanted:
            self.enough.set()


def send_until_the_end(address: str, sender: int, round_number: int, acknowledged: Acknowledged) -> None:
    """Single sends, batches and delayed ones, to an old topic and to topics that several senders make at once."""
    with RemotingClient() as client:
        wire = Wire(client, address)
        number = 0
        while True:
            topic = "Shared" if number % 3 else f"Auto-{round_number}-{number // 30}"
            queue_id = number % QUEUES
            count = 20 if number % 5 == 0 else 1
            bodies = [b"%d/%d/%d/%d " % (round_number, sender, number, index) * 20 for index in range(count)]
            is_delayed = number % 11 == 7
            try:
                if is_delayed:
                    answer = wire.send("Delayed", bodies[0], {"DELAY": "1"})
                elif count > 1:
                    answer = wire.send_batch(topic, [Message.of(topic, body) for body in bodies], queue_id=queue_id)
                else:
                    answer = wire.send(topic, bodies[0], {"KEYS": f"k{number}"}, queue_id=queue_id)
            except RemotingError:
                return
            if answer.code != ResponseCode.SUCCESS:
                acknowledged.wrong.append(str(answer))
                return
            if is_delayed:
                acknowledged.add_delayed(bodies[0])
            else:
                acknowledged.add(topic, queue_id, int(answer.ext_fields["queueOffset"]), bodies)
            number += 1


def consume_until_the_end(address: str) -> None:
    """Reads the shared topic and reports its progress."""
    with RemotingClient() as client:
        wire = Wire(client, address)
        offsets = dict.fromkeys(range(QUEUES), 0)
        try:
            while True:
                for queue_id, offset in offsets.items():
                    offsets[queue_id] += len(wire.messages("Shared", offset, queue_id=queue_id, maxMsgNums=100))
                    wire.ask(
                        RequestCode.UPDATE_CONSUMER_OFFSET,
                        consumerGroup="GID",
                        topic="Shared",
                        queueId=queue_id,
                        commitOffset=offsets[queue_id],
                    )
        except RemotingError:
            return


def read_all(wire: Wire, topic: str, queue_id: int) -> list[MessageExt]:
    messages: list[MessageExt] = []
    while found := wire.messages(topic, len(messages), queue_id=queue_id, maxMsgNums=10_000, maxMsgBytes=1 << 23):
        messages += found
    return messages


def check_what_is_left(directory: Path, config: BrokerConfig) -> None:
    """A copy of what the kill left, recovered here: right by the check."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    settings = BrokerConfig.from_properties({**SMALL_FILES, "storePathRootDir": str(copy)}).store_config()
    store = MessageStore(settings, store_host=("127.0.0.1", config.listen_port or 10911))
    store.start()
    store.close()
    assert_right(copy, settings)
    shutil.rmtree(copy)


def assert_right(directory: Path, settings: StoreConfig) -> None:
    problems = check_store(directory, settings)
    assert {problem.kind for problem in problems} <= {"index.behind"}, problems  # it goes on at the next start


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, flush: str, figure: Callable[[str], None]) -> None:
    config = {"flushDiskType": flush, "flushConsumerOffsetInterval": 200, **SMALL_FILES}
    settings = BrokerConfig.from_properties(config)
    seed = random.SystemRandom().randrange(1 << 32)
    figure(f"{flush}: seed {seed}")
    rng = random.Random(seed)
    acknowledged = Acknowledged()
    with LocalCluster(data_dir=tmp_path, config=config) as cluster:
        cluster.create_topic("Shared", QUEUES)
        cluster.create_topic("Delayed", 1)
        for round_number in range(ROUNDS // 2):
            acknowledged.want(rng.randrange(1, 1_500))
            threads = [
                threading.Thread(
                    target=send_until_the_end, args=(cluster.broker_address, sender, round_number, acknowledged)
                )
                for sender in range(SENDERS)
            ]
            threads.append(threading.Thread(target=consume_until_the_end, args=(cluster.broker_address,)))
            for thread in threads:
                thread.start()
            assert acknowledged.enough.wait(60)
            cluster.kill_broker()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            check_what_is_left(cluster.store_dir, settings)
            cluster.restart_broker()
            with RemotingClient() as client:
                wire = Wire(client, cluster.broker_address)
                for queue_id in range(QUEUES):
                    end = wire.ask(RequestCode.GET_MAX_OFFSET, topic="Shared", queueId=queue_id).ext_fields["offset"]
                    asked = {"consumerGroup": "GID", "topic": "Shared", "queueId": queue_id}
                    answer = wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, **asked)
                    assert int(answer.ext_fields.get("offset", 0)) <= int(end)
                    assert int(end) > max(acknowledged.table.get(("Shared", queue_id), {}), default=-1)
        with RemotingClient() as client:
            wire = Wire(client, cluster.broker_address)
            for (topic, queue_id), expected in acknowledged.table.items():
                stored = read_all(wire, topic, queue_id)
                assert [message.queue_offset for message in stored] == list(range(len(stored)))
                assert {offset: stored[offset].body for offset in expected} == expected
                # What came unacknowledged is whole too: reading it back checked every record's CRC.
            deadline = time.monotonic() + 60
            while not acknowledged.delayed <= (found := {message.body for message in read_all(wire, "Delayed", 0)}):
                assert time.monotonic() < deadline, f"{len(acknowledged.delayed - found)} delayed messages did not come"
                time.sleep(0.1)
    assert acknowledged.wrong == []
    count = sum(len(found) for found in acknowledged.table.values())
    delayed = len(acknowledged.delayed)
    figure(f"{flush}, {ROUNDS // 2} kills: {count} acknowledged messages and {delayed} delayed ones were read")
    assert_right(cluster.store_dir, settings.store_config())


def test_delayed_messages_are_delivered_once(tmp_path: Path) -> None:
    """Killed during the deliveries and at once after them, before any progress was saved."""
    count = 100
    with LocalCluster(data_dir=tmp_path, config={"flushDiskType": "SYNC_FLUSH", **SMALL_FILES}) as cluster:
        cluster.create_topic("Delayed", 1)
        for round_number in range(max(ROUNDS // 2, 2)):
            with RemotingClient() as client:
                wire = Wire(client, cluster.broker_address)
                deliver = str(int(time.time() * 1000) + 1_500)
                for number in range(count):
                    when = {"DELAY": "1"} if number % 2 else {"TIMER_DELIVER_MS": deliver}
                    body = b"%d/%d" % (round_number, number)
                    assert wire.send("Delayed", body, when).code == ResponseCode.SUCCESS
                wanted = (round_number + 1) * count - (count // 2 if round_number % 2 else 0)
                wait_for_messages(wire, wanted)
            cluster.kill_broker()
            cluster.restart_broker()
            with RemotingClient() as client:
                wait_for_messages(Wire(client, cluster.broker_address), (round_number + 1) * count)
        with RemotingClient() as client:
            wire = Wire(client, cluster.broker_address)
            assert wire.send("Delayed", b"last", {"DELAY": "2"}).code == ResponseCode.SUCCESS  # behind any duplicate
            wait_for_messages(wire, (round_number + 1) * count + 1)
            found = [message.body for message in read_all(wire, "Delayed", 0)]
    assert len(found) == len(set(found)) == (round_number + 1) * count + 1


def wait_for_messages(wire: Wire, count: int) -> None:
    until(lambda: int(wire.ask(RequestCode.GET_MAX_OFFSET, topic="Delayed", queueId=0).ext_fields["offset"]) >= count)
