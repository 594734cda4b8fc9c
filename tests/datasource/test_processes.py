"""Spark's processes: settings of a worker, and errors without internal stack frames."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import traceback
import weakref
from collections.abc import Iterator

import pytest
from pyspark import cloudpickle

from spark_rocket.datasource import RocketDataSource
from spark_rocket.datasource.processes import hide_traceback, hide_traceback_while
from spark_rocket.errors import OptionError, RecordError


class Ring:
    """A reference cycle that only the garbage collector frees."""

    def __init__(self) -> None:
        self.own = self


def test_existing_objects_are_frozen_and_new_ones_collected() -> None:
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


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_an_option_error_has_one_stack_frame(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "spark_rocket.datasource"), pytest.raises(OptionError) as caught:
        RocketDataSource({"subscribe": "orders", "startingofsets": "latest"}).schema()
    assert frames(caught.value)[1:] == ["called"]
    assert caught.value.__suppress_context__
    assert "parse_given" in caplog.text, "where it was found is in the log"


def test_an_error_in_a_task_has_one_stack_frame() -> None:
    def deep(count: int) -> None:
        if not count:
            raise RecordError("the message cannot be decoded")
        deep(count - 1)

    def rows() -> Iterator[int]:
        yield 1
        deep(5)

    read = hide_traceback_while(rows())
    assert next(read) == 1
    with pytest.raises(RecordError) as caught:
        next(read)
    assert frames(caught.value)[1:] == ["hide_traceback_while"]


def test_an_internal_error_keeps_its_stack_frames() -> None:
    @hide_traceback
    def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        broken()
    assert frames(caught.value)[1:] == ["called", "broken"]


_FIRST_UNPICKLING = """
import gc, sys
import pyspark.cloudpickle, pyspark.worker
full = []
gc.callbacks.append(lambda phase, info: full.append(len(gc.get_objects())) if info["generation"] == 2 else None)
packed = bytes.fromhex(sys.argv[1])
pyspark.cloudpickle.loads(packed)
frozen = gc.get_freeze_count()
pyspark.cloudpickle.loads(packed)
print(frozen > 10_000, gc.get_freeze_count() == frozen, max(full, default=0) < 10_000)
"""


@pytest.mark.live
def test_a_new_process_freezes_the_objects_of_pyspark_once() -> None:
    packed = cloudpickle.dumps(RocketDataSource({"subscribe": "orders"}))  # type: ignore[no-untyped-call]
    command = [sys.executable, "-c", _FIRST_UNPICKLING, packed.hex()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["True"] * 3
