"""Typed rows: convert batches of messages to batches of the columns of their bodies (``bodyFormat``).

The driver creates an instance to check a schema before any task, and each task creates one to decode. The instance
requests the message columns and the columns for bad records from the reader, and assembles the rows from them.

Belongs to one task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa

from spark_rocket.datasource.bodies.codecs import decoder, known_columns
from spark_rocket.datasource.bodies.columns import default_schema, layout, looks_like_metadata
from spark_rocket.datasource.bodies.decoding import Decoded, bytes_and_edges
from spark_rocket.datasource.bodies.nullability import NullChecker
from spark_rocket.datasource.options.bodies import BodySettings
from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.read.bad_records import BadRecordCounter, row_mask
from spark_rocket.datasource.read.column_hints import column_hints
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, Projection, project, retype
from spark_rocket.protocol.record.columns import BODY_FAULT

log = logging.getLogger("spark_rocket.datasource")


def schema_of(settings: BodySettings) -> pa.Schema:
    """Return the schema of a read without a user-specified schema."""
    return default_schema(settings, known_columns(settings))


def log_message_names(settings: BodySettings, columns: Sequence[str]) -> None:
    """Log which columns have the name of a message column but are read from the body."""
    if names := looks_like_metadata(settings, columns):
        _log_names(tuple(names))


@lru_cache(64)
def _log_names(names: tuple[str, ...]) -> None:
    """Log once."""
    log.warning(
        "columns %s are read from the bodies; for the message columns of the same name, use "
        '.option("metadataColumns", "%s")',
        ", ".join(names),
        ", ".join(names),
    )


class TypedRows:
    """Decodes the bodies of a task's batches."""

    def __init__(self, options: ReadOptions, settings: BodySettings, schema: pa.Schema) -> None:
        self._layout = layout(settings, schema)
        self._names = self._layout.body.names
        self._decoder = decoder(settings, self._layout.body)
        self._nulls = NullChecker(self._layout.body)
        topics = ", ".join(map(options.namespace.unwrap, options.topics))
        topics = topics or options.topic_pattern or "the store directory"
        self._hints = column_hints(settings.format, tuple(self._names), topics)
        self._counter = BadRecordCounter(options, settings)
        self._target = schema
        self._limit = options.arrow_batch_rows
        self._max_bytes = options.arrow_batch_bytes
        bad_column = self._layout.bad_column
        self._bad_text = bad_column is not None and pa.types.is_string(schema.field(bad_column).type)
        needed = {"body", *self._layout.metadata.values(), *self._counter.needed()}
        message = project(pa.schema([field for field in MESSAGE_SCHEMA if field.name in needed]))
        target = message.target.append(BODY_FAULT)
        self.projection = Projection((*message.columns, BODY_FAULT.name), target, options.namespace)

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                start = 0
                while start < batch.num_rows:
                    decoded = self._decoder.decode(batch.column("body").slice(start))
                    part = batch.slice(start, decoded.count)
                    decoded = _without_bodies(decoded, part.num_rows, self._undecodable(part, decoded))
                    self._hints.watch(part.column("body"), dict(zip(self._names, decoded.columns, strict=True)))
                    yield from self._assemble(part, decoded)
                    start += part.num_rows
        finally:
            self._counter.report()

    def _undecodable(self, batch: pa.RecordBatch, decoded: Decoded) -> dict[int, str]:
        """Return more bad bodies: with a null where none may be, or not decompressed, whatever their bytes were
        decoded to."""
        bad = self._nulls.rows_with_nulls(decoded.columns)
        if decoded.rows is not None:
            bad = {int(decoded.rows[row]): text for row, text in reversed(bad.items())}
        faults = batch.column(BODY_FAULT.name)
        if faults.null_count < len(faults):
            bad |= {index: text for index, text in enumerate(faults.to_pylist()) if text is not None}
        return bad

    def _assemble(self, batch: pa.RecordBatch, decoded: Decoded) -> Iterator[pa.RecordBatch]:
        dropped = self._counter.take(batch, decoded.bad)
        columns = dict(zip(self._names, decoded.columns, strict=True))
        message = {name: batch.column(source) for name, source in self._layout.metadata.items()}
        if self._layout.bad_column is not None:
            message[self._layout.bad_column] = self._bad_bodies(batch.column("body"), decoded.bad)
        mask = row_mask(batch.num_rows, dropped)
        for low, high in self._spans(list(message.values()), batch.num_rows, decoded):
            arrays = []
            for item in self._target:
                if item.name in columns:
                    array = columns[item.name].slice(low, high - low)
                elif decoded.rows is None:
                    array = message[item.name].slice(low, high - low)
                else:
                    array = message[item.name].take(pa.array(decoded.rows[low:high]))
                arrays.append(retype(array, item.type))
            if arrays:
                rows = pa.RecordBatch.from_arrays(arrays, schema=self._target)
            else:
                rows = pa.RecordBatch.from_struct_array(pa.array([{}] * (high - low), pa.struct([])))
            if dropped:
                rows = rows.filter(pa.array(mask[low:high] if decoded.rows is None else mask[decoded.rows[low:high]]))
            if rows.num_rows:
                yield rows

    def _spans(self, message: list[pa.Array], count: int, decoded: Decoded) -> Iterator[tuple[int, int]]:
        """Split rows into batches of ``arrowBatchRows``, or fewer if the message's columns are long and repeated."""
        if decoded.rows is None:
            for start in range(0, count, self._limit):
                yield start, min(start + self._limit, count)
            return
        sizes = sum((_sizes(array) for array in message), np.zeros(count, np.int64))
        ends = np.cumsum(sizes[decoded.rows])
        low, used = 0, 0
        while low < len(ends):
            high = int(np.searchsorted(ends, used + self._max_bytes, side="right"))
            high = min(max(high, low + 1), low + self._limit, len(ends))
            yield low, high
            low, used = high, int(ends[high - 1])

    def _bad_bodies(self, bodies: pa.Array, bad: dict[int, str]) -> pa.Array:
        found: np.ndarray[tuple[int], np.dtype[np.object_]] = np.full(len(bodies), None, object)
        for index in bad:
            body = bodies[index].as_py()
            found[index] = body.decode("utf-8", "replace") if self._bad_text else body
        return pa.array(found, pa.string() if self._bad_text else pa.binary())


def _without_bodies(decoded: Decoded, count: int, bad: dict[int, str]) -> Decoded:
    """Add bad bodies: each has one row of nulls. ``count``: of bodies."""
    if not bad:
        return decoded
    of_body = np.arange(count) if decoded.rows is None else decoded.rows
    is_bad = np.isin(of_body, np.fromiter(bad, np.int64))
    is_first = np.append(True, of_body[1:] != of_body[:-1])
    kept = np.flatnonzero(~is_bad | is_first)
    places = pa.array(kept, mask=is_bad[kept])
    columns = [column.take(places) for column in decoded.columns]
    rows = None if decoded.rows is None else of_body[kept]
    return replace(decoded, columns=columns, bad=decoded.bad | bad, rows=rows)


def _sizes(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the byte lengths of a column's strings, binaries or maps of strings; other types count as 0."""
    if pa.types.is_map(array.type):
        edges = array.offsets.to_numpy()
        return sum(
            (np.diff(bytes_and_edges(texts)[1][edges]) for texts in (array.keys, array.items)),
            np.zeros(len(array), np.int64),
        )
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        return np.diff(bytes_and_edges(array)[1])
    return np.zeros(len(array), np.int64)
