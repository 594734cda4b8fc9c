"""The exactly-once sink's decisions, on brokers in memory: a commit is interrupted at each of its requests."""

from __future__ import annotations

import json
import zlib
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.datasource.exactly_once import commit
from spark_rocket.datasource.exactly_once.manifest import Epoch, Manifest, StagedBlock
from spark_rocket.datasource.exactly_once.records import DONE, PREPARED, RESUMED, tag_of
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers
from spark_rocket.datasource.exactly_once.staging import stage_rows
from spark_rocket.errors import (
    BrokerError,
    ExactlyOnceError,
    QueueNotFoundError,
    RemotingTimeoutError,
    RocketError,
    RowError,
    TopicNotFoundError,
)
from spark_rocket.model import SCHEDULE_TOPIC, MessageQueue, SendStatus
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.datasource.exactly_once_brokers import (
    DELAYS,
    EPOCH,
    LEDGER,
    LEDGER_QUEUE,
    ROWS,
    STAGING,
    TARGET,
    FailAtRequest,
    FakeBrokers,
    KilledError,
    Stored,
    kill_at_publish,
    kinds,
    once,
    options,
)

MANY = 400


@pytest.fixture
def brokers() -> FakeBrokers:
    return FakeBrokers(target_queues=1)


def test_a_manifest_round_trips(brokers: FakeBrokers) -> None:
    blocks = brokers.staged(EPOCH, ROWS, **DELAYS)
    manifest = Manifest(blocks, {MessageQueue(TARGET, "a", 0): 7})
    assert Manifest.decode(manifest.encode()) == manifest
    assert (manifest.rows, manifest.size) == (20, sum(block.size for block in blocks))


def test_the_formats_of_manifest_and_ledger(brokers: FakeBrokers) -> None:
    """A restarted query of a later version reads them."""
    block = StagedBlock(MessageQueue("t", "a", 3), 5, 400, 17, 2, 1, False, MessageQueue("s", "b", 0), 99)
    manifest = Manifest([block], {block.target: 1000})
    assert json.loads(zlib.decompress(manifest.encode())) == {
        "v": 1,
        "targets": [["t", "a", 3]],
        "staging": [["s", "b", 0]],
        "ends": [["t", "a", 3, 1000]],
        "blocks": [[0, 0, 99, 5, 400, 1, 0, 2, 17]],
    }
    assert Epoch("query", 4).first_id(block) == "7694758021245D5C089B000000000011"
    brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS))
    prepared, done = (json.loads(stored.body) for stored in brokers.log[LEDGER_QUEUE])
    shared = {"rocketSink": 1, "query": "query", "batch": 0, "run": "run"}
    assert prepared.items() >= (shared | {"kind": "PREPARED"}).items()
    assert prepared.keys() == {*shared, "kind", "publisher", "time", "manifest", "topics", "digest"}
    assert prepared["topics"] == done["topics"] == {TARGET: 20}
    assert done.items() >= (shared | {"kind": "DONE", "rows": 20, "blocks": 5, "published": 20}).items()
    assert done.keys() == {
        *shared,
        "kind",
        "publisher",
        "time",
        "blocks",
        "rows",
        "bytes",
        "published",
        "duplicates",
        "ms",
        "topics",
    }
    assert {stored.tags for stored in brokers.log[LEDGER_QUEUE]} == {tag_of("query")}


def to(brokers: FakeBrokers, topic: str, count: int, size: int = 4) -> list[StagedBlock]:
    """Staged blocks of rows for a topic."""
    blocks = brokers.staged(WRITE, [f"{topic} {row}" for row in range(count)], size=size)
    return [replace(block, target=MessageQueue(topic, "a", 0)) for block in blocks]


WRITE = Epoch("nightly", 0)


def test_a_write_id_that_is_used_for_another_write(brokers: FakeBrokers) -> None:
    """Two frames written under one id: the second is not dropped silently."""
    brokers.commit_epoch(WRITE, to(brokers, "orders", 5), is_stream=False)
    for blocks, now in (
        (to(brokers, "copies", 5), "5 rows for copies"),
        (to(brokers, "orders", 6), "6 rows for orders"),
        ([*to(brokers, "orders", 5), *to(brokers, "copies", 1)], "1 rows for copies, 5 rows for orders"),
        ([], "no rows"),
    ):
        refused = rf"WRITE_ID\] writeId 'nightly' was used at 20.* for 5 rows for orders; this write has {now}\."
        with pytest.raises(ExactlyOnceError, match=refused):
            brokers.commit_epoch(WRITE, blocks, is_stream=False)
    assert sorted(brokers.rows()) == [f"orders {row}" for row in range(5)]


def test_the_same_write_again_is_logged(brokers: FakeBrokers, caplog: pytest.LogCaptureFixture) -> None:
    brokers.commit_epoch(WRITE, to(brokers, "orders", 5), is_stream=False)
    assert caplog.text == ""
    for blocks, digest in ((to(brokers, "orders", 5), "the same digest"), (to(brokers, "orders", 5, 3), "another")):
        assert brokers.commit_epoch(WRITE, blocks, is_stream=False) is None
        assert f"5 rows for orders, with {digest}" in caplog.messages[-1]
        assert caplog.records[-1].levelname == "WARNING"
    assert len(brokers.rows()) == 5


def test_a_decided_write_is_published_before_another_one_is_refused(brokers: FakeBrokers) -> None:
    brokers.before = FailAtRequest(0, KilledError, ["publish"])
    with pytest.raises(KilledError):
        brokers.commit_epoch(WRITE, to(brokers, "orders", 5), is_stream=False)
    brokers.alive()
    with pytest.raises(ExactlyOnceError, match=r"WRITE_ID"):
        brokers.commit_epoch(WRITE, to(brokers, "orders", 4), is_stream=False)
    assert sorted(brokers.rows()) == [f"orders {row}" for row in range(5)]


def test_a_repeated_micro_batch_may_have_other_rows(brokers: FakeBrokers, caplog: pytest.LogCaptureFixture) -> None:
    """Other topics are logged: the option topic was changed with the checkpoint of a decided batch."""
    brokers.commit_epoch(WRITE, to(brokers, "orders", 5))
    brokers.commit_epoch(WRITE, to(brokers, "orders", 3))
    assert caplog.text == ""
    brokers.commit_epoch(WRITE, to(brokers, "copies", 5))
    assert "5 rows for orders, and is published there; this run has 5 rows for copies" in caplog.text


@pytest.mark.parametrize("lost", [set(), {"topics"}, {"topics", "PREPARED"}])
def test_writes_of_older_versions_are_compared(brokers: FakeBrokers, lost: set[str]) -> None:
    """Their decision has no topics, but its manifest has; after it has expired, the number of rows remains."""
    brokers.commit_epoch(WRITE, to(brokers, "orders", 5), is_stream=False)
    older = []
    for stored in brokers.log[LEDGER_QUEUE]:
        record = json.loads(stored.body)
        if record["kind"] not in lost:
            body = {key: value for key, value in record.items() if key not in {"digest", "ledger", *lost}}
            older.append(Stored(json.dumps(body).encode(), "", stored.tags))
    brokers.log[LEDGER_QUEUE] = older
    brokers.commit_epoch(WRITE, to(brokers, "orders", 5), is_stream=False)
    with pytest.raises(ExactlyOnceError, match=r"WRITE_ID.*for 5 rows for.*this write has 6 rows"):
        brokers.commit_epoch(WRITE, to(brokers, "orders", 6), is_stream=False)


def test_an_epoch_and_the_next_one(brokers: FakeBrokers) -> None:
    for batch in range(3):
        epoch = Epoch("query", batch, "run")
        blocks = brokers.staged(epoch, [f"{batch}.{row}" for row in ROWS], **DELAYS)
        assert brokers.commit_epoch(epoch, blocks) is not None
        assert brokers.commit_epoch(epoch, brokers.staged(epoch, ["other"])) is None
    once(brokers.rows(), [f"{batch}.{row}" for batch in range(3) for row in ROWS])
    assert kinds(brokers) == [PREPARED, DONE] * 3
    assert brokers.slept == []


def test_an_epoch_without_rows_is_also_decided(brokers: FakeBrokers) -> None:
    """Another driver that staged rows for it and was suspended does not publish them."""
    blocks = brokers.staged(EPOCH, ROWS)

    def overtake(kind: str, queue: MessageQueue) -> None:
        if kind == "append":
            brokers.alive()
            brokers.commit_epoch(EPOCH, [])

    brokers.before = overtake
    assert brokers.commit_epoch(EPOCH, blocks) is None
    assert brokers.rows() == []
    assert kinds(brokers) == [PREPARED, DONE, PREPARED, RESUMED]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_driver_killed_at_any_request(when: str, is_stream: bool) -> None:
    """The restarted query has other rows. The decided rows count; before a decision, the later ones do."""
    seen = set()
    for number in range(MANY):
        brokers = FakeBrokers(target_queues=1)
        blocks = brokers.staged(EPOCH, ROWS, **DELAYS)
        last = FailAtRequest(number, KilledError)
        setattr(brokers, when, last)
        try:
            brokers.commit_epoch(EPOCH, blocks, is_stream=is_stream)
        except KilledError:
            pass
        brokers.alive()
        decided = PREPARED in kinds(brokers)
        other = [f"other{number}" for number in range(9)]
        is_refused = decided and not is_stream  # as another write
        with pytest.raises(ExactlyOnceError, match="WRITE_ID") if is_refused else nullcontext():
            brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, other), is_stream=is_stream)
        once(brokers.rows(), ROWS if decided else other)
        assert kinds(brokers)[-1] == DONE
        if last.hit is None:
            break
        seen.add(last.hit.split()[0])
    assert seen >= {"append", "publish"}
    assert last.hit is None


def test_successive_killed_drivers() -> None:
    for first in range(12):
        for second in range(first % 6, 40, 6):
            brokers = FakeBrokers(target_queues=1)
            for number in (first, second):
                brokers.after = FailAtRequest(number, KilledError, {"append", "publish", "commit"})
                brokers.before = FailAtRequest(number, KilledError, {"ids", "staged"})
                try:
                    brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS, **DELAYS))
                except KilledError:
                    pass
            brokers.alive()
            brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS, **DELAYS))
            once(brokers.rows(), ROWS)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "error",
    [
        RemotingTimeoutError("no response"),
        BrokerError("busy", response_code=ResponseCode.SYSTEM_BUSY),
        BrokerError("no", response_code=ResponseCode.NO_PERMISSION),
    ],
    ids=["timeout", "busy", "permission"],
)
def test_a_request_with_one_failure(when: str, error: RocketError) -> None:
    """``after``: the request was executed and its response is lost. Refused requests always get a response."""
    kinds = {"append", "publish", "commit", "end", "messages"}
    if error.response_code is not None:
        kinds = {"publish"} if when == "before" else {"none"}
    for number in range(MANY):
        brokers = FakeBrokers(target_queues=2)
        blocks = brokers.staged(EPOCH, ROWS, **DELAYS)
        failing = FailAtRequest(number, error, kinds)
        setattr(brokers, when, failing)
        brokers.commit_epoch(EPOCH, blocks)
        once(brokers.rows(), ROWS)
        if failing.hit is None:
            break
    assert failing.hit is None


def test_the_first_decision_of_an_epoch_wins(brokers: FakeBrokers) -> None:
    """Another driver decides between this driver's read of the ledger and its append."""
    own, others = brokers.staged(EPOCH, ["own"]), brokers.staged(EPOCH, ROWS)

    def decide(kind: str, queue: MessageQueue) -> None:
        if kind == "append" and queue == LEDGER_QUEUE:
            brokers.alive()
            brokers.before = FailAtRequest(1, KilledError, {"publish"})
            with pytest.raises(KilledError):
                brokers.commit_epoch(EPOCH, others)
            brokers.alive()

    brokers.before = decide
    manifest = brokers.commit_epoch(EPOCH, own)
    assert manifest is not None
    assert manifest.rows == 20
    once(brokers.rows(), ROWS)
    assert kinds(brokers) == [PREPARED, PREPARED, RESUMED, DONE]


@pytest.mark.parametrize("at", range(5))
def test_a_driver_suspended_for_minutes_fails(brokers: FakeBrokers, at: int) -> None:
    """Meanwhile another driver published its epoch."""
    blocks = brokers.staged(EPOCH, ROWS)
    sends = iter(range(at))

    def stop(kind: str, queue: MessageQueue) -> None:
        if kind == "publish" and next(sends, None) is None:
            brokers.alive()
            brokers.now += 300
            brokers.commit_epoch(EPOCH, [])

    brokers.after = stop
    if at < 4:
        with pytest.raises(ExactlyOnceError, match=r"OVERTAKEN.*overtaken by publisher"):
            brokers.commit_epoch(EPOCH, blocks)
    else:
        brokers.commit_epoch(EPOCH, blocks)
    once(brokers.rows(), ROWS)


def test_a_driver_overtaken_by_a_later_batch(brokers: FakeBrokers) -> None:
    brokers.commit_epoch(Epoch("query", 7), brokers.staged(Epoch("query", 7), ROWS))
    with pytest.raises(ExactlyOnceError, match=r"OVERTAKEN.*batch 6 of query was overtaken by batch 7"):
        brokers.commit_epoch(Epoch("query", 6), brokers.staged(Epoch("query", 6), ["late"]))
    brokers.log[LEDGER_QUEUE] = []
    with pytest.raises(ExactlyOnceError, match="OVERTAKEN"):
        brokers.commit_epoch(Epoch("query", 6), brokers.staged(Epoch("query", 6), ["late"]))
    brokers.commit_epoch(Epoch("another", 6), brokers.staged(Epoch("another", 6), ["its own"]))
    once(brokers.rows(), [*ROWS, "its own"])


# --- the ledger -------------------------------------------------------------------------------------------------


def test_a_large_manifest_is_staged(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "INLINE_BYTES", 50)
    kill_at_publish(brokers, 1, **DELAYS)
    assert len(json.loads(brokers.log[LEDGER_QUEUE][0].body)["parts"]) > 1
    brokers.commit_epoch(EPOCH, [])
    once(brokers.rows(), ROWS)


def test_staging_queues_found_after_retries(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that restarts while a large manifest is staged is a delay, not a failure."""
    monkeypatch.setattr(commit, "INLINE_BYTES", 50)
    blocks, queues = brokers.staged(EPOCH, ROWS), brokers.queues
    failures = iter([TopicNotFoundError("no route", retriable=True)])

    def fail_once(topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        if (failure := next(failures, None)) is not None:
            raise failure
        return queues(topic)

    monkeypatch.setattr(brokers, "queues", fail_once)
    brokers.commit_epoch(EPOCH, blocks)
    once(brokers.rows(), ROWS)


@pytest.mark.parametrize(
    "body", [b"hello", b"{}", b"[]", b"\xff", b'{"rocketSink": 1}', b'{"rocketSink":1,"query":"query"}']
)
def test_a_foreign_message_in_the_ledger(brokers: FakeBrokers, body: bytes) -> None:
    brokers.log[LEDGER_QUEUE] = [Stored(body)]
    with pytest.raises(ExactlyOnceError, match=r"FOREIGN_MESSAGE.*ledger/a/0: message 0 \(id0\) is not a record"):
        brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS))
    assert brokers.rows() == []


def test_a_ledger_record_of_a_newer_version(brokers: FakeBrokers) -> None:
    brokers.log[LEDGER_QUEUE] = [
        Stored(b'{"rocketSink": 2, "query": "query"}'),
        Stored(b'{"rocketSink":2,"query":"x"}'),
    ]
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_VERSION.*record 0 has version 2; .* supports version 1"):
        brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS))
    other = Epoch("y", 0)
    brokers.commit_epoch(other, brokers.staged(other, ROWS))
    once(brokers.rows(), ROWS)


def test_expired_records(brokers: FakeBrokers) -> None:
    """The committed offsets include the batch: whether it is published is unknown, so it is not published again."""
    brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS))
    brokers.log[LEDGER_QUEUE] = [Stored(b"")] * 2
    brokers.first[LEDGER_QUEUE] = 2
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_EXPIRED.*batch 0 of query was decided"):
        brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS))
    following = Epoch("query", 1)
    brokers.commit_epoch(following, brokers.staged(following, ["next"]))
    once(brokers.rows(), [*ROWS, "next"])


# --- tasks ------------------------------------------------------------------------------------------------------


def test_a_row_larger_than_a_block(brokers: FakeBrokers) -> None:

    batch = pa.record_batch({"body": ["small", "x" * 1020]})
    with pytest.raises(RowError, match=r"row 1 of partition 0 takes \d+ bytes .* 1024 \(option maxMessageSize\)"):
        stage_rows(iter([batch]), brokers.real(), options(maxMessageSize="1024"), EPOCH)


@pytest.mark.parametrize("topic", [STAGING, LEDGER])
def test_a_row_for_the_topics_of_the_sink(brokers: FakeBrokers, topic: str) -> None:
    batch = pa.record_batch({"body": ["x"], "topic": [topic]})
    given = options(ledgerTopic=LEDGER)
    with pytest.raises(RowError, match=rf"row 0 of partition 0: topic {topic} is the sink's own"):
        stage_rows(iter([batch]), brokers.real(), replace(given, topic=None), EPOCH)


def test_delayed_rows_share_blocks(brokers: FakeBrokers) -> None:
    blocks = brokers.staged(EPOCH, ROWS, delayLevel=[2] * 20)
    assert [(block.rows, block.is_delayed) for block in blocks] == [(20, True)]
    brokers.commit_epoch(EPOCH, blocks)
    assert [row.body.decode() for row in brokers.log[MessageQueue(SCHEDULE_TOPIC, "a", 1)]] == ROWS


def test_a_request_staged_twice_is_published_once(brokers: FakeBrokers) -> None:
    brokers.after = FailAtRequest(1, RemotingTimeoutError("no response"), {"stage"})
    blocks = brokers.staged(EPOCH, ROWS)
    brokers.commit_epoch(EPOCH, blocks)
    assert brokers.rows() == ROWS


@pytest.mark.parametrize("code", [ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION])
def test_topics_with_uncountable_rows(code: ResponseCode) -> None:
    """Brokers of 4.x do not know the request, and others may refuse it. Each broker is asked once for each topic."""
    attributes = {"a": {"queue.type": "BatchCQ"}, "b": {"queue.type": "SimpleCQ"}, "c": {}}
    asked = []

    def invoke(address: str, request: RemotingCommand, timeout: float) -> RemotingCommand:
        asked.append((address, request.code, dict(request.ext_fields)))
        if address == "away":
            raise RemotingTimeoutError("no response")
        if address not in attributes:
            return RemotingCommand.response(request, code)
        body = TopicConfig("t", attributes=attributes[address]).to_json()
        return RemotingCommand.response(request, 0, None, {}, body)

    brokers = Brokers.__new__(Brokers)
    brokers._request_timeout, brokers._checked_targets = 1, set()
    brokers.reader = SimpleNamespace(  # type: ignore[assignment]
        address=lambda queue: queue.broker_name, remoting=SimpleNamespace(invoke=invoke)
    )
    with pytest.raises(ExactlyOnceError, match=r"BATCH_QUEUES.*topic t on broker a has queue.type=BatchCQ"):
        brokers.check_target(MessageQueue("t", "a", 0))
    for broker in "bcd":
        for queue_id in range(2):
            brokers.check_target(MessageQueue("t", broker, queue_id))
    assert asked == [(broker, RequestCode.GET_TOPIC_CONFIG, {"topic": "t"}) for broker in "abcd"]
    for _ in range(2):
        brokers.check_target(MessageQueue("t", "away", 0))
    assert len(asked) == 6


def test_a_task_checks_its_target_queues(brokers: FakeBrokers) -> None:
    checked = []
    brokers.before = lambda kind, queue: checked.append(queue) if kind == "check" else None
    brokers.staged(EPOCH, ROWS)
    assert {*checked} == {MessageQueue(TARGET, "a", 0)}


def test_a_ledger_with_invisible_messages(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers.log[LEDGER_QUEUE] = [Stored(b"")]
    monkeypatch.setattr(brokers, "messages", lambda queue, offset, **more: ([], offset))
    with pytest.raises(QueueNotFoundError, match="retryTimeout"):
        brokers.ledger("query").read()


def test_a_late_duplicate_of_a_resumed_record(brokers: FakeBrokers) -> None:
    brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS))
    first, second = brokers.ledger("query"), brokers.ledger("query")
    for ledger in (first, second, first):
        ledger.append(RESUMED, EPOCH)
    second.read()
    assert second.owner(0) == second.publisher


@pytest.mark.parametrize("status", [PullStatus.OFFSET_ILLEGAL, PullStatus.NO_MATCHED_MSG])
def test_a_slave_with_fewer_messages_than_its_master(status: PullStatus) -> None:
    """Skipping messages that only the slave lacks could miss the decision of an epoch."""
    brokers = Brokers.__new__(Brokers)
    answer = PullResult(status, 50, 50, 90, memoryview(b""), from_master=False)
    brokers.reader = SimpleNamespace(pull=lambda *given, **more: answer)  # type: ignore[assignment]
    assert brokers.messages(LEDGER_QUEUE, 7) == ([], 7)


def test_a_decision_lost_before_its_confirmation(brokers: FakeBrokers) -> None:
    def lose(kind: str, queue: MessageQueue) -> None:
        if kind == "confirm":
            other = {
                "rocketSink": 1,
                "query": "another",
                "kind": DONE,
                "batch": 1,
                "run": "",
                "publisher": "",
                "time": 0,
            }
            brokers.log[LEDGER_QUEUE] = [Stored(json.dumps(other).encode())]

    brokers.status = lambda kind, queue: SendStatus.FLUSH_DISK_TIMEOUT if queue == LEDGER_QUEUE else SendStatus.SEND_OK
    brokers.before = lose
    with pytest.raises(ExactlyOnceError, match="confirm") as found:
        brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS))
    assert found.value.code == "EXACTLY_ONCE.NOT_DURABLE"
    assert brokers.rows() == []
