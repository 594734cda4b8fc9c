"""The page of the internals with the costs of all requests."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime

from spark_rocket.protocol.requests import RequestType
from tests.cost.generator import Size
from tests.cost.measuring import Cost, Costs
from tests.cost.products import IDLE_S, NAMES, Afterwards, PairsCost, reads
from tests.cost.servers import PROXY_IDLE_MS
from tests.cost.state import BulkCost, is_released

_HEAD = """# Costs of requests

For contributors. `make cost` sends hostile requests of every code, RPC and console route to servers in their own
processes, and measures
CPU time and memory from outside. The requests come from the declared types of headers, bodies and parameters
(`tests/cost`): each collection with one entry, at its bound, beyond it and as large as allowed; each number at its
extremes; long strings, and strings full of separators; names whose Java hash codes are equal; state in bulk on
connections that then close. The bounds are in `spark_rocket/protocol/requests`,
`spark_rocket/proxy/method_types.py` and `spark_rocket/console/request_limits.py`.

Allowed are 100 ms and 32 MB for a request of 1 MB, and 1 s for a full frame. CPU time has a resolution of 10 ms. It
includes the server's own timers, and what the process does after the response.

Measured on {date} at commit {commit}, on {cores} cores ({machine}), with a load average of {load}. The run writes this
page. It lists requests of 1 MB from {cpu} ms or {memory} MB, full frames from {frame} ms, and state from {held} MB.
"""
_TABLE = """## {server}

| request | worst of at most 1 MB | CPU | memory | full frame | CPU |
|---|---|---|---|---|---|
{rows}

{others}
"""
_ABOVE = """## Above the limits

{rows}
"""
_STATE = """## State in bulk

Many small requests on one connection and few large ones on another, all with new names. *Others* is the CPU time of
ten other connections that open and close meanwhile. *Kept* is the memory after both connections are closed, of state
that is released then at most two minutes later. State in brackets is not released with its connection, but limited
in all (`STATE_LIMITS`).

| request | state | sent | CPU | held | others | close | kept |
|---|---|---|---|---|---|---|---|
{rows}

{others} others hold less than {held} MB.
"""
_PROXY_STATE = """## State in bulk of the proxy

Each row is a connection of its own; all close together. A client is removed {idle} s after its last call in this run
(`grpcClientIdleTimeMills`, 120 s by default). All of it is created twice, first for caches and buffers: the rows are
the second time. *Kept* is the memory above that before, at most two minutes after the close.

| state | sent | CPU | held | close | kept |
|---|---|---|---|---|---|
{rows}
"""

_PAIRS = """## Products of names

Each of {names} groups with each of {names} topics, for every code that names both (pops twice: in order, too), one code
after the other on one broker. *Written* counts files and responses.

| request | CPU | kept | written |
|---|---|---|---|
{rows}

Afterwards, `GET /metrics` costs {metrics_cpu:.0f} ms and {metrics_memory:.0f} MB, {idle:.0f} idle seconds cost
{idle_cpu:.0f} ms and write {idle_written:.1f} MB, and {reads} of {all_reads} reads of the state are above the limits.
"""

# From where a row is listed: most requests cost next to nothing.
_LISTED_CPU_S = 0.05
_LISTED_MEMORY_MB = 5.0
_LISTED_FRAME_S = 0.1
_LISTED_STATE_MB = 10.0


@dataclass
class StateRow:
    """The state in bulk of one request code."""

    name: str
    request: RequestType
    cost: BulkCost


@dataclass
class Report:
    """What a run has measured so far."""

    requests: list[tuple[str, Costs]] = field(default_factory=list)
    state: list[StateRow] = field(default_factory=list)
    proxy_state: list[tuple[str, BulkCost]] = field(default_factory=list)
    pairs: list[PairsCost] = field(default_factory=list)
    afterwards: Afterwards | None = None
    wrong: list[str] = field(default_factory=list)
    """What is wrong with state in bulk."""

    def text(self) -> str:
        parts = [
            _HEAD.format(
                date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
                commit=f"`{_output('git', 'rev-parse', '--short=8', 'HEAD')}`",
                cores=os.cpu_count(),
                machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
                load=f"{os.getloadavg()[1]:.1f}",
                cpu=f"{_LISTED_CPU_S * 1000:.0f}",
                memory=f"{_LISTED_MEMORY_MB:.0f}",
                frame=f"{_LISTED_FRAME_S * 1000:.0f}",
                held=f"{_LISTED_STATE_MB:.0f}",
            )
        ]
        for server in dict.fromkeys(name for name, _ in self.requests):
            costs = [costs for name, costs in self.requests if name == server]
            listed = [each for each in costs if _is_listed(each)]
            rows = "\n".join(map(_row, listed))
            others = _others([each for each in costs if not _is_listed(each)])
            parts.append(_TABLE.format(server=server.capitalize(), rows=rows, others=others))
        above = [f"{costs.name}: {line}" for _, costs in self.requests for line in costs.too_much] + self.wrong
        parts.append(_ABOVE.format(rows="\n".join(f"* {line}" for line in above) or "None."))
        if self.state:
            listed_state = [row for row in self.state if row.cost.held >= _LISTED_STATE_MB]
            rows, more = "\n".join(map(_bulk_row, listed_state)), len(self.state) - len(listed_state)
            parts.append(_STATE.format(rows=rows, others=more, held=f"{_LISTED_STATE_MB:.0f}"))
        if self.afterwards is not None:
            parts.append(_pairs(self.pairs, self.afterwards))
        if self.proxy_state:
            rows = "\n".join(_proxy_row(name, cost) for name, cost in self.proxy_state)
            parts.append(_PROXY_STATE.format(rows=rows, idle=PROXY_IDLE_MS // 1000))
        return "\n".join(parts)


def _is_listed(costs: Costs) -> bool:
    small, large, most = costs.worst(Size.SMALL), costs.worst(Size.FRAME), costs.most_memory
    return (
        (small is not None and small.cpu >= _LISTED_CPU_S)
        or (large is not None and large.cpu >= _LISTED_FRAME_S)
        or (most is not None and most.memory >= _LISTED_MEMORY_MB)
    )


def _others(others: list[Costs]) -> str:
    """Summarize the requests that are not listed."""
    small = max((worst.cpu for each in others if (worst := each.worst(Size.SMALL))), default=0.0)
    large = max((worst.cpu for each in others if (worst := each.worst(Size.FRAME))), default=0.0)
    memory = max((most.memory for each in others if (most := each.most_memory)), default=0.0)
    frames = f"; full frames {large * 1000:.0f} ms" if large else ""
    return f"{len(others)} others: at most {small * 1000:.0f} ms and {memory:.0f} MB{frames}."


def _row(costs: Costs) -> str:
    small, large, most = costs.worst(Size.SMALL), costs.worst(Size.FRAME), costs.most_memory
    memory = f"{most.memory:.0f} MB" if most else ""
    return f"| {costs.name} | {_label(small)} | {_ms(small)} | {memory} | {_label(large)} | {_ms(large)} |"


def _label(cost: Cost | None) -> str:
    return "" if cost is None else cost.label.replace("|", "\\|")


def _ms(cost: Cost | None) -> str:
    return "" if cost is None else f"{cost.cpu * 1000:.0f} ms"


def _bulk_row(row: StateRow) -> str:
    names, cost = ", ".join(row.request.state), row.cost
    shown = names if is_released(row.request) else f"({names})"
    return (
        f"| {row.name} | {shown} | {cost.sent:.1f} MB | {cost.creating:.1f} s | {cost.held:.0f} MB "
        f"| {cost.others * 1000:.0f} ms | {cost.closing * 1000:.0f} ms | {cost.kept:.0f} MB |"
    )


def _pairs(pairs: list[PairsCost], after: Afterwards) -> str:
    rows = [f"| {one.name} | {one.cpu:.1f} s | {one.kept:.0f} MB | {one.written:.0f} MB |" for one in pairs]
    return _PAIRS.format(
        names=NAMES,
        rows="\n".join(rows),
        metrics_cpu=after.metrics_cpu * 1000,
        metrics_memory=after.metrics_memory,
        idle=IDLE_S,
        idle_cpu=after.idle_cpu * 1000,
        idle_written=after.idle_written,
        reads=len(after.reads),
        all_reads=len(reads()),
    )


def _proxy_row(name: str, cost: BulkCost) -> str:
    closing = f"{cost.closing * 1000:.0f} ms | {cost.kept:.0f} MB" if cost.closing else " | "
    return f"| {name} | {cost.sent:.1f} MB | {cost.creating:.1f} s | {cost.held:.0f} MB | {closing} |"


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
