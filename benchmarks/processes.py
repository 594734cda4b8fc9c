"""CPU time of other processes, from Linux's /proc."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid: int | str) -> list[str]:
    """Return the fields of a process from its state on: 1 is the parent, 11 to 14 are CPU times."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, without its children."""
    times = _stat(pid)
    return (int(times[11]) + int(times[12])) / _TICKS


def descendants_cpu_seconds(pid: int) -> float:
    """Return the CPU time of all descendants of a process, also of those that have ended and were waited for.

    While they are listed, a process may end, and its parent, which has its time from then on, was listed before it. Its
    time is in neither. So they are listed until the same processes were there twice.
    """
    before: dict[int, int] = {}
    times = _descendants(pid)
    while before.keys() != times.keys():
        before, times = times, _descendants(pid)
    return sum(times.values()) / _TICKS


def _descendants(pid: int) -> dict[int, int]:
    """Return the ticks of each descendant, with those of its children that have ended; of ``pid``, only the latter."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = _stat(path.name)
        except OSError:  # it ended
            continue
        parents[int(path.name)] = int(fields[1])
        times[int(path.name)] = [int(field) for field in fields[11:15]]
    below = {pid: sum(times[pid][2:])}
    while found := {child for child, parent in parents.items() if parent in below and child not in below}:
        below |= {child: sum(times[child]) for child in found}
    return below


def child_named(name: str) -> int:
    """Return a child of this process."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(_stat(path.name)[1]) == os.getpid() and (path / "comm").read_text().strip() == name:
                return int(path.name)
        except OSError:
            continue
    raise LookupError(f"no child is named {name}")
