"""The tables of pages that the code declares are current, and a new option or metric takes two places.

(``tests/broker/test_new_request.py`` has a new request code.)
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_rocket.datasource.conditions import CONDITIONS
from tools import generated_tables, reference_tables

ROOT = Path(__file__).parents[2]


def test_tables_are_current() -> None:
    """Every table that the code declares is in a page, as it is in the code."""
    assert list(generated_tables.outdated()) == [], "run: make tables"
    assert generated_tables.missing() == [], "add <!-- NAME ARGUMENT --> and <!-- end of NAME --> to a page"


def test_each_row_of_a_table_has_the_cells_of_its_head() -> None:
    """A bar in a text would end its cell."""
    table = reference_tables.rows(("a", "b"), [("x || y", "`p\\|q`"), ("|", "")])
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()] == [3, 3, 3, 3]


def test_every_condition_is_translated() -> None:
    """After a change of ``conditions.py``, change ``tools/chinese_conditions.json`` and run ``make tables``."""
    english = {text for condition in CONDITIONS for text in (condition.text, condition.remedy)}
    chinese = reference_tables.chinese_conditions()
    assert english ^ set(chinese) == set()
    fields = re.compile(r"\{[^}]*\}")
    assert [text for text in english if sorted(fields.findall(text)) != sorted(fields.findall(chinese[text]))] == []


class Copy:
    """A copy of the project, in which a developer adds something."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        no_caches = shutil.ignore_patterns("__pycache__", "static")
        for name in ("spark_rocket", "tools", "docs/reference", "docs/guides"):
            shutil.copytree(ROOT / name, folder / name, ignore=no_caches)

    def insert(self, file: str, before: str, text: str) -> None:
        path = self.folder / file
        found = path.read_text(encoding="utf-8")
        assert found.count(before) == 1
        path.write_text(found.replace(before, text + before), encoding="utf-8")

    def run(self, *arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def page(self, name: str) -> str:
        return (self.folder / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.live
def test_a_new_option_and_a_new_metric_take_two_places(tmp_path: Path) -> None:
    """One is its row, the other its use. Parser, fields, errors, help and pages follow from the row."""
    copy = Copy(tmp_path)
    copy.insert(
        "spark_rocket/datasource/options/table.py",
        '    Option("pullBatchSize",',
        """    Option("pullPause", READS, "duration 0ms–1m", duration(0, 60_000), "5ms", "The pause between two pulls.",
           "两次拉取之间的停顿。", needs=("consumerGroup",), excludes=(Excludes("lookupKeys"),)),
""",
    )
    copy.insert(
        "spark_rocket/broker/metrics/table.py",
        '    _m("rocketmq_broker_permission"',
        '    _m("rocketmq_pauses_total", COUNTER, (*_NODE, "topic"), "Pauses between two pulls."),\n',
    )
    copy.run("-m", "tools.generated_tables")
    assert "| `pullPause` | duration 0ms–1m | `5ms` | read | The pause between two pulls. |\n" in copy.page("options")
    assert "| `pullPause` | 时长 0ms–1m | `5ms` | 读取 | 两次拉取之间的停顿。 |\n" in copy.page("options.zh")
    assert "| `pullPause` | `consumerGroup` | `lookupKeys` |\n" in copy.page("options")
    assert "| `rocketmq_pauses_total` | counter | topic | Pauses between two pulls. |\n" in copy.page("metrics")
    used = copy.run("-c", _USES)
    assert used.splitlines() == [
        "5 2000",
        "[BAD_OPTION.NO_EFFECT] option pullPause has no effect without consumerGroup. Remove it, or add consumerGroup.",
        "[BAD_OPTION.CONFLICT] option pullPause cannot be combined with lookupKeys. Remove one of them. "
        "[BAD_OPTION.TOGETHER]",
        "pullPause (read; duration 0ms–1m, default 5ms): The pause between two pulls.",
        "# HELP rocketmq_pauses_total Pauses between two pulls.",
        "# TYPE rocketmq_pauses_total counter",
        'rocketmq_pauses_total{topic="orders"} 3',
    ]


_USES = """
import spark_rocket
from spark_rocket.broker.metrics.table import METRICS
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.errors import OptionError
from spark_rocket.remoting.exposition import Exposition

def read(**options):
    return parse_read_options({"subscribe": "orders", **options}, Scope.READ)

print(read().pull_pause_ms, read(pullPause="2s", consumerGroup="g").pull_pause_ms)
for wrong in ({}, {"consumerGroup": "g", "lookupKeys": "k"}):
    try:
        read(pullPause="2s", **wrong)
    except OptionError as problem:
        print(problem)
print(*spark_rocket.options("pullPause"))
exposition = Exposition(METRICS)
exposition.add("rocketmq_pauses_total", 'topic="orders"', 3)
print(exposition.render().decode(), end="")
"""
