"""Checks of half messages: receivers, times, numbers, and refusals of the store."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_rocket.broker.transactions.transactional_message_service import TransactionalMessageService
from spark_rocket.protocol.record.record import decode_record
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.headers.producer import CheckTransactionStateRequestHeader
from spark_rocket.store.results import PutResult, PutStatus
from tests.broker.transactions.scene import COMMIT, GIVEN_UP, HALF, MINUTES, OP, ROLLBACK, Producer, bodies, refusing
from tests.broker.wire import Wire
from tests.kit.brokers import Served
from tests.kit.clock import START, Clock

pytestmark = pytest.mark.live
FULL = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full")


def test_checked_after_6_s_then_every_30_s(server: Served, wire: Wire, producer: Producer) -> None:
    sent = producer.half(b"undecided", TAGS="t", UNIQ_KEY="key")
    server.pass_time(6_000)
    assert producer.nothing_asked()
    server.pass_time(1)
    for times in (1, 2, 3):
        header, message = producer.question()
        copy = wire.messages(HALF, times)[0]
        assert header == CheckTransactionStateRequestHeader(
            tran_state_table_offset=times,
            commit_log_offset=copy.physical_offset,
            msg_id="key",
            transaction_id="key",
            offset_msg_id=copy.offset_msg_id,
        )
        assert (message.topic, message.queue_id, message.body) == ("Tx", 1, b"undecided")
        assert (message.queue_offset, message.physical_offset) == (times, copy.physical_offset)
        assert message.properties["TRANSACTION_CHECK_TIMES"] == str(times)
        assert message.properties["REAL_QID"] == "1"
        assert "TRAN_PREPARED_QUEUE_OFFSET" not in message.properties
        assert copy.properties == {**message.properties, "TRAN_PREPARED_QUEUE_OFFSET": "0"}
        assert copy.born_timestamp == message.born_timestamp == START
        assert copy.offset_msg_id != sent.ext_fields["msgId"]
        server.pass_time(29_999)
        assert producer.nothing_asked()
        server.pass_time(1)
    header, message = producer.question()
    assert producer.end_checked(header, message, COMMIT).code == ResponseCode.SUCCESS
    (committed,) = wire.messages("Tx", queue_id=1)
    assert committed.prepared_transaction_offset == header.commit_log_offset
    assert committed.properties == message.properties
    server.pass_time(10 * MINUTES)
    assert producer.nothing_asked()
    assert wire.end(HALF) == 5


def test_abandoned_after_15_checks(
    server: Served, wire: Wire, producer: Producer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sent = producer.half(b"nobody knows")
    clock.now += 6_001
    for times in range(1, 16):
        server.wake()
        assert producer.question()[1].properties["TRANSACTION_CHECK_TIMES"] == str(times)
        clock.now += 30_000
    assert wire.end(GIVEN_UP) == 0
    with caplog.at_level(logging.ERROR):
        server.wake()
    assert "transaction of group GID_tx" in caplog.text
    (given_up,) = wire.messages(GIVEN_UP)
    assert (given_up.body, given_up.properties["TRANSACTION_CHECK_TIMES"]) == (b"nobody knows", "15")
    server.pass_time(10 * MINUTES)
    assert producer.nothing_asked()
    assert (wire.end(HALF), wire.end(GIVEN_UP)) == (16, 1)
    producer.commit_half(sent)  # late, but it is the sender's word
    assert bodies(wire) == [b"nobody knows"]


def give_up(server: Any, wire: Wire, producer: Producer, clock: Clock) -> str:
    """The id of a message in TRANS_CHECK_MAX_TIME_TOPIC, after one check."""
    clock.now += 6_001
    for _ in range(2):
        server.wake()
        clock.now += 30_000
    producer.question()
    (given_up,) = wire.messages(GIVEN_UP)
    return given_up.offset_msg_id


def test_abandoned_transactions_are_checked_again_on_request(serve: Any, clock: Clock) -> None:
    with serve(transactionCheckMax=1) as (server, wire, producer):
        producer.half(b"forgotten")
        message_id = give_up(server, wire, producer, clock)
        answer = wire.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, topic=GIVEN_UP, msgId=message_id)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        header, message = producer.question()
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1", "it is counted from the beginning"
        assert producer.end_checked(header, message, COMMIT).code == ResponseCode.SUCCESS
        assert bodies(wire) == [b"forgotten"]
        refused = wire.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, topic=GIVEN_UP, msgId=message_id)
        assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "The transaction was decided before")


def test_only_abandoned_transactions_are_checked_again(serve: Any, clock: Clock) -> None:
    with serve(transactionCheckMax=1) as (server, wire, producer):
        sent = producer.half(b"late")
        message_id = give_up(server, wire, producer, clock)
        assert wire.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=message_id).code == ResponseCode.SUCCESS
        producer.question()
        producer.commit_half(sent)  # the sender decides after all; this also decides the new copy
        server.pass_time(30_000)
        assert producer.nothing_asked()
        assert bodies(wire) == [b"late"]
        for other in (wire.messages("Tx", queue_id=1)[0].offset_msg_id, sent.ext_fields["msgId"], "7F" * 16, "x"):
            assert wire.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=other).code == ResponseCode.SYSTEM_ERROR


def test_messages_older_than_the_retention_are_abandoned(serve: Any, clock: Clock) -> None:
    with serve(fileReservedTime=1) as (server, wire, producer):
        producer.half(b"old")
        clock.now += 60 * MINUTES
        producer.half(b"new")
        server.pass_time(6_001)
        assert producer.question()[1].body == b"new"
        assert bodies(wire, GIVEN_UP, queue_id=0) == [b"old"]
        assert producer.nothing_asked()


def test_settings_change_while_it_runs(serve: Any, clock: Clock) -> None:
    with serve(transactionTimeOut=1000, transactionCheckInterval=2000, transactionCheckMax=1) as (
        server,
        wire,
        producer,
    ):
        producer.half()
        server.pass_time(1001)
        producer.question()
        server.pass_time(1999)
        assert producer.nothing_asked()
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"transactionCheckMax=2")
        server.pass_time(1)
        producer.question()
        server.pass_time(2000)
        assert wire.end(GIVEN_UP) == 1


def test_a_young_message_delays_later_ones_until_it_is_due(server: Served, producer: Producer, clock: Clock) -> None:
    producer.half(b"0")
    decided = producer.half(b"1")
    clock.now += 3_000
    producer.half(b"2")
    producer.commit_half(decided)
    server.pass_time(3_001)
    assert producer.asked_about() == [b"0"]
    server.pass_time(30_000)  # a round every 30 s while a producer is asked
    assert producer.asked_about() == [b"2", b"0"]


def test_a_time_of_immunity(server: Served, wire: Wire, producer: Producer, clock: Clock) -> None:
    patient = producer.half(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    producer.half(b"hasty", CHECK_IMMUNITY_TIME_IN_SECONDS="2")
    producer.half(b"usual", CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
    server.pass_time(2_001)
    assert producer.nothing_asked()  # behind one that is young
    server.pass_time(4_000)
    assert producer.asked_about() == [b"hasty", b"usual"]
    for _ in range(3):
        server.pass_time(30_000)
        assert {producer.question()[1].body for _ in range(2)} == {b"hasty", b"usual"}
    assert producer.nothing_asked()
    clock.now = START + 100_001
    answer = producer.decide(patient, COMMIT)
    assert (answer.code, bodies(wire)) == (ResponseCode.ILLEGAL_OPERATION, [])
    clock.now = START + 6_001 + 4 * 30_000
    server.wake()
    asked = {producer.question()[1].body: None for _ in range(3)}
    assert set(asked) == {b"patient", b"hasty", b"usual"}


def test_a_message_in_its_immunity_is_decided_by_its_first_offset(
    server: Served, wire: Wire, producer: Producer, clock: Clock
) -> None:
    sent = producer.half(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    clock.now += 6_001
    for _ in range(20):  # more often than transactionCheckMax: these are not checks
        server.wake()
        clock.now += 30_000
    assert producer.nothing_asked()
    assert wire.end(HALF) == 21
    producer.commit_half(sent)
    assert wire.messages(OP)[0].body == b"0,20"
    assert bodies(wire) == [b"patient"]
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in wire.messages("Tx", queue_id=1)[0].properties
    server.pass_time(120 * MINUTES)
    assert producer.nothing_asked()
    assert wire.end(HALF) == 21


def test_a_decision_about_the_first_settles_the_copy_and_the_other_way_round(
    server: Served, wire: Wire, producer: Producer
) -> None:
    late, asked = producer.half(b"late"), producer.half(b"asked")
    server.pass_time(6_001)
    questions = {message.body: (header, message) for header, message in (producer.question(), producer.question())}
    producer.commit_half(late)
    assert producer.end_checked(*questions[b"late"], COMMIT).remark == "The transaction was decided before"
    assert producer.end_checked(*questions[b"asked"], ROLLBACK).code == ResponseCode.SUCCESS
    assert producer.decide(asked, COMMIT).remark == "The transaction was decided before"
    server.pass_time(10 * MINUTES)
    assert producer.nothing_asked()
    assert (bodies(wire), wire.end(HALF)) == ([b"late"], 4)


def test_members_of_a_group_are_asked_in_turn_and_no_others(
    server: Served, wire: Wire, producer: Producer, clock: Clock
) -> None:
    colleague, stranger = Producer(wire.address, clock), Producer(wire.address, clock, "GID_other")
    try:
        colleague.join()
        stranger.join()
        for number in range(10):
            producer.half(b"%d" % number)
        server.pass_time(6_001)
        mine = [producer.question()[1].body for _ in range(5)]
        theirs = [colleague.question()[1].body for _ in range(5)]
        assert sorted(mine + theirs) == [b"%d" % number for number in range(10)]
        assert stranger.nothing_asked()
    finally:
        colleague.close()
        stranger.close()


def test_a_check_without_a_producer_counts(serve: Any, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with serve(join=False) as (server, _wire, producer):
        for _ in range(5):
            producer.half()
        server.pass_time(6_001)
        assert (
            caplog.text.count("cannot check transactions of group GID_tx: no producer is connected") == 1
        )  # not once for each
        producer.join()
        server.pass_time(30_000)
        assert producer.question()[1].properties["TRANSACTION_CHECK_TIMES"] == "2"


def test_a_large_round_does_not_block_others(
    server: Served, wire: Wire, producer: Producer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        producer.half(b"%d" % number)
    transactions: TransactionalMessageService = server.broker.parts.transactions
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(
        "spark_rocket.broker.transactions.transactional_message_service.monotonic", lambda: float(next(ticks))
    )
    clock.now += 6_001
    assert server.run(lambda: transactions.check(clock.now, 0.5)) == clock.now  # one message, then other requests
    assert wire.end(HALF) == 51
    server.wake()
    assert producer.asked_about() == [b"%d" % number for number in range(50)]
    assert wire.end(HALF) == 100


def test_an_idle_broker_uses_no_memory(server: Served, producer: Producer, clock: Clock) -> None:
    parts = server.broker.parts
    driver = parts.delivery_timers.by_topic[HALF]
    server.run(lambda: None)
    assert driver.due is None
    assert parts.transactions.mark() is None
    producer.commit_half(producer.half())
    assert driver.due == clock.now + 6_001
    server.pass_time(6_001)
    assert driver.due is None


# --- when the store refuses -------------------------------------------------------------------------------------


def test_a_full_disk_delays_checks_and_loses_none(server: Served, wire: Wire, producer: Producer, clock: Clock) -> None:
    sent = producer.half()
    parts = server.broker.parts
    with refusing(parts.store, FULL, lambda topic, body: True):
        for decision in (COMMIT, ROLLBACK):
            answer = producer.decide(sent, decision)
            assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "full")
        server.pass_time(6_001)
        assert producer.nothing_asked()
        assert parts.delivery_timers.by_topic[HALF].due == clock.now + 1000
    server.pass_time(1000)
    assert producer.answers(COMMIT).code == ResponseCode.SUCCESS
    assert bodies(wire) == [b"x"]


def test_a_commit_without_an_op_message_is_checked_again(
    server: Served, wire: Wire, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    sent = producer.half()
    with refusing(server.broker.parts.store, FULL, lambda topic, body: topic == OP):
        producer.commit_half(sent)
    assert "committed half message 0, but failed to store the decision (full)" in caplog.text
    server.pass_time(6_001)
    assert producer.answers(COMMIT).code == ResponseCode.SUCCESS
    assert bodies(wire) == [b"x", b"x"]


def test_a_half_message_without_a_unique_key_is_given_one(wire: Wire, producer: Producer) -> None:
    sent = wire.send("Tx", b"x", {"TRAN_MSG": "true", "PGROUP": "GID_tx"})
    key = sent.ext_fields["transactionId"]
    half = wire.messages(HALF)[-1]
    assert (half.properties["UNIQ_KEY"], half.properties["__transactionId__"]) == (key, key)
    producer.rollback(sent)


def test_properties_without_room_for_a_check(server: Served, wire: Wire, producer: Producer) -> None:
    producer.half(big="v" * (32_767 - 280))
    room = 32_767 - decode_record(bytes(wire.pull(HALF, 0).body)).store_size + 91 + len(HALF) + 1
    producer.half(big="v" * (32_767 - 280 + room))
    producer.half(b"behind")
    server.pass_time(6_001)
    assert producer.question()[1].body in (b"x", b"behind")
    assert wire.end(GIVEN_UP) >= 1


def test_unreadable_and_missing_messages_stop_nothing(
    server: Served, producer: Producer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(6):
        producer.half(b"%d" % number)
    store = server.broker.parts.store
    entries = store.get_entries
    monkeypatch.setattr(store, "get_entries", lambda *asked: [] if asked == (HALF, 0, 4, 1) else entries(*asked))
    producer.rollback(producer.half())
    monkeypatch.setattr(store, "get_min_offset", lambda topic, queue_id: 3)
    server.pass_time(6_001)
    assert producer.asked_about() == [b"3", b"5"]
    assert "retention removed the unsettled half messages 0 to 2" in caplog.text
    assert "skipped half message 4: unreadable record" in caplog.text
    monkeypatch.undo()


def test_a_message_that_cannot_be_stored_again_stays(
    server: Served, wire: Wire, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    producer.half(b"too large by now")
    producer.half(b"behind")
    large = PutResult(PutStatus.MESSAGE_ILLEGAL, reason="more than maxMessageSize")
    with refusing(server.broker.parts.store, large, lambda topic, body: body == b"too large by now"):
        server.pass_time(6_001)
        assert producer.question()[1].body == b"behind"
    assert "not moved (more than maxMessageSize)" in caplog.text
    assert wire.end(GIVEN_UP) == 0
