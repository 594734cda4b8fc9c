"""Arrow columns of records without the namespace in their names.

Corresponds to NamespaceUtil.withoutNamespace of received messages.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.protocol.namespace import NAME_PROPERTIES, Namespace


def unwrapped_batch(batch: pa.RecordBatch, namespace: Namespace) -> pa.RecordBatch:
    """Remove the namespace from the columns topic and properties, if the batch has them."""
    if not namespace:
        return batch
    for name, change in (("topic", _topics), ("properties", _properties)):
        at = batch.schema.get_field_index(name)
        if at >= 0:
            batch = batch.set_column(at, batch.schema.field(at), change(batch.column(at), namespace))
    return batch


def renamed(column: pa.Array, rename: Callable[[str], str]) -> pa.Array:
    """Return a column of names with other names; each is renamed once."""
    coded = column.dictionary_encode()
    before = coded.dictionary.to_pylist()
    names = list(map(rename, before))
    return column if names == before else pa.array(names, pa.string()).take(coded.indices)


def _topics(column: pa.Array, namespace: Namespace) -> pa.Array:
    return renamed(column, namespace.unwrap)


def _properties(column: pa.MapArray, namespace: Namespace) -> pa.MapArray:
    keys, values = column.keys, column.items
    names = pc.is_in(keys, value_set=pa.array(sorted(NAME_PROPERTIES)))
    if not pc.any(pc.and_(names, pc.match_substring(values, namespace.prefix)), min_count=0).as_py():
        return column
    pairs = zip(values.to_pylist(), names.to_pylist(), strict=True)
    new = pa.array([namespace.unwrap(value) if is_name else value for value, is_name in pairs], pa.string())
    return pa.MapArray.from_arrays(column.offsets, keys, new, type=column.type)
