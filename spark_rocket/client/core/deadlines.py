"""Deadlines: a public call with a timeout passes the rest of it to each of its requests.

Pure, except for the clock.
"""

from __future__ import annotations

import time


def left(deadline: float) -> float:
    """Return the remaining seconds; never 0, so that the called function raises its own timeout error."""
    return max(0.001, deadline - time.monotonic())
