"""File descriptors of the store, with a reserve for when the process has none left.

Also helpers for directories and small files.

A process may have only a few thousand descriptors, and its connections can use them all. The log must still be able to
roll over and be flushed then. The store therefore holds a reserve of descriptors, open on the null device, from its
start. When the system refuses a descriptor (EMFILE, ENFILE), one of the reserve is closed to make room. A closed
descriptor refills the reserve (``dup2``), so that a connection cannot take it.

Thread-safety: any thread. No state on disk.
Apache's broker has no equivalent: it keeps a descriptor open for each of its files.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_RESERVED_DESCRIPTORS = 16
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_lock = threading.Lock()
_reserve: list[int] = []
_is_enabled = False


class ShortageError(OSError):
    """A file could not be opened: no descriptor or memory is left. Nothing was written or synced; retry later."""


def keep_reserve() -> None:
    """Start to hold reserve descriptors, up to ``_RESERVED_DESCRIPTORS`` if the system allows."""
    global _is_enabled
    with _lock:
        _is_enabled = True
        _fill()


def open_file(path: Path, flags: int) -> int:
    """Open a file; close its descriptor with :func:`close_file`. OSError; :class:`ShortageError` if none is left."""
    return with_reserve(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644))


def close_file(fd: int) -> None:
    """Close a descriptor, or refill the reserve with it."""
    with _lock:
        if _is_enabled and len(_reserve) < _RESERVED_DESCRIPTORS:
            if _reserve:
                os.dup2(_reserve[0], fd, inheritable=False)
                _reserve.append(fd)
                return
            os.close(fd)
            _fill()
            return
    os.close(fd)


def with_reserve(operation: Callable[[], T]) -> T:
    """Run an operation that needs a descriptor, with one of the reserve if no other is left; return its result.

    Raises the operation's OSError; :class:`ShortageError` if no descriptor or memory is left.
    """
    while True:
        try:
            return operation()
        except OSError as error:
            if error.errno not in _SHORTAGES:
                raise
            with _lock:
                if error.errno == errno.ENOMEM or not _reserve:
                    raise ShortageError(error.errno, error.strerror, error.filename) from None
                os.close(_reserve.pop())


def _fill() -> None:
    try:
        while len(_reserve) < _RESERVED_DESCRIPTORS:
            _reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:  # the next closed file refills the reserve
        return


def make_directory(directory: Path) -> None:
    """Create a directory with its parents, and sync the names of all new ones to disk."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def replace_file(path: Path, text: str) -> None:
    """Replace a small file atomically and durably. OSError."""
    make_directory(path.parent)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Sync a directory: a new file is durable only when its name is. OSError as from ``MappedFile.flush``."""
    fd = open_file(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        close_file(fd)
