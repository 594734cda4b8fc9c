"""Transactions over the wire, with a clock of our own: what is stored, who is asked, what a stop or a kill leaves."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from spark_rocket.broker.transactions.half_messages import Half, decided_offsets
from spark_rocket.broker.transactions.service import TransactionalMessageService
from spark_rocket.model import TRANSACTION_GROUP, Message, MessageExt
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.record.layout import TRANSACTION_COMMIT
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.record.record import decode_record, encode_record
from spark_rocket.protocol.wire.bodies import HeartbeatData, ProducerData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.fastjson import loads_tolerant
from spark_rocket.protocol.wire.headers import CheckTransactionStateRequestHeader
from spark_rocket.remoting.client.client import RemotingClient
from spark_rocket.store.results import PutResult, PutStatus
from tests.broker import java_types as java
from tests.broker.wire import BROKER_PROPERTIES, SUBSCRIPTION, SUSPEND, Wire
from tests.golden import expected, extract_store, frame, frames
from tests.kit.brokers import served
from tests.store.helpers import START, Clock

HALF, OP, GIVEN_UP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GOLDEN_SIZES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1000,
}
MINUTES = 60_000


class Producer:
    """A producer of one group, bare: sends half messages, decides, and keeps what it is asked."""

    def __init__(self, address: str, clock: Clock, group: str = "GID_tx") -> None:
        self.asked: SimpleQueue[RemotingCommand] = SimpleQueue()
        self.client = RemotingClient(request_handler=self._keep)
        self.wire = Wire(self.client, address)
        self.group = group
        self.clock = clock

    def _keep(self, address: str, request: RemotingCommand) -> None:
        self.asked.put(request)

    def join(self) -> None:
        body = HeartbeatData("client", [ProducerData(self.group)], []).to_json()
        assert self.wire.ask(RequestCode.HEART_BEAT, body).code == ResponseCode.SUCCESS

    def half(self, body: bytes = b"x", topic: str = "Tx", *, queue_id: int = 1, **properties: str) -> RemotingCommand:
        every = {"TRAN_MSG": "true", "PGROUP": self.group, **properties}
        answer = self.wire.send(topic, body, every, queue_id=queue_id, f=4, g=self.clock.now)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    def end(self, sent: RemotingCommand, decision: int, **more: object) -> RemotingCommand:
        fields: dict[str, object] = {
            "producerGroup": self.group,
            "tranStateTableOffset": sent.ext_fields["queueOffset"],
            "commitLogOffset": decode_offset_msg_id(sent.ext_fields["msgId"])[1],
            "commitOrRollback": decision,
            "msgId": sent.ext_fields["transactionId"],
            "fromTransactionCheck": False,
        }
        return self.wire.ask(RequestCode.END_TRANSACTION, **{**fields, **more})

    def commit(self, sent: RemotingCommand) -> None:
        answer = self.end(sent, COMMIT)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def rollback(self, sent: RemotingCommand) -> None:
        assert self.end(sent, ROLLBACK).code == ResponseCode.SUCCESS

    def question(self) -> tuple[CheckTransactionStateRequestHeader, MessageExt]:
        request = self.asked.get(timeout=20)
        assert (request.code, request.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
        java.read_header(request.ext_fields, java.CHECK_TRANSACTION)
        (message,) = decode_messages(bytes(request.body))
        return CheckTransactionStateRequestHeader.from_ext(request.ext_fields), message

    def answer(self, decision: int) -> RemotingCommand:
        """Take a question and answer it."""
        header, message = self.question()
        return self.end_checked(header, message, decision)

    def end_checked(
        self, header: CheckTransactionStateRequestHeader, message: MessageExt, decision: int
    ) -> RemotingCommand:
        return self.wire.ask(
            RequestCode.END_TRANSACTION,
            producerGroup=message.properties["PGROUP"],
            tranStateTableOffset=header.tran_state_table_offset,
            commitLogOffset=header.commit_log_offset,
            commitOrRollback=decision,
            msgId=header.msg_id,
            transactionId=header.transaction_id,
            fromTransactionCheck=True,
        )

    def nothing_asked(self) -> bool:
        self.join()  # answered after whatever was sent before
        try:
            self.asked.get_nowait()
        except Empty:
            return True
        return False


@pytest.fixture
def serve(tmp_path: Path, clock: Clock) -> Callable[..., Any]:
    """Begins to serve ``tmp_path / "store"``, with one producer of group GID_tx; for ``with``."""
    from contextlib import contextmanager

    @contextmanager
    def begin(directory: Path = tmp_path / "store", *, join: bool = True, **settings: object) -> Iterator[Any]:
        with served(directory, clock, **settings) as (server, wire):
            producer = Producer(wire.address, clock)
            try:
                if join:
                    producer.join()
                yield server, wire, producer
            finally:
                producer.client.close()

    return begin


def progress(directory: Path) -> dict[str, Any]:
    """Half and op offsets that are on disk."""
    table = loads_tolerant((directory / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    return {topic: table.get(f"{topic}@{TRANSACTION_GROUP}", {}).get("0") for topic in (HALF, OP)}


def bodies(wire: Wire, topic: str = "Tx", **more: Any) -> list[bytes]:
    return [message.body for message in wire.messages(topic, **{"queue_id": 1, **more})]


def end_of(wire: Wire, topic: str) -> int:
    return int(wire.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=0).ext_fields["offset"])


# --- sending and deciding ---------------------------------------------------------------------------------------


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

        more = {"sysFlag": SUSPEND | SUBSCRIPTION, "suspendTimeoutMillis": 30_000, "tags": "t"}
        pull = wire.pull_later("Tx", 1, queue_id=1, **more)
        clock.now += 1234
        producer.commit(sent)
        (message,) = decode_messages(bytes(pull.result(20).body))
        assert (message.body, message.tags, message.queue_offset) == (b"paid", "t", 1)
        assert message.sys_flag == TRANSACTION_COMMIT
        assert message.prepared_transaction_offset == half.physical_offset
        assert message.properties == half.properties
        assert (message.born_timestamp, message.born_host) == (half.born_timestamp, half.born_host)
        assert message.store_timestamp == START + 1234
        (op,) = wire.messages(OP)
        assert (op.body, op.tags) == (b"0", "d")
    assert progress(tmp_path / "store") == {HALF: 1, OP: 1}


def test_a_rollback_is_never_seen_and_asked_for_no_more(serve: Any, clock: Clock, tmp_path: Path) -> None:
    with serve() as (server, wire, producer):
        producer.rollback(producer.half())
        clock.now += 10 * MINUTES
        server.wake()
        assert producer.nothing_asked()
        assert (bodies(wire), end_of(wire, HALF), end_of(wire, OP)) == ([], 1, 1)
    with serve() as (server, wire, producer):
        clock.now += 10 * MINUTES
        server.wake()
        assert producer.nothing_asked()
        assert (bodies(wire), end_of(wire, HALF)) == ([], 1)


def test_not_decided_is_neither_answered_nor_stored(serve: Any) -> None:
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
        assert end_of(wire, OP) == 0
        producer.commit(sent)


REFUSED = [
    ({"producerGroup": "other"}, ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
    ({"tranStateTableOffset": 1}, ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"),
    ({"commitLogOffset": 1}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
    ({"commitLogOffset": -1}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
    ({"commitLogOffset": 1 << 40}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
    ({"commitLogOffset": "ordinary"}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
    ({"commitLogOffset": "x"}, ResponseCode.SYSTEM_ERROR, "not a number"),
]


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_decisions_that_are_refused_change_nothing(serve: Any, decision: int) -> None:
    with serve() as (_server, wire, producer):
        properties = {"PGROUP": "GID_tx", "REAL_TOPIC": "Tx", "REAL_QID": "1"}
        ordinary = wire.send("Tx", b"ordinary", properties, queue_id=1)
        sent = producer.half()
        for fields, code, remark in REFUSED:
            if fields.get("commitLogOffset") == "ordinary":
                fields = {"commitLogOffset": decode_offset_msg_id(ordinary.ext_fields["msgId"])[1]}
            answer = producer.end(sent, decision, **fields)
            assert (answer.code, remark in answer.remark) == (code, True), (fields, answer.remark)
        assert (bodies(wire), end_of(wire, OP)) == ([b"ordinary"], 0)
        producer.commit(sent)


def test_a_second_decision_is_refused(serve: Any) -> None:
    with serve() as (_server, wire, producer):
        first, committed, rolled_back = producer.half(b"a"), producer.half(b"b"), producer.half(b"c")
        producer.commit(committed)
        producer.rollback(rolled_back)
        for sent in (committed, rolled_back):
            for decision in (COMMIT, ROLLBACK):
                answer = producer.end(sent, decision)
                assert (answer.code, answer.remark) == (
                    ResponseCode.SYSTEM_ERROR,
                    "The transaction was decided before",
                )
        producer.commit(first)
        assert producer.end(committed, COMMIT).code == ResponseCode.SYSTEM_ERROR  # settled and remembered
        assert bodies(wire) == [b"b", b"a"]


def test_sends_that_look_transactional(serve: Any) -> None:
    with serve() as (_server, wire, _producer):
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
        # Notes of ours in what somebody copied from a half message do not count.
        wire.send("Tx", b"copied", {"TRAN_MSG": "true", "TRANSACTION_CHECK_TIMES": "15"}, queue_id=1)
        assert "TRANSACTION_CHECK_TIMES" not in wire.messages(HALF, 1)[0].properties


def test_a_broker_that_takes_no_transactions(serve: Any) -> None:
    with serve(rejectTransactionMessage=True) as (_server, wire, _producer):
        answer = wire.send("Tx", b"x", {"TRAN_MSG": "true", "PGROUP": "g"}, f=4)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the broker[127.0.0.1] sending transaction message is forbidden"
        assert end_of(wire, HALF) == 0
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"rejectTransactionMessage=false")
        assert wire.send("Tx", b"x", {"TRAN_MSG": "true", "PGROUP": "g"}, f=4).code == ResponseCode.SUCCESS


# --- checks -----------------------------------------------------------------------------------------------------


def test_asked_after_6_s_then_every_30_s(serve: Any, clock: Clock) -> None:
    with serve() as (server, wire, producer):
        sent = producer.half(b"undecided", TAGS="t", UNIQ_KEY="key")
        clock.now += 6_000
        server.wake()
        assert producer.nothing_asked()
        clock.now += 1
        server.wake()
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
            clock.now += 29_999
            server.wake()
            assert producer.nothing_asked()
            clock.now += 1
            server.wake()
        header, message = producer.question()
        assert producer.end_checked(header, message, COMMIT).code == ResponseCode.SUCCESS
        (committed,) = wire.messages("Tx", queue_id=1)
        assert committed.prepared_transaction_offset == header.commit_log_offset
        assert committed.properties == message.properties
        clock.now += 10 * MINUTES
        server.wake()
        assert producer.nothing_asked()
        assert end_of(wire, HALF) == 5


def test_given_up_after_15_checks(serve: Any, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with serve() as (server, wire, producer):
        sent = producer.half(b"nobody knows")
        clock.now += 6_001
        for times in range(1, 16):
            server.wake()
            assert producer.question()[1].properties["TRANSACTION_CHECK_TIMES"] == str(times)
            clock.now += 30_000
        assert end_of(wire, GIVEN_UP) == 0
        with caplog.at_level(logging.ERROR):
            server.wake()
        assert "transaction of group GID_tx" in caplog.text
        (given_up,) = wire.messages(GIVEN_UP)
        assert (given_up.body, given_up.properties["TRANSACTION_CHECK_TIMES"]) == (b"nobody knows", "15")
        clock.now += 10 * MINUTES
        server.wake()
        assert producer.nothing_asked()
        assert (end_of(wire, HALF), end_of(wire, GIVEN_UP)) == (16, 1)
        producer.commit(sent)  # late, but it is the sender's word
        assert bodies(wire) == [b"nobody knows"]


def give_up(server: Any, wire: Wire, producer: Producer, clock: Clock) -> str:
    """The id of a message that is in TRANS_CHECK_MAX_TIME_TOPIC, after one check."""
    clock.now += 6_001
    for _ in range(2):
        server.wake()
        clock.now += 30_000
    producer.question()
    (given_up,) = wire.messages(GIVEN_UP)
    return given_up.offset_msg_id


def test_what_was_given_up_is_checked_again_when_a_tool_asks_for_it(serve: Any, clock: Clock) -> None:
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


def test_only_what_was_given_up_is_checked_again(serve: Any, clock: Clock) -> None:
    with serve(transactionCheckMax=1) as (server, wire, producer):
        sent = producer.half(b"late")
        message_id = give_up(server, wire, producer, clock)
        assert wire.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=message_id).code == ResponseCode.SUCCESS
        producer.question()
        producer.commit(sent)  # the sender decides after all: that is for the one that waits anew, too
        clock.now += 30_000
        server.wake()
        assert producer.nothing_asked()
        assert bodies(wire) == [b"late"]
        for other in (wire.messages("Tx", queue_id=1)[0].offset_msg_id, sent.ext_fields["msgId"], "7F" * 16, "x"):
            assert wire.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=other).code == ResponseCode.SYSTEM_ERROR


def test_what_is_older_than_the_log_is_kept_is_given_up(serve: Any, clock: Clock) -> None:
    with serve(fileReservedTime=1) as (server, wire, producer):
        producer.half(b"old")
        clock.now += 60 * MINUTES
        producer.half(b"new")
        clock.now += 6_001
        server.wake()
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
        clock.now += 1001
        server.wake()
        producer.question()
        clock.now += 1999
        server.wake()
        assert producer.nothing_asked()
        wire.ask(RequestCode.UPDATE_BROKER_CONFIG, b"transactionCheckMax=2")
        clock.now += 1
        server.wake()
        producer.question()
        clock.now += 2000
        server.wake()
        assert end_of(wire, GIVEN_UP) == 1


def test_a_young_message_holds_up_those_behind_it_until_it_is_due(serve: Any, clock: Clock) -> None:
    with serve() as (server, _wire, producer):
        producer.half(b"0")
        decided = producer.half(b"1")
        clock.now += 3_000
        producer.half(b"2")
        producer.commit(decided)
        clock.now += 3_001
        server.wake()
        assert producer.question()[1].body == b"0"
        assert producer.nothing_asked()
        clock.now += 30_000  # a round every 30 s, as long as somebody is asked
        server.wake()
        assert [producer.question()[1].body for _ in range(2)] == [b"2", b"0"]


def test_a_time_of_immunity(serve: Any, clock: Clock) -> None:
    with serve() as (server, wire, producer):
        patient = producer.half(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        producer.half(b"hasty", CHECK_IMMUNITY_TIME_IN_SECONDS="2")
        producer.half(b"usual", CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
        clock.now += 2_001
        server.wake()
        assert producer.nothing_asked()  # behind one that is young
        clock.now += 4_000
        server.wake()
        assert [producer.question()[1].body for _ in range(2)] == [b"hasty", b"usual"]
        assert producer.nothing_asked()
        for _ in range(3):
            clock.now += 30_000
            server.wake()
            assert {producer.question()[1].body for _ in range(2)} == {b"hasty", b"usual"}
        assert producer.nothing_asked()
        clock.now = START + 100_001
        answer = producer.end(patient, COMMIT)
        assert (answer.code, bodies(wire)) == (ResponseCode.ILLEGAL_OPERATION, [])
        clock.now = START + 6_001 + 4 * 30_000
        server.wake()
        asked = {producer.question()[1].body: None for _ in range(3)}
        assert set(asked) == {b"patient", b"hasty", b"usual"}


def test_a_message_in_its_immunity_is_decided_by_its_first_offset(serve: Any, clock: Clock) -> None:
    with serve() as (server, wire, producer):
        sent = producer.half(b"patient", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
        clock.now += 6_001
        for _ in range(20):  # more often than transactionCheckMax: these are no checks
            server.wake()
            clock.now += 30_000
        assert producer.nothing_asked()
        assert end_of(wire, HALF) == 21
        producer.commit(sent)
        assert wire.messages(OP)[0].body == b"0,20"
        assert bodies(wire) == [b"patient"]
        assert "TRAN_PREPARED_QUEUE_OFFSET" not in wire.messages("Tx", queue_id=1)[0].properties
        clock.now += 120 * MINUTES
        server.wake()
        assert producer.nothing_asked()
        assert end_of(wire, HALF) == 21


def test_a_decision_about_the_first_settles_the_copy_and_the_other_way_round(serve: Any, clock: Clock) -> None:
    with serve() as (server, wire, producer):
        late, asked = producer.half(b"late"), producer.half(b"asked")
        clock.now += 6_001
        server.wake()
        questions = {message.body: (header, message) for header, message in (producer.question(), producer.question())}
        producer.commit(late)
        assert producer.end_checked(*questions[b"late"], COMMIT).remark == "The transaction was decided before"
        assert producer.end_checked(*questions[b"asked"], ROLLBACK).code == ResponseCode.SUCCESS
        assert producer.end(asked, COMMIT).remark == "The transaction was decided before"
        clock.now += 10 * MINUTES
        server.wake()
        assert producer.nothing_asked()
        assert (bodies(wire), end_of(wire, HALF)) == ([b"late"], 4)


def test_members_of_a_group_are_asked_in_turn_and_no_others(serve: Any, clock: Clock) -> None:
    with serve() as (server, wire, producer):
        colleague, stranger = Producer(wire.address, clock), Producer(wire.address, clock, "GID_other")
        try:
            colleague.join()
            stranger.join()
            for number in range(10):
                producer.half(b"%d" % number)
            clock.now += 6_001
            server.wake()
            mine = [producer.question()[1].body for _ in range(5)]
            theirs = [colleague.question()[1].body for _ in range(5)]
            assert sorted(mine + theirs) == [b"%d" % number for number in range(10)]
            assert stranger.nothing_asked()
        finally:
            colleague.client.close()
            stranger.client.close()


def test_nobody_there_to_be_asked_counts_too(serve: Any, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with serve(join=False) as (server, _wire, producer):
        for _ in range(5):
            producer.half()
        clock.now += 6_001
        server.wake()
        assert caplog.text.count("No producer of group GID_tx is there") == 1  # not once for each
        producer.join()
        clock.now += 30_000
        server.wake()
        assert producer.question()[1].properties["TRANSACTION_CHECK_TIMES"] == "2"


def test_a_large_round_takes_turns_with_others(serve: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as (server, wire, producer):
        for number in range(50):
            producer.half(b"%d" % number)
        service: TransactionalMessageService = server.broker.service.transactions
        ticks = iter(range(1_000_000))
        monkeypatch.setattr(service, "_timer", lambda: float(next(ticks)))
        clock.now += 6_001
        assert server.run(lambda: service.check(clock.now, 0.5)) == clock.now  # one message, then somebody else
        assert end_of(wire, HALF) == 51
        server.wake()
        assert [producer.question()[1].body for _ in range(50)] == [b"%d" % number for number in range(50)]
        assert end_of(wire, HALF) == 100


def test_an_idle_broker_pays_nothing(serve: Any, clock: Clock) -> None:
    with serve() as (server, _wire, producer):
        service = server.broker.service
        driver = service.drivers[HALF]
        server.run(lambda: None)
        assert driver.due is None
        assert service.transactions.mark() is None
        producer.commit(producer.half())
        assert driver.due == clock.now + 6_001
        clock.now += 6_001
        server.wake()
        assert driver.due is None


# --- when the store refuses -------------------------------------------------------------------------------------


def test_a_full_disk_puts_checks_off_and_loses_none(serve: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as (server, wire, producer):
        sent = producer.half()
        store = server.broker.service.store
        put = store.put_message
        monkeypatch.setattr(
            store, "put_message", lambda *_, **__: PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full")
        )
        for decision in (COMMIT, ROLLBACK):
            answer = producer.end(sent, decision)
            assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "full")
        clock.now += 6_001
        server.wake()
        assert producer.nothing_asked()
        assert server.broker.service.drivers[HALF].due == clock.now + 1000
        monkeypatch.setattr(store, "put_message", put)
        clock.now += 1000
        server.wake()
        assert producer.answer(COMMIT).code == ResponseCode.SUCCESS
        assert bodies(wire) == [b"x"]


def test_a_commit_that_could_not_be_noted_is_asked_for_again(
    serve: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as (server, wire, producer):
        sent = producer.half()
        store = server.broker.service.store
        put = store.put_message

        def no_ops(topic: str, *rest: Any, **more: Any) -> PutResult:
            if topic == OP:
                return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="full")
            return put(topic, *rest, **more)

        monkeypatch.setattr(store, "put_message", no_ops)
        producer.commit(sent)
        assert "Half message 0 is committed, but this could not be noted (full)" in caplog.text
        monkeypatch.setattr(store, "put_message", put)
        clock.now += 6_001
        server.wake()
        assert producer.answer(COMMIT).code == ResponseCode.SUCCESS
        assert bodies(wire) == [b"x", b"x"]


def test_a_half_message_without_a_unique_key_is_given_one(serve: Any) -> None:
    with serve() as (_, wire, producer):
        sent = wire.send("Tx", b"x", {"TRAN_MSG": "true", "PGROUP": "GID_tx"})
        key = sent.ext_fields["transactionId"]
        half = wire.messages(HALF)[-1]
        assert (half.properties["UNIQ_KEY"], half.properties["__transactionId__"]) == (key, key)
        producer.rollback(sent)


def test_properties_that_have_no_room_for_a_check(serve: Any, clock: Clock) -> None:
    with serve() as (server, wire, producer):
        producer.half(big="v" * (32_767 - 280))
        room = 32_767 - decode_record(bytes(wire.pull(HALF, 0).body)).store_size + 91 + len(HALF) + 1
        producer.half(big="v" * (32_767 - 280 + room))
        producer.half(b"behind")
        clock.now += 6_001
        server.wake()
        assert producer.question()[1].body in (b"x", b"behind")
        assert end_of(wire, GIVEN_UP) >= 1


def test_what_cannot_be_read_or_is_gone_holds_nothing_up(
    serve: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as (server, _, producer):
        for number in range(6):
            producer.half(b"%d" % number)
        service = server.broker.service
        read = service.transactions._record
        monkeypatch.setattr(
            service.transactions,
            "_record",
            lambda topic, queue_id, offset: None if offset == 4 else read(topic, queue_id, offset),
        )
        producer.rollback(producer.half())
        monkeypatch.setattr(service.store, "get_min_offset", lambda topic, queue_id: 3)
        clock.now += 6_001
        server.wake()
        assert [producer.question()[1].body for _ in range(2)] == [b"3", b"5"]
        assert producer.nothing_asked()
        assert "Half messages 0 to 2 were removed before they were settled." in caplog.text
        assert "Half message 4 cannot be read: it is passed over." in caplog.text
        monkeypatch.undo()


def test_what_cannot_be_stored_again_is_left_where_it_is(
    serve: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as (server, wire, producer):
        producer.half(b"too large by now")
        producer.half(b"behind")
        store = server.broker.service.store
        put = store.put_message

        def picky(topic: str, queue_id: int, body: bytes, *rest: Any, **more: Any) -> PutResult:
            if bytes(body) == b"too large by now":
                return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="more than maxMessageSize")
            return put(topic, queue_id, body, *rest, **more)

        monkeypatch.setattr(store, "put_message", picky)
        clock.now += 6_001
        server.wake()
        assert producer.question()[1].body == b"behind"
        assert "it is left there (more than maxMessageSize)" in caplog.text
        monkeypatch.undo()
        assert end_of(wire, GIVEN_UP) == 0


# --- stops, kills, and stores of others -------------------------------------------------------------------------


def test_a_clean_stop_keeps_what_is_pending_and_what_is_decided(serve: Any, clock: Clock, tmp_path: Path) -> None:
    with serve() as (server, wire, producer):
        sent = [producer.half(b"%d" % number) for number in range(6)]
        producer.commit(sent[1])
        producer.rollback(sent[2])
        producer.commit(sent[4])
    assert progress(tmp_path / "store") == {HALF: None, OP: None}
    with serve() as (server, wire, producer):
        assert bodies(wire) == [b"1", b"4"]
        assert producer.end(sent[2], COMMIT).remark == "The transaction was decided before"
        producer.commit(sent[0])
        clock.now += 29_999
        server.wake()
        assert producer.nothing_asked()  # members of the group get 30 s to find their broker again
        clock.now += 1
        server.wake()
        assert [producer.question()[1].body for _ in range(2)] == [b"3", b"5"]
        assert producer.nothing_asked()
    assert progress(tmp_path / "store") == {HALF: 6, OP: 4}
    clock.now += 30_000
    with serve() as (server, wire, producer):
        server.wake()
        while producer.nothing_asked():
            clock.now += 30_000
            server.wake()
        assert end_of(wire, HALF) >= 10


def killed(directory: Path, image: Path) -> Path:
    """What a kill would leave now: mapped files are as written, nothing is closed."""
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
        producer.commit(sent[0])
        image({b"0"}, {b"1", b"2", b"3"})
        producer.rollback(sent[2])
        image({b"0"}, {b"1", b"3"})
        clock.now += 6_001
        server.wake()
        questions = [producer.question() for _ in range(2)]
        image({b"0"}, {b"1", b"3"})  # between the copies and the saved progress
        assert producer.end_checked(*questions[0], COMMIT).code == ResponseCode.SUCCESS
        image({b"0", b"1"}, {b"3"})
        server.run(server.broker.service.saving.save_offsets)
        server.run(server.broker.service.store.flush)
        clock.now += 30_000
        server.wake()
        assert producer.end_checked(*producer.question(), ROLLBACK).code == ResponseCode.SUCCESS
        image({b"0", b"1"}, set())
    for directory, committed, pending in images:
        with serve(directory, **GOLDEN_SIZES) as (server, wire, producer):
            assert set(bodies(wire)) == committed, directory
            clock.now += 60_000
            server.wake()
            asked = [producer.question() for _ in pending]
            assert {message.body for _, message in asked} == pending, directory
            assert producer.nothing_asked(), directory
            for header, message in asked:
                assert producer.end_checked(header, message, COMMIT).code == ResponseCode.SUCCESS
            assert sorted(bodies(wire)) == sorted(committed | pending), directory


def test_a_kill_between_the_message_and_its_op_may_bring_it_twice(serve: Any, clock: Clock, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with serve(store, **GOLDEN_SIZES) as (server, wire, producer):
        sent = producer.half()
        service = server.broker.service
        put = service.store.put_message

        def kill_before_op(topic: str, *rest: Any, **more: Any) -> PutResult:
            if topic == OP:
                killed(store, tmp_path / "image")
            return put(topic, *rest, **more)

        service.store.put_message = kill_before_op
        producer.commit(sent)
        service.store.put_message = put
    clock.now += 6_001
    with serve(tmp_path / "image", **GOLDEN_SIZES) as (server, wire, producer):
        assert bodies(wire) == [b"x"]
        clock.now += 30_000
        server.wake()
        assert producer.answer(COMMIT).code == ResponseCode.SUCCESS
        assert bodies(wire) == [b"x", b"x"]


def test_progress_is_saved_only_when_it_is_on_disk(serve: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(flushConsumerOffsetInterval=3_600_000) as (server, _wire, producer):
        producer.commit(producer.half())
        service = server.broker.service
        flushed: list[Any] = []
        monkeypatch.setattr(service.store, "when_flushed", lambda offset, callback: flushed.append((offset, callback)))
        end = service.store.max_physical_offset
        for is_flushed in (False, True):
            assert service.offsets.query(TRANSACTION_GROUP, HALF, 0) == -1
            flushed.clear()
            server.run(service.saving.save_offsets)
            server.run(lambda: None)
            ((offset, callback),) = flushed
            assert offset == end
            callback(is_flushed)
            server.do(service.settle_all())
        assert (service.offsets.query(TRANSACTION_GROUP, HALF, 0), service.offsets.query(TRANSACTION_GROUP, OP, 0)) == (
            1,
            1,
        )
        flushed.clear()
        server.run(service.saving.save_offsets)
        server.do(service.settle_all())
        assert flushed == []


def test_a_queue_that_was_cut(serve: Any, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serve() as (_, _, producer):
        producer.commit(producer.half())
    file = tmp_path / "store" / "config" / "consumerOffset.json"
    file.write_text(file.read_text().replace("{0:1", "{0:9"))
    with serve() as (server, _wire, producer):
        assert "ends at 1, not 9: it was cut by recovery" in caplog.text
        producer.half(b"new")
        clock.now += 6_001
        server.wake()
        assert producer.question()[1].body == b"new"


@pytest.mark.parametrize("body", [b"1,3,", b"1,3", b"1,nonsense,3,99999999999999999999,77", b",,1,,3,,"])
def test_op_messages_of_both_kinds_are_read(serve: Any, clock: Clock, body: bytes) -> None:
    with serve() as (server, _, producer):
        for number in range(5):
            producer.half(b"%d" % number)
        store = server.broker.service.store
        born = {"born_timestamp": clock.now, "born_host": ("127.0.0.1", 1)}
        for text, properties in ((body, b"WAIT\x01true\x02TAGS\x01d"), (b"4", b"TAGS\x01other"), (b"0", b"TAGS\x01d")):
            server.run(lambda text=text, properties=properties: store.put_message(OP, 0, text, properties, **born))
        server.broker.service.transactions.mark = lambda: None  # it takes all ops for its own
    with serve() as (server, _wire, producer):
        clock.now += 30_000
        server.wake()
        assert [producer.question()[1].body for _ in range(2)] == [b"2", b"4"]
        assert producer.nothing_asked()


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_in_apaches_stores_the_decided_stay_decided_and_the_others_are_asked_for(
    serve: Any, clock: Clock, tmp_path: Path, name: Any
) -> None:
    directory = extract_store(name, tmp_path)
    rows = [row for row in expected(name) if row["topic"] == "GoldenTx"]
    clock.now = max(row["storeTimestamp"] for row in expected(name)) + 6_001
    with serve(directory, join=False, **GOLDEN_SIZES) as (server, wire, _):
        producer = Producer(wire.address, clock, "GID_golden_tx")
        try:
            producer.join()
            clock.now += 30_000
            server.wake()
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
            producer.client.close()
    assert progress(directory) == {HALF: 7, OP: 6}


def test_recorded_decisions_and_questions(serve: Any, clock: Clock) -> None:
    """What a real broker asked, and the answers of a real client in both spellings, against our own."""
    with serve(join=False) as (server, wire, _):
        producer = Producer(wire.address, clock, "GID_golden_tx")
        try:
            producer.join()
            asked = frame("json-0056-br-code39-request")
            recorded = RemotingCommand.decode(memoryview(asked.raw)[4:])
            (theirs,) = decode_messages(bytes(recorded.body))
            properties = {
                key: value
                for key, value in theirs.properties.items()
                if key not in ("REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES", "WAIT", "CLUSTER")
            }
            producer.half(theirs.body, theirs.topic, queue_id=theirs.queue_id, **properties)
            clock.now += 6_001
            server.wake()
            request = producer.asked.get(timeout=20)
            assert (request.code, request.flag) == (recorded.code, recorded.flag)
            assert set(request.ext_fields) == set(recorded.ext_fields)
            for name in ("msgId", "transactionId"):
                assert request.ext_fields[name] == recorded.ext_fields[name]
            (ours,) = decode_messages(bytes(request.body))
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
            producer.client.close()


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
    assert Half.view(whole) is None
    assert Half.view(None) is None
    assert Half.view(record(topic=HALF)[:-1]) is None


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
def test_half_messages_that_do_not_say_where_they_belong(place: dict[str, str]) -> None:
    half = Half.view(record(properties=encode_properties(place), topic=HALF))
    assert half is not None
    with pytest.raises(ValueError, match="REAL_TOPIC and REAL_QID"):
        half.real_place()


def test_a_first_offset_that_cannot_be() -> None:
    half = Half.view(record(properties=b"TRAN_PREPARED_QUEUE_OFFSET\x016", topic=HALF))
    assert half is not None
    assert (half.first, half.is_copy) == (5, False)
