"""Changes of Canal and Debezium in a topic become a Delta table: the job, on topics of its generator."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.changes import COLUMNS, read_changes, run
from jobs.changes_publish import FORMATS, Orders, canal, messages, publish
from spark_rocket.datasource.capabilities import HAS_READ_LIMITS
from tests.kit.pages import ROOT, examples, with_name_server
from tests.spark.conftest import Rocket
from tests.spark.sessions import needs

pytestmark = [
    pytest.mark.classic("the job takes the query's ID from the SparkContext"),
    needs(HAS_READ_LIMITS, "4.2", "several micro-batches in a run that ends"),
]


def table(path: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])


def wanted(orders: Orders) -> list[dict[str, Any]]:
    rows = [row | {"price": Decimal(f"{row['price']:.2f}")} for row in orders.rows.values()]
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize("form", FORMATS)
def test_the_table_has_the_rows_after_all_changes(form: str, mq: Rocket, spark: SparkSession, tmp_path: Path) -> None:
    """In several micro-batches and two runs: a row is changed within a micro-batch and in later ones."""
    topic, path = mq.topic(3), tmp_path / "orders"
    orders = publish(mq.name_server, form, topic=topic, count=120, seed=5)
    assert {row["item"] for row in orders.rows.values()} >= {"中文", None}
    first = wanted(orders)

    def apply() -> None:
        changes = read_changes(spark, mq.name_server, form, topic)
        run(changes, str(path), str(tmp_path / "checkpoint"), availableNow=True)

    apply()
    assert table(path) == first
    for message in messages(orders.changes(40), form, topic):
        mq.producer.send(message)
    apply()
    assert table(path) == wanted(orders) != first


def test_the_page_shows_the_code_of_the_job(mq: Rocket, spark: SparkSession) -> None:
    read, merge = (block for block in examples("docs/recipes/change-data.md") if block.language == "python")
    assert merge.code in (ROOT / "jobs" / "changes.py").read_text(encoding="utf-8")
    names: dict[str, Any] = {"spark": spark}
    exec(with_name_server(read.code, mq.name_server), names)
    assert names["changes"].columns == ["type", "isDdl", "data", "old", "queueOffset"]
    assert names["COLUMNS"] == COLUMNS


def test_an_update_of_the_key_moves_the_row(mq: Rocket, spark: SparkSession, tmp_path: Path) -> None:
    """Canal sends it as one message with the former key in ``old``."""
    topic, path = mq.topic(1), tmp_path / "orders"
    (change,) = Orders(3).changes(1)
    insert = canal(change)
    moved = insert | {"type": "UPDATE", "old": [{"id": insert["data"][0]["id"]}]}
    moved["data"] = [insert["data"][0] | {"id": "77", "paid": None}]
    statement = insert | {"data": [insert["data"][0] | {"id": key} for key in ("8", "9")]}
    mq.send(topic, [json.dumps(body) for body in (insert, moved, statement)])
    run(
        read_changes(spark, mq.name_server, "canal", topic),
        str(path),
        str(tmp_path / "checkpoint"),
        availableNow=True,
    )
    rows = table(path)
    assert [row["id"] for row in rows] == [8, 9, 77]
    assert rows[2]["paid"] is None
    assert rows[0]["ordered_at"] == datetime(2026, 1, 31, 12)
    assert isinstance(rows[0]["due"], date)
