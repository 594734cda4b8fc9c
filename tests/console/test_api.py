"""The JSON interface against a live cluster: data and changes of pages."""

from __future__ import annotations

import base64
import io
import json
import re
import socket
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import fastavro
import httpx
import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.common.system import now_ms
from spark_rocket.console import serve
from spark_rocket.console.sampler import Sampler
from spark_rocket.model import TRACE_TOPIC, Message, MessageQueue
from spark_rocket.protocol.message_trace import TraceBean, TraceContext, TraceType, encode_trace_data, trace_keys
from spark_rocket.remoting.tls.settings import TlsSettings
from spark_rocket.testing import LocalCluster
from tests.client.pushing import running_consumer
from tests.console.conftest import SCRIPT, Console, Page, eventually, page_of

pytestmark = pytest.mark.live

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}],
}


def place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("topic", "broker", "queue", "offset")}


def by_key(page: Page, topic: str, key: str) -> dict[str, Any]:
    found = eventually(lambda: page.get("/api/messages", topic=topic, by="key", key=key)["rows"], lambda rows: rows)
    assert len(found) == 1
    return found[0]


# --- times ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-07-01T12:00:00+02:00", "Asia/Tokyo", 1_782_900_000_000),
        ("2026-07-01 12:00", "Europe/Berlin", 1_782_900_000_000),  # summer time
        ("2026-01-01T12:00", "Europe/Berlin", 1_767_265_200_000),
        ("2026-07-01T10:00:00.001Z", "No/Where", 1_782_900_000_001),
        (" 1782900000000 ", "", 1_782_900_000_000),
        ("-1h", "UTC", None),
    ],
)
def test_a_time_has_the_notation_of_the_command_line(page: Page, text: str, zone: str, expected: int | None) -> None:
    before = now_ms()
    time = page.get("/api/time", text=text, zone=zone)["time"]
    assert time == expected if expected else before - 3_600_000 <= time <= now_ms() - 3_600_000


@pytest.mark.parametrize(
    ("text", "zone", "error"),
    [
        ("", "UTC", "Invalid time ''."),
        ("soon", "UTC", "Invalid time 'soon'."),
        ("1782900000", "UTC", "Invalid time '1782900000'."),  # seconds
        ("2026-07-01T10:00", "../../etc/passwd", "Unknown time zone '../../etc/passwd'."),
        ("2026-07-01T10:00", "", "Unknown time zone ''."),
    ],
)
def test_an_invalid_time_is_refused(page: Page, text: str, zone: str, error: str) -> None:
    found = page.get("/api/time", 400, text=text, zone=zone)
    assert (found["code"], found["text"]) == ("BAD_REQUEST", error)
    assert "2026-01-31T12:00:00Z" in found["remedy"] or "did you mean 1782900000000?" in found["remedy"]


# --- overview -------------------------------------------------------------------------------------------------------


def test_the_overview_has_brokers_rates_and_groups_with_lag(page: Page, cluster: LocalCluster) -> None:
    data = eventually(lambda: page.get("/api/overview"), lambda data: data["known"] and len(data["rates"]["times"]) > 1)
    (broker,) = data["brokers"]
    assert (broker["name"], broker["role"], broker["address"]) == ("broker-a", "master", cluster.broker_address)
    assert broker["trouble"] is None
    assert 0 <= broker["diskUsed"] <= 1
    assert broker["version"]
    assert data["nameServers"][0]["address"] == cluster.name_server
    assert set(data["rates"]["columns"]) == {"in", "out"}
    assert data["topics"] >= 3
    assert data["deadLetters"] == 3
    assert {group["name"] for group in data["behind"]} >= {"billing", "etl"}
    assert data["trouble"] is None


def test_addresses_in_links_must_be_brokers_of_the_cluster(page: Page) -> None:
    """Otherwise an attacker with a link could get a request signed by the console's account."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        response = page.get("/api/broker", 404, address=f"127.0.0.1:{listener.getsockname()[1]}")
        assert response["code"] == "NO_SUCH_BROKER"
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_the_console_s_own_health(page: Page) -> None:
    data = page.get("/api/health")
    assert data["passes"] >= 1
    assert data["memory"] > 1 << 20
    assert page.get("/api/alive") == {"status": "UP"}


# --- topics ---------------------------------------------------------------------------------------------------------


def test_topics_are_searched_sorted_and_paged(page: Page) -> None:
    known = eventually(lambda: page.get("/api/topics"), lambda data: data["known"])
    assert [row["name"] for row in known["rows"]][:3] == ["empty", "orders", "payments"]
    assert known["counts"]["dlq"] == 1
    found = page.get("/api/topics", search="ORD")["rows"]
    assert [row["name"] for row in found] == ["orders"]
    assert (found[0]["messages"], found[0]["queues"], found[0]["perm"]) == (40, 4, "RW")
    assert found[0]["bytes"] > 40 * 60
    most = page.get("/api/topics", sort="messages", desc="1", size="1")
    assert most["rows"][0]["name"] == "orders"
    assert most["pages"] == most["found"] >= 3
    assert page.get("/api/topics", sort="messages", desc="1", size="1", page="99")["page"] == most["pages"] - 1
    assert page.get("/api/topics", kind="dlq")["rows"][0]["name"] == "%DLQ%billing"
    assert "column" in page.get("/api/topics", 400, sort="__class__")["text"]


def test_a_topic_with_its_queues_groups_and_route(page: Page, cluster: LocalCluster) -> None:
    data = page.get("/api/topics/orders")
    assert sum(row["max"] - row["min"] for row in data["offsets"]) == data["topic"]["messages"] == 40
    assert all(row["lastUpdate"] for row in data["offsets"])
    assert {group["name"] for group in data["groups"]} >= {"billing", "etl"}
    assert data["route"][0]["addresses"] == {"0": cluster.broker_address}
    assert "in" in data["series"]["columns"]
    assert data["configs"]["broker-a"]["readQueues"] == 4


def test_a_page_shows_cached_data_first(console: Console, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first visit does not wait for brokers: no request is sent."""
    eventually(lambda: page.get("/api/groups/billing", known="1"), lambda data: data["queues"] is not None)
    eventually(lambda: page.get("/api/topics/orders", known="1"), lambda data: data["groups"] is not None)

    def asked(*given: object, **named: object) -> None:
        raise AssertionError("a broker got a request")

    with monkeypatch.context() as patched:
        for name in ("fresh_topic", "fresh_group"):
            patched.setattr(Sampler, name, asked)
        topic = page.get("/api/topics/orders", known="1")
        group = page.get("/api/groups/billing", known="1")
    assert topic["refresh"] == group["refresh"] == 0
    assert topic["route"] is None
    assert topic["configs"]["broker-a"]["readQueues"] == 4
    assert {reader["name"] for reader in topic["groups"]} >= {"billing", "etl"}
    assert group["group"]["lag"] == sum(queue["lag"] for queue in group["queues"])
    whole = page.get("/api/topics/orders")
    assert whole["refresh"] > 0
    assert whole["route"]
    assert {reader["name"] for reader in whole["groups"]} >= {reader["name"] for reader in topic["groups"]}
    assert whole.keys() == topic.keys()


def test_without_cached_data_the_first_response_is_complete(page: Page, cluster: LocalCluster) -> None:
    cluster.create_topic("just-made", 1)
    cluster.create_group("just-made")
    topic = page.get("/api/topics/just-made", known="1")
    assert topic["topic"]["name"] == "just-made"
    assert page.get("/api/groups/just-made", known="1")["group"]["name"] == "just-made"
    assert page.get("/api/topics/nothing-like-it", 404, known="1")["code"] == "TOPIC_NOT_FOUND"
    assert page.get("/api/groups/nothing-like-it", 400, known="1")["code"] == "NO_SUCH_GROUP"


def test_a_topic_from_its_creation_to_its_deletion(page: Page) -> None:
    page.post("/api/topics", {"topic": "made-here", "queues": 2, "type": "FIFO"})
    assert page.get("/api/topics/made-here")["configs"]["broker-a"]["attributes"] == {"message.type": "FIFO"}
    page.post("/api/topics", {"topic": "made-here", "queues": 6, "writeQueues": 3})
    changed = page.get("/api/topics/made-here")["configs"]["broker-a"]
    assert (changed["readQueues"], changed["writeQueues"]) == (6, 3)
    assert page.delete("/api/topics/made-here", {"confirm": "made"}, 400)["code"] == "NOT_CONFIRMED"
    page.delete("/api/topics/made-here", {"confirm": "made-here"})
    assert page.get("/api/topics/made-here", 404)["code"] == "TOPIC_NOT_FOUND"


def test_errors_of_brokers_are_shown_with_the_reason(page: Page) -> None:
    error = page.post("/api/topics", {"topic": "not a name", "queues": 2}, 409)
    assert "not a name" in error["text"]
    assert error["remedy"]
    for wrong in ({"queues": 0}, {"queues": "many"}, {"queues": 2, "type": "LOUD"}, {"queues": True}, {"queues": 1.5}):
        assert page.post("/api/topics", {"topic": "t", **wrong}, 400)["remedy"]


# --- groups ---------------------------------------------------------------------------------------------------------


def test_groups_by_their_lag(page: Page) -> None:
    data = eventually(lambda: page.get("/api/groups", sort="lag", desc="1"), lambda data: data["known"])
    lags = {row["name"]: row["lag"] for row in data["rows"]}
    assert (lags["billing"], lags["etl"]) == (24, 36)
    assert list(lags).index("etl") < list(lags).index("billing")
    assert "spark_rocket_reader" not in lags


def test_a_group_s_queues_and_its_lag_over_time(page: Page) -> None:
    data = eventually(lambda: page.get("/api/groups/billing"), lambda data: len(data["series"]["times"]) > 1)
    assert [(q["committed"], q["lag"]) for q in data["queues"]] == [(4, 6)] * 4
    assert set(data["series"]["columns"]) == {"total", *(f"orders · broker-a · {i}" for i in range(4))}
    assert data["series"]["columns"]["total"][-1] == 24
    assert data["configs"]["broker-a"]["retries"] == 16
    assert page.get("/api/groups/no-such", 400)["code"] == "NO_SUCH_GROUP"


def test_members_with_their_clients_and_subscriptions(page: Page, cluster: LocalCluster) -> None:
    with running_consumer(cluster.name_server, "watchers", "payments", tags="a || b"):
        data = eventually(
            lambda: page.get("/api/groups/watchers") if _has(page, "watchers") else {"members": []},
            lambda data: data["members"],
        )
    assert data["group"]["kind"] == "online"
    (member,) = data["members"]
    assert member["language"]
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", member["version"].removeprefix("V").replace("_", "."))
    assert {s["topic"]: s["expression"] for s in data["subscriptions"]}["payments"] == "a || b"


def _has(page: Page, group: str) -> bool:
    return any(row["name"] == group for row in page.get("/api/groups", search=group)["rows"])


def test_a_stopped_stream_is_shown_as_such(page: Page, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_rocket.client.admin.group_kind.STOPPED_SECONDS", 0.5)
    cluster.create_group("halted")
    with Reader(cluster.name_server) as reader:
        reader.commit_offset("halted", MessageQueue("orders", "broker-a", 0), 3)
    eventually(lambda: _has(page, "halted"), bool)
    data = eventually(lambda: page.get("/api/groups/halted"), lambda data: data["group"]["kind"] == "stopped")
    assert data["group"]["label"] == "Spark stream, stopped"
    assert data["group"]["stillSince"]
    assert [q["committed"] for q in data["queues"] if q["queue"] == 0] == [3]  # the last position of the consumers
    overview = page.get("/api/overview")
    assert ("halted", "stopped") in {(group["name"], group["kind"]) for group in overview["streams"]}
    (row,) = page.get("/api/groups", search="halted")["rows"]
    assert (row["kind"], row["label"]) == ("stopped", "Spark stream, stopped")
    assert page.get("/api/groups/billing")["group"]["kind"] == "idle"  # its consumers left a retry topic
    (reader_of,) = [found for found in page.get("/api/topics/orders")["groups"] if found["name"] == "halted"]
    assert reader_of["label"] == "Spark stream, stopped"


def test_a_reset_is_previewed_and_executed(page: Page) -> None:
    page.post("/api/groups", {"group": "resetting", "retries": 3})
    assert page.get("/api/groups/resetting")["configs"]["broker-a"]["retries"] == 3
    page.post("/api/groups/resetting/reset", {"topic": "orders", "to": "latest"})
    plan = page.post("/api/groups/resetting/plan", {"topic": "orders", "to": "earliest"})
    assert (plan["again"], plan["skipped"], plan["members"]) == (40, 0, 0)
    assert [(row["committed"], row["target"]) for row in plan["rows"]] == [(10, 0)] * 4
    page.post("/api/groups/resetting/reset", {"topic": "orders", "to": "earliest"})
    assert eventually(lambda: page.get("/api/groups/resetting")["group"]["lag"], lambda lag: lag == 40)
    at = {"topic": "orders", "to": "time", "timestamp": now_ms()}
    later = page.post("/api/groups/resetting/plan", at)
    assert (later["again"], later["skipped"]) == (0, 40)
    for verb in ("plan", "reset"):
        refused = page.post(f"/api/groups/resetting/{verb}", {**at, "timestamp": now_ms() + 3_600_000}, 400)
        assert "in the future" in refused["text"]
    assert page.post("/api/groups/resetting/reset", {"topic": "orders", "to": "nowhere", "timestamp": 1}, 400)["remedy"]
    page.delete("/api/groups/resetting", {"confirm": "resetting"})
    assert not _has(page, "resetting")


# --- messages -------------------------------------------------------------------------------------------------------


def test_messages_by_key_id_and_time(page: Page) -> None:
    row = by_key(page, "orders", "order-7")
    assert row["tags"] == "new"
    assert json.loads(str(row["preview"]))["order"] == 7
    assert page.get("/api/messages", topic="orders", by="id", id=row["msgId"])["rows"] == [row]
    every = page.find("orders")["rows"]
    assert len(every) == 40
    stored = [one["stored"] for one in every]
    assert stored == sorted(stored, reverse=True)
    assert len(page.find("orders", limit=5)["rows"]) == 5
    assert page.find("orders", begin=1, end=2)["rows"] == []
    assert page.find("nothing-like-it", 404)["code"] == "TOPIC_NOT_FOUND"
    assert page.post("/api/messages/search", {}, 400)["text"] == "Missing topic."
    assert page.get("/api/messages", 400, topic="orders", by="time")["remedy"] == "Search by key or id."


def test_one_message_with_body_properties_and_times(page: Page) -> None:
    row = by_key(page, "orders", "order-7")
    data = page.get("/api/message", **place(row))
    assert data["body"]["kind"] == "json"
    assert '\n  "total": 12.5' in data["body"]["json"]
    assert data["body"]["hex"].startswith("00000000  7b 22 6f 72 64 65 72 22  3a 20 37")
    assert data["message"]["properties"]["source"] == "web"
    assert data["message"]["born"] <= data["message"]["stored"]
    missing = page.get("/api/message", 400, **{**place(row), "offset": 10_000})
    assert missing["code"] == "NO_SUCH_MESSAGE"


def test_bytes_and_scripts_are_shown_literally_and_downloaded(page: Page) -> None:
    raw = place(by_key(page, "payments", "raw"))
    assert page.get("/api/message", **raw)["body"]["kind"] == "binary"
    response = page.http.get("/api/message/body", params=raw)
    assert response.content == bytes(range(256))
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"].startswith("attachment")
    harm = place(by_key(page, "payments", "harm"))
    assert page.get("/api/message", **harm)["message"]["properties"][SCRIPT] == SCRIPT


def test_avro_with_its_own_and_with_a_given_schema(page: Page, cluster: LocalCluster) -> None:
    schema = fastavro.parse_schema(SCHEMA)
    records = [{"id": i, "who": f"Ada {i}"} for i in range(3)]
    file, datum = io.BytesIO(), io.BytesIO()
    fastavro.writer(file, schema, records, codec="deflate")
    fastavro.schemaless_writer(datum, schema, records[1])
    with Producer("avro", name_server=cluster.name_server) as producer:
        producer.send(Message.of("empty", file.getvalue(), keys="file"))
        producer.send(Message.of("empty", datum.getvalue(), keys="datum"))
    shown = page.get("/api/message", **place(by_key(page, "empty", "file")))["body"]
    assert shown["kind"] == "avro"
    assert json.loads(shown["avro"]) == records
    at = place(by_key(page, "empty", "datum"))
    assert page.get("/api/message", **at)["body"]["avro"] is None
    decoded = page.post("/api/message/decode", {**at, "schema": json.dumps(SCHEMA)})["body"]
    assert json.loads(decoded["avro"]) == records[1]
    wrong = page.post("/api/message/decode", {**at, "schema": "{"})["body"]
    assert wrong["avro"] is None
    assert "schema" in wrong["avroProblem"]


def test_groups_that_consumed_a_message(page: Page) -> None:
    row = by_key(page, "orders", "order-0")
    tracks = {t["group"]: (t["status"], t["committed"]) for t in page.get("/api/message/track", **place(row))["rows"]}
    assert tracks["billing"] == ("CONSUMED", 4)


def test_the_trace_of_a_message(page: Page, cluster: LocalCluster) -> None:
    row = by_key(page, "orders", "order-0")
    assert page.get("/api/message/trace", id=row["msgId"]) == {"rows": []}
    bean = TraceBean(topic="orders", msg_id=str(row["msgId"]), keys="order-0")
    context = TraceContext(
        TraceType.Pub, time_stamp=5, group_name="seed", cost_time=3, success=True, trace_beans=[bean]
    )
    with Producer("tracer", name_server=cluster.name_server) as producer:
        producer.send(Message.of(TRACE_TOPIC, encode_trace_data(context), keys=trace_keys(context)))
    (event,) = eventually(lambda: page.get("/api/message/trace", id=row["msgId"])["rows"], lambda rows: rows)
    assert (event["kind"], event["group"], event["outcome"], event["cost"]) == ("SEND", "seed", "SUCCESS", 3)


def test_a_message_is_sent_found_and_resent(page: Page) -> None:
    sent = page.post(
        "/api/messages",
        {"topic": "payments", "body": "paid ✓", "keys": "sent-here", "tags": "t", "properties": {"note": "a=b"}},
    )
    assert sent["status"] == "SEND_OK"
    data = page.get("/api/message", **place(sent))
    assert data["body"]["text"] == "paid ✓"
    assert data["message"]["properties"]["note"] == "a=b"
    again = page.post("/api/message/resend", place(sent))
    assert again["msgId"] != sent["msgId"]
    found = eventually(
        lambda: page.get("/api/messages", topic="payments", by="key", key="sent-here")["rows"],
        lambda rows: len(rows) == 2,
    )
    assert {row["preview"] for row in found} == {"paid ✓"}
    raw = base64.b64encode(b"\x00\xff").decode()
    coded = page.post("/api/messages", {"topic": "payments", "body": raw, "encoding": "base64"})
    assert page.get("/api/message", **place(coded))["body"]["size"] == 2


def test_invalid_messages(page: Page) -> None:
    for wrong in (
        {"topic": "payments", "body": "!", "encoding": "base64"},
        {"topic": "payments", "body": "x", "properties": {"KEYS": "k"}},
        {"topic": "payments", "body": "x", "properties": ["a"]},
        {"topic": "payments", "body": "x", "delay": "soon"},
        {"topic": "not a name", "body": "x"},
    ):
        assert page.post("/api/messages", wrong, 400)["remedy"]


# --- unavailable servers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/nothing", "/api/topics/a/b"])
def test_unknown_paths(page: Page, path: str) -> None:
    assert page.get(path, 404)["code"] == "NOT_FOUND"


def test_https(cluster: LocalCluster) -> None:
    console = Console(cluster.name_server, tls=TlsSettings(test_mode=True))
    try:
        assert console.url.startswith("https://127.0.0.1:")
        assert httpx.get(f"{console.url}/api/alive", verify=False).json() == {"status": "UP"}
        with pytest.raises(httpx.TransportError):
            httpx.get(console.url.replace("https", "http") + "/api/alive")
    finally:
        console.close()


def test_brokers_with_access_control() -> None:
    keys: dict[str, Any] = {"access_key": "operator", "secret_key": "a secret of many letters"}
    with LocalCluster(in_process=True, **keys) as cluster:
        cluster.create_topic("guarded", 1)
        with page_of(cluster.name_server, connecting=keys) as page, page_of(cluster.name_server) as other:
            assert eventually(lambda: page.get("/api/topics/guarded"), lambda data: data["topic"])["offsets"]
            assert page.post("/api/messages", {"topic": "guarded", "body": "x"})["status"] == "SEND_OK"
            data = eventually(lambda: other.get("/api/overview"), lambda data: data["known"])
            assert data["brokers"][0]["trouble"]["code"] == "NO_PERMISSION"
            assert other.post("/api/messages", {"topic": "guarded", "body": "x"}, 409)["remedy"]
            assert keys["secret_key"] not in page.http.get("/api/health").text


def test_an_unreachable_cluster_is_reported_and_pages_are_served() -> None:
    with page_of("127.0.0.1:1") as page:
        data = eventually(lambda: page.get("/api/overview"), lambda data: data["trouble"])
        assert data["trouble"]["code"] == "NAME_SERVER_UNREACHABLE"
        assert data["nameServers"][0]["trouble"]["remedy"]
        assert page.get("/api/topics")["trouble"]["code"] == "NAME_SERVER_UNREACHABLE"
        assert page.find("t", 400)["code"] == "NAME_SERVER_UNREACHABLE"
        assert page.http.get("/topics").text.startswith("<!doctype html>")


def test_with_a_dead_master_messages_of_its_slave_are_found() -> None:
    with LocalCluster(brokers=1, slaves=True) as cluster:
        cluster.create_topic("both", 2)
        with page_of(cluster.name_server) as page:
            with Producer("seed", name_server=cluster.name_server) as producer:
                for i in range(8):
                    producer.send(Message.of("both", f"{i}"))
            eventually(lambda: page.get("/api/overview")["brokers"], _are_alike)
            assert page.find("both")["failed"] == {}
            cluster.brokers[0].kill()
            master, slave = eventually(lambda: page.get("/api/overview")["brokers"], lambda found: found[0]["trouble"])
            assert master["awaySince"]
            assert slave["trouble"] is None
            found = page.find("both")
            assert {row["preview"] for row in found["rows"]} == {str(i) for i in range(8)}
            assert found["failed"]["broker-a"]["text"]
            assert page.get("/api/message", **place(found["rows"][0]))["body"]["size"] == 1


def _are_alike(brokers: list[dict[str, object]]) -> bool:
    """Whether a master and a slave have the same messages, at least one."""
    ends = [broker["logEnd"] for broker in brokers]
    return len(ends) == 2 and ends[0] == ends[1] and bool(ends[0]) and brokers[0]["putTotal"] == 8


def test_silent_connections_do_not_block_others(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent connections, incomplete requests, and incomplete second requests do not block others."""
    monkeypatch.setattr(serve, "SLOW_SECONDS", 0.2)
    monkeypatch.setattr(serve, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(serve, "MAX_CONNECTIONS", 6)
    console = Console(cluster.name_server)
    try:
        address = urlsplit(console.url)
        assert address.hostname is not None
        begun = [
            b"",
            b"GET /api/al",
            b"POST /api/login HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
            b"GET /api/alive HTTP/1.1\r\nHost: localhost\r\n\r\nGET /api/al",
        ]
        slow = [socket.create_connection((address.hostname, address.port), 30.0) for _ in begun * 2]
        for sock, said in zip(slow, begun * 2, strict=True):
            sock.sendall(said)
        for sock in slow:
            with suppress(ConnectionError):
                while sock.recv(4096):
                    pass
            sock.close()

        def status() -> int:
            with suppress(httpx.TransportError):  # slow machines need longer than this limit
                return httpx.get(f"{console.url}/api/alive").status_code
            return 0

        eventually(status, lambda found: found == 200)
    finally:
        console.close()


def test_unfinished_requests_make_room_for_others(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than connections are allowed: the oldest are closed at once, and a page gets its response."""
    monkeypatch.setattr(serve, "MAX_CONNECTIONS", 20)
    console = Console(cluster.name_server)
    try:
        address = urlsplit(console.url)
        assert address.hostname is not None
        with ExitStack() as opened:
            held = []
            for _ in range(60):
                held.append(opened.enter_context(socket.create_connection((address.hostname, address.port), 30.0)))
                held[-1].sendall(b"GET /api/al")
            assert [httpx.get(f"{console.url}/api/alive").status_code for _ in range(3)] == [200] * 3
            with suppress(ConnectionResetError):  # a close with unread bytes is a reset
                assert held[0].recv(1) == b""
    finally:
        console.close()
