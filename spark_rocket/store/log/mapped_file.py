"""One file of fixed size, mapped into memory. The only class of the package that handles mmap.

A file is created sparse at its full size (``ftruncate``), because a broker refuses files of another size. Writing
through a mapping into a hole on a full disk is answered by the kernel with SIGBUS, which kills the process. So whoever
writes first calls :meth:`reserve`, which takes disk blocks with ``posix_fallocate``: a full disk is then an ``OSError``
at a place where it can be refused. Blocks are taken in steps, so that a file stays small while little is in it. Disks
that promise blocks and do not give them refuse when pages are touched, or, without ``MADV_POPULATE_WRITE`` (macOS,
Linux before 5.14), when blocks are taken.

Flushing is ``fdatasync``. Linux has it for a range too, under the name of ``msync``: it writes the range's pages and
then whatever it takes to find them again, new blocks included. A writer's file is flushed like that, because
``fdatasync`` would also write the zeros of pages touched ahead, and make the writer fault on every one of them.
``mmap.flush`` is not used: it keeps the interpreter lock during the write.

No descriptor is kept beside the mapping: a store has tens of thousands of files and a process often but 1,024
descriptors. Whoever needs one opens the file for as long as it takes, which costs 2 µs; see descriptors.py for when
there are none. Few files are mapped at once, since a mapping keeps a descriptor too until Python 3.12.

Thread-safety: one writer; any thread may read, flush, reserve and touch ahead. ``close`` and ``resize`` raise
``StateError`` while views of the mapping are alive, instead of pulling memory from under a reader. ``unmap`` and
``destroy`` wait for nobody: views and copies under way stay good, and the memory goes with the last of them; a thread
that is just reading or flushing a destroyed file goes on, one that comes later finds it gone.
After a crash: all that was written is there if the machine kept running; after a power failure what was flushed.
Corresponds to org.apache.rocketmq.store.logfile.DefaultMappedFile.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from spark_rocket.errors import StateError, StoreCorruptError
from spark_rocket.store.descriptors import close_file, open_file, with_reserve

PAGE_SIZE = mmap.PAGESIZE
KEEPS_DESCRIPTORS = sys.version_info < (3, 13)
"""Whether a mapping has a descriptor of its own as long as it lives."""

_IS_LINUX = sys.platform == "linux"
_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module of Python 3.11 has no name for it
_libc = ctypes.CDLL(None, use_errno=True)  # CDLL releases the interpreter lock during the call
_TOUCH = 1 << 20  # at a time: nobody can map or unmap anything meanwhile
_MS_SYNC = 4
_msync = _libc.msync
_msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_msync.restype = ctypes.c_int
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise.restype = ctypes.c_int


def allocate(fd: int, start: int, length: int) -> None:
    """Take disk blocks for a range that nobody writes to meanwhile. OSError when there are none.

    Where pages cannot be touched later (see :meth:`MappedFile.touch`), what is there is written once more instead: a
    disk that does not give the blocks it has promised, or none ahead (macOS), refuses that.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, start, length)
    if not _can_touch:
        for at in range(start, start + length, _TOUCH):
            end = min(at + _TOUCH, start + length)
            while at < end:  # a disk that is nearly full takes a part and says nothing
                at += os.pwrite(fd, os.pread(fd, end - at, at), at)


def sync_data(fd: int) -> None:
    """``fdatasync``, or what there is of it."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def write_head(path: Path, size: int, raw: bytes, *, sync: bool = True) -> None:
    """Write the first bytes of a small file of that size with one ``pwrite``; the rest is zero. OSError."""
    fd = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(fd).st_size != size:
            os.ftruncate(fd, size)
            allocate(fd, 0, size)  # so that a full disk cannot refuse it later
        os.pwrite(fd, raw, 0)
        if sync:
            sync_data(fd)
    finally:
        close_file(fd)


def map_file(fd: int, size: int) -> mmap.mmap:
    """Map a file. Until Python 3.12 the mapping keeps a descriptor of its own. OSError, ShortageError."""
    if KEEPS_DESCRIPTORS:
        return with_reserve(lambda: mmap.mmap(fd, size))
    without: dict[str, Any] = {"trackfd": False}
    return with_reserve(lambda: mmap.mmap(fd, size, **without))


def _advise(mapping: mmap.mmap, start: int, end: int, advice: int) -> int:
    """``mmap.madvise`` without the interpreter lock; 0 or the error's number.

    Meanwhile there is a view of the mapping, so that it stays.
    """
    anchor = ctypes.c_char.from_buffer(mapping)
    try:
        return ctypes.get_errno() if _madvise(ctypes.addressof(anchor) + start, end - start, advice) else 0
    finally:
        del anchor


_can_touch = _IS_LINUX and not _advise(mmap.mmap(-1, PAGE_SIZE), 0, PAGE_SIZE, _MADV_POPULATE_WRITE)


def sync_mapped(mapping: mmap.mmap, start: int, end: int) -> None:
    """``fdatasync`` of a range, on Linux. OSError when the disk says no."""
    start -= start % PAGE_SIZE
    anchor = ctypes.c_char.from_buffer(mapping)
    try:
        if _msync(ctypes.addressof(anchor) + start, end - start, _MS_SYNC):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        del anchor


def file_name(offset: int) -> str:
    """Name of the file that starts at an offset: 20 decimal digits."""
    return f"{offset:020d}"


class MappedFile:
    """A fixed-size file and its mapping, which is made at the first use of :attr:`mm`."""

    __slots__ = ("_lock", "_mm", "_scattered", "allocated", "file_from_offset", "is_destroyed", "path", "size")

    def __init__(
        self,
        path: Path,
        size: int,
        file_from_offset: int = 0,
        *,
        create: bool = False,
        scattered: bool = False,
    ) -> None:
        """``scattered``: pages are used here and there.

        Without this hint the first touch of a page reads the disk's whole read-ahead around it, which may be 8 MiB and
        then takes 2 ms.
        """
        self.path = path
        self.size = size
        self.file_from_offset = file_from_offset
        self.allocated = 0
        self.is_destroyed = False
        self._scattered = scattered
        self._mm: mmap.mmap | None = None
        self._lock = threading.Lock()
        if create:
            self._create()

    def _create(self) -> None:
        fd = open_file(self.path, os.O_RDWR | os.O_CREAT)
        try:
            # A name that is taken is a leftover of zero length (a crash between these two calls), or a mistake.
            length = os.fstat(fd).st_size
            if length not in (0, self.size):
                raise StoreCorruptError(
                    f"{self.path} has {length} bytes where a new file of {self.size} was to be made.",
                    remedy="Run `rocket store check` on the directory.",
                )
            os.ftruncate(fd, self.size)
        finally:
            close_file(fd)

    @property
    def mm(self) -> mmap.mmap:
        """The mapping. Slices of it are copies; ``memoryview``s and arrays over it are views and hold it open."""
        mapping = self._mm  # read once: another thread may let it go
        if mapping is None:
            self._mm = mapping = self._map()
        return mapping

    def _map(self) -> mmap.mmap:
        with self.descriptor() as fd:
            length = os.fstat(fd).st_size
            if length != self.size:
                raise StoreCorruptError(
                    f"{self.path} has {length} bytes, not {self.size}.",
                    remedy="Set the file sizes in broker.conf to what this directory was made with.",
                )
            mapping = map_file(fd, self.size)
        if self._scattered:
            mapping.madvise(mmap.MADV_RANDOM)
        return mapping

    @property
    def is_mapped(self) -> bool:
        return self._mm is not None

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """A descriptor to work on; FileNotFoundError once the file is destroyed."""
        fd = open_file(self.path, os.O_RDWR)
        try:
            yield fd
        finally:
            close_file(fd)

    def reserve(self, end: int, step: int = 0) -> None:
        """Make sure that bytes up to ``end`` have disk blocks; take ``step`` more while at it. OSError when full."""
        if end <= self.allocated:
            return
        with self._unless_destroyed(), self.descriptor() as fd, self._lock:
            start = self.allocated
            stop = min(-(-(end + step) // PAGE_SIZE) * PAGE_SIZE, self.size)
            if stop > start:
                allocate(fd, start, stop - start)
                self.allocated = stop

    def read(self, position: int, size: int) -> bytes:
        """Bytes of the file without mapping it; a long read leaves no pages in this process's memory."""
        with self.descriptor() as fd:
            return os.pread(fd, size, position)

    def data_ranges(self, position: int) -> Iterator[tuple[int, int]]:
        """Ranges at or behind ``position`` that may hold something else than zeros; holes are left out."""
        with self.descriptor() as fd:
            while position < self.size:
                try:
                    start = os.lseek(fd, position, os.SEEK_DATA)
                    stop = os.lseek(fd, start, os.SEEK_HOLE)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                        return
                    raise
                yield start, stop
                position = stop

    def has_data(self, position: int) -> bool:
        """Whether something else than zeros is at or behind ``position``."""
        for start, stop in self.data_ranges(position):
            while start < stop:
                data = self.read(start, min(stop - start, 1 << 20))
                if data.count(0) != len(data):
                    return True
                start += len(data)
        return False

    def touch(self, start: int, end: int) -> None:
        """Fault pages in for writing without changing them; only for reserved bytes. No lock is held.

        OSError where the disk refuses one, which would end the process (SIGBUS) if it were written to.
        """
        start -= start % PAGE_SIZE
        end = min(end, self.allocated)
        mapping = self.mm
        if not _can_touch:
            return  # ``reserve`` has written there
        for at in range(start, end, _TOUCH):
            if _advise(mapping, at, min(at + _TOUCH, end), _MADV_POPULATE_WRITE) == errno.EFAULT:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def release_pages(self, start: int, end: int) -> None:
        """Give memory of a range back; the bytes stay in the page cache and in the file."""
        start = -(-start // PAGE_SIZE) * PAGE_SIZE
        end = end // PAGE_SIZE * PAGE_SIZE if end < self.size else self.size
        mapping = self._mm
        if mapping is not None and end > start:
            _advise(mapping, start, end, mmap.MADV_DONTNEED)

    def flush(self, start: int = 0, end: int | None = None) -> None:
        """Put every byte written so far on the disk; nothing once destroyed. OSError when the disk says no;
        ShortageError when it was not asked.

        With an end, only the bytes from ``start`` on and before it need be.
        """
        mapping = self._mm
        if mapping is not None and end is not None and _IS_LINUX:
            sync_mapped(mapping, start, end)
            return
        with self._unless_destroyed(), self.descriptor() as fd:
            sync_data(fd)

    @contextmanager
    def _unless_destroyed(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if not self.is_destroyed:
                raise

    def clear_from(self, position: int) -> None:
        """Make every byte from ``position`` on zero, at no cost in time or disk, and forget reserved blocks.

        Cutting the file and growing it again is exact and leaves a hole. Mapped pages beyond the cut are dropped
        by the kernel; the mapping stays good because the size is the same afterwards.
        """
        with self.descriptor() as fd, self._lock:
            os.ftruncate(fd, position)
            os.ftruncate(fd, self.size)
            self.allocated = min(self.allocated, position // PAGE_SIZE * PAGE_SIZE)

    def resize(self, size: int) -> None:
        """Give the file another size; everything beyond it is lost."""
        self.close()
        with self.descriptor() as fd, self._lock:
            os.ftruncate(fd, size)
            self.size = size
            self.allocated = min(self.allocated, size)

    def unmap(self) -> None:
        """Have no mapping any more; its memory goes when nobody looks at it. The next use maps the file again."""
        self._mm = None

    def close(self) -> None:
        """Let the mapping go; StateError while there are views of it. Does not flush."""
        if self._mm is None:
            return
        try:
            self._mm.close()
        except BufferError:
            raise StateError(
                f"{self.path} is still being read.", remedy="Release every view of the file before it is closed."
            ) from None
        self._mm = None

    def destroy(self) -> None:
        """Delete the file; those who use it just now are not disturbed."""
        self.is_destroyed = True
        self.path.unlink(missing_ok=True)
        self.unmap()


def sync_file_system(directory: Path) -> None:
    """Put everything on disk that lies in the file system of a directory: for many files cheaper than one by one.

    OSError as from ``MappedFile.flush``.
    """
    if not _IS_LINUX:
        os.sync()
        return
    fd = open_file(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))
    finally:
        close_file(fd)


def free_name(directory: Path, offset: int) -> Path:
    """A file for bytes of a log from an offset on, in a directory where some from there may have been put before."""
    names = (directory / f"{file_name(offset)}{f'.{number}' if number else ''}" for number in count())
    return next(path for path in names if not path.exists())
