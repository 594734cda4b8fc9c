"""For all tests. Spark's JVMs live for seconds here: its second compiler and its parallel collector only cost time.

``make test`` runs three workers on two cores, since much of what tests do is waiting for other processes. No more:
Spark gives a Python worker ten seconds to start. A file's tests stay on one worker, and so do all of the Spark session,
and all of the console's pages. What takes longest is begun first.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.sampling import ALL, SEED, chosen, named_files, part
from tests.kit.tiers import Guard, mark

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# A shell starts its background jobs with SIGINT ignored, and so would be the processes that tests end with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A test without settings tries 30 examples. How long one takes says little on a shared machine.
settings.register_profile("tests", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# What begins first; the tests of the Spark session take longest.
_LONG = (
    "tests/spark/",
    "tests/jobs/",
    "tests/repository/test_site.py",
    "tests/cluster/",
    "tests/proxy/",
    "tests/client/",
    "tests/store/",
    "tests/broker/",
    "tests/crash/",
)


#: What shares a Spark session, whose start costs 20 seconds of CPU time, or a browser, which costs two.
_SHARING = ("tests/spark/", "tests/console/test_browser")


def _group(nodeid: str) -> str:
    """What runs on one worker, in order: a file, or all that shares something."""
    return next((start for start in _SHARING if nodeid.startswith(start)), nodeid.partition("::")[0])


def _place(nodeid: str) -> int:
    """The lower, the earlier."""
    return next((number for number, start in enumerate(_LONG) if nodeid.startswith(start)), len(_LONG))


_ASYNC_TEST_TIMEOUT_S = 120


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """Run an ``async def`` test on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), _ASYNC_TEST_TIMEOUT_S))
    return True


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Report what a long test measured or counted: with -s at once, and in the JUnit report that make verify reads."""

    def report(text: str) -> None:
        record_property("figure", text)
        print(text, flush=True)

    return report


def pytest_report_header() -> str:
    return f"SAMPLE_SEED={SEED}"


def pytest_configure(config: pytest.Config) -> None:
    if "not live" in config.option.markexpr:  # of make unit: its audit hook takes a tenth of the time of all tests
        config.pluginmanager.register(Guard())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the objects of 15,000 tests from the garbage collector, which would visit them for most of a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    mark(item)
    if ALL and part(item.nodeid):
        item.add_marker(pytest.mark.long)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name in ("long", "cost"):
        if not os.environ.get(name.upper()):
            items[:] = [item for item in items if item.get_closest_marker(name) is None]
    if hasattr(config, "workerinput"):
        items[:] = chosen(items, named_files(config))
        items.sort(key=lambda item: _place(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling | None:
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)
