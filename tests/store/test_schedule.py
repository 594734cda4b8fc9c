"""Delay levels: delivered when due, in order, never lost; undeliverable messages are reported and skipped."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.errors import StoreNotWritableError
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.record import decode_record, view_record
from spark_rocket.protocol.wire.json import dumps_fastjson, loads_tolerant
from spark_rocket.store import MessageStore, PutStatus
from spark_rocket.store.delay.redelivery import RETRY_MS, redeliver
from spark_rocket.store.delay.schedule_message_service import ScheduleMessageService
from spark_rocket.store.layout import tags_code
from tests.golden import expected, extract_store
from tests.kit.clock import START, Clock
from tests.store.conftest import MakeStore
from tests.store.helpers import (
    DELAYS,
    bodies,
    close_right,
    golden,
    opened,
    put,
    refuse_writes,
    schedule_of,
    small,
    trim,
)

TOPIC = "SCHEDULE_TOPIC_XXXX"
ALL_OF_IT = 1e9


def put_delayed(
    store: MessageStore, level: int, body: bytes, *, topic: str = "Real", queue_id: int = 2, **more: Any
) -> None:
    properties = f"TAGS\x01late\x02DELAY\x01{level}\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}"
    put(store, TOPIC, level - 1, body, properties.encode(), **more)


def save(schedule: ScheduleMessageService, store: MessageStore) -> dict[str, Any]:
    """Like the broker, through the text of the file."""
    mark = schedule.mark()
    if mark is not None:
        store.flush()
        assert store.flushed_where >= mark.physical_offset
        schedule.confirm(mark, START)
    saved: dict[str, Any] = loads_tolerant(dumps_fastjson(schedule.snapshot(), pretty=True))
    return saved


# --- when -------------------------------------------------------------------------------------------------------


def test_each_of_the_18_levels_at_its_millisecond(store: MessageStore, clock: Clock) -> None:
    schedule = schedule_of(store)
    assert schedule.deliver(clock.now, ALL_OF_IT) is None
    for level in range(18, 0, -1):
        put_delayed(store, level, b"%d" % level)
    for level, delay in enumerate(DELAYS, 1):
        assert schedule.deliver(START + delay - 1, ALL_OF_IT) == START + delay
        assert store.get_max_offset("Real", 2) == level - 1
        clock.now = START + delay
        following = START + DELAYS[level] if level < 18 else None
        assert schedule.deliver(clock.now, ALL_OF_IT) == following
        assert store.get_store_time("Real", 2, level - 1) == clock.now
    assert bodies(store, "Real", 2) == [b"%d" % level for level in range(1, 19)]


def test_a_level_is_delivered_in_its_order(store: MessageStore, clock: Clock) -> None:
    schedule = schedule_of(store)
    sent = []
    for number in range(300):
        clock.now += number % 3
        put_delayed(store, 2, b"%d" % number)
        sent.append((clock.now, b"%d" % number))
    last = clock.now + 5000
    for now in range(START, last + 1, 97):
        due = schedule.deliver(now, ALL_OF_IT)
        assert bodies(store, "Real", 2) == [body for at, body in sent if at + 5000 <= now]
        assert due == next((at + 5000 for at, _ in sent if at + 5000 > now), None)
    assert schedule.deliver(last, ALL_OF_IT) is None
    assert bodies(store, "Real", 2) == [body for _, body in sent]


def test_a_slice_ends_and_the_other_levels_come_next(store: MessageStore, clock: Clock) -> None:
    for number in range(100):
        put_delayed(store, 1, b"first level %d" % number)
    put_delayed(store, 3, b"third level")
    clock.now += 10_000
    seconds = itertools.count()
    schedule = schedule_of(store, timer=lambda: float(next(seconds)))
    assert schedule.deliver(clock.now, 0) == clock.now  # at least one
    assert bodies(store, "Real", 2) == [b"first level 0"]
    assert schedule.deliver(clock.now, 1) == clock.now
    assert bodies(store, "Real", 2)[1:] == [b"third level"]
    assert schedule.deliver(clock.now, 10) == clock.now
    assert store.get_max_offset("Real", 2) == 12
    assert schedule.deliver(clock.now, ALL_OF_IT) is None
    assert store.get_max_offset("Real", 2) == 101


def test_an_impossible_delivery_time_is_due_now(make_store: MakeStore, clock: Clock) -> None:
    """The level became shorter meanwhile, or the clock was set back: delivered at once, as by Apache's broker."""
    store = make_store()
    put_delayed(store, 18, b"was two hours")
    shorter = ScheduleMessageService(store, [*DELAYS[:17], 60_000])
    assert shorter.deliver(clock.now, ALL_OF_IT) is None
    assert bodies(store, "Real", 2) == [b"was two hours"]


# --- what -------------------------------------------------------------------------------------------------------


def test_everything_of_the_message_stays(store: MessageStore, clock: Clock) -> None:
    put_delayed(store, 1, b"body", topic="%RETRY%group", queue_id=0, flag=7, sys_flag=0x301, reconsume_times=3)
    clock.now += 1000
    schedule_of(store).deliver(clock.now, ALL_OF_IT)
    waiting, delivered = (
        decode_record(store.get_message(topic, 0, 0, 1, 1 << 20).records, decompress=False)
        for topic in (TOPIC, "%RETRY%group")
    )
    for name in ("body", "flag", "sys_flag", "born_timestamp", "born_host", "reconsume_times", "properties"):
        assert getattr(delivered, name) == getattr(waiting, name), name
    assert delivered.properties["DELAY"] == "1"
    assert store.get_entries("%RETRY%group", 0, 0, 1)[0][2] == tags_code(b"TAGS\x01late")
    assert store.get_entries(TOPIC, 0, 0, 1)[0][2] == START + 1000


def test_notes_of_the_timer_are_set_where_there_is_room(make_store: MakeStore) -> None:
    store = make_store(mapped_file_size_commit_log=128 << 10)
    properties = b"REAL_TOPIC\x01Real\x02REAL_QID\x010\x02TIMER_ROLL_TIMES\x011\x02k\x01v"
    put(store, "rmq_sys_wheel_timer", 0, b"a", properties)
    put(store, "rmq_sys_wheel_timer", 0, b"b", properties + b"x" * (32767 - len(properties)))
    notes = {"TIMER_DEQUEUE_MS": "12", "TIMER_ROLL_TIMES": "2"}
    for offset in (0, 1):
        record = store.get_message("rmq_sys_wheel_timer", 0, offset, 1, 1 << 20).records
        assert redeliver(store, view_record(record), notes).status is PutStatus.PUT_OK
    noted, full = decode_messages(store.get_message("Real", 0, 0, 2, 1 << 20).records)
    assert noted.properties == {"REAL_TOPIC": "Real", "REAL_QID": "0", "k": "v", **notes}
    assert full.properties["TIMER_ROLL_TIMES"] == "1"
    assert "TIMER_DEQUEUE_MS" not in full.properties


def test_a_crc_over_the_old_record_is_not_kept(store: MessageStore, clock: Clock) -> None:
    """Apache's with enabledAppendPropCRC; it would be wrong for the new record."""
    put(store, TOPIC, 0, b"x", b"DELAY\x011\x02REAL_TOPIC\x01Real\x02REAL_QID\x010\x02__CRC32#\x010123456789\x02")
    clock.now += 1000
    schedule_of(store).deliver(clock.now, ALL_OF_IT)
    delivered = decode_record(store.get_message("Real", 0, 0, 1, 1 << 20).records)
    assert delivered.properties == {"DELAY": "1", "REAL_TOPIC": "Real", "REAL_QID": "0"}


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ("REAL_QID\x010", "no property REAL_TOPIC"),
        ("REAL_TOPIC\x01Real", "no property REAL_TOPIC or REAL_QID"),
        ("REAL_TOPIC\x01Real\x02REAL_QID\x01one", "REAL_QID is b'one'"),
        ("REAL_TOPIC\x01Real\x02REAL_QID\x01-1", "REAL_QID is b'-1'"),
        ("REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010", "a system topic for pending messages"),
        ("REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010", "a system topic for pending messages"),
        ("REAL_TOPIC\x01../up\x02REAL_QID\x010", "cannot be stored"),
    ],
)
def test_a_message_without_a_target_does_not_stop_the_queue(
    store: MessageStore, clock: Clock, caplog: pytest.LogCaptureFixture, properties: str, complaint: str
) -> None:
    bad = put(store, TOPIC, 0, b"bad", f"DELAY\x011\x02{properties}".encode())
    put_delayed(store, 1, b"good")
    clock.now += 1000
    assert schedule_of(store).deliver(clock.now, ALL_OF_IT) is None
    assert bodies(store, "Real", 2) == [b"good"]
    assert f"offset {bad.physical_offset} of the commit log is not delivered" in caplog.text
    assert complaint in caplog.text


def test_a_missing_or_damaged_record_is_named_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    store = opened(small(tmp_path / "store"), clock)
    results = [put(store, TOPIC, 0, b"%d" % i, b"DELAY\x011\x02REAL_TOPIC\x01Real\x02REAL_QID\x010") for i in range(3)]
    with (store.config.commit_log_path / ("0" * 20)).open("r+b") as file:
        for at in (results[0].physical_offset + 4, results[1].physical_offset + 88):  # a magic and a body
            os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, at)[0] ^ 1]), at)
    clock.now += 1000
    assert schedule_of(store).deliver(clock.now, ALL_OF_IT) is None
    assert bodies(store, "Real", 0) == [b"2"]
    for number in range(2):
        place = results[number].physical_offset
        assert f"Message {number} of delay level 1 is skipped: its record at offset {place} " in caplog.text
    store.close()


@pytest.mark.parametrize("damage", ["no such place", "another message of the queue", "a message of another topic"])
def test_an_old_entry_that_is_damaged_stops_its_level_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    clock, config = Clock(), small(tmp_path / "store", mapped_file_size_consume_queue=4000, message_index_enable=False)
    store = opened(config, clock)
    for number in range(30):
        put(store, "Other", 1, b"other %d" % number)
        put_delayed(store, 2, b"%d" % number)
    put_delayed(store, 1, b"of another level")
    for _ in range(200):
        put(store, "Filler", 0, bytes(1000))  # a start does not look as far back as the entries
    store.close()
    file = next((config.consume_queue_path / TOPIC / "1").iterdir())
    whole = file.read_bytes()
    entries = bytearray(whole)
    if damage == "no such place":
        entries[200:208] = (12345).to_bytes(8, "big")
    elif damage == "another message of the queue":
        entries[200:220] = entries[400:420]
    else:
        other = next((config.consume_queue_path / "Other" / "1").iterdir())
        entries[200:220] = other.read_bytes()[200:220]
    file.write_bytes(entries)
    clock.now += 5000
    store = opened(config, clock)
    schedule = schedule_of(store)
    for _ in range(3):
        assert schedule.deliver(clock.now, ALL_OF_IT) == clock.now + RETRY_MS
    assert bodies(store, "Real", 2) == [b"of another level"] + [b"%d" % number for number in range(10)]
    assert caplog.text.count(f"Delay level 2 cannot be read: [STORE_CORRUPT] {file} at byte 200") == 1
    saved = save(schedule, store)
    store.close()
    file.write_bytes(whole)  # as `rocket store rebuild` does it
    store = opened(config, clock)
    assert schedule_of(store, saved).deliver(clock.now, ALL_OF_IT) is None
    assert bodies(store, "Real", 2)[1:] == [b"%d" % number for number in range(30)]
    close_right(store)


def test_a_refused_put_is_retried_and_nothing_is_skipped(store: MessageStore, clock: Clock) -> None:
    for number in range(5):
        put_delayed(store, 1, b"%d" % number)
        put_delayed(store, 2, b"%d" % number)
    seconds = itertools.count()
    schedule = schedule_of(store, timer=lambda: float(next(seconds)))
    clock.now += 5000
    full = StoreNotWritableError("The disk is full.", remedy="Free some space.")
    refuse_writes(store, full)
    assert schedule.deliver(clock.now, ALL_OF_IT) == clock.now + RETRY_MS
    assert schedule.mark() is None
    refuse_writes(store, None)
    assert schedule.deliver(clock.now, 2) == clock.now
    refuse_writes(store, full)
    assert schedule.deliver(clock.now, ALL_OF_IT) == clock.now + RETRY_MS
    refuse_writes(store, None)
    assert schedule.deliver(clock.now, ALL_OF_IT) is None
    assert sorted(bodies(store, "Real", 2)) == sorted([b"%d" % number for number in range(5)] * 2)


# --- how far ----------------------------------------------------------------------------------------------------


def test_a_clean_restart_goes_on_where_it_was(make_store: MakeStore, clock: Clock) -> None:
    store = make_store()
    for number in range(10):
        clock.now += 100
        put_delayed(store, 1, b"%d" % number)
    schedule = schedule_of(store)
    clock.now = START + 1500
    assert schedule.deliver(clock.now, ALL_OF_IT) == START + 1600
    saved = save(schedule, store)
    assert saved["offsetTable"] == {"1": 5}
    assert saved["dataVersion"] == {"counter": 1, "stateVersion": 0, "timestamp": START}
    store.close()
    clock.now += 100_000
    store = make_store(store.config)
    assert schedule_of(store, saved).deliver(clock.now, ALL_OF_IT) is None
    assert bodies(store, "Real", 2) == [b"%d" % number for number in range(10)]


def test_offsets_are_saved_only_when_what_was_delivered_is_on_disk(store: MessageStore, clock: Clock) -> None:
    put_delayed(store, 1, b"x")
    schedule = schedule_of(store)
    assert schedule.mark() is None
    clock.now += 1000
    schedule.deliver(clock.now, ALL_OF_IT)
    mark = schedule.mark()
    assert mark is not None
    assert mark.physical_offset == store.max_physical_offset > store.flushed_where
    assert schedule.snapshot()["offsetTable"] == {}
    put_delayed(store, 1, b"y")
    clock.now += 1000
    schedule.deliver(clock.now, ALL_OF_IT)
    schedule.confirm(mark, clock.now)
    assert schedule.snapshot()["offsetTable"] == {1: 1}
    assert schedule.mark() is not None


def test_the_files_text_is_apaches(store: MessageStore) -> None:
    schedule = schedule_of(store, {"offsetTable": {"2": 7, "1": 10}, "dataVersion": None})
    assert dumps_fastjson(schedule.snapshot()) == (
        b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{1:10,2:7}}'
    )
    with pytest.raises(ValueError, match="ten"):
        schedule.load({"offsetTable": {"1": "ten"}})


def test_messages_that_retention_removed_are_counted(
    store: MessageStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(6):
        put_delayed(store, 1, b"%d" % number)
        if number == 3:
            put(store, "Filler", 0, bytes(30_000))
            put(store, "Filler", 0, bytes(3_000))
    clock.now += 1000
    trim(store)
    schedule = schedule_of(store, {"offsetTable": {"1": 2}})
    assert schedule.deliver(clock.now, ALL_OF_IT) is None
    assert bodies(store, "Real", 2) == [b"4", b"5"]
    assert "Messages 2 to 3 of delay level 1 were removed from the store before they could be delivered." in caplog.text


def test_a_missing_file_delivers_from_the_first_on_and_warns(
    store: MessageStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    put_delayed(store, 3, b"0")
    for size in (30_000, 3_000):
        put(store, "Filler", 0, bytes(size))
    put_delayed(store, 3, b"1")
    trim(store)
    clock.now += 10_000
    assert schedule_of(store).deliver(clock.now, ALL_OF_IT) is None
    assert bodies(store, "Real", 2) == [b"1"]
    assert "delayOffset.json is missing: delivering all 1 messages of delay level 3" in caplog.text
    assert "removed" not in caplog.text


def test_an_offset_beyond_the_end_is_corrected(
    store: MessageStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    put_delayed(store, 1, b"0")
    schedule = schedule_of(store, {"offsetTable": {"1": 9, "20": 3}})
    assert "Delay level 1 ends at 1, not 9" in caplog.text
    put_delayed(store, 1, b"1")
    clock.now += 1000
    schedule.deliver(clock.now, ALL_OF_IT)
    assert bodies(store, "Real", 2) == [b"1"]
    assert save(schedule, store)["offsetTable"] == {"1": 2, "20": 3}


def test_removed_levels_are_named(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    put_delayed(store, 18, b"x")
    schedule = ScheduleMessageService(store, DELAYS[:3])
    schedule.load({"offsetTable": {}})
    schedule.correct_offsets()
    assert "1 messages of delay level 18 are not delivered: messageDelayLevel has only 3 levels" in caplog.text


# --- a real broker's ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_apaches_pending_messages_are_delivered(name: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The golden stores: levels 1 and 2 are done, two messages each of levels 17 and 18 wait."""
    directory = extract_store(name, tmp_path)
    saved = loads_tolerant((directory / "config" / "delayOffset.json").read_bytes())
    waiting = {(m["queueId"], m["queueOffset"]): m for m in expected(name) if m["topic"] == TOPIC}
    pending = [message for (queue_id, _), message in sorted(waiting.items()) if queue_id >= 16]
    counts = [sum(m["topic"] == "GoldenDelay" and m["queueId"] == i for m in expected(name)) for i in (0, 1)]
    due = [message["storeTimestamp"] + DELAYS[message["queueId"]] for message in pending]
    clock = Clock(due[0] - 1)
    store = opened(golden(directory), clock)
    schedule = schedule_of(store, saved)
    with caplog.at_level(logging.WARNING):
        assert schedule.deliver(clock.now, ALL_OF_IT) == due[0]
        while (next_due := schedule.deliver(clock.now, ALL_OF_IT)) is not None:
            assert next_due in due
            clock.now = next_due
    assert caplog.records == []
    for queue_id in (0, 1):
        records = store.get_message("GoldenDelay", queue_id, counts[queue_id], 9, 1 << 20).records
        delivered = decode_messages(records)
        wanted = [m for m in pending if m["properties"]["REAL_QID"] == str(queue_id)]
        assert [m.properties for m in delivered] == [m["properties"] for m in wanted]
        assert [m.body for m in delivered] == [m["body"] for m in wanted]
        assert [m.born_timestamp for m in delivered] == [m["bornTimestamp"] for m in wanted]
        assert [m.store_timestamp for m in delivered] == [m["storeTimestamp"] + DELAYS[m["queueId"]] for m in wanted]
    assert save(schedule, store)["offsetTable"] == {"1": 8, "2": 2, "17": 2, "18": 2}
    close_right(store)
