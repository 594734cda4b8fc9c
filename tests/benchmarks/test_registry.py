"""What the benchmarks' harness does with numbers, names and files."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import registry
from benchmarks.lab import Lab
from benchmarks.registry import Benchmark, Pair, Result, run, select

NAMES_IN_PUBLIC = [
    "spark.read.128",
    "spark.read.1024",
    "spark.write.128",
    "spark.write.1024",
    "broker.send.1",
    "broker.send.16",
    "broker.batch500",
    "client.pull",
    "read.pulls",
    "plan.1000",
    "plan.backlog.time",
    "plan.backlog.memory",
    "spark.body.128",
    "spark.body.1024",
    "client.send.sync",
    "client.send.async",
    "client.send.accumulated",
    "broker.longpoll.p99",
    "broker.delay.p99",
    "broker.timer.p99",
    "broker.sync.1",
    "broker.sync.16",
    "spark.storepath.128",
    "spark.json.8",
    "store.put",
    "store.batch500",
    "store.backlog8",
    "store.recover",
    "store.start",
    "store.sync.1",
    "store.sync.16",
    "store.sync.gain",
    "store.roll.p999",
    "store.queues.10000",
    "search.key.1m",
    "search.key.10m",
    "search.time.1m",
    "search.time.10m",
    "search.id.1m",
    "search.id.10m",
    "ha.append",
    "ha.sync.1",
    "ha.sync.16",
    "cluster.two",
    "cluster.cores",
    "tls.send.sync",
    "tls.send.async",
    "tls.send.batches",
    "tls.pull",
    "grpc.send",
    "grpc.send.100",
    "grpc.receive",
    "grpc.held.500",
    "grpc.memory.500",
    "sink.once.128",
    "sink.once.1024",
    "sink.once.epoch",
    "sink.once.memory",
    "sink.trigger.once",
    "sink.trigger.least",
    "spark.latency",
]


def entry(pair: Pair, *, lower_is_better: bool = False) -> Benchmark:
    return Benchmark("some.thing.7", "rows/s", "nothing at all", lower_is_better, lambda lab, variant: pair)


def test_a_comparison_finds_the_module_of_every_benchmark() -> None:
    """Its process imports only that one."""
    assert {entry.name for entry in registry.REGISTRY.values() if not entry.module.startswith("benchmarks.")} == set()


def test_median_and_range_leave_the_warm_up_out() -> None:
    values, ceilings = iter([1.0, 30.0, 10.0, 20.0]), iter([1.0, 40.0, 40.0, 80.0])
    result = run(entry(Pair(lambda: next(values), lambda: next(ceilings))), Lab(), 3)
    assert result == Result("some.thing.7", 20.0, "rows/s", 40.0, 0.5, 10.0, 30.0, 3)


def test_where_less_is_better_the_ratio_still_says_how_near_the_ceiling_it_is() -> None:
    result = run(entry(Pair(lambda: 4.0, lambda: 1.0), lower_is_better=True), Lab(), 1)
    assert result.ratio == 0.25


def test_value_and_ceiling_are_measured_in_turn() -> None:
    order: list[str] = []
    pair = Pair(lambda: float(order.append("value") or 1), lambda: float(order.append("ceiling") or 1))
    run(entry(pair), Lab(), 2)
    assert order == ["ceiling", "value"] * 3


def test_the_variant_is_the_last_part_of_the_name() -> None:
    seen: list[str] = []

    def prepare(lab: Lab, variant: str) -> Pair:
        seen.append(variant)
        return Pair(lambda: 1.0, lambda: 1.0)

    run(Benchmark("some.thing.7", "x", "y", False, prepare), Lab(), 1)
    assert seen == ["7"]


def test_what_only_one_benchmark_needed_is_gone_after_it() -> None:
    seen = []

    def prepare(lab: Lab, variant: str) -> Pair:
        seen.append(lab.scratch)
        (lab.scratch / "file").touch()
        return Pair(lambda: 1.0, lambda: 1.0)

    with Lab() as lab:
        for _ in range(2):
            run(Benchmark("some.thing.7", "x", "y", False, prepare), lab, 1)
    assert seen[0] != seen[1]
    assert not any(path.exists() for path in seen)


def test_the_names_that_others_rely_on() -> None:
    assert set(NAMES_IN_PUBLIC) <= set(registry.REGISTRY)


@pytest.mark.parametrize(
    ("prefixes", "chosen"),
    [
        (["spark.read.1"], ["spark.read.128", "spark.read.1024"]),
        (["broker.send.1"], ["broker.send.1", "broker.send.16"]),
        (["client.pul", "broker.batch"], ["broker.batch500", "client.pull"]),
        (["nothing"], []),
    ],
)
def test_only_takes_names_and_how_they_begin(prefixes: list[str], chosen: list[str]) -> None:
    assert sorted(item.name for item in select(prefixes)) == sorted(chosen)


def test_json_and_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = count(1000)
    fake = entry(Pair(lambda: float(next(numbers)), lambda: 2000.0))
    monkeypatch.setattr(registry, "REGISTRY", {fake.name: fake})
    monkeypatch.setattr(command, "REGISTRY", {fake.name: fake})
    assert command.main(["--json", str(tmp_path / "out.json"), "--runs", "3"]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == [
        {
            "name": "some.thing.7",
            "value": 1002.0,
            "unit": "rows/s",
            "ceiling": 2000.0,
            "ratio": 0.501,
            "min": 1001.0,
            "max": 1003.0,
            "runs": 3,
        }
    ]
    shown = capsys.readouterr().out
    assert "1,001 – 1,003" in shown
    assert "nothing at all" in shown


def test_an_unknown_name_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--only", "spork"])
    assert "spark.read.128" in capsys.readouterr().err


@pytest.mark.live
def test_unknown_commits_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "plan.1000", "--against", "no-such-commit"]) == 2
    assert "no-such-commit" in capfd.readouterr().err
