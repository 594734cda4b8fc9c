"""Metrics as Prometheus reads them: its text format, version 0.0.4.

Written directly: with 1,000 topics a scrape has tens of thousands of lines, and prometheus_client takes five times as
long for one (5.3 µs beside 1.0). A test reads what is written here with that library's parser.

The metrics that a server can have are a table (:class:`Metric`), which docs/reference/metrics.md
repeats and tests compare.
Thread-safety: an exposition belongs to whoever fills it. Pure.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PART = 4_096  # lines

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name, kind, what it says, and where its name comes from."""

    name: str
    kind: str
    help: str
    origin: str
    """``5``: RocketMQ 5's brokers; ``exporter``: rocketmq-exporter; ``own``: neither has it; ``process``: usual."""
    labels: tuple[str, ...] = ()


def label_text(labels: Mapping[str, object]) -> str:
    """``a="x",b="y"``: labels as they stand between braces."""
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])


def _escaped(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text


class Exposition:
    """What one scrape is told. Metrics without a sample are left out."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._lines: dict[str, list[str]] = {name: [] for name in self._metrics}

    def lines(self, name: str) -> list[str]:
        """The samples of a metric of the table, for whoever writes very many."""
        return self._lines[name]

    def add(self, name: str, labels: str, value: float) -> None:
        """One sample; ``labels`` are a ``label_text``."""
        self._lines[name].append(f"{name}{{{labels}}} {value}")

    def add_histogram(
        self, name: str, labels: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """``counts`` has one more than ``bounds``: what is above the last."""
        lines, below = self._lines[name], 0
        for bound, count in zip(bounds, counts, strict=False):
            below += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {below}')
        below += counts[-1]
        lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {below}')
        lines.append(f"{name}_sum{{{labels}}} {total}")
        lines.append(f"{name}_count{{{labels}}} {below}")

    def parts(self) -> Iterator[bytes]:
        """The text, some thousand lines at a time."""
        for name, lines in self._lines.items():
            if lines:
                metric = self._metrics[name]
                yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n".encode()
                for start in range(0, len(lines), _PART):
                    yield ("\n".join(lines[start : start + _PART]) + "\n").encode(errors="replace")

    def render(self) -> bytes:
        return b"".join(self.parts())


# --- the process ------------------------------------------------------------------------------------------------

_NODE = ("cluster", "node_type", "node_id")
PROCESS_METRICS = (
    Metric("process_cpu_seconds_total", COUNTER, "User and system CPU time spent.", "process", _NODE),
    Metric("process_resident_memory_bytes", GAUGE, "Resident memory.", "process", _NODE),
    Metric("process_open_fds", GAUGE, "Open file descriptors.", "process", _NODE),
    Metric("process_max_fds", GAUGE, "Most file descriptors that may be open.", "process", _NODE),
)


def add_process(exposition: Exposition, labels: str) -> None:
    """The figures of this process, as every Prometheus client names them."""
    exposition.add("process_cpu_seconds_total", labels, time.process_time())
    try:
        import resource
    except ImportError:  # Windows has none of the rest
        return
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE")
        exposition.add("process_open_fds", labels, len(os.listdir("/proc/self/fd")))  # noqa: PTH208  # names alone
    except (OSError, ValueError, IndexError):  # not on Linux: the highest so far
        usage = resource.getrusage(resource.RUSAGE_SELF)
        resident = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    exposition.add("process_resident_memory_bytes", labels, resident)
    exposition.add("process_max_fds", labels, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
