"""Each pipeline, run once against a cluster: without Spark, by the objects that Spark would call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_rocket.cli import main
from spark_rocket.client import Admin, Producer
from spark_rocket.client.core.client_config import Connecting
from spark_rocket.datasource.exactly_once.driver import check_topics, commit_epoch
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers, Timing, brokers_for
from spark_rocket.datasource.exactly_once.staging import stage_rows
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.source import RocketDataSource
from spark_rocket.datasource.spark_schema import SOURCE_SCHEMA
from spark_rocket.datasource.stream import LimitedStreamReader, RocketStreamReader
from spark_rocket.datasource.stream_offsets import initial_offset
from spark_rocket.datasource.views.views import VIEWS
from spark_rocket.datasource.write.row_encoder import Block
from spark_rocket.model import Message, MessageQueue, SendResult
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.namespace import NO_NAMESPACE, Namespace
from spark_rocket.protocol.requests import pipelines
from spark_rocket.protocol.requests.pipelines import PipelineRequests
from spark_rocket.testing import LocalCluster
from tests.console.conftest import Page, page_of
from tests.kit.waiting import until

BODY = StructType([StructField("body", StringType())])
READERS, COMMITTED = "readers", "committed"
"""Groups: of reads, and with committed offsets that no test changes."""
ROWS = pa.record_batch({"body": ["1", "2", "3"]})


@dataclass
class World:
    """A cluster with everything that the pipelines use, and the account that they have."""

    cluster: LocalCluster
    directory: Path
    account: Credentials | None = None
    acl: str = ""
    """The kind of access control."""
    namespace: Namespace = NO_NAMESPACE

    @property
    def new_name(self) -> str:
        return uuid.uuid4().hex

    def options(self, **more: str) -> dict[str, str]:
        """Options of ``format("rocket")``."""
        keys = {}
        if self.account is not None:
            keys = {"accessKey": self.account.access_key, "secretKey": self.account.secret_key}
        timing = {"requestTimeout": "5s", "retryTimeout": "0"}
        named = {"namespace": self.namespace.name, "namespaceV2": self.namespace.v2}
        return {"nameServer": self.cluster.name_server, **timing, **keys, **named, **more}

    def connecting(self) -> Connecting:
        """Arguments of clients."""
        found: Connecting = {"namespace": self.namespace.name, "namespace_v2": self.namespace.v2}
        if self.account is not None:
            found["access_key"], found["secret_key"] = self.account.access_key, self.account.secret_key
        return found

    def rocket(self, *arguments: str) -> None:
        """Run the command line."""
        keys = []
        if self.account is not None:
            keys = ["--access-key", self.account.access_key, "--secret-key", self.account.secret_key]
        named = ["--namespace", self.namespace.name, "--namespace-v2", self.namespace.v2]
        status = main([*arguments, "-n", self.cluster.name_server, *keys, *named])
        if status:
            raise CommandFailedError(f"rocket {' '.join(arguments)}: exit status {status}")


class CommandFailedError(Exception):
    """A command with an exit status other than 0; its output has the reason."""


def prepare(
    cluster: LocalCluster, account: Credentials | None, directory: Path, namespace: Namespace = NO_NAMESPACE
) -> World:
    """Create the topics and groups of the pipelines, and the messages that they read."""
    world = World(cluster, directory, account, namespace=namespace)
    for name in ("orders", "results", "invalid", "ROCKET_SINK_STAGING", "ROCKET_SINK_LEDGER", f"%DLQ%{COMMITTED}"):
        cluster.create_topic(namespace.wrap(name), 1)
    for name in (READERS, COMMITTED, "ROCKET_SINK_LEDGER", "spark_rocket_reader"):
        cluster.create_group(namespace.wrap(name))
    with Producer("shop", name_server=cluster.name_server, **world.connecting()) as producer:
        for number in range(3):
            producer.send(Message.of("orders", f'{{"id": {number}}}', keys=f"k{number}"))
        producer.send(Message.of("orders", "not JSON", keys="bad"))
        producer.send(Message.of(f"%DLQ%{COMMITTED}", "dead"))
    with Admin(cluster.name_server, **world.connecting()) as admin:
        admin.reset_offsets(COMMITTED, "orders", 0)
    write_exactly_once(world)  # the ledger has a place then
    return world


# --- reads ------------------------------------------------------------------------------------------------------------


def _source(given: dict[str, str]) -> RocketDataSource:
    return RocketDataSource(given)


def _rows(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def read_batch(world: World) -> None:
    _read(world.options(subscribe="orders", consumerGroup=READERS), 4)


def _read(given: dict[str, str], count: int, schema: StructType = SOURCE_SCHEMA) -> None:
    reader = _source(given).reader(schema)
    assert sum(_rows(reader.read(partition)) for partition in reader.partitions()) == count


def read_from_time(world: World) -> None:
    _read(world.options(subscribe="orders", consumerGroup=READERS, startingTimestamp="2020-01-01T00:00:00Z"), 4)


def look_up(world: World) -> None:
    _read(world.options(subscribe="orders", consumerGroup=READERS, lookupKeys="k1"), 1)


def read_stream(world: World) -> None:
    _stream(world.options(subscribe="orders", consumerGroup=READERS, startingOffsets="earliest"))


def _stream(given: dict[str, str]) -> None:
    reader = _source(given).streamReader(SOURCE_SCHEMA)
    assert isinstance(reader, LimitedStreamReader)
    end = reader.latestOffset(initial_offset(), reader.getDefaultReadLimit())
    _take(reader, initial_offset(), end, 4)
    again = _source(given).streamReader(SOURCE_SCHEMA)  # as after a restart, which reads the last batch again
    assert isinstance(again, LimitedStreamReader)
    _take(again, initial_offset(), end, 4)
    assert again.latestOffset(end, ReadAllAvailable()) == end


def _take(reader: RocketStreamReader, start: dict[str, object], end: dict[str, object], count: int) -> None:
    found = sum(_rows(reader.read(partition)) for partition in reader.partitions(start, end))
    assert found == count


def start_from_group(world: World) -> None:
    _read(world.options(subscribe="orders", consumerGroup=COMMITTED, startingOffsets="group"), 4)


def read_dead_letters(world: World) -> None:
    given = {"bodyFormat": "json", "badRecords": "deadLetter", "deadLetterTopic": "invalid"}
    given = world.options(subscribe="orders", consumerGroup=READERS, **given)
    _read(given, 3, StructType([StructField("id", LongType())]))


# --- writes -----------------------------------------------------------------------------------------------------------


def write(world: World) -> None:
    writer = _source(world.options(topic="results")).writer(BODY, False)
    writer.commit([writer.write(iter([ROWS]))])


class KilledError(BaseException):
    """The driver was killed."""


@contextmanager
def killed_driver(published: int = 0) -> Iterator[None]:
    """Kill the driver after it has published some blocks or delayed rows."""
    publish, attempts = Brokers.publish, count()

    def killed(brokers: Brokers, block: Block, queue: MessageQueue) -> SendResult:
        if next(attempts) >= published:
            raise KilledError
        return publish(brokers, block, queue)

    with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
        patch.setattr(Brokers, "publish", killed)
        yield
        raise AssertionError("the driver was not killed")


@contextmanager
def without_grace() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Timing, "of", lambda options: Timing(0.0, options.retry_timeout_ms))
        yield


def write_exactly_once(world: World) -> None:
    given = world.options(topic="results", deliveryGuarantee="exactlyOnce", writeId=world.new_name)
    with without_grace():
        writer = _source(given).writer(BODY, False)
        staged = writer.write(iter([ROWS]))
        with killed_driver():
            writer.commit([staged])
        writer.commit([staged])


def stream_exactly_once(world: World) -> None:
    _stream_exactly_once(world, ROWS)


def stream_delayed(world: World) -> None:
    """The dead driver has published rows of both kinds, which the next one finds where they wait."""
    levels = pa.array([None, 1, None, 1], pa.int32())
    times = pa.array([None, None, datetime.now(UTC) + timedelta(hours=1), None], pa.timestamp("us", "UTC"))
    rows = pa.record_batch({"body": ["1", "2", "3", "4"], "delayLevel": levels, "deliverAt": times})
    _stream_exactly_once(world, rows, published=3)


def _stream_exactly_once(world: World, rows: pa.RecordBatch, published: int = 0) -> None:
    given = world.options(topic="results", deliveryGuarantee="exactlyOnce")
    options = parse_write_options(given, Scope.WRITE_STREAM)
    with without_grace():
        check_topics(options)
        query = world.new_name
        for batch in range(2):
            epoch = Epoch(query, batch)
            staged = stage_rows(iter([rows]), brokers_for(options), options, epoch)
            if batch:
                with killed_driver(published):
                    commit_epoch(options, [staged], is_stream=True)
            commit_epoch(options, [staged], is_stream=True)


# --- views and tools --------------------------------------------------------------------------------------------------


def _view(name: str, **more: str) -> Callable[[World], None]:
    def run(world: World) -> None:
        given = world.options(view=name, **more)
        del given["retryTimeout"]
        reader = _source(given).reader(VIEWS[name].schema)
        [partition] = reader.partitions()
        assert isinstance(partition, InputPartition)
        _rows(reader.read(partition))

    return run


def other_views(world: World) -> None:
    for name in ("cluster", "brokers", "topics", "queues", "groups", "consumers"):
        _view(name)(world)
    _view("producers", producerGroup="shop")(world)


def lag(world: World) -> None:
    world.rocket("group", "lag", COMMITTED)


def export(world: World) -> None:
    world.rocket("message", "export", "-t", "orders", str(world.directory / f"{world.new_name}.jsonl"))


def console(world: World) -> None:
    """Open the pages of brokers, topics and groups, with one of each."""
    with page_of(world.cluster.name_server, connecting=world.connecting()) as page:
        for path in ("topics", "groups", "overview", "topics/orders", f"groups/{COMMITTED}"):
            _shown_whole(page, path)


def _shown_whole(page: Page, path: str) -> None:
    """Wait for the data of a page; raise AssertionError with the errors that it shows."""

    def errors(shown: dict[str, Any]) -> list[Any]:
        troubles = [broker["trouble"] for broker in shown.get("brokers", ()) if isinstance(broker, dict)]
        return [each for each in (shown.get("trouble"), *(shown.get("failed") or {}).values(), *troubles) if each]

    shown = until(lambda: (found := page.get(f"/api/{path}")) and (errors(found) or found.get("known", True)) and found)
    assert not errors(shown), (path, errors(shown))


def doctor(world: World) -> None:
    world.rocket("doctor", "-t", "orders", "-g", READERS, "--write", "results")


@dataclass(frozen=True)
class Run:
    """A run of a declared pipeline."""

    pipeline: PipelineRequests
    run: Callable[[World], Any]
    group: str = READERS
    """Its ``consumerGroup``."""

    def named(self, name: str) -> str:
        """The name of a resource of the declaration; a pattern of names for several."""
        names = {
            pipelines.SUBSCRIBE: "orders", pipelines.TOPIC: "results", pipelines.DEAD_LETTER_TOPIC: "invalid",
            **pipelines.NAMES, pipelines.CONSUMER_GROUP: self.group, pipelines.DLQ_TOPIC: f"%DLQ%{self.group}",
            pipelines.FORMER_GROUP: "ROCKET_SINK_LEDGER-*", "": "DefaultCluster",
        }  # fmt: skip
        return names.get(name, name)


RUNS = (
    Run(pipelines.READ, read_batch),
    Run(pipelines.STREAM, read_stream),
    Run(pipelines.TIME, read_from_time),
    Run(pipelines.GROUP, start_from_group, COMMITTED),
    Run(pipelines.LOOK_UP, look_up),
    Run(pipelines.DEAD_LETTERS, read_dead_letters),
    Run(pipelines.WRITE, write),
    Run(pipelines.EXACTLY_ONCE, write_exactly_once),
    Run(pipelines.EXACTLY_ONCE_STREAM, stream_exactly_once),
    Run(pipelines.EXACTLY_ONCE_DELAYED, stream_delayed),
    Run(pipelines.MESSAGES_VIEW, _view("messages", subscribe="orders", key="k1")),
    Run(pipelines.DLQ_VIEW, _view("dlq", consumerGroup=COMMITTED), COMMITTED),
    Run(pipelines.LAG_VIEW, _view("lag", consumerGroup=COMMITTED), COMMITTED),
    Run(pipelines.VIEWS, other_views),
    Run(pipelines.LAG, lag, COMMITTED),
    Run(pipelines.CONSOLE, console, COMMITTED),
    Run(pipelines.EXPORT, export, "spark_rocket_reader"),
    Run(pipelines.DOCTOR, doctor),
)
