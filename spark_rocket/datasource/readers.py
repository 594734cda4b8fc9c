"""This process's readers of a cluster: planning, tasks and views share one for each name server and its settings.

Pulls and queries name a group, which needs a permission where brokers have accounts: ``consumerGroup`` if it is set,
otherwise ``spark_rocket_reader``.

Python workers are reused, so the clients are cached for the next task. The client itself handles forks.

Safe from any thread. Nothing here needs ``close``: Spark kills workers without notice, and brokers drop dead
connections themselves.
"""

from __future__ import annotations

import socket
from functools import cache

from spark_rocket.client.consume.reader import Reader
from spark_rocket.datasource.options.connection import ClusterConnection
from spark_rocket.datasource.options.options import ReadOptions, ViewOptions
from spark_rocket.errors import RemotingConnectError, RocketError
from spark_rocket.model import READER_GROUP, MessageQueue


def explained(error: RocketError, queue: MessageQueue, reader: Reader) -> RocketError:
    """Add the broker's name and the source of its address to a connection error."""
    prefix = f"broker {queue.broker_name} cannot be reached from {socket.gethostname()}: "
    if isinstance(error, RemotingConnectError) and not error.message.startswith(prefix):
        error.message = prefix + error.message
        error.remedy = (
            f"Name server {reader.name_server} returned this address. Start the broker if it is down. If it runs, set "
            "brokerIP1 to an address that driver and executors can reach, or map its address with the option "
            "addressMap (ADVERTISED=REACHABLE), and open its port to them. If it accepts TLS connections only, set "
            "tls=true."
        )
    return error


def reader_of(options: ReadOptions | ViewOptions) -> Reader:
    """Return this process's reader for a name server, shared by its tasks."""
    group = options.consumer_group or options.namespace.wrap(READER_GROUP)
    return _reader(options.name_server, group, options.request_timeout_ms, options.connection)


@cache
def _reader(name_server: str, group: str, request_timeout_ms: int, connection: ClusterConnection) -> Reader:
    return Reader(name_server, group=group, request_timeout=request_timeout_ms / 1000, **connection.arguments())
