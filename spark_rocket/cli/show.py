"""What verbs print, in one manner: tables, records, JSON, questions, and what changes while one looks.

On a terminal tables are drawn by rich, as wide as it is; where that is not enough, columns that are marked ``spare``
are left out from the right, and a line says which. Into a pipe or a file they go plain, in columns with two spaces
between, nothing cut off. ``--json`` is one document (``document``), or one a line of what has no end (``line``).
``NO_COLOR`` is honoured. rich is imported only for a terminal: it costs a tenth of a second.

Thread-safety: for one thread. Corresponds to the printfs of mqadmin's SubCommands.
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

from spark_rocket.cli.text import print_table
from spark_rocket.errors import RocketError, StateError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spark_rocket.client import Admin
    from spark_rocket.model import MessageQueue

NOTHING = "-"
_GAP = 2

Row = Mapping[str, Any]


def cell(value: object) -> str:
    """A value as a table has it."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value)) or NOTHING
    return str(value)


@dataclass(frozen=True)
class Column:
    """``key``: of the row, the name that JSON has too. Numbers stand to the right by themselves."""

    key: str
    head: str = ""
    form: Callable[[Any], str] = cell
    right: bool | None = None
    spare: bool = False
    """May be left out where the terminal is narrow."""

    def text(self, row: Row, missing: str = NOTHING) -> str:
        value = row.get(self.key)
        return missing if value is None else self.form(value)

    @property
    def title(self) -> str:
        return self.head or self.key.upper()


@dataclass(frozen=True)
class Table:
    """Rows and how to show them. ``total``: a last row. ``title`` stands above, ``foot`` below."""

    rows: Sequence[Row]
    columns: Sequence[Column]
    title: str = ""
    total: Row | None = None
    foot: str = ""
    empty: str = "There are none."
    marked: Callable[[Row], bool] = field(default=lambda row: False)
    """Rows to look at: bold on a terminal."""

    def all_rows(self) -> list[Row]:
        return [*self.rows, self.total] if self.total is not None else list(self.rows)

    def is_right(self, column: Column) -> bool:
        if column.right is not None:
            return column.right
        values = [row[column.key] for row in self.rows if row.get(column.key) is not None]
        return bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def place(queue: MessageQueue) -> dict[str, Any]:
    """Where a queue is: the first values of a row, for :data:`PLACE`."""
    return {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}


PLACE = (Column("topic"), Column("brokerName", "BROKER"), Column("queueId", "QUEUE"))

# --- tables and records ----------------------------------------------------------------------------------------------


def table(rows: Iterable[Row], columns: Sequence[Column], **more: Any) -> None:
    """Print rows (the dicts that JSON is made of) as a table; ``more`` as for ``Table``."""
    _print(Table(list(rows), columns, **more))


def rows(found: Sequence[Row], columns: Sequence[Column], as_json: bool, **more: Any) -> None:
    """Print rows as a table, or as the one document of ``--json``."""
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
    """Print names and values, one pair a line; a value of several lines goes on below itself."""
    if title:
        print(_bold(title))
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        first, *others = cell(value).splitlines() or [NOTHING]
        print(f"{'  ' if title else ''}{_dim(name.ljust(width))}  {first}")
        for other in others:
            print(f"{' ' * (width + (4 if title else 2))}{other}")


def _drawn(shown: Table) -> RenderableType:
    """For a terminal, with the columns that fit."""
    from rich.console import Group
    from rich.table import Table as Drawn
    from rich.text import Text

    parts: list[RenderableType] = [Text(shown.title, style="bold")] if shown.title else []
    if not shown.rows:
        parts.append(Text(shown.empty))
    else:
        columns, left_out = _fitting(shown, _console().width)
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
        if left_out:
            names = ", ".join(column.title for column in left_out)
            parts.append(Text(f"Not shown: {names} (widen the terminal, or | cat).", style="dim"))
    if shown.foot:
        parts.append(Text(shown.foot))
    return Group(*parts)


def _fitting(shown: Table, width: int) -> tuple[list[Column], list[Column]]:
    columns = list(shown.columns)
    left_out: list[Column] = []
    rows = shown.all_rows()

    def needed() -> int:
        widths = (max(len(c.title), *(len(c.text(row)) for row in rows)) for c in columns)
        return sum(widths) + _GAP * (len(columns) - 1)

    spare = [column for column in columns if column.spare]
    while spare and needed() > width:
        left_out.insert(0, spare.pop())
        columns.remove(left_out[0])
    return columns, left_out


# --- JSON ------------------------------------------------------------------------------------------------------------


def document(value: object) -> None:
    """Print the one JSON document of ``--json``."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=_json))


def line(value: object) -> None:
    """Print one document of many, on a line of its own, at once."""
    print(json.dumps(value, ensure_ascii=False, default=_json), flush=True)


def _json(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


# --- questions -------------------------------------------------------------------------------------------------------


def confirm(question: str, yes: bool) -> bool:
    """Whether to go on: asks unless ``yes``, and says so where the answer is no. The verb then returns 1.

    What will be done is printed before; the question ends with ``?``. StateError where nobody can be asked.
    """
    if yes or _agreed(question):
        return True
    print("Nothing was changed.")
    return False


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise StateError(f"{question} Nobody is there to be asked.", remedy="Give --yes.")
    sys.stdout.flush()
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


# --- what changes ----------------------------------------------------------------------------------------------------


def watch(look: Callable[[], tuple[object, Table]], seconds: float, as_json: bool = False) -> None:
    """Look again and again until Ctrl-C: in place on a terminal, one below the other elsewhere, or JSON lines.

    ``look`` gives what JSON is made of, and the table. If it fails later on, that is said, and it is tried again.
    """
    value, shown = look()
    if as_json or not sys.stdout.isatty():
        while True:
            if as_json:
                line(value)
            else:
                _print(shown)
                print(flush=True)
            time.sleep(seconds)
            value, shown = _once_more(look, shown)
    from rich.live import Live

    with Live(_drawn(shown), console=_console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            time.sleep(seconds)
            _, shown = _once_more(look, shown)
            live.update(_drawn(shown), refresh=True)


def _once_more(look: Callable[[], tuple[object, Table]], last: Table) -> tuple[object, Table]:
    try:
        return look()
    except RocketError as error:
        text = f"{error.message} {error.remedy}".rstrip()
        return {"error": text}, replace(last, foot=f"As it was last: {text}")


def looked(look: Callable[[], tuple[object, Table]], seconds: float | None, as_json: bool) -> None:
    """Show it once, or with ``--watch`` again and again."""
    if seconds is not None:
        watch(look, seconds, as_json)
        return
    value, shown = look()
    if as_json:
        document(value)
    else:
        _print(shown)


# --- what went wrong in part ------------------------------------------------------------------------------------------


def failures(failed: Mapping[str, RocketError]) -> int:
    """Say on stderr which brokers did not answer, and why; the exit status."""
    for text in _reasons(failed):
        print(f"rocket: {text}", file=sys.stderr)
    return 1 if failed else 0


def masters_away(admin: Admin, cluster: str | None, broker: str | None = None) -> int:
    """Say on stderr which brokers a change did not reach, for they have no master now; the exit status."""
    names = admin.masters_away(cluster) if broker is None else []
    for name in names:
        print(f"rocket: {name} has no master now: nothing is changed there.", file=sys.stderr)
    return 1 if names else 0


def away(failed: Mapping[str, RocketError], watch: float | None) -> str:
    """The same as the foot of a table that is watched; nothing for one that is not."""
    return "\n".join(_reasons(failed)) if watch is not None else ""


def _reasons(failed: Mapping[str, RocketError]) -> list[str]:
    texts = ((broker, f"{error.message} {error.remedy}".rstrip()) for broker, error in sorted(failed.items()))
    return [text if ":" in broker and broker in text else f"{broker}: {text}" for broker, text in texts]


# --- the terminal ----------------------------------------------------------------------------------------------------


def _console() -> Any:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, soft_wrap=False, emoji=False, markup=False)


def coloured(text: str, colour: str) -> str:
    """For words that say how something is: green, yellow or red, where colours are seen and wanted."""
    code = {"red": 31, "green": 32, "yellow": 33}[colour]
    return f"\033[{code}m{text}\033[0m" if _has_styles() and not os.environ.get("NO_COLOR") else text


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if _has_styles() else text


def _dim(text: str) -> str:
    return f"\033[2m{text}\033[0m" if _has_styles() else text


def _has_styles() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
