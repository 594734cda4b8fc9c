"""Resources that clients share, also after a fork."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.client.core.client_config import ClientConfig
from spark_rocket.client.core.instance import acquire, release
from spark_rocket.errors import RemotingConnectError, StateError
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.remoting.event_loop import loop_thread
from tests.kit.forking import in_child
from tests.kit.scripted import POSITION, FakeCluster, route, says
from tests.kit.waiting import until

pytestmark = pytest.mark.live

BROKERS, QUEUES = 1, 2


@pytest.fixture
def mq(mq: FakeCluster) -> FakeCluster:
    mq.everywhere(RequestCode.PULL_MESSAGE, says(19, None, POSITION))
    mq.everywhere(RequestCode.GET_MAX_OFFSET, says(0, ext={"offset": "5"}))
    return mq


def test_clients_of_one_name_server_share_connections_and_routes(mq: FakeCluster) -> None:
    address = mq.name_server.address
    with Producer(name_server=address) as producer, Reader(address) as reader, Admin(address) as admin:
        producer.send(Message.of("t", "b"))
        reader.queues("t")
        assert producer.instance() is reader.instance() is admin.instance()
        assert len(mq.name_server.requests) == 1
        remoting = reader.remoting
        producer.close()
        assert remoting.is_connected(mq.brokers[0].address)
    assert not remoting.is_connected(mq.brokers[0].address), "the last one closes the connections"


def test_references_of_an_instance_are_counted() -> None:
    config = ClientConfig(("127.0.0.1:1",))
    first, second = acquire(config), acquire(config)
    assert first is second
    release(first)
    assert acquire(config) is first
    release(first)
    release(first)
    again = acquire(config)
    assert again is not first
    release(again)


def test_concurrent_threads_start_a_client_once(mq: FakeCluster) -> None:
    reader = Reader(mq.name_server.address)
    gate = threading.Barrier(8)
    found: list[object] = []

    def start() -> None:
        gate.wait()
        found.append(reader.instance())

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(instance) for instance in found}) == 1
    assert reader.instance().users == 1
    reader.close()
    with pytest.raises(StateError, match="Reader is closed"):
        reader.queues("t")


def test_unique_keys_are_unique(mq: FakeCluster) -> None:
    with Producer(name_server=mq.name_server.address) as producer:
        keys = [producer.instance().next_key() for _ in range(1000)]
    assert len(set(keys)) == 1000
    assert all(len(key) == 32 and key.startswith("7F000001") for key in keys)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_its_own_connections(mq: FakeCluster) -> None:
    with Producer(name_server=mq.name_server.address) as producer, Reader(mq.name_server.address) as reader:
        before = producer.send(Message.of("t", "b")).msg_id

        def sends_and_pulls() -> bool:
            queue = reader.queues("t")[0]
            key = producer.send(Message.of("t", "from the child")).msg_id
            pulled = reader.pull(queue, 0).next_offset, reader.max_offset(queue)
            return pulled == (1, 5) and key != before and key[8:12] == f"{os.getpid() & 0xFFFF:04X}"

        in_child(sends_and_pulls)
        assert producer.send(Message.of("t", "b")).queue_offset == 7, "the parent goes on as before"
    bodies = [bytes(r.body) for r in mq.brokers[0].requests if r.code == RequestCode.SEND_MESSAGE_V2]
    assert bodies == [b"b", b"from the child", b"b"]


def sockets() -> set[int]:
    """Return the inodes of the open sockets of this process."""
    found = set()
    for fd in Path("/dev/fd").iterdir():
        try:
            status = os.fstat(int(fd.name))
        except OSError:  # the descriptor of the listing
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.add(status.st_ino)
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_each_fork_asks_the_name_server_with_connections_of_its_own(mq: FakeCluster) -> None:
    with Reader(mq.name_server.address) as reader:

        def asks() -> object:
            return reader.instance().routes.fetch("t")

        def forks_and_closes() -> bool:
            loop_thread()  # it has sockets of its own
            before = sockets()
            asks()
            assert sockets() - before
            in_child(asks, 30)
            asks()
            reader.close()
            until(lambda: not sockets() - before)
            return True

        asks()
        in_child(forks_and_closes)
        assert asks(), "the parent goes on as before"


@pytest.mark.parametrize("how", ["invoke", "invoke_async"])
def test_routes_are_refreshed_once_after_a_lost_broker(fake: Callable[..., FakeCluster], how: str) -> None:
    cluster = fake(2)
    old, new = cluster.brokers
    cluster.topics["t"] = route({"b0": (1, 1, 6)}, {"b0": {0: old.address}})
    new.responses[RequestCode.PULL_MESSAGE] = says(0, None, POSITION)
    queue = MessageQueue("t", "b0", 0)
    with Reader(cluster.name_server.address) as reader:
        assert reader.address(queue) == old.address
        assert cluster.name_server.arrived.acquire(timeout=10)
        cluster.topics["t"] = route({"b0": (1, 1, 6)}, {"b0": {0: new.address}})
        old.close()

        def pull() -> object:
            return reader.pull(queue, 0) if how == "invoke" else reader.pull_async(queue, 0).result(10)

        with pytest.raises(RemotingConnectError):
            pull()
        assert cluster.name_server.arrived.acquire(timeout=10), "long before the 30 s between refreshes are over"
        until(lambda: reader.address(queue) == new.address)
        assert pull()


def test_system_exit_in_a_task_does_not_end_the_thread() -> None:
    instance = acquire(ClientConfig(("127.0.0.1:1",)))
    done = threading.Event()
    instance.later(lambda: sys.exit(1))
    instance.later(done.set)
    assert done.wait(20)
    release(instance)
