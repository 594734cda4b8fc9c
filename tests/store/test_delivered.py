"""Delayed messages delivered shortly before a kill are found in the log, and not delivered again."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from typing import Any

import pytest

from spark_rocket.protocol.record.record import iter_records
from spark_rocket.store import MessageStore
from spark_rocket.store.delay import delivered
from tests.kit.clock import START, Clock
from tests.store.conftest import MakeRig, MakeStore
from tests.store.helpers import bodies, image_of, put, schedule_of
from tests.store.timer_rig import TIMER_TOPIC, Rig, killed

TOPIC = "SCHEDULE_TOPIC_XXXX"
ALL_OF_IT = 1e9


def put_delayed(store: MessageStore, level: int, key: str, topic: str = "Real", body: bytes | None = None) -> None:
    names = {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": "2"} | ({"UNIQ_KEY": key} if key else {})
    raw = "\x02".join(f"{name}\x01{value}" for name, value in names.items()).encode()
    put(store, TOPIC, level - 1, key.encode() if body is None else body, raw)


def copied(store: MessageStore, make_store: MakeStore, name: str = "image") -> MessageStore:
    """The store as a kill leaves it, opened again."""
    return make_store(image_of(store.config, name))


@pytest.mark.parametrize("offsets", [{}, {1: 0, 2: 0}, {1: 7, 2: 0}], ids=["none", "first", "some"])
def test_levels_go_on_where_the_log_ends(make_store: MakeStore, clock: Clock, offsets: dict[int, int]) -> None:
    store = make_store()
    for number in range(50):
        put_delayed(store, 1 + number % 2, f"{number}", body=b"same")
        put(store, "Other", 0, b"REAL_TOPIC\x01Real", b"REAL_TOPIC\x01Real")
    clock.now += 5000
    schedule_of(store, timer=itertools.count().__next__).deliver(clock.now, 20)
    first = bodies(store, "Real", 2)
    assert 15 < len(first) < 50
    again = copied(store, make_store)
    schedule = schedule_of(again, {"offsetTable": offsets})
    assert schedule.deliver(clock.now, ALL_OF_IT) is None
    assert keys(again, "Real", 2) == Counter(str(number) for number in range(50))
    mark = schedule.mark()
    assert mark is not None
    assert mark.offsets == {1: 25, 2: 25}
    assert mark.physical_offset >= again.max_physical_offset > again.flushed_where


def keys(store: MessageStore, topic: str, queue_id: int) -> Counter[str]:
    records = store.get_message(topic, queue_id, 0, 1000, 1 << 20).records
    return Counter(record.to_message().properties.get("UNIQ_KEY", "") for record in iter_records(records))


def test_each_kill_of_many_repeats_nothing(make_store: MakeStore, clock: Clock) -> None:
    store = make_store()
    for number in range(30):
        put_delayed(store, 2, f"{number}")
    clock.now += 5000
    for number in range(6):
        schedule_of(store, {"offsetTable": {}}, timer=itertools.count().__next__).deliver(clock.now, 4)
        store = copied(store, make_store, f"image{number}")
    assert schedule_of(store, {"offsetTable": {}}).deliver(clock.now, ALL_OF_IT) is None
    assert bodies(store, "Real", 2) == [b"%d" % number for number in range(30)]


def test_equal_messages_are_delivered_as_often_as_they_were_sent(make_store: MakeStore, clock: Clock) -> None:
    """A client's retry after a lost response stores the same message twice."""
    store = make_store()
    for _ in range(3):
        put_delayed(store, 1, "same")
    clock.now += 1000
    schedule_of(store, timer=itertools.count().__next__).deliver(clock.now, 1)
    assert keys(store, "Real", 2) == {"same": 1}
    again = copied(store, make_store)
    schedule_of(again, {"offsetTable": {}}).deliver(clock.now, ALL_OF_IT)
    assert keys(again, "Real", 2) == {"same": 3}


@pytest.mark.parametrize(
    "other", [{"key": "other"}, {"topic": "Elsewhere"}, {"body": b"changed"}, {"key": ""}], ids=str
)
def test_another_message_is_not_taken_for_a_delivered_one(
    make_store: MakeStore, clock: Clock, other: dict[str, Any]
) -> None:
    store = make_store()
    put_delayed(store, 1, other.get("key", "k") and "k", body=b"body")
    clock.now += 1000
    schedule_of(store).deliver(clock.now, ALL_OF_IT)
    put_delayed(store, 1, **{"key": "k", "body": b"body"} | other)
    clock.now += 1000
    again = copied(store, make_store)
    schedule_of(again, {"offsetTable": {1: 1}}).deliver(clock.now, ALL_OF_IT)
    assert len(bodies(again, "Real", 2)) + len(bodies(again, "Elsewhere", 2)) == 2


def test_a_message_sent_after_the_start_is_delivered_although_it_equals_a_delivered_one(
    make_store: MakeStore, clock: Clock
) -> None:
    store = make_store()
    put_delayed(store, 1, "k")
    clock.now += 1000
    schedule_of(store).deliver(clock.now, ALL_OF_IT)
    again = copied(store, make_store)
    schedule = schedule_of(again, {"offsetTable": {1: 1}})
    schedule.deliver(clock.now, ALL_OF_IT)
    put_delayed(again, 1, "k")
    clock.now += 1000
    schedule.deliver(clock.now, ALL_OF_IT)
    assert keys(again, "Real", 2) == {"k": 2}


def test_memory_is_bounded_and_the_newest_deliveries_count(
    make_store: MakeStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivered, "_MAX_SCAN_BYTES", 40_000)
    store = make_store(mapped_file_size_commit_log=16 << 10)
    for number in range(300):
        put_delayed(store, 1, f"{number}")
    clock.now += 1000
    schedule_of(store).deliver(clock.now, ALL_OF_IT)
    again = copied(store, make_store)
    schedule_of(again, {"offsetTable": {}}).deliver(clock.now, ALL_OF_IT)
    counts = keys(again, "Real", 2)
    assert set(counts) == {str(number) for number in range(300)}
    assert [counts[str(number)] for number in (0, 299)] == [2, 1]
    assert "some messages may be delivered again" in caplog.text


def test_timed_messages_are_delivered_once(rig: Rig, make_rig: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sent = [f"{number}" for number in range(60)]
    for number, key in enumerate(sent):
        rig.send(START + 1000 + 90 * number, key)
    rig.advance(START + 4000)
    assert 30 < len(rig.arrived()) < 40
    again = make_rig(killed(rig), Clock(rig.clock.now))
    assert "deliveries of timed messages in the log" in caplog.text
    again.advance(START + 60_000)
    assert again.keys() == sent


def test_a_message_rolled_before_the_kill_is_not_rolled_again(rig: Rig, make_rig: MakeRig) -> None:
    rig.work()
    for number in range(5):
        rig.send(START + 60_000 + number, f"{number}")
    rig.advance(START + 22_000)  # rolled once, with a window of 20 s
    assert rig.store.get_max_offset(TIMER_TOPIC, 0) == 10
    again = make_rig(killed(rig), Clock(rig.clock.now))
    again.work()
    assert again.store.get_max_offset(TIMER_TOPIC, 0) == 10
    again.advance(START + 130_000)
    assert sorted(again.keys()) == [f"{number}" for number in range(5)]
