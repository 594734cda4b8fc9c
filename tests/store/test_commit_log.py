"""The commit log: writer and allocator run concurrently."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from pathlib import Path

import pytest

from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.record import iter_records
from spark_rocket.store import PutStatus
from spark_rocket.store.descriptors import sync_directory
from spark_rocket.store.log import mapped_file, mapped_file_allocator
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue
from spark_rocket.store.tools.check import check_store
from tests.store.conftest import MakeStore
from tests.store.helpers import BORN, bodies, flush_log, log_of, opened, put, small


def test_the_allocator_never_makes_a_file_that_the_writer_just_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator runs at every step of a roll-over and never removes a file that is in use."""
    config = small(tmp_path / "store")
    monkeypatch.setattr(CommitLog, "start", lambda log: None)  # its thread; the test is the allocator
    store = opened(config)
    log = log_of(store)
    helpers: list[threading.Thread] = []

    def let_the_allocator_in(written: MappedFile) -> None:
        helper = threading.Thread(target=log.allocator.prepare_next, args=(written,))
        helper.start()
        helper.join(0.2)  # it waits for the writer, if it is right
        helpers.append(helper)

    add = MappedFileQueue.add

    def watched_add(queue: MappedFileQueue, file: MappedFile) -> None:
        if queue is not log.queue or not queue.files:
            add(queue, file)
            return
        last = queue.files[-1]
        let_the_allocator_in(last)
        add(queue, file)
        let_the_allocator_in(last)

    monkeypatch.setattr(MappedFileQueue, "add", watched_add)
    for i in range(4):
        put(store, "T", 0, b"%d" % i * 30_000)
        for helper in helpers:
            helper.join()
        unused = {int(path.name) for path in config.commit_log_path.iterdir()}
        assert unused - {file.file_from_offset for file in log.queue.files} <= {log.queue.end_offset}
    assert len(helpers) >= 6
    monkeypatch.setattr(MappedFileQueue, "add", add)
    store.close()
    assert len(list(config.commit_log_path.iterdir())) == 4
    assert check_store(config.store_path, config) == []
    store = opened(config)
    assert bodies(store, "T", 0) == [b"%d" % i * 30_000 for i in range(4)]
    store.close()


def test_the_allocator_ignores_a_file_that_was_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave cuts its log while its allocator extends the last file: this is not an error to report."""
    monkeypatch.setattr(CommitLog, "start", lambda log: None)  # its thread; the test is the allocator
    store = opened(small(tmp_path / "store"))
    log = log_of(store)
    put(store, "T", 0, b"x")
    (file,) = log.queue.files
    log.cut(0)
    log.allocator.extend(file, file.size)
    put(store, "T", 1, b"y")
    (file,) = log.queue.files
    elsewhere = file.path.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):  # moved by another program
        log.allocator.extend(file, file.size)
    elsewhere.rename(file.path)
    store.close()


def test_names_of_new_files_are_on_disk_before_a_flush_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A roll-over does not wait for them: the allocator syncs them, and a flush verifies that."""
    monkeypatch.setattr(CommitLog, "start", lambda log: None)
    steps: list[str] = []
    flush = MappedFile.flush
    monkeypatch.setattr(
        mapped_file_allocator, "sync_directory", lambda path: (steps.append("names"), sync_directory(path))
    )
    monkeypatch.setattr(MappedFile, "flush", lambda file, *span: (steps.append("bytes"), flush(file, *span)))
    config = small(tmp_path / "store", message_index_enable=False)
    store = opened(config)
    put(store, "T", 0, b"x" * 20_000)
    put(store, "T", 0, b"x" * 20_000)
    assert steps == []
    flush_log(store)
    assert steps == ["names", "bytes", "bytes"]
    put(store, "T", 0, b"")
    flush_log(store)
    assert steps[3:] == ["bytes"]
    log = log_of(store)
    log.allocator.prepare_next(log.queue.files[-1])
    assert steps[4:] == ["names"]
    store.close()
    assert check_store(config.store_path, config) == []


def test_only_what_was_written_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages touched ahead of the writer are dirty without data: writing their zeros would cost twice."""
    spans: list[tuple[int, int]] = []
    flush = MappedFile.flush

    def watched(file: MappedFile, start: int = 0, end: int | None = None) -> None:
        assert end is not None
        spans.append((file.file_from_offset + start, file.file_from_offset + end))
        flush(file, start, end)

    config = small(tmp_path / "store", message_index_enable=False)
    store = opened(config)
    with monkeypatch.context() as context:
        context.setattr(MappedFile, "flush", watched)
        ends = [0]
        for size in (100, 9_000, 30_000, 30_000, 30_000):
            put(store, "T", 0, b"x" * size)
            ends.append(store.max_physical_offset)
            flush_log(store)
    file = config.mapped_file_size_commit_log
    assert spans == [
        (0, ends[1]),
        (ends[1], ends[2]),
        *((ends[2], file), (file, ends[3])),
        *((ends[3], 2 * file), (2 * file, ends[4])),
        *((ends[4], 3 * file), (3 * file, ends[5])),
    ]
    store.close()
    assert check_store(config.store_path, config) == []


@pytest.mark.parametrize("size", [400, 70_000])
def test_scattered_records_are_read_in_order_and_no_view_stays(tmp_path: Path, size: int) -> None:
    """Records of other queues are between them; they are copied once, from a view of the mapping."""
    config = small(tmp_path, mapped_file_size_commit_log=-(-15 * size // 4096) * 4096)
    store = opened(config)
    expected = [bytes([number + 48]) * size for number in range(30)]
    for number, body in enumerate(expected):
        put(store, "t", number % 3, body)
    found = store.get_message("t", 1, 0, 3, 8 << 20)
    assert [record.body for record in iter_records(found.records)] == expected[1:9:3]
    log_of(store).shutdown()  # the allocator and a flush look at mappings as well
    store.flush()
    first = log_of(store).queue.files[0]
    assert first.is_mapped
    first.close()  # StateError while there is a view of it
    assert bodies(store, "t", 1) == expected[1::3]
    store.close()
    assert check_store(config.store_path, config) == []


def test_a_disk_that_breaks_its_promise_refuses_before_a_byte_is_written(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allocated blocks are missing (copy-on-write, quotas): a write through the mapping would cause SIGBUS."""
    store = make_store(message_index_enable=False)
    monkeypatch.setattr(
        mapped_file_allocator.MappedFileAllocator, "extend", lambda *_: None
    )  # nothing is made ready ahead of the writer
    put(store, "T", 0, b"before")
    end = store.max_physical_offset
    big = encode_batch_body([(0, b"x" * 300, b"")] * 60)
    with monkeypatch.context() as patch:
        patch.setattr(mapped_file, "_advise", lambda *_: errno.EFAULT)
        for result in (
            store.put_message("T", 0, b"x" * 12_000, b"", born_timestamp=1, born_host=BORN),
            store.put_batch("T", 0, big, born_timestamp=1, born_host=BORN),
        ):
            assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
            assert os.strerror(errno.ENOSPC) in result.reason
    assert (store.max_physical_offset, store.get_max_offset("T", 0)) == (end, 1)
    assert not any((store.config.commit_log_path / ("0" * 20)).read_bytes()[end:])
    store.put_batch("T", 0, big, born_timestamp=1, born_host=BORN)
    assert len(bodies(store, "T", 0)) == 61


def test_pages_not_touched_at_a_roll_over_are_touched_before_a_write(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(allocate_ahead=4096)
    log = log_of(store)
    put(store, "T", 0, b"x" * 20_000)
    refusing = True
    touched = []
    touch = MappedFile.touch

    def sometimes(file: MappedFile, start: int, end: int) -> None:
        if refusing and file.file_from_offset >= log.file_size:
            raise OSError(errno.ENOSPC, "No space left on device")
        touched.append((file.file_from_offset + start, file.file_from_offset + end))
        touch(file, start, end)

    monkeypatch.setattr(MappedFile, "touch", sometimes)
    result = store.put_message("T", 0, b"y" * 20_000, b"", born_timestamp=1, born_host=BORN)
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert log.max_offset == log.file_size  # the roll-over itself is done
    refusing = False
    result = put(store, "T", 0, b"z" * 10)
    assert any(start <= result.physical_offset and result.end_physical_offset <= end for start, end in touched)
    assert bodies(store, "T", 0) == [b"x" * 20_000, b"z" * 10]


class RecordedWrites:
    """A mapping that notes where it is written."""

    def __init__(self, mapping: mmap.mmap | bytearray, places: list[tuple[int, int]]) -> None:
        self.mapping = mapping
        self.places = places

    def __setitem__(self, place: slice, data: bytes) -> None:
        self.places.append((place.start, place.stop))
        self.mapping[place] = data


def test_the_size_of_a_record_is_written_last(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed during a write leaves a size of zero: the log ends before that record."""
    store = make_store()
    put(store, "T", 0, b"opens log and queue")
    start = log_of(store).position
    places: list[tuple[int, int]] = []
    mapping = CommitLog.mm
    monkeypatch.setattr(CommitLog, "mm", property(lambda log: RecordedWrites(mapping.__get__(log), places)))
    put(store, "T", 0, b"body", b"TAGS\x01t")
    end = log_of(store).position
    assert sorted(places)[0] == (start, start + 4)
    assert sorted(places)[-1][1] == end
    assert places[-1] == (start, start + 4)
