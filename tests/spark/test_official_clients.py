"""RocketMQ's own Python and Node.js clients and Spark on the same topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.proxy.official.clients import Official
from tests.proxy.official.test_clients import ALL, set_orderly
from tests.spark.conftest import Rocket
from tests.spark.test_write import write

pytestmark = pytest.mark.classic("these tests use other clients than Spark")


@pytest.fixture(scope="module", params=["python", "node"])
def official(
    request: pytest.FixtureRequest, cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Official]:
    client = Official(request.param, cluster.grpc_endpoint, tmp_path_factory.mktemp("home"))
    yield client
    client.close()


def test_spark_reads_messages_of_official_clients(
    mq: Rocket, official: Official, run: Callable[..., list[str]]
) -> None:
    """Batch and stream: ids, keys, tags, properties, times, and the order of a message group."""
    topic = mq.topic(4)
    official.do("producer", topic, topics=[topic])
    begun = int(time.time())
    given = {"topic": topic, "body": "tea ☕", "tag": "t", "keys": ["k1", "k2"], "properties": {"a": "1", "ü": "ö"}}
    receipt = official.do("send", topic, message=given)
    ordered = [
        official.do("send", topic, message={"topic": topic, "body": f"x{number}", "group": "x"}) for number in range(5)
    ]
    rows = {bytes(row.body).decode(): row for row in mq.read(topic).collect()}
    row = rows.pop("tea ☕")
    assert (row.msgId, row.tags, sorted(row["keys"].split())) == (receipt["messageId"], "t", ["k1", "k2"])
    assert row.properties.items() >= {"a": "1", "ü": "ö"}.items()
    assert begun <= row.bornTimestamp.timestamp() <= time.time()
    of_group = sorted(rows.values(), key=lambda row: row.queueOffset)
    assert [bytes(row.body) for row in of_group] == [b"x0", b"x1", b"x2", b"x3", b"x4"]
    assert [row.msgId for row in of_group] == [receipt["messageId"] for receipt in ordered]
    assert {(row.queueId, row.properties["__SHARDINGKEY"]) for row in of_group} == {(of_group[0].queueId, "x")}
    streamed = run(mq.stream(topic, startingOffsets="earliest"))
    assert [body for body in streamed if body.startswith("x")] == ["x0", "x1", "x2", "x3", "x4"]


def test_official_clients_read_messages_of_spark(mq: Rocket, official: Official, spark: SparkSession) -> None:
    topic = mq.topic(4)
    group = f"GID-{topic}"
    with RemotingClient() as client:
        set_orderly(Wire(client, mq.cluster.broker_address), group)
    frame = spark.range(8, numPartitions=1).selectExpr(
        "CAST(id AS STRING) AS body",
        "concat('tag', id % 2) AS tags",
        "concat('key', id) AS keys",
        "map('p', CAST(id AS STRING)) AS properties",
        "concat('group', id % 2) AS shardingKey",
    )
    write(mq, frame, topic=topic)
    rows = {bytes(row.body).decode(): row for row in mq.read(topic).collect()}
    official.do("push", topic, group=group, topics={topic: ALL})
    messages = [official.event(topic)["message"] for _ in range(8)]
    for number in range(2):
        assert [one["body"] for one in messages if one["group"] == f"group{number}"] == [
            f"{number + n}" for n in (0, 2, 4, 6)
        ]
    for message in messages:
        body, row = message["body"], rows[message["body"]]
        assert (message["messageId"], message["tag"], message["keys"]) == (
            row.msgId,
            f"tag{int(body) % 2}",
            [f"key{body}"],
        )
        assert (message["properties"], message["corrupted"]) == ({"p": body}, False)
        assert message["bornTimestamp"] == int(row.bornTimestamp.timestamp() * 1000)
