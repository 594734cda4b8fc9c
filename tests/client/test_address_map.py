"""Maps of advertised addresses: their notation, and clients of every kind with a broker that needs one."""

from __future__ import annotations

import asyncio
import queue
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.client import Admin, LitePullConsumer, Producer, PushConsumer, Reader, TransactionProducer, aio
from spark_rocket.client.consume.listeners import ConsumeConcurrentlyStatus, ConsumeFromWhere
from spark_rocket.client.core.address_map import ADDRESS_MAP_VARIABLE, AddressMap
from spark_rocket.client.core.client_config import ClientConfig
from spark_rocket.client.send.transaction import LocalTransactionState, TransactionListener
from spark_rocket.errors import ConfigError, RemotingConnectError
from spark_rocket.model import Message, MessageExt
from spark_rocket.remoting.tls.settings import TlsMode, Verify
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.certificates import CertificateAuthority, tls_of
from tests.kit.addresses import ADVERTISED_HOST, unreachable_broker
from tests.kit.waiting import until

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
WAIT_S = 60.0

TARGETS = [
    ("172.17.0.3:10911=127.0.0.1:10911", "172.17.0.3:10911", "127.0.0.1:10911"),
    ("172.17.0.3:10911=127.0.0.1:10911", "172.17.0.3:10912", "172.17.0.3:10912"),
    ("172.17.0.3:10911=127.0.0.1:20911", "172.17.0.4:10911", "172.17.0.4:10911"),
    ("172.17.0.3:*=127.0.0.1:*", "172.17.0.3:10912", "127.0.0.1:10912"),
    ("172.17.0.3:*=127.0.0.1:*,172.17.0.3:1=h:2", "172.17.0.3:1", "h:2"),
    ("172.17.0.3:1=h:2 , 172.17.0.3:*=127.0.0.1:*,", "172.17.0.3:2", "127.0.0.1:2"),
    ("broker-a:*=tunnel.example.org:*", "broker-a:1", "tunnel.example.org:1"),
    ("broker-a:1=broker-b:2,broker-b:2=broker-c:3", "broker-a:1", "broker-b:2"),  # applied once
    ("[fd00::3]:*=[::1]:*", "[fd00::3]:10911", "[::1]:10911"),
    ("a:1 = b:2; c:1=d:2\ne:1=f:2", "e:1", "f:2"),
    ("", "172.17.0.3:10911", "172.17.0.3:10911"),
    ("a:1=b:2", "not an address", "not an address"),
]

INVALID = [
    ("a:1", "a:1"),
    ("a:1=", "a:1="),
    ("=b:1", "=b:1"),
    ("x:1=y:1,a:1=b", "a:1=b"),
    ("a:*=b:1", "a:*=b:1"),
    ("a:1=b:*", "a:1=b:*"),
    ("*:1=b:1", "*:1=b:1"),
    ("*=b", "*=b"),
    ("a:0=b:1", "a:0=b:1"),
    ("a:1=b:65536", "a:1=b:65536"),
    ("a:1=b:1=c:1", "a:1=b:1=c:1"),
    ("a b:1=c:1", "a"),
    ("a:1=999.0.0.1:1", "a:1=999.0.0.1:1"),
]


@pytest.mark.parametrize(("text", "address", "target"), TARGETS)
def test_targets(text: str, address: str, target: str) -> None:
    found = AddressMap.of(text)
    assert found.target(address) == target
    assert AddressMap.of(str(found)) == found


@pytest.mark.parametrize(("text", "entry"), INVALID)
def test_an_invalid_entry_is_named(text: str, entry: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"Invalid entry {entry!r} of the address map")) as refused:
        AddressMap.of(text)
    assert "172.17.0.3:10911=127.0.0.1:10911" in refused.value.remedy
    with pytest.raises(ConfigError, match="the address map"):
        Producer("group", name_server="127.0.0.1:1", address_map=text)


def test_two_entries_for_one_address() -> None:
    with pytest.raises(ConfigError, match="two entries for a:1"):
        AddressMap.of("a:1=b:1,a:1=c:1")
    assert AddressMap.of("a:1=b:1,a:1=b:1").entries == (("a:1", "b:1"),)


def test_the_environment() -> None:
    environment = {ADDRESS_MAP_VARIABLE: "a:1=b:1"}
    assert str(ClientConfig.of("n:1", environment).address_map) == "a:1=b:1"
    assert str(ClientConfig.of("n:1", environment, address_map="c:1=d:1").address_map) == "c:1=d:1"
    assert str(ClientConfig.of("n:1", environment, address_map="").address_map) == ""
    with pytest.raises(ConfigError, match=f"Variable {ADDRESS_MAP_VARIABLE}: Invalid entry 'a'"):
        ClientConfig.of("n:1", {ADDRESS_MAP_VARIABLE: "a"})


class Commits(TransactionListener):
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with unreachable_broker() as running:
        yield running


@pytest.fixture(scope="module", params=["exact", "host"])
def connecting(cluster: LocalCluster, request: pytest.FixtureRequest) -> dict[str, Any]:
    port = cluster.broker_address.rpartition(":")[2]
    maps = {
        "exact": f"{ADVERTISED_HOST}:{port}=127.0.0.1:{port}",
        "host": f"{ADVERTISED_HOST}:*=127.0.0.1:*",
    }
    return {"name_server": cluster.name_server, "address_map": maps[request.param]}


@pytest.mark.live
def test_clients_of_every_kind(connecting: dict[str, Any]) -> None:
    topic = f"T{len(connecting['address_map'])}"
    with Admin(**connecting) as admin, Producer("send", **connecting) as producer:
        admin.create_topic(topic, 1)
        sent = producer.send(Message.of(topic, b"one", keys="k"))
        producer.send_async(Message.of(topic, b"two")).result(WAIT_S)
        with TransactionProducer("transact", Commits(), **connecting) as transactional:
            transactional.send_in_transaction(Message.of(topic, b"three"))
        with Reader(**connecting) as reader:
            (found,) = reader.queues(topic)
            until(lambda: len(reader.messages(found, 0)) >= 3)
            assert sorted(message.body for message in reader.messages(found, 0)) == [b"one", b"three", b"two"]
        pushed: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        def listen(messages: list[Any], _: object) -> ConsumeConcurrentlyStatus:
            for message in messages:
                pushed.put(message.body)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        with PushConsumer(f"push-{topic}", listen, consume_from_where=FIRST, **connecting) as push:
            push.subscribe(topic)
            push.start()
            assert {pushed.get(timeout=WAIT_S) for _ in range(3)} == {b"one", b"two", b"three"}
            assert until(lambda: admin.consumers(f"push-{topic}", topic))
        with LitePullConsumer(f"lite-{topic}", consume_from_where=FIRST, **connecting) as lite:
            lite.subscribe(topic)
            lite.start()
            assert until(lite.poll)
        assert sent.offset_msg_id is not None
        assert admin.view_message(sent.offset_msg_id).body == b"one"  # the id has the advertised address
        (broker,) = admin.brokers()
        assert (broker.failure, broker.address.rpartition(":")[0]) == (None, ADVERTISED_HOST)


@pytest.mark.live
def test_asynchronous_clients(connecting: dict[str, Any]) -> None:
    async def main() -> int:
        async with aio.Admin(**connecting) as admin, aio.Producer("aio", **connecting) as producer:
            await admin.create_topic("aio", 1)
            return (await producer.send(Message.of("aio", b"one"))).queue_offset

    assert asyncio.run(main()) >= 0


@pytest.mark.live
def test_an_unreachable_broker_is_named_with_the_remedy(cluster: LocalCluster) -> None:
    address = f"{ADVERTISED_HOST}:{cluster.broker_address.rpartition(':')[2]}"
    with Admin(cluster.name_server) as admin, pytest.raises(RemotingConnectError) as without:
        admin.create_topic("never", 1)
    assert f"No connection to {address}: " in without.value.message
    for way in ("addressMap", "address_map", "--address-map", ADDRESS_MAP_VARIABLE, "brokerIP1"):
        assert way in without.value.remedy
    wrong = f"{ADVERTISED_HOST}:*={ADVERTISED_HOST.removesuffix('99')}98:*"
    with Admin(cluster.name_server, address_map=wrong) as admin, pytest.raises(RemotingConnectError) as mapped:
        admin.create_topic("never", 1)
    target = AddressMap.of(wrong).target(address)
    assert f"No connection to {address} (at {target}): " in mapped.value.message


@pytest.mark.live
def test_a_certificate_is_that_of_the_mapped_address(tmp_path: Path) -> None:
    """It has neither the advertised address nor the other name at which the broker is reached."""
    authority = CertificateAuthority(tmp_path)
    tls = replace(tls_of(authority, authority.issue("broker", ["127.0.0.1"])), mode=TlsMode.PERMISSIVE)
    config = {"brokerIP1": ADVERTISED_HOST, **tls.properties()}
    with LocalCluster(config=config, in_process=True) as cluster:
        good, other = (f"{ADVERTISED_HOST}:*={host}:*" for host in ("127.0.0.1", "localhost"))
        full, only_ca = (replace(tls, verify=verify) for verify in (Verify.FULL, Verify.CA))
        with Admin(cluster.name_server, tls=full, address_map=good) as admin:
            admin.create_topic("named", 1)
        with (
            Admin(cluster.name_server, tls=full, address_map=other) as admin,
            pytest.raises(RemotingConnectError) as refused,
        ):
            admin.create_topic("never", 1)
        assert refused.value.code == "TLS_WRONG_NAME"
        assert "localhost" in refused.value.message
        with Admin(cluster.name_server, tls=only_ca, address_map=other) as admin:
            admin.create_topic("other", 1)
