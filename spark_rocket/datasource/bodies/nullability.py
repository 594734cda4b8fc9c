"""Members that a schema declares NOT NULL: values of maps, elements of arrays, fields of structs.

Decoders build columns whose members may all be null. A body with a null in a member that must not be null is an invalid
record, like a body with any other value that its column cannot hold. Columns themselves are always nullable.

Pure. Corresponds to the null checks of Spark's JacksonParser (``nullable`` of its fields).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from spark_rocket.datasource.bodies.decoding import I64
from spark_rocket.datasource.column_types import is_variant

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def all_nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with members that may be null, except the keys of maps and the parts of variants."""
    types = pa.types
    if types.is_map(kind):
        return pa.map_(kind.key_field.with_type(all_nullable(kind.key_type)), _nullable(kind.item_field))
    if types.is_list(kind):
        return pa.list_(_nullable(kind.value_field))
    if types.is_struct(kind) and not is_variant(kind):
        return pa.struct([_nullable(item) for item in kind])
    return kind


def _nullable(item: pa.Field) -> pa.Field:
    return item.with_type(all_nullable(item.type)).with_nullable(True)


class NullChecker:
    """Finds nulls in members that must not be null. Costs nothing if the schema has no such members."""

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = [item for item in fields if not all_nullable(item.type).equals(item.type)]
        self._places = [fields.get_field_index(item.name) for item in self._fields]

    def rows_with_nulls(self, columns: list[pa.Array]) -> dict[int, str]:
        """Return the rows with such a null, each with the first member that has one."""
        found: dict[int, str] = {}
        for item, place in zip(self._fields, self._places, strict=True):
            column = columns[place]
            for path, rows in _nulls(column, item.type, item.name, np.arange(len(column))):
                for row in rows.tolist():
                    found.setdefault(row, f"the column {path}: it is null, but the schema declares it NOT NULL")
        return found


def _nulls(array: pa.Array, kind: pa.DataType, path: str, rows: I64) -> Iterator[tuple[str, I64]]:
    """Yield the path of each member that must not be null, and the rows with a null there. ``rows``: the row
    of each value of ``array``."""
    types = pa.types
    if types.is_struct(kind) and not is_variant(kind):
        present = _is_valid(array)
        for index, item in enumerate(kind):
            yield from _member(array.field(index), item, f"{path}.{item.name}", rows, present)
    elif types.is_list(kind) or types.is_map(kind):
        edges = array.offsets.to_numpy()
        lengths = np.diff(edges)
        present = np.repeat(_is_valid(array), lengths)
        rows = np.repeat(rows, lengths)
        members = [("value", array.items, kind.item_field)] if types.is_map(kind) else []
        for name, values, item in members or [("element", array.values, kind.value_field)]:
            part = values.slice(int(edges[0]), int(edges[-1] - edges[0]))
            yield from _member(part, item, f"{path}.{name}", rows, present)


def _member(array: pa.Array, item: pa.Field, path: str, rows: I64, present: Mask) -> Iterator[tuple[str, I64]]:
    """``present``: whether the struct, list or map that holds each value is not null."""
    if not present.all():
        array, rows = array.filter(pa.array(present)), rows[present]
    if not item.nullable and array.null_count:
        yield path, rows[~_is_valid(array)]
    yield from _nulls(array, item.type, path, rows)


def _is_valid(array: pa.Array) -> Mask:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))
