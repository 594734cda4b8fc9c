"""Half messages and the decisions of their senders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.transactions import transactional_message_service
from spark_rocket.model import Message
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from tests.broker.transactions.scene import COMMIT, HALF, MINUTES, OP, ROLLBACK, UNKNOWN, Producer, bodies, progress
from tests.broker.wire import BROKER_PROPERTIES, Wire, messages_of
from tests.kit.clock import START, Clock

pytestmark = pytest.mark.live


def test_a_commit_from_the_half_message_to_the_consumer(serve: Any, tmp_path: Path, clock: Clock) -> None:
    with serve() as (_server, wire, producer):
        wire.send("Tx", b"before", queue_id=1)
        sent = producer.half(b"paid", TAGS="t", KEYS="k", DELAY="3", TIMER_DELAY_SEC="9", UNIQ_KEY="key")
        assert (sent.ext_fields["queueId"], sent.ext_fields["queueOffset"]) == ("1", "0")
        assert sent.ext_fields["transactionId"] == "key"
        assert "recallHandle" not in sent.ext_fields
        (half,) = wire.messages(HALF)
        assert half.offset_msg_id == sent.ext_fields["msgId"]
        assert half.properties == {
            "TRAN_MSG": "true",
            "PGROUP": "GID_tx",
            "TAGS": "t",
            "KEYS": "k",
            "UNIQ_KEY": "key",
            "REAL_TOPIC": "Tx",
            "REAL_QID": "1",
            "__transactionId__": "key",
            **BROKER_PROPERTIES,
        }
        assert (half.sys_flag, half.prepared_transaction_offset) == (0, 0)
        assert bodies(wire) == [b"before"]

        pull = wire.hold("Tx", 1, queue_id=1, tags="t")
        clock.now += 1234
        producer.commit_half(sent)
        (message,) = messages_of(pull.result(20))
        assert (message.body, message.tags, message.queue_offset) == (b"paid", "t", 1)
        assert message.sys_flag == TRANSACTION_COMMIT
        assert message.prepared_transaction_offset == half.physical_offset
        assert message.properties == half.properties
        assert (message.born_timestamp, message.born_host) == (half.born_timestamp, half.born_host)
        assert message.store_timestamp == START + 1234
        (op,) = wire.messages(OP)
        assert (op.body, op.tags) == (b"0", "d")
    assert progress(tmp_path / "store") == {HALF: 1, OP: 1}


def test_a_rollback_is_never_delivered_and_not_checked_again(serve: Any, clock: Clock, tmp_path: Path) -> None:
    with serve() as (server, wire, producer):
        producer.rollback(producer.half())
        server.pass_time(10 * MINUTES)
        assert producer.nothing_asked()
        assert (bodies(wire), wire.end(HALF), wire.end(OP)) == ([], 1, 1)
    with serve() as (server, wire, producer):
        server.pass_time(10 * MINUTES)
        assert producer.nothing_asked()
        assert (bodies(wire), wire.end(HALF)) == ([], 1)


def test_decisions_that_waited_for_an_older_one_are_settled_in_steps(
    serve: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_message_service, "_MAX_STEPS", 1)
    with serve() as (server, _wire, producer):
        first, *later = [producer.half(b"%d" % number) for number in range(5)]
        for half in later:
            producer.rollback(half)
        producer.commit_half(first)
        undecided = producer.half(b"undecided")
        server.pass_time(2 * MINUTES)
        assert set(producer.asked_about()) == {b"undecided"}
        producer.rollback(undecided)
        server.pass_time(10 * MINUTES)
        assert producer.nothing_asked()


def test_an_undecided_transaction_has_no_response_and_no_record(serve: Any) -> None:
    with serve() as (_server, wire, producer):
        sent = producer.half()
        for state in (UNKNOWN, 4, 7):
            wire.tell(
                RequestCode.END_TRANSACTION,
                producerGroup="GID_tx",
                tranStateTableOffset=0,
                commitLogOffset=decode_offset_msg_id(sent.ext_fields["msgId"])[1],
                commitOrRollback=state,
                msgId="key",
            )
        assert wire.end(OP) == 0
        producer.commit_half(sent)


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"producerGroup": "other"}, ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
    ({"tranStateTableOffset": 1}, ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"),
    ({"commitLogOffset": 1}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
    ({"commitLogOffset": -1}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
    ({"commitLogOffset": 1 << 40}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
    ({"commitLogOffset": "ordinary"}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
    ({"commitLogOffset": "x"}, ResponseCode.SYSTEM_ERROR, "has an invalid number"),
]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_decisions_that_are_refused_change_nothing(wire: Wire, producer: Producer, decision: int) -> None:
    properties = {"PGROUP": "GID_tx", "REAL_TOPIC": "Tx", "REAL_QID": "1"}
    ordinary = wire.send("Tx", b"ordinary", properties, queue_id=1)
    sent = producer.half()
    for fields, code, remark in REFUSED:
        if fields.get("commitLogOffset") == "ordinary":
            fields = {"commitLogOffset": decode_offset_msg_id(ordinary.ext_fields["msgId"])[1]}
        answer = producer.decide(sent, decision, **fields)
        assert (answer.code, remark in (answer.remark or "")) == (code, True), (fields, answer.remark)
    assert (bodies(wire), wire.end(OP)) == ([b"ordinary"], 0)
    producer.commit_half(sent)


def test_a_second_decision_is_refused(wire: Wire, producer: Producer) -> None:
    first, committed, rolled_back = producer.half(b"a"), producer.half(b"b"), producer.half(b"c")
    producer.commit_half(committed)
    producer.rollback(rolled_back)
    for sent in (committed, rolled_back):
        for decision in (COMMIT, ROLLBACK):
            answer = producer.decide(sent, decision)
            assert (answer.code, answer.remark) == (
                ResponseCode.SYSTEM_ERROR,
                "The transaction was decided before",
            )
    producer.commit_half(first)
    assert producer.decide(committed, COMMIT).code == ResponseCode.SYSTEM_ERROR  # settled and remembered
    assert bodies(wire) == [b"b", b"a"]


def test_sends_that_look_transactional(wire: Wire) -> None:
    wire.send("Tx", b"false", {"TRAN_MSG": "false"}, queue_id=1)
    wire.send("Tx", b"Java's parseBoolean", {"TRAN_MSG": "TRUE", "PGROUP": "g"}, queue_id=1)
    wire.send("%RETRY%g", b"consumed again", {"TRAN_MSG": "true", "PGROUP": "g"}, f=4, j=1)
    wire.send("%RETRY%g", b"consumed too often", {"TRAN_MSG": "true", "PGROUP": "g"}, j=16)
    assert bodies(wire) == [b"false"]
    assert bodies(wire, HALF, queue_id=0) == [b"Java's parseBoolean"]
    (again,) = wire.messages("%RETRY%g")
    assert (again.body, again.sys_flag) == (b"consumed again", 0)
    assert bodies(wire, "%DLQ%g", queue_id=0) == [b"consumed too often"]
    batch = wire.send_batch("Tx", [Message("Tx", b"b", {"TRAN_MSG": "true"})])
    assert (batch.code, batch.remark) == (
        ResponseCode.MESSAGE_ILLEGAL,
        "transactional messages cannot be sent in a batch",
    )
    # Our properties in a copy of a half message are ignored.
    wire.send("Tx", b"copied", {"TRAN_MSG": "true", "TRANSACTION_CHECK_TIMES": "15"}, queue_id=1)
    assert "TRANSACTION_CHECK_TIMES" not in wire.messages(HALF, 1)[0].properties


def test_a_broker_that_rejects_transactions(serve: Any) -> None:
    with serve(rejectTransactionMessage=True) as (_server, wire, _producer):
        answer = wire.send("Tx", b"x", {"TRAN_MSG": "true", "PGROUP": "g"}, f=4)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the broker[127.0.0.1] sending transaction message is forbidden"
        assert wire.end(HALF) == 0
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"rejectTransactionMessage=false")
        assert wire.send("Tx", b"x", {"TRAN_MSG": "true", "PGROUP": "g"}, f=4).code == ResponseCode.SUCCESS
