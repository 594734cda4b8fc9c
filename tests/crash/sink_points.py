"""Points at which processes of the exactly-once sink are killed, and the ways.

A *plan* is a file ``NUMBER POINT COUNT VICTIM`` in a directory. A process that comes to POINT the COUNTth time while no
plan with a lower number is left marks the plan as done by giving it another name, and the victim ends. So each happens
once, whatever is started again later. Victims:

==========  ==========================================================================================================
``self``    this process, a task or ``commit``, is killed
``driver``  the driver is killed, and this process
``stop``    this process is stopped (SIGSTOP) until it gets SIGCONT
``broker``  this process waits until the test has killed a broker
==========  ==========================================================================================================
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

TASK_POINTS = ("a block is staged", "a block was staged", "the task is done")
DECIDE_POINTS = ("before PREPARED", "PREPARED is sent", "after PREPARED", "it is remembered")
PUBLISH_POINTS = (
    "before a block",
    "a block is sent",
    "a block is in flight",
    "a block was sent",
    "before DONE",
    "DONE is sent",
    "after DONE",
)
RESUME_POINTS = ("before RESUMED", "RESUMED is sent", "it is read back", "it was read back")
POINTS = TASK_POINTS + DECIDE_POINTS + PUBLISH_POINTS + RESUME_POINTS
VICTIMS = ("self", "driver", "stop", "broker")


def plan(directory: Path, number: int, point: str, victim: str, count: int = 1) -> None:
    assert point in POINTS, point
    assert victim in VICTIMS, victim
    hidden = directory / f".{number:04}"
    hidden.write_text("")
    hidden.rename(directory / f"{number:04} {count} {victim} {point}.plan")


def plans(directory: Path, state: str = "plan") -> list[Path]:
    return sorted(directory.glob(f"*.{state}"))


class Points:
    """The points that one process passes."""

    def __init__(self, directory: Path, kill_driver: Callable[[], None]) -> None:
        self._directory = directory
        self._kill_driver = kill_driver
        self._passed: Counter[str] = Counter()

    def at(self, point: str) -> None:
        self._passed[point] += 1
        first = next(iter(plans(self._directory)), None)
        if first is None:
            return
        _, count, victim, planned = first.stem.split(" ", 3)
        if planned != point or self._passed[point] < int(count):
            return
        asked = first.with_suffix(".asked" if victim == "broker" else ".done")
        try:
            first.rename(asked)
        except FileNotFoundError:  # another process was faster
            return
        if victim == "broker":
            while asked.exists():
                time.sleep(0.005)
        elif victim == "stop":
            asked.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            if victim == "driver":
                self._kill_driver()
            os.kill(os.getpid(), signal.SIGKILL)


def install(directory: Path, kill_driver: Callable[[], None]) -> None:
    """Let this process die as planned, from its first call on."""
    if not _installed:
        _installed.append(directory)
        _install(Points(directory, kill_driver))


_installed: list[Path] = []


def _install(points: Points) -> None:
    from spark_rocket.datasource.exactly_once.commit import Commit
    from spark_rocket.datasource.exactly_once.ledger import Ledger
    from spark_rocket.datasource.exactly_once.publish import Publisher
    from spark_rocket.datasource.exactly_once.sink_brokers import Brokers
    from spark_rocket.datasource.exactly_once.staging import Stager
    from spark_rocket.datasource.write.send import Sink

    def wrap(cls: type, method: str, before: str = "", after: str = "") -> None:
        call = getattr(cls, method)

        @wraps(call)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            if before:
                points.at(before)
            result = call(self, *args, **kwargs)
            if after:
                points.at(after)
            return result

        setattr(cls, method, wrapped)

    def wrap_append() -> None:
        """The ledger's records, before they are sent, and when they are stored without a response yet."""
        send, append = Brokers.append, Ledger.append

        def sent(self: Any, queue: Any, body: bytes, **kwargs: Any) -> Any:
            result = send(self, queue, body, **kwargs)
            for kind in ("PREPARED", "RESUMED", "DONE"):
                if f'"kind":"{kind}"'.encode() in body:
                    points.at(f"{kind} is sent")
            return result

        def appended(self: Any, kind: str, *args: Any, **kwargs: Any) -> None:
            points.at(f"before {kind}")
            append(self, kind, *args, **kwargs)
            if kind != "RESUMED":
                points.at(f"after {kind}")

        Brokers.append, Ledger.append = sent, appended  # type: ignore[method-assign]

    wrap(Stager, "put", before="a block is staged")
    wrap(Stager, "_stored", after="a block was staged")
    wrap(Stager, "finish", after="the task is done")
    wrap(Ledger, "remember", after="it is remembered")
    wrap(Commit, "_resume", after="it was read back")
    wrap(Publisher, "check_staged", before="it is read back")
    wrap(Publisher, "_send", before="before a block")  # and before it sees that the epoch still is its own
    wrap(Brokers, "publish", before="a block is sent", after="a block was sent")
    wrap(Sink, "submit", after="a block is in flight")  # before the wait for the response
    wrap_append()
