"""Unacked popped messages: when, where and in which form they return. With a manual clock."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.delivery.filters import PullFilter
from spark_rocket.broker.pop.acks import GATHER_MS
from spark_rocket.broker.pop.check_points import REVIVE_GROUP, decode_ack, decode_check_point
from spark_rocket.broker.state.config_files import PACE_BYTES_PER_SECOND
from spark_rocket.errors import ProtocolError, RefusedError, StoreCorruptError
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.ids import ExtraInfo, real_topic
from spark_rocket.protocol.record.properties import decode_properties, encode_properties
from spark_rocket.protocol.record.record import iter_records
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.json import loads_tolerant
from tests.broker.pop_world import World, texts
from tests.broker.popping import Popper
from tests.broker.wire import messages_of
from tests.kit.brokers import served
from tests.kit.clock import START, Clock
from tests.kit.waiting import until
from tests.store.helpers import bodies

REVIVE_LOG = "rmq_sys_REVIVE_LOG_DefaultCluster"


def revive_log(world: World) -> list[tuple[str, dict[str, Any]]]:
    """Tag and body of everything in it."""
    found = []
    for queue_id in range(8):
        got = world.store.get_message(REVIVE_LOG, queue_id, 0, 100, 1 << 20)
        for record in iter_records(got.records):
            tag = decode_properties(record.properties)["TAGS"]
            found.append((tag, json.loads(bytes(record.body))))
    return found


def write(world: World, tag: str, body: object, queue_id: int = 0) -> None:
    """A message in the revive log that another broker's version may have written."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    world.send(raw, queue_id, encode_properties({"TAGS": tag}), topic=REVIVE_LOG)
    world.settle()


def test_a_message_is_redelivered_at_its_millisecond(world: World) -> None:
    world.send(b"a", 1, encode_properties({"TAGS": "t", "KEYS": "k", "TIMER_DELIVER_MS": "1"}), flag=3)
    ((first, receipt),) = world.pop(invisible=10_000)
    world.pass_time(9_999)
    assert world.pop() == []
    world.pass_time(1)
    ((record, again),) = world.pop()
    assert (bytes(record.body), bytes(record.topic), record.flag, record.reconsume_times) == (b"a", b"T", 3, 1)
    assert record.born_timestamp == first.born_timestamp
    assert decode_properties(record.properties) == {
        "TAGS": "t",
        "KEYS": "k",
        "TIMER_DELIVER_MS": "1",
        "RETRY_TOPIC": "T",
        "1ST_POP_TIME": str(receipt.pop_time),
        "ORIGIN_GROUP": "g",
        "POP_CK": again.text(),
    }
    assert (again.flag, again.queue_id, again.offset) == ("1", 0, 0)
    assert bodies(world.store, "%RETRY%g_T", 0) == [b"a"]
    assert world.topics.table["%RETRY%g_T"].read_queue_nums == 1
    world.pass_time(60_000)
    ((record, third),) = world.pop()
    assert record.reconsume_times == 2
    assert decode_properties(record.properties)["1ST_POP_TIME"] == str(receipt.pop_time)
    world.pops.ack("g", "%RETRY%g_T", 0, third, third.offset)
    world.pass_time(60_000)
    assert world.pop() == []
    assert world.pop("h") != []


def test_acked_messages_are_not_redelivered(world: World) -> None:
    world.send_numbers(5)
    popped = world.pop(invisible=10_000)
    for at in (0, 2):
        world.pops.ack("g", "T", 0, popped[at][1], at)
    world.pass_time(9_500)
    world.pops.ack("g", "T", 0, popped[4][1], 4)  # not in the log when the others are revived
    world.pass_time(500)
    assert texts(world.pop()) == [b"1", b"3"]


def test_the_second_form_of_retry_topics(tmp_path: Path) -> None:
    world = World(tmp_path, enableRetryTopicV2=True)
    world.send(b"a")
    world.pop(invisible=1_000)
    world.pass_time(1_000)
    ((_, receipt),) = world.pop(invisible=1_000)
    assert (receipt.flag, world.topics.get("%RETRY%g_T")) == ("2", None)
    assert bodies(world.store, "%RETRY%g+T", 0) == [b"a"]
    world.settings.enable_retry_topic_v2 = False  # it stays in the topic where it is
    world.pass_time(1_000)
    assert bodies(world.store, "%RETRY%g+T", 0) == [b"a", b"a"]
    world.topics.ensure("%RETRY%g_T")
    world.send(b"old", topic="%RETRY%g_T")  # both are read
    assert sorted(texts(world.pop())) == [b"a", b"old"]
    world.close()


def test_after_the_groups_retries_it_is_a_dead_letter(world: World) -> None:
    world.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=2))
    result = world.send(b"a", 0, encode_properties({"KEYS": "k"}))
    for _ in range(3):
        assert texts(world.pop(invisible=1_000)) == [b"a"]
        world.pass_time(1_000)
    assert world.pop() == []
    (dead,) = iter_records(world.store.get_message("%DLQ%g", 0, 0, 1, 1 << 20).records)
    properties = decode_properties(dead.properties)
    assert (properties["RETRY_TOPIC"], properties["KEYS"], dead.reconsume_times) == ("T", "k", 3)
    assert properties["ORIGIN_MESSAGE_ID"] != f"{result.physical_offset:016X}"


def test_suspended_messages_count_no_attempt(world: World) -> None:
    world.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=0))
    world.send(b"a", 0)
    for _ in range(3):
        ((record, receipt),) = world.pop(invisible=10_000)
        assert (record.body, record.reconsume_times) == (b"a", 0)
        topic = "T" if receipt.flag == "0" else "%RETRY%g_T"
        assert world.pops.change_invisible("g", topic, 0, receipt, receipt.offset, 1_000, suspend=True)
        world.pass_time(1_001)
    world.pop(invisible=1_000)
    world.pass_time(1_000)
    assert bodies(world.store, "%DLQ%g", 0) == [b"a"]


def test_a_stop_forgets_nothing_and_repeats_nothing(world: World) -> None:
    world.send_numbers(6, 0, 1)
    popped = world.pop(invisible=10_000)
    acked = {b"0", b"3"}
    for record, receipt in popped:
        if bytes(record.body) in acked:
            world.pops.ack("g", "T", record.queue_id, receipt, record.queue_offset)
    world.stop()
    assert world.pop() == []
    world.clock.now += 10_000  # the broker was stopped when they were due
    world.stop()
    assert sorted(texts(world.pop(invisible=500))) == [b"1", b"2", b"4", b"5"]
    world.stop()
    world.pass_time(400)
    assert world.pop() == []
    world.pass_time(100)
    assert len(world.pop()) == 4
    world.stop()
    assert world.pop() == []


def test_a_kill_repeats_nothing_that_is_in_the_log(world: World) -> None:
    for number in range(80):
        world.send(b"%d" % number, 0, encode_properties({"TAGS": "ab"[number % 2]}))
    world.flush()
    world.pass_time(5)
    popped = world.pop(most=20, invisible=10_000)
    world.pop("new", most=20, invisible=600)
    popped += world.pop(most=10, invisible=10_000, wanted=PullFilter(frozenset((java_hash("b"),))))
    for record, receipt in popped[:-1]:
        world.pops.ack("g", "T", 0, receipt, record.queue_offset)
    world.pops.change_invisible("g", "T", 0, popped[-1][1], popped[-1][1].offset, 2_000)
    world.pass_time(GATHER_MS)
    world.kill()
    assert world.offsets.query_all("g", "T") == {0: 40}
    assert texts(world.pop(most=2)) == [b"40", b"41"]
    assert texts(world.pop("new", most=2)) == [b"20", b"21"]
    world.pass_time(2_000)
    assert texts(world.pop(queue_id=1)) == [b"39"]
    world.pass_time(8_000)
    assert world.pop(queue_id=1) == []


def test_a_reset_is_not_undone_by_a_kill(world: World) -> None:
    world.send_numbers(4)
    world.pop()
    world.pass_time(1)
    world.offsets.reset("g", "T", 0, 0)
    world.flush()
    world.kill()
    assert texts(world.pop()) == [b"0", b"1", b"2", b"3"]


def test_logged_events(world: World) -> None:
    world.send_numbers(4)
    popped = world.pop(invisible=2_000, most=3)
    world.pop(invisible=2_000)
    start, popped_at = popped[0][1].start_offset, popped[0][1].pop_time
    world.pops.ack("g", "T", 0, popped[0][1], 0)
    world.pass_time(GATHER_MS)
    for at in (1, 2):
        world.pops.ack("g", "T", 0, popped[at][1], at)
    world.pass_time(2_000)
    named = {"bn": "b", "c": "g", "pt": popped_at, "q": 0, "so": start, "t": "T"}
    other = {**named, "so": 3}
    assert sorted(revive_log(world), key=str) == sorted(
        [
            ("ck", {**named, "bm": 0, "d": [0, 1, 2], "it": 2_000, "n": 3, "ro": 0}),
            ("ack", {**named, "ao": 0}),
            ("bAck", {**named, "ao": -1, "aol": [1, 2]}),
            ("ck", {**other, "bm": 0, "d": [0], "it": 2_000, "n": 1, "ro": 0}),
            ("ack", {**other, "ao": 3}),  # given back
        ],
        key=str,
    )
    settled = world.offsets.table[f"{REVIVE_LOG}@{REVIVE_GROUP}"]
    assert sorted(settled.values()) == [1, 2]
    (_, waiting) = [
        decode_properties(record.properties)
        for record in iter_records(world.store.get_message("rmq_sys_wheel_timer", 0, 0, 2, 1 << 20).records)
    ]
    assert waiting == {
        "TAGS": "ck",
        "TIMER_DELIVER_MS": str(popped_at + 1_000),
        "TIMER_OUT_MS": str((popped_at + 999) // 1000 * 1000),
        "REAL_TOPIC": REVIVE_LOG,
        "REAL_QID": "2",
    }


def test_records_of_apaches_broker_are_read(world: World) -> None:
    world.send_numbers(6)
    world.groups.find("g")
    common = {"c": "g", "t": "T", "q": 0, "pt": START - 5_000, "it": 5_001, "bn": "b"}
    write(world, "ck", {**common, "so": 0, "n": 2, "rt": START, "reviveTime": START})  # of old: no d
    write(world, "ck", {**common, "so": 2, "n": 3, "d": [0, 2, 3], "bm": 2, "rp": "1"})  # one was acked by then
    write(world, "ck", {**common, "so": 3, "n": 1, "d": [0], "bn": "another"})  # the broker was called otherwise
    write(world, "ack", {**common, "so": 0, "ao": 1, "bn": ""})
    write(world, "ack", {**common, "so": 0, "ao": 77})
    write(world, "bAck", {**common, "so": 2, "ao": 0, "aol": [5]})
    write(world, "ack", {**common, "so": 1, "ao": 1})  # of nothing
    write(world, "other", b"{}")
    for body in (b"", b"{", b"[]", {"t": "T"}, {**common, "so": -1}, {**common, "so": 1, "n": 1, "d": ["x"]}):
        write(world, "ck", body)
        write(world, "bAck", body)
    write(world, "bAck", {**common, "so": 0, "aol": [None]})
    world.pass_time(1)
    assert bodies(world.store, "%RETRY%g_T", 0) == [b"0", b"2", b"3"]


def test_invalid_values() -> None:
    good = {"c": "g", "t": "T", "q": 0, "so": 5, "pt": 1, "it": 2, "n": 1}
    point = decode_check_point(json.dumps(good).encode(), "b")
    assert (point.key, point.revive_time, point.open_offsets()) == (("T", "g", 0, 5, 1), 3, [5])
    assert not point.suspend
    assert decode_check_point(json.dumps({**good, "sp": True}).encode(), "b").suspend
    for wrong in (
        {"n": 1 << 20},
        {"pt": 1 << 63},
        {"d": [-1]},
        {"d": 1},
        {"c": ""},
        {"t": 1},
        {"q": True},
        {"it": 1.5},
    ):
        with pytest.raises(ProtocolError):
            decode_check_point(json.dumps({**good, **wrong}).encode(), "b")
    assert decode_ack(json.dumps({**good, "ao": 6}).encode(), "b").offsets == [6]
    with pytest.raises(ProtocolError):
        decode_ack(json.dumps({**good, "aol": [1.5]}).encode(), "b")
    with pytest.raises(ProtocolError, match="at most 100,000 are allowed"):  # on the broker's loop
        decode_ack(json.dumps({**good, "aol": [1] * 100_001}).encode(), "b")
    with pytest.raises(ProtocolError, match="20,000 values"):
        decode_ack(b"{" + b"t:1," * 20_001 + b"}", "b")


def test_memory_holds_check_points_of_one_second(world: World) -> None:
    world.send_numbers(64)
    world.pop(invisible=60_000)
    world.pop(invisible=90_000)
    world.settle()
    assert world.open_points == {}
    world.pass_time(59_000)
    assert len(world.open_points) == 1
    world.pass_time(1_000)
    assert (world.open_points, world.pops.reviver.revived) == ({}, 32)


def test_missing_messages_are_skipped(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        world.send(b"%d" % number)
        world.send(b"%d" % number, topic="U")
    assert len(world.pop(invisible=1_000)) == 3
    world.topics.delete("T")
    world.pass_time(1_000)
    assert "dropped 3 messages that group g popped from T: the group or the topic was deleted" in caplog.text
    write(world, "ck", {"c": "g", "t": "T", "q": 0, "so": 77, "pt": START, "it": 1, "n": 1, "bn": "b"})
    world.pass_time(1)
    assert world.open_points == {}
    assert world.store.get_max_offset("%RETRY%g_T", 0) == 0


def test_a_message_with_full_properties_is_redelivered_unchanged(world: World) -> None:
    world.send(b"a", 0, encode_properties({"x": "y" * 32_750}))
    world.pop(invisible=1_000)
    world.pass_time(1_000)
    ((record, receipt),) = world.pop()
    assert decode_properties(record.properties) == {"x": "y" * 32_750}
    assert record.topic == b"%RETRY%g_T"  # by which its consumer finds the receipt in the answer
    world.pops.ack("g", "%RETRY%g_T", 0, receipt, 0)


def test_a_receipt_in_a_sent_message_is_removed(world: World) -> None:
    world.send(b"a", 0, encode_properties({"POP_CK": "0 1 2 3 0 b 0 0"}))
    world.pop(invisible=1_000)
    world.pass_time(1_000)
    ((record, receipt),) = world.pop()
    assert decode_properties(record.properties)["POP_CK"] == receipt.text()


def test_on_a_full_disk_pops_and_due_messages_wait(world: World) -> None:
    world.send_numbers(3)
    ((_, first),) = world.pop(most=1, invisible=5_000)
    world.full = True
    with pytest.raises(RefusedError, match="failed to store a check point: full"):
        world.pop()
    world.pops.ack("g", "T", 0, first, 0)
    world.clock.now += 5_000
    world.timer.deliver(world.clock(), 1.0)
    world.pops.deliver(world.clock(), 1.0)
    world.full = False
    world.pass_time(2_000)
    assert texts(world.pop(most=1, invisible=5_000)) == [b"1"]
    world.pass_time(5_000)
    assert sorted(texts(world.pop())) == [b"1", b"2"]


def test_nothing_is_redelivered_before_all_acks_have_arrived(world: World) -> None:
    world.send(b"a")
    ((_, receipt),) = world.pop(invisible=5_000)
    world.pops.ack("g", "T", 0, receipt, 0)
    world.stop()  # the ack is in the log only
    world.clock.now += 4_000
    world.timer.deliver(world.clock(), 1.0)
    assert world.pops.deliver(world.clock(), 1.0) == world.clock() + 999
    world.clock.now += 60_000
    world.pops.deliver(world.clock(), 1.0)  # the timer did not run meanwhile
    world.settle()
    assert world.pop() == []


def test_retry_topics_first_or_last(world: World) -> None:
    world.send(b"a")
    world.pop(invisible=1_000)
    world.pass_time(1_000)
    world.send(b"b")
    world.settings.pop_from_retry_probability = 100
    assert texts(world.pop(most=1, invisible=1_000)) == [b"a"]
    assert world.result.rest_num == 1
    world.pass_time(1_000)
    world.settings.pop_from_retry_probability = 0
    assert texts(world.pop(invisible=1_000)) == [b"b", b"a"]
    assert world.result.start_offset_infos == ["0 0 1", "1 0 1"]


def test_offsets_that_fit_no_queue_are_corrected(world: World) -> None:
    world.send_numbers(3)
    world.offsets.commit("g", "T", 0, 77)
    world.offsets.commit("g", "T", 1, 5)
    assert world.pop() == []
    assert world.offsets.query_all("g", "T") == {0: 3, 1: 0}
    world.send(b"new", 1)
    assert texts(world.pop()) == [b"new"]
    world.settings.access_message_in_memory_max_ratio = 0
    assert texts(world.pop("late", queue_id=0, init_mode=1)) == [b"2"]
    assert texts(world.pop("early", queue_id=0)) == [b"0", b"1", b"2"]


def test_messages_without_a_match_are_examined_in_parts(world: World) -> None:
    world.send_numbers(900)
    nothing = PullFilter(frozenset((4711,)))
    assert world.pop(queue_id=0, wanted=nothing) == []
    assert (world.result.passed, world.result.rest_num) == (True, 100)
    assert world.pop(queue_id=0, wanted=nothing) == []
    assert (world.result.passed, world.result.rest_num) == (True, 0)
    assert world.pop(queue_id=0, wanted=nothing) == []
    assert not world.result.passed


def test_a_pop_carries_no_more_than_a_pull(world: World) -> None:
    world.settings.max_transfer_bytes_on_message_in_memory = 1_000
    for queue_id in (0, 1):
        for _ in range(4):
            world.send(b"x" * 300, queue_id)
    assert [len(world.pop()) for _ in range(3)] == [3, 3, 2]  # from a second queue one, however large


def test_many_acks_of_a_moment_are_one_message(world: World) -> None:
    world.send_numbers(64)
    popped = world.pop() + world.pop()
    before = world.store.get_max_offset("rmq_sys_wheel_timer", 0)
    for record, receipt in popped:
        world.pops.ack("g", real_topic("T", "g", receipt.flag), 0, receipt, record.queue_offset)
    assert world.store.get_max_offset("rmq_sys_wheel_timer", 0) == before
    assert world.pops.deliver(world.clock(), 1.0) == START + GATHER_MS
    world.pass_time(GATHER_MS)
    assert world.store.get_max_offset("rmq_sys_wheel_timer", 0) == before + 2


def test_a_damaged_queue_does_not_stop_pops_of_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.send(b"a", 0)
    world.send(b"b", 1)
    get = world.store.get_message
    damaged = {("T", 0), (REVIVE_LOG, 1)}

    def get_message(topic: str, queue_id: int, *more: Any) -> Any:
        if (topic, queue_id) in damaged:
            raise StoreCorruptError("damaged")
        return get(topic, queue_id, *more)

    monkeypatch.setattr(world.store, "get_message", get_message)
    with pytest.raises(StoreCorruptError):
        world.pop(queue_id=0)
    assert texts(world.pop(invisible=1_000)) == [b"b"]
    write(world, "ck", b"?", queue_id=1)
    assert "skipped message 0 of rmq_sys_REVIVE_LOG_DefaultCluster, queue 1: [STORE_CORRUPT] damaged" in caplog.text
    world.pass_time(1_000)
    assert texts(world.pop(invisible=1_000)) == [b"b"]


def test_an_ack_with_a_very_old_time(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.send(b"a")
    world.pops.ack("g", "T", 0, ExtraInfo(0, 0, 0, 0, "0", "b", 0, 0), 0)
    world.pass_time(GATHER_MS)
    world.pass_time(GATHER_MS)
    assert [tag for tag, _ in revive_log(world)] == ["ack"]
    assert caplog.text == ""


# --- a broker ---------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_a_held_pop_gets_redelivered_messages(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock) as (server, wire):
        popper = Popper(wire, "g", "T", invisibleTime=10_000)
        popper.send(b"a")
        assert popper.pop().code == ResponseCode.SUCCESS
        held = popper.pop_later()
        until(lambda: popper.polling_num() == "1")
        server.pass_time(9_999)
        assert not held.done()
        server.pass_time(1)
        answer = held.result(30)
        (message,) = messages_of(answer)
        assert (message.body, message.reconsume_times, message.store_timestamp) == (b"a", 1, START + 10_000)
        assert answer.ext_fields["msgOffsetInfo"] == "1 0 0"


@pytest.mark.live
def test_offsets_reach_the_disk_behind_their_check_points(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "config" / "consumerOffset.json"

    def saved() -> dict[str, dict[str, int]]:
        try:
            text = file.read_bytes()
        except FileNotFoundError:  # not written yet, or about to be replaced
            return {}
        table: dict[str, dict[str, int]] = loads_tolerant(text)["offsetTable"]
        return table

    with served(tmp_path, clock, flushConsumerOffsetInterval=10**9, flushIntervalCommitLog=10**6) as (server, wire):
        broker = server.broker
        popper = Popper(wire, "g", "T", invisibleTime=10_000)
        wire.send("T", b"a")
        popper.pop(queueId=0)
        waiting: list[tuple[int, Any]] = []
        store = broker.parts.store
        flushed, store.when_flushed = store.when_flushed, lambda *given: waiting.append(given)  # type: ignore[method-assign]
        server.run(broker.parts.saver.save_offsets)
        wire.send("T", b"b")
        popper.pop(queueId=0)
        assert saved() == {}
        ((position, done),) = waiting
        assert store.flushed_where < position
        done(False)
        server.run(broker.parts.saver.save_offsets)
        server.run(store.flush)
        waiting[1][1](True)
        server.run(lambda: None)
        until(saved)
        store.when_flushed = flushed  # type: ignore[method-assign]
    assert saved()["T@g"] == {"0": 2}


@pytest.mark.live
def test_a_topic_is_deleted_with_its_returned_messages(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock) as (server, wire):
        popper = Popper(wire, "g", "T", invisibleTime=10_000)
        popper.send(b"a")
        popper.pop()
        server.pass_time(10_000)
        assert popper.pop().ext_fields["msgOffsetInfo"] == "1 0 0"
        assert wire.delete_topic("T").code == ResponseCode.SUCCESS
        server.pass_time(10_000)
        popper.send(b"new")
        assert popper.take_bodies() == [b"new"]
        assert "%RETRY%g_T" not in server.broker.parts.topics.table


@pytest.mark.live
def test_without_the_timer_there_is_no_pop(tmp_path: Path, clock: Clock) -> None:
    with served(tmp_path, clock, timerWheelEnable=False) as (_, wire):
        wire.send("T", b"a")
        answer = Popper(wire, "g", "T").pop()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "pop message is forbidden because timerWheelEnable is false" in str(answer.remark)


# --- retry topics of many pairs ---------------------------------------------------------------------------------------


@pytest.mark.live
def test_retry_topics_of_many_pairs_share_writes(tmp_path: Path) -> None:
    """Each write of ``topics.json`` has all topics: one for each retry topic would be the square of the pairs."""
    clock = Clock()
    written: list[tuple[float, int]] = []
    with served(tmp_path / "store", clock, mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=2000) as (
        server,
        wire,
    ):
        parts = server.broker.parts
        file = parts.files["topics"]
        for topic in range(10):
            wire.create_topic(f"t{topic}")
            wire.send(f"t{topic}", b"m")
        for group in range(15):
            for topic in range(10):
                assert len(Popper(wire, f"g{group}", f"t{topic}").take()) == 1
        write = file.write

        def counted(snapshot: dict[str, Any] | bytes) -> None:
            write(snapshot)
            written.append((time.monotonic(), file.written_bytes))

        file.write = counted  # type: ignore[method-assign]
        began = time.monotonic()
        server.pass_time(60_000)
        until(lambda: server.run(lambda: len(parts.topics.table)) > 150)
        assert wire.create_topic("asked").code == ResponseCode.SUCCESS  # its response waits for the file
        stored = json.loads(file.path.read_text())["topicConfigTable"]
        assert "asked" in stored
        assert {f"%RETRY%g{group}_t{topic}" for group in range(15) for topic in range(10)} <= stored.keys()
        *paced, (end, _), _ = written if len(written) > 1 else [*written, *written]
        assert sum(size for _, size in paced) <= (end - began) * PACE_BYTES_PER_SECOND
        assert Popper(wire, "g7", "t3").take_bodies() == [b"m"]
