"""Records from before the start: checked at their first read only."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_rocket.errors import StoreCorruptError
from spark_rocket.protocol.record.record import iter_records
from tests.store.helpers import opened, put, small


@pytest.mark.parametrize("tag", [None, b"a"])
def test_damaged_records_are_skipped_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tag: bytes | None
) -> None:
    config = small(tmp_path / "store", mapped_file_size_commit_log=256 << 10, message_index_enable=False)
    store = opened(config)
    places = [put(store, "t", number % 3, b"%d" % number, b"TAGS\x01a").physical_offset for number in range(6000)]
    for _ in range(1000):
        put(store, "filler", 0, bytes(1000))  # a start does not look as far back as the damage
    store.close()
    low, high = 100_000, 105_000
    file = sorted(config.commit_log_path.iterdir())[0]
    data = bytearray(file.read_bytes())
    data[low : high - 2000] = bytes(high - 2000 - low)
    data[high - 2000 : high] = random.Random(1).randbytes(2000)
    file.write_bytes(data)
    whole = {n for n, at in enumerate(places) if at >= high or places[n + 1] <= low}
    store = opened(config)
    codes = None if tag is None else frozenset({97})
    for _ in range(2):
        for queue_id in range(3):
            offset, found = 0, []
            while offset < 2000:
                result = store.get_message("t", queue_id, offset, 32, 1 << 20, codes)
                assert result.next_begin_offset > offset
                offset = result.next_begin_offset
                found += [int(bytes(record.body)) for record in iter_records(result.records, check_crc=True)]
            assert found == [number for number in range(queue_id, 6000, 3) if number in whole]
    reported = [record.message for record in caplog.records if "is skipped" in record.message]
    assert len(reported) == len(set(reported)) == 6000 - len(whole)
    store.close()


def moved(entry: bytes, by: int) -> bytes:
    return (int.from_bytes(entry[:8], "big") + by).to_bytes(8, "big") + entry[8:]


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(lambda own, other: other, id="of another topic"),
        pytest.param(lambda own, other: own[:8] + (1 << 20).to_bytes(4, "big") + own[12:], id="larger than its record"),
        pytest.param(lambda own, other: bytes(20), id="zeros"),
        pytest.param(lambda own, other: b"\xff" * 20, id="ones"),
        pytest.param(lambda own, other: (5).to_bytes(8, "big") + own[8:], id="before the previous one"),
        pytest.param(lambda own, other: moved(own, -150), id="within the previous one"),
        pytest.param(lambda own, other: moved(own, 150), id="across the next one"),
    ],
)
def test_a_damaged_entry_is_an_error(tmp_path: Path, entry: Callable[[bytes, bytes], bytes]) -> None:
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
    entries[200:220] = entry(bytes(entries[200:220]), other.read_bytes()[200:220])
    mine.write_bytes(entries)
    store = opened(config)
    first = store.get_message("t", 0, 0, 32, 1 << 20)
    assert [bytes(record.body) for record in iter_records(first.records)] == [b"%d" % number for number in range(10)]
    with pytest.raises(StoreCorruptError, match="at byte 200: entry 10 does not match the commit log") as raised:
        store.get_message("t", 0, 10, 32, 1 << 20)
    assert "`rocket store check`" in raised.value.remedy
    store.close()


def test_damaged_sizes_are_not_read_as_sizes(tmp_path: Path) -> None:
    config = small(tmp_path / "store", mapped_file_size_commit_log=64 << 20, message_index_enable=False)
    store = opened(config)
    places = [put(store, "t", 0, b"%d" % number).physical_offset for number in range(200)]
    for _ in range(70):
        put(store, "filler", 0, bytes(1 << 20))
    store.close()
    file = sorted(config.commit_log_path.iterdir())[0]
    with file.open("r+b") as bytes_of_log:
        for place in places[50:150]:
            bytes_of_log.seek(place)
            bytes_of_log.write((60 << 20).to_bytes(4, "big"))
    store = opened(config)
    tracemalloc.start()
    found, offset = b"", 50
    while not found:
        result = store.get_message("t", 0, offset, 32, 1 << 20)
        found, offset = bytes(result.records), result.next_begin_offset
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert int(bytes(next(iter_records(found)).body)) == 150
    assert peak < 4 << 20
    store.close()
