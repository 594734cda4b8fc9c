"""The tiers of tests, and what keeps a unit test from starting servers.

``live`` is the mark of tests that open sockets or start processes, and of some that take long. ``spark`` is that of
tests with a Spark session. The others are unit tests: one that opens a socket or starts a process fails.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LIVE_FOLDERS = ("tests/cluster/", "tests/crash/", "tests/fuzz/", "tests/proxy/official/")
"""All of whose tests are live."""
LONG_FILES = ("_machine.py", "_model.py", "_random.py", "_crashes.py", "test_bad_files.py", "test_torn_images.py")
"""Ends of the names of files with random histories and damaged stores, which are live because they take long."""
SPARK_FOLDERS = ("tests/spark/", "tests/jobs/")

ROOT = Path(__file__).parents[2]
_ALL_LIVE = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(?:live|spark)\b", re.M)
_INET = (socket.AF_INET, socket.AF_INET6)
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})


def mark(item: pytest.Item) -> None:
    """Give a test its tier's mark by its folder or its fixtures."""
    if item.nodeid.startswith(SPARK_FOLDERS):
        item.add_marker(pytest.mark.spark)
    elif item.nodeid.startswith(LIVE_FOLDERS) or item.path.name.endswith(LONG_FILES):
        item.add_marker(pytest.mark.live)


def has_unit_tests(path: Path) -> bool:
    """Whether a file of tests, which is not imported for this, may have some."""
    name = path.relative_to(ROOT).as_posix()
    if name.startswith((*LIVE_FOLDERS, *SPARK_FOLDERS)) or name.endswith(LONG_FILES):
        return False
    return _ALL_LIVE.search(path.read_text(encoding="utf-8")) is None


def is_unit(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(tier) for tier in ("live", "spark"))


def _is_connection(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a stream is opened. Libraries use datagrams to find the machine's address."""
    if event == "socket.__new__":
        return arguments[1] in _INET and arguments[2] == socket.SOCK_STREAM
    return event in ("socket.bind", "socket.connect") and arguments[0].type == socket.SOCK_STREAM


class Guard:
    """A pytest plugin for runs of unit tests alone: it fails those that open a socket or start a process.

    Files without unit tests, about half of all, are not imported.

    asyncio's pair of sockets for itself is neither bound nor of the internet. Live tests may leave threads behind that
    connect again. So once the process has run one, only what a unit test's own thread does counts.
    """

    def __init__(self) -> None:
        self._watching = False
        self._had_live_test = False
        self._seen: list[str] = []
        sys.addaudithook(self._audit)  # there is no way to remove one

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (
            self._watching
            and (event in _STARTS or _is_connection(event, arguments))
            and not (self._had_live_test and threading.current_thread() is not threading.main_thread())
        ):
            stack = traceback.format_stack(limit=12)[:-1]
            self._seen.append(f"{event}\n{''.join(stack)}")

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_of_tests = collection_path.match("test_*.py") and collection_path.is_relative_to(ROOT)
        return True if is_of_tests and not has_unit_tests(collection_path) else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._seen.clear()
        self._watching = is_unit(item)
        self._had_live_test |= not self._watching
        try:
            return (yield)
        finally:
            self._watching = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self._watching = False
            if self._seen:
                pytest.fail(f"A unit test opens sockets or starts processes; mark it live. {self._seen[0]}", False)
