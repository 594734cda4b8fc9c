"""Warn about columns that no body has, such as misspelt ones: their rows would be null without a word.

JSON and Arrow bodies have named members, and missing members are null. The first ``_ROWS`` rows that a process reads
with a schema are watched. A column that is null in all of them, while no sampled body has a member of its name, is
logged: at once with members of similar names, otherwise with some of the other members. Each column is logged once.

Watching looks at a few bodies of a batch, and only while a column is still missing. One state for each schema and
process, safe from any thread. Corresponds to nothing in Spark: its readers return nulls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import lru_cache
from threading import Lock

import pyarrow as pa

from spark_rocket.datasource.bodies.decoding import BAD
from spark_rocket.datasource.bodies.json_values import parse_object
from spark_rocket.datasource.options.bodies import BodyFormat

log = logging.getLogger("spark_rocket.datasource")

_ROWS = 1_000
_BODIES_OF_A_BATCH = 20
_NAMES_SHOWN = 5


class ColumnHints:
    """The columns of a schema that no body has had so far."""

    def __init__(self, form: BodyFormat, names: tuple[str, ...], where: str) -> None:
        self._form = form
        self._where = where
        self._columns = frozenset(names)
        self._missing = list(names) if form in (BodyFormat.JSON, BodyFormat.ARROW) else []
        self._members: set[str] = set()
        self._rows = 0
        self._lock = Lock()

    def watch(self, bodies: pa.Array, columns: dict[str, pa.Array]) -> None:
        """Take a decoded batch."""
        if self._missing and self._rows < _ROWS:
            with self._lock:
                self._watch(bodies, columns)

    def _watch(self, bodies: pa.Array, columns: dict[str, pa.Array]) -> None:
        self._missing = [name for name in self._missing if columns[name].null_count == len(columns[name])]
        if not self._missing:
            return
        self._rows += len(bodies)
        self._members.update(*_members(self._form, bodies.slice(0, _BODIES_OF_A_BATCH)))
        self._missing = [name for name in self._missing if name not in self._members]
        for name in list(self._missing):
            others = sorted(self._members - self._columns)
            if similar := _similar(name, others):
                self._report(name, "similar members", similar)
            elif others and self._rows >= _ROWS:
                self._report(name, "other members", others[:_NAMES_SHOWN])

    def _report(self, name: str, what: str, members: list[str]) -> None:
        self._missing.remove(name)
        log.warning(
            "column %s is null in the first %d messages of %s, and no sampled body has this member; %s: %s",
            name,
            self._rows,
            self._where,
            what,
            ", ".join(members),
        )


@lru_cache(64)
def column_hints(form: BodyFormat, names: tuple[str, ...], where: str) -> ColumnHints:
    """Return the state of this process for a schema. ``where``: the topics, for the log."""
    return ColumnHints(form, names, where)


def _members(form: BodyFormat, bodies: pa.Array) -> Iterator[Iterable[str]]:
    for body in bodies:
        try:
            if form is BodyFormat.JSON:
                yield parse_object(body.as_py())
            else:
                with pa.ipc.open_stream(body.as_buffer()) as stream:
                    yield stream.schema.names
        except (*BAD, OSError):
            continue


def _similar(name: str, others: list[str]) -> list[str]:
    by_key = {other.lower(): other for other in others}
    return [by_key[key] for key in get_close_matches(name.lower(), by_key, n=3, cutoff=0.6)]
