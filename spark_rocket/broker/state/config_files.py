"""The broker's ``config/*.json``, and changes of settings in ``broker.conf`` at run time.

Reads fall back to ``.bak``. Writes lose nothing when the process is killed or the power fails at any moment.

A file is written as ``<name>.tmp`` and fsynced, the present one is renamed to ``<name>.bak``, and the new one to
``<name>``: at every moment ``<name>`` or ``<name>.bak`` is complete. The format is fastjson's: indented with tabs,
integer keys unquoted.

A corrupt file is renamed to ``<name>.broken`` if its ``.bak`` is readable. If neither is, :class:`ConfigError` names
the file and the line, because guessing would drop topics or offsets. Missing permissions raise the same error.

Thread-safety: :class:`ConfigFile` is used by one thread at a time. :class:`ConfigSaver` belongs to the event loop and
writes snapshots, taken on the loop, on a thread of its own.
Corresponds to org.apache.rocketmq.common.ConfigManager and MixAll.string2File.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from spark_rocket.common.files import replace_file, sync_directory
from spark_rocket.errors import ConfigError, ProtocolError
from spark_rocket.protocol.java_properties import edit_properties
from spark_rocket.protocol.wire.json import dumps_fastjson, loads_tolerant

_log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Delay between a failed write and its retry."""
PACE_BYTES_PER_SECOND = 1_000_000
"""Of a file that is written again and again: see :meth:`ConfigSaver.save_in_time`."""
_BARE_KEY = re.compile(r"([{,]\s*)(-?\d+)(\s*:)")


class _BrokenFileError(Exception):
    """A file that cannot be loaded, with line and reason."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.path = path


class ConfigFile:
    """One file, with the functions that provide its content and load it."""

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], dict[str, Any] | bytes],
        load: Callable[[dict[str, Any]], None],
    ) -> None:
        self.path = path
        self.snapshot = snapshot
        self.load_value = load
        self.written_bytes = 0
        """The size of the last text that was written."""

    def load(self) -> bool:
        """Load the file, or its ``.bak``; False if both are missing, ConfigError if the present ones are corrupt."""
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
        """Rename the corrupt file, now that its .bak is loaded."""
        aside = self.path.with_name(self.path.name + ".broken")
        try:
            self.path.replace(aside)
        except OSError as error:
            raise ConfigError(
                f"{broken}; it cannot be renamed to {aside.name}: {error.strerror}.",
                remedy=f"Move {self.path.name} elsewhere; its .bak is readable.",
            ) from error
        _log.warning("%s. Loaded %s.bak instead; renamed the corrupt file to %s.", broken, self.path.name, aside.name)

    def _error(self, broken: _BrokenFileError) -> ConfigError:
        return ConfigError(
            f"{broken}.",
            remedy=f"Repair {broken.path.name}, or move it and its .bak elsewhere. The next start reports the loss.",
        )

    def _load_from(self, path: Path) -> bool:
        try:
            raw = path.read_bytes().removeprefix(BOM_UTF8)
        except FileNotFoundError:
            return False
        except PermissionError as error:  # the file may be intact, and its .bak is older: no fallback
            raise ConfigError(
                f"{path} cannot be read: {error.strerror}.",
                remedy=f"Give the broker's user permission to read {path.parent} and its files.",
            ) from error
        except OSError as error:
            raise _BrokenFileError(path, 1, f"cannot be read: {error.strerror}") from error
        try:
            stored = loads_tolerant(raw)
        except ProtocolError as error:
            line, reason = _locate(raw, error.message)
            raise _BrokenFileError(path, line, f"invalid JSON: {reason}") from error
        if not isinstance(stored, dict):
            raise _BrokenFileError(path, 1, "expected a JSON object")
        try:
            self.load_value(stored)
        except (ValueError, TypeError, KeyError, AttributeError, ProtocolError) as error:
            raise _BrokenFileError(path, 1, f"unexpected content: {error}") from error
        return True

    def write(self, snapshot: dict[str, Any] | bytes) -> None:
        """Replace the file with a snapshot (plain values or the encoded text); durable on return.

        The data is fsynced before the rename: otherwise, after a power failure, the file and its .bak could be empty.
        """
        directory = self.path.parent
        if not directory.is_dir():
            directory.mkdir(parents=True)
            sync_directory(directory.parent)
        temporary = self.path.with_name(self.path.name + ".tmp")
        text = snapshot if isinstance(snapshot, bytes) else dumps_fastjson(snapshot, pretty=True)
        backup = self.path.with_name(self.path.name + ".bak")
        if not self.path.exists() and not backup.exists():  # two copies from the first write on: one may get lost
            _write(temporary, text)
            temporary.replace(backup)
        _write(temporary, text)
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(backup)
        temporary.replace(self.path)
        sync_directory(directory)
        self.written_bytes = len(text)

    def save(self) -> None:
        """Write the present state now."""
        self.write(self.snapshot())


def change_properties(path: Path, values: Mapping[str, str]) -> None:
    """Set these names in a properties file and change nothing else in it; durable on return.

    The previous content is retained as ``.bak``. ConfigError, with the file untouched, if it cannot be read or written.
    """
    try:
        path = path.resolve(strict=True)  # replace the target of a symbolic link, not the link
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
            remedy="The broker saves settings changed at run time by replacing its file: give it write permission for "
            "the file's directory.",
        ) from error


def _write(path: Path, text: bytes) -> None:
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _locate(raw: bytes, fallback: str) -> tuple[int, str]:
    """Line and reason of the first syntax error, with fastjson's unquoted integer keys allowed."""
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
    """Write config files, identified by name, in the background. Saves requested during a write share the next write.

    All of a file is written each time. So a change that no response waits for is written by :meth:`save_in_time`: the
    larger the file is, the more changes share a write, and the bytes written are bounded by time.

    A failed write is retried every ``retry_seconds`` until it succeeds. The first failure and the recovery are logged.
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
        self._writes = dict.fromkeys(files, 0)
        self._later: dict[str, asyncio.Future[str]] = {}
        self._next_at = dict.fromkeys(files, 0.0)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """When a write begins that was delayed, or that has failed."""
        self._closed = False

    def problem(self, name: str) -> str:
        """Reason why the last write of the file failed; empty if it succeeded."""
        return self._problems.get(name, "")

    def writes(self, name: str) -> int:
        """The number of writes of the file that have succeeded."""
        return self._writes[name]

    def save(self, name: str, snapshot: dict[str, Any] | None = None) -> asyncio.Future[str]:
        """Write at least the present state, in the background.

        The future's result is empty once the file is durable, otherwise the problem. It never raises.
        ``snapshot``: write this earlier state instead.
        """
        if snapshot is None:
            self._given.pop(name, None)
        else:
            self._given[name] = snapshot
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._later.pop(name) if name in self._later else self._loop.create_future()
            self._waiting[name] = waiting
            if name not in self._writing:
                # Deferred, so that several changes in one iteration of the loop become one write.
                self._loop.call_soon(self._begin, name)
        return waiting

    def save_in_time(self, name: str) -> asyncio.Future[str]:
        """Like :meth:`save`, for a change that no response waits for: at most ``PACE_BYTES_PER_SECOND`` are written.

        The first write begins at once, the next one when the bytes of the last one are paid for, or when
        :meth:`hurry` or :meth:`save` is called.
        """
        if name in self._waiting:
            return self._waiting[name]
        if name not in self._later:
            self._later[name] = self._loop.create_future()
            if name not in self._writing:
                self._begin_in_time(name)
        return self._later[name]

    def hurry(self, name: str) -> None:
        """Write now what :meth:`save_in_time` has delayed."""
        if name in self._later:
            self.save(name)

    def _begin_in_time(self, name: str) -> None:
        self._set_timer(name, self._next_at[name] - self._loop.time(), self.hurry)

    def _set_timer(self, name: str, delay: float, begin: Callable[[str], object]) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
        self._timers[name] = self._loop.call_later(max(delay, 0.0), begin, name)

    def file_saved(self, name: str) -> asyncio.Future[str]:
        """Like :meth:`save`, for changes whose save was already requested: retry a failed write immediately."""
        self.hurry(name)
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
        if timer := self._timers.pop(name, None):
            timer.cancel()
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
        self._next_at[name] = self._loop.time() + self._files[name].written_bytes / PACE_BYTES_PER_SECOND
        if not done.done():
            done.set_result(problem)
        if name in self._waiting:
            self._begin(name)
        elif self._closed:
            return
        elif problem:
            if given is not None:
                self._given[name] = given
            self._set_timer(name, self._retry_seconds, self.file_saved)
        elif name in self._later:
            self._begin_in_time(name)

    def _note(self, name: str, error: BaseException | None) -> str:
        """Record the outcome of a write; log a new problem or the recovery. Returns the problem, or an empty string."""
        path, before = self._files[name].path, self._problems.pop(name, "")
        if error is None:
            self._writes[name] += 1
            if before:
                _log.warning("%s can be written again.", path)
            return ""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        problem = self._problems[name] = f"{path.name} could not be written: {reason}"
        if problem != before:
            _log.error("%s could not be written: %s. Retrying every %g s.", path, error, self._retry_seconds)
        return problem

    def close(self) -> None:
        """Wait for the write in flight. The caller writes pending changes with ``ConfigFile.save``."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._thread.shutdown(wait=True)
