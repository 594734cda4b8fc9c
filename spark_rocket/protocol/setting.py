"""One setting of ``broker.conf`` or ``proxy.conf``: its name, its range, and how its text is read and written.

:func:`setting` makes a field of a dataclass (the broker's or the proxy's configuration), and :func:`settings_of` finds
the :class:`Setting` of each.
Pure values. Corresponds to org.apache.rocketmq.common.MixAll.properties2Object and object2Properties.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from spark_rocket.common.files import read_file
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.wire.headers.base import camel_case

DYNAMIC_SETTINGS = "dynamicSettings"
"""A field of the response to code 26: the names of the settings that code 25 may set. Apache's brokers lack it."""


def setting(
    default: Any,
    meaning: str,
    *,
    section: str = "",
    name: str | None = None,
    secret: bool = False,
    low: int | None = None,
    high: int | None = None,
    step: int = 1,
    dynamic: bool = False,
    check: Callable[[str], object] | None = None,
) -> Any:
    """A field with its Apache name (its own in camel case unless given), its range, and whether code 25 may set it.

    ``meaning`` and ``section`` are those of docs/reference/settings.md, to which links are relative. A number is a
    multiple of ``step``.

    ``check`` raises ConfigError for an invalid value. The value of a ``secret`` setting is never printed.
    """
    shown = {"meaning": meaning, "section": section}
    metadata = {**shown, "name": name, "low": low, "high": high, "step": step, "dynamic": dynamic, "check": check}
    return field(default=default, repr=not secret, metadata={**metadata, "secret": secret})


@dataclass(slots=True, frozen=True)
class Setting:
    """How one setting is called, read and bounded."""

    attribute: str
    name: str
    kind: str
    low: int | None
    high: int | None
    step: int
    dynamic: bool
    check: Callable[[str], object] | None
    secret: bool
    enum: type[Enum] | None
    meaning: str
    section: str

    @classmethod
    def of(cls, entry: dataclasses.Field[Any]) -> Setting:
        """Return the setting of a field that :func:`setting` made."""
        kind, known = str(entry.type), entry.metadata
        return cls(
            entry.name,
            known["name"] or camel_case(entry.name),
            kind,
            known["low"],
            known["high"],
            known["step"],
            known["dynamic"],
            known["check"],
            known["secret"],
            type(entry.default) if isinstance(entry.default, Enum) else None,
            known["meaning"],
            known["section"],
        )

    def parse(self, text: str, where: str) -> object:
        """Return the value; ConfigError, which names ``where``, if it is invalid."""
        text = text.strip()
        problem: str
        if self.kind == "str":
            if self.check is not None:
                try:
                    self.check(text)
                except ConfigError as error:
                    raise ConfigError(f"{where}: {error.message}", remedy=error.remedy) from None
            return text
        if self.kind == "Path":
            if text:
                return Path(text)
            problem = "needs a path"
        elif self.kind == "bool":
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            problem = "needs true or false"
        elif self.enum is not None:
            try:
                return self.enum(text)
            except ValueError:
                problem = "needs one of " + ", ".join(member.value for member in self.enum)
        elif re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            number = int(text)
            if (self.low is None or number >= self.low) and (self.high is None or number <= self.high):
                if number % self.step == 0:
                    return number
                problem = f"must be a multiple of {self.step}"
            else:
                problem = f"must be {self._range()}"
        else:
            raise ConfigError(
                f"{where}: {self.name}={text}: {self.name} needs a whole number.",
                remedy="Write digits alone: settings are numbers without units, as in RocketMQ.",
            )
        raise ConfigError(f"{where}: {self.name}={text}: {self.name} {problem}.", remedy="Correct the value.")

    def _range(self) -> str:
        if self.low is None or self.high is None:
            return f"at least {self.low}" if self.high is None else f"at most {self.high}"
        return str(self.low) if self.low == self.high else f"between {self.low} and {self.high}"


@dataclass(slots=True)
class SettingsUpdate:
    """What a request of code 25 changes."""

    values: dict[Setting, object] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    """Settings that this broker does not have."""
    known_others: dict[str, str] = field(default_factory=dict)
    """Of those the ones that Apache's brokers have."""

    def to_file(self) -> dict[str, str]:
        """Return the contents of ``broker.conf`` by Apache's names, without unknown names (probably typing errors)."""
        return {spec.name: text_of(value) for spec, value in self.values.items()} | self.known_others


def settings_of(config: type[Any]) -> dict[str, Setting]:
    """The settings of a dataclass, by their Apache names."""
    found = (Setting.of(entry) for entry in dataclasses.fields(config) if "low" in entry.metadata)
    return {spec.name: spec for spec in found}


def read_settings(path: Path, what: str) -> str:
    """The text of a file with settings; ConfigError that names it if it cannot be read."""
    try:
        return read_file(path).decode()
    except OSError as error:
        raise ConfigError(
            f"Cannot read the {what} configuration {path}: {error.strerror or error}.",
            remedy="Specify a readable properties file with -c, or omit -c for the defaults.",
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8 text.", remedy="Save the file as UTF-8.") from error


def fixed_setting_error(name: str) -> ConfigError:
    """Return the error for a setting that code 25 cannot change."""
    return ConfigError(
        f"'{name}' cannot be changed while the broker runs.", remedy="Set it in broker.conf and restart the broker."
    )


def text_of(value: object) -> str:
    """A value as ``broker.conf`` has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    return str(value)
