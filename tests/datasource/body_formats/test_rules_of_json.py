"""``jsonQuotedValues``, ``jsonEpochUnits`` and ``timeZone``: each value has its column's type, alone and in a batch."""

from __future__ import annotations

import json
import random
from datetime import UTC as ZONE
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from spark_rocket.datasource.bodies import codecs
from spark_rocket.datasource.bodies.csv_reader import CsvDecoder
from spark_rocket.datasource.bodies.json_reader import JsonDecoder
from spark_rocket.datasource.bodies.json_values import Rules
from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings, EpochUnits, epoch_units
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.time_zones import machine_zone, zone_of
from spark_rocket.errors import OptionError, SchemaError
from tests.datasource.body_formats.formats import UTC, bodies, check_alone, noon, rows_of
from tests.datasource.body_formats.odd_values import SCALARS

NTZ = pa.timestamp("us")


def units(text: str) -> EpochUnits:
    return epoch_units("jsonEpochUnits", text)


def value_of(kind: pa.DataType, text: str, rules: Rules) -> Any:
    """The value of a column with this JSON, or why it is invalid."""
    fields = pa.schema([("c", kind)])
    decoded = JsonDecoder(fields, rules).decode(bodies(f'{{"c":{text}}}'.encode()))
    return decoded.bad.get(0) or rows_of(decoded, fields)[0]["c"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int32(), '"7"', 7),
        (pa.int32(), "7", 7),
        (pa.int8(), '"128"', "the column c: 128 is not within int8"),
        (pa.int32(), '"7.5"', "the column c: 7.5 is not an integer"),
        (pa.int32(), '" 7"', 'the column c: " 7" is not an integer'),
        (pa.int32(), '""', 'the column c: "" is not an integer'),
        (pa.int64(), '"９"', 'the column c: "９" is not an integer'),
        (pa.float64(), '"-1.5e3"', -1500.0),
        (pa.float64(), '"NaN"', pytest.approx(float("nan"), nan_ok=True)),
        (pa.float64(), '"x"', 'the column c: "x" is not a number'),
        (pa.decimal128(10, 2), '"12.50"', Decimal("12.50")),
        (pa.bool_(), '"true"', True),
        (pa.bool_(), '"FALSE"', False),
        (pa.bool_(), '"1"', True),
        (pa.bool_(), '"0"', False),
        (pa.bool_(), "1", "the column c: 1 is not true or false"),
        (pa.bool_(), '"yes"', 'the column c: "yes" is not true or false'),
        (pa.string(), '"7"', "7"),
        (pa.list_(pa.field("element", pa.int32())), '["1",null,2]', [1, None, 2]),
        (pa.map_(pa.string(), pa.int32()), '{"a":"1"}', [("a", 1)]),
        (pa.struct([("x", pa.bool_())]), '{"x":"1"}', {"x": True}),
        (UTC, '"2026-01-31 12:00:00"', noon()),
    ],
)
def test_values_in_quotation_marks(kind: pa.DataType, text: str, value: Any) -> None:
    found = value_of(kind, text, Rules(quoted=True))
    assert found == value
    assert type(found) is type(value) or not isinstance(value, (bool, int, float))


def test_values_in_quotation_marks_are_invalid_by_default() -> None:
    """As in ``from_json``. Decimals are the exception there, too."""
    assert value_of(pa.int32(), '"7"', Rules()) == 'the column c: "7" is not an integer'
    assert value_of(pa.bool_(), '"true"', Rules()) == 'the column c: "true" is not true or false'
    assert value_of(pa.decimal128(10, 2), '"7"', Rules()) == Decimal(7)


@pytest.mark.parametrize(
    ("kind", "text", "unit", "value"),
    [
        (UTC, "1769860800", "", noon()),
        (UTC, "1769860800000", "ms", noon()),
        (UTC, "1769860800000001", "us", noon(microsecond=1)),
        (UTC, "1769860800000001999", "ns", noon(microsecond=1)),
        (UTC, "-1", "ms", datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=ZONE)),
        (UTC, '"2026-01-31T12:00:00Z"', "ms", noon()),
        (NTZ, "1769860800000", "ms", noon().replace(tzinfo=None)),
        (NTZ, "1769860800", "", "the column c: 1769860800 is not a timestamp without a zone"),
        (pa.date32(), "20484", "days", date(2026, 1, 31)),
        (pa.date32(), "20484", "", "the column c: 20484 is not a date"),
        (pa.date32(), "20484", "ms", "the column c: 20484 is not a date"),
        (pa.date32(), "1769860800000", "days",
         "the column c: 1769860800000 is not within the years 0 to 9999 if it counts days since 1970"),
        (UTC, "1769860800000", "",
         "the column c: 1769860800000 is not within the years 0 to 9999 if it counts seconds since 1970: "
         "set jsonEpochUnits to its unit"),
        (UTC, "1769860800000001", "ms",
         "the column c: 1769860800000001 is not within the years 0 to 9999 if it counts milliseconds since 1970: "
         "set jsonEpochUnits to its unit"),
        (UTC, "9223372036854775808", "us", "the column c: 9223372036854775808 is not within int64"),
        (UTC, "1.5", "ms", "the column c: 1.5 is not an integer"),
        (pa.list_(pa.field("element", UTC)), "[0,null]", "ms", [datetime(1970, 1, 1, tzinfo=ZONE), None]),
        (pa.struct([("x", pa.date32())]), '{"x":1}', "days", {"x": date(1970, 1, 2)}),
        (pa.map_(pa.string(), UTC), '{"a":0}', "us", [("a", datetime(1970, 1, 1, tzinfo=ZONE))]),
    ],
)  # fmt: skip
def test_numbers_as_times(kind: pa.DataType, text: str, unit: str, value: Any) -> None:
    assert value_of(kind, text, Rules(units=units(unit) if unit else EpochUnits())) == value


def test_the_longest_name_gives_the_unit_of_a_column() -> None:
    inner = pa.struct([("paid_at", UTC), ("sent_at", UTC), ("day", pa.date32())])
    fields = pa.schema([("before", inner), ("after", inner), ("paid_at", UTC)])
    rules = Rules(units=units("ms, days, paid_at=us, after.paid_at=s"))
    member = {"paid_at": 1_000_000, "sent_at": 1000, "day": 1}
    decoded = JsonDecoder(fields, rules).decode(
        bodies(json.dumps({"before": member, "after": member | {"paid_at": 1}, "paid_at": 2_000_000}).encode())
    )
    second = datetime(1970, 1, 1, 0, 0, 1, tzinfo=ZONE)
    wanted = {"paid_at": second, "sent_at": second, "day": date(1970, 1, 2)}
    assert rows_of(decoded, fields) == [{"before": wanted, "after": wanted, "paid_at": second + timedelta(seconds=1)}]


@pytest.mark.parametrize("text", ["", "minutes", "ms, us", "days, days", "=ms", "a=b=", "a=", "a=ms, a=us", "ms;days"])
def test_wrong_units(text: str) -> None:
    with pytest.raises(OptionError, match="jsonEpochUnits"):
        units(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("d=ms", "the column d is date, which cannot count ms"),
        ("s.t=days", r"the column s\.t is timestamp, which cannot count days"),
        ("when=ms", "names when, which is not a column of type date or timestamp. Such columns: d, s.t"),
        ("i=ms", "names i, which is not"),
    ],
)
def test_units_of_columns_that_cannot_have_them(text: str, problem: str) -> None:
    settings = BodySettings(BodyFormat.JSON, json_epoch_units=units(text))
    fields = pa.schema([("d", pa.date32()), ("s", pa.struct([("t", UTC)])), ("i", pa.int64())])
    with pytest.raises(SchemaError, match=problem):
        codecs.decoder(settings, fields)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"bodyFormat": "avro", "avroSchema": '"string"', "timeZone": "UTC"}, "bodyFormat=json or csv"),
        ({"bodyFormat": "csv", "jsonQuotedValues": "true"}, "bodyFormat=json"),
        ({"bodyFormat": "csv", "jsonEpochUnits": "ms"}, "bodyFormat=json"),
        ({"timeZone": "UTC"}, "bodyFormat"),
        ({"bodyFormat": "json", "timeZone": "Asia/Peking"}, "Asia/Peking"),
        ({"bodyFormat": "json", "timeZone": "+19:00"}, r"\+19:00"),
    ],
)
def test_options_without_effect(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        parse_read_options({"subscribe": "orders", **options}, Scope.READ)


# --- local times ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "local", "instant"),
    [
        ("Asia/Shanghai", "2026-01-31 20:00:00", "2026-01-31T12:00:00Z"),
        ("+08:00", "2026-01-31 20:00:00.5", "2026-01-31T12:00:00.5Z"),
        ("UTC+8", "2026-01-31", "2026-01-30T16:00:00Z"),
        ("-3", "2026-01-31T12:00:00", "2026-01-31T15:00:00Z"),
        ("PST", "2026-07-01 05:00:00", "2026-07-01T12:00:00Z"),
        ("America/New_York", "2026-03-08 02:30:00", "2026-03-08T07:30:00Z"),  # does not exist
        ("America/New_York", "2026-11-01 01:30:00", "2026-11-01T05:30:00Z"),  # exists twice
        ("America/New_York", "2126-07-01 08:00:00", "2126-07-01T12:00:00Z"),
        ("Asia/Shanghai", "1890-01-01 08:05:43", "1890-01-01T00:00:00Z"),
        ("Asia/Shanghai", "+12026-01-31 20:00:00", "+12026-01-31T12:00:00Z"),
        ("Asia/Shanghai", "-0300-01-31 08:05:43", "-0300-01-31T00:00:00Z"),
        ("Asia/Shanghai", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("Asia/Shanghai", "2026-01-31 12:00:00 +02:00", "2026-01-31T10:00:00Z"),
    ],
)
def test_local_times_are_those_of_the_zone(zone: str, local: str, instant: str) -> None:
    fields = pa.schema([("t", UTC), ("n", NTZ)])
    naive = local[:19] if local[0].isdigit() else "2026-01-31"
    made = (
        JsonDecoder(fields, Rules(zone=zone_of(zone))).decode(bodies(json.dumps({"t": local, "n": naive}).encode())),
        CsvDecoder(fields, ",", "\\", zone_of(zone)).decode(bodies(f"{local},{naive}".encode())),
    )
    (wanted,) = JsonDecoder(fields).decode(bodies(json.dumps({"t": instant, "n": naive}).encode())).columns[:1]
    for decoded in made:
        assert not decoded.bad
        assert decoded.columns[0].cast(pa.int64()) == wanted.cast(pa.int64())


@pytest.mark.parametrize(
    "name", ["Asia/Shanghai", "America/New_York", "Australia/Lord_Howe", "Africa/Monrovia", "+05:30"]
)
def test_a_batch_of_local_times_is_that_of_each_alone(name: str) -> None:
    """Around each change of the offset in 200 years, and at random times."""
    zone, rng = zone_of(name), random.Random(7)
    moments = [rng.randrange(-(1 << 57), 1 << 57) for _ in range(500)]
    moments += [rng.randrange(-4_000_000_000, 4_000_000_000) * 1_000_000 for _ in range(2_000)]
    for year in (1901, 1940, 1972, 1986, 2026, 2100):
        start = int((datetime(year, 1, 1) - datetime(1970, 1, 1)).total_seconds())
        moments += [(start + hour * 1800 + rng.randrange(1800)) * 1_000_000 for hour in range(365 * 48)][
            :: 1 if year > 1980 else 3
        ]
    found = zone.instants(np.array(moments, np.int64)).tolist()
    assert found == [zone.instant(moment) for moment in moments]
    if "/" in name:
        for moment, instant in zip(moments, found, strict=True):
            if abs(moment) < 50_000_000_000_000_000:
                naive = datetime(1970, 1, 1) + timedelta(microseconds=moment)
                assert instant == (
                    naive.replace(tzinfo=ZoneInfo(name)) - datetime(1970, 1, 1, tzinfo=ZONE)
                ) // timedelta(microseconds=1)


def test_the_zone_of_the_machine_is_that_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, name in ((":Asia/Shanghai", "Asia/Shanghai"), ("/usr/share/zoneinfo/Europe/Rome", "Europe/Rome")):
        monkeypatch.setenv("TZ", text)
        assert machine_zone() == name
    monkeypatch.setenv("TZ", "no zone")
    assert zone_of(machine_zone())


def test_without_spark_times_are_utc_unless_the_read_names_a_zone() -> None:
    fields = pa.schema([("t", UTC)])
    for options, hour in (({}, 12), ({"timeZone": "Asia/Shanghai"}, 4)):
        given = {"subscribe": "orders", "bodyFormat": "json", **options}
        settings = parse_read_options(given, Scope.READ).body
        assert settings is not None
        decoded = codecs.decoder(settings, fields).decode(bodies(b'{"t":"2026-01-31 12:00:00"}'))
        assert rows_of(decoded, fields) == [{"t": noon(hour=hour)}]


# --- independence -----------------------------------------------------------------------------------------------------

ODD = """1|"1"|-0|"-0"|1.0|"1.0"|true|"true"|"True"|"0"|null|"null"|"NaN"|NaN|""|" 1"|"1 "|"+1"|"0x1"|"007"|"1e3"|1e3|
"."|1769860800|"1769860800"|1769860800000|"1769860800000"|1769860800000001|9223372036854775807|"9223372036854775808"|[]|
"00000000000000000000005"|20484|"20484"|"2026-01-31"|"2026-01-31 12:00:00"|"2026-03-08 02:30:00"|["1"]|{}|{"x":"1"}|
"2026-01-31T12:00:00Z"|"2026-01-31 12:00:00 +02:00"|"2026-01-31T1200"|"12.345"|"1e-400"|{"x":1}|99999999999|
"2026-11-01T01:30:00"|"9999-12-30 23:59:59"|"0001-01-02\"""".replace("\n", "").split("|")


@pytest.mark.parametrize("seed", range(6))
def test_a_row_does_not_depend_on_its_neighbours(seed: int) -> None:
    rng = random.Random(seed)
    rules = Rules(
        zone_of(rng.choice(["UTC", "America/New_York", "+08:00"])),
        rng.random() < 0.6,
        rng.choice([EpochUnits(), units("ms, days"), units("us, days, c1=ms")]),
    )
    kinds = [rng.choice([*SCALARS, UTC, NTZ, pa.date32(), pa.bool_()]) for _ in range(4)]
    kinds += [pa.list_(pa.field("element", kinds[0])), pa.struct([("x", kinds[1])])]
    fields = pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds)])
    try:
        codecs.decoder(BodySettings(BodyFormat.JSON, json_epoch_units=rules.units), fields)
    except SchemaError:
        rules = Rules(rules.zone, rules.quoted)
    values = [
        "{" + ",".join(f'"c{at}":{rng.choice(ODD)}' for at in rng.sample(range(6), rng.randrange(3))) + "}"
        for _ in range(400)
    ]
    decoded = check_alone(JsonDecoder(fields, rules), fields, [value.encode() for value in values])
    assert 0 < len(decoded.bad) < 400
