"""Arrow arrays out of somebody else's bytes, as the types of a schema: only where each value stays what it is.

Structs, lists and maps are taken apart and built anew (members of structs are found by name, as columns are);
dictionaries are resolved. Values change their type as in this table, and only when none changes:

=======================================================  ===============================================
from                                                     to
=======================================================  ===============================================
null                                                     anything
whole numbers, floating numbers, decimals                each other, where every value is the same number
texts (large, views); bytes (large, views, fixed)        each other, where bytes are UTF-8
dates                                                    dates, timestamps
timestamps, durations, times of day                      the same in another unit, timestamps in another zone
all of these but bytes, durations and times, booleans    text
=======================================================  ===============================================

All else (unions, run-end encodings, list views, texts to numbers, numbers to dates) is refused. Nothing is built before
``Allowance`` has been asked, for a dictionary or a view may repeat one long value for ever.

Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.datasource.bodies.arrow_limits import Allowance
from spark_rocket.datasource.bodies.decoding import I64, raw

_WIDEST_TEXT = 80
_NUMBERS = ("integer", "float", "decimal")
_PAIRS = frozenset(
    {(one, other) for one in _NUMBERS for other in _NUMBERS}
    | {(one, "text") for one in (*_NUMBERS, "boolean", "date", "timestamp")}
    | {("text", "bytes"), ("bytes", "text"), ("date", "timestamp")}
)


def check_type(kind: pa.DataType) -> None:
    """Refuse decimals that no decimals are: Arrow looks up powers of ten by the scale, wherever that leads."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        check_type(kind.storage_type)
    elif types.is_decimal(kind):
        if not 0 <= kind.scale <= kind.precision:
            raise ValueError(f"a decimal has {kind.precision} digits and {kind.scale} of them behind the point")
    elif types.is_map(kind):
        check_type(kind.key_type)
        check_type(kind.item_type)
    elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        check_type(kind.value_type)
    else:
        for index in range(kind.num_fields):
            check_type(kind.field(index).type)


def nothing(count: int, kind: pa.DataType, left: Allowance) -> pa.Array:
    """Nulls."""
    left.bytes(count * _width(kind))
    return pa.nulls(count, kind)


def conform(array: pa.Array, kind: pa.DataType, left: Allowance) -> pa.Array:
    """The values of a valid array under another type; ValueError where one would change."""
    types = pa.types
    if array.type.equals(kind, check_metadata=True):
        left.bytes(array.nbytes)
        return array
    if isinstance(array, pa.ExtensionArray):
        return conform(array.storage, kind, left)
    if types.is_null(array.type) or not len(array):
        return nothing(len(array), kind, left)
    if types.is_dictionary(array.type):
        left.bytes(_resolved(array))
        return conform(array.dictionary_decode(), kind, left)
    if types.is_struct(kind) and types.is_struct(array.type):
        return _struct(array, kind, left)
    if types.is_map(kind) and types.is_map(array.type):
        left.bytes(5 * len(array))
        keys, items = conform(array.keys, kind.key_type, left), conform(array.items, kind.item_type, left)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_mask(array))
    if types.is_list(kind):
        left.bytes(5 * len(array))
        if types.is_fixed_size_list(array.type):
            values = conform(array.values, kind.value_type, left)
            offsets = pa.array(np.arange(len(array) + 1, dtype=np.int32) * array.type.list_size)
            return pa.ListArray.from_arrays(offsets, values, type=kind, mask=_mask(array))
        if types.is_list(array.type) or types.is_large_list(array.type):
            values = conform(array.values, kind.value_type, left)
            return pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), values, type=kind, mask=_mask(array))
    return _values(array, kind, left)


def _struct(array: pa.Array, kind: pa.DataType, left: Allowance) -> pa.Array:
    left.bytes(len(array))
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    members = []
    for index in range(kind.num_fields):
        item = kind.field(index)
        if names.count(item.name) > 1:
            raise ValueError(f"there are two members {item.name}")
        if item.name in names:
            members.append(conform(array.field(names.index(item.name)), item.type, left))
        else:
            members.append(nothing(len(array), item.type, left))
    if not members:
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], offset=array.offset)
    return pa.StructArray.from_arrays(members, fields=list(kind), mask=_mask(array))


def _values(array: pa.Array, kind: pa.DataType, left: Allowance) -> pa.Array:
    given, wanted = _group(array.type), _group(kind)
    if not wanted or (given != wanted and (given, wanted) not in _PAIRS):
        raise ValueError(f"that does not become {kind} without a loss")
    left.bytes(len(array) * _width(kind))
    if given in ("text", "bytes"):
        left.bytes(int(_lengths(array).sum()))
    elif wanted == "text":
        left.bytes(len(array) * _WIDEST_TEXT)
    if given == "integer" and wanted == "decimal":
        # Arrow asks for room for the largest number of the type, and so gets it.
        return array.cast(pa.decimal256(76, kind.scale)).cast(kind)
    found = array.cast(kind)
    # Arrow overlooks digits that a float loses, and those that overflow where a decimal is scaled.
    if ({given, wanted} & {"float"} and wanted in ("float", "decimal")) or given == wanted == "decimal":
        same = pc.equal(found.cast(array.type), array)
        if given == "float":
            same = pc.or_(same, pc.is_nan(array))
        if pc.all(same).as_py() is False:
            raise ValueError(f"not all of its numbers are numbers of {kind}")
    return found


def _group(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "bytes"
    checks = (
        ("bytes", types.is_fixed_size_binary),
        ("boolean", types.is_boolean),
        ("integer", types.is_integer),
        ("float", types.is_floating),
        ("decimal", types.is_decimal),
        ("date", types.is_date),
        ("timestamp", types.is_timestamp),
        ("time", types.is_time),
        ("duration", types.is_duration),
    )
    return next((name for name, check in checks if check(kind)), "")


def _width(kind: pa.DataType) -> int:
    """About the bytes of a row's value that is null."""
    if pa.types.is_struct(kind):
        return 1 + sum(_width(kind.field(index).type) for index in range(kind.num_fields))
    try:
        return 1 + int(kind.bit_width) // 8
    except ValueError:
        return 5


def _lengths(array: pa.Array) -> I64:
    """The bytes of each text or binary value."""
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        widths: I64 = np.full(len(array), kind.byte_width, np.int64)
        return widths
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1], np.int32)[::4][array.offset : array.offset + len(array)]
        found: I64 = np.where(array.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64)
        return found
    lengths: I64 = np.diff(raw(array)[1])
    return lengths


def _resolved(array: pa.Array) -> int:
    """The bytes of a dictionary's values where each stands for itself."""
    values: Any = array.dictionary
    if _group(values.type) in ("text", "bytes"):
        return int(_lengths(values)[array.indices.drop_null().to_numpy()].sum()) + 5 * len(array)
    if _group(values.type):
        return len(array) * _width(values.type)
    return len(array) * int(values.nbytes)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
