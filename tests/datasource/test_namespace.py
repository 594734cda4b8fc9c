"""The data source with a namespace, beside clients that see the full names."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyspark.sql.streaming.listener import SourceProgress
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from spark_rocket import read_arrow
from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.datasource import RocketLagListener
from spark_rocket.datasource.batch_reader import RocketBatchReader
from spark_rocket.datasource.exactly_once.driver import check_topics, commit_epoch
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.sink_brokers import brokers_for
from spark_rocket.datasource.exactly_once.staging import stage_rows
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_read_options, parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA
from spark_rocket.datasource.stream import RocketStreamReader
from spark_rocket.datasource.stream_offsets import StreamOffset
from spark_rocket.datasource.views.views import VIEWS, ViewReader, checked_view_options
from spark_rocket.datasource.write.task import send_rows
from spark_rocket.datasource.write.writer import RocketWriter
from spark_rocket.errors import RocketError
from spark_rocket.model import BAD_RECORD_TOPIC, Message, MessageQueue
from spark_rocket.protocol.requests import BROKER_REQUESTS, NAMESRV_REQUESTS
from spark_rocket.protocol.wire.codes import BROKER_NAME, ONE_LETTER_CODES, RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.async_client import AsyncRemotingClient
from spark_rocket.remoting.client.connection import RemotingConnection
from spark_rocket.remoting.session import Pieces
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until

pytestmark = pytest.mark.live

INSTANCE = "MQ_INST_1_a"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two topics of the instance and one outside it, with a message in each queue; and a dead letter."""
    with LocalCluster(in_process=True) as running, Producer("shop", name_server=running.name_server) as producer:
        dead = running.create_topic(f"%DLQ%{INSTANCE}%billing", 1)
        producer.send(Message.of(dead, "dead", properties={"RETRY_TOPIC": f"{INSTANCE}%orders"}))
        for topic in (f"{INSTANCE}%orders", f"{INSTANCE}%paid", "orders"):
            running.create_topic(topic, 2)
            for queue in producer.queues(topic):
                producer.send(
                    Message.of(topic, f"{topic} {queue.queue_id}", keys="k", properties={"RETRY_TOPIC": topic}),
                    queue=queue,
                )
        yield running


def read(cluster: LocalCluster, namespace: str = INSTANCE, **options: str) -> list[dict[str, Any]]:
    given = {"nameServer": cluster.name_server, "namespace": namespace, **options}
    reader = RocketBatchReader(parse_read_options(given, Scope.READ), SOURCE_SCHEMA)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def writing(cluster: LocalCluster, namespace: str = INSTANCE, **options: str) -> WriteOptions:
    given = {"nameServer": cluster.name_server, "namespace": namespace, **options}
    return parse_write_options(given, Scope.WRITE_STREAM)


SELECTIONS: dict[str, dict[str, str]] = {
    "short": {"subscribe": "orders"},
    "full": {"subscribe": f"{INSTANCE}%orders"},
    "both": {"subscribe": f"orders,{INSTANCE}%orders"},
    "pattern": {"subscribePattern": "ord.*"},
    "pattern of full names": {"subscribePattern": f"{INSTANCE}%ord.*"},
    "queues": {"assign": json.dumps({"orders": {"broker-a": [0, 1]}})},
    "offsets": {
        "subscribe": "orders",
        "startingOffsets": json.dumps({"orders": {"broker-a": {"0": 0, "1": -2}}}),
        "endingOffsetsByTimestamp": json.dumps({"orders": {"broker-a": {"0": 2**41, "1": 2**41}}}),
    },
    "keys": {"subscribe": "orders", "lookupKeys": "k"},
    "group": {"subscribe": "orders", "consumerGroup": "spark", "startingOffsets": "group"},
}


@pytest.mark.parametrize("options", SELECTIONS.values(), ids=SELECTIONS)
def test_rows_have_names_without_the_namespace(options: dict[str, str], cluster: LocalCluster) -> None:
    rows = read(cluster, **options)
    assert {bytes(row["body"]).decode() for row in rows} == {f"{INSTANCE}%orders 0", f"{INSTANCE}%orders 1"}
    assert len(rows) == 2
    assert {row["topic"] for row in rows} == {"orders"}
    assert {dict(row["properties"])["RETRY_TOPIC"] for row in rows} == {"orders"}


def test_without_a_namespace_names_are_full(cluster: LocalCluster) -> None:
    rows = read(cluster, "", subscribe=f"{INSTANCE}%orders")
    assert {row["topic"] for row in rows} == {f"{INSTANCE}%orders"}
    assert {row["topic"] for row in read(cluster, "", subscribePattern=".*orders")} == {f"{INSTANCE}%orders", "orders"}


def test_errors_have_short_names(cluster: LocalCluster) -> None:
    with pytest.raises(RocketError, match="no-such") as missing:
        read(cluster, subscribe="no-such", retryTimeout="0")
    assert INSTANCE not in missing.value.message
    columns = StructType([StructField("body", StringType()), StructField("queueId", IntegerType())])
    rows = pa.record_batch({"body": ["x"], "queueId": pa.array([99], pa.int32())})
    with pytest.raises(RocketError, match="queueId is 99, but topic orders") as unwritten:
        RocketWriter(writing(cluster, topic="orders"), columns).write(iter([rows]))
    assert INSTANCE not in unwritten.value.message


def stream(cluster: LocalCluster, namespace: str, topic: str, **more: str) -> RocketStreamReader:
    given = {"nameServer": cluster.name_server, "namespace": namespace, "subscribe": topic, **more}
    if "startingOffsets" not in more:
        given["startingOffsets"] = "earliest"
    return RocketStreamReader(parse_read_options(given, Scope.READ_STREAM), SOURCE_SCHEMA)


def rows_between(reader: RocketStreamReader, start: dict[str, object], end: dict[str, object]) -> list[dict[str, Any]]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("first", [INSTANCE, ""], ids=["with, then without", "without, then with"])
def test_a_checkpoint_is_continued_by_the_other_kind_of_names(first: str, cluster: LocalCluster) -> None:
    names = {INSTANCE: "moved", "": f"{INSTANCE}%moved"}
    topic = cluster.create_topic(f"{INSTANCE}%moved", 1) if first else f"{INSTANCE}%moved"
    with Producer("mover", name_server=cluster.name_server) as producer:
        producer.send(Message.of(topic, "one"))
        before = stream(cluster, first, names[first], consumerGroup="moving" if first else f"{INSTANCE}%moving")
        end = before.end_after(before.initialOffset())
        assert list(end["offsets"]) == [topic], "checkpoints have full names"  # type: ignore[call-overload]
        seen = rows_between(before, before.initialOffset(), end)
        assert bytes(seen[-1]["body"]) == b"one"
        producer.send(Message.of(topic, "two"))
    second = "" if first else INSTANCE
    after = stream(cluster, second, names[second])
    later = after.end_after(json.loads(json.dumps(end)))
    rows = rows_between(after, end, later)
    assert [(row["topic"], bytes(row["body"])) for row in rows] == [(names[second], b"two")]
    before.end_after(end)  # all before it was read
    with Reader(cluster.name_server) as reader:
        queues = reader.queues(topic)
        assert any(reader.committed_offset(f"{INSTANCE}%moving", queue) for queue in queues), (
            "groups have the namespace, too"
        )


def test_rows_are_written_to_topics_of_the_namespace(cluster: LocalCluster) -> None:
    rows = pa.record_batch(
        {"topic": ["new", f"{INSTANCE}%new", "new"], "body": ["1", "2", "3"], "shardingKey": ["a"] * 3}
    )
    cluster.create_topic(f"{INSTANCE}%new", 4)
    send_rows(iter([rows]), writing(cluster), "test")
    found = read(cluster, "", subscribe=f"{INSTANCE}%new")
    assert [bytes(row["body"]) for row in found] == [b"1", b"2", b"3"], "one topic, so one queue, in order"


def frame(*bodies: str) -> pa.RecordBatch:
    return pa.record_batch({"topic": ["sunk"] * len(bodies), "body": list(bodies)})


def commit(given: WriteOptions, batch: int, *bodies: str, query: str = "query") -> None:
    staged = stage_rows(iter([frame(*bodies)]), brokers_for(given), given, Epoch(query, batch))
    for _ in range(2):
        commit_epoch(given, [staged], is_stream=True)


SINK = {"deliveryGuarantee": "exactlyOnce", "gracePeriod": "2s", "requestTimeout": "1s"}


def bodies(cluster: LocalCluster) -> list[bytes]:
    return sorted(bytes(row["body"]) for row in read(cluster, subscribe="sunk"))


def test_the_sink_lives_in_the_namespace() -> None:
    with LocalCluster(in_process=True) as cluster, Admin(cluster.name_server) as admin:
        cluster.create_topic(f"{INSTANCE}%sunk", 2)
        given, _ = check_topics(writing(cluster, **SINK))
        commit(given, 0, "1", "2")
        names = {*admin.topics(), *(group.name for group in admin.groups())}
        sinks = {name for name in names if "ROCKET_SINK" in name}
        assert sinks == {f"{INSTANCE}%ROCKET_SINK_LEDGER", f"{INSTANCE}%ROCKET_SINK_STAGING"}, "all can be granted"
        assert "spark_rocket_writer" not in names
        assert admin.kv_configs("ROCKET_SINK").keys() == {f"{INSTANCE}%ROCKET_SINK_LEDGER"}
        # The query goes on with full names, and with the option again.
        full, _ = check_topics(
            writing(
                cluster, "", **SINK, ledgerTopic=f"{INSTANCE}%ROCKET_SINK_LEDGER",
                stagingTopic=f"{INSTANCE}%ROCKET_SINK_STAGING", ledgerGroup=f"{INSTANCE}%ROCKET_SINK_LEDGER",
                topic=f"{INSTANCE}%sunk",
            )
        )  # fmt: skip
        commit(full, 0, "again")
        commit(full, 1, "3")
        commit(given, 1, "again")
        commit(given, 2, "4")
        assert bodies(cluster) == [b"1", b"2", b"3", b"4"]


def test_a_sink_with_full_names_keeps_its_ledger() -> None:
    """Its ledger has no namespace. It is found, so nothing is decided twice."""
    with LocalCluster(in_process=True) as cluster, Admin(cluster.name_server) as admin:
        cluster.create_topic(f"{INSTANCE}%sunk", 2)
        full, _ = check_topics(writing(cluster, "", **SINK, topic=f"{INSTANCE}%sunk"))
        commit(full, 0, "1")
        given, _ = check_topics(writing(cluster, **SINK))
        assert (given.ledger_topic, given.ledger_group) == ("ROCKET_SINK_LEDGER", "ROCKET_SINK_LEDGER")
        commit(given, 0, "again")
        commit(given, 1, "2")
        assert bodies(cluster) == [b"1", b"2"]
        assert admin.kv_configs("ROCKET_SINK").keys() == {"ROCKET_SINK_LEDGER"}, "no second ledger"


def view(cluster: LocalCluster, name: str, **options: str) -> list[dict[str, Any]]:
    given = {"view": name, "nameServer": cluster.name_server, "namespace": INSTANCE, **options}
    reader = ViewReader(checked_view_options(given), VIEWS[name].schema)
    [partition] = reader.partitions()
    return [row for batch in reader.read(partition) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("topics", {}),
        ("groups", {}),
        ("queues", {"subscribe": "orders"}),
        ("lag", {"consumerGroup": "billing"}),
        ("messages", {"subscribe": "orders", "key": "k"}),
        ("dlq", {"consumerGroup": "billing"}),
    ],
)
def test_views_have_short_names(name: str, options: dict[str, str], cluster: LocalCluster) -> None:
    with Reader(cluster.name_server) as reader:
        reader.commit_offset(f"{INSTANCE}%billing", reader.queues(f"{INSTANCE}%orders")[0], 1)
    rows = view(cluster, name, **options)
    assert rows
    assert INSTANCE not in repr([{key: value for key, value in row.items() if key != "body"} for row in rows])


def test_every_request_names_its_broker(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of reads, look-ups, views, writes and the sink: a proxy needs the name."""
    sent: list[tuple[int, str | None]] = []
    encode: Callable[..., Pieces] = AsyncRemotingClient.encode

    def noting(self: AsyncRemotingClient, connection: RemotingConnection, request: RemotingCommand) -> Pieces:
        pieces = encode(self, connection, request)
        name = request.ext_fields.get("n" if request.code in ONE_LETTER_CODES else BROKER_NAME)
        sent.append((request.code, name))
        return pieces

    monkeypatch.setattr(AsyncRemotingClient, "encode", noting)
    read(cluster, subscribe="orders", lookupKeys="k", requestTimeout="2s")
    read(cluster, subscribe="orders", requestTimeout="2s", startingTimestamp="1", minPartitions="4")
    reader = stream(cluster, INSTANCE, "paid", consumerGroup="all", requestTimeout="2s")
    end = reader.end_after(reader.initialOffset(), 1)
    rows_between(reader, reader.initialOffset(), end)
    reader.commit(end)
    for name in ("topics", "lag", "messages"):
        view(cluster, name, **({"subscribe": "orders", "key": "k"} if name == "messages" else {}), requestTimeout="2s")
    given, _ = check_topics(writing(cluster, **SINK | {"requestTimeout": "900ms"}, topic="paid"))
    commit(given, 0, "x", query="names")
    at_brokers = [(code, name) for code, name in sent if code in BROKER_REQUESTS and code not in NAMESRV_REQUESTS]
    assert {code for code, _ in at_brokers} >= {
        RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.SEND_BATCH_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.GET_TOPIC_CONFIG,
    }  # fmt: skip
    assert {RequestCode(code).name for code, name in at_brokers if name != "broker-a"} == set()


def test_read_arrow_and_its_dead_letters_have_short_names(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    connecting: dict[str, Any] = {"name_server": cluster.name_server, "namespace": INSTANCE}
    with Admin(cluster.name_server, namespace="") as admin:
        for topic in ("typed", "letters"):
            admin.create_topic(f"{INSTANCE}%{topic}", 1)
    with Producer("typist", **connecting) as producer:
        for body in ('{"n": 1}', "invalid"):
            producer.send(Message.of("typed", body))
    bad: dict[str, Any] = {"body_format": "json", "bad_records": "deadLetter", "dead_letter_topic": "letters"}
    rows = (
        read_arrow("typed", schema="n INT, topic STRING", metadata_columns="topic", **bad, **connecting)
        .read_all()
        .to_pylist()
    )
    assert rows == [{"n": 1, "topic": "typed"}]
    assert "were sent to letters" in caplog.text
    (letter,) = read(cluster, subscribe="letters")
    assert (letter["topic"], letter["body"]) == ("letters", b"invalid")
    assert dict(letter["properties"])[BAD_RECORD_TOPIC] == "typed"
    (full,) = read(cluster, "", subscribe=f"{INSTANCE}%letters")
    assert dict(full["properties"])[BAD_RECORD_TOPIC] == f"{INSTANCE}%typed"
    with pytest.raises(RocketError, match="typed") as failed:
        read_arrow("typed", schema="n INT", body_format="json", **connecting).read_all()
    assert INSTANCE not in str(failed.value)


@pytest.mark.parametrize("selection", [SELECTIONS["short"], SELECTIONS["full"], {}], ids=["short", "full", "all"])
def test_a_directory_of_a_stopped_broker_has_short_names(selection: dict[str, str], stopped: Path) -> None:
    given = {"storePath": str(stopped), "namespace": INSTANCE, **selection}
    reader = RocketBatchReader(parse_read_options(given, Scope.READ), SOURCE_SCHEMA)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert {row["topic"] for row in rows if row["body"] == b"one"} == {"orders"}
    assert {dict(row["properties"])["RETRY_TOPIC"] for row in rows if row["body"] == b"one"} == {"orders"}
    assert INSTANCE not in str([row["topic"] for row in rows])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stopped")
    with (
        LocalCluster(in_process=True, data_dir=directory) as running,
        Producer("shop", name_server=running.name_server) as producer,
    ):
        for topic in (f"{INSTANCE}%orders", "other"):
            running.create_topic(topic, 2)
        properties = {"RETRY_TOPIC": f"{INSTANCE}%orders"}
        producer.send(Message.of(f"{INSTANCE}%orders", "one", properties=properties))
        producer.send(Message.of("other", "two"))
    return directory


def test_the_lag_listener_has_short_names(cluster: LocalCluster) -> None:
    """Spark's progress has full names. The age of the oldest unread message is asked for in the namespace."""
    queue = MessageQueue(f"{INSTANCE}%orders", "broker-a", 0)
    end, latest = (json.dumps(StreamOffset({queue: offset}).to_json()) for offset in (0, 1))
    source = SourceProgress("rocket", "null", end, latest, 1, 1.0, 1.0, {})
    progress = SimpleNamespace(id="1", runId=uuid.uuid4(), name="copy", sources=[source])
    listener = RocketLagListener(0, name_server=cluster.name_server, namespace=INSTANCE)
    try:
        listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]

        def metrics() -> str:
            with urlopen(f"http://127.0.0.1:{listener.port}/metrics") as page:
                return str(page.read().decode())

        page = until(lambda: text if "lag_seconds{" in (text := metrics()) else "", "the age")
    finally:
        listener.close()
    assert 'topic="orders"' in page
    assert INSTANCE not in page
