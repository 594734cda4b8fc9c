"""How many cores there are for us: with one, whoever spins keeps the peer from the answer that he waits for."""

from __future__ import annotations

import os


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
