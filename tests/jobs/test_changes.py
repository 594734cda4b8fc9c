"""The jobs of change data as a user runs them: the changes are published, and become a Delta table."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.changes_publish import Orders
from spark_rocket.testing import LocalCluster
from tests.jobs.test_flights import run
from tests.spark.test_change_data import table, wanted

pytestmark = pytest.mark.spark


def test_published_changes_become_the_table(rocket: LocalCluster, rocket_topic: str, tmp_path: Path) -> None:
    """With the commands of the recipe."""
    topic = ("--nameserver", rocket.name_server, "--topic", rocket_topic, "--format", "canal")
    target = tmp_path / "lake" / "orders"
    apply = ("changes", *topic, "--table", target, "--checkpoint", tmp_path / "checkpoint")
    orders = Orders(seed=7)
    for _ in orders.changes(200):
        pass
    shown = run("changes_publish", *topic, "--count", "200", "--seed", "7")
    assert shown == f"Published 200 changes to {rocket_topic}: the table has {len(orders.rows)} rows\n"
    assert f"{target} has {len(orders.rows)} rows\n" in run(*apply)
    assert table(target) == wanted(orders)
