"""RocketMQ topics in PySpark: a data source, a client and a RocketMQ-compatible name server and broker."""

__version__ = "0.1.0"
