"""A warning about columns that no body has."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from spark_rocket.datasource.bodies.arrow_bodies import write_stream
from spark_rocket.datasource.options.bodies import BodyFormat
from spark_rocket.datasource.read import column_hints as module
from spark_rocket.datasource.read.column_hints import ColumnHints, column_hints
from tests.datasource.body_formats.formats import batch_of, columns, reading, typed_rows


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING)
    column_hints.cache_clear()
    return caplog


def read(*bodies: bytes, form: str = "json") -> None:
    options = reading(bodyFormat=form)
    schema = columns(id="bigint", itme="string", note="string")
    typed_rows(options, schema, batch_of(*bodies))


def test_a_misspelt_column_is_logged_once(log: pytest.LogCaptureFixture) -> None:
    read(*[b'{"id": 1, "item": "x", "Price": 2}'] * 3)
    read(*[b'{"id": 1, "item": "x", "Price": 2}'] * 3)
    assert [record.getMessage() for record in log.records] == [
        "column itme is null in the first 3 messages of orders, and no sampled body has this member; similar members: "
        "item"
    ]


def test_a_column_without_a_similar_member_is_logged_after_many_rows(log: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        read(*[b'{"id": 1, "itme": "x", "a": 1, "b": 2}'] * 400)
    assert [record.getMessage() for record in log.records] == [
        "column note is null in the first 1200 messages of orders, and no sampled body has this member; other members: "
        "a, b"
    ]


@pytest.mark.parametrize(
    "bodies",
    [
        [b'{"id": 1}'] * 2_000,  # no other members
        [b'{"id": 1, "item": 1, "itme": null, "note": null}'] * 2_000,
        [b'{"id": 1, "item": 1}', b'{"itme": "x", "note": "y"}'],
    ],
)
def test_columns_that_may_be_null(log: pytest.LogCaptureFixture, bodies: list[bytes]) -> None:
    read(*bodies)
    assert not log.records


def test_members_of_arrow_bodies(log: pytest.LogCaptureFixture) -> None:
    read(write_stream(pa.record_batch({"id": [1, 2], "ITME": ["a", "b"], "note": ["c", "d"]})), form="arrow")
    (record,) = log.records
    assert record.getMessage().endswith("similar members: ITME")


def test_bodies_are_sampled_only_while_a_column_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: list[bytes] = []
    monkeypatch.setattr(module, "parse_object", lambda body: sampled.append(body) or {"other": 1})
    hints = ColumnHints(BodyFormat.JSON, ("id", "note"), "orders")
    bodies = pa.array([b"{}"] * 500)
    nothing = {"id": pa.nulls(500), "note": pa.nulls(500)}
    for _ in range(5):
        hints.watch(bodies, nothing)
    assert len(sampled) == 2 * 20, "at most 20 of a batch, of the first 1,000 rows"
    hints = ColumnHints(BodyFormat.JSON, ("id",), "orders")
    hints.watch(bodies, {"id": pa.array([1])})
    hints.watch(bodies, nothing)
    ColumnHints(BodyFormat.CSV, ("id",), "orders").watch(bodies, nothing)
    assert len(sampled) == 2 * 20
