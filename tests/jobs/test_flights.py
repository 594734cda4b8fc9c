"""The jobs as a user runs them: separate processes, real flights, a real broker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs.flights import load_flights
from spark_rocket.client import Producer, Reader
from spark_rocket.datasource.write.row_encoder import write_key
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster

ROOT = Path(__file__).parents[2]
FLIGHTS = 3_000
pytestmark = pytest.mark.spark


def job(name: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", f"jobs.{name}", *map(str, arguments)]


def run(name: str, *arguments: str | Path) -> str:
    command = job(name, *arguments)
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr
    return done.stdout


def run_on_terminal(name: str, *arguments: str | Path, errors: Path) -> str:
    """Like :func:`run`, on a terminal, where progress is shown four times a second. The terminal is read until the
    process has ended, because one that it has started may keep the terminal open."""
    leader, follower = os.openpty()
    with os.fdopen(follower, "w") as terminal, errors.open("w") as written:
        process = subprocess.Popen(
            job(name, *arguments),
            cwd=ROOT,
            env=os.environ | {"PYTHONFAULTHANDLER": "1"},
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=written,
        )
    said = bytearray()
    too_long = threading.Timer(400, process.send_signal, [signal.SIGABRT])  # it prints what its threads do
    too_long.start()
    with os.fdopen(leader, "rb", buffering=0) as terminal_output, contextlib.suppress(OSError):  # all have closed it
        ended = False
        while not ended or select.select([terminal_output], [], [], 0)[0]:
            ended = process.poll() is not None
            if select.select([terminal_output], [], [], 0.1)[0]:
                said += terminal_output.read(65536)
    status = process.wait()
    too_long.cancel()
    shown = said.decode().replace("\r\n", "\n")
    assert status == 0, shown + errors.read_text()
    assert "WARN" not in errors.read_text()
    return shown


@pytest.mark.long
def test_the_demo_counts_every_flight_once_and_draws_them(tmp_path: Path) -> None:
    arguments = ["--limit", str(FLIGHTS), "--max-per-trigger", "2000", "--output", str(tmp_path)]
    shown = run_on_terminal("demo", *arguments, errors=tmp_path / "stderr")
    # Progress of the first micro-batch changes before it ends.
    assert re.search(r" 0 flights in, 0 totals out \(processing new data: \d+ of \d+ tasks\)", shown)
    assert "org.apache" not in shown
    assert f"Every flight was counted once: {FLIGHTS:,} in, {FLIGHTS:,} in the table." in shown
    assert re.search(r"UA +United Air Lines +[\d,]+ +[\d.]+ min", shown)
    assert len(re.findall(r"[\d,]+ rows/s", shown)) >= 2
    picture = re.search(r"^Picture: (.+)$", shown, re.MULTILINE)
    assert picture is not None
    assert Path(picture[1]).read_bytes().startswith(b"\x89PNG")


def publish(cluster: LocalCluster, topic: str) -> None:
    bodies = [json.dumps(flight, default=datetime.isoformat) for flight in load_flights(FLIGHTS).to_pylist()]
    with Producer("flights", name_server=cluster.name_server) as producer:
        for start in range(0, FLIGHTS, 500):
            producer.send([Message.of(topic, body) for body in bodies[start : start + 500]])


def totals_in_topic(cluster: LocalCluster, topic: str) -> tuple[int, list[str]]:
    """The newest totals of each key, and the message ids. All messages of a key are in one queue."""
    newest: dict[str, int] = {}
    ids: list[str] = []
    with Reader(cluster.name_server) as reader:
        for queue in reader.queues(topic):
            offset, end = reader.min_offset(queue), reader.max_offset(queue)
            while offset < end:
                for message in reader.messages(queue, offset, max_msgs=1000):
                    assert message.keys is not None
                    newest[message.keys] = json.loads(message.body)["flights"]
                    offset = message.queue_offset + 1
                    ids.append(message.msg_id)
    return sum(newest.values()), ids


def totals_in_parquet(folder: Path) -> int:
    """The same from the Parquet folders: totals of later batches replace earlier ones."""
    newest: dict[tuple[str, object], int] = {}
    for batch in sorted(folder.glob("batch=*")):
        for row in pq.read_table(batch, partitioning=None).to_pylist():
            newest[row["carrier"], row["hour"]] = row["flights"]
    return sum(newest.values())


@pytest.mark.long
def test_a_restarted_delays_job_counts_every_flight_once(
    rocket: LocalCluster, rocket_topic: str, tmp_path: Path
) -> None:
    publish(rocket, rocket_topic)
    target = f"{rocket_topic}-delays"
    arguments = [
        *("--nameserver", rocket.name_server, "--source", rocket_topic, "--target", target),
        *("--group", f"group-{rocket_topic}", "--output", str(tmp_path), "--max-per-trigger", str(FLIGHTS // 3)),
    ]
    second_batch = tmp_path / "delays" / "batch=000001"

    command = job("flights_delays", *arguments)
    victim = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while not second_batch.exists():  # the Parquet file is being written, the batch is not committed
            assert victim.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait()
    committed = {int(path.name) for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdigit()}
    assert max(committed) < 2

    shown = run("flights_delays", *arguments)
    read = re.search(r"^Read from .*: ([\d,]+) rows", shown, re.MULTILINE)
    assert read is not None
    assert 0 < int(read[1].replace(",", "")) < FLIGHTS  # it continued and did not restart from the beginning

    assert totals_in_parquet(tmp_path / "delays") == FLIGHTS
    counted, ids = totals_in_topic(rocket, target)
    assert counted == FLIGHTS
    assert ids
    # They depend on the query and the batch: a repeated batch has the ids of the killed one, another query has others.
    query = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    keys = {write_key(f"{query}-{batch}", "", part).hex() for batch in range(4) for part in range(os.cpu_count() or 2)}
    assert {name[:20].lower() for name in ids} <= keys
