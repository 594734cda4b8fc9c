"""The one class over mmap: sizes, blocks, views, clearing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spark_rocket.errors import StateError, StoreCorruptError
from spark_rocket.store.mapped_file import PAGE_SIZE, MappedFile, file_name
from spark_rocket.store.mapped_file_queue import MappedFileQueue


@pytest.fixture
def file(tmp_path: Path) -> MappedFile:
    return MappedFile(tmp_path / file_name(0), 10 * PAGE_SIZE, create=True)


def test_a_new_file_is_sparse_and_of_full_size(file: MappedFile) -> None:
    status = file.path.stat()
    assert (status.st_size, status.st_blocks) == (10 * PAGE_SIZE, 0)
    file.reserve(1)
    assert file.allocated == PAGE_SIZE
    assert file.path.stat().st_blocks * 512 == PAGE_SIZE
    file.reserve(PAGE_SIZE + 1, 3 * PAGE_SIZE)
    assert file.allocated == 5 * PAGE_SIZE
    file.reserve(10 * PAGE_SIZE, PAGE_SIZE)
    assert file.allocated == 10 * PAGE_SIZE
    file.close()


def test_written_bytes_are_in_the_file_without_a_flush(file: MappedFile) -> None:
    file.reserve(100)
    file.touch(0, 100)
    file.mm[10:15] = b"hello"
    assert file.read(10, 5) == b"hello"
    file.flush()
    file.close()
    assert file.path.read_bytes()[10:15] == b"hello"


def test_neither_closed_nor_resized_under_a_reader(file: MappedFile) -> None:
    view = memoryview(file.mm)[5:10]
    with pytest.raises(StateError, match="still being read"):
        file.close()
    with pytest.raises(StateError):
        file.resize(PAGE_SIZE)
    assert bytes(view) == bytes(5)
    view.release()
    file.resize(PAGE_SIZE)
    assert file.path.stat().st_size == PAGE_SIZE
    file.close()


@pytest.mark.parametrize("keep", [True, False])
def test_clear_from_makes_zeros_and_keeps_the_size(tmp_path: Path, keep: bool) -> None:
    file = MappedFile(tmp_path / "f", 4 * PAGE_SIZE, create=True, keep_descriptor=keep)
    file.reserve(4 * PAGE_SIZE)
    file.mm[:] = b"x" * (4 * PAGE_SIZE)
    file.clear_from(PAGE_SIZE + 10)
    assert file.mm[:] == b"x" * (PAGE_SIZE + 10) + bytes(3 * PAGE_SIZE - 10)
    assert file.path.stat().st_size == 4 * PAGE_SIZE
    assert file.has_data(PAGE_SIZE)
    assert not file.has_data(PAGE_SIZE + 10)
    file.reserve(4 * PAGE_SIZE)
    file.mm[3 * PAGE_SIZE :] = b"y" * PAGE_SIZE
    assert file.has_data(PAGE_SIZE + 10)
    file.close()


def test_no_descriptor_is_kept_for_consume_queues(tmp_path: Path) -> None:
    file = MappedFile(tmp_path / "f", PAGE_SIZE, create=True, keep_descriptor=False)
    before = len(list(Path("/proc/self/fd").iterdir()))
    file.reserve(PAGE_SIZE)
    file.flush()
    file.read(0, 10)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    file.close()


def test_pages_given_back_keep_their_bytes(file: MappedFile) -> None:
    file.reserve(10 * PAGE_SIZE)
    file.mm[:] = b"z" * (10 * PAGE_SIZE)
    file.release_pages(0, 10 * PAGE_SIZE)
    assert file.mm[:] == b"z" * (10 * PAGE_SIZE)
    file.close()


def test_a_wrong_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / file_name(0)
    path.write_bytes(b"abc")
    with pytest.raises(StoreCorruptError, match="has 3 bytes"):
        MappedFile(path, PAGE_SIZE, create=True)
    with pytest.raises(StoreCorruptError, match="has 3 bytes, not 4096"):
        _ = MappedFile(path, PAGE_SIZE).mm


def test_a_full_disk_is_an_error_before_a_byte_is_written(file: MappedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        file.reserve(1)
    assert file.allocated == 0
    file.close()


class TestQueueOfFiles:
    """MappedFileQueue.load: what it takes and what it refuses by name."""

    def load(self, directory: Path) -> MappedFileQueue:
        queue = MappedFileQueue(directory, PAGE_SIZE, setting="mappedFileSizeCommitLog")
        queue.load()
        return queue

    def make(self, directory: Path, *offsets: int, size: int = PAGE_SIZE) -> None:
        for offset in offsets:
            (directory / file_name(offset)).write_bytes(bytes(size))

    def test_finds_files_by_offset(self, tmp_path: Path) -> None:
        self.make(tmp_path, PAGE_SIZE, 2 * PAGE_SIZE)
        queue = self.load(tmp_path)
        assert (queue.min_offset, queue.end_offset) == (PAGE_SIZE, 3 * PAGE_SIZE)
        found = queue.find(2 * PAGE_SIZE - 1)
        assert found is queue.files[0]
        assert queue.find(PAGE_SIZE - 1) is None
        assert queue.find(3 * PAGE_SIZE) is None

    def test_no_directory_is_no_files(self, tmp_path: Path) -> None:
        assert self.load(tmp_path / "none").files == []

    def test_an_unfinished_creation_is_removed(self, tmp_path: Path) -> None:
        self.make(tmp_path, 0)
        self.make(tmp_path, PAGE_SIZE, size=0)
        assert len(self.load(tmp_path).files) == 1
        assert not (tmp_path / file_name(PAGE_SIZE)).exists()

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            ({"readme.txt": 5}, "readme.txt is not a file of a log"),
            ({file_name(0): PAGE_SIZE, file_name(2 * PAGE_SIZE): PAGE_SIZE}, "does not follow"),
            ({file_name(0): 100}, "has 100 bytes where mappedFileSizeCommitLog says 4096"),
            ({file_name(0): 0, file_name(PAGE_SIZE): PAGE_SIZE}, "has 0 bytes"),
        ],
    )
    def test_refuses(self, tmp_path: Path, names: dict[str, int], message: str) -> None:
        for name, size in names.items():
            (tmp_path / name).write_bytes(bytes(size))
        with pytest.raises(StoreCorruptError, match=message):
            self.load(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == set(names)

    def test_truncate(self, tmp_path: Path) -> None:
        for offset in (0, PAGE_SIZE, 2 * PAGE_SIZE):
            (tmp_path / file_name(offset)).write_bytes(b"x" * PAGE_SIZE)
        queue = self.load(tmp_path)
        queue.truncate(PAGE_SIZE + 7)
        assert [path.name for path in sorted(tmp_path.iterdir())] == [file_name(0), file_name(PAGE_SIZE)]
        assert (tmp_path / file_name(PAGE_SIZE)).read_bytes() == b"x" * 7 + bytes(PAGE_SIZE - 7)
        queue.truncate(PAGE_SIZE)
        assert [path.name for path in tmp_path.iterdir()] == [file_name(0)]
        queue.close()
