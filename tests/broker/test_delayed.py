"""Messages with a delay level or a delivery time: stored records, responses, and delivery when due."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, TypeVar

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.delivery.delay_rules import DelayRules, PendingPlace
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.client import Producer
from spark_rocket.errors import RefusedError
from spark_rocket.model import Message
from spark_rocket.protocol.ids import RecallMessageHandle
from spark_rocket.protocol.record.record import decode_record
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.json import loads_tolerant
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.broker.wire import BROKER_PROPERTIES, Wire, bodies_of, messages_of
from tests.kit.brokers import served
from tests.kit.clock import START, Clock

pytestmark = pytest.mark.live

T = TypeVar("T")
SCHEDULE, TIMER = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
NOW = 1_795_230_000_250
DAY = 86_400_000
REAL = {"REAL_TOPIC": "T", "REAL_QID": "3"}


# --- what a message becomes -------------------------------------------------------------------------------------


def rules(**settings: object) -> DelayRules:
    return DelayRules(BrokerConfig.from_properties(settings), lambda: NOW)


def timer(due: int) -> PendingPlace:
    return PendingPlace(TIMER, 0, due, due + 1)


LEVELS = [
    ({"DELAY": "1"}, PendingPlace(SCHEDULE, 0, NOW + 1000), {"DELAY": "1", **REAL}),
    ({"DELAY": "18"}, PendingPlace(SCHEDULE, 17, NOW + 7_200_000), {"DELAY": "18", **REAL}),
    ({"DELAY": "+19"}, PendingPlace(SCHEDULE, 17, NOW + 7_200_000), {"DELAY": "18", **REAL}),
    ({"DELAY": "0"}, None, {"DELAY": "0"}),
    ({"DELAY": "-3"}, None, {"DELAY": "-3"}),
    ({"DELAY": ""}, None, {"DELAY": ""}),
    ({"k": "v"}, None, {"k": "v"}),
    ({"DELAY": "2", "REAL_TOPIC": "mine"}, PendingPlace(SCHEDULE, 1, NOW + 5000), {"DELAY": "2", **REAL}),
    (
        {"TIMER_DELIVER_MS": "x", "DELAY": "2", "TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "1", "k": "v"},
        PendingPlace(SCHEDULE, 1, NOW + 5000),
        {"DELAY": "2", "k": "v", **REAL},
    ),
]
TIMES = [
    ({"TIMER_DELIVER_MS": "1795230005999"}, 1795230005000),
    ({"TIMER_DELIVER_MS": "1795230006000"}, 1795230005000),
    ({"TIMER_DELIVER_MS": "1795230006001"}, 1795230006000),
    ({"TIMER_DELIVER_MS": str(NOW + 1)}, 1795230000000),
    ({"TIMER_DELAY_SEC": "2"}, 1795230002000),
    ({"TIMER_DELAY_MS": "750"}, 1795230000000),
    ({"TIMER_DELAY_MS": "751"}, 1795230001000),
    ({"TIMER_DELAY_MS": "9000", "TIMER_DELAY_SEC": "2", "TIMER_DELIVER_MS": "1"}, 1795230002000),
    ({"TIMER_DELAY_MS": "9000", "TIMER_DELIVER_MS": "1"}, 1795230009000),
    ({"TIMER_DELAY_SEC": "259200"}, NOW - 250 + 3 * DAY),
    ({"TIMER_DELAY_SEC": "5", "TIMER_DEL_UNIQKEY": "T+key"}, 1795230005000),
    ({"DELAY": "0", "TIMER_DELAY_SEC": "5"}, 1795230005000),
]


@pytest.mark.parametrize(("properties", "waiting", "stored"), LEVELS)
def test_a_delay_level(properties: dict[str, str], waiting: PendingPlace | None, stored: dict[str, str]) -> None:
    properties = dict(properties)
    assert rules().apply(properties, "T", 3) == waiting
    assert properties == stored


@pytest.mark.parametrize(("properties", "due"), TIMES)
def test_a_delivery_time(properties: dict[str, str], due: int) -> None:
    changed = dict(properties)
    assert rules().apply(changed, "T", 3) == timer(due)
    assert changed == {**properties, **REAL, "TIMER_OUT_MS": str(due)}


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELIVER_MS": str(NOW)},
        {"TIMER_DELIVER_MS": "-5"},
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_MS": "-1"},
        {"TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": "1"},  # as one that the timer has delivered
        {"TIMER_DEL_UNIQKEY": "T+key"},
    ],
)
def test_no_time_or_a_past_time_makes_an_ordinary_message(properties: dict[str, str]) -> None:
    changed = dict(properties)
    assert rules().apply(changed, "T", 3) is None
    assert changed == properties


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "259201"},
        {"TIMER_DELIVER_MS": str(NOW + 3 * DAY + 1)},
        {"TIMER_DELIVER_MS": str(NOW), "TIMER_DEL_UNIQKEY": "T+key"},
    ],
)
def test_an_invalid_time(properties: dict[str, str]) -> None:
    with pytest.raises(RefusedError, match="should not be bigger than the max delay 259200000ms") as caught:
        rules().apply(properties, "T", 3)
    assert caught.value.response_code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("TIMER_DELIVER_MS", "tomorrow", "'tomorrow': use a whole number of milliseconds"),
        ("TIMER_DELAY_SEC", "", "'': use a whole number of seconds"),
        ("TIMER_DELAY_MS", "1.5", "'1.5': use a whole number of milliseconds"),
        ("TIMER_DELAY_MS", "9" * 5000, f"'{'9' * 20}': use a whole number of milliseconds"),
        ("DELAY", "abc", "'abc': use the number of a delay level"),
    ],
)
def test_a_time_that_is_not_a_number(name: str, text: str, complaint: str) -> None:
    with pytest.raises(RefusedError) as caught:
        rules().apply({name: text}, "T", 3)
    assert caught.value.message == f"invalid property {name} {complaint}"
    assert caught.value.response_code == ResponseCode.MESSAGE_ILLEGAL


def test_effects_of_the_settings() -> None:
    assert rules(messageDelayLevel="1s 3d").apply({"DELAY": "7"}, "T", 3) == PendingPlace(SCHEDULE, 1, NOW + 3 * DAY)
    for given, taken in ((100, 100), (150, 100), (200, 200), (499, 200), (500, 500), (5000, 1000), (1, 100)):
        assert rules(timerPrecisionMs=given).apply({"TIMER_DELAY_MS": "1749"}, "T", 3) == timer(
            (NOW + 1748) // taken * taken
        )
    with pytest.raises(RefusedError, match="max delay 1000ms"):
        rules(timerMaxDelaySec=1).apply({"TIMER_DELAY_MS": "1001"}, "T", 3)
    off = rules(timerWheelEnable=False)
    with pytest.raises(RefusedError, match="timerWheelEnable is false") as caught:
        off.apply({"TIMER_DELAY_MS": "1001"}, "T", 3)
    assert caught.value.response_code == ResponseCode.SYSTEM_ERROR
    assert off.apply({"DELAY": "1"}, "T", 3) is not None


def test_a_retry_is_not_recalled() -> None:
    waiting = rules().apply({"TIMER_DELAY_SEC": "2"}, "%RETRY%g", 0)
    assert waiting is not None
    assert waiting.recall_time is None


# --- a broker whose clock is ours -------------------------------------------------------------------------------


def delay_file(directory: Path) -> Any:
    return loads_tolerant((directory / "config" / "delayOffset.json").read_bytes())["offsetTable"]


def test_a_delayed_message_from_its_answer_to_its_delivery(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock) as (server, wire):
        wire.send("Late", b"now", queue_id=1)
        wire.send("Late", b"other", {"DELAY": "3"}, queue_id=2)
        answer = wire.send("Late", b"then", {"DELAY": "3", "TAGS": "t"}, queue_id=1)
        assert (answer.code, answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == (0, "1", "1")
        assert "recallHandle" not in answer.ext_fields
        (_, waiting) = wire.messages(SCHEDULE, queue_id=2)
        assert answer.ext_fields["msgId"] == waiting.offset_msg_id
        assert answer.ext_fields["transactionId"] == waiting.properties["UNIQ_KEY"]
        pull = wire.hold("Late", 1, queue_id=1)
        server.pass_time(9_999)
        assert not pull.done()
        server.pass_time(1)
        (message,) = messages_of(pull.result(20))
        assert (message.body, message.store_timestamp) == (b"then", START + 10_000)
        assert message.properties == waiting.properties
        assert message.properties["REAL_TOPIC"] == "Late"
        assert b'"scheduleMessageOffset_3":"2,2"' in bytes(wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)
    assert delay_file(tmp_path) == {"3": 2}
    with served(tmp_path, clock) as (server, wire):
        assert wire.bodies("Late", queue_id=1) == [b"now", b"then"]
        text = bytes(wire.ask(RequestCode.GET_ALL_DELAY_OFFSET).body)
        assert b'"offsetTable":{3:2}' in text


def test_overdue_messages_are_delivered_at_the_start(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock) as (server, wire):
        for number in range(50):
            wire.send("Late", b"%d" % number, {"DELAY": "1"})
        clock.now += 500
        wire.send("Late", b"last", {"DELAY": "1"})
    clock.now += 700
    with served(tmp_path, clock) as (server, wire):
        pull = wire.hold("Late", 0)
        first = bodies_of(pull.result(20))
        assert first == [b"%d" % number for number in range(50)][: len(first)]
        server.wake()
        assert wire.end("Late") == 50
        server.pass_time(300)
        assert wire.messages("Late", 50)[0].body == b"last"


def test_progress_is_saved_periodically(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock, flushIntervalCommitLog=3_600_000) as (server, wire):
        wire.send("Late", b"x", {"DELAY": "1"})
        server.pass_time(1000)
        parts = server.broker.parts
        written = threading.Event()
        file = parts.files["delays"]
        write = file.write

        def write_and_say(snapshot: Any) -> None:
            assert parts.store.flushed_where == parts.store.max_physical_offset
            write(snapshot)
            written.set()

        file.write = write_and_say  # type: ignore[method-assign]
        assert parts.store.flushed_where < parts.store.max_physical_offset
        server.run(server.broker.parts.saver.save_delay_offsets)
        assert written.wait(20)
        assert delay_file(tmp_path) == {"1": 1}
        written.clear()
        server.run(server.broker.parts.saver.save_delay_offsets)  # nothing new
        server.run(lambda: None)
        assert not written.is_set()


def test_unflushed_messages_do_not_count_as_delivered(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path, clock) as (server, wire):
        wire.send("Late", b"x", {"DELAY": "1"})
        server.pass_time(1000)
        parts = server.broker.parts
        monkeypatch.setattr(parts.store, "when_flushed", lambda offset, callback: callback(False))
        server.run(server.broker.parts.saver.save_delay_offsets)
        server.run(lambda: None)
        assert b'"offsetTable":{}' in bytes(wire.ask(RequestCode.GET_ALL_DELAY_OFFSET).body)
        monkeypatch.undo()
    assert delay_file(tmp_path) == {"1": 1}


def test_a_broken_delay_file_is_replaced_by_its_bak(tmp_path: Path, clock: Clock) -> None:
    for number in range(2):
        with served(tmp_path, clock) as (server, wire):
            wire.send("Late", b"%d" % number, {"DELAY": "1"})
            server.pass_time(1000)
    path = tmp_path / "config" / "delayOffset.json"
    assert delay_file(tmp_path) == {"1": 2}
    path.write_bytes(b'{"offsetTable":{1:')
    with served(tmp_path, clock) as (server, wire):
        server.wake()
        assert wire.bodies("Late") == [b"0", b"1"]  # the .bak is behind, the log is not
    assert delay_file(tmp_path) == {"1": 2}


def test_a_retry_is_delayed_and_a_dead_letter_is_not(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock) as (server, wire):
        wire.send("%RETRY%g", b"again", {"DELAY": "1"}, j=1)
        assert wire.send("%RETRY%g", b"enough", {"DELAY": "1"}, j=16).ext_fields["queueId"] == "0"
        (dead,) = wire.messages("%DLQ%g")
        assert (dead.body, dead.properties["DELAY"]) == (b"enough", "-1")
        assert wire.messages("%RETRY%g") == []
        server.pass_time(1000)
        (retried,) = wire.messages("%RETRY%g")
        assert (retried.body, retried.reconsume_times, retried.properties["REAL_TOPIC"]) == (b"again", 1, "%RETRY%g")


def test_a_timed_message_is_answered_with_its_handle(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock, timerWheelEnable=True) as (_, wire):
        answer = wire.send("Late", b"x", {"TIMER_DELAY_SEC": "90", "UNIQ_KEY": "key"}, queue_id=2)
        assert (answer.code, answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == (0, "2", "0")
        due = (START + 89_999) // 1000 * 1000
        handle = RecallMessageHandle.decode(answer.ext_fields["recallHandle"])
        assert handle == RecallMessageHandle("Late", "broker-a", str(due + 1), "key")
        (stored,) = wire.messages(TIMER)
        assert stored.properties == {
            "TIMER_DELAY_SEC": "90",
            "UNIQ_KEY": "key",
            "TIMER_OUT_MS": str(due),
            "REAL_TOPIC": "Late",
            "REAL_QID": "2",
            **BROKER_PROPERTIES,
        }
        blank = wire.send("Late", b"x", {"TIMER_DELAY_SEC": "90", "UNIQ_KEY": "a key"})
        assert blank.code == ResponseCode.SUCCESS
        assert "recallHandle" not in blank.ext_fields
        past = wire.send("Late", b"at once", {"TIMER_DELIVER_MS": str(START)})
        assert "recallHandle" not in past.ext_fields
        assert wire.messages("Late")[0].body == b"at once"


def test_the_timers_figures(tmp_path: Path, clock: Clock) -> None:
    def figures(wire: Wire) -> list[str]:
        table = wire.runtime()
        names = ("timerReadBehind", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps")
        return [table[name] for name in names]

    with served(tmp_path, clock) as (server, wire):
        parts = server.broker.parts
        assert figures(wire) == ["0", "0", "0", "0.0", "0.0"]
        wire.send("Late", b"x", {"TIMER_DELAY_SEC": "30"})
        wire.send("Late", b"x", {"TIMER_DELAY_SEC": "90000"})  # in another part of the file
        server.wake()
        server.run(parts.sample)
        assert figures(wire) == ["0", "0", "2", "0.2", "0.0"]
        server.run(parts.sample)
        clock.now += 60_000
        assert figures(wire)[0] != "0", "due messages are not delivered"
        server.wake()
        server.run(parts.sample)
        assert len(wire.messages("Late")) == 1
        assert figures(wire) == ["0", "0", "1", "0.0", "0.1"]


def test_the_timer_off(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock, timerWheelEnable=False) as (server, wire):
        answer = wire.send("Late", b"x", {"TIMER_DELAY_SEC": "90"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "accurate timer message is not enabled, timerWheelEnable is false"
        assert TIMER not in server.broker.parts.topics.table
        assert (wire.runtime()["timerCongestNum"], wire.runtime()["timerEnqueueTps"]) == ("0", "0.0")


# --- the real clock ---------------------------------------------------------------------------------------------


def later(wire: Wire, topic: str, offset: int) -> RemotingCommand:
    """The response to a held pull."""
    return wire.hold(topic, offset).result(30)


def test_a_producers_message_of_level_1(cluster: LocalCluster, wire: Wire, topic: str) -> None:
    with Producer("late", name_server=cluster.name_server) as producer:
        queue = producer.queues(topic)[0]
        sent = producer.send(Message.of(topic, b"late", properties={"DELAY": "1"}), queue=queue)
        producer.send(Message.of(topic, b"now"), queue=queue)
    assert sent.queue == queue
    record = decode_record(bytes(wire.pull(SCHEDULE, sent.queue_offset).body))
    (message,) = messages_of(later(wire, topic, 1))
    assert message.body == b"late"
    assert message.store_timestamp >= record.store_timestamp + 1000


def test_the_system_topics_exist_and_accept_no_message(wire: Wire, parts: BrokerParts) -> None:
    assert parts.topics.table[SCHEDULE].write_queue_nums == 18
    assert parts.topics.table[TIMER].write_queue_nums == 1
    assert wire.send(TIMER, b"x").code == ResponseCode.NO_PERMISSION
    assert parts.config.recall_message_enable


def test_a_batch_of_delayed_messages_is_refused(wire: Wire, topic: str) -> None:
    for shared in ("DELAY\x011", "TIMER_DELAY_SEC\x015"):
        answer = wire.send_batch(topic, [Message.of(topic, b"x")], i=shared)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark == "delayed messages cannot be sent in a batch"
    assert wire.send_batch(topic, [Message.of(topic, b"x")], i="DELAY\x010").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("delay", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1500"}], ids=str)
def test_killed_between_sending_and_delivery(tmp_path: Path, delay: dict[str, str]) -> None:
    with LocalCluster(data_dir=tmp_path, config={"flushDiskType": "SYNC_FLUSH"}) as cluster, RemotingClient() as client:
        cluster.create_topic("Late", 1)
        wire = Wire(client, cluster.broker_address)
        for number in range(20):
            assert wire.send("Late", b"%d" % number, delay).code == ResponseCode.SUCCESS
        cluster.kill_broker()
        cluster.restart_broker()
        found: list[bytes] = []
        while len(found) < 20:
            found += bodies_of(later(wire, "Late", len(found)))
        assert found == [b"%d" % number for number in range(20)]
    assert check_store(tmp_path / "store") == []
