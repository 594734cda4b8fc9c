"""Descriptors that a test watches: those that are open, and some of its own that nobody else may close."""

from __future__ import annotations

import os
from pathlib import Path


def open_descriptors() -> set[int]:
    """The numbers of what this process has open now."""
    listing = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
    return {int(path.name) for path in list(listing.iterdir()) if _is_open(int(path.name))}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:  # that of the listing itself
        return False
    return True


class Opened:
    """Opens descriptors when others have just been closed, so that it gets their numbers, and checks that they live."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, int]] = {}

    def some(self) -> None:
        for _ in range(8):
            number = os.open(os.devnull, os.O_RDONLY)
            self._files[number] = _identity(number)

    def check(self) -> None:
        """Close them; AssertionError when somebody else has."""
        files, self._files = self._files, {}
        gone = [number for number, file in files.items() if not _is_open(number) or _identity(number) != file]
        for number in files.keys() - gone:
            os.close(number)
        assert files
        assert not gone, f"closed by somebody else: {gone}"


def _identity(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino
