"""Times without a zone are those of the session's time zone, as Spark's ``from_json`` reads them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_rocket.datasource.bodies.json_reader import JsonDecoder
from spark_rocket.datasource.bodies.json_values import Rules
from spark_rocket.datasource.time_zones import zone_of
from tests.datasource.body_formats.formats import UTC
from tests.spark.conftest import Rocket

ZONES = ("Asia/Shanghai", "America/New_York", "Australia/Lord_Howe", "Europe/London", "+08:00", "-3:30", "PST", "UTC+8")


def local_times() -> list[str]:
    """Random times, and each half hour of the days on which clocks change."""
    rng = random.Random(11)
    start = datetime(1, 1, 2)
    found = [start + timedelta(seconds=rng.randrange(3652000 * 86_400)) for _ in range(600)]
    for month, day in ((3, 8), (3, 29), (4, 5), (10, 4), (10, 25), (11, 1)):
        found += [datetime(2026, month, day) + timedelta(minutes=30 * at + rng.randrange(30)) for at in range(60)]
    texts = [f"{moment:%Y-%m-%d %H:%M:%S}".rjust(19, "0") for moment in found]
    return [*texts, "+12026-07-01 08:00:00", "-0300-01-31 08:05:43", "2026-01-31T12:00:00Z", "2026-01-31"]


@pytest.mark.classic("a comparison with Spark's function has nothing to do with Connect")
def test_local_times_are_those_of_from_json(spark: SparkSession) -> None:
    texts = local_times()
    bodies = [json.dumps({"t": text}) for text in texts]
    frame = spark.createDataFrame(list(enumerate(bodies)), "at int, body string").coalesce(1)
    columns = [
        f"unix_micros(from_json(body, 't timestamp', map('timeZone', '{zone}')).t) AS c{at}"
        for at, zone in enumerate(ZONES)
    ]
    rows = sorted(map(tuple, frame.selectExpr("at", *columns).collect()))
    for at, zone in enumerate(ZONES, 1):
        decoder = JsonDecoder(pa.schema([("t", UTC)]), Rules(zone_of(zone)))
        decoded = decoder.decode(pa.array([body.encode() for body in bodies]))
        assert not decoded.bad
        ours = decoded.columns[0].cast(pa.int64()).to_pylist()
        assert [(text, one, row[at]) for text, one, row in zip(texts, ours, rows, strict=True) if one != row[at]] == []


def test_reads_and_streams_follow_the_session(mq: Rocket, spark: SparkSession, run: Callable[..., list[str]]) -> None:
    topic = mq.topic(1)
    mq.send(topic, ['{"t":"2026-07-01 12:00:00"}'])
    typed = {"bodyFormat": "json", "metadataColumns": "body", "startingOffsets": "earliest"}
    schema = "t timestamp, body binary"

    def hours(**options: str) -> list[int]:
        given = {"nameServer": mq.name_server, "subscribe": topic, **typed, **options}
        frame = spark.read.format("rocket").options(**given).schema(schema).load()
        frame = frame.selectExpr("hour(to_utc_timestamp(t, current_timezone()))", "t", "CAST(body AS STRING) AS body")
        (row,) = frame.selectExpr("*", "from_json(body, 't timestamp').t AS theirs").collect()
        assert (row.t == row.theirs) == ("timeZone" not in options)
        return row[0]

    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone is not None
    try:
        for name, hour in (("Asia/Shanghai", 4), ("America/New_York", 16), ("UTC", 12)):
            spark.conf.set("spark.sql.session.timeZone", name)
            assert hours() == hour
            assert hours(timeZone="Asia/Tokyo") == 3
        spark.conf.set("spark.sql.session.timeZone", "Asia/Shanghai")
        given = {"nameServer": mq.name_server, "subscribe": topic, **typed}
        stream = spark.readStream.format("rocket").options(**given).schema(schema).load()
        assert run(
            stream.selectExpr("CAST(date_format(to_utc_timestamp(t, 'Asia/Shanghai'), 'H') AS BINARY) AS body")
        ) == ["4"]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
