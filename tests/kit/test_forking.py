"""A child that hangs fails its test in time."""

from __future__ import annotations

import faulthandler
import os
import threading

import pytest

from tests.kit.forking import in_child

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def hang() -> None:
    faulthandler.disable()  # it would print this process's threads among the results
    threading.Event().wait()


def test_a_childs_result_is_that_of_its_check() -> None:
    in_child(lambda: True)
    for check in (lambda: False, lambda: 1 / 0, lambda: os._exit(3)):
        with pytest.raises(AssertionError, match=r"the child's status is [13]"):
            in_child(check)


def test_a_child_that_hangs_is_ended() -> None:
    with pytest.raises(AssertionError, match="the child did not end within 0 s"):
        in_child(hang, 0.2)


def test_a_child_that_hangs_in_a_handler_of_the_fork_is_ended() -> None:
    """The handler has no effect on the forks of other tests."""
    handlers = [hang]
    os.register_at_fork(after_in_child=lambda: [handler() for handler in handlers])
    with pytest.raises(AssertionError, match="the child did not end within 0 s"):
        in_child(lambda: True, 0.2)
    handlers.clear()
    in_child(lambda: True)
