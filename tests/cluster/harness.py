"""A cluster under load, and a record of its acknowledgements.

Senders send numbered messages one after the other, whatever happens to brokers; what was answered is written down with
its place. ``strong`` is what was answered with SEND_OK: with SYNC_MASTER both brokers of a pair have it. ``weak`` is
what the master has, but its slave may not: when the slave was made the master (``swapped``) it may be gone. Every wait
is for an event.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.client import Producer
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageExt, SendStatus
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.members import BrokerMember
from tests.broker.wire import Wire, messages_of
from tests.kit.waiting import until

PATIENCE = 60.0
QUEUES = 2
TOPIC = "Load"
PAUSE = 0.002  # between one sender's messages: what is tested is not how many there are
SMALL_FILES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1_000,
}
Queue = tuple[str, int]


class Load:
    """Senders, started by ``with``."""

    def __init__(self, cluster: LocalCluster, *, senders: int = 4, send_timeout: float = 3.0) -> None:
        self.strong: dict[Queue, dict[int, bytes]] = defaultdict(dict)
        self.weak: dict[Queue, dict[int, bytes]] = defaultdict(dict)
        self.sent: set[bytes] = set()
        self.swapped: set[str] = set()
        self.wrong: list[str] = []
        self.failed = 0
        self._acknowledged: dict[str, int] = defaultdict(int)
        self._changed = threading.Condition()
        self._ending = False
        self._producer = Producer(name_server=cluster.name_server, send_timeout=send_timeout)
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(senders)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._ending = True
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        self._producer.close()

    def _send(self, sender: int) -> None:
        number = 0
        while not self._ending:
            body = b"%d/%d " % (sender, number) * 40
            number += 1
            time.sleep(PAUSE)
            with self._changed:
                self.sent.add(body)
            try:
                result = self._producer.send(Message.of(TOPIC, body, keys=f"{sender}-{number}"))
            except RocketError:
                self.failed += 1
                continue
            place = (result.queue.broker_name, result.queue.queue_id)
            with self._changed:
                kind = self.strong if result.status is SendStatus.SEND_OK else self.weak
                for books in (self.strong, self.weak):
                    may_be_gone = books is self.weak and place[0] in self.swapped
                    if result.queue_offset in books[place] and not may_be_gone:
                        self.wrong.append(f"{place} gave offset {result.queue_offset} twice")
                kind[place][result.queue_offset] = body
                self._acknowledged[result.queue.broker_name] += 1
                self._acknowledged[result.status.name] += 1
                self._changed.notify_all()

    def goes_on(self, count: int = 50, of: str | None = None) -> float:
        """Wait for so many more acknowledged sends, of the broker ``of`` if given; seconds to the first."""
        begun = time.monotonic()
        if of is not None:
            self._producer.running().routes.refresh(TOPIC)  # as every 30 s: it may be back

        def total() -> int:
            if of is not None:
                return self._acknowledged[of]
            return sum(number for name, number in self._acknowledged.items() if name.startswith("broker-"))

        with self._changed:
            before = total()
            assert self._changed.wait_for(lambda: total() > before, PATIENCE), f"no send of {of} any more"
            first = time.monotonic() - begun
            assert self._changed.wait_for(lambda: total() >= before + count, PATIENCE), f"no more sends of {of}"
        return first

    def strong_ends(self, broker: str) -> dict[int, int]:
        """For each queue of a broker, the minimum end of the messages that both of a pair have."""
        with self._changed:
            return {
                queue_id: max(offsets) + 1
                for (name, queue_id), offsets in self.strong.items()
                if name == broker and offsets
            }


def slaves_ready(masters: Sequence[BrokerMember]) -> None:
    """Every master has a following slave; an empty one starts with its master's last file."""
    with RemotingClient() as client:
        for master in masters:
            wire = Wire(client, master.address)
            until(lambda w=wire: w.send("Ready").code == ResponseCode.SUCCESS, f"{master.name} has a slave")  # type: ignore[misc]


def knows_topic(slave: BrokerMember) -> bool:
    """Topics are synchronized every ten seconds."""
    with RemotingClient() as client:
        return f'"{TOPIC}"' in bytes(Wire(client, slave.address).ask(RequestCode.GET_ALL_TOPIC_CONFIG).body).decode()


def max_offsets(address: str) -> dict[int, int]:
    with RemotingClient() as client:
        return {queue_id: Wire(client, address).end(TOPIC, queue_id) for queue_id in range(QUEUES)}


def stored(address: str) -> dict[int, dict[int, bytes]]:
    """Every message of a broker by queue and offset, read from its address: a master's or a slave's."""
    found: dict[int, dict[int, bytes]] = {}
    with RemotingClient() as client:
        wire = Wire(client, address)
        for queue_id in range(QUEUES):
            bodies: dict[int, bytes] = {}
            while messages := _pulled(wire, queue_id, len(bodies)):
                assert [message.queue_offset for message in messages] == list(
                    range(len(bodies), len(bodies) + len(messages))
                )
                bodies |= {message.queue_offset: message.body for message in messages}
            found[queue_id] = bodies
    return found


def _pulled(wire: Wire, queue_id: int, offset: int) -> list[MessageExt]:
    answer = wire.pull(TOPIC, offset, queue_id=queue_id, maxMsgNums=1000)
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), answer
    return messages_of(answer)


def log_end(address: str) -> int:
    with RemotingClient() as client:
        return int(Wire(client, address).runtime()["commitLogMaxOffset"])


def assert_slaves_follow(cluster: LocalCluster) -> None:
    """Wait until every running slave has all messages of its running master."""
    for master, slave in zip(cluster.brokers, cluster.slaves, strict=True):
        until(lambda m=master, s=slave: log_end(s.address) == log_end(m.address), f"{slave.name} has it all")  # type: ignore[misc]


def assert_all_there(load: Load, address: str, broker: str, *, weak: bool = True) -> None:
    """Every acknowledged message is at its offset, and there is no unknown message."""
    found = stored(address)
    for books in (load.strong, load.weak) if weak and broker not in load.swapped else (load.strong,):
        for (name, queue_id), expected in books.items():
            if name == broker:
                missing = {offset: body for offset, body in expected.items() if found[queue_id].get(offset) != body}
                assert not missing, (
                    f"{broker} queue {queue_id}: {len(missing)} of {len(expected)} acknowledged are gone"
                )
    assert {body for bodies in found.values() for body in bodies.values()} <= load.sent


def log_bytes(store: Path) -> bytes:
    files = sorted((store / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def assert_stores_right(pairs: list[tuple[Path, Path]]) -> None:
    """After the stop: every store is valid, and each slave's log equals its master's, byte for byte."""
    config = BrokerConfig.from_properties(SMALL_FILES).store_config()
    for store in {store for pair in pairs for store in pair}:
        problems = [problem for problem in check_store(store, config) if problem.kind != "index.behind"]
        assert problems == [], f"{store}: {problems}"
    for master, slave in pairs:
        assert log_bytes(slave) == log_bytes(master), f"{slave} differs from {master}"
