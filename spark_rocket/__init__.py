"""RocketMQ topics in PySpark: a data source, a client and a RocketMQ-compatible name server and broker.

============  ========================================================================================================
the product   ``datasource``: ``format("rocket")`` of Spark; ``arrow``: the same topics without Spark
beside it     ``client`` for Python programs, ``cli`` (the command ``rocket``), ``console``, ``testing`` for pytest
the servers   ``namesrv``, ``broker`` with its ``store``, ``proxy`` (gRPC); ``acl``: accounts of broker and proxy
the floor     ``protocol`` (bytes), ``remoting`` (connections), ``common``, ``model``, ``errors``: all others use it
============  ========================================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_rocket.common.version import __version__

if TYPE_CHECKING:
    from spark_rocket.arrow import read_arrow
    from spark_rocket.datasource.options.listing import OptionInfo, options

__all__ = ["OptionInfo", "__version__", "options", "read_arrow"]


def __getattr__(name: str) -> Any:
    # Imported on first use: the servers and the command line start without the data source.
    if name in ("OptionInfo", "options"):
        return getattr(import_module("spark_rocket.datasource.options.listing"), name)
    if name == "read_arrow":
        from spark_rocket.common.extras import requires

        with requires("read_arrow", "arrow"):
            return import_module("spark_rocket.arrow").read_arrow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
