"""The guide "Look at a topic without Spark" runs unchanged, from the first snippet to the last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest

from spark_rocket.cli import main
from spark_rocket.testing import LocalCluster
from tests.kit.pages import ROOT, examples, run_commands

pytestmark = pytest.mark.live

PAGE = "docs/guides/arrow.md"


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}

    def run(words: list[str]) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    shown = ""
    with LocalCluster(in_process=True) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.name_server)
        for example in examples(PAGE):
            if example.language == "shell":
                run_commands(example.code, run)
            elif example.language == "python":
                exec(compile("\n" * example.line + example.code, str(ROOT / PAGE), "exec"), names)
                shown += capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"basket.parquet", "basket.csv", "basket.jsonl", "open.csv"}
    for file, count in {"basket.parquet": 1001, "basket.csv": 1001, "basket.jsonl": 1000, "open.csv": 200}.items():
        read = "read_json" if file.endswith("jsonl") else "read_csv" if file.endswith("csv") else "read_parquet"
        counted = duckdb.sql(f"SELECT count(*) FROM {read}('{file}')")
        assert counted is not None
        assert counted.fetchall() == [(count,)], file
    assert polars.read_ndjson("basket.jsonl").sort("id").row(7) == (7, "apples")
    for text in ("1001 ['topic', ", "83166.75", "41708.25", "not JSON", "shape: (4, 3)", "count", "pears"):
        assert text in shown, shown
