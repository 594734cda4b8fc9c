"""Forked children of a test, each of which ends in time."""

from __future__ import annotations

import os
import select
import signal
import traceback
from collections.abc import Callable
from typing import NoReturn

_LIMIT_S = 90.0  # beyond that of until()


def in_child(check: Callable[[], object], limit_s: float = _LIMIT_S) -> None:
    """Run a check in a forked child; it fails unless the check returns something true.

    A child that takes longer, also one that hangs in the fork's own handlers, is aborted: pytest's fault handler then
    prints what its threads do.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _end_with(check)
    os.close(writing)
    try:
        is_ended = bool(select.select([reading], [], [], limit_s)[0])  # the child's end of the pipe is closed
        if not is_ended:
            os.kill(child, signal.SIGABRT)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(reading)
    assert is_ended, f"the child did not end within {limit_s:.0f} s"
    assert status == 0, f"the child's status is {status}"


def _end_with(check: Callable[[], object]) -> NoReturn:  # pragma: no cover - the child's coverage is not counted
    """End this process with the check's result, without its exit handlers."""
    status = 1
    try:
        status = 0 if check() else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
