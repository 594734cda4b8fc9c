"""`python -m benchmarks.soak`: a stream under a steady load for ten minutes; its lag, and its processes' memory.

A separate process sends batches at a fixed rate to a broker on this machine; a streaming query reads and discards them.
After every trigger it records the lag, in units of a trigger's messages, and the resident memory of the broker, Spark's
JVM and its Python processes. The mapped pages of the broker's files, which the kernel may reclaim, count separately. At
the end it prints the worst lag and the memory growth from the end of the first quarter on (before that is start-up). It
is not in the benchmark table because it takes ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil

from benchmarks import frames
from benchmarks.lab import Lab
from jobs.terminal import table
from spark_rocket.client import Producer, Reader
from spark_rocket.model import Message
from spark_rocket.protocol.record.batch_body import encode_batch_body

SIZE = 128
KINDS = ("broker", "broker's files", "jvm", "driver", "workers")


@dataclass(frozen=True)
class Sample:
    """One trigger: seconds since the start, rows of its batch, lag after it, MiB of the processes."""

    seconds: float
    rows: int
    behind: int
    memory: dict[str, float]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=50_000, help="messages per second (50,000)")
    parser.add_argument("--trigger", type=float, default=2.0, metavar="SECONDS", help="processing-time trigger (2)")
    parser.add_argument("--feed", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.feed:
        feed(**json.loads(options.feed))
        return 0
    with Lab() as lab:
        report(soak(lab, options.minutes * 60, options.rate, options.trigger), options.rate * options.trigger)
    return 0


def feed(name_server: str, topic: str, rate: int) -> None:
    """Send batches on a schedule until stdin ends; late batches are sent as soon as possible."""
    rows = range(frames.BATCH)
    body = encode_batch_body([Message(topic, frames.payload(SIZE, row), frames.properties_of(row)) for row in rows])
    with Producer("soak", name_server=name_server, send_timeout=30) as producer, Reader(name_server) as reader:
        queues = reader.queues(topic)
        begun, sent = time.monotonic(), 0
        os.set_blocking(0, False)
        while not _has_ended():
            due = begun + sent / rate
            time.sleep(max(0.0, due - time.monotonic()))  # the pace of the load
            producer.send_batch_body_async(queues[sent // frames.BATCH % len(queues)], body, frames.BATCH)
            sent += frames.BATCH


def _has_ended() -> bool:
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


def soak(lab: Lab, seconds: float, rate: int, trigger: float) -> list[Sample]:
    topic = lab.topic("soak")
    name_server = lab.cluster.name_server
    spark = lab.spark
    frame = spark.readStream.format("rocket").option("nameServer", name_server).option("subscribe", topic).load()
    settings = json.dumps({"name_server": name_server, "topic": topic, "rate": rate})
    command = [sys.executable, "-m", "benchmarks.soak", "--feed", settings]
    samples: list[Sample] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE) as feeder, Reader(name_server) as reader:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(lab.folder / "soak"))
            .trigger(processingTime=f"{trigger} seconds")
            .start()
        )
        try:
            begun, seen = time.monotonic(), -1
            while time.monotonic() < begun + seconds:
                time.sleep(0.05)  # only a listener could signal this, and it would add load
                if feeder.poll() is not None or not query.isActive:
                    raise RuntimeError(f"the load or the query ended: {feeder.returncode}, {query.exception()}")
                progress = query.lastProgress
                if progress is None or progress["batchId"] == seen or not progress["numInputRows"]:
                    continue
                seen = progress["batchId"]
                behind = _end(reader, topic) - _offsets(progress)
                samples.append(Sample(time.monotonic() - begun, progress["numInputRows"], behind, _memory()))
        finally:
            query.stop()
            assert feeder.stdin is not None
            feeder.stdin.close()
    return samples


def _end(reader: Reader, topic: str) -> int:
    return sum(reader.max_offset(queue) for queue in reader.queues(topic))


def _offsets(progress: Any) -> int:
    ends = progress["sources"][0]["endOffset"]
    tree = (ends if isinstance(ends, dict) else json.loads(ends))["offsets"]
    return sum(offset for brokers in tree.values() for queues in brokers.values() for offset in queues.values())


def _memory() -> dict[str, float]:
    """Return MiB of this process and its children, by kind."""
    used = dict.fromkeys(KINDS, 0.0)
    used["driver"] = psutil.Process().memory_info().rss / 2**20
    for process in psutil.Process().children(recursive=True):
        try:
            command, memory = " ".join(process.cmdline()), process.memory_info()
        except psutil.NoSuchProcess:
            continue
        if "benchmarks.soak" in command:
            continue
        if "spark_rocket.cli" in command:
            mapped = getattr(memory, "shared", 0)  # reported separately on Linux
            used["broker"] += (memory.rss - mapped) / 2**20
            used["broker's files"] += mapped / 2**20
        else:
            used["jvm" if "java" in command else "workers"] += memory.rss / 2**20
    return used


def report(samples: list[Sample], per_trigger: float) -> None:
    quarter = [sample for sample in samples if sample.seconds >= samples[-1].seconds / 4]
    third = len(quarter) // 3
    rate = sum(sample.rows for sample in quarter[1:]) / (quarter[-1].seconds - quarter[0].seconds)
    behind = sorted(sample.behind / per_trigger for sample in quarter)
    print(f"{len(samples)} triggers in {samples[-1].seconds:,.0f} s; {rate:,.0f} messages/s were read")
    print(f"lag after a trigger, in triggers: median {median(behind):.2f}, worst {behind[-1]:.2f} (target: 2)")
    rows = []
    for kind in KINDS:
        early = median(sample.memory[kind] for sample in quarter[:third])
        late = median(sample.memory[kind] for sample in quarter[-third:])
        worst = max(sample.memory[kind] for sample in quarter)
        growth = f"{100 * (late / early - 1):+.0f} %" if early else "–"
        rows.append([kind, f"{early:,.0f} MiB", f"{late:,.0f} MiB", growth, f"{worst:,.0f} MiB"])
    print(table(["memory", "second quarter", "last quarter", "growth", "maximum"], rows))


if __name__ == "__main__":
    raise SystemExit(main())
