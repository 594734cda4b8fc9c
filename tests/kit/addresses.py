"""A broker that advertises an address at which nothing listens, as one behind NAT or in a container does."""

from __future__ import annotations

from spark_rocket.testing import LocalCluster

ADVERTISED_HOST = "127.0.0.99"


def unreachable_broker() -> LocalCluster:
    """Return a cluster, not started, whose broker is reached at 127.0.0.1 and advertises ``ADVERTISED_HOST``."""
    return LocalCluster(config={"brokerIP1": ADVERTISED_HOST}, in_process=True)


def address_map(cluster: LocalCluster) -> str:
    """Return the map with the broker's address alone."""
    port = cluster.broker_address.rpartition(":")[2]
    return f"{ADVERTISED_HOST}:{port}=127.0.0.1:{port}"
