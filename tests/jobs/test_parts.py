"""Parts of the jobs that need no Spark: data, table, progress, picture, options."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyarrow.compute as pc
import pytest

from jobs import flights_delays
from jobs.flights import FLIGHT_COLUMNS, airline_names, load_flights
from jobs.flights_chart import draw
from jobs.flights_delays import RowsRead
from jobs.flights_report import table_of
from jobs.session import job_parser
from jobs.terminal import Progress, rate, table


def test_all_flights_are_loaded_in_order_of_their_hours() -> None:
    flights = load_flights()
    assert flights.num_rows == 336_776
    assert flights.column_names == FLIGHT_COLUMNS
    hours = flights["time_hour"]
    assert pc.all(pc.less_equal(hours.slice(0, len(hours) - 1), hours.slice(1))).as_py()


def test_missing_values_are_null_not_text() -> None:
    flights = load_flights()
    assert flights["dep_time"].null_count == 8_255
    assert flights["tailnum"].null_count == 2_512
    assert not pc.any(pc.equal(flights["tailnum"], "NA")).as_py()


def test_a_flights_id_is_unique() -> None:
    flights = load_flights().select(["carrier", "flight", "time_hour"]).to_pandas()
    assert not flights.duplicated().any()


def test_a_limit_takes_the_first() -> None:
    assert load_flights(10).equals(load_flights().slice(0, 10))


def test_airlines_have_names() -> None:
    names = airline_names()
    assert names["UA"] == "United Air Lines"
    assert set(load_flights()["carrier"].unique().to_pylist()) <= set(names)


def test_rate() -> None:
    assert rate(336_776, 2.0) == "336,776 rows in 2.0 s (168,388 rows/s)"
    assert rate(0, 0.0) == "0 rows in 0.0 s (0 rows/s)"


def test_table_aligns_text_left_and_numbers_right() -> None:
    assert table(["Name", "N"], [["a", "1"], ["bcdef", "200"]]) == (
        "Name     N\n─────  ───\na        1\nbcdef  200"
    )  # fmt: skip


def test_progress_to_a_pipe_is_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    asked = threading.Semaphore(0)
    answers: Iterator[Exception | str] = iter([RuntimeError("not there yet"), "one", "two"])

    def describe() -> str:
        answer = next(answers, "later")
        asked.release()
        if isinstance(answer, Exception):
            raise answer
        return answer

    progress = Progress(describe)
    progress._interval = 0.01
    with progress:
        for _ in range(4):  # the fourth poll follows the display of the third
            assert asked.acquire(timeout=10)
    lines = shown.getvalue().splitlines()
    assert [line.split()[-1] for line in lines[:2]] == ["one", "two"]


HOURS = pd.DataFrame(
    {
        "carrier": ["UA", "UA", "AA", "AA"],
        "local_hour": [6, 18, 6, 18],
        "flights": [110, 110, 50, 60],
        "cancelled": [10, 10, 0, 0],
        "late": [10, 40, 5, 5],
        "delay_minutes": [500, 3000, 100, -20],
    }
)


def test_the_report_has_the_latest_carrier_first() -> None:
    lines = table_of(HOURS, {"UA": "United", "AA": "American"}).splitlines()
    assert lines[2].split() == ["UA", "United", "220", "17.5", "min", "25%", "9.1%"]
    assert lines[3].split() == ["AA", "American", "110", "0.7", "min", "9%", "0.0%"]


FEW = HOURS.assign(flights=[3, 2, 1, 1], cancelled=[0, 1, 1, 1], late=[1, 0, 0, 0], delay_minutes=[30, -5, 0, 0])
NONE = HOURS.assign(cancelled=HOURS["flights"], late=0, delay_minutes=0)
EARLY = HOURS.assign(delay_minutes=[-500, -300, -100, -20])


def test_the_report_of_carriers_that_did_not_fly() -> None:
    lines = table_of(FEW, {}).splitlines()
    assert lines[2].split() == ["UA", "5", "6.2", "min", "25%", "20.0%"]
    assert lines[3].split() == ["AA", "2", "–", "–", "100.0%"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("hours", [HOURS, FEW, NONE, EARLY], ids=["usual", "few", "none flew", "early"])
def test_the_picture_is_drawn(tmp_path: Path, hours: pd.DataFrame) -> None:
    path = tmp_path / "delays.png"
    draw(hours, {"UA": "United"}, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 10_000


def test_the_name_server_comes_from_the_option_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert job_parser("x").parse_args([]).nameserver == "127.0.0.1:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;10.0.0.2:9876")
    assert job_parser("x").parse_args([]).nameserver == "10.0.0.1:9876;10.0.0.2:9876"
    assert job_parser("x").parse_args(["--nameserver", "h:1"]).nameserver == "h:1"


@pytest.mark.parametrize(
    "job", ["flights_publish", "flights_delays", "flights_report", "changes_publish", "changes", "demo"]
)
def test_every_job_has_help(job: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", f"jobs.{job}", "--help"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert ("--nameserver" in run.stdout) == (job != "demo")


class FakeQuery:
    def __init__(self) -> None:
        self.recentProgress: list[SimpleNamespace] = []

    def batch(self, second: int, rows: int) -> None:
        moment = f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.000Z"
        self.recentProgress = [*self.recentProgress[-2:], SimpleNamespace(timestamp=moment, numInputRows=rows)]


def test_rows_of_batches_that_spark_forgot_are_counted() -> None:
    query = FakeQuery()
    rows_read = RowsRead(query)  # type: ignore[arg-type]
    assert rows_read() == 0
    for second in range(10):
        query.batch(second, rows=100)
        assert rows_read() == rows_read() == 100 * (second + 1)


class FakeRun(FakeQuery):
    """Two micro-batches between polls; Spark remembers three."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's name
        for _ in range(2):
            self.seconds += 1
            self.batch(self.seconds, rows=100)
        return self.seconds >= 200

    def stop(self) -> None:
        pass


def test_rows_of_a_long_run_without_polls_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flights_delays, "ensure_topic", lambda *_, **__: None)
    monkeypatch.setattr(flights_delays, "start", lambda *_, **__: FakeRun())
    monkeypatch.setattr(flights_delays, "Progress", lambda _: nullcontext())
    places = flights_delays.Places("ns", tmp_path, tmp_path)
    assert flights_delays.run(None, places).rows_in == 200 * 100  # type: ignore[arg-type]
