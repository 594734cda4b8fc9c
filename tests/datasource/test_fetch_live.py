"""The reading task against live brokers: small pulls, and brokers that stop during a task."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.read.fetch import read_deduplicated, read_range
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.errors import DataLossError, RemotingConnectError
from spark_rocket.model import Message, MessageQueue
from spark_rocket.testing import LocalCluster

pytestmark = pytest.mark.live

COUNT = 3000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """The broker returns as few messages per pull as Apache's."""
    with LocalCluster(data_dir=tmp_path, config={"maxPullMsgNums": 32, "maxPullBytes": 256 * 1024}) as running:
        yield running


def test_a_broker_stops_during_a_task(cluster: LocalCluster) -> None:
    topic = cluster.create_topic("t", 1)
    with (
        Producer("g", name_server=cluster.name_server) as producer,
        Reader(cluster.name_server) as reader,
    ):
        for start in range(0, COUNT, 100):
            # Bodies of up to 30 KB: some responses end at 32 messages, others at 256 KiB.
            producer.send(
                [Message.of(topic, f"{n}:".ljust(n % 7 * 5_000 // (1 + n // 300))) for n in range(start, start + 100)]
            )
        (queue,) = reader.queues(topic)

        def read(**given: str) -> Iterator[int]:
            raw = {"subscribe": topic, "nameServer": cluster.name_server, "arrowBatchRows": "100", **given}
            options = parse_read_options(raw, Scope.READ)
            for batch in read_range(OffsetRange(queue, 0, COUNT), options, project(MESSAGE_SCHEMA), reader):
                offsets = batch.column("queueOffset").to_pylist()
                assert [int(body.split(b":")[0]) for body in batch.column("body").to_pylist()] == offsets
                yield from offsets

        assert list(read()) == list(range(COUNT))
        rows = read()
        found = [next(rows)]
        cluster.kill_broker()
        back = threading.Thread(target=lambda: (time.sleep(0.3), cluster.restart_broker()))
        back.start()
        found += rows
        back.join()
        assert found == list(range(COUNT))

        rows = read(retryTimeout="1000")
        next(rows)
        address = reader.address(queue)
        cluster.kill_broker()
        with pytest.raises(RemotingConnectError) as away:
            list(rows)
        text = str(away.value)
        for part in (address, queue.broker_name, "brokerIP1", f"Tried to pull {topic}/", "retryTimeout"):
            assert part in text


@pytest.mark.parametrize("dedupe", [{}, {"dedupeWindow": "5"}], ids=["plain", "dedupe"])
def test_queues_and_topics_removed_after_planning(cluster: LocalCluster, dedupe: dict[str, str]) -> None:
    """In the process with the cached route, and in a new one."""
    topic = cluster.create_topic("t", 2)
    with (
        Producer("g", name_server=cluster.name_server) as producer,
        Reader(cluster.name_server) as reader,
    ):
        kept, taken = reader.queues(topic)
        for queue in (kept, taken):
            producer.send([Message.of(topic, str(number)) for number in range(100)], queue=queue)

        def read(queue: MessageQueue, process: Reader, **given: str) -> int:
            raw = {"subscribe": topic, "nameServer": cluster.name_server, "retryTimeout": "60000"} | dedupe | given
            options = parse_read_options(raw, Scope.READ)
            projection = project(MESSAGE_SCHEMA)
            span = OffsetRange(queue, 50, 100)
            if options.dedupe_window is not None:
                batches = read_deduplicated(span, options, projection, process, options.dedupe_window)
            else:
                batches = read_range(span, options, projection, process)
            return sum(batch.num_rows for batch in batches)

        def check(queue: MessageQueue, wrong: str) -> None:
            for process in (reader, Reader(cluster.name_server, instance_name=wrong)):
                with pytest.raises(DataLossError, match=wrong):
                    read(queue, process)
                assert read(queue, process, failOnDataLoss="false") == 0
                if process is not reader:
                    process.close()

        assert read(taken, reader) == 50
        cluster.create_topic(topic, 1)
        check(taken, rf"DATA_LOSS.QUEUE_DELETED\] {topic}/\S+/1 .* is at 50")
        assert read(kept, reader) == 50
        cluster.delete_topic(topic)
        check(kept, rf"DATA_LOSS.TOPIC_DELETED\] topic {topic} .*/0 at 50")
