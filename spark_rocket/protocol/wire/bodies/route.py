"""Routes of topics: registrations of brokers at name servers, and the responses to queries.

Corresponds to remoting.protocol.route and remoting.protocol.body.{ClusterInfo, TopicList, KVTable, BrokerMemberGroup}.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.codes import PERM_READ, PERM_WRITE

MASTER_ID = 0
MAX_QUEUES = 65_536  # of a topic on one broker
MAX_ROUTE_QUEUES = 131_072  # of a topic on all brokers


@dataclass(slots=True, eq=False, repr=False)
class QueueData(Body):
    """The queues of one topic on one broker."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0

    @property
    def readable(self) -> bool:
        return self.perm & PERM_READ != 0

    @property
    def writable(self) -> bool:
        return self.perm & PERM_WRITE != 0


@dataclass(slots=True, eq=False, repr=False)
class BrokerData(Body):
    """A broker name and its addresses: 0 is the master, others are slaves."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool | None = None

    @property
    def master_addr(self) -> str | None:
        return self.broker_addrs.get(MASTER_ID)

    def select_addr(self) -> str | None:
        """Return the master, or without one the slave with the lowest id."""
        return self.broker_addrs[min(self.broker_addrs)] if self.broker_addrs else None


@dataclass(slots=True, eq=False, repr=False)
class TopicRouteData(Body):
    """Response to GET_ROUTEINFO_BY_TOPIC. Write ``to_json(standard=True)`` for clients of version 401 and above."""

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    topic_queue_mapping_by_broker: object | None = None

    def check_queues(self, topic: str) -> None:
        """Raise ProtocolError for a route with so many queues that a list of them would be too large."""
        count = sum(max(queues.read_queue_nums, queues.write_queue_nums, 0) for queues in self.queue_datas)
        if count > MAX_ROUTE_QUEUES:
            raise ProtocolError(
                f"The route of topic {topic} has {count:,} queues; at most {MAX_ROUTE_QUEUES:,} are supported.",
                remedy=f"Remove the broker that registered it wrongly: rocket topic route {topic}",
            )


@dataclass(slots=True, eq=False, repr=False)
class ClusterInfo(Body):
    """Response to GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class TopicList(Body):
    """Names of topics."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class KVTable(Body):
    """Names and values: a namespace of the name server's KV configuration, a broker's runtime information."""

    table: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class BrokerMemberGroup(Body):
    """The live members of one broker name."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class GetBrokerMemberGroupResponseBody(Body):
    """Response to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMemberGroup | None = None
