"""``rocket offsets …``: offsets of checkpoints and groups."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.datasource.exactly_once.driver import check_topics, commit_epoch
from spark_rocket.datasource.exactly_once.ledger import Ledger
from spark_rocket.datasource.exactly_once.manifest import Epoch, Manifest
from spark_rocket.datasource.exactly_once.place import find_ledger
from spark_rocket.datasource.exactly_once.records import DONE, PREPARED
from spark_rocket.datasource.exactly_once.sink_brokers import Timing, brokers_for
from spark_rocket.datasource.exactly_once.staging import stage_rows
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.stream_offsets import StreamOffset
from spark_rocket.model import Message, MessageQueue
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import Run
from tests.client.pushing import running_consumer
from tests.datasource.test_checkpoint import write

pytestmark = pytest.mark.live

CLUSTER: dict[str, object] = {}
TOPICS = {"orders": 2}


@pytest.fixture(scope="module", autouse=True)
def _messages(cluster: LocalCluster) -> None:
    with Producer("tests", name_server=cluster.name_server) as producer, Reader(cluster.name_server) as reader:
        for queue in reader.queues("orders"):
            messages = [Message.of("orders", f"{number}", tags="t", keys=f"k{number}") for number in range(10)]
            producer.send(messages, queue=queue)


@pytest.fixture
def queues(cluster: LocalCluster) -> list[MessageQueue]:
    with Reader(cluster.name_server) as reader:
        return sorted(reader.queues("orders"))


@pytest.fixture
def rocket(run: Run, name_server: str) -> Run:
    return lambda *arguments: run("offsets", *arguments, "-n", name_server)


@pytest.fixture
def checkpoint(tmp_path: Path, queues: list[MessageQueue]) -> str:
    write(tmp_path, 3, StreamOffset(dict(zip(queues, (4, 10), strict=True))).to_json())
    return str(tmp_path)


def committed(cluster: LocalCluster, group: str, queues: list[MessageQueue]) -> list[int | None]:
    with Reader(cluster.name_server) as reader:
        return [reader.committed_offset(group, queue) for queue in queues]


def test_a_query_and_a_group(rocket: Run, checkpoint: str, cluster: LocalCluster, queues: list[MessageQueue]) -> None:
    status, out, _ = rocket("show", checkpoint)
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert lines[0] == ["TOPIC", "BROKER", "QUEUE", "CHECKPOINT", "FIRST", "END", "LAG"]
    assert lines[1] == ["orders", "broker-a", "0", "4", "0", "10", "6"]
    assert lines[2][-1] == "0"
    assert out.endswith("lag: 6 messages in 2 queues\n")

    assert rocket("diff", checkpoint, "-g", "late")[0] == 1
    status, out, _ = rocket("reset", "-g", "late", "--checkpoint", checkpoint, "--yes")
    assert (status, committed(cluster, "late", queues)) == (0, [4, 10])
    assert "first time" in out
    status, out, _ = rocket("diff", checkpoint, "-g", "late")
    assert (status, out) == (0, f"{checkpoint} and group late have the same offsets\n")
    rows = [json.loads(line) for line in rocket("show", checkpoint, "-g", "late", "--json")[1].splitlines()]
    assert rows[0] == {
        "topic": "orders", "brokerName": "broker-a", "queueId": 0,
        "checkpoint": 4, "group": 4, "min": 0, "max": 10, "lag": 6,
    }  # fmt: skip


def test_offsets_are_exported_and_imported(
    rocket: Run, checkpoint: str, tmp_path: Path, cluster: LocalCluster, queues: list[MessageQueue],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file = tmp_path / "offsets.json"
    assert rocket("export", checkpoint, "-o", str(file))[0] == 0
    assert json.loads(file.read_text()) == {"orders": {"broker-a": {"0": 4, "1": 10}}}
    assert rocket("import", str(file), "-g", "imported", "--yes")[0] == 0
    assert committed(cluster, "imported", queues) == [4, 10]
    assert json.loads(rocket("export", "-g", "imported", "-t", "orders")[1]) == json.loads(file.read_text())
    assert json.loads(rocket("export", "-g", "imported")[1]) == json.loads(file.read_text()), "its topics by itself"
    assert rocket("show", "-g", "imported")[1].splitlines()[1].split()[:4] == ["orders", "broker-a", "0", "4"]
    monkeypatch.setattr("sys.stdin", io.StringIO('{"orders": {"broker-a": {"0": -2, "1": -1}}}'))
    assert rocket("reset", "-g", "imported", "--file", "-", "--yes")[0] == 0
    assert committed(cluster, "imported", queues) == [0, 10]


def test_reset_to_a_time_a_group_or_an_end(rocket: Run, cluster: LocalCluster, queues: list[MessageQueue]) -> None:
    for where, offsets in (
        (["--at", "1h"], [0, 0]),
        (["--at", "0s"], [10, 10]),
        (["--offset", "8", "--queue", "broker-a:1"], [10, 8]),
        (["--at=-1h"], [0, 0]),
        (["--latest"], [10, 10]),
        (["--earliest"], [0, 0]),
        (["--offset", "7"], [7, 7]),
        (["--offset", "9", "--queue", "broker-a/1"], [7, 9]),
        (["--earliest", "--queue", "1"], [7, 0]),
        (["--offset", "0"], [0, 0]),
    ):
        assert rocket("reset", "-g", "moved", "-t", "orders", *where, "--yes")[0] == 0
        assert committed(cluster, "moved", queues) == offsets
    assert (
        rocket("reset", "-g", "moved", "-t", "orders", "--at", "2999-01-01", "--yes")[0] == 2
    )  # nothing is stored then
    assert committed(cluster, "moved", queues) == [0, 0]
    assert rocket("reset", "-g", "follower", "-t", "orders", "--of-group", "moved", "--yes")[0] == 0
    assert committed(cluster, "follower", queues) == [0, 0]


def test_reset_of_one_queue_to_the_offsets_of_a_file_or_a_query(
    rocket: Run, checkpoint: str, tmp_path: Path, cluster: LocalCluster, queues: list[MessageQueue]
) -> None:
    """The topics are those with offsets there, unless they are given."""
    file = tmp_path / "offsets.json"
    file.write_text('{"orders": {"broker-a": {"0": 6, "1": 8}}}')
    reset = ("reset", "-g", "one-queue", "--yes")
    said = rocket(*reset, "--file", file, "--queue", "broker-a/0")
    assert said.out.endswith("Set the offsets of group one-queue in 1 queues.\n")
    assert committed(cluster, "one-queue", queues) == [6, None]
    assert rocket(*reset, "--checkpoint", checkpoint, "--queue", "1").status == 0
    assert committed(cluster, "one-queue", queues) == [6, 10]


def test_reset_of_a_queue_without_an_offset_is_an_error(
    rocket: Run, cluster: LocalCluster, queues: list[MessageQueue]
) -> None:
    with Reader(cluster.name_server) as reader:
        reader.commit_offset("half", queues[0], 5)
    reset = ("reset", "-g", "follows-half", "-t", "orders", "--of-group", "half", "--yes")
    said = rocket(*reset, "--queue", "broker-a/1")
    assert (said.status, said.out) == (1, "")
    assert said.err == "rocket: No offset for orders/broker-a/1. There are offsets for orders/broker-a/0.\n"
    assert committed(cluster, "follows-half", queues) == [None, None]
    assert rocket(*reset, "--queue", "broker-a/0").status == 0
    assert committed(cluster, "follows-half", queues) == [5, None]


def test_nothing_changes_without_confirmation(rocket: Run, cluster: LocalCluster, queues: list[MessageQueue]) -> None:
    asked = ["reset", "-g", "kept", "-t", "orders", "--latest"]
    status, out, _ = rocket(*asked, "--dry-run")
    assert (status, committed(cluster, "kept", queues)) == (0, [None, None])
    assert out.count("first time") == 2
    assert "0 messages repeated, 0 skipped\n" in out
    assert out.endswith("Nothing was changed (--dry-run).\n")
    assert rocket(*asked).failed("Use --yes")
    assert committed(cluster, "kept", queues) == [None, None]


def test_preview_shows_messages(rocket: Run) -> None:
    status, out, _ = rocket("preview", "-t", "orders", "--earliest", "-l", "2")
    assert status == 0
    assert out.count("10 messages, [0, 10), partition 0\n") == 2
    assert out.count("t k") == 4, "the first two of each queue, with tag and keys"
    assert out.endswith("total: 20 messages, Spark partitions: 1\n")
    lines = rocket("preview", "-t", "orders", "--earliest", "--json")[1].splitlines()
    assert [json.loads(line)["partition"] for line in lines] == [0, 0]
    assert rocket("preview", "-t", "orders", "--latest")[1].endswith(
        "[10, 10)\ntotal: 0 messages, Spark partitions: 0\n"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "reported"),
    [
        (["bad group", "--latest"], 2, "Invalid characters in the group name"),
        (["g", "--at", "yesterday"], 2, "how long ago, such as -2h, -30m or -1d"),
        (["g", "--at", "1700000000"], 2, "did you mean 1700000000000?"),
        (["g"], 2, "Give one of --checkpoint, --at,"),
        (["g", "--latest", "--offset", "1"], 2, "cannot be given together"),
        (["g", "--latest", "--json"], 2, "--json needs --yes or --dry-run"),
        (["g", "--offset", "1", "--queue", "broker-a:7"], 1, "It has queues 0 to 1 on broker-a."),
        (["g", "--offset", "11", "--yes"], 1, "Invalid offset 11 of orders/broker-a/0, which ends at 10."),
        (["g", "--latest"], 1, "Use --yes"),
    ],
)
def test_invalid_arguments_are_explained(rocket: Run, arguments: list[str], status: int, reported: str) -> None:
    assert rocket("reset", "-t", "orders", "--group", *arguments).failed(reported, status=status)


def test_errors_of_files_and_groups(
    rocket: Run, tmp_path: Path, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("{"))
    (tmp_path / "none.json").write_text('{"orders": {"broker-a": {"7": -2}}}')
    (tmp_path / "far.json").write_text('{"orders": {"broker-a": {"0": 99}}}')
    (tmp_path / "binary.json").write_bytes(b"\xff")
    for arguments, message in (
        (["show"], "Missing checkpoint or group"),
        (["show", str(tmp_path / "none")], "not a checkpoint"),
        (["reset", "-g", "g", "--latest"], "Missing topic"),
        (["reset", "-g", "g", "-t", "orders", "--of-group", "missing", "--yes"], "No offsets found"),
        (
            ["import", str(tmp_path / "far.json"), "-g", "g", "--yes"],
            "Invalid offset 99 of orders/broker-a/0, which ends at 10",
        ),
        (["import", str(tmp_path / "missing.json"), "-g", "g"], "missing.json"),
        (["import", str(tmp_path / "binary.json"), "-g", "g"], "binary.json: not UTF-8 text"),
        (
            ["import", str(tmp_path / "none.json"), "-g", "g"],
            "Unknown queue orders/broker-a/7. The topic has orders/broker-a/0",
        ),
        (["import", "-", "-g", "g"], "stdin is not valid offsets JSON"),
        (["export", "-g", "missing"], "No broker has an offset of group missing"),
        (["show", "-g", "missing"], "No broker has an offset of group missing"),
        (["export", "-g", "missing", "-t", "orders"], "Group missing has no offsets in orders"),
    ):
        status, _, error = rocket(*arguments)
        assert status == 1, arguments
        assert message in error, error
    with running_consumer(cluster.name_server, "busy", "orders"):
        assert rocket("reset", "-g", "busy", "-t", "orders", "--latest", "--yes").failed("1 member online")


def test_sinks_show_published_and_pending_epochs(rocket: Run, cluster: LocalCluster) -> None:
    given = {"nameServer": cluster.name_server, "topic": "billed", "deliveryGuarantee": "exactlyOnce"}
    options = parse_write_options(given, Scope.WRITE_STREAM)
    cluster.create_topic("billed", 1)
    check_topics(options)
    for topic in ("ROCKET_SINK_LEDGER", "not-created-yet"):
        assert rocket("sinks", "--ledger", topic) == (0, "No exactly-once writes with this ledger.\n", "")

    rows = pa.RecordBatch.from_pydict({"body": [b"1", b"2", b"3"]})
    brokers = brokers_for(options)
    for batch in (6, 7):
        staged = stage_rows(iter([rows]), brokers, options, Epoch("payments", batch, "run-1", "daily payments"))
        commit_epoch(options, [staged], is_stream=True)
    unfinished = Epoch("refunds", 3, "run-2")
    staged = stage_rows(iter([rows]), brokers, options, unfinished)
    ledger = Ledger(
        brokers, find_ledger(options, brokers).queue, options.staging_topic, "refunds", Timing.of(options),
        is_stream=True,
    )  # fmt: skip
    manifest = Manifest(staged.blocks, {}).encode()
    ledger.append(PREPARED, unfinished, manifest=base64.b64encode(manifest).decode())

    status, out, _ = rocket("sinks", "--json")
    assert status == 0
    refunds, payments = json.loads(out)
    assert (payments["query"], payments["batch"], payments["state"], payments["run"]) == (
        "payments",
        7,
        "DONE",
        "run-1",
    )
    assert (payments["blocks"], payments["rows"], payments["published"], payments["duplicates"]) == (1, 3, 3, 0)
    assert (payments["topics"], payments["name"], refunds["topics"]) == (["billed"], "daily payments", ["billed"])
    assert payments["stagedUntil"] is None
    assert (refunds["query"], refunds["batch"], refunds["state"], refunds["published"]) == (
        "refunds",
        3,
        "PREPARED",
        None,
    )
    assert (refunds["blocks"], refunds["rows"]) == (1, 3)
    assert refunds["stagedUntil"] == refunds["prepared"] + 72 * 3_600_000

    status, out, _ = rocket("sinks")
    lines = [line.split()[:6] for line in out.splitlines()[1:]]
    assert lines[0][:5] == ["refunds", "-", "billed", "3", "PREPARED"]
    assert lines[1] == ["payments", "daily", "payments", "billed", "7", "DONE"]
    status, out, _ = rocket("ledger")
    assert (status, len({tuple(line.split()[1:]) for line in out.splitlines()[1:]})) == (0, 1), out
    status, out, _ = rocket("ledger", "--ledger", "moved", "--replace", "broker-a", "--yes", "--json")
    found = json.loads(out)
    assert (status, [each["broker"] for each in found]) == (0, ["broker-a"] * 2)
    assert rocket("ledger", "--ledger", "orders", "--replace", "broker-a", "--yes")[0] == 1
    assert rocket("ledger", "--ledger", "orders", "--ledger-broker", "broker-a", "--replace", "broker-a")[0] == 2
    assert rocket("ledger", "--ledger-queue", "1")[0] == 2


def test_the_given_place_of_a_ledger(rocket: Run, cluster: LocalCluster) -> None:
    """It needs no entries; the exit status says whether the sink would stop with LEDGER_PLACE."""
    given = {"nameServer": cluster.name_server, "topic": "billed", "deliveryGuarantee": "exactlyOnce"}
    given |= {"ledgerTopic": "given-ledger", "stagingTopic": "given-staging"}
    given |= {"ledgerBroker": "broker-a", "ledgerQueue": "1"}
    for topic in ("given-ledger", "given-staging"):
        cluster.create_topic(topic, 2)
    here = ("ledger", "--ledger", "given-ledger", "--json", "--ledger-broker", "broker-a", "--ledger-queue")
    assert [each["ledger"] for each in json.loads(rocket(*here, "1")[1])] == [""]
    check_topics(parse_write_options(given, Scope.WRITE_STREAM))
    status, out, _ = rocket(*here, "1")
    (found,) = json.loads(out)
    assert (status, found["source"], len(found["ledger"])) == (0, "given-ledger/broker-a/1", 32)
    for queue in ("0", "7"):
        assert rocket(*here, queue)[0] == 1

    options = parse_write_options(given, Scope.WRITE_STREAM)
    brokers = brokers_for(options)
    at = find_ledger(options, brokers).queue
    ledger = Ledger(brokers, at, options.staging_topic, "given", Timing.of(options), is_stream=True)
    ledger.append(DONE, Epoch("given", 4))
    sinks = ("sinks", "--ledger", "given-ledger", "--json")
    place = ("--ledger-broker", "broker-a", "--ledger-queue")

    def batches(*more: str) -> list[tuple[str, int]]:
        status, out, err = rocket(*sinks, *more)
        assert status == 0, err
        return [(each["query"], each["batch"]) for each in json.loads(out)]

    assert batches() == batches(*place, "1") == [("given", 4)]
    assert batches(*place, "0") == []
    status, _, err = rocket(*sinks, *place, "7")
    assert status == 1
    assert "no queue given-ledger/broker-a/7 now" in err
    brokers.append(MessageQueue("given-ledger", "broker-a", 0), b"of another driver")
    status, _, err = rocket(*sinks)
    assert status == 1
    assert "has 2 queues (given-ledger/broker-a/0, given-ledger/broker-a/1)" in err
    assert batches(*place, "1") == [("given", 4)]


def test_sinks_show_a_chained_manifest_and_newer_records(rocket: Run, cluster: LocalCluster) -> None:
    given = {"nameServer": cluster.name_server, "topic": "billed", "deliveryGuarantee": "exactlyOnce"}
    given |= {"ledgerTopic": "chained-ledger", "stagingTopic": "chained-staging"}
    options = parse_write_options(given, Scope.WRITE_STREAM)
    check_topics(options)
    brokers = brokers_for(options)
    epoch = Epoch("chained", 3)
    rows = pa.RecordBatch.from_pydict({"body": [b"1", b"2", b"3"]})
    manifest = Manifest(stage_rows(iter([rows]), brokers, options, epoch).blocks, {}).encode()
    queue = brokers.queues(options.staging_topic)[0]
    offsets = [brokers.append(queue, part).queue_offset for part in (manifest[:20], manifest[20:])]
    parts = [[queue.topic, queue.broker_name, queue.queue_id, offset] for offset in offsets]
    at = find_ledger(options, brokers).queue
    for query, given_parts in (
        ("gone", [*parts, [queue.topic, queue.broker_name, queue.queue_id, 999]]),
        ("chained", parts),
    ):
        ledger = Ledger(brokers, at, options.staging_topic, query, Timing.of(options), is_stream=True)
        ledger.append(PREPARED, Epoch(query, 3), parts=given_parts)
    with Producer("tests", name_server=cluster.name_server) as producer:
        producer.send(Message.of("chained-ledger", b'{"rocketSink": 2, "query": "later", "what": "unknown"}'))

    status, out, err = rocket("sinks", "--ledger", "chained-ledger", "--staging", "chained-staging", "--json")
    assert status == 0, err
    found = {each["query"]: (each["state"], each["batch"], each["blocks"], each["rows"]) for each in json.loads(out)}
    assert found == {
        "chained": ("PREPARED", 3, 1, 3),
        "gone": ("PREPARED", 3, None, None),
        "later": ("newer version", None, None, None),
    }
    status, out, err = rocket("sinks", "--ledger", "chained-ledger")
    assert (status, "newer version" in out) == (0, True), err


def test_sinks_refuse_a_topic_that_is_not_a_ledger(rocket: Run, cluster: LocalCluster) -> None:
    status, _, err = rocket("sinks", "--ledger", "orders")
    assert (status, "has 2 queues" in err) == (1, True), err
    cluster.create_topic("single", 1)
    with Producer("tests", name_server=cluster.name_server) as producer:
        producer.send(Message.of("single", "not a record"))
    status, _, err = rocket("sinks", "--ledger", "single")
    assert (status, "single" in err, "is not a record of an exactly-once sink" in err) == (1, True, True), err
