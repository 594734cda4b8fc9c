"""Check of the timer's files: timer log, wheel and ``timercheck`` must match each other and the commit log.

Checks the data that the next start relies on: the flushed units, their links from the read time on, and the wheel,
which Apache's broker trusts. Read-only.
"""

from __future__ import annotations

import numpy as np

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.delay.timer_checkpoint import TimerCheckpoint
from spark_rocket.store.delay.timer_log import TimerLog
from spark_rocket.store.delay.timer_wheel import TimerLogDamageError, TimerWheel, build_slots, find_end
from spark_rocket.store.problems import ProblemKind, StoreProblem

_PRECISIONS = (1_000, 500, 200, 100)


def check_timer(config: StoreConfig, max_physical_offset: int, *, is_killed: bool = False) -> list[StoreProblem]:
    """Return all problems of the timer's files of a stopped store."""
    checkpoint = TimerCheckpoint(config.store_path)
    log = TimerLog(config.store_path / "timerlog", _file_size(config))
    wheel = TimerWheel(config.store_path / "timerwheel", _PRECISIONS[0], config.timer_wheel_slots)
    size = wheel.path.stat().st_size if wheel.path.exists() else 0
    problems: list[StoreProblem] = []
    try:
        checkpoint.load()
    except StoreCorruptError as error:
        problems.append(StoreProblem(ProblemKind.TIMER, checkpoint.path, error.message))
    try:
        log.load()
    except StoreCorruptError as error:
        return [*problems, StoreProblem(ProblemKind.TIMER, log.files.directory, error.message)]
    if size not in (0, wheel.size):
        problems.append(StoreProblem(ProblemKind.TIMER, wheel.path, f"it has {size} bytes, not {wheel.size}"))
    flushed = checkpoint.last_timer_log_flush_pos
    if flushed < log.files.min_offset:
        log.close()
        return problems  # it is being rebuilt from the queue
    try:
        find_end(log, flushed, max_physical_offset, 0, lambda offset, size_py: -1)
        log.position = flushed
        problems += _check_wheel(
            log, wheel, checkpoint.last_read_time_ms, is_readable=size == wheel.size and not is_killed
        )
    except TimerLogDamageError as damage:
        problems.append(StoreProblem(ProblemKind.TIMER, log.files.directory, str(damage)))
    log.close()
    return problems


def _file_size(config: StoreConfig) -> int:
    """Return the largest size of the files, since it may be unknown without a broker.conf."""
    directory = config.store_path / "timerlog"
    sizes = [path.stat().st_size for path in directory.iterdir() if path.is_file()] if directory.is_dir() else []
    return max(sizes, default=0) or config.mapped_file_size_timer_log


def _check_wheel(log: TimerLog, wheel: TimerWheel, read_time: int, *, is_readable: bool) -> list[StoreProblem]:
    """Compare the wheel with one derived from the log. Its precision can only be derived from both together."""
    if not log.files.files:
        return []
    found: list[StoreProblem] = []
    for precision in _PRECISIONS:
        try:
            slots = build_slots(log, read_time // precision * precision, precision, wheel.count)
        except TimerLogDamageError as damage:
            found = found or [StoreProblem(ProblemKind.TIMER, log.files.directory, str(damage))]
            continue
        used = np.flatnonzero(slots["time"])
        if not len(used) or not is_readable:
            return []
        there = wheel.read_all()[used]
        wrong = np.flatnonzero((there["time"] != slots["time"][used]) | (there["last"] < slots["last"][used]))
        if not len(wrong):
            return []
        if not found:
            time = int(slots["time"][used][wrong[0]]) * precision
            found = [
                StoreProblem(
                    ProblemKind.TIMER, wheel.path, f"{len(wrong)} slots do not lead to their units, one is of {time}"
                )
            ]
    return found
