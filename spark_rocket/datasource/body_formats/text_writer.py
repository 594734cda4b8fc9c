"""Columns to JSON objects and CSV lines, a batch at a time by Arrow's string kernels. Pure.

Each function makes an array of texts, null where its value is. Only binary values and variants are looked at one by
one: Arrow has no base64 and no variants.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import is_variant
from pyspark.sql.variant_utils import VariantUtils

from spark_rocket.errors import SchemaError

_ESCAPED = r'["\\\x00-\x1f]'
_CONTROL = r"[\x00-\x1f]"


def json_objects(columns: list[pa.Array], names: list[str]) -> pa.Array:
    """One object per row, without the members that are null."""
    if not columns:
        raise ValueError("an object of nothing")
    pieces = []
    for name, column in zip(names, columns, strict=True):
        texts = json_texts(column)
        members = _join(f",{json.dumps(name, ensure_ascii=False)}:", texts)
        pieces.append(members.fill_null("") if members.null_count else members)
    # Every member begins with a comma; the first one's place is the brace's.
    return _join(pc.binary_replace_slice(_join(*pieces), 0, 1, "{"), "}")


def json_texts(array: pa.Array) -> pa.Array:
    """JSON values."""
    kind, types = array.type, pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted(array)
    if types.is_floating(kind):
        texts = array.cast(pa.string())
        finite = pc.is_finite(array)
        if pc.all(finite).as_py() is not False:
            return texts
        special = pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"'))
        return pc.if_else(finite, texts, special)
    if types.is_struct(kind):
        return _struct_texts(array)
    if types.is_map(kind):
        whole = array.take(pa.array(np.arange(len(array))))
        entries = _join(_quoted(whole.keys.cast(pa.string())), ":", json_texts(whole.items).fill_null("null"))
        return _join("{", _joined(whole, entries), "}")
    if types.is_list(kind):
        whole = array.take(pa.array(np.arange(len(array))))
        return _join("[", _joined(whole, json_texts(whole.values).fill_null("null")), "]")
    if types.is_binary(kind):
        encoded = [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]
        return _join('"', pa.array(encoded, pa.string()), '"')
    if types.is_timestamp(kind) or types.is_date(kind):
        return _join('"', plain_texts(array), '"')
    return plain_texts(array)


def plain_texts(array: pa.Array) -> pa.Array:
    """Numbers, dates and times as JSON and CSV both have them."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        # The fast way to print is without a zone: `2026-01-31 12:00:00.000000`.
        texts = array.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
        return _join(pc.binary_replace_slice(texts, 10, 11, "T"), "Z" if kind.tz else "")
    return array.cast(pa.string())


def csv_lines(columns: list[pa.Array], delimiter: str) -> pa.Array:
    """One line per row; null is nothing, an empty string is quoted."""
    pieces: list[pa.Array | str] = []
    for column in columns:
        if pa.types.is_string(column.type):
            special = pc.match_substring_regex(column, rf'["\r\n\x{ord(delimiter):02x}]|^\s|\s$|^$')
            if pc.any(special).as_py():
                quoted = _join('"', pc.replace_substring(column, '"', '""'), '"')
                column = pc.if_else(special, quoted, column)
            texts = column
        else:
            texts = plain_texts(column)
        pieces += [delimiter, texts.fill_null("")]
    return _join(*pieces[1:])


def check_json(kind: pa.DataType, name: str) -> None:
    """Refuse, before any row, what has no JSON."""
    types = pa.types
    if types.is_struct(kind):
        if not is_variant(kind):
            for index in range(kind.num_fields):
                check_json(kind.field(index).type, name)
            if kind.num_fields:
                return None
        else:
            return None
    elif types.is_map(kind):
        if not types.is_nested(kind.key_type):
            return check_json(kind.item_type, name)
    elif types.is_list(kind):
        return check_json(kind.value_type, name)
    elif types.is_binary(kind) or is_plain(kind):
        return None
    raise SchemaError(f"the column {name} has {kind}, which JSON has no values for.", remedy="Cast it, or drop it.")


def is_plain(kind: pa.DataType) -> bool:
    """Whether a type's values are one text each."""
    types = pa.types
    checks = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_string, types.is_date)
    return any(check(kind) for check in checks) or types.is_timestamp(kind)


def _join(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _quoted(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    if pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        has_control = pc.any(pc.match_substring_regex(texts, _CONTROL)).as_py()
        for character in ("\\", '"', *(map(chr, range(32)) if has_control else ())):
            texts = pc.replace_substring(texts, character, json.dumps(character)[1:-1])
    return _join('"', texts, '"')


def _struct_texts(array: pa.Array) -> pa.Array:
    if is_variant(array.type):
        texts = [None if one is None else variant_text(one) for one in array.to_pylist()]
        return pa.array(texts, pa.string())
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    objects = json_objects(array.flatten(), names)
    return pc.if_else(array.is_valid(), objects, pa.scalar(None, pa.string())) if array.null_count else objects


def variant_text(value: dict[str, Any]) -> str:
    """A variant, as Arrow's batches hold it, as JSON."""
    return VariantUtils.to_json(value["value"], value["metadata"])


def _joined(whole: pa.Array, texts: pa.Array) -> pa.Array:
    """The texts of each list, with commas between them; ``whole`` is not a slice."""
    mask = whole.is_null() if whole.null_count else None
    return pc.binary_join(pa.ListArray.from_arrays(whole.offsets, texts, mask=mask), ",")
