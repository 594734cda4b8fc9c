"""The one class over mmap: sizes, blocks, views, clearing."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from spark_rocket.errors import StateError, StoreCorruptError
from spark_rocket.store.log import mapped_file
from spark_rocket.store.log.mapped_file import KEEPS_DESCRIPTORS, PAGE_SIZE, MappedFile, file_name
from spark_rocket.store.log.mapped_file_queue import MappedFileQueue


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


def test_not_closed_under_a_reader(file: MappedFile) -> None:
    view = memoryview(file.mm)[5:10]
    with pytest.raises(StateError, match="still being read"):
        file.close()
    assert bytes(view) == bytes(5)
    view.release()
    file.close()


def test_clear_from_makes_zeros_and_keeps_the_size(tmp_path: Path) -> None:
    file = MappedFile(tmp_path / "f", 4 * PAGE_SIZE, create=True)
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


def test_no_descriptor_is_kept(file: MappedFile) -> None:
    """Except by the mapping, until Python 3.12."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    file.reserve(PAGE_SIZE)
    file.mm[:5] = b"hello"
    file.flush()
    assert file.read(0, 5) == b"hello"
    assert len(list(Path("/proc/self/fd").iterdir())) == before + KEEPS_DESCRIPTORS
    file.unmap()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    file.close()


def test_a_destroyed_file_stays_readable_for_its_users(file: MappedFile) -> None:
    """Retention deletes while other threads read, flush and allocate: their memory and bytes stay valid."""
    file.reserve(PAGE_SIZE)
    file.mm[:5] = b"hello"
    view = memoryview(file.mm)[:5]
    with file.descriptor() as fd:
        file.destroy()
        assert not file.path.exists()
        assert os.pread(fd, 5, 0) == b"hello"
    assert bytes(view) == b"hello"
    file.flush()  # nothing is left to be put on the disk
    file.reserve(2 * PAGE_SIZE)
    file.release_pages(PAGE_SIZE)
    with pytest.raises(FileNotFoundError):
        file.read(0, 5)
    view.release()
    file.close()


def test_a_missing_file_is_not_taken_for_a_flushed_one(file: MappedFile) -> None:
    file.path.unlink()
    with pytest.raises(FileNotFoundError):
        file.flush()


def test_destroyed_while_other_threads_work_on_it(tmp_path: Path) -> None:
    """Eight threads read, flush and map sixty files that are destroyed meanwhile: each works, or gets an error."""
    files = [MappedFile(tmp_path / str(i), 4 * PAGE_SIZE, create=True) for i in range(60)]
    for file in files:
        file.reserve(4 * PAGE_SIZE)
        file.mm[:5] = b"hello"
    errors: list[BaseException] = []
    started = threading.Barrier(9)

    def work() -> None:
        started.wait()
        try:
            for file in files:
                try:
                    while True:
                        file.flush()
                        file.release_pages(4 * PAGE_SIZE)
                        assert file.mm[:5] == b"hello"
                        assert file.read(0, 5) == b"hello"
                        file.unmap()
                except FileNotFoundError:
                    assert file.is_destroyed
        except BaseException as error:  # what a thread dies of is the test's to report
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    for file in files:
        file.destroy()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(tmp_path.iterdir()) == []


def test_a_range_is_flushed_mapped_or_not(file: MappedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.reserve(3 * PAGE_SIZE)
    file.mm[5000:5005] = b"hello"
    file.flush(5000, 5005)

    def broken(*span: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    if sys.platform == "linux":
        file.flush(5000, 5005)
        file.flush(0, file.size)
        monkeypatch.setattr(mapped_file, "_msync", lambda *_: -1)
    with pytest.raises(OSError):
        file.flush(5000, 5005)
    file.unmap()
    with pytest.raises(OSError, match="Input/output error"):
        file.flush(5000, 5005)
    monkeypatch.undo()
    file.flush(5000, 5005)
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
    """MappedFileQueue.load: accepted files, and files that are refused by name."""

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
        queue = self.load(tmp_path)
        assert len(queue.files) == 1
        assert (tmp_path / file_name(PAGE_SIZE)).exists()  # looking changes nothing
        queue.create(2 * PAGE_SIZE)
        assert not (tmp_path / file_name(PAGE_SIZE)).exists()

    @pytest.mark.parametrize(
        ("names", "message"),
        [
            ({"readme.txt": 5}, "readme.txt is not a log file"),
            ({file_name(0): PAGE_SIZE, file_name(2 * PAGE_SIZE): PAGE_SIZE}, "does not follow"),
            ({file_name(0): 100}, "has 100 bytes, but mappedFileSizeCommitLog is 4096"),
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

    @pytest.mark.parametrize(("offset", "gone"), [(0, 0), (1, 0), (2, 1), (3, 2), (5, 4), (6, 4), (99, 4)])
    def test_remove_before(self, tmp_path: Path, offset: int, gone: int) -> None:
        """Whole files that end at or below the offset, in pages here; the last one stays whatever the offset."""
        self.make(tmp_path, *(page * PAGE_SIZE for page in range(1, 6)))
        queue = self.load(tmp_path)
        before = queue.files
        assert queue.remove_before(offset * PAGE_SIZE) == before[:gone]
        assert queue.files == before[gone:]
        assert queue.min_offset == (1 + gone) * PAGE_SIZE
        assert queue.find(PAGE_SIZE) is (None if gone else before[0])
        assert [file.read(0, 1) for file in before] == [b"\0"] * 5  # nothing is deleted yet
        assert MappedFileQueue(tmp_path / "none", PAGE_SIZE, setting="").remove_before(PAGE_SIZE) == []
