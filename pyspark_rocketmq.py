"""Spark finds ``format("rocketmq")`` here, as it finds ``format("rocket")`` in ``pyspark_rocket``: a name a module."""

import contextlib

with contextlib.suppress(Exception):
    from spark_rocket.datasource.source import RocketMQDataSource as DefaultSource

    __all__ = ["DefaultSource"]
