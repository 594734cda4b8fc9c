"""Convert JSON values to Python values of a column's type, one by one: the complete rules for JSON bodies.

The rules are those of Spark's ``from_json``, with the exceptions in ``docs/guides/typed-rows.md`` and what the options
of JSON bodies add (``Rules``). Numbers stay strings until their type is known, so that they lose no digits. Pure.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, time
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pyarrow as pa

from spark_rocket.common.extras import requires
from spark_rocket.datasource.bodies.decoding import BAD, BodyError, ColumnError, reason
from spark_rocket.datasource.bodies.epoch_units import YEARS, micros, unit_of
from spark_rocket.datasource.column_types import is_variant
from spark_rocket.datasource.options.bodies import NO_UNITS, EpochUnit, EpochUnits
from spark_rocket.datasource.time_zones import UTC, Zone

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Rules:
    """What the options of JSON bodies change."""

    zone: Zone = UTC
    """The zone of times without one."""
    quoted: bool = False
    """Whether strings may hold the numbers and booleans of their columns."""
    units: EpochUnits = NO_UNITS


AS_SPARK = Rules()


class Number(str):
    """A number as a string, exactly as written."""

    __slots__ = ()


class Repeated(dict[str, Any]):
    """An object with a duplicate member: its last value counts, and the JSON form has all of them."""

    def __init__(self, members: list[tuple[str, Any]]) -> None:
        super().__init__(members)
        self.members = members


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    return found if len(found) == len(members) else Repeated(members)


def _decoder(constant: Callable[[str], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=constant, object_pairs_hook=_object)


def _refuse(constant: str) -> None:
    raise BodyError(f"{constant} is not JSON")


_DECODER, STRICT = _decoder(Number), _decoder(_refuse)
# Not part of a parsed object; JSON's null is None.
ABSENT: Any = object()
_LONE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair: escapes of whole pairs are one character
# Possessive quantifiers: no backtracking over the digits or blanks of a string that is not a value.
_BASE64 = re.compile(r"(?:[\0- ]*+[A-Za-z0-9+/=]{4})*+[\0- ]*+")  # blanks are between units of four characters
_SPACE = " \t\r\n"
_NO_BLANKS = dict.fromkeys(range(33))
_WHOLE = re.compile(r"-?\d+")
NUMBER = re.compile(r"[+-]?(\d++\.?\d*+|\.\d++)([eE][+-]?\d++)?", re.ASCII)
_SPECIAL = {"NaN": "nan", "+INF": "inf", "-INF": "-inf"} | {f"{sign}Infinity": f"{sign}inf" for sign in ("", "+", "-")}
_MOMENT = re.compile(
    r"\s*([+-]?\d{4,6})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ](?:(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?|(\d\d)(\d\d)(?:(\d\d)(?:\.(\d*))?)?)"
    r"\s*+(?P<zone>Z|UTC|[+-]\d{2}(?::?\d{2})?)?)?\s*",
    re.ASCII,
)
_DAY = re.compile(r"\s*([+-]?\d{4,7})-(\d{1,2})-(\d{1,2})(?:[T ].*|\s*)", re.ASCII | re.DOTALL)
_EPOCH = date(1970, 1, 1).toordinal()
_QUOTED_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # after which the calendar repeats
_DECIMALS = Context(prec=76, rounding=ROUND_HALF_UP)


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a body that is one object; the last of duplicate members counts."""
    if not body:
        raise BodyError("the body is empty")
    value = parse_value(body)
    if not isinstance(value, dict):
        raise BodyError(f"the body is {_name(value)}, not an object")
    return value


def parse_value(body: bytes, decoder: json.JSONDecoder = _DECODER) -> Any:
    """Parse a body that is one JSON value, and NaN or an infinity if the decoder accepts them."""
    text = body.decode()
    value, end = decoder.raw_decode(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise BodyError(f"unexpected characters after the JSON value, from character {end} on")
    return value


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def write_compact(value: Any) -> str:
    """Return a parsed value as JSON, with its original numbers and all of its members."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        members = value.members if isinstance(value, Repeated) else value.items()
        return "{" + ",".join(f"{_quoted(name)}:{write_compact(item)}" for name, item in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write_compact, value)) + "]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    return _LONE.sub(lambda half: f"\\u{ord(half[0]):04X}", json.dumps(value, ensure_ascii=False))


def _name(value: Any) -> str:
    if value is None:
        return "null"
    names = {Number: "a number", str: "a string", bool: "a boolean", list: "an array", dict: "an object"}
    return names[type(value)]


def converter(kind: pa.DataType, path: str, rules: Rules = AS_SPARK) -> Convert:
    """Return a converter of parsed values for ``pa.array(…, kind)``; errors name the column and the invalid value."""
    convert, holds_null = _converter(kind, path, rules), is_variant(kind)
    if rules.quoted:
        convert = _unquoting(kind, convert)

    def checked(value: Any) -> Any:
        if value is ABSENT or (value is None and not holds_null):
            return None
        try:
            return convert(value)
        except (ColumnError, RecursionError):
            raise
        except BAD as error:
            raise ColumnError(path, reason(error)) from None

    return checked


def _unquoting(kind: pa.DataType, convert: Convert) -> Convert:
    """Return a converter that also takes the number or boolean of a column as a string."""
    types = pa.types
    if types.is_boolean(kind):
        return lambda value: convert(
            value
            if isinstance(value, Number) or not isinstance(value, str)
            else _QUOTED_BOOLEANS.get(value.lower(), value)
        )
    if types.is_integer(kind) or types.is_floating(kind) or types.is_date(kind) or types.is_timestamp(kind):
        return lambda value: convert(Number(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value)
    return convert


def _converter(kind: pa.DataType, path: str, rules: Rules) -> Convert:
    types = pa.types
    if types.is_struct(kind):
        if is_variant(kind):
            return variant_reader()
        members = {item.name: converter(item.type, f"{path}.{item.name}", rules) for item in kind}

        def record_of(value: Any) -> dict[str, Any]:
            found = _dict(value)
            return {name: convert(found.get(name, ABSENT)) for name, convert in members.items()}

        return record_of
    if types.is_list(kind):
        item = converter(kind.value_type, f"{path}.element", rules)
        return lambda value: [item(one) for one in _list(value)]
    if types.is_map(kind):
        item = converter(kind.item_type, f"{path}.value", rules)
        return lambda value: [*{_whole(name): item(one) for name, one in _dict(value).items()}.items()]
    if types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return lambda value: _integer(value, bound, kind)
    if types.is_floating(kind):
        return _float32 if types.is_float32(kind) else _float
    if types.is_decimal(kind):
        return lambda value: _decimal(value, kind)
    if types.is_timestamp(kind):
        return _timestamp_reader(kind, unit_of(rules.units, path, kind), rules.zone)
    if types.is_date32(kind):
        unit = unit_of(rules.units, path, kind)
        return lambda value: _date(value) if unit is None or not isinstance(value, Number) else _epoch_days(value)
    return next(convert for check, convert in _PLAIN if check(kind))


def variant_reader() -> Convert:
    """Return a converter to variants in the form of Spark's Arrow batches. They cannot hold a member twice."""
    with requires("A column of type variant"):
        from pyspark.errors import PySparkException
        from pyspark.sql.variant_utils import VariantUtils

    def variant_of(value: Any) -> dict[str, bytes]:
        _check_members(value)
        try:
            content, metadata = VariantUtils.parse_json(write_compact(value))
        except (ValueError, OverflowError, PySparkException):
            raise _wrong(value, "within the limits of variants") from None
        return {"value": bytes(content), "metadata": bytes(metadata)}

    return variant_of


def _check_members(value: Any) -> None:
    if isinstance(value, Repeated):
        (name, _), *_ = Counter(name for name, _ in value.members).most_common(1)
        raise BodyError(f"an object has the member {_quoted(name)} more than once, which a variant cannot store")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_members(item)


def _wrong(value: Any, wanted: str) -> BodyError:
    shown = write_compact(value)
    return BodyError(f"{shown[:60]}{'…' if len(shown) > 60 else ''} is not {wanted}")


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, "an object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(value, "an array")
    return value


def _integer(value: Any, bound: int, kind: pa.DataType) -> int:
    if not isinstance(value, Number) or not _WHOLE.fullmatch(value) or len(value) > 20:
        raise _wrong(value, "an integer")
    number = int(value)
    if not -bound <= number < bound:
        raise _wrong(value, f"within {kind}")
    return number


def _float(value: Any) -> float:
    if isinstance(value, Number):
        return float(value)
    if isinstance(value, str) and value in _SPECIAL:
        return float(_SPECIAL[value])
    raise _wrong(value, "a number")


def _float32(value: Any) -> Any:
    """Round once, not through a double."""
    _float(value)
    return pa.scalar(_SPECIAL.get(value, str(value))).cast(pa.float32()).as_py()


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    if not isinstance(value, str) or not NUMBER.fullmatch(value):
        raise _wrong(value, "a decimal number")
    try:
        number = Decimal(value)
    except ArithmeticError:
        raise _wrong(value, "a decimal number") from None
    whole = kind.precision - kind.scale
    if number and number.adjusted() >= whole:
        raise _wrong(value, f"within {kind}")
    rounded = number.quantize(Decimal(1).scaleb(-kind.scale), context=_DECIMALS)
    if rounded and rounded.adjusted() >= whole:
        raise _wrong(value, f"within {kind}")
    return rounded


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, "true or false")
    return value


def _text(value: Any) -> str:
    return _whole(value) if isinstance(value, str) and not isinstance(value, Number) else write_compact(value)


def _whole(text: str) -> str:
    """Replace halves of surrogate pairs, as Java does in UTF-8."""
    return text if text.isascii() else _LONE.sub("?", text)


def _binary(value: Any) -> bytes:
    if not isinstance(value, str) or isinstance(value, Number):
        raise _wrong(value, "a string of base64")
    if not _BASE64.fullmatch(value):
        raise _wrong(value, "base64")
    try:
        return base64.b64decode(value.translate(_NO_BLANKS), validate=True)
    except ValueError:
        raise _wrong(value, "base64") from None


def _timestamp_reader(kind: pa.DataType, unit: EpochUnit | None, zone: Zone) -> Convert:
    """Return a converter to microseconds since 1970. Numbers count ``unit``; without one they count seconds in a
    timestamp, as in Spark, and are invalid in one without a zone."""
    if kind.tz is None:

        def naive(value: Any) -> int:
            if isinstance(value, Number) and unit is not None:
                return _epoch_micros(value, unit)
            match = _MOMENT.fullmatch(value) if isinstance(value, str) and not isinstance(value, Number) else None
            has_zone = match is not None and match["zone"] is not None  # an error, as in Spark
            return _micros(value, None if has_zone else match, "a timestamp without a zone")

        return naive

    def zoned(value: Any) -> int:
        if isinstance(value, Number):
            return _epoch_micros(value, unit or EpochUnit.SECONDS)
        match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
        micros = _micros(value, match, "a timestamp")
        return (
            micros if zone.is_utc or (match is not None and match["zone"]) else _in_range(value, zone.instant(micros))
        )

    return zoned


def _epoch_micros(value: Number, unit: EpochUnit) -> int:
    found = micros(_integer(value, 1 << 63, pa.int64()), unit)
    if found is None:
        name = unit.name.lower()
        raise _wrong(
            value, f"within the years 0 to 9999 if it counts {name} since 1970: set jsonEpochUnits to its unit"
        )
    return found


def _epoch_days(value: Number) -> int:
    days = _integer(value, 1 << 63, pa.int64())
    if days not in YEARS:
        raise _wrong(value, "within the years 0 to 9999 if it counts days since 1970")
    return days


def _micros(value: Any, match: re.Match[str] | None, wanted: str) -> int:
    if match is None:
        raise _wrong(value, wanted)
    year, month, day, *clocks, zone = match.groups()
    hour, minute, second, fraction = (one or other for one, other in zip(clocks[:4], clocks[4:], strict=True))
    try:
        days = _days(int(year), int(month), int(day))
        clock = time(int(hour or 0), int(minute or 0), int(second or 0))
        offset = time(int(zone[1:3]), int(zone[-2:]) if len(zone) > 3 else 0) if zone and zone[0] in "+-" else time()
    except ValueError:
        raise _wrong(value, wanted) from None
    seconds = days * 86_400 + clock.hour * 3600 + clock.minute * 60 + clock.second
    seconds -= (-1 if zone and zone[0] == "-" else 1) * (offset.hour * 3600 + offset.minute * 60)
    micros = seconds * 1_000_000 + int(f"{(fraction or '')[:6]:0<6}")
    return _in_range(value, micros)


def _in_range(value: Any, micros: int) -> int:
    if not -(1 << 63) <= micros < 1 << 63:
        raise _wrong(value, "within the years of timestamps")
    return micros


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970, of any year."""
    cycles = (year - 2000) // _CYCLE_YEARS
    return date(year - cycles * _CYCLE_YEARS, month, day).toordinal() - _EPOCH + cycles * _CYCLE_DAYS


def _date(value: Any) -> int:
    """Return days since 1970. Characters after the date, including a zone, are ignored, as in Spark."""
    match = _DAY.fullmatch(value) if isinstance(value, str) and not isinstance(value, Number) else None
    if match is None:
        raise _wrong(value, "a date")
    try:
        days = _days(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        raise _wrong(value, "a date") from None
    if not -(1 << 31) <= days < 1 << 31:
        raise _wrong(value, "within the years of dates")
    return days


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_string, _text),
    (pa.types.is_binary, _binary),
)
