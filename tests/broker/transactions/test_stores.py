"""Transactions after stops and kills, in stores of Apache's brokers, and in damaged records."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.transactions.half_messages import HalfMessage, decided_offsets
from spark_rocket.model import TRANSACTION_GROUP
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.store.results import PutResult
from tests.broker.transactions.scene import COMMIT, GOLDEN_SIZES, HALF, OP, ROLLBACK, Producer, bodies, progress
from tests.broker.wire import BROKER_PROPERTIES, messages_of
from tests.golden import expected, extract_store, frame, frames
from tests.kit.clock import Clock

pytestmark = pytest.mark.live


def test_a_clean_stop_keeps_what_is_pending_and_what_is_decided(serve: Any, clock: Clock, tmp_path: Path) -> None:
    with serve() as (server, wire, producer):
        sent = [producer.half(b"%d" % number) for number in range(6)]
        producer.commit_half(sent[1])
        producer.rollback(sent[2])
        producer.commit_half(sent[4])
    assert progress(tmp_path / "store") == {HALF: None, OP: None}
    with serve() as (server, wire, producer):
        assert bodies(wire) == [b"1", b"4"]
        assert producer.decide(sent[2], COMMIT).remark == "The transaction was decided before"
        producer.commit_half(sent[0])
        server.pass_time(29_999)
        assert producer.nothing_asked()  # members of the group get 30 s to find their broker again
        server.pass_time(1)
        assert producer.asked_about() == [b"3", b"5"]
    assert progress(tmp_path / "store") == {HALF: 6, OP: 4}
    clock.now += 30_000
    with serve() as (server, wire, producer):
        server.wake()
        while producer.nothing_asked():
            server.pass_time(30_000)
        assert wire.end(HALF) >= 10


def killed(directory: Path, image: Path) -> Path:
    """The files after a kill: mapped files as written, none closed."""
    shutil.copytree(directory, image)
    return image


def test_a_kill_at_any_moment_loses_no_transaction(serve: Any, clock: Clock, tmp_path: Path) -> None:
    images: list[tuple[Path, set[bytes], set[bytes]]] = []
    store = tmp_path / "store"
    with serve(store, flushConsumerOffsetInterval=3_600_000, **GOLDEN_SIZES) as (server, wire, producer):
        sent = [producer.half(b"%d" % number) for number in range(4)]

        def image(committed: set[bytes], pending: set[bytes]) -> None:
            images.append((killed(store, tmp_path / f"image{len(images)}"), committed, pending))

        image(set(), {b"0", b"1", b"2", b"3"})
        producer.commit_half(sent[0])
        image({b"0"}, {b"1", b"2", b"3"})
        producer.rollback(sent[2])
        image({b"0"}, {b"1", b"3"})
        server.pass_time(6_001)
        questions = [producer.question() for _ in range(2)]
        image({b"0"}, {b"1", b"3"})  # between the copies and the saved progress
        assert producer.end_checked(*questions[0], COMMIT).code == ResponseCode.SUCCESS
        image({b"0", b"1"}, {b"3"})
        server.run(server.broker.parts.saver.save_offsets)
        server.run(server.broker.parts.store.flush)
        server.pass_time(30_000)
        assert producer.end_checked(*producer.question(), ROLLBACK).code == ResponseCode.SUCCESS
        image({b"0", b"1"}, set())
    for directory, committed, pending in images:
        with serve(directory, **GOLDEN_SIZES) as (server, wire, producer):
            assert set(bodies(wire)) == committed, directory
            server.pass_time(60_000)
            asked = [producer.question() for _ in pending]
            assert {message.body for _, message in asked} == pending, directory
            assert producer.nothing_asked(), directory
            for header, message in asked:
                assert producer.end_checked(header, message, COMMIT).code == ResponseCode.SUCCESS
            assert sorted(bodies(wire)) == sorted(committed | pending), directory


def test_a_kill_between_the_message_and_its_op_may_duplicate_it(serve: Any, clock: Clock, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serve(store, **GOLDEN_SIZES) as (server, wire, producer):
        sent = producer.half()
        parts = server.broker.parts
        put = parts.store.put_message

        def kill_before_op(topic: str, *rest: Any, **more: Any) -> PutResult:
            if topic == OP:
                killed(store, tmp_path / "image")
            return put(topic, *rest, **more)

        parts.store.put_message = kill_before_op
        producer.commit_half(sent)
        parts.store.put_message = put
    clock.now += 6_001
    with serve(tmp_path / "image", **GOLDEN_SIZES) as (server, wire, producer):
        assert bodies(wire) == [b"x"]
        server.pass_time(30_000)
        assert producer.answers(COMMIT).code == ResponseCode.SUCCESS
        assert bodies(wire) == [b"x", b"x"]


def test_progress_is_saved_only_when_it_is_on_disk(serve: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(flushConsumerOffsetInterval=3_600_000) as (server, _wire, producer):
        producer.commit_half(producer.half())
        parts = server.broker.parts
        flushed: list[Any] = []
        monkeypatch.setattr(parts.store, "when_flushed", lambda offset, callback: flushed.append((offset, callback)))
        end = parts.store.max_physical_offset
        for is_flushed in (False, True):
            assert parts.offsets.query(TRANSACTION_GROUP, HALF, 0) == -1
            flushed.clear()
            server.run(parts.saver.save_offsets)
            server.run(lambda: None)
            ((offset, callback),) = flushed
            assert offset == end
            callback(is_flushed)
            server.do(parts.tasks.settle())
        assert (parts.offsets.query(TRANSACTION_GROUP, HALF, 0), parts.offsets.query(TRANSACTION_GROUP, OP, 0)) == (
            1,
            1,
        )
        flushed.clear()
        server.run(parts.saver.save_offsets)
        server.do(parts.tasks.settle())
        assert flushed == []


def test_a_truncated_queue(serve: Any, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serve() as (_, _, producer):
        producer.commit_half(producer.half())
    file = tmp_path / "store" / "config" / "consumerOffset.json"
    file.write_text(file.read_text().replace("{0:1", "{0:9"))
    with serve() as (server, _wire, producer):
        assert "ends at 1, not 9: truncated by recovery" in caplog.text
        producer.half(b"new")
        server.pass_time(6_001)
        assert producer.question()[1].body == b"new"


@pytest.mark.parametrize("body", [b"1,3,", b"1,3", b"1,nonsense,3,99999999999999999999,77", b",,1,,3,,"])
def test_op_messages_of_both_kinds_are_read(serve: Any, clock: Clock, body: bytes) -> None:
    with serve() as (server, _, producer):
        for number in range(5):
            producer.half(b"%d" % number)
        store = server.broker.parts.store
        born = {"born_timestamp": clock.now, "born_host": ("127.0.0.1", 1)}
        for text, properties in ((body, b"WAIT\x01true\x02TAGS\x01d"), (b"4", b"TAGS\x01other"), (b"0", b"TAGS\x01d")):
            server.run(lambda text=text, properties=properties: store.put_message(OP, 0, text, properties, **born))
        server.broker.parts.transactions.mark = lambda: None  # it takes all ops for its own
    with serve() as (server, _wire, producer):
        server.pass_time(30_000)
        assert producer.asked_about() == [b"2", b"4"]


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_in_apaches_stores_only_undecided_transactions_are_checked(
    serve: Any, clock: Clock, tmp_path: Path, name: Any
) -> None:
    directory = extract_store(name, tmp_path)
    rows = [row for row in expected(name) if row["topic"] == "GoldenTx"]
    clock.now = max(row["storeTimestamp"] for row in expected(name)) + 6_001
    with serve(directory, join=False, **GOLDEN_SIZES) as (server, wire, _):
        producer = Producer(wire.address, clock, "GID_golden_tx")
        try:
            producer.join()
            server.pass_time(30_000)
            header, message = producer.question()
            assert (message.topic, message.queue_id, message.body) == ("GoldenTx", 3, b"undecided")
            assert message.properties["KEYS"] == "tx-unknown-0"
            assert producer.nothing_asked()
            assert producer.end_checked(header, message, COMMIT).code == ResponseCode.SUCCESS
            found = {queue_id: wire.messages("GoldenTx", queue_id=queue_id) for queue_id in range(4)}
            assert [message.body for message in found[3]] == [
                *(row["body"] for row in rows if row["queueId"] == 3),
                b"undecided",
            ]
            assert sum(map(len, found.values())) == len(rows) + 1
            producer.nothing_asked()
        finally:
            producer.close()
    assert progress(directory) == {HALF: 7, OP: 6}


def test_recorded_decisions_and_questions(serve: Any, clock: Clock) -> None:
    """Checks of a real broker and responses of a real client in both formats, compared with ours."""
    with serve(join=False) as (server, wire, _):
        producer = Producer(wire.address, clock, "GID_golden_tx")
        try:
            producer.join()
            asked = frame("json-0056-br-code39-request")
            recorded = RemotingCommand.decode(memoryview(asked.raw)[4:])
            (theirs,) = messages_of(recorded)
            properties = {
                key: value
                for key, value in theirs.properties.items()
                if key not in ("REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES", "WAIT", "CLUSTER")
            }
            producer.half(theirs.body, theirs.topic, queue_id=theirs.queue_id, **properties)
            server.pass_time(6_001)
            request = producer.asked.get(timeout=20)
            assert (request.code, request.flag) == (recorded.code, recorded.flag)
            assert set(request.ext_fields) == set(recorded.ext_fields)
            for name in ("msgId", "transactionId"):
                assert request.ext_fields[name] == recorded.ext_fields[name]
            (ours,) = messages_of(request)
            # Brokers of 4.9 store neither region nor transaction id; WAIT=false is of their copy for the check.
            added = {**BROKER_PROPERTIES, "__transactionId__": theirs.properties["UNIQ_KEY"]}
            assert {**ours.properties, "WAIT": "false"} == {**added, **theirs.properties}
            assert (ours.topic, ours.queue_id, ours.body, ours.flag, ours.sys_flag) == (
                theirs.topic,
                theirs.queue_id,
                theirs.body,
                theirs.flag,
                theirs.sys_flag,
            )
            for answer in (one for one in frames() if one.request_code == 37):
                sent = producer.half(answer.name.encode(), "Golden")
                decision = RemotingCommand.decode(memoryview(answer.raw)[4:])
                decision.ext_fields["commitLogOffset"] = str(decode_offset_msg_id(sent.ext_fields["msgId"])[1])
                decision.ext_fields["tranStateTableOffset"] = sent.ext_fields["queueOffset"]
                producer.client.invoke_oneway(wire.address, decision)
            producer.join()
            committed = [
                one.name.encode() for one in frames() if one.header.get("extFields", {}).get("commitOrRollback") == "8"
            ]
            assert bodies(wire, "Golden") == committed
            assert committed
        finally:
            producer.close()


# --- records ----------------------------------------------------------------------------------------------------


def record(body: bytes = b"1", properties: bytes = b"TAGS\x01d", topic: str = OP) -> bytes:
    return encode_record(
        topic.encode(),
        0,
        body,
        properties,
        queue_offset=5,
        physical_offset=0,
        born_timestamp=1,
        born_host=b"\0" * 8,
        store_timestamp=1,
        store_host=b"\0" * 8,
    )


def test_damaged_records_decide_nothing() -> None:
    whole = record(b"1,2")
    assert decided_offsets(whole) == [1, 2]
    assert decided_offsets(None) == []
    for at in range(len(whole)):
        assert decided_offsets(whole[:at]) == []
    assert HalfMessage.view(whole) is None
    assert HalfMessage.view(None) is None
    assert HalfMessage.view(record(topic=HALF)[:-1]) is None


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"REAL_TOPIC": "T"},
        {"REAL_QID": "1"},
        {"REAL_TOPIC": "", "REAL_QID": "1"},
        {"REAL_TOPIC": HALF, "REAL_QID": "0"},
        *({"REAL_TOPIC": "T", "REAL_QID": queue_id} for queue_id in ("", "-1", "x", "4294967296")),
    ],
)
def test_half_messages_without_a_target(place: dict[str, str]) -> None:
    half = HalfMessage.view(record(properties=encode_properties(place), topic=HALF))
    assert half is not None
    with pytest.raises(ValueError, match="REAL_TOPIC and REAL_QID"):
        half.real_place()


def test_an_invalid_first_offset() -> None:
    half = HalfMessage.view(record(properties=b"TRAN_PREPARED_QUEUE_OFFSET\x016", topic=HALF))
    assert half is not None
    assert (half.first, half.is_copy) == (5, False)
