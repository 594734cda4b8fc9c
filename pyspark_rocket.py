"""Spark finds ``format("rocket")`` here by itself: it imports every top-level module called ``pyspark_*``.

A failure here would break every Python data source of the session, so this module is small, quick and never raises.
"""

import contextlib

with contextlib.suppress(Exception):
    from spark_rocket.datasource.source import RocketDataSource as DefaultSource

    __all__ = ["DefaultSource"]
