"""Dead letters over the JSON interface: of groups and of Spark queries, with their origin, sent again."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.client.consume.pull import PullResult
from spark_rocket.common.system import now_ms
from spark_rocket.console import dead_topics
from spark_rocket.console.api.dead import MAX_READING
from spark_rocket.errors import ClientError, RemotingTimeoutError
from spark_rocket.model import BAD_RECORD_PROPERTIES, Message, MessageQueue
from spark_rocket.remoting.client.promise import Promise, failed
from spark_rocket.testing import LocalCluster
from tests.client.pushing import AGAIN, running_consumer
from tests.console.conftest import REASON, Page, eventually, page_of, spark_dead_letters

pytestmark = pytest.mark.live


def place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("topic", "broker", "queue", "offset")}


def topics(page: Page) -> dict[str, dict[str, Any]]:
    data = eventually(lambda: page.get("/api/dead-letters"), lambda data: data["topics"] is not None)
    return {row["name"]: row for row in data["topics"]}


def test_dead_letters_of_a_group_one_by_one_and_together(page: Page) -> None:
    groups = eventually(lambda: page.get("/api/dead-letters")["rows"], bool)
    assert [(row["name"], row["topic"], row["messages"]) for row in groups] == [("billing", "%DLQ%billing", 3)]
    assert groups[0]["lastUpdate"]
    letters = page.find("%DLQ%billing")["rows"]
    assert [row["keys"] for row in letters] == ["dead-2", "dead-1", "dead-0"]
    lost = {**place(letters[0]), "offset": 999}
    done = page.post("/api/dead-letters/billing/resend", {"messages": [place(row) for row in letters] + [lost]})
    assert done["sent"] == 3, done["failures"][0]
    assert [failure["error"]["code"] for failure in done["failures"]] == ["NO_SUCH_MESSAGE"]
    marked = page.find("%DLQ%billing")["rows"]
    assert all(now_ms() - 60_000 < row["resent"] <= now_ms() for row in marked)
    assert page.get("/api/message", **place(letters[0]))["message"]["resent"] == marked[0]["resent"]
    retried = page.find("%RETRY%billing")["rows"]
    assert {row["resent"] for row in retried} == {None}
    assert {row["preview"] for row in retried} == {f"bad order {i}" for i in range(3)}
    assert {row["origin"]["topic"] for row in retried} == {"orders"}
    assert page.post("/api/dead-letters/billing/resend", {"messages": []}, 400)["remedy"]
    assert page.post("/api/dead-letters/billing/resend", {"messages": [{}] * 201}, 400)["remedy"]


def test_the_list_is_read_from_the_samples(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown every few seconds: no request to a broker for all of its topics each time."""
    eventually(lambda: page.get("/api/dead-letters")["rows"], bool)
    asked: list[object] = []
    real = Admin.topic_list

    def topic_list(self: Admin, **given: Any) -> Any:
        asked.append(threading.current_thread().name)
        return real(self, **given)

    monkeypatch.setattr(Admin, "topic_list", topic_list)
    assert page.get("/api/dead-letters")["rows"]
    assert [name for name in asked if name != "console-sampler"] == []


def test_a_group_without_dead_letters_has_none(page: Page) -> None:
    assert page.find("%DLQ%unknown")["rows"] == []
    assert page.get(f"/api/dead-letters/{quote('unknown')}", 404)["code"] == "NOT_FOUND"


def test_a_dead_letter_of_a_group_has_its_origin_and_attempts(page: Page, cluster: LocalCluster) -> None:
    cluster.create_topic("tried", 1)
    with Producer("tries", name_server=cluster.name_server) as producer:
        sent = producer.send(Message.of("tried", "12.50 EUR", keys="payment-1"))
    with running_consumer(cluster.name_server, "cashier", "tried", lambda *_: AGAIN, max_reconsume_times=0):
        (letter,) = eventually(lambda: page.find("%DLQ%cashier")["rows"], lambda rows: rows)
    origin = letter["origin"]
    assert (origin["topic"], origin["attempts"], origin["reason"]) == ("tried", 1, None)
    (original,) = page.get("/api/messages", topic="tried", by="id", id=origin["msgId"])["rows"]
    assert (original["msgId"], original["origin"]) == (sent.msg_id, None)


def test_dead_letters_of_spark_have_origin_and_reason_and_go_back(page: Page, cluster: LocalCluster) -> None:
    spark_dead_letters(cluster, "sensors", "sensors-bad", ["celsius=20", "celsius=21", "celsius=22"])
    row = eventually(lambda: topics(page).get("sensors-bad"), lambda row: row)
    assert (row["messages"], row["origin"], row["reason"]) == (3, "sensors", REASON)
    assert not {"sensors", "orders", "payments"} & topics(page).keys()
    letters = page.find("sensors-bad")["rows"]
    for letter in letters:
        origin = letter["origin"]
        assert (origin["topic"], origin["reason"], origin["missing"]) == ("sensors", REASON, None)
        original = page.get("/api/message", **{name: origin[name] for name in ("topic", "broker", "queue", "offset")})
        assert original["message"]["preview"] == letter["preview"]
        assert original["message"]["msgId"] == origin["msgId"] != letter["msgId"]
    path = "/api/dead-letter-topics/sensors-bad/resend"
    original = page.find("sensors")["rows"][0]
    done = page.post(path, {"messages": [place(letters[0]), place(letters[2]), place(original)]})
    assert (done["sent"], done["done"]) == (2, "Resent 2 of 3 to the origin.")
    (failure,) = done["failures"]
    assert "is not a dead letter of a Spark query" in failure["error"]["text"]
    again = page.find("sensors")["rows"][:2]
    assert {row["preview"] for row in again} == {letters[0]["preview"], letters[2]["preview"]}
    for row in again:
        copy = page.get("/api/message", **place(row))["message"]
        assert (copy["origin"], copy["tags"], copy["properties"]["source"]) == (None, "t", "north")
        assert not BAD_RECORD_PROPERTIES & copy["properties"].keys()
    other = page.post("/api/dead-letter-topics/sensors/resend", {"messages": [place(letters[0])]})
    assert other["sent"] == 0


def test_an_incomplete_dead_letter_is_not_sent_again(page: Page, cluster: LocalCluster) -> None:
    spark_dead_letters(cluster, "wide", "wide-bad", ["x"])
    (letter,) = page.find("wide-bad")["rows"]
    properties = page.get("/api/message", **place(letter))["message"]["properties"]
    kept = {name: value for name, value in properties.items() if name in BAD_RECORD_PROPERTIES}
    with Producer("cuts", name_server=cluster.name_server) as producer:
        producer.send(Message("wide-bad", b"ab", kept | {"ROCKET_BODY_LENGTH": "9000", "ROCKET_LEFT_OUT": "big"}))
    cut = page.find("wide-bad")["rows"][0]
    lacks = "all but 2 of 9000 bytes of the body and the properties big"
    assert cut["origin"]["missing"] == lacks
    done = page.post("/api/dead-letter-topics/wide-bad/resend", {"messages": [place(cut)]})
    assert done["sent"] == 0
    assert lacks in done["failures"][0]["error"]["text"]
    with Admin(cluster.name_server) as admin, pytest.raises(ClientError, match="lacks all but 2 of 9000 bytes"):
        admin.resend(admin.messages_by_time("wide-bad")[0])


def test_topics_are_read_a_few_at_a_time(page: Page, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request reads some more; then topics are read again only if they have new messages."""
    with Producer("many", name_server=cluster.name_server) as producer:
        for number in range(4):
            cluster.create_topic(f"fresh-{number}", 1)
            producer.send(Message.of(f"fresh-{number}", "x"))
        spark_dead_letters(cluster, "zinc", "zinc-letters", ["x"])
    monkeypatch.setattr(dead_topics, "MAX_READ_TOPICS", 1)
    read: list[str] = []
    real = dead_topics._origin

    def noted(topic: Any, promise: Any) -> Any:
        read.append(topic.name)
        return real(topic, promise)

    monkeypatch.setattr(dead_topics, "_origin", noted)
    data = eventually(lambda: page.get("/api/dead-letters"), lambda data: "zinc-letters" in str(data["topics"]))
    eventually(lambda: page.get("/api/dead-letters"), lambda data: data["unknown"] == 0)
    assert data["refresh"] == 500 or data["unknown"] == 0
    assert len(read) == len(set(read)) >= 6
    read.clear()
    spark = page.find("zinc-letters")["rows"][0]
    with Producer("more", name_server=cluster.name_server) as producer:
        producer.send(Message("zinc-letters", b"y", page.get("/api/message", **place(spark))["message"]["properties"]))
        producer.send(Message.of("fresh-0", "y"))
    eventually(lambda: topics(page)["zinc-letters"], lambda row: row["messages"] == 2)
    assert read == ["zinc-letters"]


def test_a_topic_that_could_not_be_read_is_read_again(
    page: Page, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = dead_topics._origin
    lost: list[str] = []

    def no_response() -> None:
        lost.append("tin-letters")
        raise RemotingTimeoutError("No response.")

    def fail_once(topic: Any, promise: Any) -> Any:
        if topic.name == "tin-letters" and not lost:
            promise = SimpleNamespace(result=no_response)
        return real(topic, promise)

    monkeypatch.setattr(dead_topics, "_origin", fail_once)
    spark_dead_letters(cluster, "tin", "tin-letters", ["x"])
    eventually(lambda: page.get("/api/dead-letters"), lambda data: "tin-letters" in str(data["topics"]))
    assert lost


def test_a_broker_that_does_not_respond_is_asked_for_a_few_messages_only(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def fail(_: object, queue: MessageQueue, offset: int, **options: object) -> Promise[PullResult]:
        asked.append(offset)
        return failed(RemotingTimeoutError(f"No response of {queue.broker_name}."))

    monkeypatch.setattr(Reader, "pull_async", fail)
    place = {"topic": "%DLQ%billing", "broker": "broker-a", "queue": 0}
    body = {"messages": [{**place, "offset": offset} for offset in range(100)]}
    done = page.post("/api/dead-letters/billing/resend", body)
    assert (done["sent"], [f["offset"] for f in done["failures"]]) == (0, [*range(100)])
    assert asked == [*range(MAX_READING)]
    assert {f["error"]["text"] for f in done["failures"]} == {"No response of broker-a."}


def test_many_dead_letters_are_resent_once_each_with_one_look_up(
    page: Page, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are in flight; some are selected twice, and some are deleted."""
    for topic in ("%DLQ%bulk", "%RETRY%bulk"):
        cluster.create_topic(topic, 1)
    with Producer("bulk", name_server=cluster.name_server) as producer:
        for number in range(80):
            producer.send(Message("%DLQ%bulk", b"x" * 70_000, {"KEYS": f"{number}", "RETRY_TOPIC": "orders"}))
    looked_up: list[str] = []
    real = Admin.topic_route

    def topic_route(self: Admin, topic: str) -> Any:
        looked_up.append(topic)
        return real(self, topic)

    monkeypatch.setattr(Admin, "topic_route", topic_route)
    offsets = [*range(90, 50, -1), *range(85)]
    places = [{"topic": "%DLQ%bulk", "broker": "broker-a", "queue": 0, "offset": offset} for offset in offsets]
    done = page.post("/api/dead-letters/bulk/resend", {"messages": places})
    assert (done["sent"], done["done"]) == (80, "Resent 80 of 91 to group bulk.")
    assert [f["offset"] for f in done["failures"]] == [*range(90, 79, -1)]
    assert {f["error"]["code"] for f in done["failures"]} == {"NO_SUCH_MESSAGE"}
    assert looked_up == ["%RETRY%bulk+orders", "%RETRY%bulk_orders", "%RETRY%bulk"]
    with Reader(cluster.name_server) as reader:
        (queue,) = reader.queues("%RETRY%bulk")
        assert reader.max_offset(queue) == 80
    with Admin(cluster.name_server) as admin:
        assert {message.keys for message in admin.messages_at(queue, 0, 80)} == {f"{number}" for number in range(80)}


def test_a_read_only_console_resends_nothing(page: Page, cluster: LocalCluster) -> None:
    with page_of(cluster.name_server, read_only=True) as other:
        body = {"messages": [{"topic": "t", "broker": "b", "queue": 0, "offset": 0}]}
        for path in ("/api/dead-letters/billing/resend", "/api/dead-letter-topics/t/resend"):
            assert other.post(path, body, 403)["code"] == "READ_ONLY"
        assert other.find("orders", text="order")["rows"]  # a search changes nothing
