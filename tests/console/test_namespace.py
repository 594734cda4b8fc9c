"""The console with a namespace: short names on every page, and changes in the namespace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster
from tests.console.conftest import Page, eventually, page_of

pytestmark = pytest.mark.live

INSTANCE = "MQ_INST_1_a"
ORDERS, DEAD = f"{INSTANCE}%orders", f"%DLQ%{INSTANCE}%billing"
RETRY = f"%RETRY%{INSTANCE}%billing"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A topic, a group and a dead letter of the instance, and a topic outside it."""
    with LocalCluster(in_process=True) as cluster:
        for topic in (ORDERS, DEAD, RETRY, "outside"):
            cluster.create_topic(topic, 1)
        cluster.create_group(f"{INSTANCE}%billing")
        with Producer("seed", name_server=cluster.name_server) as producer, Reader(cluster.name_server) as reader:
            producer.send(Message.of(ORDERS, "one", keys="k"))
            producer.send(Message.of(DEAD, "dead", keys="d", properties={"RETRY_TOPIC": ORDERS}))
            reader.commit_offset(f"{INSTANCE}%billing", reader.queues(ORDERS)[0], 0)
        yield cluster


@pytest.fixture(scope="module")
def page(cluster: LocalCluster) -> Iterator[Page]:
    with page_of(cluster.name_server, connecting={"namespace": INSTANCE}) as page:
        yield page


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/overview", "broker-a"),
        ("/api/topics", "orders"),
        ("/api/topic-names", "orders"),
        ("/api/topics/orders", "orders"),
        ("/api/groups", "billing"),
        ("/api/group-names", "billing"),
        ("/api/groups/billing", "orders"),
        ("/api/producers", ""),
        ("/api/messages?topic=orders&by=key&key=k", "orders"),
        ("/api/dead-letters", "billing"),
        ("/api/dead-letters?group=billing", "billing"),
    ],
)
def test_pages_have_short_names(path: str, name: str, page: Page) -> None:
    text = eventually(lambda: page.http.get(path).text, lambda text: name in text)
    assert INSTANCE not in text
    assert "outside" not in text


def test_messages_have_short_names_and_are_resent_in_the_namespace(cluster: LocalCluster, page: Page) -> None:
    rows = [*page.find("orders")["rows"], *page.find("%DLQ%billing")["rows"]]
    assert [row["topic"] for row in rows] == ["orders", "%DLQ%billing"]
    found, dead = ({name: row[name] for name in ("topic", "broker", "queue", "offset")} for row in rows)
    shown = page.get("/api/message", **found)
    assert shown["message"]["topic"] == "orders"
    assert page.post("/api/dead-letters/billing/resend", {"messages": [dead]})["sent"] == 1
    (retried,) = page.find("%RETRY%billing")["rows"]
    assert retried["origin"]["topic"] == "orders"
    assert INSTANCE not in str((rows, shown, retried))
    with Reader(cluster.name_server, namespace="") as plain:
        (queue,) = plain.queues(RETRY)
        (message,) = plain.messages(queue, 0)
        assert message.properties["RETRY_TOPIC"] == ORDERS


def test_changes_are_made_in_the_namespace(cluster: LocalCluster, page: Page) -> None:
    page.post("/api/topics", {"topic": "new", "queues": 1})
    page.post("/api/groups", {"group": "late"})
    assert INSTANCE not in page.post("/api/messages", {"topic": "new", "body": "x"})["done"]
    with Admin(cluster.name_server, namespace="") as plain:
        names = {*plain.topics(), *(group.name for group in plain.groups())}
        assert {f"{INSTANCE}%new", f"{INSTANCE}%late"} <= names
        assert not {"new", "late"} & names
