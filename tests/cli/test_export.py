"""``rocket message export``: every format has the rows of ``read_arrow``, and a failure leaves no file."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from spark_rocket import read_arrow
from spark_rocket.cli.commands import message_export
from spark_rocket.cli.text import Bar
from spark_rocket.client import Producer
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import Run
from tests.datasource.test_read_arrow import no_threads_left

pytestmark = pytest.mark.live

TYPED = ("--body-format", "json", "--schema", "id bigint, item string, price double", "-o", "badRecords=drop")
COUNT = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running:
        for topic in ("orders", "more"):
            running.create_topic(topic, 3)
        with Producer("shop", name_server=running.name_server) as producer:
            for at in range(COUNT):
                body = json.dumps({"id": at, "item": f'an "item", {at}' if at % 2 else None, "price": at / 8})
                producer.send(Message.of("orders", body if at else "{", tags="a", keys=f"k{at}"))
            producer.send(Message.of("more", "x"))
        yield running


@pytest.fixture
def export(run: Run, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def export(*arguments: str) -> Any:
        return run("message", "export", "-n", cluster.name_server, *arguments)

    return export


def rows(cluster: LocalCluster, **options: Any) -> list[dict[str, Any]]:
    found = read_arrow("orders", name_server=cluster.name_server, **options).read_all().to_pylist()
    return sorted(found, key=repr)


def test_messages_as_parquet_and_arrow(export: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    for file in ("a.parquet", "a.arrow"):
        done = export("-t", "orders", file)
        assert (done.status, done.out) == (0, f"Wrote {COUNT} rows to {file}.\n"), done.err
    tables = pyarrow.parquet.read_table("a.parquet"), pa.ipc.open_file("a.arrow").read_all()
    for table in tables:
        assert sorted(table.to_pylist(), key=repr) == rows(cluster)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.arrow", "a.parquet"]


def test_row_groups_are_large(export: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("-o", "arrowBatchRows=10", "-o", "combineSmallRanges=false")
    assert export("-t", "orders", *small, "one.parquet").status == 0
    monkeypatch.setattr(message_export, "_ROW_GROUP_BYTES", 1)
    assert export("-t", "orders", *small, "many.parquet").status == 0
    groups = [pyarrow.parquet.ParquetFile(name).num_row_groups for name in ("one.parquet", "many.parquet")]
    assert groups == [1, 3]


def test_typed_rows_as_text(export: Any, cluster: LocalCluster) -> None:
    typed = {"body_format": "json", "schema": "id bigint, item string, price double", "bad_records": "drop"}
    expected = rows(cluster, **typed)
    assert len(expected) == COUNT - 1
    assert export("-t", "orders", *TYPED, "a.jsonl").status == 0
    lines = [json.loads(line) for line in Path("a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sorted(({"item": None} | line for line in lines), key=lambda row: row["id"]) == sorted(
        expected, key=lambda row: row["id"]
    )
    assert export("-t", "orders", *TYPED, "--columns", "price,item", "a.csv").status == 0
    with Path("a.csv").open(encoding="utf-8", newline="") as file:
        table = [*csv.reader(file)]
    assert table[0] == ["price", "item"]
    assert sorted(table[1:]) == sorted([str(row["price"]).removesuffix(".0"), row["item"] or ""] for row in expected)


def test_raw_messages_as_json(export: Any, cluster: LocalCluster) -> None:
    """Bodies are base64."""
    assert export("-t", "orders", "-t", "more", "--format", "jsonl", "--columns", "topic,body", "file").status == 0
    lines = [json.loads(line) for line in Path("file").read_text(encoding="utf-8").splitlines()]
    assert {"topic": "more", "body": "eA=="} in lines
    assert len(lines) == COUNT + 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("-t", "orders", "a.csv"), 1, "body is binary, which CSV does not support. Omit it"),
        (("-t", "orders", "--columns", "properties", "a.csv"), 1, "is map<string,string>, which CSV does not"),
        (("-t", "orders", "--columns", "id", "a.csv"), 1, "there is no column id"),
        (("-t", "missing", "a.parquet"), 1, "missing"),
        (("-t", "orders", *TYPED[:4], "a.parquet"), 1, "cannot be decoded as json"),
        (("-t", "orders", "-o", "bodyFormatt=json", "a.parquet"), 1, "Did you mean bodyFormat?"),
        (("-t", "orders", "--start", "yesterday", "a.parquet"), 2, "invalid time 'yesterday'"),
        (("-t", "orders", "a.xls"), 2, "Give --format, or a FILE that ends in .parquet"),
        (("-t", "orders", "no/such/a.csv"), 2, "no/such/a.csv cannot be written: No such file or directory"),
        (("a.csv",), 2, "Give a topic with -t"),
    ],
)  # fmt: skip
def test_failures_leave_no_file(
    arguments: tuple[str, ...], status: int, message: str, export: Any, tmp_path: Path
) -> None:
    done = export(*arguments)
    assert (done.status, message in done.err) == (status, True), done.err
    assert [*tmp_path.iterdir()] == []


def test_a_failure_keeps_the_file_of_before(export: Any) -> None:
    Path("a.jsonl").write_text("before")
    assert export("-t", "orders", *TYPED[:4], "a.jsonl").status == 1
    assert Path("a.jsonl").read_text() == "before"
    assert export("-t", "orders", *TYPED, "a.jsonl").status == 0
    assert Path("a.jsonl").read_text().count("\n") == COUNT - 1


def test_a_directory_is_no_file(export: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = export("-t", "missing", "--format", "csv", "out")
    assert (done.status, "out is a directory: name the file to write." in done.err) == (2, True)


def test_options_of_the_connection_are_not_given_twice(export: Any, cluster: LocalCluster) -> None:
    assert export("-t", "orders", "-o", "requesttimeout=7s", "a.parquet").status == 0


def test_a_stopped_brokers_directory(export: Any, tmp_path: Path) -> None:
    with LocalCluster(in_process=True, data_dir=tmp_path / "data") as stopped:
        stopped.create_topic("old", 1)
        with Producer("shop", name_server=stopped.name_server) as producer:
            producer.send(Message.of("old", "x"))
        store = stopped.store_dir
    done = export("-t", "old", "-o", f"storePath={store}", "old.parquet")
    assert (done.status, done.out) == (0, "Wrote 1 row to old.parquet.\n"), done.err


def test_start_and_end(export: Any) -> None:
    assert "Wrote 60 rows" in export("-t", "orders", "--start", "1h", "a.parquet").out
    assert "Wrote 0 rows" in export("-t", "orders", "--end", "1h", "a.parquet").out
    assert "Wrote 1 row to" in export("-o", 'assign={"more":{"broker-a":[0,1,2]}}', "a.parquet").out
    half = json.dumps({"orders": {"broker-a": {str(queue): 10 for queue in range(3)}}})
    assert "Wrote 30 rows" in export("-t", "orders", "--start", half, "a.parquet").out
    assert pyarrow.parquet.read_table("a.parquet").num_rows == 30


def test_the_bar_is_shown_only_on_a_terminal(export: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert export("-t", "orders", "a.parquet").err == ""
    shown: list[tuple[int, int]] = []
    monkeypatch.setattr(Bar, "__call__", lambda self, done, total: shown.append((done, total)))
    assert export("-t", "orders", *TYPED, "-o", "arrowBatchRows=20", "a.parquet").status == 0
    assert shown[-1] == (COUNT - 1, COUNT)
    shown.clear()
    assert export("-t", "orders", "-o", "tags=a", "a.parquet").status == 0
    assert not shown, "the number of selected messages is unknown"


def test_the_temporary_name_cannot_be_predicted(export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory that others write too, a link with that name would have the export replace their choice."""
    names: list[str] = []
    inner = message_export._FORMATS["jsonl"]

    def listing(out: Any, schema: pa.Schema) -> Any:
        names.extend(path.name for path in tmp_path.iterdir() if path.suffix == ".tmp")
        return inner(out, schema)

    monkeypatch.setitem(message_export._FORMATS, "jsonl", listing)
    for _ in range(2):
        assert export("-t", "more", "a.jsonl").status == 0
    assert len(set(names)) == 2


def test_a_pipe_gets_the_rows_and_stays(export: Any, tmp_path: Path) -> None:
    """Also a device: as root, a rename would replace /dev/null for all processes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        done = export("-t", "more", "--format", "jsonl", "pipe")
        assert (done.status, done.out, done.err) == (0, "", "Wrote 1 row to pipe.\n")
        assert read.result(60).count(b"\n") == 1
    assert pipe.is_fifo()


def test_a_link_stays(export: Any, tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    for _ in range(2):
        assert export("-t", "more", "link.jsonl").status == 0
        assert (tmp_path / "link.jsonl").readlink() == Path("a.jsonl")
        assert (tmp_path / "a.jsonl").read_text().count("\n") == 1


def test_an_interrupt_leaves_no_file(cluster: LocalCluster, tmp_path: Path) -> None:
    code = """
import sys
from spark_rocket.cli import main
from spark_rocket.cli.commands import message_export
inner = message_export._FORMATS["jsonl"]
def hold(out, schema):
    print("writing", flush=True)
    sys.stdin.read()
    return inner(out, schema)
message_export._FORMATS["jsonl"] = hold
sys.exit(main(["message", "export", "-t", "orders", "-n", sys.argv[1], sys.argv[2]]))
"""
    command = [sys.executable, "-c", code, cluster.name_server, str(tmp_path / "a.jsonl")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert len([*tmp_path.iterdir()]) == 1, "the temporary file"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
    assert [*tmp_path.iterdir()] == []
    no_threads_left()
