"""Replication of the commit log from master to slave over the HA port."""

from spark_rocket.broker.replication.master import ReplicationMaster
from spark_rocket.broker.replication.slave import ReplicationSlave

__all__ = ["ReplicationMaster", "ReplicationSlave"]
