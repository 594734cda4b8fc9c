"""Long loops on the event loop, in steps: other requests are processed in between.

The rule for processors: a loop whose length neither ``protocol.requests`` nor a constant bounds runs in steps, on a
worker thread (pure computations on copies), or examines a part and lets the next request continue. One step, one part
and one response without them may take 50 ms.

State may change between two steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from time import monotonic
from typing import TypeVar

STEP_S = 0.01

_T = TypeVar("_T")


async def in_steps(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Iterate, and let the event loop run after every ``STEP_S`` of the iteration's time.

    ``items`` must not change meanwhile: pass a copy of a collection that does.
    """
    deadline = monotonic() + STEP_S
    for item in items:
        yield item
        if monotonic() >= deadline:
            await asyncio.sleep(0)
            deadline = monotonic() + STEP_S
