"""Avro typed rows against fastavro, in both directions: random schemas and rows. PySpark has no ``from_avro``.

``make test`` takes one seed; the long form takes ``DIFFERENCES_SEED`` (random).
"""

from __future__ import annotations

import io
import json
import os
import random
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from spark_rocket.datasource.bodies.codecs import decoder, known_columns
from spark_rocket.datasource.bodies.encoding import BodyEncoder
from spark_rocket.datasource.options.bodies import AvroEncoding, BodyFormat, BodySettings
from spark_rocket.datasource.spark_schema import spark_schema
from tests.datasource.body_formats.odd_values import plain, value

LOGICAL = {"date": "int", "timestamp-micros": "long", "local-timestamp-micros": "long"}
DECIMALS = [{"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 9} for digits in (9, 28, 38)]


def schema_of(rng: random.Random, depth: int, *, is_plain: bool) -> Any:
    """A schema. A plain one has the numbers of dates and times, so that fastavro does not convert them."""
    form = rng.randrange(11 if depth else 8)
    if form == 8:
        return {"type": "array", "items": ["null", schema_of(rng, depth - 1, is_plain=is_plain)]}
    if form == 9:
        return {"type": "map", "values": ["null", schema_of(rng, depth - 1, is_plain=is_plain)]}
    if form == 10:
        return record(rng, depth - 1, is_plain=is_plain)
    if form == 7:
        return rng.choice(DECIMALS)
    if form == 6:
        logical = rng.choice([*LOGICAL])
        return LOGICAL[logical] if is_plain else {"type": LOGICAL[logical], "logicalType": logical}
    return rng.choice(["boolean", "int", "long", "float", "double", "bytes", "string"])


def record(rng: random.Random, depth: int, *, is_plain: bool) -> dict[str, Any]:
    count, name = rng.randrange(1, 5), f"R{rng.randrange(1 << 40)}"
    fields = [
        {"name": f"c{at}", "type": ["null", schema_of(rng, depth, is_plain=is_plain)], "default": None}
        for at in range(count)
    ]
    return {"type": "record", "name": name, "fields": fields}


def as_avro(found: Any, kind: pa.DataType) -> Any:
    """A value of ``odd_values.value`` as fastavro takes it."""
    if found is None:
        return None
    if pa.types.is_struct(kind):
        return {item.name: as_avro(found[item.name], item.type) for item in kind}
    if pa.types.is_map(kind):
        return {key: as_avro(one, kind.item_type) for key, one in found}
    return [as_avro(one, kind.value_type) for one in found] if pa.types.is_list(kind) else found


def in_years_of_python(array: pa.Array) -> bool:
    """Whether all dates and times have the years 1 to 9999: typed rows write no others as Avro."""
    try:
        array.to_pylist()
    except (ValueError, OverflowError):
        return False
    return True


def check(seed: int, schemas: int, rows: int) -> tuple[int, int]:
    """Return how many rows were read and written as fastavro does."""
    read = written = 0
    for number in range(schemas):
        plain_schema = fastavro.parse_schema(record(random.Random(seed * 1000 + number), 3, is_plain=True))
        rng = random.Random(seed * 1000 + number)
        text = json.dumps(record(rng, 3, is_plain=False))
        settings = BodySettings(BodyFormat.AVRO, avro_schema=text, avro_encoding=AvroEncoding.RAW)
        fields = known_columns(settings)
        kind = pa.struct(list(fields))
        values = [value(kind, rng, 0) for _ in range(rows)]
        bodies = []
        for one in values:
            file = io.BytesIO()
            fastavro.schemaless_writer(file, plain_schema, as_avro(one, kind))
            bodies.append(file.getvalue())
        decoded = decoder(settings, fields).decode(pa.array(bodies, pa.binary()))
        assert not decoded.bad, (seed, number, text, decoded.bad)
        wanted = pa.array(values, kind)
        for at, (item, column) in enumerate(zip(fields, decoded.columns, strict=True)):
            assert plain(column) == plain(wanted.field(at)), (seed, number, item)
        read += rows
        near = [at for at in range(rows) if in_years_of_python(wanted.slice(at, 1))]
        batch = pa.RecordBatch.from_struct_array(wanted.take(pa.array(near, pa.int64())))
        ours = BodyEncoder(settings, spark_schema(fields), frozenset()).encode(batch).column("body").to_pylist()
        for at, body in zip(near, ours, strict=True):
            file = io.BytesIO(body)
            found = fastavro.schemaless_reader(file, plain_schema, None)
            assert file.tell() == len(body)
            assert str(found) == str(fastavro.schemaless_reader(io.BytesIO(bodies[at]), plain_schema, None)), (
                seed,
                number,
            )
        written += len(near)
    return read, written


def test_rows_are_read_and_written_as_fastavro_does() -> None:
    read, written = check(1, 12, 30)
    assert read == 360
    assert written > 100


@pytest.mark.long
def test_many_rows_are_read_and_written_as_fastavro_does() -> None:
    seed = int(os.environ.get("DIFFERENCES_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"DIFFERENCES_SEED={seed}: {check(seed, 300, 100)} rows")
