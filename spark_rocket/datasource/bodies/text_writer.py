"""Columns to JSON objects and CSV lines, a batch at a time by Arrow's string kernels. Pure.

Each function makes an array of texts, null where its value is. Only binary values and variants are looked at one by
one: Arrow has no base64 and no variants.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import is_variant
from pyspark.sql.variant_utils import VariantUtils

from spark_rocket.errors import SchemaError

_ESCAPED = r'["\\\x00-\x1f]'
_CONTROL = r"[\x00-\x1f]"
_DAY_MICROS = 86_400_000_000
_FOUR_DIGIT_YEARS = -719_528, 2_932_897  # days since 1970: 0000-01-01, and the day behind 9999-12-31
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # after which the calendar repeats


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
        entries = _join(_quoted(plain_texts(whole.keys)), ":", json_texts(whole.items).fill_null("null"))
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
    """Numbers, dates and times as JSON and CSV both have them; years before 0 and after 9999 as `to_json` has them."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        micros = array.cast(pa.int64())
        # The fast way to print is without a zone: `2026-01-31 12:00:00.000000`.
        texts = pc.binary_replace_slice(micros.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
        return _join(_with_far_years(texts, micros, _DAY_MICROS, _far_moment), "Z" if kind.tz else "")
    if pa.types.is_date(kind):
        return _with_far_years(array.cast(pa.string()), array.cast(pa.int32()), 1, _far_day)
    return array.cast(pa.string())


def _with_far_years(texts: pa.Array, numbers: pa.Array, per_day: int, write: Callable[[int], str]) -> pa.Array:
    """Texts of ``numbers`` since 1970, ``per_day`` of them a day, but where Arrow has none that can be read again."""
    first, end = (pa.scalar(days * per_day, numbers.type) for days in _FOUR_DIGIT_YEARS)
    far = pc.fill_null(pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end)), False)
    if not pc.any(far).as_py():
        return texts
    return pc.replace_with_mask(texts, far, pa.array(map(write, numbers.filter(far).to_pylist()), pa.string()))


def _far_moment(micros: int) -> str:
    days, rest = divmod(micros, _DAY_MICROS)
    clock = (datetime.min + timedelta(microseconds=rest)).time()
    return f"{_far_day(days)}T{clock.isoformat('microseconds')}"


def _far_day(days: int) -> str:
    cycles, rest = divmod(days, _CYCLE_DAYS)
    day = date(1970, 1, 1) + timedelta(days=rest)
    year = day.year + cycles * _CYCLE_YEARS
    return f"{'+' if year > 9999 else ''}{year:0{5 if year < 0 else 4}d}-{day:%m-%d}"


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
