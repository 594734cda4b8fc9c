"""``/metrics``, ``/health`` and ``/ready`` of a server process.

``/metrics``: the Prometheus text, collected on request. A source's ``collect`` is an iterator that yields as often as
it can. Collection runs for ``SLICE_SECONDS`` at a time, so that requests wait no longer than that. Concurrent scrapes
share one collection.

``/health`` is 200 as long as the loop responds. ``/ready`` is 200 when no source reports a problem, otherwise 503. Both
are JSON: ``{"status": "UP"}``, ``{"status": "DOWN", "reasons": ["…"], …}``.

Corresponds to BrokerMetricsManager's PrometheusHttpServer; Apache has no health endpoint. health.
"""

from __future__ import annotations

import asyncio
import ssl as ssl_module
import time
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from http import HTTPStatus
from typing import Any, Protocol

import spark_rocket
from spark_rocket.remoting.exposition import (
    CONTENT_TYPE,
    GAUGE,
    PROCESS_METRICS,
    Exposition,
    Metric,
    add_process,
    label_text,
)
from spark_rocket.remoting.http.http_server import HttpResponse, HttpServer

SLICE_SECONDS = 0.002
_CHECK_SECONDS = 0.25
DELAY_SECONDS = 60.0
"""How long a delay is reported: also to the scrapes after one that timed out because of it, and to other scrapers."""

_NODE = ("cluster", "node_type", "node_id")
MONITOR_METRICS = (
    Metric("rocket_build_info", GAUGE, "Always 1; the label is the running version.", "own", (*_NODE, "version")),
    Metric("rocket_start_time_seconds", GAUGE, "Start time of the endpoint, seconds since the epoch.", "own", _NODE),
    Metric("rocket_ready", GAUGE, "1 if /ready returns 200.", "own", _NODE),
    Metric("rocket_loop_delay_seconds", GAUGE, "Longest event loop delay of the last minute.", "own", _NODE),
    Metric("rocket_scrape_seconds", GAUGE, "Collection time of the previous scrape.", "own", _NODE),
    *PROCESS_METRICS,
)


class MetricsExporterType(Enum):
    """The metrics exporter: PROM serves metricsPromExporterPort. Apache's OTLP_GRPC and LOG are not supported."""

    DISABLE = "DISABLE"
    OTLP_GRPC = "OTLP_GRPC"
    PROM = "PROM"
    LOG = "LOG"


class MetricsSource(Protocol):
    """A server of this process."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """The metrics that it may have samples of."""

    def node_labels(self) -> dict[str, object]:
        """The labels of all its samples: ``cluster``, ``node_type``, ``node_id``."""

    def collect(self, exposition: Exposition) -> Iterator[None]:
        """Add its samples, and yield wherever other tasks may run."""

    def problems(self) -> list[str]:
        """Return the reasons why it should get no requests now; empty if it is ready."""

    def facts(self) -> dict[str, Any]:
        """Return further values for /health and /ready."""


class RecentMaximum:
    """The largest value, at least 0, that was added in the ``seconds`` before the newest one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, float]] = deque()  # each value is larger than all later ones

    def add(self, now: float, value: float) -> None:
        seen = self._seen
        while seen and seen[-1][1] <= value:
            seen.pop()
        seen.append((now, value))
        while now - seen[0][0] > self._seconds:
            seen.popleft()

    @property
    def value(self) -> float:
        return max(self._seen[0][1], 0.0) if self._seen else 0.0


class Monitor:
    """Serves the metrics of the sources. The first source's labels are those of the process."""

    def __init__(
        self, host: str, port: int, sources: Sequence[MetricsSource], *, ssl: ssl_module.SSLContext | None = None
    ) -> None:
        self._sources = list(sources)
        routes = {"/metrics": self.metrics, "/health": self.health, "/ready": self.ready}
        self._server = HttpServer(host, port, routes, name="metrics endpoint", ssl=ssl)
        self._collecting: asyncio.Task[bytes] | None = None
        self._started = time.time()
        self._delay = RecentMaximum(DELAY_SECONDS)
        self._checked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._took = 0.0

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return self._server.url

    async def start(self) -> None:
        """Listen. ConfigError if the port is in use."""
        await self._server.start()
        self._checked_at = asyncio.get_running_loop().time()
        self._check_delay()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._server.close()
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)

    def _check_delay(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._delay.add(now, now - self._checked_at)
        self._checked_at = now + _CHECK_SECONDS
        self._timer = loop.call_at(self._checked_at, self._check_delay)

    # --- paths --------------------------------------------------------------------------------------------------

    async def metrics(self) -> HttpResponse:
        if self._collecting is None:
            self._collecting = asyncio.ensure_future(self._collect())
            self._collecting.add_done_callback(self._collected)
        return HttpResponse(await asyncio.shield(self._collecting), CONTENT_TYPE)

    def _collected(self, task: asyncio.Task[bytes]) -> None:
        self._collecting = None

    async def _collect(self) -> bytes:
        started = time.perf_counter()
        exposition = Exposition([*MONITOR_METRICS, *(metric for one in self._sources for metric in one.metrics)])
        labels = label_text(self._sources[0].node_labels())
        exposition.add("rocket_build_info", f'{labels},version="{spark_rocket.__version__}"', 1)
        exposition.add("rocket_start_time_seconds", labels, self._started)
        exposition.add("rocket_ready", labels, int(not self._problems()))
        exposition.add("rocket_loop_delay_seconds", labels, self._delay.value)
        exposition.add("rocket_scrape_seconds", labels, self._took)
        add_process(exposition, labels)
        parts: list[bytes] = []
        until = time.perf_counter() + SLICE_SECONDS
        for _ in self._steps(exposition, parts):
            if time.perf_counter() >= until:
                await asyncio.sleep(0)
                until = time.perf_counter() + SLICE_SECONDS
        self._took = time.perf_counter() - started
        return b"".join(parts)

    def _steps(self, exposition: Exposition, parts: list[bytes]) -> Iterator[None]:
        for source in self._sources:
            yield from source.collect(exposition)
        for part in exposition.parts():
            parts.append(part)
            yield

    async def health(self) -> HttpResponse:
        return HttpResponse.of_json({"status": "UP", **self._facts()})

    async def ready(self) -> HttpResponse:
        problems = self._problems()
        if not problems:
            return HttpResponse.of_json({"status": "UP", "reasons": [], **self._facts()})
        down = {"status": "DOWN", "reasons": problems, **self._facts()}
        return HttpResponse.of_json(down, HTTPStatus.SERVICE_UNAVAILABLE)

    def _problems(self) -> list[str]:
        return [problem for source in self._sources for problem in source.problems()]

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for source in self._sources:
            facts.update(source.facts())
        return facts
