"""Connections: RocketMQ's remoting protocol on sockets, for clients and servers, and HTTP for metrics and health."""

from spark_rocket.system import check_system

check_system()
