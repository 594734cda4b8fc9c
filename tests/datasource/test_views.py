"""Views on a complete cluster, and on one with unavailable brokers."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from spark_rocket.arrow import read_arrow
from spark_rocket.client import Admin, ConsumeConcurrentlyStatus, Producer, PushConsumer, Reader
from spark_rocket.datasource.capabilities import arrow_schema
from spark_rocket.datasource.options.parse import parse_given
from spark_rocket.datasource.options.parsers import VIEW_NAMES
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.tables import new_table
from spark_rocket.datasource.views.views import VIEWS, ViewReader, checked_view_options, view_schema
from spark_rocket.errors import OptionError, ProtocolError, RemotingConnectError, SchemaError, TopicNotFoundError
from spark_rocket.model import Message
from spark_rocket.protocol.wire.bodies.route import BrokerData, ClusterInfo
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.waiting import until

Row = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Orders in two queues, partly consumed by a group, with one dead letter."""
    with LocalCluster(in_process=True) as running:
        topic = running.create_topic("orders", 2)
        with Producer("shop", name_server=running.name_server) as producer, Reader(running.name_server) as reader:
            for n, queue in enumerate(reader.queues(topic)):
                producer.send([Message.of(topic, f"{n}-{i}", keys=[f"k{i}", "all"]) for i in range(5)], queue=queue)
            reader.commit_offset("billing", reader.queues(topic)[0], 2)
            dead = Message.of("%DLQ%billing", "dead", properties={"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "7F00"})
            running.create_topic("%DLQ%billing", 1)
            producer.send(dead)
        yield running


def read(cluster: str | LocalCluster, view: str, schema: StructType | None = None, **options: str) -> list[Row]:
    """The rows for Spark, after a check of each batch's exact schema."""
    name_server = cluster if isinstance(cluster, str) else cluster.name_server
    parsed = checked_view_options({"view": view, "nameServer": name_server, "requestTimeout": "5000"} | options)
    schema = schema or VIEWS[view].schema
    reader = pickle.loads(pickle.dumps(ViewReader(parsed, schema)))
    [partition] = reader.partitions()
    rows: list[Row] = []
    for batch in reader.read(partition):
        assert isinstance(batch, pa.RecordBatch)
        assert batch.schema.equals(arrow_schema(schema))
        rows += batch.to_pylist()
    return rows


@pytest.mark.live
def test_messages_that_cannot_be_decoded_do_not_hide_others(caplog: pytest.LogCaptureFixture) -> None:
    """Their producer marked them as compressed, and did not compress them."""
    with LocalCluster(in_process=True) as running, RemotingClient() as client:
        topic = running.create_topic("orders", 1)
        wire = Wire(client, running.broker_address)
        for body, sys_flag in ((b"one", 0), (b"damaged", 1), (b"two", 0)):
            assert wire.send(topic, body, {"KEYS": "k"}, f=sys_flag).code == 0
        look_up = partial(read_arrow, topic, name_server=running.name_server, lookup_keys="k")
        until(lambda: look_up(columns=["queueOffset"]).read_all().num_rows == 3)
        assert [row["body"] for row in read(running, "messages", subscribe=topic, key="k")] == [b"one", b"two"]
        assert "orders/broker-a/0@1: [PROTOCOL_ERROR] The message at offset 1: Invalid zlib body" in caplog.text
        with pytest.raises(ProtocolError, match="message 1 of orders/broker-a/0 cannot be decoded"):
            look_up().read_all()


@pytest.mark.live
def test_every_view(cluster: LocalCluster) -> None:
    [broker] = read(cluster, "brokers")
    assert (broker["cluster"], broker["brokerName"], broker["brokerId"]) == ("DefaultCluster", "broker-a", 0)
    assert broker["address"] == cluster.broker_address
    assert broker["version"].startswith("V5")
    assert broker["error"] is None
    assert broker["startTime"] > datetime.now(UTC) - timedelta(minutes=10)
    assert broker["messagesToday"] >= 11
    assert broker["commitLogMaxOffset"] > broker["commitLogMinOffset"] == 0
    assert 0 < broker["diskRatio"] < 1
    assert dict(broker["info"])["brokerVersionDesc"] == broker["version"]
    assert read(cluster, "cluster") == [
        {key: broker[key] for key in ("cluster", "brokerName", "brokerId", "address")} | {"zone": None}
    ]

    topics = {row["topic"]: row for row in read(cluster, "topics")}
    assert {name for name, row in topics.items() if not row["isSystem"]} == {"orders"}
    assert (topics["orders"]["readQueues"], topics["orders"]["perm"], topics["orders"]["order"]) == (2, "RW-", False)
    assert topics["TBW102"]["perm"] == "RWX"
    assert [row["topic"] for row in read(cluster, "topics", subscribe="orders")] == ["orders"]

    queues = read(cluster, "queues")
    assert [(row["topic"], row["queueId"], row["minOffset"], row["maxOffset"]) for row in queues] == [
        ("orders", 0, 0, 5),
        ("orders", 1, 0, 5),
    ]
    assert queues[0]["messages"] == 5
    assert queues[0]["lastUpdateTime"] > datetime.now(UTC) - timedelta(minutes=10)
    assert len(read(cluster, "queues", subscribe="%DLQ%billing")) == 1

    lag = read(cluster, "lag", consumerGroup="billing", subscribe="orders")
    assert [(row["queueId"], row["brokerOffset"], row["consumerOffset"], row["lag"]) for row in lag] == [
        (0, 5, 2, 3),
        (1, 5, 0, 5),
    ]
    assert {row["group"] for row in read(cluster, "lag")} == {"billing"}

    by_key = read(cluster, "messages", subscribe="orders", key="k3")
    assert sorted(row["body"] for row in by_key) == [b"0-3", b"1-3"]
    assert len(read(cluster, "messages", subscribe="orders,%DLQ%billing", key="all")) == 10
    [found] = read(cluster, "messages", subscribe="orders", msgId=by_key[0]["msgId"])
    assert found == by_key[0]
    with Reader(cluster.name_server) as reader:
        [stored] = reader.messages(reader.queues("orders")[0], 2)[:1]
    assert read(cluster, "messages", subscribe="orders", msgId=stored.offset_msg_id) == []  # msgId has another value
    assert read(cluster, "messages", subscribe="orders", key="missing") == []

    [dead] = read(cluster, "dlq", consumerGroup="billing")
    assert (dead["group"], dead["originTopic"], dead["originMsgId"]) == ("billing", "orders", "7F00")
    assert dead["body"] == b"dead"
    assert read(cluster, "dlq", consumerGroup="missing") == []


@pytest.mark.live
def test_views_of_clients(cluster: LocalCluster) -> None:
    name_server = cluster.name_server
    consumer = PushConsumer("watch", lambda *_: ConsumeConcurrentlyStatus.CONSUME_SUCCESS, name_server=name_server)
    consumer.subscribe("orders", "A || B")
    with Producer("shop", name_server=name_server) as producer, consumer:
        consumer.start()
        producer.send(Message.of("orders", "one more", tags="B"))
        [member] = read(cluster, "consumers", consumerGroup="watch")
        assert (member["brokerName"], member["language"], member["consumeType"]) == (
            "broker-a", "PYTHON", "CONSUME_PASSIVELY",
        )  # fmt: skip
        assert dict(member["subscription"])["orders"] == "A || B"
        assert member in read(cluster, "consumers")
        [made] = read(cluster, "producers", producerGroup="shop")
        assert made["clientId"]
        assert made["address"]
        [group] = read(cluster, "groups", consumerGroup="watch")
        assert (group["members"], group["topics"], group["messageModel"]) == (1, ["orders"], "CLUSTERING")
        assert group["retryMaxTimes"] == 16
    groups = {row["group"]: row for row in read(cluster, "groups")}
    assert groups["billing"] | {"brokers": ["broker-a"], "members": 0, "topics": ["orders"]} == groups["billing"]


@pytest.mark.live
@pytest.mark.parametrize("view", ["topics", "queues", "lag"])
def test_a_missing_topic(cluster: LocalCluster, view: str) -> None:
    with pytest.raises(TopicNotFoundError, match="'no-such'"):
        read(cluster, view, subscribe="orders,no-such")


@pytest.mark.live
def test_unavailable_brokers(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    info = _with(Admin.cluster_info, {"broker-b": {1: "127.0.0.1:1"}, "broker-c": {0: "127.0.0.1:1"}})
    monkeypatch.setattr(Admin, "cluster_info", info)
    with caplog.at_level(logging.WARNING):
        assert {row["brokerName"] for row in read(cluster, "queues")} == {"broker-a"}
    for name in ("broker-b", "broker-c"):  # of a broker without a master, a slave is queried
        assert f"the view queues lacks the data of {name}: [CONNECT_FAILED]" in caplog.text
    rows = {row["brokerName"]: row for row in read(cluster, "brokers")}
    assert {name: row["error"] is None for name, row in rows.items()} == {
        "broker-a": True,
        "broker-b": False,
        "broker-c": False,
    }
    assert rows["broker-c"]["info"] is None
    monkeypatch.setattr(Admin, "cluster_info", lambda self: _only(info(self), "broker-c"))
    with pytest.raises(RemotingConnectError):
        read(cluster, "queues")
    assert len(read(cluster, "brokers")) == 1


def _with(
    cluster_info: Callable[[Admin], ClusterInfo], more: dict[str, dict[int, str]]
) -> Callable[[Admin], ClusterInfo]:
    def whole(self: Admin) -> ClusterInfo:
        info = cluster_info(self)
        info.broker_addr_table |= {name: BrokerData("DefaultCluster", name, at) for name, at in more.items()}
        info.cluster_addr_table["DefaultCluster"] += more
        return info

    return whole


def _only(info: ClusterInfo, name: str) -> ClusterInfo:
    return ClusterInfo({name: info.broker_addr_table[name]}, info.cluster_addr_table)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"view": "topic"}, "view is 'topic'. Use one of cluster, brokers, topics"),
        ({"view": "brokers", "subscribe": "t"}, "option subscribe cannot be combined with view=brokers"),
        ({"view": "lag", "key": "k"}, "option key cannot be combined with view=lag"),
        ({"view": "topics", "startingOffsets": "earliest"}, "option startingOffsets is for"),
        ({"view": "topics", "subscribed": "t"}, "Did you mean subscribe?"),
        ({"view": "dlq"}, "option view is 'dlq', which requires consumerGroup"),
        ({"view": "producers"}, "which requires producerGroup"),
        ({"view": "messages", "subscribe": "t"}, "which requires key or msgId"),
        ({"view": "messages", "subscribe": "t", "key": "k", "msgId": "m"}, "option key cannot be combined with msgId"),
        ({"view": "messages", "key": "k"}, "which requires subscribe"),
    ],
)
def test_options_that_are_invalid_for_a_view(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=re.escape(text)):
        view_schema(given)


def test_options_of_views_in_other_scopes() -> None:
    for scope, remedy in ((Scope.READ_STREAM, "Read views with spark.read"), (Scope.WRITE, "is for views")):
        with pytest.raises(OptionError, match=remedy):
            parse_given({"view": "lag"}, frozenset({scope}))
    with pytest.raises(OptionError, match=r'option\("view", "messages"\)'):
        parse_given({"key": "k"}, frozenset({Scope.READ}))


@pytest.mark.live
def test_a_schema_can_select_columns(cluster: LocalCluster) -> None:
    some = StructType([StructField("QUEUES", StringType())])
    with pytest.raises(SchemaError, match="the view queues has no column QUEUES"):
        read(cluster, "queues", some)
    with pytest.raises(SchemaError, match="maxOffset is bigint, not string"):
        read(cluster, "queues", StructType([StructField("maxoffset", StringType())]))
    never_null = StructType([StructField("lastUpdateTime", TimestampType(), False)])
    with pytest.raises(SchemaError, match="lastUpdateTime is nullable, but the schema declares it NOT NULL"):
        read(cluster, "queues", never_null)
    two = StructType([VIEWS["queues"].schema["messages"], VIEWS["queues"].schema["topic"]])
    assert list(read(cluster, "queues", two)[0].items())[1] == ("topic", "orders")


def test_every_view_is_documented() -> None:
    assert tuple(VIEWS) == VIEW_NAMES
    page = (Path(__file__).parents[2] / "docs" / "reference" / "columns.md").read_text(encoding="utf-8")
    for name, view in VIEWS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |") and view.row in line)
        assert all(f"`{option}`" in row for option in (*view.needs, *view.takes))
        if name not in ("messages", "dlq"):
            assert all(f"`{column}`" in row for column in view.schema.names)


def test_a_view_can_be_a_table() -> None:
    table = new_table({"view": "lag", "consumerGroup": "billing"}, view_schema)
    assert table.names == VIEWS["lag"].schema.names
    with pytest.raises(OptionError, match="option key cannot be combined with view=lag"):
        new_table({"view": "lag", "key": "k"}, view_schema)
