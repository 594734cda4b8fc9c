"""The output of verbs: tables, records, JSON, confirmation prompts and watched tables.

On a terminal, rich draws tables in the terminal's width. If the width is too small, columns marked ``spare`` are
omitted from the right, and a line names them. In a pipe or a file, tables are plain: columns separated by two spaces,
nothing cut off. ``--json`` prints one document (``document``), or one document per line for endless output (``line``).
``NO_COLOR`` is honored. rich is imported only for a terminal, because the import takes 0.1 s.

Thread-safety: one thread. Corresponds to the printfs of mqadmin's SubCommands.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli.text import escape_controls, print_problem, print_table
from spark_rocket.common.attributes import pick
from spark_rocket.errors import RocketError, StateError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spark_rocket.client import Admin
    from spark_rocket.model import MessageQueue

NO_VALUE = "-"
_GAP = 2

Row = Mapping[str, Any]


def cell(value: object) -> str:
    if value is None or value == "":
        return NO_VALUE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or NO_VALUE
    return str(value)


@dataclass(frozen=True)
class Column:
    """A column of a table. ``key``: the key of the row and of the JSON. Numbers are right-aligned by default."""

    key: str
    head: str = ""
    form: Callable[[Any], str] = cell
    right: bool | None = None
    spare: bool = False
    """Omitted if the terminal is too narrow."""

    def text(self, row: Row, missing: str = NO_VALUE) -> str:
        value = row.get(self.key)
        return missing if value is None else escape_controls(self.form(value))

    @property
    def title(self) -> str:
        return self.head or self.key.upper()


@dataclass(frozen=True)
class Table:
    """Rows and their layout. ``total``: a last row. ``title`` is printed above the table, ``foot`` below it."""

    rows: Sequence[Row]
    columns: Sequence[Column]
    title: str = ""
    total: Row | None = None
    foot: str = ""
    empty: str = "None found."
    marked: Callable[[Row], bool] = field(default=lambda row: False)
    """Selects the rows to highlight on a terminal."""

    def all_rows(self) -> list[Row]:
        return [*self.rows, self.total] if self.total is not None else list(self.rows)

    def is_right(self, column: Column) -> bool:
        if column.right is not None:
            return column.right
        values = [row[column.key] for row in self.rows if row.get(column.key) is not None]
        return bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def place(queue: MessageQueue) -> dict[str, Any]:
    """Return the topic, broker and id of a queue: the first values of a row, for :data:`PLACE`."""
    return pick(queue, "topic broker_name queue_id")


PLACE = (Column("topic"), Column("brokerName", "BROKER"), Column("queueId", "QUEUE"))

# --- tables and records ----------------------------------------------------------------------------------------------


def table(rows: Iterable[Row], columns: Sequence[Column], **more: Any) -> None:
    """Print rows (the same dicts as in JSON) as a table; ``more``: arguments of ``Table``."""
    _print(Table(list(rows), columns, **more))


def rows(found: Sequence[Row], columns: Sequence[Column], as_json: bool, **more: Any) -> None:
    """Print rows as a table, or as one JSON document."""
    if as_json:
        document(found)
    else:
        table(found, columns, **more)


def _print(shown: Table) -> None:
    if sys.stdout.isatty():
        _console().print(_drawn(shown))
        return
    if shown.title:
        print(shown.title)
    if shown.rows:
        columns = shown.columns
        lines = [[column.title for column in columns]]
        lines += [[column.text(row) for column in columns] for row in shown.all_rows()]
        print_table(lines, {i for i, column in enumerate(columns) if shown.is_right(column)})
    else:
        print(shown.empty)
    if shown.foot:
        print(shown.foot)


def record(values: Mapping[str, object], title: str = "") -> None:
    """Print one name and value per line; the further lines of a value are aligned below its first."""
    if title:
        print(_bold(escape_controls(title)))
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        first, *others = escape_controls(cell(value)).splitlines() or [NO_VALUE]
        print(f"{'  ' if title else ''}{_dim(escape_controls(name).ljust(width))}  {first}")
        for other in others:
            print(f"{' ' * (width + (4 if title else 2))}{other}")


def _drawn(shown: Table) -> RenderableType:
    """Lay out a table for a terminal, with the columns that fit."""
    from rich.console import Group
    from rich.table import Table as Drawn
    from rich.text import Text

    parts: list[RenderableType] = [Text(escape_controls(shown.title), style="bold")] if shown.title else []
    if not shown.rows:
        parts.append(Text(shown.empty))
    else:
        columns, omitted = _fitting(shown, _console().width)
        drawn = Drawn(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_footer=False)
        for column in columns:
            right = shown.is_right(column)
            drawn.add_column(column.title, justify="right" if right else "left", no_wrap=right, overflow="fold")
        for row in shown.rows:
            style = "bold yellow" if shown.marked(row) else None
            drawn.add_row(*(Text(column.text(row)) for column in columns), style=style)
        if shown.total is not None:
            drawn.add_row(*(Text(column.text(shown.total, missing="")) for column in columns), style="bold")
        parts.append(drawn)
        if omitted:
            names = ", ".join(column.title for column in omitted)
            parts.append(Text(f"Omitted: {names} (widen the terminal, or pipe into cat).", style="dim"))
    if shown.foot:
        parts.append(Text(escape_controls(shown.foot)))
    return Group(*parts)


def _fitting(shown: Table, width: int) -> tuple[list[Column], list[Column]]:
    columns = list(shown.columns)
    omitted: list[Column] = []
    rows = shown.all_rows()

    def needed() -> int:
        widths = (max(len(c.title), *(len(c.text(row)) for row in rows)) for c in columns)
        return sum(widths) + _GAP * (len(columns) - 1)

    spare = [column for column in columns if column.spare]
    while spare and needed() > width:
        omitted.insert(0, spare.pop())
        columns.remove(omitted[0])
    return columns, omitted


# --- JSON ------------------------------------------------------------------------------------------------------------


def document(value: object) -> None:
    """Print one indented JSON document."""
    print(escape_controls(json.dumps(value, ensure_ascii=False, indent=2, default=_json)))


def line(value: object) -> None:
    """Print one JSON document on one line and flush it."""
    print(escape_controls(json.dumps(value, ensure_ascii=False, default=_json)), flush=True)


def _json(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


# --- confirmation prompts --------------------------------------------------------------------------------------------


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation unless ``yes``; if it is denied, print that nothing was changed and end with status 1.

    Print what will be done before. The question ends with ``?``. StateError if stdin is not a terminal.
    """
    if not yes and not _is_confirmed(question):
        print("Nothing was changed.")
        raise click.exceptions.Exit(1)


def _is_confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise StateError(f"{question} Cannot ask for confirmation: stdin is not a terminal.", remedy="Use --yes.")
    sys.stdout.flush()
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


# --- watched tables --------------------------------------------------------------------------------------------------


def watch(fetch: Callable[[], tuple[object, Table]], seconds: float, as_json: bool = False) -> None:
    """Refresh a table until Ctrl-C: in place on a terminal, else one table after the other or JSON lines.

    ``fetch`` returns the value for JSON and the table. If it fails after the first time, the error is shown and the
    next refresh retries.
    """
    value, shown = fetch()
    if as_json or not sys.stdout.isatty():
        while True:
            if as_json:
                line(value)
            else:
                _print(shown)
                print(flush=True)
            time.sleep(seconds)
            value, shown = _refreshed(fetch, shown)
    from rich.live import Live

    with Live(_drawn(shown), console=_console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            time.sleep(seconds)
            _, shown = _refreshed(fetch, shown)
            live.update(_drawn(shown), refresh=True)


def _refreshed(fetch: Callable[[], tuple[object, Table]], last: Table) -> tuple[object, Table]:
    try:
        return fetch()
    except RocketError as error:
        return {"error": error.text}, replace(last, foot=f"Not refreshed: {error.text}")


def show_table(fetch: Callable[[], tuple[object, Table]], seconds: float | None, as_json: bool) -> None:
    """Show a table once, or with ``--watch`` (``seconds``) repeatedly."""
    if seconds is not None:
        watch(fetch, seconds, as_json)
        return
    value, shown = fetch()
    if as_json:
        document(value)
    else:
        _print(shown)


# --- partial failures ------------------------------------------------------------------------------------------------


def print_failures(failed: Mapping[str, RocketError]) -> None:
    """Print the brokers that did not respond, or the undecodable messages, and the reasons, on stderr."""
    for text in _reasons(failed):
        print_problem(text)


def report_unavailable_masters(admin: Admin, cluster: str | None, broker: str | None = None) -> None:
    """Print the brokers that a change did not reach because they have no master; end with status 1 if there are any."""
    names = admin.unavailable_masters(cluster) if broker is None else []
    for name in names:
        print_problem(f"{name} has no master now: not changed there.")
    if names:
        raise click.exceptions.Exit(1)


def nothing_text(text: str, failed: Mapping[str, RocketError]) -> str:
    """Return the sentence for an empty table. Brokers that failed could have rows."""
    return f"{text} on the available brokers." if failed else f"{text}."


def failures_text(failed: Mapping[str, RocketError], watch: float | None) -> str:
    """Return the failures as the foot of a watched table; empty for other tables."""
    return "\n".join(_reasons(failed)) if watch is not None else ""


def _reasons(failed: Mapping[str, RocketError]) -> list[str]:
    return [
        error.text if ":" in broker and broker in error.text else f"{broker}: {error.text}"
        for broker, error in sorted(failed.items())
    ]


# --- the terminal ----------------------------------------------------------------------------------------------------


def _console() -> Any:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, soft_wrap=False, emoji=False, markup=False)


def coloured(text: str, colour: str) -> str:
    """Color a status word green, yellow or red, if stdout is a terminal and ``NO_COLOR`` is not set."""
    code = {"red": 31, "green": 32, "yellow": 33}[colour]
    return f"\033[{code}m{text}\033[0m" if _has_styles() and not os.environ.get("NO_COLOR") else text


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if _has_styles() else text


def _dim(text: str) -> str:
    return f"\033[2m{text}\033[0m" if _has_styles() else text


def _has_styles() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
