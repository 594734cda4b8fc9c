"""Waiting in tests for what another thread or process does, where there is no event to wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LIMIT_S = 60.0
_PAUSE_S = 0.01


def until(condition: Callable[[], T | None], what: str = "") -> T:
    """Wait until the condition is true; return what it returned. ``what`` is in the error after the limit."""
    deadline = time.monotonic() + _LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {_LIMIT_S:.0f} s: {what}"
        time.sleep(_PAUSE_S)
    return found


async def until_async(condition: Callable[[], object]) -> None:
    """Wait on the event loop until the condition is true."""
    async with asyncio.timeout(_LIMIT_S):
        while not condition():  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(_PAUSE_S)
