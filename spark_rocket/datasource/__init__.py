"""``format("rocket")`` for Spark, a listener that logs the lag of its streams, and the line of a query's error.

The names are loaded on first use, because two import PySpark: the command line uses modules of this package that do not
need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_rocket.common.extras import requires

if TYPE_CHECKING:
    from spark_rocket.datasource.query_errors import error_line
    from spark_rocket.datasource.source import RocketDataSource
    from spark_rocket.datasource.views.lag_listener import RocketLagListener

__all__ = ["RocketDataSource", "RocketLagListener", "error_line"]

_MODULES = {
    "RocketDataSource": "spark_rocket.datasource.source",
    "RocketLagListener": "spark_rocket.datasource.views.lag_listener",
    "error_line": "spark_rocket.datasource.query_errors",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        with requires(name, "spark"):
            return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
