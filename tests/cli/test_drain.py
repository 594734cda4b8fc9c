"""``rocket broker drain`` and ``undrain``, with two brokers and a producer at work; queues of a topic in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_rocket.cli import main
from spark_rocket.cli.commands import servers as drain_module
from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.store.tools.check import check_store
from tests.kit.brokers import Servers
from tests.kit.waiting import until

pytestmark = pytest.mark.live

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    servers.add_name_server()
    servers.add_broker("a")
    servers.add_broker("b")
    with Reader(servers.addresses) as reader:
        until(lambda: len({queue.broker_name for queue in reader.refresh("TBW102")}) == 2)
    yield servers
    servers.close()
    for broker in servers.brokers:
        assert check_store(broker.config.store.store_path) == []


class SendingThread:
    """Sends to a topic until it is stopped, and refreshes routes more often than the default."""

    def __init__(self, name_server: str, topic: str) -> None:
        self.producer = Producer("p", name_server=name_server)
        self.sent: set[bytes] = set()
        self.brokers: set[str] = set()
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            body = b"%d" % number
            self.brokers.add(self.producer.send(Message(self._topic, body)).queue.broker_name)
            self.sent.add(body)
            number += 1
            if number % 5 == 0:
                self.producer.running().routes.refresh(self._topic)
            self._stop.wait(0.002)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self.producer.close()


def test_a_drained_broker_can_be_stopped_without_errors(servers: Servers, capsys: Capsys) -> None:
    name_server = servers.addresses
    with Admin(name_server) as admin:
        admin.create_topic("t", 2)
        sending = SendingThread(name_server, "t")
        until(lambda: sending.brokers == {"a", "b"})
        drain = ["broker", "drain", "-n", name_server, "--broker-name", "a", "--yes", "--quiet", "0.4"]
        assert main(drain) == 0
        assert "a can be stopped" in capsys.readouterr().out
        sending.brokers.clear()
        before = len(sending.sent)
        until(lambda: len(sending.sent) > before + 20)
        assert sending.brokers == {"b"}
        with Reader(name_server) as reader:
            assert {queue.broker_name for queue in reader.queues("t")} == {"a", "b"}, "it is still read from"
        assert main(["broker", "-n", name_server, "undrain", "--broker-name", "a"]) == 0
        assert "receives messages of its" in capsys.readouterr().out
        until(lambda: sending.brokers == {"a", "b"})
        assert main([*drain[:-1], "0.2"]) == 0
        servers.do(servers.brokers[0].close())
        before = len(sending.sent)
        until(lambda: len(sending.sent) > before + 20)
        sending.stop()


def test_drain_refuses_invalid_calls(servers: Servers, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    name_server = servers.addresses
    assert main(["broker", "drain", "-n", name_server, "--broker-name", "c", "--yes"]) == 1
    assert "Registered brokers: a, b." in capsys.readouterr().err
    assert main(["broker", "undrain", "-n", name_server, "--broker-name", "c"]) == 1
    assert "'c'" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert main(["broker", "drain", "-n", name_server, "--broker-name", "a"]) == 1
    assert "--yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(["broker", "drain", "-n", name_server, "--broker-name", "a"]) == 1
    assert "Nothing was changed" in capsys.readouterr().out

    # An interrupted or failed drain leaves the broker drained.
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(drain_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupted))
        assert main(["broker", "drain", "-n", name_server, "a", "--yes"]) == 1
    assert "The broker stays drained; `rocket broker undrain a` undoes it." in capsys.readouterr().out
    for wrong in (["broker", "drain"], ["broker", "drain", "--broker-name", "a", "--quiet", "0"]):
        with pytest.raises(SystemExit):
            main(wrong)
    # A producer that chooses its queue itself.
    with Admin(name_server) as admin, Producer("p", name_server=name_server) as producer:
        admin.create_topic("t", 1)
        queue = next(queue for queue in producer.queues("t") if queue.broker_name == "a")
        stop = threading.Event()

        def send() -> None:
            while not stop.wait(0.01):
                producer.send(Message("t", b"x"), queue=queue)

        thread = threading.Thread(target=send)
        thread.start()
        drain = ["broker", "drain", "-n", name_server, "--broker-name", "a", "--yes", "--quiet", "5"]
        assert main([*drain, "--timeout", "0.3"]) == 1
        stop.set()
        thread.join(30)
    assert "a still receives messages" in capsys.readouterr().out


def test_queues_are_added_and_removed_while_a_topic_is_in_use(servers: Servers, capsys: Capsys) -> None:
    name_server = servers.addresses

    def queues(count: int, *more: str) -> None:
        assert main(["topic", "create", "t", "-n", name_server, "--queues", str(count), *more]) == 0

    queues(2)
    sending = SendingThread(name_server, "t")

    def used(count: int) -> Callable[[], bool]:
        return lambda: len(sending.producer.queues("t")) == count

    until(lambda: len(sending.sent) > 20)
    queues(4)
    until(used(8))
    queues(4, "--write-queues", "1")
    until(used(2))
    assert "4 queues (1 writable)" in capsys.readouterr().out
    until(lambda: len(sending.sent) > 100)
    sending.stop()
    with Reader(name_server) as reader:
        every = reader.refresh("t")
        assert len(every) == 8, "the queues that are not written to any more are still there to be read"
        read = [message.body for queue in every for message in whole(reader, queue)]
        assert sorted(read) == sorted(sending.sent)
        queues(1)
        assert len(reader.refresh("t")) == 2
        with pytest.raises(RocketError):  # the broker does not have it any more
            reader.pull(every[3], 0)


def whole(reader: Reader, queue: MessageQueue) -> list[MessageExt]:
    found: list[MessageExt] = []
    while len(found) < reader.max_offset(queue):
        found += reader.messages(queue, len(found))
    return found
