"""Consume queues: tags codes, fillers, search for the end, truncation."""

from __future__ import annotations

from pathlib import Path
from struct import pack
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.store.layout import ENTRY, tags_code
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue
from spark_rocket.store.queues.consume_queue import ConsumeQueue, MappingCache
from spark_rocket.store.queues.queue_table import QUEUE_SETTING
from spark_rocket.store.queues.reader import ranges_of_few, ranges_of_many

PER_FILE = 10


def queue_of(directory: Path, file_size: int = PER_FILE * 20) -> ConsumeQueue:
    files = MappedFileQueue(directory / "T" / "0", file_size, setting=QUEUE_SETTING, derived=True)
    return ConsumeQueue(files, "T", 0, MappingCache(16))


def make(directory: Path) -> ConsumeQueue:
    return queue_of(directory)


def loaded(directory: Path) -> ConsumeQueue:
    queue = make(directory)
    queue.load()
    return queue


def append(queue: ConsumeQueue, count: int) -> None:
    queue.make_room(count)
    first = queue.max_offset
    queue.append(b"".join(ENTRY.pack(100 * i, 100, -i) for i in range(first, first + count)))


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 35])
def test_ends_are_found_again(tmp_path: Path, count: int) -> None:
    queue = loaded(tmp_path)
    if count:
        append(queue, count)
    queue.close()
    queue = loaded(tmp_path)
    assert (queue.min_offset, queue.max_offset) == (0, count)
    assert [queue.entry(i) for i in range(count)] == [(100 * i, 100, -i) for i in range(count)]
    assert queue.read(0, 1000) == b"".join(ENTRY.pack(100 * i, 100, -i) for i in range(count))
    queue.close()


@pytest.mark.parametrize("start", [10, 13, 19, 20])
def test_a_queue_that_begins_late_has_fillers(tmp_path: Path, start: int) -> None:
    queue = loaded(tmp_path)
    queue.start_at(start)
    append(queue, 3)
    queue.close()
    first = sorted((tmp_path / "T" / "0").iterdir())[0]
    assert first.name == f"{start // 10 * 200:020d}"
    # As ConsumeQueue.fillPreBlank writes them: offset 0, the largest size, tags code 0.
    assert first.read_bytes()[: start % 10 * 20] == pack(">qiq", 0, 0x7FFFFFFF, 0) * (start % 10)
    queue = loaded(tmp_path)
    assert (queue.min_offset, queue.max_offset) == (start, start + 3)
    assert queue.entry(start) == (100 * start, 100, -start)
    queue.close()


@pytest.mark.parametrize("keep", [0, 5, 10, 15, 20, 24])
def test_truncate_then_append(tmp_path: Path, keep: int) -> None:
    queue = loaded(tmp_path)
    append(queue, 25)
    queue.truncate(keep)
    assert queue.max_offset == keep
    assert not queue.has_data_behind()
    append(queue, 12)
    queue.close()
    queue = loaded(tmp_path)
    assert queue.max_offset == keep + 12
    assert [queue.entry(i)[0] for i in range(keep + 12)] == [100 * i for i in range(keep + 12)]
    queue.close()


def test_minimum_follows_the_log(tmp_path: Path) -> None:
    queue = loaded(tmp_path)
    append(queue, 25)
    queue.correct_min_offset(1234)
    assert queue.min_offset == 13
    queue.correct_min_offset(10**9)
    assert queue.min_offset == 25
    queue.close()


@pytest.mark.parametrize(("physical", "first", "files"), [(0, 0, 3), (900, 9, 3), (1000, 10, 2), (2001, 21, 1)])
def test_trimmed_like_the_log(tmp_path: Path, physical: int, first: int, files: int) -> None:
    queue = loaded(tmp_path)
    append(queue, 25)
    held = queue.files.files
    for file in queue.trim(physical):
        file.destroy()
    assert (queue.min_offset, queue.max_offset) == (first, 25)
    assert len(queue.files.files) == len(list((tmp_path / "T" / "0").iterdir())) == files
    for file in held:
        file.flush()  # as the flush thread may, that has the list from before
    append(queue, 1)
    assert queue.read(0 if files == 3 else first, 1000)[-20:] == ENTRY.pack(2500, 100, -25)
    queue.close()
    queue = loaded(tmp_path)
    assert (queue.min_offset, queue.max_offset) == (30 - 10 * files, 26)
    queue.close()


def test_the_last_file_is_never_trimmed(tmp_path: Path) -> None:
    queue = loaded(tmp_path)
    append(queue, 20)
    for file in queue.trim(10**9):
        file.destroy()
    assert (queue.min_offset, queue.max_offset) == (20, 20)
    assert [path.name for path in (tmp_path / "T" / "0").iterdir()] == [f"{200:020d}"]
    append(queue, 1)
    queue.close()
    queue = loaded(tmp_path)
    assert queue.max_offset == 21
    queue.close()


def test_an_unmapped_queue_is_mapped_again_for_writing(tmp_path: Path) -> None:
    queue = loaded(tmp_path)
    append(queue, 3)
    queue.unmap()
    assert queue.limit == -1
    append(queue, 3)
    assert [queue.entry(i)[0] for i in range(6)] == [100 * i for i in range(6)]
    queue.close()


def test_files_stay_small_while_little_is_in_them(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, 6_000_000)
    queue.load()
    append(queue, 1)
    status = queue.files.files[0].path.stat()
    assert (status.st_size, status.st_blocks * 512) == (6_000_000, 4096)
    queue.destroy()
    assert not (tmp_path / "T" / "0").exists()


@pytest.mark.parametrize(
    ("properties", "tags"),
    [
        (b"", ""),
        (b"KEYS\x01k", ""),
        (b"TAGS\x01", ""),
        (b"TAGS\x01TagA", "TagA"),
        (b"KEYS\x01k\x02TAGS\x01TagA\x02", "TagA"),
        (b"TAGS\x01a\x02TAGS\x01TagA", "TagA"),
        (b"XTAGS\x01a\x02KEYS\x01TAGS\x01b", ""),
        ("TAGS\x01ключ".encode(), "ключ"),
        (b"TAGS\x01" + b"x" * 64, "x" * 64),
    ],
)
def test_tags_code(properties: bytes, tags: str) -> None:
    assert tags_code(properties) == java_hash(tags)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 700), st.just(0)),
            st.tuples(st.just("truncate"), st.integers(0, 2_500), st.just(0)),
            st.tuples(st.just("read"), st.integers(0, 2_500), st.integers(1, 900)),
            st.tuples(st.just("unmap"), st.just(0), st.just(0)),
        ),
        min_size=3,
        max_size=25,
    )
)
@settings(max_examples=60, deadline=None)
def test_reads_return_the_entries_as_they_are(steps: list[tuple[str, int, int]]) -> None:
    """Older entries are read ahead: a reader must see neither outdated nor truncated ones."""
    with TemporaryDirectory() as directory:
        queue = queue_of(Path(directory), 900 * 20)
        queue.load()
        expected: list[bytes] = []
        for number, (step, first, count) in enumerate(steps, 1):
            if step == "append":
                start = len(expected)
                raw = b"".join(ENTRY.pack(number, 100, i) for i in range(start, start + first))
                queue.make_room(first)
                queue.append(raw)
                expected += [raw[at : at + 20] for at in range(0, len(raw), 20)]
            elif step == "truncate" and first < len(expected):
                queue.truncate(first)
                del expected[first:]
            elif step == "unmap":
                queue.unmap()
            elif first < len(expected):
                assert queue.read(first, count) == b"".join(expected[first : first + count])
        queue.close()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 500), st.sampled_from([-5, 0, 7])), min_size=1, max_size=200),
    st.integers(1, 64),
    st.integers(1, 5_000),
    st.sampled_from([None, frozenset({7}), frozenset({-5, 0}), frozenset({1})]),
)
def test_queue_selection_is_the_same_by_a_loop_and_by_columns(
    records: list[tuple[int, int, int]], max_msgs: int, max_bytes: int, codes: frozenset[int] | None
) -> None:
    physical, raw = 0, b""
    for gap, size, code in records:
        physical += gap * 91
        raw += ENTRY.pack(physical, size, code)
        physical += size
    few = ranges_of_few(raw, max_msgs, max_bytes, codes)
    assert few == ranges_of_many(raw, max_msgs, max_bytes, codes)
    count, size, examined, starts, stops = few
    assert sum(stops) - sum(starts) == size
    assert count <= max_msgs
    assert examined <= len(records)
    assert size <= max_bytes or count == 1
