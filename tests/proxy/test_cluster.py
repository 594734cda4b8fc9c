"""One proxy for several brokers, which are processes that are killed and restarted."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.common.system import now_ms
from spark_rocket.namesrv.name_server import NameServer
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.proxy import definitions
from spark_rocket.proxy.methods.sending import queue_of_group
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.waiting import until
from tests.proxy.caller import resource
from tests.proxy.direct import DirectCaller, ProxyThread, proxy_of
from tests.proxy.outgoing import Type, message, send, sent

pytestmark = pytest.mark.live

Code = definitions.Code
A, B = "broker-a", "broker-b"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalCluster]:
    settings = {"transactionTimeOut": 500, "transactionCheckInterval": 500, "grpcServerPort": -1}
    with LocalCluster(brokers=2, config=settings) as running:
        yield running


@pytest.fixture
def proxy(brokers: LocalCluster) -> Iterator[ProxyThread]:
    with proxy_of(brokers.name_server) as running:
        yield running


@pytest.fixture
def client(proxy: ProxyThread) -> DirectCaller:
    return proxy.client(f"client@{next(_numbers)}")


@pytest.fixture
def topic(brokers: LocalCluster) -> str:
    return brokers.create_topic(f"Wide-{next(_numbers)}", queues=2)


@pytest.fixture
def group() -> str:
    return f"GID-wide-{next(_numbers)}"


@pytest.fixture
def second(brokers: LocalCluster) -> Iterator[Any]:
    """broker-b, which is restarted afterwards."""
    broker = brokers.brokers[1]
    yield broker
    if not broker.is_running:
        broker.restart()


def brokers_of(entries: Any) -> set[str]:
    return {queue.broker.name for queue in entries.message_queues}


def all_of(client: DirectCaller, group: str, topic: str, count: int) -> list[Any]:
    """Receive and ack a number of messages, from any broker."""
    found: list[Any] = []

    def more() -> bool:
        for broker in (A, B):
            some = client.messages(group, topic, broker)
            if some:
                assert client.ack(group, topic, *some).status.code == Code.OK
            found.extend(some)
        return len(found) >= count

    until(more)
    assert len(found) == count
    return found


def test_queues_of_both_brokers_are_written_and_read(client: DirectCaller, topic: str, group: str) -> None:
    route = client.call("QueryRoute", topic=resource(topic))
    assert [(queue.broker.name, queue.id) for queue in route.message_queues] == [(A, 0), (A, 1), (B, 0), (B, 1)]
    assert {queue.broker.endpoints.addresses[0].port for queue in route.message_queues} == {8081}
    for at in range(8):
        sent(client, message(topic, b"%d" % at))
    sent(client, *(message(topic, b"in one %d" % at) for at in range(5)))
    of_a, of_b = (client.messages(group, topic, broker) for broker in (A, B))
    assert len(of_a) + len(of_b) == 13
    assert min(len(of_a), len(of_b)) >= 4
    assert {one.system_properties.receipt_handle.split(" ")[5] for one in of_b} == {B}
    answer = client.ack(group, topic, *of_a, *of_b)  # of both brokers in one request
    assert (answer.status.code, len(answer.entries)) == (Code.OK, 13)
    assert client.messages(group, topic, A) == client.messages(group, topic, B) == []


def test_receives_without_a_broker_take_turns(client: DirectCaller, topic: str, group: str) -> None:
    for at in range(8):
        sent(client, message(topic, b"%d" % at))
    found = [*client.messages(group, topic), *client.messages(group, topic)]
    assert len(found) == 8
    assert client.ack(group, topic, *found).status.code == Code.OK


def test_offsets_and_pulls_are_of_the_broker_that_is_named(client: DirectCaller, topic: str, group: str) -> None:
    for _ in range(8):
        sent(client, message(topic))
    for broker in (A, B):
        queue = {"topic": resource(topic), "id": 1, "broker": {"name": broker}}
        answer = client.call("QueryOffset", message_queue=queue, query_offset_policy="END")
        assert (answer.status.code, answer.offset) == (Code.OK, 2)
    answer = client.call("QueryOffset", message_queue={"topic": resource(topic), "id": 1}, query_offset_policy="END")
    assert answer.status.code == Code.BAD_REQUEST
    assert f"{A}, {B}" in answer.status.message


def test_members_are_known_to_both_brokers(brokers: LocalCluster, client: DirectCaller, topic: str, group: str) -> None:
    client.consume(group, topic)
    other = client.proxy.client("other@1")
    other.consume(group, topic)
    third = client.proxy.client("producer@1")
    third.produce(topic)

    def members(address: str, code: int, **fields: str) -> list[str]:
        with RemotingClient() as remoting:
            answer = Wire(remoting, address).ask(code, **fields)
        return sorted(one["clientId"] for one in json.loads(bytes(answer.body))["connectionSet"]) if answer.body else []

    for broker in brokers.brokers:
        consumers = members(broker.address, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        assert consumers == sorted([client.client_id, "other@1"])
        producers = members(broker.address, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup=topic)
        assert producers == ["producer@1"]
    other.call("NotifyClientTermination")
    for broker in brokers.brokers:
        consumers = members(broker.address, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        assert consumers == [client.client_id]


def test_a_broker_that_is_killed_and_comes_back(client: DirectCaller, topic: str, group: str, second: Any) -> None:
    """Nothing that was acknowledged is lost, and the proxy needs no restart."""
    bodies = {b"before %d" % at for at in range(8)}
    for body in bodies:
        sent(client, message(topic, body))
    (taken,) = client.messages(group, topic, B, batch_size=1)
    second.kill()
    for at in range(8):  # each is taken, by the broker that is there
        bodies.add(b"without %d" % at)
        sent(client, message(topic, b"without %d" % at))
    status = client.ack(group, topic, taken).status
    assert (status.code, B in status.message) == (Code.INTERNAL_SERVER_ERROR, True), status
    second.restart()
    assert until(lambda: client.ack(group, topic, taken).status.code == Code.OK)
    until(lambda: B in brokers_of(client.call("QueryRoute", topic=resource(topic))))
    found = all_of(client, group, topic, 15)
    assert {bytes(one.body) for one in (taken, *found)} == bodies
    for _ in range(8):
        sent(client, message(topic))
    assert until(lambda: client.messages(group, topic, B))  # it takes messages again


def test_an_ordered_message_fails_when_its_broker_has_died(client: DirectCaller, topic: str, second: Any) -> None:
    """It is not sent to another broker, because it could overtake earlier messages."""
    on_b = next(name for name in map(str, range(100)) if broker_of(client, topic, name) == B)
    second.kill()
    status = send(client, message(topic, message_group=on_b, message_type=Type.FIFO)).status
    assert (status.code, B in status.message) == (Code.INTERNAL_SERVER_ERROR, True), status


def broker_of(client: DirectCaller, topic: str, message_group: str) -> str:
    """The queue of a group's messages."""
    found = client.proxy.server.do(client.proxy.cluster.topics.get(topic))
    assert found is not None
    return found.writable[queue_of_group(message_group, len(found.writable))].broker_name


def test_a_broker_that_dies_under_a_held_receive(client: DirectCaller, topic: str, group: str, second: Any) -> None:
    client.call("QueryRoute", topic=resource(topic))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.answers, group, topic, B)
        with RemotingClient() as remoting:
            wire = Wire(remoting, second.address)
            held = {"consumerGroup": group, "topic": topic, "queueId": -1}
            until(lambda: wire.ask(RequestCode.POLLING_INFO, **held).ext_fields.get("pollingNum") == "1")
        began = time.monotonic()
        second.kill()
        (answer,) = waiting.result(30)
    assert time.monotonic() - began < 15  # not after its 20 s
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR
    assert B in answer.status.message
    assert "was lost" in answer.status.message
    assert client.messages(group, topic, A) == []  # the other one serves on


def test_a_restarted_broker_gets_the_producers(client: DirectCaller, topic: str, second: Any) -> None:
    """Otherwise it could not check transactions."""
    client.produce(topic)
    second.kill()
    second.restart()

    def listed() -> bool:
        client.call("QueryOffset", message_queue={"topic": resource(topic), "id": 0, "broker": {"name": B}})
        with RemotingClient() as remoting:
            answer = Wire(remoting, second.address).ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup=topic)
        return answer.code == 0 and client.client_id.encode() in bytes(answer.body)

    until(listed)


# --- restarts of the proxy --------------------------------------------------------------------------------------


def test_transactions_continue_after_a_restart_of_the_proxy(brokers: LocalCluster, topic: str, group: str) -> None:
    first = ProxyThread(brokers.name_server)
    client = first.client("tx@1")
    client.produce(topic)
    decided, asked = (
        sent(client, message(topic, body, message_type=Type.TRANSACTION, born_ms=now_ms()))[0]
        for body in (b"decided", b"asked")
    )
    first.stop()
    with proxy_of(brokers.name_server) as proxy:
        client = proxy.client("tx@1")
        assert end(client, topic, decided.message_id, decided.transaction_id).code == Code.OK
        client.produce(topic)  # the new proxy's stream is asked about the other one

        def question() -> Any:
            found = [command.recover_orphaned_transaction_command for command in client.told]
            return next((one for one in reversed(found) if one.message.body == b"asked"), None)

        command = until(question)  # with an id of its own: the broker has stored the half message again
        assert end(client, topic, asked.message_id, command.transaction_id, checked=True).code == Code.OK
        assert {bytes(one.body) for one in all_of(client, group, topic, 2)} == {b"decided", b"asked"}


def end(client: DirectCaller, topic: str, message_id: str, transaction_id: str, *, checked: bool = False) -> Any:
    source = definitions.TransactionSource
    return client.call(
        "EndTransaction",
        topic=resource(topic),
        message_id=message_id,
        transaction_id=transaction_id,
        resolution=definitions.TransactionResolution.COMMIT,
        source=source.SOURCE_SERVER_CHECK if checked else source.SOURCE_CLIENT,
    ).status


def test_order_continues_after_a_restart_of_the_proxy(brokers: LocalCluster, topic: str, group: str) -> None:
    brokers.create_group(group, ordered=True)
    ordered = {"message_group": "customer", "message_type": Type.FIFO}
    first = ProxyThread(brokers.name_server)
    client = first.client("fifo@1")
    for at in range(4):
        sent(client, message(topic, b"%d" % at, **ordered))
    where = broker_of(client, topic, "customer")
    had = client.messages(group, topic, where, batch_size=2)
    assert [bytes(one.body) for one in had] == [b"0", b"1"]
    first.stop()
    with proxy_of(brokers.name_server) as proxy:
        client = proxy.client("fifo@1")
        for at in range(4, 6):
            sent(client, message(topic, b"%d" % at, **ordered))
        assert client.messages(group, topic, where) == []  # those before are not acked
        assert client.ack(group, topic, *had).status.code == Code.OK  # handles outlive a proxy
        rest = until(lambda: client.messages(group, topic, where))
        assert [bytes(one.body) for one in rest] == [b"2", b"3", b"4", b"5"]
        assert client.ack(group, topic, *rest).status.code == Code.OK


# --- brokers with access control --------------------------------------------------------------------------------


def test_the_proxy_has_its_own_account_and_uses_tls(group: str) -> None:
    account = Credentials("proxy-key", "pr0xy-s3cr3t")
    with LocalCluster(
        in_process=True,
        tls="enforcing",
        config={"grpcServerPort": -1},
        access_key=account.access_key,
        secret_key=account.secret_key,
    ) as guarded:
        guarded.create_topic("T", 1)
        with proxy_of(guarded.name_server, credentials=account, tls=guarded.tls) as proxy:
            client = proxy.client()
            client.consume(group, "T")
            sent(client, message("T", b"signed"))
            (found,) = client.messages(group, "T")
            assert client.ack(group, "T", found).status.code == Code.OK
        with proxy_of(guarded.name_server, tls=guarded.tls) as proxy:
            status = send(proxy.client(), message("T")).status
            assert status.code == Code.FORBIDDEN
            assert "accessKey" in status.message


# --- no broker --------------------------------------------------------------------------------------------------


def answers_without(client: DirectCaller) -> Iterator[Any]:
    yield client.call("QueryRoute", topic=resource("T")).status
    yield send(client, message("T")).status
    yield client.answers("G", "T", seconds=0.1)[0].status
    yield client.call("QueryAssignment", topic=resource("T"), group=resource("G")).status


def test_a_cluster_without_brokers(tmp_path: Path) -> None:
    nobody = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{nobody.getsockname()[1]}"
    nobody.close()
    with proxy_of(address) as proxy:
        for status in answers_without(proxy.client()):
            assert status.code == Code.INTERNAL_SERVER_ERROR
            assert f"No name server responded at {address}" in status.message
        server = NameServer("127.0.0.1", int(address.rpartition(":")[2]), kv_config_path=tmp_path / "kv.json")
        proxy.server.do(server.start())
        try:
            for status in answers_without(proxy.client()):
                assert status.code == Code.INTERNAL_SERVER_ERROR
                assert f"No broker is registered with name server {address}" in status.message
        finally:
            proxy.server.do(server.close())
