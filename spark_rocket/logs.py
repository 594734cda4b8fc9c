"""How servers log: lines with fields, levels by module, files that roll over, and nothing secret.

=========  ===========================================================================================================
form       a line
=========  ===========================================================================================================
``text``   ``2026-11-21T23:20:52.123Z WARNING broker.server the disk is full path=/store used=0.97``
``json``   ``{"time": "…Z", "level": "WARNING", "logger": "spark_rocket.broker.server", "message": "…", "path": "…"}``
=========  ===========================================================================================================

Times are UTC. Fields come from ``extra=fields(path=…)``. A line is one line: what a peer sent cannot begin another.
Values of secrets (``secretKey=…``, passwords, tokens) are masked, whoever logged them.

With a directory: ``<name>.log`` takes everything, rolls over at a size, and so many old ones are kept; what is wrong
(WARNING and above) goes to stderr as well. Without one everything goes to stderr.

Thread-safety: logging's own; a RateLimited may be used from any thread.
Corresponds to rmq.broker.logback.xml and its like.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from spark_rocket.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
FORMS = ("text", "json")
PACKAGE = "spark_rocket"
_MIB = 1 << 20
_MOST_KEYS = 1_000
_LOCK_SECONDS = 1.0
_OWN = "_spark_rocket_handler"

_SECRET = re.compile(
    r"((?:secret[_-]?key|security[_-]?token|password|passwd|credential|authorization|signature)\w*"
    r"\\?[\"']?\s*[=:\x01]\s*)"
    r"(?:(\")(?:[^\"\\]|\\.)*\"|(')(?:[^'\\]|\\.)*'|(\\?[\"']?)[^\s\"',;}&\x01\x02]+)",
    re.IGNORECASE,
)
HIDDEN = "******"


def mask(text: str) -> str:
    """The text with the values of what looks like a secret's name taken out."""
    return _SECRET.sub(_masked, text)


def _masked(found: re.Match[str]) -> str:
    quote = found[2] or found[3] or ""
    return f"{found[1]}{quote or found[4]}{HIDDEN}{quote}"


def fields(**values: object) -> dict[str, Any]:
    """For ``extra=``: what a line says beside its text."""
    return {"fields": values}


class _Formatter(logging.Formatter):
    def _time(self, record: logging.LogRecord) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"

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
    """key=value behind the text."""

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix(f"{PACKAGE}.")
        line = f"{self._time(record)} {record.levelname} {name} {record.getMessage()}"
        for key, value in self._fields(record).items():
            text = str(value)
            line += f" {key}={json.dumps(text, ensure_ascii=False) if not text or _QUOTED.search(text) else text}"
        line = _CONTROL.sub(_shown, mask(line))
        trace = self._trace(record)
        return f"{line}\n{trace}" if trace else line


_QUOTED = re.compile(r"[\s\"=]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


def _shown(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class JsonFormatter(_Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self._time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": mask(record.getMessage()),
        }
        for key, value in self._fields(record).items():
            plain = value if isinstance(value, int | float | bool) or value is None else str(value)
            known = key in line or key == "trace"
            secret = isinstance(plain, str) and mask(f"{key}={plain}") != f"{key}={plain}"
            line[f"_{key}" if known else key] = HIDDEN if secret else plain
        if trace := self._trace(record):
            line["trace"] = trace
        return _CONTROL.sub(_shown, json.dumps(line, ensure_ascii=False))


class _Of(logging.Filter):
    """Lets through what is of one server, or of none of the others."""

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
    """Set up logging for a process that serves. ConfigError if it cannot be.

    ``levels``: ``info``, or ``store=debug`` for a module. ``names``: a file for each server of the process; the first
    takes what belongs to none of them. ``stream`` is for stderr. Calling it again replaces what an earlier call set up.
    """
    default, of_modules = _levels(levels, "info" if verbose or directory is not None else "warning")
    formatter = JsonFormatter() if form == "json" else TextFormatter()
    root = logging.getLogger()
    handlers: list[logging.Handler] = [logging.StreamHandler(stream or sys.stderr)]
    if directory is not None:
        handlers[0].setLevel(logging.WARNING)
        handlers += _files(directory, names, size_mib, count)
    for handler in list(root.handlers):
        if getattr(handler, _OWN, False) or _is_of_terminal(handler):
            root.removeHandler(handler)
            if isinstance(handler, logging.FileHandler):
                handler.close()
    for handler in handlers:
        setattr(handler, _OWN, True)
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(default)
    for module, level in of_modules.items():
        logging.getLogger(module).setLevel(level)


def _is_of_terminal(handler: logging.Handler) -> bool:
    return type(handler) is logging.StreamHandler and handler.stream in (sys.stderr, sys.__stderr__)


def _levels(given: Iterable[str], default: str) -> tuple[int, dict[str, int]]:
    of_modules: dict[str, int] = {}
    for text in given:
        module, equals, level = text.rpartition("=")
        if level.lower() not in LEVELS or bool(module) != bool(equals):
            raise ConfigError(
                f"{text!r} is no level to log at.",
                remedy=f"Give one of {', '.join(LEVELS)}, or MODULE=LEVEL as store=debug.",
            )
        if module:
            name = module if module.startswith(PACKAGE) else f"{PACKAGE}.{module}"
            of_modules[name] = getattr(logging, level.upper())
        else:
            default = level
    return int(getattr(logging, default.upper())), of_modules


def _files(directory: Path, names: Sequence[str], size_mib: int, count: int) -> list[logging.Handler]:
    handlers: list[logging.Handler] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for place, name in enumerate(names):
            handler = RotatingFileHandler(
                directory / f"{name}.log", maxBytes=size_mib * _MIB, backupCount=count, encoding="utf-8"
            )
            handler.addFilter(_Of(name, [other for other in names if other != name]) if place == 0 else _Only(name))
            handlers.append(handler)
    except OSError as error:
        for made in handlers:
            made.close()
        raise ConfigError(
            f"Logs cannot be written to {directory}: {error.strerror or error}.",
            remedy="Give --log-dir a directory that this user may write to.",
        ) from error
    return handlers


class _Only(logging.Filter):
    def __init__(self, name: str) -> None:
        super().__init__(f"{PACKAGE}.{name}")


# --- what a start says ------------------------------------------------------------------------------------------


def log_start(
    logger: logging.Logger, what: str, settings: Iterable[tuple[str, str]], defaults: Iterable[tuple[str, str]]
) -> None:
    """One line: what has started, and every setting that differs from its default. ``settings`` hide secrets."""
    usual = dict(defaults)
    differing = {name: value for name, value in settings if usual.get(name) != value}
    logger.info("%s started", what, extra=fields(**differing))


# --- what would be said too often -------------------------------------------------------------------------------


class RateLimited:
    """Log the same thing at most once in ``seconds``; the next line says how many were left out.

    ::

        _often = RateLimited(logger)
        _often.warning(address, "%s sends what is no frame", address)
    """

    def __init__(
        self, logger: logging.Logger, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[object, tuple[float, int]] = {}

    def warning(self, key: object, message: str, *values: object) -> None:
        self.log(logging.WARNING, key, message, *values)

    def log(self, level: int, key: object, message: str, *values: object) -> None:
        """``key`` is what makes it the same; of more than a thousand the oldest are forgotten."""
        now = self._clock()
        if not self._lock.acquire(timeout=_LOCK_SECONDS):  # of a thread that a fork has left behind
            return
        try:
            said = self._said.get(key)
            if said is not None and 0 <= now - said[0] < self._seconds:
                self._said[key] = (said[0], said[1] + 1)
                return
            self._said.pop(key, None)
            if len(self._said) >= _MOST_KEYS:
                del self._said[next(iter(self._said))]
            self._said[key] = (now, 0)
        finally:
            self._lock.release()
        if said is not None and said[1]:
            message, values = message + " (and %d times more since the last such line)", (*values, said[1])
        self._logger.log(level, message, *values)
