"""Pickling, errors and worker settings for the processes that Spark starts.

Pickling: by default the source, readers and writers are pickled by reference to their class. A worker without the
package would fail with ``No module named 'spark_rocket'`` only. A ``PickledByValue`` is pickled as a call of a small
function that is itself pickled by value and needs nothing from this package. The function also searches for the
package among the files that Spark distributed, because Spark adds them to the path only for formats that were
registered later. A streaming query has a file directory per session, which holds the files of addArtifact; the
files of --py-files are in its parent. If the package is missing, the error names the machine, its Python and the
remedy.

Errors: Spark prints the complete traceback of a data source's error, and the error itself last. A ``RocketError``
names the option, queue or topic and the remedy, so its traceback is only logged, at DEBUG. Names in its
message have no namespace. Other errors stay as they are.

Safe from any thread.
"""

from __future__ import annotations

import gc
import logging
import pickle
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from pyspark import cloudpickle

from spark_rocket.common.extras import requires
from spark_rocket.errors import RocketError
from spark_rocket.protocol.namespace import NO_NAMESPACE, Namespace

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("spark_rocket.datasource")


def hide_traceback(method: Callable[P, T]) -> Callable[P, T]:
    """Drop the traceback of a RocketError, and report missing packages. For methods that Spark calls."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with requires('format("rocket")', "arrow"):
                return method(*args, **kwargs)
        except RocketError as error:
            options = getattr(args[0] if args else None, "_options", None)  # of a reader or writer
            raise _shown(error, getattr(options, "namespace", NO_NAMESPACE)) from None

    return called


def hide_traceback_while(values: Iterator[T], namespace: Namespace = NO_NAMESPACE) -> Iterator[T]:
    """Drop the traceback of a RocketError. For the rows that a task reads."""
    try:
        yield from values
    except RocketError as error:
        raise _shown(error, namespace) from None


def _shown(error: RocketError, namespace: Namespace) -> RocketError:
    """Return an error for Spark: without its traceback, and without the namespace in the names of its message.

    The remedy keeps it, because its commands must work without that option.
    """
    log.debug("%s", error, exc_info=True)
    error.message = namespace.unwrap_text(error.message)
    return error.with_traceback(None)


@cache
def settle_worker() -> None:
    """Configure a Python worker of Spark, once. Each task calls this before it reads or writes.

    Spark's workers run the garbage collector after every task. It visits every object of every loaded module: 57,000
    or more, 20 ms of CPU time, while a small task takes 5 ms. These objects live as long as the process, so they are
    excluded from collection. Freed memory stays in the process for the next large response.
    """
    from spark_rocket.common.system import keep_freed_memory

    keep_freed_memory()
    gc.freeze()


# Source text, run as module "__main__": cloudpickle pickles functions of that module by value.
_UNPACK = """
def unpack(packed):
    import gc
    import sys

    if "spark_rocket.datasource.source" not in sys.modules:
        gc.freeze()  # else importing the package starts a collection of all objects of PySpark: 15 ms of CPU
    try:
        import spark_rocket.datasource.source
    except ImportError as missing:
        import glob
        import importlib
        import os

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
                "or ship it with the job: `rocket package` writes spark_rocket.zip for spark-submit --py-files and "
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
    """Unpickles as a call of ``_unpack``. Only cloudpickle can pickle it."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _unpack, (self._packed,)


class PickledByValue:
    """Mixin for objects that Spark pickles. ``__getstate__`` selects the pickled state, as usual."""

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        packed = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return pickle.loads, (cloudpickle.dumps(_Unpacking(packed)),)  # type: ignore[no-untyped-call]
