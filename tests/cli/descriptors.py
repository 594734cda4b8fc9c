"""Descriptors that a test watches: pipes that must be closed, and some of its own that only the test may close."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


def open_files() -> set[tuple[int, int]]:
    """Device and inode of each open descriptor of this process."""
    listing = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    found = set()
    for path in list(listing.iterdir()):
        with contextlib.suppress(OSError):  # closed meanwhile, or that of the listing itself
            found.add(_identity(int(path.name)))
    return found


@contextlib.contextmanager
def closes_its_pipes() -> Iterator[None]:
    """AssertionError if a pipe created by this thread is still open at the end. Other threads may open anything."""
    made: set[tuple[int, int]] = set()
    thread, pipe = threading.get_ident(), os.pipe

    def recorded() -> tuple[int, int]:
        ends = pipe()
        if threading.get_ident() == thread:
            made.update(map(_identity, ends))
        return ends

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pipe", recorded)
        yield
    assert made
    assert not made & open_files()


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:  # that of the listing itself
        return False
    return True


class WatchedDescriptors:
    """Opens descriptors when others have just been closed, so that it gets their numbers, and checks that they live."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, int]] = {}

    def some(self) -> None:
        for _ in range(8):
            number = os.open(os.devnull, os.O_RDONLY)
            self._files[number] = _identity(number)

    def check(self) -> None:
        """Close them; AssertionError if other code did."""
        files, self._files = self._files, {}
        gone = [number for number, file in files.items() if not _is_open(number) or _identity(number) != file]
        for number in files.keys() - gone:
            os.close(number)
        assert files
        assert not gone, f"closed by other code: {gone}"


def _identity(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino
