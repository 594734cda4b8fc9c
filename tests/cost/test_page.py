"""The page of costs lists what is expensive and counts the rest."""

from __future__ import annotations

import pytest

from spark_rocket.protocol.requests import BROKER_REQUESTS
from tests.cost.generator import Size
from tests.cost.measuring import Cost, Costs
from tests.cost.page import Report, StateRow
from tests.cost.state import BulkCost

pytestmark = pytest.mark.live  # git tells of which commit the page is


def test_cheap_requests_are_counted_and_expensive_ones_listed() -> None:
    report = Report()
    for name, cpu, memory, frame in [
        ("CPU (1)", 0.05, 0.0, 0.0),
        ("MEMORY (2)", 0.0, 5.0, 0.0),
        ("FRAME (3)", 0.0, 0.0, 0.1),
        ("CHEAP (4)", 0.04, 4.0, 0.09),
        ("FREE (5)", 0.0, 0.0, 0.0),
    ]:
        costs = [Cost("one", Size.SMALL, cpu, memory), Cost("two", Size.FRAME, frame, 0.0)]
        report.requests.append(("broker", Costs(name, costs)))
    for held in (10.0, 9.0):
        report.state.append(StateRow(f"STATE ({held:.0f})", next(iter(BROKER_REQUESTS.values())), BulkCost(held=held)))
    text = report.text()
    listed = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ") and "(" in line[:12]]
    assert listed == ["| CPU (1)", "| MEMORY (2)", "| FRAME (3)", "| STATE (10)"]
    assert "2 others: at most 40 ms and 4 MB; full frames 90 ms." in text
    assert "1 others hold less than 10 MB." in text


def test_what_is_above_a_limit_is_listed() -> None:
    report = Report(requests=[("broker", Costs("SLOW (1)", [Cost("one", Size.SMALL, 0.2, 0.0)]))])
    assert "* SLOW (1): one: 200 ms, 0 MB ()" in report.text()
