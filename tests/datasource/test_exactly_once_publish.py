"""What the exactly-once sink publishes and reads back, on brokers in memory: late, lost, doubled and refused rows."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.send.producer import Producer
from spark_rocket.datasource.exactly_once import publish
from spark_rocket.datasource.exactly_once.lanes import RowSet
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.records import DONE
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers, brokers_for
from spark_rocket.datasource.exactly_once.staging import stage_rows
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.write.row_encoder import Block
from spark_rocket.errors import (
    BrokerError,
    DataLossError,
    ExactlyOnceError,
    MessageTooLargeError,
    RemotingTimeoutError,
    TopicNotFoundError,
)
from spark_rocket.model import SCHEDULE_TOPIC, MessageQueue, SendResult, SendStatus
from spark_rocket.protocol.wire.codes import ResponseCode
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


@pytest.fixture
def brokers() -> FakeBrokers:
    return FakeBrokers(target_queues=1)


def test_a_late_request_of_a_dead_driver_within_the_grace_period(brokers: FakeBrokers) -> None:
    brokers.before = FailAtRequest(2, KilledError, {"publish"})
    blocks = brokers.staged(EPOCH, ROWS)
    with pytest.raises(KilledError):
        brokers.commit_epoch(EPOCH, blocks)
    brokers.alive()
    late = FakeBrokers(target_queues=1, log={queue: log[:] for queue, log in brokers.log.items()})
    late.commit_epoch(EPOCH, [])
    queue = MessageQueue(TARGET, "a", 0)
    brokers.at_sleep.append(lambda: brokers.log[queue].extend(late.log[queue][8:12]))
    brokers.commit_epoch(EPOCH, [])
    assert brokers.slept == [5.0]
    once(brokers.rows(), ROWS)


def test_a_late_request_after_the_grace_period_is_reported(
    brokers: FakeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    kill_at_publish(brokers, 2, when="before")
    queue = MessageQueue(TARGET, "a", 0)
    sends = iter(range(1))

    def arrive(kind: str, where: MessageQueue) -> None:
        if kind == "publish" and next(sends, None) is not None:
            brokers.log[queue] += brokers.log[queue][8:12]

    brokers.before, brokers.after = (lambda kind, queue: None), arrive
    brokers.commit_epoch(EPOCH, [])
    assert Counter(brokers.rows()) == Counter(ROWS) + Counter(ROWS[8:12])
    assert "[EXACTLY_ONCE.DUPLICATES] 4 rows of batch 0 are stored twice in orders" in caplog.text
    assert json.loads(brokers.log[LEDGER_QUEUE][-1].body)["duplicates"] == 4


def test_a_send_stored_long_after_its_timeout_is_reported(
    brokers: FakeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    queue, sends = MessageQueue(TARGET, "a", 0), iter(range(4))

    def time_out(kind: str, where: MessageQueue) -> None:
        if kind == "publish" and next(sends, None) == 1:
            raise RemotingTimeoutError("no response")

    def arrive(kind: str, where: MessageQueue) -> None:
        if kind == "publish" and len(brokers.log[queue]) == 8:
            brokers.log[queue] += brokers.log[queue][4:]

    brokers.before, brokers.after = time_out, arrive
    brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS))
    assert Counter(brokers.rows()) == Counter(ROWS) + Counter(ROWS[4:8])
    assert "[EXACTLY_ONCE.DUPLICATES] 4 rows" in caplog.text


@pytest.mark.parametrize(
    ("left", "rows", "duplicates"),
    [
        *(pytest.param(range(8 + more), range(20), 0, id=f"{more} rows of the last block") for more in (1, 2, 3)),
        pytest.param([*range(10), *range(8, 12)], [*range(10), *range(8, 20)], 2, id="a part, and sent again"),
        pytest.param(
            [*range(10), *range(4, 8), *range(10, 12)],
            [*range(10), *range(4, 8), *range(10, 20)],
            4,
            id="a part, a late duplicate, the remainder",
        ),
    ],
)
def test_a_partly_stored_block(brokers: FakeBrokers, left: Sequence[int], rows: Sequence[int], duplicates: int) -> None:
    """After a power failure, or on a promoted slave. Twelve rows in three blocks were published."""
    kill_at_publish(brokers, 2)
    log = brokers.log[MessageQueue(TARGET, "a", 0)]
    log[:] = [log[number] for number in left]
    brokers.commit_epoch(EPOCH, [])
    assert brokers.rows() == [ROWS[number] for number in rows]
    assert json.loads(brokers.log[LEDGER_QUEUE][-1].body)["duplicates"] == duplicates


@pytest.mark.parametrize(("first", "last"), [(4, 8), (6, 8)], ids=["a block", "the end of a block"])
def test_rows_lost_before_a_stored_block(brokers: FakeBrokers, first: int, last: int) -> None:
    kill_at_publish(brokers, 2)
    del brokers.log[MessageQueue(TARGET, "a", 0)][first:last]
    with pytest.raises(
        ExactlyOnceError,
        match=r"OUT_OF_ORDER.*0000000008 .*0000000004.*the broker lost messages that it had acknowledged",
    ):
        brokers.commit_epoch(EPOCH, [])


@pytest.mark.parametrize(("topic", "queues"), [(SCHEDULE_TOPIC, 1), (SCHEDULE_TOPIC, 2), (TARGET, 1)])
def test_a_delayed_row_stored_twice_is_reported(topic: str, queues: int) -> None:
    """The copy that the delivery adds to the target queue is not a duplicate."""
    brokers = FakeBrokers(target_queues=queues)
    kill_at_publish(brokers, 12, delayLevel=[2] * 20)
    delayed, target = MessageQueue(SCHEDULE_TOPIC, "a", 1), MessageQueue(TARGET, "a", 0)
    brokers.log.setdefault(target, []).extend(brokers.log[delayed][:3])
    brokers.log[MessageQueue(topic, "a", 1 if topic == SCHEDULE_TOPIC else 0)] += brokers.log[delayed][:2]
    brokers.commit_epoch(EPOCH, [])
    assert {*brokers.rows()} == {*ROWS}
    assert json.loads(brokers.log[LEDGER_QUEUE][-1].body)["duplicates"] == 2


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 200_000) | st.just(2**48 - 1)), max_size=40)),
    st.lists(st.sampled_from(["", "no key", "A" * 20 + "00000000000g", "A" * 20 + "0" * 11, "C" * 32]), max_size=5),
)
def test_rows_found_in_the_target(chunks: list[list[tuple[int, int]]], foreign: list[str]) -> None:
    """They are a set of ids, independent of other messages in the queue."""
    prefixes = [letter * 20 for letter in "ABD"]
    found, expected = RowSet(prefixes), set()
    for chunk in chunks:
        ids = [f"{prefixes[partition]}{number:012X}" for partition, number in chunk]
        assert found.own(pa.array([*foreign, *ids], pa.string())).to_pylist() == ids
        own = pa.array(ids, pa.string())
        assert found.lacks(own).tolist() == [key not in expected for key in ids]
        is_new = found.add(own).tolist()
        assert is_new == [key not in expected and key not in ids[:at] for at, key in enumerate(ids)]
        expected |= {*ids}
        assert found.count == len(expected)


@pytest.mark.parametrize("at", range(5))
def test_delayed_rows_delivered_before_the_restart(brokers: FakeBrokers, at: int) -> None:
    """By then they are in the target queue too, after the other rows."""
    delayed, plain, sends = MessageQueue(SCHEDULE_TOPIC, "a", 2), MessageQueue(TARGET, "a", 0), iter(range(at))
    all_delayed = threading.Event()

    def stop(kind: str, queue: MessageQueue) -> None:
        if queue == delayed and len(brokers.log[delayed]) == 3:
            all_delayed.set()

    def die(kind: str, queue: MessageQueue) -> None:
        if kind == "publish" and queue == plain and next(sends, None) is None:
            assert all_delayed.wait(60)
            raise KilledError

    brokers.before, brokers.after = die, stop
    with pytest.raises(KilledError):
        brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS, **DELAYS))
    brokers.alive()
    delivered = brokers.log[delayed][:]
    brokers.log.setdefault(plain, []).extend(delivered)
    brokers.commit_epoch(EPOCH, [])
    assert Counter(brokers.rows()) == Counter(ROWS) + Counter(stored.body.decode() for stored in delivered)


def test_reset_offsets_and_retention(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A promoted slave may have a slightly shorter queue than the one whose end was recorded."""
    monkeypatch.setattr(publish, "_READ_BACK_MESSAGES", 30)
    queue = MessageQueue(TARGET, "a", 0)
    brokers.log[queue] = [Stored(b"older")] * 100
    kill_at_publish(brokers, 2)
    del brokers.log[queue][:20]
    whole = brokers.log[queue][:]
    brokers.first[queue] = 101
    with pytest.raises(ExactlyOnceError, match=r"READ_BACK_GONE.*ended at 100.*offsets 101 to 92"):
        brokers.commit_epoch(EPOCH, [])
    brokers.first[queue] = 0
    del brokers.log[queue][:30]
    with pytest.raises(ExactlyOnceError, match=r"READ_BACK_GONE.*offsets 0 to 62"):
        brokers.commit_epoch(EPOCH, [])
    brokers.log[queue] = whole
    brokers.commit_epoch(EPOCH, [])
    assert [row for row in brokers.rows() if row != "older"] == ROWS


def test_staged_rows_not_yet_visible(brokers: FakeBrokers) -> None:
    """A broker acknowledges a message before it can be pulled."""
    blocks = brokers.staged(EPOCH, ROWS)
    hidden = {queue: log[-1:] for queue, log in brokers.log.items() if queue.topic == STAGING}
    for queue in hidden:
        del brokers.log[queue][-1]
    brokers.at_sleep.append(lambda: [brokers.log[queue].extend(log) for queue, log in hidden.items()].clear())
    brokers.commit_epoch(EPOCH, blocks)
    assert brokers.rows() == ROWS


def test_deleted_staged_rows(brokers: FakeBrokers) -> None:
    kill_at_publish(brokers, 1)
    staged = {queue: log for queue, log in brokers.log.items() if queue.topic == STAGING}
    for queue in staged:
        brokers.log[queue] = []
    with pytest.raises(DataLossError, match=r"DATA_LOSS.STAGED_BLOCK.*No row was published twice"):
        brokers.commit_epoch(EPOCH, [])
    assert brokers.rows() == ROWS[:8]
    for queue, log in staged.items():  # deleted and used again by others
        brokers.log[queue] = [Stored(stored.body[:-1] + b"?") for stored in log[::-1]]
    with pytest.raises(DataLossError, match="STAGED_BLOCK"):
        brokers.commit_epoch(EPOCH, [])
    assert brokers.rows() == ROWS[:8]


def test_stored_but_not_durable_rows_are_confirmed(brokers: FakeBrokers) -> None:
    brokers.status = lambda kind, queue: SendStatus.FLUSH_DISK_TIMEOUT
    blocks = brokers.staged(EPOCH, ROWS)
    assert sorted(brokers.confirmed) == ["a", "b"]
    brokers.confirmed.clear()
    brokers.commit_epoch(EPOCH, blocks)
    assert brokers.confirmed == ["a", "a", "a"]  # for PREPARED, the rows and DONE
    once(brokers.rows(), ROWS)


def test_rows_lost_before_confirmation(brokers: FakeBrokers) -> None:
    """The broker's machine fails between a FLUSH_DISK_TIMEOUT and the confirmation."""
    blocks = brokers.staged(EPOCH, ROWS)
    statuses = iter([SendStatus.FLUSH_DISK_TIMEOUT])
    brokers.status = lambda kind, queue: next(statuses, SendStatus.SEND_OK) if kind == "publish" else SendStatus.SEND_OK

    def lose(kind: str, queue: MessageQueue) -> None:
        if kind == "confirm":
            del brokers.log[MessageQueue(TARGET, "a", 0)][2:]

    brokers.before = lose
    brokers.commit_epoch(EPOCH, blocks)
    assert brokers.rows() == ROWS


@pytest.mark.parametrize("left", [[], [Stored(b"another")]], ids=["shorter", "another message"])
def test_staged_rows_lost_before_confirmation(brokers: FakeBrokers, left: list[Stored]) -> None:
    """The task fails and is repeated; the epoch must not be decided with a lost block."""
    brokers.status = lambda kind, queue: SendStatus.FLUSH_DISK_TIMEOUT

    def lose(kind: str, queue: MessageQueue) -> None:
        if kind == "confirm":
            for log in brokers.log.values():
                log[:] = left * len(log)

    brokers.before = lose
    with pytest.raises(ExactlyOnceError, match=r"staged rows at offset \d+ of staging/[ab]/0 are gone") as caught:
        stage_rows(iter([pa.record_batch({"body": ROWS})]), brokers.real(), options(retryTimeout="0"), EPOCH)
    assert caught.value.code == "EXACTLY_ONCE.NOT_DURABLE"


def test_missing_routes_are_retried_for_the_topics_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server has no route of a topic while its only slave is promoted."""

    def missing(producer: Producer, topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        raise TopicNotFoundError("no route")

    monkeypatch.setattr(Producer, "queues", missing)
    brokers = Brokers(options(ledgerTopic=LEDGER))
    for topic, retriable in ((TARGET, True), (STAGING, True), (LEDGER, True), ("from a column", False)):
        with pytest.raises(TopicNotFoundError) as caught:
            brokers.queues(topic)
        assert caught.value.retriable == retriable


def test_named_writes_share_connections() -> None:
    """A process keeps what it has made for a write: a job may name each of its writes, and begin a topic each day."""
    names = {"nameServer": "x:1", "deliveryGuarantee": "exactlyOnce"}
    writes = [{"writeId": write_id, "topic": topic} for write_id, topic in (("a", "t"), ("b", "t"), ("c", "u"))]
    first, same, other = (brokers_for(parse_write_options(names | write, Scope.WRITE)) for write in writes)
    assert first is same
    assert first.reader is other.reader


def test_only_the_master_confirms_stored_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave may show a message that the master has lost."""
    queue, timing = MessageQueue(STAGING, "a", 0), FakeBrokers().timing()
    shown = iter([False, True])
    sent = []

    def append(queue: MessageQueue, body: bytes) -> SendResult:
        sent.append(body)
        return SendResult(SendStatus.SEND_OK, "", "", queue, 7)

    def pull(queue: MessageQueue, offset: int, **more: object) -> PullResult:
        return PullResult(PullStatus.FOUND, 8, 0, 8, memoryview(b""), from_master=next(shown))

    brokers = Brokers.__new__(Brokers)
    brokers.reader = SimpleNamespace(pull=pull)  # type: ignore[assignment]
    monkeypatch.setattr(brokers, "queues", lambda topic: [queue])
    monkeypatch.setattr(brokers, "append", append)
    brokers.confirm("a", STAGING, timing)
    assert next(shown, None) is None
    assert len(sent) == 2


def test_a_missing_target_queue(brokers: FakeBrokers) -> None:
    blocks = brokers.staged(EPOCH, ROWS)
    brokers.gone = {MessageQueue(TARGET, "a", 0)}
    with pytest.raises(ExactlyOnceError, match=r"TARGET_GONE.*orders/a/0.*Restore the queues of the topic"):
        brokers.commit_epoch(EPOCH, blocks)
    brokers.gone = set()
    brokers.commit_epoch(EPOCH, [])
    assert brokers.rows() == ROWS


def test_a_target_that_does_not_exist_yet(brokers: FakeBrokers) -> None:
    """Its first send creates it, and has no response; a queue that had messages must be there."""
    blocks, queue = brokers.staged(EPOCH, ROWS), MessageQueue(TARGET, "a", 0)
    brokers.before = FailAtRequest(0, RemotingTimeoutError("no response"), {"publish"})
    brokers.gone = {queue}
    brokers.at_sleep.append(brokers.gone.clear)
    brokers.commit_epoch(EPOCH, blocks)
    assert brokers.rows() == ROWS
    following = Epoch("query", 1)
    brokers.before = FailAtRequest(0, KilledError, {"publish"})
    with pytest.raises(KilledError):
        brokers.commit_epoch(following, brokers.staged(following, ["next"]))
    brokers.alive()
    brokers.gone = {queue}
    with pytest.raises(TopicNotFoundError, match="to reach a"):
        brokers.commit_epoch(following, [])
    brokers.gone = set()
    brokers.commit_epoch(following, [])
    assert brokers.rows() == [*ROWS, "next"]


def test_rows_refused_by_the_target(brokers: FakeBrokers) -> None:
    blocks = brokers.staged(EPOCH, ROWS)
    refused = BrokerError("timer too long", response_code=ResponseCode.MESSAGE_ILLEGAL)
    brokers.before = FailAtRequest(2, refused, {"publish"})
    with pytest.raises(ExactlyOnceError, match=r"TARGET_REFUSES.*orders/a/0 .*timer too long.*timerMaxDelaySec"):
        brokers.commit_epoch(EPOCH, blocks)
    brokers.commit_epoch(EPOCH, [])
    assert brokers.rows() == ROWS


def test_a_broker_unavailable_for_longer_than_retry_timeout(brokers: FakeBrokers) -> None:
    blocks = brokers.staged(EPOCH, ROWS)

    def away(kind: str, queue: MessageQueue) -> None:
        if kind == "publish":
            raise RemotingTimeoutError("no response")

    brokers.before = away
    with pytest.raises(RemotingTimeoutError, match=r"Tried to publish to orders/a/0 for .*retryTimeout"):
        brokers.commit_epoch(EPOCH, blocks)
    brokers.alive()
    brokers.commit_epoch(EPOCH, [])
    assert brokers.rows() == ROWS


# --- misleading responses ---------------------------------------------------------------------------------------


def test_a_busy_broker_that_may_have_stored_the_rows(brokers: FakeBrokers) -> None:
    """A DLedger broker sends this response if too few replicas confirm an appended entry."""
    busy = BrokerError("[PC_SYNCHRONIZED]broker busy", response_code=ResponseCode.SYSTEM_BUSY)
    brokers.after = FailAtRequest(1, busy, {"publish"})
    brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS))
    assert brokers.rows() == ROWS


def test_a_lane_recovered_twice_is_read_back_once(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads must not share a lane."""
    sends, read = iter(range(20)), []

    def lose(kind: str, queue: MessageQueue) -> None:
        if kind == "publish" and next(sends) in (1, 3):
            raise RemotingTimeoutError("no response")

    read_back = publish.Publisher.read_back
    monkeypatch.setattr(
        publish.Publisher, "read_back", lambda self, lanes: (read.append(len(lanes)), read_back(self, lanes))
    )
    brokers.after = lose
    brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS))
    assert brokers.rows() == ROWS
    assert read == [1, 1, 1]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_block_too_large_for_the_target(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Its limit can be lower than the staging broker's. A restart continues within a block."""
    send, sends = brokers.publish, []

    def refuse(block: Block, queue: MessageQueue) -> SendResult:
        if block.count > most:
            raise MessageTooLargeError("too large", response_code=ResponseCode.MESSAGE_ILLEGAL)
        sends.append(block.count)
        if len(sends) == 4:
            raise KilledError
        return send(block, queue)

    monkeypatch.setattr(brokers, "publish", refuse)
    with pytest.raises(KilledError):
        brokers.commit_epoch(EPOCH, brokers.staged(EPOCH, ROWS, size=7))
    brokers.commit_epoch(EPOCH, [])
    assert brokers.rows() == ROWS


def test_missing_messages_in_the_read_back(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may belong to the epoch, so it is not published again."""
    kill_at_publish(brokers, 2)
    ids = brokers.ids
    monkeypatch.setattr(brokers, "ids", lambda queue, start, end: ids(queue, start, end - 1))
    with pytest.raises(ExactlyOnceError, match=r"READ_BACK_GAP.*1 of the messages 0 to 11 cannot be read"):
        brokers.commit_epoch(EPOCH, [])
    assert brokers.rows() == ROWS[:12]


def test_acknowledged_rows_missing_before_done(brokers: FakeBrokers) -> None:
    """A broker lost rows while a restarted driver published. They are sent again before DONE is written."""
    blocks = brokers.staged(EPOCH, ROWS)
    brokers.before = FailAtRequest(0, KilledError, ["publish"])
    with pytest.raises(KilledError):
        brokers.commit_epoch(EPOCH, blocks)
    brokers.alive()
    sends = iter(range(100))

    def lose(kind: str, queue: MessageQueue) -> None:
        if kind == "publish" and next(sends) == len(blocks) - 1:  # the broker fails over to a slave without it
            del brokers.log[queue][-blocks[-1].rows :]

    brokers.after = lose
    brokers.commit_epoch(EPOCH, blocks)
    assert sorted(brokers.rows()) == sorted(ROWS)
    assert kinds(brokers)[-1] == DONE
