"""Retention as seen by clients: refusals, moved offsets, requests 306 and 329, and the figures of 28."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.client import Reader
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.read.fetch import read_range
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.errors import DataLossError
from spark_rocket.protocol.wire.bodies.route import KVTable
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.retention import Retention
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.broker.wire import HELD, Wire
from tests.kit.brokers import parts_of
from tests.kit.waiting import until
from tests.store.helpers import small
from tests.store.retention_rig import Disk

pytestmark = pytest.mark.live

SIZE = 32 << 10
SETTINGS = {
    "mappedFileSizeCommitLog": SIZE,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
    "cleanResourceInterval": 100,
    "deleteCommitLogFilesInterval": 0,
    "diskSpaceWarningLevelRatio": 90,
}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk of every broker of a test: an empty one, independent of the machine's."""
    disk = Disk()
    monkeypatch.setattr(Retention, "_usages", lambda self: (disk, disk))
    return disk


@pytest.fixture
def broker(tmp_path: Path, disk: Disk) -> Iterator[LocalCluster]:
    """A broker with small files that checks a simulated disk every 0.1 s."""
    with LocalCluster(in_process=True, data_dir=tmp_path, config=SETTINGS) as running:
        yield running
    path = tmp_path / "store"
    assert check_store(path, small(path)) == []


@pytest.fixture
def insides(broker: LocalCluster) -> BrokerParts:
    return parts_of(broker)


@pytest.fixture
def here(broker: LocalCluster) -> Iterator[Wire]:
    with RemotingClient() as client:
        yield Wire(client, broker.broker_address)


def fill(wire: Wire, topic: str, count: int = 100) -> None:
    for number in range(count):
        assert wire.send(topic, b"%04d" % number * 200, {"KEYS": f"k{number}"}).code == ResponseCode.SUCCESS


def offset(wire: Wire, code: int, topic: str, **more: object) -> int:
    answer = wire.ask(code, topic=topic, queueId=0, **more)
    assert answer.code == ResponseCode.SUCCESS
    return int(answer.ext_fields["offset"])


def keep(wire: Wire, size: int) -> None:
    """Change a setting while the broker runs, and wait until it is effective."""
    assert wire.configure(fileReservedSize=size).code == ResponseCode.SUCCESS


def test_a_consumer_of_deleted_messages_gets_the_first_remaining_offset(
    broker: LocalCluster, insides: BrokerParts, here: Wire
) -> None:
    topic = broker.create_topic("T", 1)
    fill(here, topic)
    insides.store.flush()
    reading = here.pull(topic, 0)
    assert reading.code == ResponseCode.SUCCESS
    middle = int(reading.ext_fields["nextBeginOffset"])
    assert offset(here, RequestCode.GET_MIN_OFFSET, topic) == 0
    keep(here, 1)
    until(lambda: insides.store.min_physical_offset > 0)
    low = offset(here, RequestCode.GET_MIN_OFFSET, topic)
    assert middle < low < 100
    assert here.end(topic) == 100
    for begin in (0, middle, low - 1):
        gone = here.pull(topic, begin, **HELD)
        assert (gone.code, gone.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
        assert gone.ext_fields["nextBeginOffset"] == gone.ext_fields["minOffset"] == str(low)
        assert gone.ext_fields["maxOffset"] == "100"
    left = here.messages(topic, low)
    assert [message.queue_offset for message in left] == list(range(low, min(low + 32, 100)))
    assert offset(here, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic, timestamp=0) == low
    earliest = here.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic=topic, queueId=0)
    assert int(earliest.ext_fields["timestamp"]) == left[0].store_timestamp
    assert here.query(topic, "k0").code == ResponseCode.QUERY_NOT_FOUND
    assert here.query(topic, "k99").code == ResponseCode.SUCCESS
    assert here.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=0).code != ResponseCode.SUCCESS
    until(lambda: len(list((broker.store_dir / "commitlog").iterdir())) <= 2)  # one is made ahead


def test_a_queue_without_remaining_messages_keeps_its_end(
    broker: LocalCluster, insides: BrokerParts, here: Wire
) -> None:
    old, young = broker.create_topic("Old", 1), broker.create_topic("Young", 1)
    fill(here, old, 3)
    fill(here, young)
    insides.store.flush()
    keep(here, 1)
    until(lambda: insides.store.min_physical_offset > 0)
    for _ in range(2):
        assert offset(here, RequestCode.GET_MIN_OFFSET, old) == here.end(old) == 3
        earliest = here.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic=old, queueId=0)
        assert earliest.ext_fields["timestamp"] == "-1"
        assert here.pull(old, 3).code == ResponseCode.PULL_NOT_FOUND
        assert here.pull(old, 1).ext_fields["nextBeginOffset"] == "3"
        assert here.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == ResponseCode.SUCCESS
    waiting = here.hold(old, 3)
    until(lambda: insides.held_requests.pulls.count)
    assert here.send(old, b"next").ext_fields["queueOffset"] == "3"
    assert waiting.result(20).code == ResponseCode.SUCCESS


def test_sends_are_refused_while_the_disk_is_too_full(
    broker: LocalCluster, insides: BrokerParts, here: Wire, disk: Disk
) -> None:
    topic = broker.create_topic("T", 1)
    fill(here, topic, 3)
    disk.at(91)
    until(lambda: insides.store.write_error is not None)
    refused = here.send(topic)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refused.remark is not None
    assert "the broker's disk is full [CL:  0.91 CQ:  0.91 INDEX:  0.91]" in refused.remark
    assert "diskSpaceWarningLevelRatio" in refused.remark
    assert len(here.messages(topic)) == 3
    table = here.read(KVTable, RequestCode.GET_BROKER_RUNTIME_INFO).table
    assert table["commitLogDiskRatio"] == table["consumeQueueDiskRatio"] == "0.91"
    assert table[f"commitLogDiskRatio_{broker.store_dir / 'commitlog'}"] == "0.91"
    assert table["commitLogDirCapacity"] == "Total : 31.2 MiB, Free : 2.8 MiB."
    assert here.configure(diskSpaceWarningLevelRatio=95).code == ResponseCode.SUCCESS
    until(lambda: insides.store.write_error is None)
    assert here.send(topic).code == ResponseCode.SUCCESS


def test_a_broker_on_a_full_disk_starts_and_serves_readers(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    with RemotingClient() as client:
        with LocalCluster(in_process=True, data_dir=tmp_path, config=SETTINGS) as cluster:
            topic = cluster.create_topic("T", 1)
            assert Wire(client, cluster.broker_address).send(topic, b"before").code == ResponseCode.SUCCESS
        disk.at(99)
        with LocalCluster(in_process=True, data_dir=tmp_path, config=SETTINGS) as cluster:
            wire = Wire(client, cluster.broker_address)
            assert wire.send(topic).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert wire.bodies(topic) == [b"before"]
    assert [text for text in caplog.messages if "rejecting messages until" in text] == [
        f"The disk of {tmp_path / 'store'} is 99.0 % full, more than diskSpaceWarningLevelRatio 90: rejecting "
        "messages until there is room. Stored messages can be read."
    ]


def test_expired_files_go_by_request(broker: LocalCluster, insides: BrokerParts, here: Wire) -> None:
    topic = broker.create_topic("T", 1)
    fill(here, topic)
    insides.store.flush()
    assert here.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == ResponseCode.SUCCESS
    assert insides.store.min_physical_offset == 0  # nothing is three days old
    assert here.configure(fileReservedTime=0).code == ResponseCode.SUCCESS
    assert here.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == ResponseCode.SUCCESS
    assert insides.store.min_physical_offset == insides.store.max_physical_offset // SIZE * SIZE
    assert offset(here, RequestCode.GET_MIN_OFFSET, topic) > 0


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_spark_task_in_the_middle_of_a_queue_that_is_trimmed(
    broker: LocalCluster, insides: BrokerParts, here: Wire, fail: str
) -> None:
    """It reads the messages that it has, and then reports the loss, or continues at the first remaining message."""
    topic = broker.create_topic("T", 1)
    fill(here, topic)
    insides.store.flush()
    given = {"subscribe": topic, "nameServer": broker.name_server, "pullBatchSize": "5", "arrowBatchRows": "5"}
    given["maxPullsInFlight"] = "1"  # at most the next pull is in flight when the queue is trimmed
    options = parse_read_options({**given, "failOnDataLoss": fail}, Scope.READ)
    with Reader(broker.name_server) as reader:
        (queue,) = reader.queues(topic)
        batches = read_range(OffsetRange(queue, 0, 100), options, project(MESSAGE_SCHEMA), reader)
        found = next(batches).column("queueOffset").to_pylist()
        keep(here, 1)
        until(lambda: insides.store.min_physical_offset > 0)
        low = reader.min_offset(queue)
        assert low > 20
        if fail == "true":
            with pytest.raises(DataLossError, match=f"were deleted.*earliest remaining message is {low}"):
                found.extend(number for batch in batches for number in batch.column("queueOffset").to_pylist())
            assert found == list(range(len(found)))
        else:
            found.extend(number for batch in batches for number in batch.column("queueOffset").to_pylist())
            gap = next(number for number, value in enumerate(found) if value != number)
            assert found == [*range(gap), *range(low, 100)]
            assert 5 <= gap < low
