"""Logging of servers: lines with fields, levels per module, rotating files, masked secrets.

=========  ===========================================================================================================
form       a line
=========  ===========================================================================================================
``text``   ``2026-11-21T23:20:52.123Z WARNING broker.broker the disk is full path=/store used=0.97``
``json``   ``{"time": "…Z", "level": "WARNING", "logger": "spark_rocket.broker.broker", "message": "…", "path": "…"}``
=========  ===========================================================================================================

Times are UTC. Fields come from ``extra=fields(path=…)``. Control characters are escaped, so that data of a peer cannot
start a new line, and long messages are cut. Values of secrets (``secretKey=…``, passwords, tokens) are masked in every
record.

With a directory, ``<name>.log`` receives all lines; it rotates at a size, and a fixed number of old files is retained.
WARNING and above go to stderr as well. Without a directory everything goes to stderr.

Thread-safety: any thread, as in logging.
Corresponds to rmq.broker.logback.xml and its like.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from spark_rocket.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
FORMS = ("text", "json")
PACKAGE = "spark_rocket"
_MIB = 1 << 20
_MAX_KEYS = 1_000
_MAX_CHARACTERS = 32_768  # of a message
_MAX_SECRET = 1_024
_LOCK_TIMEOUT_S = 1.0
_HANDLER_MARK = "_spark_rocket_handler"

_SECRET = re.compile(
    r"((?:secret[_-]?key|security[_-]?token|password|passwd|credential|authorization|signature)\w{0,32}"
    r"\\?[\"']?\s*[=:\x01]\s*)"
    r"(?:(\")(?:[^\"\\]|\\.)*\"|(')(?:[^'\\]|\\.)*'|(\\?[\"']?)[^\s\"',;}&\x01\x02]+)",
    re.IGNORECASE,
)
HIDDEN = "******"


def mask(text: str) -> str:
    """Return the text with the values of secrets replaced; secrets are recognized by their names."""
    return _SECRET.sub(_masked, text)


def _masked(found: re.Match[str]) -> str:
    quote = found[2] or found[3] or ""
    return f"{found[1]}{quote or found[4]}{HIDDEN}{quote}"


def fields(**values: object) -> dict[str, Any]:
    """Return the ``extra=`` argument that adds fields to a log line."""
    return {"fields": values}


class _Formatter(logging.Formatter):
    def _time(self, record: logging.LogRecord) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"

    def _message(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if len(text) <= _MAX_CHARACTERS:
            return mask(text)
        cut = mask(text[: _MAX_CHARACTERS + _MAX_SECRET])[:_MAX_CHARACTERS]  # no secret is cut before it is masked
        return f"{cut}… ({len(text):,} characters)"

    def _fields(self, record: logging.LogRecord) -> Mapping[str, object]:
        found = getattr(record, "fields", None)
        return found if isinstance(found, Mapping) else {}

    def _trace(self, record: logging.LogRecord) -> str:
        parts = []
        if record.exc_info:
            parts.append(self.formatException(record.exc_info))
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return mask("\n".join(parts))


class TextFormatter(_Formatter):
    """One line of text, followed by ``key=value`` fields."""

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix(f"{PACKAGE}.")
        line = f"{self._time(record)} {record.levelname} {name} {self._message(record)}"
        for key, value in self._fields(record).items():
            text = str(value)
            line += f" {key}={json.dumps(text, ensure_ascii=False) if not text or _QUOTED.search(text) else text}"
        line = _CONTROL.sub(_escaped, mask(line))
        trace = self._trace(record)
        return f"{line}\n{trace}" if trace else line


_QUOTED = re.compile(r"[\s\"=]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class JsonFormatter(_Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self._time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": self._message(record),
        }
        for key, value in self._fields(record).items():
            plain = value if isinstance(value, int | float | bool) or value is None else str(value)
            known = key in line or key == "trace"
            secret = isinstance(plain, str) and mask(f"{key}={plain}") != f"{key}={plain}"
            line[f"_{key}" if known else key] = HIDDEN if secret else plain
        if trace := self._trace(record):
            line["trace"] = trace
        return _CONTROL.sub(_escaped, json.dumps(line, ensure_ascii=False))


class _ServerFilter(logging.Filter):
    """Accept the records of one server, and records that no server in ``others`` has."""

    def __init__(self, name: str, others: Sequence[str]) -> None:
        super().__init__()
        self._prefix = f"{PACKAGE}.{name}."
        self._others = tuple(f"{PACKAGE}.{other}." for other in others)

    def filter(self, record: logging.LogRecord) -> bool:
        name = f"{record.name}."
        return not name.startswith(self._others) or name.startswith(self._prefix)


def setup_logging(
    *,
    levels: Iterable[str] = (),
    form: str = "text",
    directory: Path | None = None,
    names: Sequence[str] = ("broker",),
    size_mib: int = 64,
    count: int = 10,
    verbose: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Set up logging for a server process. ConfigError if that fails.

    ``levels``: ``info``, or ``store=debug`` for a module. ``names``: one file per server of the process; the first
    also receives records of no server. ``stream`` replaces stderr. A further call replaces the earlier setup.
    """
    default, module_levels = _levels(levels, "info" if verbose or directory is not None else "warning")
    formatter = JsonFormatter() if form == "json" else TextFormatter()
    root = logging.getLogger()
    handlers: list[logging.Handler] = [logging.StreamHandler(stream or sys.stderr)]
    if directory is not None:
        handlers[0].setLevel(logging.WARNING)
        handlers += _files(directory, names, size_mib, count)
    for handler in list(root.handlers):
        if getattr(handler, _HANDLER_MARK, False) or _writes_to_stderr(handler):
            root.removeHandler(handler)
            if isinstance(handler, logging.FileHandler):
                handler.close()
    for handler in handlers:
        setattr(handler, _HANDLER_MARK, True)
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(default)
    for module, level in module_levels.items():
        logging.getLogger(module).setLevel(level)


def _writes_to_stderr(handler: logging.Handler) -> bool:
    return type(handler) is logging.StreamHandler and handler.stream in (sys.stderr, sys.__stderr__)


def _levels(given: Iterable[str], default: str) -> tuple[int, dict[str, int]]:
    module_levels: dict[str, int] = {}
    for text in given:
        module, equals, level = text.rpartition("=")
        if level.lower() not in LEVELS or bool(module) != bool(equals):
            raise ConfigError(
                f"Invalid log level {text!r}.",
                remedy=f"Use one of {', '.join(LEVELS)}, or MODULE=LEVEL, for example store=debug.",
            )
        if module:
            name = module if module.startswith(PACKAGE) else f"{PACKAGE}.{module}"
            module_levels[name] = getattr(logging, level.upper())
        else:
            default = level
    return int(getattr(logging, default.upper())), module_levels


def _files(directory: Path, names: Sequence[str], size_mib: int, count: int) -> list[logging.Handler]:
    handlers: list[logging.Handler] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for place, name in enumerate(names):
            handler = RotatingFileHandler(
                directory / f"{name}.log", maxBytes=size_mib * _MIB, backupCount=count, encoding="utf-8"
            )
            handler.addFilter(
                _ServerFilter(name, [other for other in names if other != name]) if place == 0 else _OnlyServer(name)
            )
            handlers.append(handler)
    except OSError as error:
        for made in handlers:
            made.close()
        raise ConfigError(
            f"Cannot write logs to {directory}: {error.strerror or error}.",
            remedy="Set --log-dir to a directory that this user may write to.",
        ) from error
    return handlers


class _OnlyServer(logging.Filter):
    def __init__(self, name: str) -> None:
        super().__init__(f"{PACKAGE}.{name}")


# --- start line -------------------------------------------------------------------------------------------------


def log_start(
    logger: logging.Logger, what: str, settings: Iterable[tuple[str, str]], defaults: Iterable[tuple[str, str]]
) -> None:
    """Log the start of a server and every setting that differs from its default. Secrets in ``settings`` are masked."""
    usual = dict(defaults)
    differing = {name: value for name, value in settings if usual.get(name) != value}
    logger.info("%s started", what, extra=fields(**differing))


# --- rate limit -------------------------------------------------------------------------------------------------


@contextmanager
def errors_logged(logger: logging.Logger, text: str, *arguments: object) -> Iterator[None]:
    """Log errors of an application's function, including SystemExit: the thread serves others too.

    Interrupts, which come to the main thread only, are raised.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise
        logger.exception(text, *arguments)


class RateLimited:
    """Log the same event at most once in ``seconds``; the next line reports the number of suppressed ones.

    ::

        _often = RateLimited(logger)
        _often.warning(address, "closed connection %s: invalid frame", address)
    """

    def __init__(
        self, logger: logging.Logger, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: dict[object, tuple[float, int]] = {}

    def warning(self, key: object, message: str, *values: object) -> None:
        self.log(logging.WARNING, key, message, *values)

    def peer(self, address: str, message: str, *values: object, level: int = logging.WARNING) -> None:
        """Log what a peer can cause with each connection or request: once for each host and message.

        ``address`` is ``host:port``.
        """
        self.log(level, (address.rpartition(":")[0], message), message, *values)

    def log(
        self, level: int, key: object, message: str, *values: object, exc_info: BaseException | None = None
    ) -> None:
        """``key`` identifies the event. The oldest keys are dropped above a limit of a thousand."""
        now = self._clock()
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT_S):  # held by a thread that did not survive a fork
            return
        try:
            last = self._logged.get(key)
            if last is not None and 0 <= now - last[0] < self._seconds:
                self._logged[key] = (last[0], last[1] + 1)
                return
            self._logged.pop(key, None)
            if len(self._logged) >= _MAX_KEYS:
                del self._logged[next(iter(self._logged))]
            self._logged[key] = (now, 0)
        finally:
            self._lock.release()
        if last is not None and last[1]:
            message, values = message + " (suppressed %d more since the last such line)", (*values, last[1])
        self._logger.log(level, message, *values, exc_info=exc_info)
