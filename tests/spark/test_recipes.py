"""First ten minutes, the recipes, the README and the notebook run as they are, on the session that all tests share."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_rocket.cli import main
from spark_rocket.datasource.capabilities import HAS_READ_LIMITS
from spark_rocket.testing import LocalCluster
from tests.cli.test_rocket import found, started
from tests.kit.pages import ROOT, Prompt, examples, run_commands, with_name_server
from tests.spark.conftest import Rocket
from tests.spark.sessions import needs

NOTEBOOK = ROOT / "docs" / "notebook" / "flights.ipynb"
SERVERS = ("up", "--ephemeral", "--nameserver-port", 0, "--broker-port", 0, "--grpc-port", 0)
OTHERS = ("--console-port", 0, "--metrics-port", 0)


@pytest.fixture(scope="module")
def shop(spark: SparkSession) -> Iterator[Rocket]:
    """A cluster with the messages that the recipes need: 20 orders and three sensor readings, one of them invalid."""
    with LocalCluster() as cluster:
        mq = Rocket(cluster, spark)
        with mq.producer, mq.reader:
            _fill(mq)
            yield mq


def _fill(mq: Rocket) -> None:
    for topic in ("invoices", "sensors-bad", "payments", "reminders"):
        mq.cluster.create_topic(topic, 2)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NAMESRV_ADDR", mq.name_server)
        for page in ("parquet-delta", "dead-letters"):
            (filler,) = (example for example in examples(f"docs/recipes/{page}.md") if example.title)
            exec(compile("\n" * filler.line + filler.code, page, "exec"), {"__name__": "__main__"})


@pytest.fixture
def clean(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A session whose state is restored at the end. Relative paths of the pages are the test's (see ``places``)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    yield spark
    for query in spark.streams.active:
        query.stop()
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} IF EXISTS {table.name}")


def places(code: str, folder: Path) -> str:
    """Spark resolves relative paths in its start directory."""
    return re.sub(r'"(lake|checkpoints)/', rf'"{folder}/\1/', code)


def run_page(page: str, spark: SparkSession, folder: Path, name_server: str, rocket: Callable[[list[str]], str]) -> int:
    names: dict[str, object] = {"__name__": "__main__", "spark": spark}
    todo = [example for example in examples(page) if not example.not_run and not example.title]
    for example in todo:
        code = with_name_server(places(example.code, folder), name_server)
        if example.language == "python":
            exec(compile("\n" * example.line + code, page, "exec"), names)
        elif example.language == "console":
            run_commands(code, rocket)
    return len(todo)


def said_by(arguments: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(arguments) == 0, arguments
    return said.getvalue()


_WATERMARKS = needs(HAS_READ_LIMITS, "4.2", "a run that ends writes what waits for a watermark")


@pytest.mark.parametrize(
    "recipe",
    [
        *("parquet-delta", "enrich", "exactly-once", "replay", "dead-letters", "scheduled"),
        pytest.param("lakes", marks=pytest.mark.classic("the recipe takes the query's ID from the SparkContext")),
        *(pytest.param(name, marks=_WATERMARKS) for name in ("stream-join", "state")),
    ],
)
def test_a_recipe(
    recipe: str, shop: Rocket, clean: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", shop.name_server)
    assert run_page(f"docs/recipes/{recipe}.md", clean, tmp_path, shop.name_server, said_by) >= 1


@pytest.mark.classic("a test of the page's own makes a session with a master")
def test_the_spark_test_of_the_testing_guide(
    clean: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest runs within pytest, on the existing session, because the page's session has the same name."""
    monkeypatch.syspath_prepend(tmp_path)
    blocks = examples("docs/guides/testing.md")
    for file in blocks:
        if file.title in ("totals.py", "test_totals.py"):
            (tmp_path / file.title).write_text(file.code)
    assert ["$ pytest -q test_totals.py", "1 passed"] in [block.code.splitlines() for block in blocks]
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p no:randomly\n")
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            ended = pytest.main(["-q", f"--rootdir={tmp_path}", str(tmp_path / "test_totals.py")])
    finally:
        for name in ("totals", "test_totals"):
            sys.modules.pop(name, None)
    assert ended == 0, said.getvalue()
    assert "1 passed" in said.getvalue()


@pytest.mark.classic("the page makes a session of its own")
def test_the_first_ten_minutes(clean: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "docs/guides/getting-started.md"
    with contextlib.ExitStack() as servers:

        def rocket(arguments: list[str]) -> str:
            if arguments != ["up"]:
                return said_by(arguments)
            _, said = servers.enter_context(started(*SERVERS, *OTHERS, last="Console:"))
            monkeypatch.setenv("NAMESRV_ADDR", found(r"name server +(\S+)", said))
            return said

        start = next(example for example in examples(page) if example.code.startswith("$ rocket up\n"))
        run_commands(start.code, rocket)
        name_server = os.environ["NAMESRV_ADDR"]

        def once_up(arguments: list[str]) -> str:
            return start.code if arguments == ["up"] else rocket(arguments)

        assert run_page(page, clean, tmp_path, name_server, once_up) >= 9


@pytest.mark.classic("the page makes a session of its own")
def test_the_readme(shop: Rocket, clean: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", shop.name_server)
    for example in examples("README.md"):
        if example.language == "python":
            code = places(example.code, tmp_path).replace("127.0.0.1:9876", shop.name_server)
            code = with_name_server(code, shop.name_server)
            Prompt(f"README.md:{example.line}").paste(code)


def test_the_readme_does_not_use_the_topics_of_getting_started() -> None:
    """A reader can use one server for both, and the page counts the messages of its topic."""
    used = [
        {topic for example in examples(page) for topic in re.findall(r'"(?:subscribe|topic)", "(\w+)"', example.code)}
        for page in ("README.md", "docs/guides/getting-started.md")
    ]
    assert all(used)
    assert not used[0] & used[1]


# --- the notebook -----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.classic("what a stream's memory sink holds is shown as classic Spark shows it")
def test_the_notebook_has_its_stored_output(clean: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    from matplotlib import pyplot as plt

    names: dict[str, object] = {"__name__": "__main__"}
    pictures = 0
    try:
        with plt.rc_context():
            for number, cell in enumerate(json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]):
                if cell["cell_type"] != "code":
                    continue
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
                stored = cell["outputs"]
                assert said.getvalue() == "".join("".join(output.get("text", "")) for output in stored)
                drawn = len(plt.get_fignums())
                assert drawn == sum("image/png" in output.get("data", {}) for output in stored)
                for figure in map(plt.figure, plt.get_fignums()):
                    figure.savefig(io.BytesIO())
                plt.close("all")
                pictures += drawn
    finally:
        plt.close("all")
        cluster = names.get("cluster")
        if cluster is not None and "not running" not in repr(cluster):
            cluster.stop()  # type: ignore[attr-defined]
    assert pictures == 3
