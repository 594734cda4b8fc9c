"""Columns of texts to decimals, dates and timestamps: all of a column at once, where Arrow reads them correctly.

What Arrow refuses, or might read wrongly, ``json_values`` reads value by value. It accepts all that Arrow accepts, so
whether a value is accepted does not depend on its neighbours.

Arrow neither notices an overflow when it scales a decimal, nor checks that its table of powers of ten has the exponent
that a text asks for. Numbers of at most 38 digits without an exponent, read as ``decimal256``, cause neither.

Pure. Corresponds to the parts of Spark's UnivocityParser and JacksonParser that convert values.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.datasource.bodies.decoding import BAD, reason
from spark_rocket.datasource.bodies.json_values import converter

_MOST_DIGITS = 38
_ZONE = r"(Z|:\S*[+-]\d\d(:?\d\d)?)$"


def wide_decimal(kind: pa.DataType) -> pa.DataType:
    """The type as which decimals of ``kind`` are read before they are cast to it. Scaling one cannot overflow."""
    return pa.decimal256(_MOST_DIGITS, kind.scale)


def is_read_as_text(kind: pa.DataType) -> bool:
    """Whether ``values_of`` makes values of this type, because a parser of Arrow's would refuse or change some."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def values_of(texts: pa.Array, kind: pa.DataType, bad: dict[int, str]) -> pa.Array:
    """A column's values. A text that is none of them becomes null, and its row is put into ``bad`` with the reason."""
    try:
        return _by_arrow(texts, kind)
    except (ValueError, pa.ArrowException):
        pass
    convert = converter(kind)
    values = []
    for row, text in enumerate(texts.to_pylist()):
        try:
            values.append(convert(text))
        except BAD as error:
            values.append(None)
            bad.setdefault(row, reason(error))
    return pa.array(values, kind)


def _by_arrow(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return _decimals(texts, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _timestamps(texts, kind)
    return texts.cast(kind)  # a timestamp without a zone takes no text with one


def _decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is None:
        return pa.nulls(len(texts), kind)
    if longest > _MOST_DIGITS or any(pc.any(pc.match_substring(texts, letter)).as_py() for letter in "eE"):
        raise ValueError("a decimal number is long, or has an exponent")
    return texts.cast(pa.decimal256(76, kind.scale)).cast(kind)


def _timestamps(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """ISO-8601 texts as timestamps; UTC where they name no zone."""
    zoned = pc.match_substring_regex(texts, _ZONE)
    nothing = pa.scalar(None, texts.type)
    with_zone = pc.if_else(zoned, texts, nothing).cast(kind).cast(pa.int64())
    without = pc.if_else(zoned, nothing, texts).cast(pa.timestamp(kind.unit)).cast(pa.int64())
    return pc.coalesce(with_zone, without).cast(kind)
