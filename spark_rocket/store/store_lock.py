"""The two small files that guard a store directory: ``lock`` and ``abort``.

``lock`` (content ``lock``) is locked with ``flock`` and with a POSIX lock on its first byte. A Java broker takes the
POSIX lock, so neither broker can open a directory that the other uses. ``abort`` exists while a store is open and
contains the process id as text, as in 5.x. If it exists at start, the last owner did not stop cleanly. Both files are
in ``storePathRootDir``. Directories outside the root (paths.py) are locked with ``flock`` too, so that two brokers
with different roots cannot share one.

The kernel releases all locks when the process ends, for whatever reason. Corresponds to DefaultMessageStore's lock file
and abort file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from spark_rocket.errors import StoreLockedError


class StoreLock:
    """A lock on a store directory: exclusive for its broker, or shared by readers of a stopped store."""

    # Closing any descriptor of a file drops the process's POSIX locks on it. A second attempt in this process must
    # therefore be rejected before it opens the file.
    _held: ClassVar[set[tuple[int, int]]] = set()

    def __init__(self, store_path: Path, *, is_shared: bool = False) -> None:
        """``is_shared``: nothing is written, and a store without a lock file is not locked."""
        self._is_shared = is_shared
        self._kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        self._store_path = store_path
        self._path = store_path / "lock"
        self._fd = -1
        self._key = (0, 0)
        self._directories: list[int] = []

    def acquire(self) -> None:
        """Take the lock, or raise ``StoreLockedError``."""
        if self.is_held_here(self._store_path):
            raise self._refusal(os.getpid())
        try:
            fd = os.open(self._path, (os.O_RDONLY if self._is_shared else os.O_RDWR | os.O_CREAT) | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            if self._is_shared:
                return
            raise
        try:
            fcntl.flock(fd, self._kind | fcntl.LOCK_NB)
            fcntl.lockf(fd, self._kind | fcntl.LOCK_NB, 1, 0)
        except OSError:
            os.close(fd)
            raise self._refusal(read_abort(self._store_path)) from None
        self._fd = fd
        if self._is_shared:
            return
        if os.pread(fd, 8, 0) != b"lock":
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"lock", 0)
        status = os.fstat(fd)
        self._key = (status.st_dev, status.st_ino)
        self._held.add(self._key)

    def acquire_directories(self, directories: Iterable[Path]) -> None:
        """Lock these existing directories too; ``release`` unlocks them. StoreLockedError if another store has one."""
        self._directories += _lock_directories(directories, self._kind)

    @classmethod
    def is_held_here(cls, store_path: Path) -> bool:
        """Return whether this process has the store open."""
        try:
            status = (store_path / "lock").stat()
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) in cls._held

    def _refusal(self, owner: int | None) -> StoreLockedError:
        holder = f"process {owner}" if owner else "another broker"
        other = f"Stop {'that process' if owner else 'that broker'} first, or use another directory."
        return StoreLockedError(
            f"The store directory {self._store_path} is in use by {holder}.",
            remedy="Stop its broker first." if self._is_shared else other,
        )

    def release(self) -> None:
        """Release all locks."""
        while self._directories:
            os.close(self._directories.pop())
        if self._fd >= 0:
            self._held.discard(self._key)
            os.close(self._fd)
            self._fd = -1


def _lock_directories(directories: Iterable[Path], kind: int) -> list[int]:
    """Lock each directory with ``flock`` and return the descriptors. StoreLockedError, with no lock held, if in use."""
    held: list[int] = []
    try:
        for directory in directories:
            held.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            try:
                fcntl.flock(held[-1], kind | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreLockedError(
                    f"The directory {directory} is in use by another store.",
                    remedy="Stop that broker first, or use another directory.",
                ) from None
            except OSError:  # NFS does not lock directories; the lock file in the root is still held
                os.close(held.pop())
    except BaseException:
        for descriptor in held:
            os.close(descriptor)
        raise
    return held


def abort_path(store_path: Path) -> Path:
    return store_path / "abort"


def write_abort(store_path: Path) -> None:
    """Mark the store as open; the mark is durable before anything else changes."""
    fd = os.open(abort_path(store_path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, str(os.getpid()).encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def read_abort(store_path: Path) -> int | None:
    """Return the process id in the abort file, or None if it has none (4.9 leaves the file empty)."""
    try:
        text = abort_path(store_path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
