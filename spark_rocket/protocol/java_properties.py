r"""Parser and writer of Java ``.properties`` files: ``(name, value, line)`` triples.

Format: one ``name=value``, ``name: value`` or ``name value`` a line; ``#`` and ``!`` begin comments; a backslash at
the end of a line joins it with the next; ``\t \n \r \f \uXXXX`` are escapes, and a backslash before anything else
means that character. ``${user.home}`` and environment variables inside values are filled in by
:func:`expand_variables`, which Java's loader does not support but RocketMQ's example files use.
Pure and stateless, hence thread-safe. Corresponds to java.util.Properties and org.apache.rocketmq.common.MixAll.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from spark_rocket.errors import ConfigError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"
_BYTE_ORDER_MARK = "\ufeff"
"""Editors on Windows write it at the begin of a file."""
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
"""One line with its end."""


def parse_properties(text: str, source: str = "<properties>") -> list[tuple[str, str, int]]:
    """Return all entries in order with their line numbers.

    ConfigError for an invalid ``\\u`` escape, and for the character NUL, which no path or name can contain.
    """
    entries = []
    for number, _, line in _logical_lines(text):
        name, value = _split(line)
        where = f"{source}, line {number}"
        name, value = _unescape(name, where), _unescape(value, where)
        if "\0" in name or "\0" in value:
            raise ConfigError(f"{where}: {name!r} contains a NUL character.", remedy="Remove it.")
        entries.append((name, value, number))
    return entries


def render_properties(values: Iterable[tuple[str, str]]) -> str:
    """Format entries as text that :func:`parse_properties` can parse."""
    return "".join(f"{_escape(name, ' :=#!')}={_escape(value)}\n" for name, value in values)


def edit_properties(text: str, values: Mapping[str, str]) -> str:
    """Return the text with new values for these names; comments and the rest stay, new names are appended.

    Of duplicate names the last one counts, and is changed. ConfigError for an invalid ``\\u`` escape.
    """
    lines = _LINE.findall(text)
    places = {}
    for begun, end, line in _logical_lines(text):
        places[_unescape(_split(line)[0], f"line {begun}")] = (begun - 1, end)
    end_of_line = next((line[len(line.rstrip("\r\n")) :] for line in lines), "") or "\n"
    for begin, end, name in sorted(((*places[name], name) for name in values if name in places), reverse=True):
        lines[begin:end] = [render_properties([(name, values[name])]).replace("\n", end_of_line)]
    new = [(name, value) for name, value in values.items() if name not in places]
    if new and lines:
        last = lines[-1].rstrip("\r\n")
        if last == lines[-1]:
            lines[-1] += end_of_line
        if last.endswith("\\"):  # an empty line ends what would go on; with another end it could be a part of "\r\n"
            lines.append(lines[-1][len(last) :])
    return "".join(lines) + render_properties(new).replace("\n", end_of_line)


def expand_variables(value: str, environment: Mapping[str, str]) -> str:
    """Expand ``${user.home}`` and ``${NAME}``; unset names stay unchanged."""
    if "${" not in value:
        return value

    def fill(match: re.Match[str]) -> str:
        name = match[1].removeprefix("env.").removeprefix("env:").strip()
        if name == "user.home":
            return str(Path.home())
        if name == "user.dir":
            return str(Path.cwd())
        return environment.get(name, match[0])

    end = value.rfind("}") + 1  # the pattern is slow where no end follows
    return _VARIABLE.sub(fill, value[:end]) + value[end:]


def has_variable(value: str) -> bool:
    """Whether :func:`expand_variables` might change the value, in some environment."""
    return "}" in value.partition("${")[2]


def _logical_lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield each entry with the numbers of its first and last line."""
    pending = ""
    begun = number = 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text.removeprefix(_BYTE_ORDER_MARK)), start=1):
        line = raw.lstrip(_BLANK)
        if not pending:
            if not line or line[0] in "#!":
                continue
            begun = number
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending += line[:-1]
            # A joined line may be empty so far ("\" alone); a space that the split drops keeps it pending.
            pending = pending or " "
            continue
        if (pending + line).strip(_BLANK):  # joined lines may all be empty: no entry, as in Java
            yield begun, number, pending + line
        pending = ""
    if pending.strip(_BLANK):
        yield begun, number, pending


def _split(line: str) -> tuple[str, str]:
    line = line.lstrip(_BLANK)
    index = 0
    while index < len(line) and line[index] not in "=:" + _BLANK:
        index += 2 if line[index] == "\\" else 1
    name = line[:index]
    rest = line[index:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return name, rest


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    index = 0
    while index < len(text):
        char = text[index]
        index += 1
        if char != "\\" or index == len(text):
            out.append(char)
            continue
        char = text[index]
        index += 1
        if char == "u":
            digits = text[index : index + 4]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise ConfigError(
                    f"{where}: invalid Unicode escape '\\u{digits}'.",
                    remedy="Use four hexadecimal digits after \\u, or double the backslash.",
                )
            out.append(chr(int(digits, 16)))
            index += 4
        else:
            out.append(_ESCAPES.get(char, char))
    # Two \u escapes may make one character outside the basic plane.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, also: str = "") -> str:
    out = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")
    for char in also:
        out = out.replace(char, "\\" + char)
    return "\\" + out if out[:1] == " " else out
