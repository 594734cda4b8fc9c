"""``read_arrow``: the rows of the data source, without Spark, in threads that end."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_rocket
from spark_rocket import read_arrow
from spark_rocket.client import Producer
from spark_rocket.datasource import read_tasks
from spark_rocket.datasource.batch_reader import RocketBatchReader
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.schema import MESSAGE_SCHEMA
from spark_rocket.datasource.spark_schema import spark_schema
from spark_rocket.errors import DataSourceError, OptionError, RecordError, SchemaError, TopicNotFoundError
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster
from tests.datasource.body_formats.formats import avro, descriptor
from tests.kit.interrupts import interrupted_at
from tests.kit.waiting import until

pytestmark = pytest.mark.live

QUEUES, MESSAGES = 4, 400


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True, config={"enablePropertyFilter": True}) as running:
        running.create_topic("orders", QUEUES)
        running.create_topic("others", 1)
        with Producer("shop", name_server=running.name_server) as producer:
            for number in range(0, MESSAGES, 10):
                producer.send(
                    [
                        Message.of(
                            "orders",
                            json.dumps({"id": at, "item": f"item {at}", "price": at / 4}) if at % 100 else "{",
                            tags="paid" if at % 3 else "open",
                            keys=f"key-{at}",
                            properties={"size": str(at)},
                        )
                        for at in range(number, number + 10)
                    ]
                )
            producer.send(Message.of("others", "x,1"))
            producer.send(Message.of("others", "x,1"))
        yield running


def of_spark(options: dict[str, str], schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of Spark's reader."""
    parsed = parse_read_options(options, Scope.READ)
    reader = RocketBatchReader(parsed, spark_schema(schema))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def ordered(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


TYPED = pa.schema([("id", pa.int64()), ("item", pa.string()), ("price", pa.decimal128(10, 2))])
CASES: dict[str, tuple[dict[str, Any], dict[str, str], pa.Schema]] = {
    "everything": ({}, {}, MESSAGE_SCHEMA),
    "two topics": ({"topics": ["orders", "others"]}, {"subscribe": "orders,others"}, MESSAGE_SCHEMA),
    "a pattern": (
        {"topics": None, "subscribe_pattern": "o.*"}, {"subscribe": "", "subscribePattern": "o.*"}, MESSAGE_SCHEMA,
    ),
    "columns": (
        {"columns": ["queueOffset", "tags"]}, {}, pa.schema(map(MESSAGE_SCHEMA.field, ["queueOffset", "tags"])),
    ),
    "small batches": ({"arrow_batch_rows": 7, "combine_small_ranges": False}, {"arrowBatchRows": "7"}, MESSAGE_SCHEMA),
    "split queues": ({"min_partitions": 9}, {"minPartitions": "9"}, MESSAGE_SCHEMA),
    "tags": ({"tags": "paid"}, {"tags": "paid"}, MESSAGE_SCHEMA),
    "a filter": ({"sqlFilter": "size > 200"}, {"sqlFilter": "size > 200"}, MESSAGE_SCHEMA),
    "keys": ({"lookup_keys": ["key-7", "key-301"]}, {"lookupKeys": "key-7,key-301"}, MESSAGE_SCHEMA),
    "duplicates": (
        {"topics": "others", "dedupe_window": 10}, {"subscribe": "others", "dedupeWindow": "10"}, MESSAGE_SCHEMA,
    ),
    "typed": (
        {"body_format": "json", "bad_records": "null", "schema": "id bigint, item string, price decimal(10,2)"},
        {"bodyFormat": "json", "badRecords": "null"}, TYPED,
    ),
    "typed, with metadata and bad records": (
        {"body_format": "json", "bad_records": "column", "metadata_columns": "queueOffset as at, tags",
         "schema": pa.schema(
             [*TYPED, ("at", pa.int64()), ("tags", pa.large_string()), ("_bad_record", pa.string_view())])},
        {"bodyFormat": "json", "badRecords": "column", "metadataColumns": "queueOffset as at, tags"},
        pa.schema([*TYPED, ("at", pa.int64()), ("tags", pa.string()), ("_bad_record", pa.string())]),
    ),
    "without a schema": (
        {"body_format": "text", "metadata_columns": "keys"}, {"bodyFormat": "text", "metadataColumns": "keys"},
        pa.schema([("value", pa.string()), ("keys", pa.string())]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_rows_of_the_data_source(case: str, cluster: LocalCluster) -> None:
    ours, theirs, schema = CASES[case]
    expected = {key: text for key, text in ({"subscribe": "orders"} | theirs).items() if text}
    reader = read_arrow(**{"topics": "orders"} | ours, name_server=cluster.name_server, threads=3)
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema == schema
    found = reader.read_all()
    found.validate(full=True)
    rows = of_spark(expected | {"nameServer": cluster.name_server}, schema)
    assert rows
    assert ordered(found.to_pylist()) == ordered(rows)
    if "queueOffset" in schema.names and "queueId" in schema.names and "min_partitions" not in ours:
        for queue in range(QUEUES):
            offsets = [
                row["queueOffset"] for row in found.to_pylist() if (row["topic"], row["queueId"]) == ("orders", queue)
            ]
            assert offsets == sorted(offsets)


def test_columns_of_typed_rows(cluster: LocalCluster) -> None:
    typed: dict[str, Any] = {
        "body_format": "json",
        "bad_records": "drop",
        "schema": TYPED,
        "name_server": cluster.name_server,
    }
    reader = read_arrow("orders", columns=["price", "id"], **typed)
    assert reader.schema.names == ["price", "id"]
    assert len(reader.read_all()) == MESSAGES - MESSAGES // 100


def test_start_and_end(cluster: LocalCluster) -> None:
    def count(**position: Any) -> int:
        return len(read_arrow("orders", name_server=cluster.name_server, **position).read_all())

    now = datetime.now(UTC)
    assert (
        count(start="-1h") == count(start=now - timedelta(hours=1)) == count(start="earliest", end="latest") == MESSAGES
    )
    assert count(start=now + timedelta(seconds=30)) == 0
    assert count(end=now - timedelta(hours=1)) == count(end=1_700_000_000_000) == 0
    half = {"orders": {"broker-a": {str(queue): 50 for queue in range(QUEUES)}}}
    earliest = {"orders": {"broker-a": {str(queue): -2 for queue in range(QUEUES)}}}
    assert count(start=half) + count(start=json.dumps(earliest), end=half) == MESSAGES


def test_the_end_is_fixed_by_the_call(cluster: LocalCluster) -> None:
    reader = read_arrow("others", name_server=cluster.name_server)
    with Producer("shop", name_server=cluster.name_server) as producer:
        producer.send(Message.of("others", "later,1"))
    assert b"later,1" not in reader.read_all().column("body").to_pylist()


def test_a_stopped_brokers_directory(tmp_path: Path) -> None:
    with (
        LocalCluster(in_process=True, data_dir=tmp_path) as running,
        Producer("shop", name_server=running.name_server) as producer,
    ):
        running.create_topic("orders", 2)
        producer.send([Message.of("orders", str(at)) for at in range(20)])
    found = read_arrow(store_path=tmp_path, columns=["body"]).read_all()
    assert sorted(found.column("body").to_pylist()) == sorted(str(at).encode() for at in range(20))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"topics": "missing"}, TopicNotFoundError, "missing"),
        ({"topics": None}, OptionError, r"\[BAD_OPTION.MISSING\] option subscribe"),
        ({"subscribe": "others"}, OptionError, r"\[BAD_OPTION.CONFLICT\] option subscribe"),
        ({"starting_offsets": "earliest", "start": "earliest"}, OptionError, r"\[BAD_OPTION.CONFLICT\]"),
        ({"lookup_key": "a"}, OptionError, r"\[BAD_OPTION.UNKNOWN\] .*lookupKeys"),
        ({"max_offsets_per_trigger": 5}, OptionError, r"\[BAD_OPTION.SCOPE\]"),
        ({"start": "yesterday"}, OptionError, r"\[BAD_OPTION.VALUE\] option startingTimestamp"),
        ({"threads": 0}, OptionError, r"\[BAD_OPTION.VALUE\] option threads is 0"),
        ({"columns": ["id"]}, SchemaError, "there is no column id"),
        ({"schema": "id bigint"}, SchemaError, r'format\("rocket"\) has no column id'),
        ({"schema": "id bigint,", "body_format": "json"}, SchemaError, r"\[BAD_SCHEMA.DDL\]"),
        ({"schema": {"id": pa.uint8()}, "body_format": "json"}, SchemaError, r"\[BAD_SCHEMA.TYPE\] .* id is uint8"),
        ({"body_format": "json"}, SchemaError, "bodyFormat=json needs a schema"),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments: dict[str, Any], kind: type[Exception], message: str, cluster: LocalCluster) -> None:
    with pytest.raises(kind, match=message):
        read_arrow(**{"topics": "orders", "name_server": cluster.name_server, "retry_timeout": "0ms"} | arguments)


# --- threads ---------------------------------------------------------------------------------------------------------


def our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("read_arrow-")]


def no_threads_left() -> None:
    gc.collect()  # a failed reader and its error refer to each other
    until(lambda: not our_threads(), "the threads of a reader to end")


BATCH = pa.record_batch({"body": pa.array([b"x"])}, schema=pa.schema([MESSAGE_SCHEMA.field("body")]))


class Reads:
    """Reads that a test controls, in place of those of a cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tasks: int = 10, batches: int = 20) -> None:
        self._batches = batches
        self._lock = threading.Lock()
        self.made = self.taken = self.most = 0
        monkeypatch.setattr(read_tasks, "plan", lambda options: [()] * tasks)
        monkeypatch.setattr(read_tasks, "read", lambda *_: self.read())

    def read(self) -> Iterator[pa.RecordBatch]:
        for _ in range(self._batches):
            with self._lock:
                self.made += 1
                self.most = max(self.most, self.made - self.taken)
            yield BATCH


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    for _ in read_arrow("orders", columns=["body"], threads=2):
        reads.taken += 1
    assert reads.made == reads.taken == 200
    assert reads.most <= 2 * 2 + 1, "two batches for each thread, and the one that is being taken"
    no_threads_left()


def test_threads_end_with_a_reader_that_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    Reads(monkeypatch)
    reader = read_arrow("orders", columns=["body"], threads=3)
    assert not our_threads(), "nothing is read before the first batch"
    reader.read_next_batch()
    assert our_threads()
    del reader
    no_threads_left()


def test_an_error_of_a_thread(cluster: LocalCluster) -> None:
    typed = {"body_format": "json", "schema": "id bigint", "combine_small_ranges": False}
    with pytest.raises(
        RecordError, match=r"\[BAD_RECORD\] message orders/broker-a/\d at \d+ cannot be decoded as json"
    ):
        read_arrow("orders", name_server=cluster.name_server, threads=2, **typed).read_all()  # type: ignore[arg-type]
    no_threads_left()


def test_a_failed_read_never_looks_complete(cluster: LocalCluster) -> None:
    typed = {"body_format": "json", "schema": "id bigint", "combine_small_ranges": False}
    reader = read_arrow("orders", name_server=cluster.name_server, **typed)  # type: ignore[arg-type]
    with pytest.raises(RecordError):
        reader.read_all()
    with pytest.raises(RecordError):
        reader.read_next_batch()


def test_an_interrupt_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread waits for a batch when the signal arrives."""
    reads, blocked, release = Reads(monkeypatch, tasks=1), threading.Event(), threading.Event()

    def block() -> Iterator[pa.RecordBatch]:
        yield BATCH
        blocked.set()
        release.wait()

    monkeypatch.setattr(reads, "read", block)
    reader = read_arrow("orders", columns=["body"], threads=1)
    with interrupted_at(blocked):
        reader.read_all()
    release.set()
    del reader  # if the signal came between two batches, the reader could go on
    no_threads_left()


# --- without pyspark -------------------------------------------------------------------------------------------------

_WITHOUT_PYSPARK = """
import json, sys
from datetime import datetime

class Blocker:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pandas", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker)
from spark_rocket import read_arrow
for arguments in json.loads(sys.argv[1]):
    try:
        print(read_arrow(**arguments).read_all().num_rows)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


def test_without_pyspark(cluster: LocalCluster, tmp_path: Path) -> None:
    """Each way of reading, and each body format."""
    (tmp_path / "order.desc").write_bytes(descriptor())
    typed = {"schema": "id bigint, item string", "bad_records": "deadLetter", "dead_letter_topic": "bad"}
    formats: list[dict[str, object]] = [
        {"body_format": "json", **typed},
        {"body_format": "csv", **typed, "schema": "name string, number int"},
        {"body_format": "arrow", **typed},
        {"body_format": "text", "metadata_columns": "*"},
        {"body_format": "avro", "avro_schema": avro().avro_schema, "bad_records": "drop"},
        {
            "body_format": "protobuf",
            "protobuf_descriptor": str(tmp_path / "order.desc"),
            "protobuf_message": "shop.Order",
            "bad_records": "drop",
        },
        {"body_format": "json", "schema": "v variant"},
        {"body_format": "variant"},
    ]
    cluster.create_topic("bad", 1)
    reads: list[dict[str, object]] = [{}, {"lookup_keys": "key-5"}, {"dedupe_window": 5}, {"tags": "paid"}, *formats]
    arguments = [{"topics": "orders", "name_server": cluster.name_server} | one for one in reads]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PYSPARK, json.dumps(arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    paid = sum(1 for at in range(MESSAGES) if at % 3)
    good = MESSAGES - MESSAGES // 100
    assert lines[:6] == [str(count) for count in (MESSAGES, 1, MESSAGES, paid, good, 0)]
    assert lines[6:10] == ["0", str(MESSAGES), "0", "0"]
    wanted = "MissingExtraError: [MISSING_EXTRA] A column of type variant requires the package pyspark"
    assert [line.startswith(wanted) for line in lines[10:]] == [True, True], lines


def test_the_package_offers_it() -> None:
    assert spark_rocket.read_arrow is read_arrow
    assert issubclass(RecordError, DataSourceError)
