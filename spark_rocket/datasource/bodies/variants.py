"""Variants as JSON, with the text of Spark's ``to_json``: all digits of decimals, NaN and infinities as strings.

PySpark's ``VariantUtils.to_json`` rounds decimals to 28 digits, and writes ``nan``, which is not JSON.

A value begins with a byte: a basic type in its low 2 bits, and more about it in the other 6.

=============  ======================================================================================================
0 primitive    the 6 bits are its type (``_PRIMITIVES``). Numbers are little endian
1 short text   the 6 bits are its length
2 object       a count (1 byte, or 4 if bit 4 is set), the number of each member's name, offsets of the values and of
               their end, the values. Bits 2 and 3: bytes of a number less 1; bits 0 and 1: bytes of an offset less 1
3 array        a count (1 byte, or 4 if bit 2 is set), offsets, the values. Bits 0 and 1: as above
=============  ======================================================================================================

The metadata begins with a byte (version 1; bytes of an offset less 1 in the top 2 bits), and has the count of names,
their offsets and their UTF-8.

Pure. Corresponds to Spark's Variant.toJson, and to Parquet's Variant Binary Encoding.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from itertools import pairwise

import numpy as np

from spark_rocket.datasource.bodies.far_times import day_text, moment_text

_DIGITS = Context(prec=76)


def variant_json(value: bytes, metadata: bytes) -> str:
    """Return a variant as JSON; ValueError if its bytes are invalid."""
    try:
        return _json(value, 0, _names(metadata))
    except (IndexError, struct.error, OverflowError) as error:
        raise ValueError("the variant is malformed") from error


def _number(data: bytes, at: int, size: int, *, signed: bool = False) -> int:
    if len(data) < at + size:
        raise IndexError(at)
    return int.from_bytes(data[at : at + size], "little", signed=signed)


def _names(metadata: bytes) -> list[str]:
    size = (metadata[0] >> 6) + 1
    count = _number(metadata, 1, size)
    if len(metadata) < 1 + (count + 2) * size:
        raise IndexError(count)
    edges = [_number(metadata, 1 + (index + 1) * size, size) for index in range(count + 1)]
    texts = metadata[1 + (count + 2) * size :]
    return [texts[low:high].decode() for low, high in pairwise(edges)]


def _json(data: bytes, at: int, names: list[str]) -> str:
    kind, more = data[at] & 3, data[at] >> 2
    if kind == 0:
        if more not in _PRIMITIVES:
            raise ValueError(f"the variant has the unknown type {more}")
        return _PRIMITIVES[more](data, at + 1)
    if kind == 1:
        return _quoted(_bytes(data, at + 1, more).decode())
    is_object = kind == 2
    count_size = 4 if more & (16 if is_object else 4) else 1
    count, at = _number(data, at + 1, count_size), at + 1 + count_size
    offset_size, id_size = (more & 3) + 1, ((more >> 2) & 3) + 1 if is_object else 0
    offsets = at + count * id_size
    values = offsets + (count + 1) * offset_size
    if values > len(data):
        raise IndexError(values)
    places = [values + _number(data, offsets + index * offset_size, offset_size) for index in range(count)]
    if not is_object:
        return f"[{','.join(_json(data, place, names) for place in places)}]"
    members = [names[_number(data, at + index * id_size, id_size)] for index in range(count)]
    pairs = zip(members, places, strict=True)
    return f"{{{','.join(f'{_quoted(name)}:{_json(data, place, names)}' for name, place in pairs)}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _bytes(data: bytes, at: int, size: int) -> bytes:
    if len(data) < at + size:
        raise IndexError(at)
    return data[at : at + size]


def _long_bytes(data: bytes, at: int) -> bytes:
    return _bytes(data, at + 4, _number(data, at, 4))


def _integer(size: int) -> Callable[[bytes, int], str]:
    return lambda data, at: str(_number(data, at, size, signed=True))


def _decimal(size: int) -> Callable[[bytes, int], str]:
    def text(data: bytes, at: int) -> str:
        number = Decimal(_number(data, at + 1, size, signed=True)).scaleb(-data[at], _DIGITS)
        return format(number.normalize(_DIGITS) if number else Decimal(0), "f")

    return text


def _float(form: str, kind: type[np.floating]) -> Callable[[bytes, int], str]:
    def text(data: bytes, at: int) -> str:
        number = kind(*struct.unpack_from(form, data, at))
        if np.isnan(number):
            return '"NaN"'
        if np.isinf(number):
            return '"Infinity"' if number > 0 else '"-Infinity"'
        return str(number)  # the shortest text of a number of this width

    return text


def _moment(zone: str) -> Callable[[bytes, int], str]:
    def text(data: bytes, at: int) -> str:
        whole = moment_text(_number(data, at, 8, signed=True))
        return f'"{whole.replace("T", " ").rstrip("0").rstrip(".") if "." in whole else whole}{zone}"'

    return text


_PRIMITIVES: dict[int, Callable[[bytes, int], str]] = {
    0: lambda data, at: "null",
    1: lambda data, at: "true",
    2: lambda data, at: "false",
    3: _integer(1),
    4: _integer(2),
    5: _integer(4),
    6: _integer(8),
    7: _float("<d", np.float64),
    8: _decimal(4),
    9: _decimal(8),
    10: _decimal(16),
    11: lambda data, at: f'"{day_text(_number(data, at, 4, signed=True))}"',
    12: _moment("+00:00"),
    13: _moment(""),
    14: _float("<f", np.float32),
    15: lambda data, at: f'"{base64.b64encode(_long_bytes(data, at)).decode()}"',
    16: lambda data, at: _quoted(_long_bytes(data, at).decode()),
}
