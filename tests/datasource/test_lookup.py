"""Lookups in the brokers' index: results are complete. If the index is not reliable, the queues are read."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pytest

from spark_rocket.datasource.options.parsers import LookUp
from spark_rocket.datasource.plan.lookup import MAX_LOOKUPS, IndexResult, LookupFilter, find
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.errors import BrokerError
from spark_rocket.model import MessageExt, MessageQueue
from tests.datasource.fakes import q

WHOLE = [OffsetRange(q(0), 0, 100), OffsetRange(q(1), 0, 100)]


def message(queue: MessageQueue, offset: int, physical: int, **properties: str) -> MessageExt:
    return MessageExt(
        queue.topic,
        b"",
        properties,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        queue_offset=offset,
        physical_offset=physical,
        offset_msg_id=f"7F00000100002A9F{physical:016X}",
    )


class FakeIndex:
    """Two queues of 100 messages each, at alternating places of the log; every tenth has the key ``ten``."""

    def __init__(self) -> None:
        self.messages = {
            (q(queue), n): message(
                q(queue), n, 1000 * (2 * n + queue), UNIQ_KEY=f"id-{queue}-{n}", KEYS=f"k{n}" + " ten" * (n % 10 == 0)
            )
            for n in range(100)
            for queue in (0, 1)
        }
        self.config = {"messageIndexEnable": "true"}
        self.indexed_from, self.indexed_to = 0, 10**9
        self.extra: list[MessageExt] = []
        self.body = 10
        self.asked: list[str] = []
        self.down = False

    def settings(self, queue: MessageQueue) -> dict[str, str]:
        if self.down:
            raise BrokerError("down")
        return self.config

    def query(self, queue: MessageQueue, key: str, at_most: int) -> IndexResult:
        self.asked.append(key)
        hits = [
            one
            for one in self.messages.values()
            if key in (*(one.keys or "").split(" "), one.properties.get("UNIQ_KEY"))
            and self.indexed_from <= one.physical_offset < self.indexed_to
        ]
        hits = (hits + self.extra)[:at_most]
        return IndexResult(hits, bytes(self.body * len(hits)))

    def view(self, queue: MessageQueue, physical_offset: int) -> IndexResult:
        self.asked.append(f"at {physical_offset}")
        return IndexResult([one for one in self.messages.values() if one.physical_offset == physical_offset])

    def messages_at(self, places: Sequence[tuple[MessageQueue, int]]) -> list[MessageExt | None]:
        return [self.messages.get(place) for place in places]


def wanted(column: str, *values: str) -> LookUp:
    return LookUp("lookupKeys" if column == "keys" else "lookupMsgIds", column, values)


def offsets(spans: list[OffsetRange]) -> list[tuple[int, int]]:
    return sorted((span.queue.queue_id, offset) for span in spans for offset in range(span.start, span.end))


def test_keys_and_ids_are_found() -> None:
    index = FakeIndex()
    assert offsets(find(WHOLE, wanted("keys", "k7"), index)) == [(0, 7), (1, 7)]
    assert offsets(find(WHOLE, wanted("keys", "k1", "k2", "no such key"), index)) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert offsets(find(WHOLE, wanted("msgId", "id-1-30"), index)) == [(1, 30)]
    assert offsets(find([OffsetRange(q(0), 8, 20)], wanted("keys", "ten"), index)) == [(0, 10)]
    assert find(WHOLE, wanted("keys", "missing"), index) == []


def test_an_offset_id_contains_the_position() -> None:
    index = FakeIndex()
    del index.messages[q(1), 30].properties["UNIQ_KEY"]
    assert offsets(find(WHOLE, wanted("msgId", f"7F00000100002A9F{61_000:016X}"), index)) == [(1, 30)]
    index.asked.clear()
    assert find(WHOLE, wanted("msgId", "7F0000010EC418B4AAC2" + "0" * 12), index) == []
    assert not [what for what in index.asked if what.startswith("at")]  # a unique key, not a position in the log


def _no_index(index: FakeIndex) -> None:
    index.config = {"messageIndexEnable": "false"}


def _no_settings(index: FakeIndex) -> None:
    index.config = {}


def _trimmed(index: FakeIndex) -> None:
    index.indexed_from = 1


def _late(index: FakeIndex) -> None:
    index.indexed_to = 199_000


def _first_gone(index: FakeIndex) -> None:
    del index.messages[q(1), 0]


def _no_keys(index: FakeIndex) -> None:
    index.messages[q(0), 0].properties.clear()


def _too_many(index: FakeIndex) -> None:
    index.extra = [message(q(0), 5, 10_000, KEYS="same hash")] * 64


def _fewer_a_query(index: FakeIndex) -> None:
    index.config["maxMsgsNumBatch"] = "2"


def _too_large(index: FakeIndex) -> None:
    index.body = 2 << 20


def _down(index: FakeIndex) -> None:
    index.down = True


@pytest.mark.parametrize(
    "spoil",
    [_no_index, _no_settings, _trimmed, _late, _first_gone, _no_keys, _too_many, _fewer_a_query, _too_large, _down],
)
def test_queues_with_an_incomplete_index_are_read(spoil: object, caplog: pytest.LogCaptureFixture) -> None:
    index = FakeIndex()
    spoil(index)  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        assert find(WHOLE, wanted("keys", "k7"), index) == WHOLE
    assert "reading the queues on broker-a in full" in caplog.text


def test_unsupported_lookups_are_read() -> None:
    index = FakeIndex()
    many = wanted("keys", *(f"k{n}" for n in range(MAX_LOOKUPS + 1)))
    assert find(WHOLE, many, index) == WHOLE
    light = [OffsetRange(q(0, "%LMQ%mine"), 0, 5)]
    assert find(light, wanted("keys", "k7"), index) == light


def test_each_broker_is_checked_separately() -> None:
    index = FakeIndex()
    other = OffsetRange(q(0, broker="broker-b"), 0, 50)
    assert find([*WHOLE, other], wanted("keys", "k7"), index)[-1] == other


KEYS = ["k1 k10", "k10", None, "", "k1", " k10  k1 ", "k1\tk10", "K1"]
IDS = ["A1", "A10", "a1", "A1 ", "A10", "A1", "B", "C"]


@pytest.mark.parametrize(
    ("look_up", "rows"),
    [
        (wanted("keys", "k1"), [0, 4, 5]),
        (wanted("keys", "k10", "K1"), [0, 1, 5, 7]),
        (wanted("keys", "k1\tk10"), [6]),
        (wanted("keys", "k1.*"), []),
        (wanted("msgId", "A1"), [0, 5]),
        (wanted("msgId", "A10", "C"), [1, 4, 7]),
    ],
)
@pytest.mark.parametrize("names", [("body",), ("keys", "msgId", "body"), ()])
def test_only_matching_rows_are_kept(look_up: LookUp, rows: list[int], names: tuple[str, ...]) -> None:
    """Other rows that were read, with the same hash or in scanned queues, are removed."""
    columns = {"keys": KEYS, "msgId": IDS, "body": [b"%d" % row for row in range(len(KEYS))]}
    projection = project(pa.schema([MESSAGE_SCHEMA.field(name) for name in names]))
    lookup_filter = LookupFilter(look_up, projection)
    decoded = lookup_filter.projection
    arrays = [pa.array(columns[name], of.type) for name, of in zip(decoded.columns, decoded.target, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=decoded.target)
    found = list(lookup_filter.rows(iter([batch.slice(0, 3), batch.slice(3)])))
    assert sum(part.num_rows for part in found) == len(rows)
    for part in found:
        assert part.schema.equals(projection.target, check_metadata=True)
    if "body" in names:
        assert [int(body) for part in found for body in part.column("body").to_pylist()] == rows
