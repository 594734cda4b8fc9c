"""What crosses between Spark's processes: objects, errors, and the settings of a Python worker.

Objects: the source, readers and writers are pickled by reference to their class, so a worker without the package
could only say ``No module named 'spark_rocket'``. A ``PickledByValue`` is pickled as a call of a small function,
which is pickled by value: it needs nothing of this package to run. It also looks for the package among the files that
Spark sent, because Spark itself puts them on the path only for formats that were registered later. A stream's files
are looked for in a directory of the session's own, which has those of addArtifact; those of --py-files lie one above.
If the package is missing, the error names the machine, its Python and the remedy.

Errors: Spark shows the whole traceback of a data source's error, and the error itself last. A ``RocketError`` names the
option, queue or topic and says what to do, so its traceback is only logged, at DEBUG. Other errors keep theirs.

Safe from any thread. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import gc
import logging
import pickle
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from pyspark import cloudpickle

from spark_rocket.errors import RocketError

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("spark_rocket.datasource")


def short(method: Callable[P, T]) -> Callable[P, T]:
    """For methods that Spark calls."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except RocketError as error:
            log.debug("%s", error, exc_info=True)
            raise error.with_traceback(None) from None

    return called


def short_while(values: Iterator[T]) -> Iterator[T]:
    """For what a task reads."""
    try:
        yield from values
    except RocketError as error:
        log.debug("%s", error, exc_info=True)
        raise error.with_traceback(None) from None


@cache
def settle_worker() -> None:
    """Set up a Python worker of Spark's, once. Each task calls this before it reads or writes.

    Spark's workers collect garbage after every task, which visits each object of every loaded module: 57,000 and more,
    20 ms of a core; a small task takes 5 ms. Those objects stay as long as the process, so the collector is told to
    leave them alone. Freed memory is kept for the next large answer.
    """
    from spark_rocket.system import keep_freed_memory

    keep_freed_memory()
    gc.freeze()


# Source, run with "__main__" for its module: cloudpickle carries the functions of that module by value.
_UNPACK = """
def unpack(packed):
    try:
        import spark_rocket.datasource.source
    except ImportError as missing:
        import glob
        import importlib
        import os
        import sys

        from pyspark import SparkFiles

        here = SparkFiles.getRootDirectory()
        for directory in (here, os.path.dirname(here)):
            sys.path[1:1] = sorted(glob.glob(os.path.join(directory, "spark_rocket*.zip")))
        importlib.invalidate_caches()
        try:
            import spark_rocket.datasource.source
        except ImportError as still_missing:
            import platform

            raise ImportError(
                "format(\\"rocket\\") cannot run on the worker %s: %s (Python %s, %s). Install spark-rocket there, "
                "or take it along: `rocket package` writes spark_rocket.zip for spark-submit --py-files and "
                "spark.addArtifact(..., pyfile=True); or set PYSPARK_PYTHON to a Python that has it."
                % (platform.node(), still_missing, platform.python_version(), sys.executable)
            ) from None
    import pickle

    kind, state = pickle.loads(packed)
    unpacked = kind.__new__(kind)
    unpacked.__dict__.update(state)
    return unpacked
"""


def _carried_by_value() -> Callable[[bytes], Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(_UNPACK, namespace)
    unpack: Callable[[bytes], Any] = namespace["unpack"]
    return unpack


_unpack = _carried_by_value()


class _Unpacking:
    """To unpickle it is to call the function; only cloudpickle can write it."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _unpack, (self._packed,)


class PickledByValue:
    """Mixed into what is carried. ``__getstate__`` says what goes along, as ever."""

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        packed = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return pickle.loads, (cloudpickle.dumps(_Unpacking(packed)),)  # type: ignore[no-untyped-call]
