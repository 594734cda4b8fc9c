"""The examples of the data source's pages run unchanged, each page from its first to its last line.

Python, SQL and ``rocket …`` are run; other blocks (JSON, text) are shown for reading. Placeholders (name server,
directories, a port) are replaced by values of the test.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_rocket.cli import main
from spark_rocket.datasource.options.other_names import FOREIGN_NAMES, NOT_NEEDED
from spark_rocket.datasource.options.table import OPTIONS
from spark_rocket.model import Message
from tests.golden import extract_store
from tests.kit.pages import ROOT
from tests.spark.conftest import Rocket

GUIDES = [f"docs/guides/{name}.md" for name in ("connect", "read", "write", "typed-rows", "exactly-once", "sql", "lag")]
FROM_KAFKA = "docs/guides/from-kafka.md"
FROM_ROCKETMQ_SPARK = "docs/guides/from-rocketmq-spark.md"
PAGES = [*GUIDES, FROM_KAFKA, FROM_ROCKETMQ_SPARK]
REFERENCE = [f"docs/reference/{name}.md" for name in ("options", "columns", "conditions")]


def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def _examples(page: str) -> Iterator[tuple[str, int, str]]:
    """Language, line, code."""
    text = _text(page)
    for found in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.M | re.S):
        yield found[1], text.count("\n", 0, found.start(2)), found[2]


@pytest.fixture(scope="module")
def shop(mq: Rocket) -> Rocket:
    """The topics of the pages."""
    for topic in (
        "orders",
        "payments",
        "orders-eu-1",
        "flights",
        "flights-copy",
        "flights-once",
        "orders-checked",
        "orders-from-kafka",
    ):
        mq.cluster.create_topic(topic, 2)
    tags = ("paid", "shipped", "open")
    messages = [
        Message.of(
            "orders",
            f'{{"id": {number}, "item": "tea", "price": {number}.50}}',
            tags=tags[number % 3],
            keys=f"order-{number}",
            properties={"price": str(number)},
        )
        for number in range(20)
    ]
    for number, queue in enumerate(mq.queues("orders")):
        mq.producer.send(messages[number::2], queue=queue)
    mq.send("flights", ["AA 1", "UA 2"])
    return mq


@pytest.fixture
def places(shop: Rocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Placeholders on the pages, and their values here."""
    monkeypatch.setenv("NAMESRV_ADDR", shop.name_server)
    monkeypatch.chdir(tmp_path)
    return {
        "127.0.0.1:9876": shop.name_server,
        "checkpoints/": f"{tmp_path}/checkpoints/",
        "/backup/broker-a/store": str(extract_store("clean", tmp_path / "backup")),
        "port=9404": "port=0",
    }


@pytest.fixture
def clean(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose state is restored at the end."""
    yield spark
    for query in spark.streams.active:
        query.stop()
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} IF EXISTS {table.name}")


def _python(code: str, line: int, page: str, names: dict[str, object], spark: SparkSession, name_server: str) -> None:
    if "storePath" not in code:  # Spark uses other processes, which do not have this environment
        code = re.sub(r'(\.format\("rocket(mq)?"\))', rf'\1.option("nameServer", "{name_server}")', code)
    exec(compile("\n" * line + code, page, "exec"), names)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()


@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_run(page: str, shop: Rocket, clean: SparkSession, places: dict[str, str]) -> None:
    names: dict[str, object] = {"__name__": "__main__", "spark": clean}
    if page == FROM_KAFKA:
        names["kafka"] = _as_kafkas_source_gives_it(clean)
    counted = 0
    try:
        for language, line, code in _examples(page):
            for written, here in places.items():
                code = code.replace(written, here)
            if language == "python":
                _python(code, line, page, names, clean, shop.name_server)
            elif language == "sql":
                for statement in filter(str.strip, code.split(";\n")):
                    clean.sql(statement).collect()
            elif language == "shell":
                for command in code.splitlines():
                    program, *arguments = shlex.split(command, comments=True)
                    assert program == "rocket", command
                    assert main(arguments) == 0, command
            else:
                continue
            counted += 1
    finally:
        if (listener := names.get("listener")) is not None:
            clean.streams.removeListener(listener)  # type: ignore[arg-type]
            listener.close()  # type: ignore[attr-defined]
    assert counted


def _as_kafkas_source_gives_it(spark: SparkSession) -> DataFrame:
    schema = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
        "timestampType int, headers array<struct<key: string, value: binary>>"
    )
    rows = [(b"order-1", b"tea", "orders", 0, offset, None, 0, [("trace", b"1")]) for offset in range(3)]
    return spark.createDataFrame(rows, schema)


@pytest.mark.parametrize("page", [*PAGES, *REFERENCE])
def test_links_have_targets(page: str) -> None:
    for file, anchor in re.findall(r"\]\(((?:\.\./)?[\w/-]*\.md)?(?:#([^)]+))?\)", _text(page)):
        path = (ROOT / page).parent / file if file else ROOT / page
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        anchors = {
            re.sub(r"[^\w\- ]", "", found.lower()).replace(" ", "-") for found in re.findall("^#+ (.*)", text, re.M)
        }
        assert not anchor or anchor in anchors, f"{file}#{anchor}"


def test_replacements_of_kafka_options_exist() -> None:
    rows: dict[str, str] = {}
    for part in ("Options for reads", "Options for writes"):
        page = _text(FROM_KAFKA).partition(f"## {part}\n")[2].partition("\n## ")[0]
        for names, told in re.findall(r"^\| (`[^|]*) \| (.*?) \|", page, re.M):
            rows |= {name.lower(): told for name in re.findall(r"`([\w.]+)`", names)}
    here = {option.name for option in OPTIONS}
    named = set(re.findall(r"^`(\w+)`", "\n".join(rows.values()), re.M))
    assert len(named) > 15
    assert named <= here
    for theirs, ours in FOREIGN_NAMES.items():
        if "kafka" in theirs:
            assert f"`{ours}`" in rows[theirs.lower()], theirs
    for theirs in NOT_NEEDED:
        assert "kafka" not in theirs or not rows[theirs.lower()].startswith("`"), theirs
