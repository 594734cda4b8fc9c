"""Topics as Arrow record batches, without Spark: ``read_arrow``, for pandas, Polars, DuckDB and everything else that
takes Arrow's C stream.

Options, planning, decoding and errors are those of ``format("rocket")``: this module only runs the tasks of a batch
read in threads. Threads take steps of tasks from a queue; a step decodes one batch. A task has at most one step at a
time, and its next one begins when its batch is taken. So at most ``2 * threads`` tasks are open, each with its pulls in
flight and one batch: memory does not depend on the size of the topic, and a caller that stops taking batches stops the
reading.

The threads begin with the first batch. They end after the last one, after an error, and when the reader is deleted.
They are daemons, so they do not delay the end of the process. A reader belongs to one thread at a time.
Corresponds to nothing in RocketMQ; to ``spark.read.format("rocket")`` here.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from numbers import Number
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeAlias

import pyarrow as pa

from spark_rocket.common.arguments import checked
from spark_rocket.datasource import read_tasks
from spark_rocket.datasource.column_types import plain_type
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.ddl import parse_ddl
from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.read.pull_ranges import is_filtered
from spark_rocket.datasource.read_tasks import AnyTask, projection_of, warn_of_names
from spark_rocket.datasource.schema import MESSAGE_SCHEMA
from spark_rocket.errors import SchemaError

__all__ = ["PlannedRead", "option_of", "plan_read", "read_arrow"]

Position: TypeAlias = str | int | datetime | Mapping[str, object]
Schema: TypeAlias = pa.Schema | Mapping[str, pa.DataType] | str
Batches: TypeAlias = Iterator[pa.RecordBatch]

_MAX_THREADS = 4
_AS_OFFSETS = ("earliest", "latest", "group")


@checked
def read_arrow(
    topics: str | Sequence[str] | None = None,
    *,
    name_server: str | None = None,
    start: Position | None = None,
    end: Position | None = None,
    schema: Schema | None = None,
    columns: str | Sequence[str] | None = None,
    threads: int | None = None,
    **options: object,
) -> pa.RecordBatchReader:
    """Read topics as record batches, lazily and in parallel.

    ``topics``: a name, several separated by commas, or a list. None: ``subscribe_pattern``, ``assign`` or
    ``store_path`` names what to read.
    ``start``, ``end``: ``earliest``, ``latest``, ``group``; a store time (``-1h``, ISO 8601, milliseconds, a datetime);
    or offsets as JSON or as a dict. Default: all messages that are stored at the time of the call.
    ``schema``: all columns of the rows, with ``body_format``: a ``pyarrow.Schema``, or text as in Spark SQL.
    ``columns``: only these columns, in this order; text is one column.
    ``threads``: default: the number of CPUs, at most 4.
    ``options``: the options of ``format("rocket")`` for batch reads, such as ``tags``, ``lookup_keys``,
    ``body_format`` and ``bad_records``.

    Messages of a queue are in order; queues are mixed. The threads end with the last batch, or with the reader: delete
    it to stop early. Arrow's ``close()`` does not stop them.
    """
    own = {"subscribe": topics, "nameServer": name_server, option_of("starting", start): start}
    given = _texts(own | {option_of("ending", end): end}, options)
    return plan_read(given, schema=schema, columns=columns, threads=threads).reader()


@dataclass(frozen=True)
class PlannedRead:
    """A read that is planned: its tasks, and the columns of its batches."""

    tasks: Sequence[AnyTask]
    options: ReadOptions
    decoded: pa.Schema
    """The columns to decode."""
    schema: pa.Schema
    """The columns of the batches: some of ``decoded``."""
    threads: int

    @property
    def max_rows(self) -> int | None:
        """The number of rows, or a little more; None if it is unknown before the read."""
        options = self.options
        omits = is_filtered(options) or options.look_up is not None or options.dedupe_window is not None
        has_many_rows = options.body is not None and options.body.format is BodyFormat.ARROW
        if omits or has_many_rows or options.store_path is not None:
            return None
        return sum(span.size for task in self.tasks if isinstance(task, tuple) for span in task)

    def reader(self) -> pa.RecordBatchReader:
        """Return the batches. The reading begins when the first one is taken."""
        reads = (read_tasks.read(task, self.options, self.decoded) for task in self.tasks)
        batches = _in_threads(reads, min(self.threads, len(self.tasks)))
        if self.schema is not self.decoded:
            batches = (batch.select(self.schema.names) for batch in batches)
        return pa.RecordBatchReader.from_batches(self.schema, _RepeatedError(batches))


def plan_read(
    options: Mapping[str, str],
    *,
    schema: Schema | None = None,
    columns: Sequence[str] | None = None,
    threads: int | None = None,
) -> PlannedRead:
    """Plan a read. ``options`` are for ``format("rocket")``, the other arguments as of ``read_arrow``."""
    parsed = parse_read_options(options, Scope.READ)
    if threads is not None and threads < 1:
        raise error("BAD_OPTION.VALUE", option="threads", value=threads, wanted="an integer of at least 1")
    decoded = _schema_of(parsed.body, schema, columns)
    projection_of(parsed, decoded)
    warn_of_names(parsed, decoded.names)
    chosen = decoded if columns is None else _select(decoded, columns)
    count = threads or min(_MAX_THREADS, os.cpu_count() or 1)
    return PlannedRead(read_tasks.plan(parsed), parsed, decoded, chosen, count)


# --- arguments -------------------------------------------------------------------------------------------------------


def _texts(own: Mapping[str, object], options: Mapping[str, object]) -> dict[str, str]:
    """Return all options as Spark passes them. An option that is given twice is an error."""
    given = {name.replace("_", "").lower(): _text(name, value) for name, value in options.items() if value is not None}
    for name, value in own.items():
        if value is not None:
            if name.lower() in given:
                raise error("BAD_OPTION.CONFLICT", option=name, other="the argument of the same meaning")
            given[name.lower()] = _text(name, value)
    return given


def _text(name: str, value: object) -> str:
    """Return an option's value as Spark passes it; OptionError for a value that has no text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return str(round(value.timestamp() * 1000))
    if isinstance(value, Mapping):
        return json.dumps(value)
    if not isinstance(value, str | Number | Path | list | tuple):
        wanted = "text, a number, True or False, a path, a datetime, or a list or dict of these"
        raise error("BAD_OPTION.VALUE", option=name, value=f"a {type(value).__name__}", wanted=wanted)
    if isinstance(value, list | tuple):
        texts = [_text(name, item) for item in value]
        return json.dumps(texts) if any("," in text for text in texts) else ",".join(texts)
    return str(value)


def option_of(side: str, given: Position | None) -> str:
    """Return the option for a start or an end."""
    text = given.strip().lower() if isinstance(given, str) else ""
    is_offsets = isinstance(given, Mapping) or text in _AS_OFFSETS or text.startswith("{")
    return f"{side}Offsets" if is_offsets else f"{side}Timestamp"


def _schema_of(body: BodySettings | None, schema: Schema | None, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns to decode. Without ``body_format``, these are only the selected ones."""
    if isinstance(schema, str):
        return parse_ddl(schema)
    if schema is not None:
        return pa.schema([item.with_type(plain_type(item.type)) for item in pa.schema(schema)])
    if body is not None:
        from spark_rocket.datasource.read.typed_rows import schema_of

        return schema_of(body)
    return MESSAGE_SCHEMA if columns is None else _select(MESSAGE_SCHEMA, columns)


def _select(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    names = [columns] if isinstance(columns, str) else list(columns)
    for name in names:
        if name not in schema.names:
            raise SchemaError(f"there is no column {name}.", remedy=f"The columns are {', '.join(schema.names)}.")
    return pa.schema([schema.field(name) for name in names])


# --- reading in threads ----------------------------------------------------------------------------------------------

_Todo: TypeAlias = "SimpleQueue[Batches | None]"
_Done: TypeAlias = "SimpleQueue[tuple[Batches, pa.RecordBatch | BaseException | None]]"


class _RepeatedError:
    """An iterator of batches that repeats its error, so that a read that failed never looks complete."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._error: BaseException | None = None

    def __iter__(self) -> _RepeatedError:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._error is not None:
            raise self._error
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as problem:
            self._error = problem
            raise


def _in_threads(reads: Iterator[Batches], count: int) -> Batches:
    """Yield the batches of all reads as they become ready, decoded by ``count`` threads."""
    todo: _Todo = SimpleQueue()
    done: _Done = SimpleQueue()
    open_reads = 0
    try:
        for read in islice(reads, 2 * count):
            todo.put(read)
            open_reads += 1
        for number in range(count):
            threading.Thread(target=_take_steps, args=(todo, done), name=f"read_arrow-{number}", daemon=True).start()
        while open_reads:
            read, result = done.get()
            if isinstance(result, BaseException):
                raise result
            following = next(reads, None) if result is None else read
            if following is None:
                open_reads -= 1
            else:
                todo.put(following)
            if result is not None:
                yield result
    finally:
        with suppress(Empty):
            while True:
                todo.get_nowait()
        for _ in range(count):
            todo.put(None)


def _take_steps(todo: _Todo, done: _Done) -> None:
    """Take steps of reads until None."""
    while (read := todo.get()) is not None:
        result: pa.RecordBatch | BaseException | None
        try:
            result = next(read, None)
        except BaseException as problem:
            result = problem
        done.put((read, result))
        del read, result
