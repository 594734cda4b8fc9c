"""Connections: RocketMQ's remoting protocol on sockets, for clients and servers, and HTTP for metrics and health.

Its objects belong to one event loop, except where a module says otherwise.
"""

from spark_rocket.common.system import check_system

check_system()
