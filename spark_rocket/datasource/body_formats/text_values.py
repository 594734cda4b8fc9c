"""Columns of texts to decimals, dates and timestamps: all of a column at once, where Arrow reads them correctly.

A column is refused with ``ValueError`` if Arrow cannot read one of its values, or might read it wrongly. Its rows are
then decoded one by one, by ``json_values``, so whether a value is accepted does not depend on its neighbours.

Arrow neither notices an overflow when it scales a decimal, nor checks that its table of powers of ten has the exponent
that a text asks for. Numbers of at most 38 digits without an exponent, read as ``decimal256``, cause neither.

Pure. Corresponds to the parts of Spark's UnivocityParser and JacksonParser that convert values.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_MOST_DIGITS = 38
_ZONE = r"(Z|:\S*[+-]\d\d(:?\d\d)?)$"


def wide_decimal(kind: pa.DataType) -> pa.DataType:
    """The type as which decimals of ``kind`` are read before they are cast to it. Scaling one cannot overflow."""
    return pa.decimal256(_MOST_DIGITS, kind.scale)


def decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers without an exponent as decimals that are the very same numbers."""
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is None:
        return pa.nulls(len(texts), kind)
    if longest > _MOST_DIGITS or pc.any(pc.match_substring_regex(texts, "[eE]")).as_py():
        raise ValueError("a decimal number is long, or has an exponent")
    return texts.cast(pa.decimal256(76, kind.scale)).cast(kind)


def dates(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """ISO-8601 texts as dates."""
    return texts.cast(kind)


def timestamps(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """ISO-8601 texts as timestamps; UTC where they name no zone. A type without a zone takes no text with one."""
    naive = pa.timestamp("us")
    if kind.tz is None:
        return texts.cast(naive).cast(kind)
    zoned = pc.match_substring_regex(texts, _ZONE)
    nothing = pa.scalar(None, texts.type)
    with_zone = pc.if_else(zoned, texts, nothing).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    without = pc.if_else(zoned, nothing, texts).cast(naive).cast(pa.int64())
    return pc.coalesce(with_zone, without).cast(kind)
