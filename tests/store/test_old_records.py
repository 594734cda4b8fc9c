"""Records from before the start: checked at their first read only."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from spark_rocket.errors import StoreCorruptError
from spark_rocket.protocol.record.record import iter_records
from spark_rocket.store.queues.old_records import OldRecords
from tests.store.helpers import opened, put, small


@pytest.mark.parametrize("tag", [None, b"a"])
def test_a_damaged_stretch_is_scanned_once_and_a_call_scans_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: bytes | None
) -> None:
    """A scan blocks the event loop for tens of milliseconds."""
    config = small(tmp_path / "store", mapped_file_size_commit_log=256 << 10, message_index_enable=False)
    store = opened(config)
    places = [put(store, "t", number % 3, b"%d" % number, b"TAGS\x01a").physical_offset for number in range(6000)]
    for _ in range(1000):
        put(store, "filler", 0, bytes(1000))  # a start does not look as far back as the damage
    store.close()
    low, high = 100_000, 220_000
    file = sorted(config.commit_log_path.iterdir())[0]
    data = bytearray(file.read_bytes())
    data[low : high - 5000] = bytes(high - 5000 - low)
    data[high - 5000 : high] = random.Random(1).randbytes(5000)
    file.write_bytes(data)
    whole = {n for n, at in enumerate(places) if at >= high or places[n + 1] <= low}
    scans: list[int] = []
    scan = OldRecords._scan

    def counting(self: OldRecords, queue: object, number: int, physical: int) -> object:
        scans.append(number)
        return scan(self, queue, number, physical)  # type: ignore[arg-type]

    monkeypatch.setattr(OldRecords, "_scan", counting)
    store = opened(config)
    codes = None if tag is None else frozenset({97})
    for _ in range(2):
        for queue_id in range(3):
            offset, found = 0, []
            while offset < 2000:
                before = len(scans)
                result = store.get_message("t", queue_id, offset, 32, 1 << 20, codes)
                assert len(scans) <= before + 1
                assert result.next_begin_offset > offset
                offset = result.next_begin_offset
                found += [int(bytes(record.body)) for record in iter_records(result.records, check_crc=True)]
            assert found == [number for number in range(queue_id, 6000, 3) if number in whole]
        assert len(scans) == 3, "one for each queue"
    store.close()


def test_an_entry_with_another_topics_message_is_detected(tmp_path: Path) -> None:
    config = small(tmp_path / "store", mapped_file_size_consume_queue=4000, message_index_enable=False)
    store = opened(config)
    for number in range(60):
        put(store, "t", 0, b"%d" % number)
        put(store, "u", 0, b"u%d" % number)
    for _ in range(200):
        put(store, "filler", 0, bytes(1000))
    store.close()
    mine, other = (next((config.consume_queue_path / topic / "0").iterdir()) for topic in "tu")
    entries = bytearray(mine.read_bytes())
    entries[200:220] = other.read_bytes()[200:220]
    mine.write_bytes(entries)
    store = opened(config)
    first = store.get_message("t", 0, 0, 32, 1 << 20)
    assert [bytes(record.body) for record in iter_records(first.records)] == [b"%d" % number for number in range(10)]
    with pytest.raises(StoreCorruptError, match="at byte 200: entry 10 does not match the commit log"):
        store.get_message("t", 0, 10, 32, 1 << 20)
    store.close()
