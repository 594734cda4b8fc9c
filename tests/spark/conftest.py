"""One Spark session and one cluster for all tests here: a session costs seconds, its first batch more.

The workers run this interpreter (trap T14). With ``ON_CONNECT=1`` (``make connect``) all of it runs on Spark Connect,
but for what is marked ``classic``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_rocket.client import Producer, Reader
from spark_rocket.datasource.capabilities import HAS_READ_LIMITS
from spark_rocket.model import Message, MessageQueue
from spark_rocket.testing import LocalCluster
from tests.spark.sessions import (
    ON_CONNECT,
    ROOT,
    TRIGGER,
    CollectedBodies,
    classic_session,
    connect_session,
    finish_limited,
    workers_python,
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # PySpark's own driver code: sockets left to the garbage collector, and deprecated calls.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            if ON_CONNECT and (classic := item.get_closest_marker("classic")):
                item.add_marker(pytest.mark.skip(reason=f"classic Spark only: {classic.args[0]}"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = workers_python(tmp_path_factory.mktemp("workers"))
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([others] if others else [])])
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    with connect_session(warehouse) if ON_CONNECT else closing(classic_session(warehouse)) as session:
        yield session
        for query in session.streams.active:
            query.stop()


@contextmanager
def closing(session: SparkSession) -> Iterator[SparkSession]:
    yield session
    session.stop()


class Rocket:
    """A cluster with short methods for the tests."""

    def __init__(self, cluster: LocalCluster, spark: SparkSession) -> None:
        self.cluster = cluster
        self.spark = spark
        self.name_server = cluster.name_server
        self.producer = Producer("tests", name_server=cluster.name_server)
        self.reader = Reader(cluster.name_server)
        self._names = count(1)

    def topic(self, queues: int = 2) -> str:
        return self.cluster.create_topic(f"topic-{next(self._names)}", queues)

    def queues(self, topic: str) -> list[MessageQueue]:
        return sorted(self.reader.queues(topic))

    def send(self, topic: str, bodies: Sequence[str], queue: int = 0) -> None:
        """Send messages to one queue, in order."""
        target = self.queues(topic)[queue]
        for start in range(0, len(bodies), 500):
            self.producer.send([Message.of(topic, body) for body in bodies[start : start + 500]], queue=target)

    def read(self, topic: str, **options: object) -> DataFrame:
        return self.frame(subscribe=topic, **options)

    def frame(self, **options: object) -> DataFrame:
        return self.spark.read.format("rocket").options(**{"nameServer": self.name_server, **options}).load()  # type: ignore[arg-type]

    def stream(self, topic: str, **options: object) -> DataFrame:
        """Return a stream; with a limit, it is for ``finish_limited``."""
        limited = {"maxoffsetspertrigger", "maxbytespertrigger"} & {option.lower() for option in options}
        given = {"nameServer": self.name_server, "subscribe": topic, **(TRIGGER if limited else {}), **options}
        return self.spark.readStream.format("rocket").options(**given).load()  # type: ignore[arg-type]

    def bodies(self, topic: str, **options: object) -> list[str]:
        frame = self.read(topic, **options)
        return [bytes(row.body).decode() for row in frame.select("body").collect()]

    def bodies_of(self, **options: object) -> list[str]:
        return [bytes(row.body).decode() for row in self.frame(**options).select("body").collect()]

    def end(self, topic: str) -> int:
        return sum(self.reader.max_offset(queue) for queue in self.queues(topic))

    def committed(self, group: str, topic: str) -> list[int | None]:
        return [self.reader.committed_offset(group, queue) for queue in self.queues(topic)]


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="session")
def mq(cluster: LocalCluster, spark: SparkSession) -> Iterator[Rocket]:
    rocket = Rocket(cluster, spark)
    rocket.producer.start()
    yield rocket
    rocket.producer.close()


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[..., list[str]]:
    """Run a stream of bodies to its end (AvailableNow) into a list; the checkpoint is ``tmp_path/checkpoint``.

    ``limited`` is for streams with a limit.

    Twice before Spark 4.2, where a run after a failed one repeats its batch only, and does not commit its last one.
    """

    runs = count(1)

    def available_now(frame: DataFrame, checkpoint: str = "checkpoint", *, limited: bool = False) -> list[str]:
        found = CollectedBodies(tmp_path / f"found-{next(runs)}")
        if limited:
            writer = frame.writeStream.foreachBatch(found)
            finish_limited(writer.option("checkpointLocation", str(tmp_path / checkpoint)))
            return found.bodies()
        for _ in range(1 if HAS_READ_LIMITS else 2):
            query = (
                frame.writeStream.foreachBatch(found)
                .option("checkpointLocation", str(tmp_path / checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)
        return found.bodies()

    return available_now
