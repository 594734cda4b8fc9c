"""Reads of a store directory without Spark, and the files of a log."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.read.store_directory import (
    SpanTask,
    plan_directory,
    read_span_task,
)
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project

Row = dict[str, Any]


def plan(path: Path, **options: object) -> list[SpanTask]:
    texts = {name: str(value) for name, value in options.items()}
    return plan_directory(parse_read_options({"storePath": str(path), **texts}, Scope.READ))


def read(path: Path, columns: str | None = None, **options: object) -> list[Row]:
    """All rows as executors read them: from pickled partitions, with the schema that Spark requires."""
    texts = {name: str(value) for name, value in options.items()}
    parsed = parse_read_options({"storePath": str(path), **texts}, Scope.READ)
    fields = [field for field in MESSAGE_SCHEMA if columns is None or field.name in columns.split()]
    projection = project(pa.schema(fields))
    rows: list[Row] = []
    for partition in plan_directory(parsed):
        for batch in read_span_task(pickle.loads(pickle.dumps(partition)), parsed, projection):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema.equals(projection.target)
            assert 0 < batch.num_rows <= parsed.arrow_batch_rows
            rows += batch.to_pylist()
    return rows


def bodies(path: Path, **options: object) -> list[bytes]:
    return [row["body"] for row in read(path, "body", **options)]


def places(rows: list[Row]) -> Counter[tuple[str, int, int]]:
    return Counter((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)


def tree(path: Path) -> dict[str, tuple[int, int]]:
    return {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(path.rglob("*"))}


def log_files(directory: Path) -> list[Path]:
    return sorted((directory / "commitlog").iterdir())


def positions(directory: Path) -> list[int]:
    """The start positions of the records of a one-file log."""
    return [row[0] for row in records_of(log_files(directory)[0].read_bytes())]


def records_of(raw: bytes) -> list[tuple[int, int]]:
    found, at = [], 0
    while (size := int.from_bytes(raw[at : at + 4], "big")) and raw[at + 4 : at + 8] == b"\xda\xa3\x20\xa7":
        found.append((at, size))
        at += size
    return found


def garble(file: Path, position: int, data: bytes = b"\xee" * 8) -> None:
    with file.open("r+b") as opened_file:
        opened_file.seek(position)
        opened_file.write(data)


def touch(path: Path) -> Path:
    path.touch()
    return path
