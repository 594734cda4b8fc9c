"""Columns as JSON objects and lines of CSV, a batch at a time by Arrow's string kernels.

Only binary values and variants are converted one by one: Arrow has neither base64 nor variants. Values are those of
Spark's ``to_json`` and ``to_csv``. Columns must have exactly the types of ``column_types``.

Pure.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.datasource.bodies.far_times import DAY_MICROS, day_text, moment_text
from spark_rocket.datasource.column_types import is_variant
from spark_rocket.protocol.record.arrays import array_of, binary_of, string_scalar, strings_of

_FOUR_DIGIT_YEARS = -719_528, 2_932_897  # days since 1970: 0000-01-01, and the day after 9999-12-31


def json_objects(columns: list[pa.Array], names: list[str]) -> pa.Array:
    """Return one object per row, without null members."""
    if not columns:
        raise ValueError("an object without members")
    pieces: list[pa.Array | str] = []
    constant = ""  # text that is the same in every row, not yet in ``pieces``
    for name, column in zip(names, columns, strict=True):
        before, texts, after = _json_parts(column)
        before = f",{json.dumps(name, ensure_ascii=False)}:{before}"
        if texts.null_count:  # its name is null in the same rows
            is_given = texts.is_valid()
            pieces += [constant, _where(is_given, before), texts, _where(is_given, after)]
            constant = ""
        else:
            pieces += [constant + before, texts]
            constant = after
    pieces = [piece for piece in pieces if not isinstance(piece, str) or piece]
    if not columns[0].null_count:
        pieces[0] = f"{{{pieces[0][1:]}"
        return _join_non_null(*pieces, constant + "}")
    # Every member begins with a comma; a brace replaces the first one.
    return _join(pc.binary_replace_slice(_join_non_null(*pieces, constant), 0, 1, "{"), "}")


def json_texts(array: pa.Array) -> pa.Array:
    """Return the values as JSON."""
    before, texts, after = _json_parts(array)
    return _join(before, texts, after) if before or after else texts


def _json_parts(array: pa.Array) -> tuple[str, pa.Array, str]:
    """Return the values as JSON, without the constant text at both ends."""
    kind, types = array.type, pa.types
    if types.is_string(kind):
        return '"', _escaped(array), '"'
    if types.is_timestamp(kind):
        return '"', _clock_texts(array), 'Z"' if kind.tz else '"'
    if types.is_date(kind):
        return '"', plain_texts(array), '"'
    return "", _bare_texts(array), ""


def _bare_texts(array: pa.Array) -> pa.Array:
    """Return numbers, booleans and nested values as JSON."""
    kind, types = array.type, pa.types
    if types.is_floating(kind):
        texts, finite = plain_texts(array), pc.is_finite(array)
        return texts if pc.all(finite).as_py() is not False else pc.if_else(finite, texts, _join('"', texts, '"'))
    if types.is_struct(kind):
        return _struct_texts(array)
    if types.is_map(kind):
        whole = array.take(array_of(np.arange(len(array))))
        entries = _join(_quoted(plain_texts(whole.keys)), ":", _or_null(json_texts(whole.items)))
        return _join("{", _joined(whole, entries), "}")
    if types.is_list(kind):
        whole = array.take(array_of(np.arange(len(array))))
        return _join("[", _joined(whole, _or_null(json_texts(whole.values))), "]")
    if types.is_binary(kind):
        encoded = binary_of(None if value is None else base64.b64encode(value) for value in array.to_pylist())
        return _join('"', encoded.cast(pa.string()), '"')
    return plain_texts(array)


def plain_texts(array: pa.Array) -> pa.Array:
    """Format numbers, dates and times for JSON and CSV; NaN, infinities and far years like `to_json` and `to_csv`."""
    kind = array.type
    if pa.types.is_floating(kind):
        texts, finite = array.cast(pa.string()), pc.is_finite(array)
        if pc.any(pc.equal(array, array_of(np.zeros(1)).cast(kind)[0])).as_py():  # a negative zero keeps its sign
            texts = pc.if_else(pc.equal(texts, string_scalar("-0")), string_scalar("-0.0"), texts)
        if pc.all(finite).as_py() is not False:
            return texts
        zero, infinity = array_of(np.zeros(1)).cast(kind)[0], string_scalar("Infinity")
        infinite = pc.if_else(pc.greater(array, zero), infinity, string_scalar("-Infinity"))
        return pc.if_else(finite, texts, pc.if_else(pc.is_nan(array), string_scalar("NaN"), infinite))
    if pa.types.is_timestamp(kind):
        return _join(_clock_texts(array), "Z") if kind.tz else _clock_texts(array)
    if pa.types.is_date(kind):
        return _with_far_years(array.cast(pa.string()), array.cast(pa.int32()), 1, day_text)
    return array.cast(pa.string())


def _clock_texts(array: pa.Array) -> pa.Array:
    """Format times without their zone."""
    micros = array.cast(pa.int64())
    # Formatting without a zone is faster: `2026-01-31 12:00:00.000000`.
    texts = pc.binary_replace_slice(micros.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    return _with_far_years(texts, micros, DAY_MICROS, moment_text)


def _with_far_years(texts: pa.Array, numbers: pa.Array, per_day: int, write: Callable[[int], str]) -> pa.Array:
    """Format ``numbers`` since 1970, ``per_day`` of them a day, where Arrow's format could not be parsed again."""
    first, end = array_of(np.array(_FOUR_DIGIT_YEARS) * per_day).cast(numbers.type)
    far = pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end))
    if not pc.any(far).as_py():
        return texts
    return pc.replace_with_mask(texts, far, strings_of(map(write, numbers.filter(far).to_pylist())))


def csv_lines(columns: list[pa.Array], delimiter: str, escape: str) -> pa.Array:
    """Return one line per row; null is an empty value, an empty string is quoted.

    Within quotes, ``escape`` stands before a quote and itself.
    """
    pieces: list[pa.Array | str] = []
    for column in columns:
        if pa.types.is_string(column.type):
            special = pc.match_substring_regex(column, rf'["\r\n\x{ord(delimiter):02x}]|^\s|\s$|^$')
            if pc.any(special).as_py():
                quoted = column
                for character in dict.fromkeys((escape, '"')):
                    quoted = pc.replace_substring(quoted, character, escape + character)
                column = pc.if_else(special, _join('"', quoted, '"'), column)
            texts = column
        else:
            texts = plain_texts(column)
        pieces += [delimiter, texts.fill_null(string_scalar(""))]
    return _join(*pieces[1:])


def lines_of(texts: pa.Array) -> bytes:
    """Return strings as lines of UTF-8."""
    return _units(_join(texts, "\n")).tobytes()


def _join(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*_operands(parts))


def _join_non_null(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*_operands(parts), null_handling="skip")


def _operands(parts: Sequence[pa.Array | str]) -> list[pa.Array | pa.Scalar]:
    """Return the parts, and an empty separator."""
    return [string_scalar(part) if isinstance(part, str) else part for part in (*parts, "")]


def _where(mask: pa.Array, text: str) -> pa.Array | str:
    """Return ``text`` in the rows of ``mask``, null in the others; without text, no column."""
    return pc.if_else(mask, string_scalar(text), string_scalar(None)) if text else ""


def _or_null(texts: pa.Array) -> pa.Array:
    return texts.fill_null(string_scalar("null"))


def _quoted(array: pa.Array) -> pa.Array:
    return _join('"', _escaped(array), '"')


def _escaped(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    units = _units(texts)
    has_control = bool(len(units)) and int(units.min()) < ord(" ")
    if has_control or (units == ord('"')).any() or (units == ord("\\")).any():
        for character in ("\\", '"', *(map(chr, range(32)) if has_control else ())):
            texts = pc.replace_substring(texts, character, json.dumps(character)[1:-1])
    return texts


def _units(texts: pa.Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of all strings."""
    data = texts.buffers()[2]
    if data is None or not len(texts):
        return np.empty(0, np.uint8)
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8)[int(offsets[0]) : int(offsets[-1])]


def _struct_texts(array: pa.Array) -> pa.Array:
    if is_variant(array.type):
        return strings_of(None if one is None else variant_text(one) for one in array.to_pylist())
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    objects = json_objects(array.flatten(), names)
    return pc.if_else(array.is_valid(), objects, string_scalar(None)) if array.null_count else objects


def variant_text(value: dict[str, Any]) -> str:
    """Convert a variant of an Arrow batch to JSON."""
    from spark_rocket.datasource.bodies.variants import variant_json  # imports modules that other columns do not need

    return variant_json(value["value"], value["metadata"])


def _joined(whole: pa.Array, texts: pa.Array) -> pa.Array:
    """Join the strings of each list with commas; ``whole`` is not a slice."""
    mask = whole.is_null() if whole.null_count else None
    return pc.binary_join(pa.ListArray.from_arrays(whole.offsets, texts, mask=mask), string_scalar(","))
