"""A memory-mapped file of fixed size. The only class of the package that uses mmap.

A file is created sparse at its full size (``ftruncate``), because a broker rejects files of another size. A write
through a mapping into a hole on a full disk raises SIGBUS, which kills the process. A writer therefore first calls
:meth:`reserve`, which allocates disk blocks with ``posix_fallocate``. A full disk is then an ``OSError``, before the
write. Blocks are allocated in steps, so that a file with little data stays small. Disks that do not deliver promised
blocks fail when pages are touched. Without ``MADV_POPULATE_WRITE`` (macOS, Linux before 5.14) they fail when blocks
are allocated.

Flushing is ``fdatasync``. Linux has it for a range too, as ``msync``: it writes the range's pages and the metadata
needed to find them, including new blocks. A log file being written is flushed with ``msync``. ``fdatasync`` would also
write the zeros of pages touched ahead, and make the writer fault on each of them. ``mmap.flush`` is not used: it holds
the interpreter lock during the write.

No descriptor stays open beside the mapping: a store has tens of thousands of files, and a process often only 1,024
descriptors. Operations that need one open the file briefly, which costs 2 µs; see descriptors.py for a shortage of
descriptors. Few files are mapped at once, since before Python 3.13 a mapping holds a descriptor too.

Thread-safety: one writer; any thread may read, flush, reserve and touch ahead. ``close`` raises ``StateError`` while
views of the mapping exist, so that no reader loses its memory. ``unmap`` and ``destroy`` do not wait: existing views
and copies in progress stay valid, and the memory is released with the last of them. A thread that is reading or
flushing a destroyed file can finish; later operations find the file missing.
After a process crash: all written data is there. After a power failure: all flushed data.
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
"""Whether a mapping holds a descriptor of its own while it exists."""

_IS_LINUX = sys.platform == "linux"
_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module of Python 3.11 has no name for it
# By ctypes, which releases the interpreter lock during a call: mmap.flush() and mmap.madvise() hold it while the kernel
# writes or touches pages. The os module has no syncfs().
_libc = ctypes.CDLL(None, use_errno=True)
_TOUCH_BYTES = 1 << 20  # per call: other threads cannot map or unmap anything meanwhile
_MS_SYNC = 4
_msync = _libc.msync
_msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_msync.restype = ctypes.c_int
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise.restype = ctypes.c_int


def allocate(fd: int, start: int, length: int) -> None:
    """Allocate disk blocks for a range without concurrent writers. OSError if the disk is full.

    Where pages cannot be touched later (see :meth:`MappedFile.touch`), the range's content is rewritten instead. This
    fails on a disk that does not deliver promised blocks, or cannot promise any (macOS).
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, start, length)
    if not _can_touch:
        for at in range(start, start + length, _TOUCH_BYTES):
            end = min(at + _TOUCH_BYTES, start + length)
            while at < end:  # on a nearly full disk a write may be partial, without an error
                at += os.pwrite(fd, os.pread(fd, end - at, at), at)


def sync_data(fd: int) -> None:
    """Flush with ``fdatasync``, or ``fsync`` where it is missing."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def write_head(path: Path, size: int, raw: bytes, *, sync: bool = True) -> None:
    """Write the first bytes of a small file of ``size`` bytes with one ``pwrite``; the rest is zero. OSError."""
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
    """Map a file. Before Python 3.13 the mapping holds a descriptor of its own. OSError, ShortageError."""
    if KEEPS_DESCRIPTORS:
        return with_reserve(lambda: mmap.mmap(fd, size))
    without: dict[str, Any] = {"trackfd": False}
    return with_reserve(lambda: mmap.mmap(fd, size, **without))


def _advise(mapping: mmap.mmap, start: int, end: int, advice: int) -> int:
    """Call ``madvise`` without the interpreter lock; return 0 or the error number.

    A view keeps the mapping alive during the call.
    """
    anchor = ctypes.c_char.from_buffer(mapping)
    try:
        return ctypes.get_errno() if _madvise(ctypes.addressof(anchor) + start, end - start, advice) else 0
    finally:
        del anchor


_can_touch = _IS_LINUX and not _advise(mmap.mmap(-1, PAGE_SIZE), 0, PAGE_SIZE, _MADV_POPULATE_WRITE)


def sync_mapped(mapping: mmap.mmap, start: int, end: int) -> None:
    """Flush a range as by ``fdatasync``, on Linux. OSError when the disk fails."""
    start -= start % PAGE_SIZE
    anchor = ctypes.c_char.from_buffer(mapping)
    try:
        if _msync(ctypes.addressof(anchor) + start, end - start, _MS_SYNC):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        del anchor


def file_name(offset: int) -> str:
    """Return the name of the file that starts at an offset: 20 decimal digits."""
    return f"{offset:020d}"


class MappedFile:
    """A fixed-size file and its mapping, which is created at the first use of :attr:`mm`."""

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
        """``scattered``: accesses are random.

        Without this hint the first access to a page reads the disk's full read-ahead around it. That may be 8 MiB and
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
            # An existing file is a leftover of zero length (a crash between these two calls), or an error.
            length = os.fstat(fd).st_size
            if length not in (0, self.size):
                raise StoreCorruptError(
                    f"{self.path} has {length} bytes: cannot create a file of {self.size} bytes there.",
                    remedy="Run `rocket store check` on the store directory.",
                )
            os.ftruncate(fd, self.size)
        finally:
            close_file(fd)

    @property
    def mm(self) -> mmap.mmap:
        """The mapping. Slices of it are copies; ``memoryview``s and arrays over it are views and keep it mapped."""
        mapping = self._mm  # read once: another thread may unmap the file
        if mapping is None:
            self._mm = mapping = self._map()
        return mapping

    def _map(self) -> mmap.mmap:
        with self.descriptor(os.O_RDWR) as fd:
            length = os.fstat(fd).st_size
            if length != self.size:
                raise StoreCorruptError(
                    f"{self.path} has {length} bytes, not {self.size}.",
                    remedy="Set the file sizes in broker.conf to the values this directory was created with.",
                )
            mapping = map_file(fd, self.size)
        if self._scattered:
            mapping.madvise(mmap.MADV_RANDOM)
        return mapping

    @property
    def is_mapped(self) -> bool:
        return self._mm is not None

    @contextmanager
    def descriptor(self, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open a temporary descriptor; FileNotFoundError once the file is destroyed. Errors name the file."""
        fd = open_file(self.path, flags)
        try:
            yield fd
        except OSError as error:
            error.filename = error.filename or str(self.path)
            raise
        finally:
            close_file(fd)

    def reserve(self, end: int, step: int = 0) -> None:
        """Ensure disk blocks up to ``end``; if any are missing, allocate ``step`` bytes more. OSError if full."""
        if end <= self.allocated:
            return
        with self._unless_destroyed(), self.descriptor(os.O_RDWR) as fd, self._lock:
            start = self.allocated
            stop = min(-(-(end + step) // PAGE_SIZE) * PAGE_SIZE, self.size)
            if stop > start:
                allocate(fd, start, stop - start)
                self.allocated = stop

    def read(self, position: int, size: int) -> bytes:
        """Read bytes without mapping the file; a long read leaves no pages in this process's memory.

        The file is opened for reading only, as by :meth:`data_ranges`: tools read from read-only file systems.
        """
        with self.descriptor() as fd:
            return os.pread(fd, size, position)

    def data_ranges(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield ranges from ``position`` on that may contain nonzero bytes; holes are skipped."""
        with self.descriptor() as fd:
            while position < self.size:
                try:
                    start = os.lseek(fd, position, os.SEEK_DATA)
                    stop = os.lseek(fd, start, os.SEEK_HOLE)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # only a hole up to the end
                        return
                    raise
                yield start, stop
                position = stop

    def has_data(self, position: int) -> bool:
        """Return whether there are nonzero bytes from ``position`` on."""
        for start, stop in self.data_ranges(position):
            while start < stop:
                data = self.read(start, min(stop - start, 1 << 20))
                if data.count(0) != len(data):
                    return True
                start += len(data)
        return False

    def touch(self, start: int, end: int) -> None:
        """Fault pages in for writing without changing them; only reserved bytes. No lock, no effect once destroyed.

        OSError if the disk refuses a page; a write to it would end the process (SIGBUS).
        """
        start -= start % PAGE_SIZE
        end = min(end, self.allocated)
        with self._unless_destroyed():
            mapping = self.mm
            if not _can_touch:
                return  # ``reserve`` has rewritten the range
            for at in range(start, end, _TOUCH_BYTES):
                if _advise(mapping, at, min(at + _TOUCH_BYTES, end), _MADV_POPULATE_WRITE) == errno.EFAULT:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def release_pages(self, end: int) -> None:
        """Release the memory of the bytes before ``end``; they stay in the page cache and in the file."""
        end = end // PAGE_SIZE * PAGE_SIZE if end < self.size else self.size
        mapping = self._mm
        if mapping is not None and end > 0:
            _advise(mapping, 0, end, mmap.MADV_DONTNEED)

    def flush(self, start: int = 0, end: int | None = None) -> None:
        """Flush every byte written so far to disk; do nothing once destroyed.

        With ``end``, at least the bytes from ``start`` to before ``end``. OSError when the disk fails; ShortageError
        when the flush was not started.
        """
        mapping = self._mm
        if mapping is not None and end is not None and _IS_LINUX:
            sync_mapped(mapping, start, end)
            return
        with self._unless_destroyed(), self.descriptor(os.O_RDWR) as fd:
            sync_data(fd)

    @contextmanager
    def _unless_destroyed(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if not self.is_destroyed:
                raise

    def clear_from(self, position: int) -> None:
        """Make every byte from ``position`` on zero, at no cost in time or disk space, and release reserved blocks.

        Truncating the file and growing it again is exact and leaves a hole. The kernel drops mapped pages beyond the
        cut. The mapping stays valid because the size is the same afterwards.
        """
        with self.descriptor(os.O_RDWR) as fd, self._lock:
            os.ftruncate(fd, position)
            os.ftruncate(fd, self.size)
            self.allocated = min(self.allocated, position // PAGE_SIZE * PAGE_SIZE)

    def unmap(self) -> None:
        """Drop the mapping; its memory is released with its last view. The next use maps the file again."""
        self._mm = None

    def close(self) -> None:
        """Close the mapping, without a flush. StateError while there are views of it."""
        if self._mm is None:
            return
        try:
            self._mm.close()
        except BufferError:
            raise StateError(
                f"Cannot close {self.path}: it is still being read.", remedy="Release every view of the file first."
            ) from None
        self._mm = None

    def destroy(self) -> None:
        """Delete the file; operations in progress can finish."""
        self.is_destroyed = True
        self.path.unlink(missing_ok=True)
        self.unmap()


def sync_file_system(directory: Path) -> None:
    """Sync the file system of a directory: cheaper for many files than one sync each.

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
    """Return an unused path for saved log bytes from an offset on; earlier ones may exist in the directory."""
    names = (directory / f"{file_name(offset)}{f'.{number}' if number else ''}" for number in count())
    return next(path for path in names if not path.exists())
