"""What Spark carries from the driver to the executors, and what it says where this package is missing.

The source, readers and writers are pickled by reference to their class, so a worker without the package could only
say ``No module named 'spark_rocket'``. A ``PickledByValue`` is pickled as a call of a small function, which is
carried by value: it needs nothing of ours to run. It looks for the package among the files that Spark sent too, for
Spark itself puts them on the path only for formats that were registered after, and looks for a stream's in a
directory of the session's own, which has those of addArtifact, while those of --py-files lie one above. Where there
is none it names the machine, its Python and the remedy.

Values only. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

# Source, run with "__main__" for its module: cloudpickle carries the functions of that module by value.
_UNPACK = """
def unpack(packed):
    try:
        import spark_rocket.datasource
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
            import spark_rocket.datasource
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
    traveller = kind.__new__(kind)
    traveller.__dict__.update(state)
    return traveller
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
