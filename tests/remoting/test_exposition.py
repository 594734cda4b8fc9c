"""The Prometheus text format, read with its own parser."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from spark_rocket.remoting.exposition import COUNTER, GAUGE, HISTOGRAM, Exposition, Metric, label_text
from spark_rocket.remoting.http import monitor as monitor_module
from spark_rocket.remoting.http.http_server import HttpResponse
from spark_rocket.remoting.http.monitor import MONITOR_METRICS, Monitor, RecentMaximum
from spark_rocket.remoting.server.overload import OVERLOAD_METRICS, OverloadStats, add_overload

TABLE = (
    Metric("sent_total", COUNTER, "How many.", "own"),
    Metric("lag", GAUGE, "How far.", "own"),
    Metric("size", HISTOGRAM, "How large.", "own"),
    Metric("unused", GAUGE, "Nothing.", "own"),
)


def test_kinds() -> None:
    exposition = Exposition(TABLE)
    exposition.add("sent_total", label_text({"topic": "a"}), 12)
    exposition.add("lag", label_text({"group": "g", "is_retry": False}), 0.5)
    exposition.add_histogram("size", label_text({"topic": "a"}), [1024, 4096], [1, 2, 3], 20_000)
    families = {family.name: family for family in text_string_to_metric_families(exposition.render().decode())}
    assert {name: family.type for name, family in families.items()} == {
        "sent": "counter",
        "lag": "gauge",
        "size": "histogram",
    }
    assert families["lag"].samples[0].labels == {"group": "g", "is_retry": "false"}
    buckets = {sample.labels.get("le", sample.name): sample.value for sample in families["size"].samples}
    assert buckets == {"1024": 1, "4096": 3, "+Inf": 6, "size_sum": 20_000, "size_count": 6}


@given(st.text(max_size=20).filter(lambda text: text.isprintable() or "\n" in text))
def test_any_label_round_trips(value: str) -> None:
    exposition = Exposition(TABLE)
    exposition.add("lag", label_text({"topic": value}), 1)
    text = exposition.render().decode()
    if not any(mark in value for mark in "\x85\u2028\u2029\r\x0b\x0c\x1c\x1d\x1e"):  # line ends for its parser
        (family,) = text_string_to_metric_families(text)
        assert family.samples[0].labels == {"topic": value}


def test_many_lines_are_rendered_in_parts() -> None:
    exposition = Exposition(TABLE)
    for number in range(10_000):
        exposition.add("lag", f'n="{number}"', number)
    parts = list(exposition.parts())
    assert len(parts) == 4
    assert len(b"".join(parts).splitlines()) == 10_002


class Source:
    """Counts how often it is collected, and waits for a release between two steps."""

    metrics: Sequence[Metric] = TABLE

    def __init__(self) -> None:
        self.collected = 0
        self.reasons: list[str] = []

    def node_labels(self) -> dict[str, object]:
        return {"node_id": "one"}

    def collect(self, exposition: Exposition) -> Iterator[None]:
        self.collected += 1
        for _ in range(10):
            yield
        exposition.add("lag", label_text(self.node_labels()), self.collected)

    def problems(self) -> list[str]:
        return self.reasons

    def facts(self) -> dict[str, Any]:
        return {"broker": "one"}


def test_scrapes_share_a_collection_and_do_not_block_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor_module, "SLICE_SECONDS", 0.0)
    source = Source()
    monitor = Monitor("127.0.0.1", 0, [source])

    async def main() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(others())
        responses: list[HttpResponse] = await asyncio.gather(*(monitor.metrics() for _ in range(5)))
        assert source.collected == 1
        assert turns > 10
        assert len({response.body for response in responses}) == 1
        await monitor.metrics()
        assert source.collected == 2
        other.cancel()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_failed_source_is_collected_again(caplog: pytest.LogCaptureFixture) -> None:
    class FailingOnce(Source):
        def collect(self, exposition: Exposition) -> Iterator[None]:
            self.collected += 1
            if self.collected == 1:
                raise ValueError("not yet")
            yield from ()

    monitor = Monitor("127.0.0.1", 0, [FailingOnce()])

    async def main() -> None:
        with pytest.raises(ValueError, match="not yet"):
            await monitor.metrics()
        assert b"rocket_build_info" in (await monitor.metrics()).body

    asyncio.run(main())


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(-3, 9)), min_size=1, max_size=30))
def test_the_maximum_of_recent_values(steps: list[tuple[int, int]]) -> None:
    recent, seen, now = RecentMaximum(60), [(0, 0)], 0
    assert recent.value == 0
    for step, value in steps:
        now += step
        seen.append((now, value))
        recent.add(now, value)
        assert recent.value == max(0, *(value for moment, value in seen if now - moment <= 60))


@pytest.mark.live
def test_each_scrape_reports_a_delay_of_the_loop() -> None:
    """Also those after the one that waited for the blocked loop, which its Prometheus may have given up."""
    monitor = Monitor("127.0.0.1", 0, [Source()])

    async def reported() -> float:
        families = text_string_to_metric_families((await monitor.metrics()).body.decode())
        return next(family.samples[0].value for family in families if family.name == "rocket_loop_delay_seconds")

    async def main() -> None:
        await monitor.start()
        try:
            time.sleep(0.5)  # blocks the loop  # noqa: ASYNC251
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # the check of the delay was due
            assert min([await reported() for _ in range(3)]) >= 0.25
        finally:
            await monitor.close()

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.live
def test_health_and_readiness() -> None:
    source = Source()
    monitor = Monitor("127.0.0.1", 0, [source])

    async def main() -> None:
        await monitor.start()
        try:
            ready = await monitor.ready()
            assert (ready.status, json.loads(ready.body)) == (200, {"status": "UP", "reasons": [], "broker": "one"})
            source.reasons = ["the disk is full"]
            down = await monitor.ready()
            assert (down.status, json.loads(down.body)["reasons"]) == (503, ["the disk is full"])
            health = await monitor.health()
            assert (health.status, json.loads(health.body)) == (200, {"status": "UP", "broker": "one"})
            names = {family.name for family in text_string_to_metric_families((await monitor.metrics()).body.decode())}
            assert {metric.name.removesuffix("_total") for metric in MONITOR_METRICS} <= names
        finally:
            await monitor.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_server_without_load_has_each_kind_of_requests_at_0() -> None:
    exposition = Exposition(OVERLOAD_METRICS)
    add_overload(exposition, 'node_id="a"', OverloadStats(), 0, ("send", "pull"))
    families = {family.name: family for family in text_string_to_metric_families(exposition.render().decode())}
    for name in ("rocketmq_processor_watermark", "rocket_requests_refused"):
        samples = families[name].samples
        assert {sample.labels["processor"] for sample in samples} == {"send", "pull"}
        assert {sample.value for sample in samples} == {0}
