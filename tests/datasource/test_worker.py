"""What a Python worker of Spark's is told before its first task."""

from __future__ import annotations

import gc
import weakref


class Ring:
    """In a cycle with itself: only the collector finds it."""

    def __init__(self) -> None:
        self.own = self


def test_what_is_there_is_left_alone_and_what_comes_is_collected() -> None:
    from spark_rocket.datasource.processes import settle_worker

    settle_worker.cache_clear()
    gc.unfreeze()  # another test of this process may have been first
    try:
        settle_worker()
        frozen = gc.get_freeze_count()
        assert frozen > 10_000
        later = weakref.ref(Ring())
        settle_worker()  # by the next task
        gc.collect()
        assert later() is None
        assert gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()
