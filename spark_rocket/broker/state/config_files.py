"""The broker's ``config/*.json``: read with a fallback to ``.bak``, written so that a kill or a power failure
at any moment loses nothing. Likewise ``broker.conf``, where settings are changed while the broker runs.

A file is written as ``<name>.tmp`` and brought to disk, the present one becomes ``<name>.bak``, and the new one takes
its place by rename; at every moment ``<name>`` or ``<name>.bak`` is whole. The text is fastjson's tab-indented one,
integer keys unquoted.

A broken file is set aside as ``<name>.broken`` when its ``.bak`` can be read; when neither can, :class:`ConfigError`
names the file and the line, because guessing would drop topics or offsets. So it does for a file that may not be read.

Thread-safety: :class:`ConfigFile` is used by one thread at a time. :class:`ConfigSaver` belongs to the event loop and
writes on one thread of its own; what it writes is a snapshot taken on the loop.
Corresponds to org.apache.rocketmq.common.ConfigManager and MixAll.string2File.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from spark_rocket.errors import ConfigError, ProtocolError
from spark_rocket.files import replace_file, sync_directory
from spark_rocket.protocol.java_properties import edit_properties
from spark_rocket.protocol.wire.bodies import dumps_fastjson, loads_tolerant

_log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""How long after a write that failed the next one begins."""
_BARE_KEY = re.compile(r"([{,]\s*)(-?\d+)(\s*:)")


class _BrokenFileError(Exception):
    """One file that cannot be taken over: at which line, and why."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.path = path


class ConfigFile:
    """One file and what it is taken from and loaded into."""

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], dict[str, Any] | bytes],
        load: Callable[[dict[str, Any]], None],
    ) -> None:
        self.path = path
        self.snapshot = snapshot
        self._load = load

    def load(self) -> bool:
        """Load the file, or its ``.bak``; False when there is neither. ConfigError when what is there is broken."""
        backup = self.path.with_name(self.path.name + ".bak")
        broken: _BrokenFileError | None = None
        try:
            if self._load_from(self.path):
                return True
        except _BrokenFileError as error:
            broken = error
        try:
            found = self._load_from(backup)
        except _BrokenFileError as error:
            raise self._error(broken or error) from None
        if broken is not None and not found:
            raise self._error(broken)
        if broken is not None:
            self._set_aside(broken)
        elif found:
            _log.warning("%s is missing; loaded %s.", self.path, backup.name)
        return found

    def _set_aside(self, broken: _BrokenFileError) -> None:
        """Keep the broken file under another name, now that its .bak is loaded."""
        aside = self.path.with_name(self.path.name + ".broken")
        try:
            self.path.replace(aside)
        except OSError as error:
            raise ConfigError(
                f"{broken}; it cannot be set aside as {aside.name}: {error.strerror}.",
                remedy=f"Move {self.path.name} elsewhere; its .bak can be read.",
            ) from error
        _log.warning("%s. Loaded %s.bak instead; the broken file is kept as %s.", broken, self.path.name, aside.name)

    def _error(self, broken: _BrokenFileError) -> ConfigError:
        return ConfigError(
            f"{broken}.",
            remedy=f"Repair {broken.path.name}, or move it and its .bak away to start without what is in them.",
        )

    def _load_from(self, path: Path) -> bool:
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return False
        except PermissionError as error:  # nothing is broken, and its .bak is older
            raise ConfigError(
                f"{path} cannot be read: {error.strerror}.",
                remedy=f"Give the user that runs the broker the right to read {path.parent} and what is in it.",
            ) from error
        except OSError as error:
            raise _BrokenFileError(path, 1, f"cannot be read: {error.strerror}") from error
        try:
            stored = loads_tolerant(raw)
        except ProtocolError as error:
            line, reason = _locate(raw, error.message)
            raise _BrokenFileError(path, line, f"not the JSON of a RocketMQ broker: {reason}") from error
        if not isinstance(stored, dict):
            raise _BrokenFileError(path, 1, "a JSON object is expected")
        try:
            self._load(stored)
        except (ValueError, TypeError, KeyError, AttributeError, ProtocolError) as error:
            raise _BrokenFileError(path, 1, f"unexpected content: {error}") from error
        return True

    def write(self, snapshot: dict[str, Any] | bytes) -> None:
        """Put a snapshot, plain values or the text itself, in the file's place; it is on disk on return.

        On disk before it has its name: after a power failure a file renamed earlier could be empty, and its .bak too.
        """
        directory = self.path.parent
        if not directory.is_dir():
            directory.mkdir(parents=True)
            sync_directory(directory.parent)
        temporary = self.path.with_name(self.path.name + ".tmp")
        text = snapshot if isinstance(snapshot, bytes) else dumps_fastjson(snapshot, pretty=True)
        backup = self.path.with_name(self.path.name + ".bak")
        if not self.path.exists() and not backup.exists():  # one of two can be lost from the first write on
            _write(temporary, text)
            temporary.replace(backup)
        _write(temporary, text)
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(backup)
        temporary.replace(self.path)
        sync_directory(directory)

    def save(self) -> None:
        """Write the present state now."""
        self.write(self.snapshot())


def change_properties(path: Path, values: Mapping[str, str]) -> None:
    """Set these names in a properties file, and leave all else in it as it is; it is on disk on return.

    What it was before is kept as ``.bak``. ConfigError, with the file untouched, if it cannot be read or written.
    """
    try:
        path = path.resolve(strict=True)  # a link to the file stays one
        before = path.read_bytes()
        after = edit_properties(before.decode("utf-8"), values).encode("utf-8")
        if after != before:
            replace_file(path.with_name(path.name + ".bak"), before, path.stat())
            replace_file(path, after, path.stat())
    except UnicodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text.", remedy="Save the file as UTF-8.") from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be changed: {error.strerror or error}.",
            remedy="The broker writes settings that are changed while it runs to its file, which it replaces: let it "
            "write to the file's directory.",
        ) from error


def _write(path: Path, text: bytes) -> None:
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _locate(raw: bytes, fallback: str) -> tuple[int, str]:
    """The line of the first thing that is no JSON, fastjson's bare integer keys allowed."""
    if not raw.strip():
        return 1, "the file is empty"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw[: error.start].count(b"\n") + 1, "not UTF-8 text"
    try:
        json.loads(_BARE_KEY.sub(r'\1"\2"\3', text))
    except json.JSONDecodeError as error:
        return error.lineno, error.msg
    return 1, fallback


class ConfigSaver:
    """Writes config files, which go by names, in the background. Saves asked for during a write share the next write.

    A write that fails is tried again every ``retry_seconds`` until it succeeds. The log says when writes begin to
    fail, and when they succeed again.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, files: Mapping[str, ConfigFile], *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self._loop = loop
        self._files = files
        self._retry_seconds = retry_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="config-saver")
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._writing: dict[str, asyncio.Future[str]] = {}
        self._given: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, str] = {}
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        self.on_written: Callable[[str], None] = lambda name: None
        """Called on the loop after each write that succeeds."""

    def problem(self, name: str) -> str:
        """Why the last write of the file failed; empty if it did not."""
        return self._problems.get(name, "")

    def save(self, name: str, snapshot: dict[str, Any] | None = None) -> asyncio.Future[str]:
        """A future that is done when a write with at least the state of this moment has ended: with an empty text if
        the file is on disk, otherwise with the problem. It never raises.

        ``snapshot``: write this earlier state instead.
        """
        if snapshot is None:
            self._given.pop(name, None)
        else:
            self._given[name] = snapshot
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = self._loop.create_future()
            if name not in self._writing:
                # Not at once: several changes in one turn of the loop become one write.
                self._loop.call_soon(self._begin, name)
        return waiting

    def file_saved(self, name: str) -> asyncio.Future[str]:
        """As :meth:`save` for changes whose save has been asked for already: a failed write is tried again at once."""
        pending = self._waiting.get(name) or self._writing.get(name)
        if pending is not None:
            return pending
        if name in self._problems:
            return self.save(name, self._given.get(name))
        done: asyncio.Future[str] = self._loop.create_future()
        done.set_result("")
        return done

    def _begin(self, name: str) -> None:
        if self._closed or name not in self._waiting:
            return
        retry = self._retries.pop(name, None)
        if retry is not None:
            retry.cancel()
        done = self._writing[name] = self._waiting.pop(name)
        given = self._given.pop(name, None)
        file = self._files[name]
        work = self._loop.run_in_executor(self._thread, file.write, file.snapshot() if given is None else given)
        work.add_done_callback(lambda result: self._finish(name, given, done, result))

    def _finish(
        self, name: str, given: dict[str, Any] | None, done: asyncio.Future[str], result: asyncio.Future[None]
    ) -> None:
        del self._writing[name]
        problem = self._note(name, None if result.cancelled() else result.exception())
        if not problem:
            self.on_written(name)
        if not done.done():
            done.set_result(problem)
        if name in self._waiting:
            self._begin(name)
        elif problem and not self._closed:
            if given is not None:
                self._given[name] = given
            self._retries[name] = self._loop.call_later(self._retry_seconds, self.file_saved, name)

    def _note(self, name: str, error: BaseException | None) -> str:
        """The problem of a write that has ended, if it has one; in the log when it is new."""
        path, before = self._files[name].path, self._problems.pop(name, "")
        if error is None:
            if before:
                _log.warning("%s is written again.", path)
            return ""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        problem = self._problems[name] = f"{path.name} could not be written: {reason}"
        if problem != before:
            _log.error("%s could not be written: %s. Retrying every %g s.", path, error, self._retry_seconds)
        return problem

    def close(self) -> None:
        """Wait for the write that runs; what is still waiting is written by the caller's own ``save``."""
        self._closed = True
        for retry in self._retries.values():
            retry.cancel()
        self._thread.shutdown(wait=True)
