"""``format("rocket")`` for Spark."""

from spark_rocket.datasource.source import RocketDataSource

__all__ = ["RocketDataSource"]
