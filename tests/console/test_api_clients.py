"""Connected producers and the running information of consumers, over HTTP against a live cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spark_rocket.broker.processors import consumer_requests
from spark_rocket.client import Admin, Producer, PushConsumer
from spark_rocket.client.admin import Failures, Member
from spark_rocket.console.secrets import HIDDEN, is_secret, shown
from spark_rocket.errors import BrokerError, RemotingTimeoutError
from spark_rocket.model import Message
from spark_rocket.protocol.wire.bodies.client import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.client.pushing import running_consumer
from tests.console.conftest import WAIT, Console, Page, eventually, page_of

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def shop(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer("shop", name_server=cluster.name_server) as producer:
        producer.send(Message.of("orders", "of a shop"))
        yield producer


@pytest.fixture(scope="module")
def consumer(cluster: LocalCluster) -> Iterator[PushConsumer]:
    with running_consumer(cluster.name_server, "workers", "orders", tags="new || old") as consumer:
        yield consumer


# --- producers ------------------------------------------------------------------------------------------------------


def test_producers_with_their_clients_are_searched_and_sorted(page: Page, shop: Producer) -> None:
    began = round(time.time() * 1000)
    data = eventually(lambda: page.get("/api/producers", search="SHOP"), lambda data: data["rows"])
    (row,) = data["rows"]
    assert (row["name"], row["language"], row["brokers"]) == ("shop", "PYTHON", ["broker-a"])
    assert row["client"]
    assert row["version"]
    assert row["address"].startswith("127.0.0.1:")
    assert abs(row["lastHeartbeat"] - began) < 60_000
    assert (data["unlisted"], data["failed"]) == ([], {})
    assert page.get("/api/producers", search=row["address"])["rows"][0]["name"] == "shop"
    assert page.get("/api/producers", search=row["client"].lower())["rows"]
    assert page.get("/api/producers", search="nothing-like-it")["rows"] == []
    assert page.get("/api/producers", sort="lastHeartbeat", desc="1", size="1")["rows"]
    assert "column" in page.get("/api/producers", 400, sort="secret")["text"]


def test_the_producers_at_the_brokers_of_a_topic(page: Page, shop: Producer) -> None:
    found = eventually(lambda: page.get("/api/producers", topic="orders"), lambda data: data["rows"])["rows"]
    assert "shop" in {row["name"] for row in found}
    assert page.get("/api/producers", 404, topic="nothing-like-it")["code"] == "TOPIC_NOT_FOUND"


def test_producers_of_the_system_are_shown_on_request(page: Page, cluster: LocalCluster) -> None:
    body = HeartbeatData("inner@1", producer_data_set=[ProducerData("CLIENT_INNER_PRODUCER")])
    with Admin(cluster.name_server, instance_name="inner") as client:
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body.to_json())
        client.instance().invoke(cluster.broker_address, request, "a heartbeat", timeout=WAIT)
        assert page.get("/api/producers", search="CLIENT_INNER")["rows"] == []
        (row,) = page.get("/api/producers", search="CLIENT_INNER", own="1")["rows"]
        assert row["client"] == "inner@1"


def test_producers_of_a_broker_that_reports_only_a_given_group(
    page: Page, shop: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of 4.x do not support request 328."""

    def refused(_: Admin, *, failed: Failures) -> dict[str, list[Member]]:
        failed["broker-a"] = BrokerError("unsupported", response_code=3)
        failed["broker-b"] = BrokerError("broken", response_code=1)
        return {}

    monkeypatch.setattr(Admin, "producer_groups", refused)
    data = page.get("/api/producers")
    assert (data["rows"], data["unlisted"], list(data["failed"])) == ([], ["broker-a"], ["broker-b"])
    data = page.get("/api/producers", search="shop")
    assert [(row["name"], row["brokers"], row["lastHeartbeat"]) for row in data["rows"]] == [
        ("shop", ["broker-a"], None)
    ]
    assert page.get("/api/producers", search="sho")["rows"] == []


def test_a_broker_of_4_x_that_does_not_respond_is_reported(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is connected to brokers of both versions has both."""
    member = Member("c@1", "127.0.0.1:5", "JAVA", "V5_1_0", ["broker-new"])

    def groups(_: Admin, *, failed: Failures) -> dict[str, list[Member]]:
        failed["broker-a"] = failed["broker-b"] = BrokerError("unsupported", response_code=3)
        return {"shop": [replace(member, last_heartbeat_ms=7)]}

    def producers(_: Admin, group: str, *, failed: Failures) -> list[Member]:
        assert (group, failed) == ("shop", {})
        failed["broker-b"] = RemotingTimeoutError("No response.")
        return [replace(member, brokers=["broker-a", "broker-new"])]

    monkeypatch.setattr(Admin, "producer_groups", groups)
    monkeypatch.setattr(Admin, "producers", producers)
    data = page.get("/api/producers", search="shop")
    assert (data["unlisted"], list(data["failed"])) == (["broker-a", "broker-b"], ["broker-b"])
    assert [(row["brokers"], row["lastHeartbeat"]) for row in data["rows"]] == [(["broker-a", "broker-new"], 7)]


def test_without_name_servers_the_pages_report_it() -> None:
    with page_of("127.0.0.1:1") as page:
        for path in ("/api/producers", "/api/accounts", "/api/broker"):
            assert page.get(path, 400, address="127.0.0.1:2")["code"] == "NAME_SERVER_UNREACHABLE", path
        data = page.get("/api/groups/workers/member", client="1@2")
        assert "name server" in data["trouble"]["text"]


# --- running information --------------------------------------------------------------------------------------------


def client_of(page: Page, group: str) -> str:
    def ask() -> Any:
        return page.http.get(f"/api/groups/{group}").json()

    return str(eventually(ask, lambda data: data.get("members"))["members"][0]["id"])


def test_a_member_reports_its_queues_rates_and_stacks(page: Page, consumer: PushConsumer) -> None:
    client = client_of(page, "workers")
    data = eventually(
        lambda: page.get("/api/groups/workers/member", client=client),
        lambda data: data["info"]["queueCount"] >= 4,
    )
    info = data["info"]
    assert data["trouble"] is None
    assert data["refresh"] > 0
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert {"topic": "orders", "expression": "new || old", "type": "TAG"} in info["subscriptions"]
    queues = [queue for queue in info["queues"] if queue["topic"] == "orders"]
    assert sorted(queue["queue"] for queue in queues) == [0, 1, 2, 3]
    assert all(queue["cached"] == 0 and not queue["dropped"] for queue in queues)
    assert "orders" in {rate["topic"] for rate in info["rates"]}
    assert (info["stacks"], info["stacksCut"]) == (None, False)
    assert "Thread" in page.get("/api/groups/workers/member", client=client, stacks="1")["info"]["stacks"]


def test_long_stacks_are_cut(page: Page, consumer: PushConsumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_rocket.console.api.clients.MAX_STACK_CHARACTERS", 10)
    client = client_of(page, "workers")
    info = page.get("/api/groups/workers/member", client=client, stacks="1")["info"]
    assert (len(info["stacks"]), info["stacksCut"]) == (10, True)


def test_an_offline_member_is_reported(page: Page, consumer: PushConsumer) -> None:
    client_of(page, "workers")
    data = page.get("/api/groups/workers/member", client="10.0.0.1@1")
    assert data["info"] is None
    assert data["trouble"]["code"] == "BROKER_ERROR"
    assert "has no consumer '10.0.0.1@1' online" in data["trouble"]["text"]
    assert data["trouble"]["remedy"].startswith("Online consumers: ")
    assert page.get("/api/groups/workers/member", 400)["text"] == "Missing client."


def test_a_client_that_does_not_answer(page: Page, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends heartbeats and refuses, or ignores, the requests that brokers forward."""
    subscription = SubscriptionData(topic="orders", sub_string="*")
    body = HeartbeatData("quiet@1", consumer_data_set=[ConsumerData("quiet", subscription_data_set=[subscription])])
    with Admin(cluster.name_server, instance_name="quiet") as client:
        instance = client.instance()
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body.to_json())
        instance.invoke(cluster.broker_address, request, "a heartbeat", timeout=WAIT)
        data = page.get("/api/groups/quiet/member", client="quiet@1")
        assert data["info"] is None
        assert data["trouble"]["code"] == "NO_RUNNING_INFO"
        assert "Client quiet@1 does not report its running information." in data["trouble"]["text"]
        assert "Spark streams" in data["trouble"]["remedy"]

        silence = threading.Event()

        def ignore(address: str, request: RemotingCommand) -> None:
            silence.wait(WAIT)

        monkeypatch.setattr(consumer_requests, "_RELAY_TIMEOUT_S", 0.2)
        instance.members.handlers[RequestCode.GET_CONSUMER_RUNNING_INFO] = ignore
        try:
            trouble = page.get("/api/groups/quiet/member", client="quiet@1")["trouble"]
        finally:
            silence.set()
        assert (trouble["code"], trouble["response"]) == ("NO_RUNNING_INFO", 207)


def test_a_broker_that_does_not_respond_is_not_blamed_on_the_client(
    page: Page, consumer: PushConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RemotingTimeoutError("No response of 127.0.0.1:1.")

    monkeypatch.setattr(Admin, "consumer_running_info", fail)
    trouble = page.get("/api/groups/workers/member", client="a@1")["trouble"]
    assert (trouble["code"], trouble["text"]) == ("REQUEST_TIMEOUT", "No response of 127.0.0.1:1.")


def test_queries_of_clients_do_not_occupy_all_threads(
    console: Console, page: Page, consumer: PushConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(page, "workers")
    begun, ended = threading.Semaphore(0), threading.Event()

    def slow(*_: object, **__: object) -> None:
        begun.release()
        ended.wait(WAIT)
        raise BrokerError("no response", response_code=207)

    monkeypatch.setattr(Admin, "consumer_running_info", slow)
    pages = [Page(console) for _ in range(3)]
    threads = [
        threading.Thread(target=one.get, args=("/api/groups/workers/member",), kwargs={"client": client})
        for one in pages
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            assert begun.acquire(timeout=WAIT)
        assert page.get("/api/groups/workers/member", 503, client=client)["code"] == "CONSOLE_BUSY"
        assert page.get("/api/topics/orders")["topic"]["name"] == "orders"
    finally:
        ended.set()
        for thread in threads:
            thread.join(WAIT)
        for one in pages:
            one.http.close()
    assert page.get("/api/groups/workers/member", client=client)["trouble"]["code"] == "NO_RUNNING_INFO"


# --- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("innerClientAuthenticationCredentials", '{"accessKey":"a"}'),
        ("initAuthenticationUser", '{"username":"rocketmq","password":"12345678"}'),
        ("tls.server.keyPassword", "12345678"),
        ("tieredStoreSecretKey", "x"),
        ("metricsGrpcExporterHeader", "Authorization:Bearer x"),
        ("anyName", '{"secretKey":"x"}'),
        ("signingKey", "x"),
        ("exporterTarget", "http://user:12345678@10.0.0.1:4317"),
    ],
)
def test_secrets_are_hidden(name: str, value: str) -> None:
    assert is_secret(name, value)
    assert shown(name, value) == HIDDEN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("brokerName", "broker-a"),
        ("enablePasswordCheck", "true"),
        ("initAuthenticationUser", ""),
        ("tls.server.keyPath", "/etc/rocket/key.pem"),
        ("maxMessagesPerKey", "12"),
        ("exporterTarget", "http://10.0.0.1:4317/@x"),
    ],
)
def test_values_that_are_not_secret_are_shown(name: str, value: str) -> None:
    assert shown(name, value) == value
