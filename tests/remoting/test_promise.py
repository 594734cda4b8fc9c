"""Calls that are submitted to a thread."""

from __future__ import annotations

import threading

import pytest

from spark_rocket.remoting.client.promise import run_on, submitted
from spark_rocket.remoting.event_loop import CallbackThread


def test_calls_run_in_order_on_the_thread() -> None:
    thread, done = CallbackThread("t"), list[int]()
    promises = [submitted(thread, lambda number=number: done.append(number)) for number in range(20)]  # type: ignore[misc]
    assert run_on(thread, lambda: run_on(thread, thread.is_current))  # a call of the thread itself does not wait
    assert all(promise.done() for promise in promises)
    assert done == list(range(20))


def test_a_call_without_a_thread_runs_at_once_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the interpreter's exit no thread can be started."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    thread, done = CallbackThread("t"), list[str]()
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refused)
        run_on(thread, lambda: done.append("without"))
        with pytest.raises(ZeroDivisionError):
            run_on(thread, lambda: 1 / 0)
        assert done == ["without"]
    run_on(thread, lambda: done.append("with"))
    assert done == ["without", "with"]
