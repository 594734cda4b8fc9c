"""Metrics in the Prometheus text format, version 0.0.4.

The text is written directly, because with 1,000 topics a scrape has tens of thousands of lines, and prometheus_client
takes five times as long per line (5.3 µs instead of 1.0). A test parses the result with that library.

The metrics of a server are a table of :class:`Metric`, from which docs/reference/metrics.md is generated.
Thread-safety: an exposition has one owner. Pure.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_rocket.common.values import FrozenValue

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PART_LINES = 4_096  # lines

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Metric(FrozenValue):
    """One metric: name, kind, help text, and the origin of its name."""

    name: str
    kind: str
    help: str
    origin: str
    """``5``: RocketMQ 5's brokers; ``exporter``: rocketmq-exporter; ``own``: only here; ``process``: common."""
    labels: tuple[str, ...] = ()


def label_text(labels: Mapping[str, object]) -> str:
    """Format labels as ``a="x",b="y"``."""
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])


def _escaped(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text


class Exposition:
    """The content of one scrape. Metrics without samples are omitted."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._lines: dict[str, list[str]] = {name: [] for name in self._metrics}

    def lines(self, name: str) -> list[str]:
        """Return the list of a metric's sample lines, for writers of very many samples."""
        return self._lines[name]

    def add(self, name: str, labels: str, value: float) -> None:
        """Add a sample; ``labels`` are formatted by ``label_text``."""
        self._lines[name].append(f"{name}{{{labels}}} {value}")

    def add_histogram(
        self, name: str, labels: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """Add a histogram; ``counts`` has one more entry than ``bounds``, for values above the last."""
        lines, below = self._lines[name], 0
        for bound, count in zip(bounds, counts, strict=False):
            below += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {below}')
        below += counts[-1]
        lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {below}')
        lines.append(f"{name}_sum{{{labels}}} {total}")
        lines.append(f"{name}_count{{{labels}}} {below}")

    def parts(self) -> Iterator[bytes]:
        """Yield the text in parts of some thousand lines."""
        for name, lines in self._lines.items():
            if lines:
                metric = self._metrics[name]
                yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n".encode()
                for start in range(0, len(lines), _PART_LINES):
                    yield ("\n".join(lines[start : start + _PART_LINES]) + "\n").encode(errors="replace")

    def render(self) -> bytes:
        return b"".join(self.parts())


# --- the process ------------------------------------------------------------------------------------------------

_NODE = ("cluster", "node_type", "node_id")
PROCESS_METRICS = (
    Metric("process_cpu_seconds_total", COUNTER, "User and system CPU time spent.", "process", _NODE),
    Metric("process_resident_memory_bytes", GAUGE, "Resident memory.", "process", _NODE),
    Metric("process_open_fds", GAUGE, "Open file descriptors.", "process", _NODE),
    Metric("process_max_fds", GAUGE, "Maximum number of open file descriptors.", "process", _NODE),
)


def add_process(exposition: Exposition, labels: str) -> None:
    """Add the metrics of this process, with the common names of Prometheus clients."""
    exposition.add("process_cpu_seconds_total", labels, time.process_time())
    try:
        import resource
    except ImportError:  # not available on Windows
        return
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE")
        exposition.add("process_open_fds", labels, len(os.listdir("/proc/self/fd")))  # noqa: PTH208  # names alone
    except (OSError, ValueError, IndexError):  # not on Linux: the peak usage
        usage = resource.getrusage(resource.RUSAGE_SELF)
        resident = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    exposition.add("process_resident_memory_bytes", labels, resident)
    exposition.add("process_max_fds", labels, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
