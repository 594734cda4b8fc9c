"""Descriptors for the store's files: opened and closed here, with a reserve for when the process has no others left.
Beside them what is done to directories and small files as a whole.

A process may have a few thousand descriptors, and its connections are the first to take them all. So that the log can
still roll over and be flushed then, a few descriptors are held open on the null device from the store's start on. When
the system refuses one (EMFILE, ENFILE), a held one makes way; a descriptor that is closed becomes a held one again
(``dup2``), so that no connection can take its place.

Thread-safety: any thread. After a crash: nothing is kept.
Apache's broker has nothing like it: it keeps a descriptor for each of its files.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_RESERVE = 16
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_lock = threading.Lock()
_held: list[int] = []
_is_kept = False


class ShortageError(OSError):
    """The system could not open a file: no descriptor or memory is left. Nothing was written or synced; retry later."""


def keep_reserve() -> None:
    """Hold descriptors from now on, as many as the system gives."""
    global _is_kept
    with _lock:
        _is_kept = True
        _fill()


def open_file(path: Path, flags: int, mode: int = 0o644) -> int:
    """A descriptor, to be closed with :func:`close_file`. OSError; :class:`ShortageError` if the system has none."""
    return with_reserve(lambda: os.open(path, flags | os.O_CLOEXEC, mode))


def close_file(fd: int) -> None:
    """Close a descriptor; it becomes one of the reserve if that lacks one."""
    with _lock:
        if _is_kept and len(_held) < _RESERVE:
            if _held:
                os.dup2(_held[0], fd, inheritable=False)
                _held.append(fd)
                return
            os.close(fd)
            _fill()
            return
    os.close(fd)


def with_reserve(operation: Callable[[], T]) -> T:
    """What an operation returns that needs a descriptor; held ones make way for it if there are no others.

    OSError of its own; :class:`ShortageError` if there is no descriptor or memory for it.
    """
    while True:
        try:
            return operation()
        except OSError as error:
            if error.errno not in _SHORTAGES:
                raise
            with _lock:
                if error.errno == errno.ENOMEM or not _held:
                    raise ShortageError(error.errno, error.strerror, error.filename) from None
                os.close(_held.pop())


def _fill() -> None:
    try:
        while len(_held) < _RESERVE:
            _held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:  # the next file that is closed makes up for it
        return


def make_directory(directory: Path) -> None:
    """Make a directory, with its parents, and put the names of all that are new on the disk."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def replace_file(path: Path, text: str) -> None:
    """Put a small file on disk, whole or as it was before. OSError."""
    make_directory(path.parent)
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Put names on the disk: a new file is safe only when its directory is. OSError as from ``MappedFile.flush``."""
    fd = open_file(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        close_file(fd)
