"""The name server's tables of live brokers and their topics.

======================  =======================================  ============================================
table                   key -> value                             filled by
======================  =======================================  ============================================
topics                  broker name -> topic -> QueueData        a master's registration; changes of permissions
brokers                 broker name -> BrokerData                registration: id -> address, 0 the master
live                    cluster, address -> LiveBroker           registration and heartbeat; expires
connections             connection -> keys of live brokers       registration
filter servers          cluster, address -> addresses            registration
======================  =======================================  ============================================

The topic table of a registration is applied only if its data version differs from the last one, or the broker or the
topic is new: a write permission that was wiped here stays wiped while the broker repeats its registration. Topics that
are missing in a table are not removed, because brokers also send tables of a single changed topic. Topics are accepted
from masters. While a broker has no master, they are accepted from the first of its slaves, so that a restarted name
server has routes for consumers.

If two brokers have the same name and id, the first one stays registered while its connection is open and it registers
at least every 60 s, as live brokers do. The other one is refused; the error has both addresses. (With Apache's name
server the two replace each other in turn.) A newer state version wins, as after an election by Apache's controller.

What can be registered is bounded: brokers per connection and in all, the lengths of their names, and the topics (see
:mod:`spark_rocket.namesrv.topic_table`). A registration that exceeds a bound of topics keeps its broker alive and
updates the topics that fit; the response is an error that names the bound. So no broker loses its routes by it.

The removal of a broker takes constant time; :meth:`RouteInfoManager.sweep` removes the rest in limited steps.

No I/O; the clock is an argument. Not stored on disk: brokers register again every 30 seconds. Corresponds to
org.apache.rocketmq.namesrv.routeinfo.RouteInfoManager.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import RefusedError
from spark_rocket.namesrv.topic_table import TopicLimits, TopicTable
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import BROKERS
from spark_rocket.protocol.wire.bodies.config import DataVersion, TopicConfig
from spark_rocket.protocol.wire.bodies.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRouteData
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.server.channel import Channel

logger = logging.getLogger(__name__)

_Key = tuple[str, str]  # cluster and address of a broker process

DEFAULT_TIMEOUT_MS = 120_000
ALIVE_SECONDS = 60.0  # maximum interval between two registrations of a broker

# Processes: so many fit into one response to GET_BROKER_CLUSTER_INFO, or into a route. A container of RocketMQ 5
# registers its brokers over one connection.
_BROKERS = STATE_LIMITS[BROKERS]
MAX_NAME_CHARACTERS = 255
_SWEEP_ENTRIES = 2_000  # entries of removed brokers per step: about 2 ms

FLAG_UNIT = 0x1
FLAG_UNIT_SUB = 0x2


@dataclass(slots=True)
class LiveBroker:
    """A broker process with its address and its last registration or heartbeat, at ``last_update`` over ``channel``."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    last_update: float
    timeout: float  # seconds
    data_version: DataVersion | None  # None: only a part of its topics is known so far
    channel: Hashable


@dataclass(frozen=True, slots=True)
class RegistrationResponse:
    """The response to a registration."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class RouteInfoManager:
    """The tables. ``clock`` returns seconds.

    ``on_removal`` is called after the removal of a broker: ``sweep`` has work.
    """

    def __init__(self, clock: Callable[[], float], limits: TopicLimits | None = None) -> None:
        self._clock = clock
        self._often = RateLimited(logger, clock=clock)
        self._topics = TopicTable(limits)
        self._brokers: dict[str, BrokerData] = {}
        self._live: dict[_Key, LiveBroker] = {}
        self._of_channel: dict[Hashable, dict[_Key, None]] = {}
        self._filter_servers: dict[_Key, list[str]] = {}
        self.on_removal: Callable[[], None] = lambda: None

    # --- registration of brokers ------------------------------------------------------------------------------

    def register_broker(
        self,
        *,
        cluster: str,
        broker_name: str,
        broker_id: int,
        address: str,
        ha_address: str,
        topics: Mapping[str, TopicConfig],
        data_version: DataVersion,
        filter_servers: Sequence[str] = (),
        timeout_ms: int | None = None,
        enable_acting_master: bool | None = None,
        zone_name: str | None = None,
        channel: Hashable = None,
    ) -> RegistrationResponse:
        """Apply a registration. RefusedError if another broker is registered with the same name and id.

        RefusedError also if topics were omitted; the broker and its other topics are registered then.
        """
        key = (cluster, address)
        self._check_bounds(key, channel, broker_name, ha_address, zone_name or "", *filter_servers)
        broker = self._brokers.get(broker_name) or BrokerData(cluster=cluster, broker_name=broker_name, broker_addrs={})
        addresses = broker.broker_addrs
        self._take_place(broker, broker_id, cluster, address, data_version, channel)
        is_new = broker_id not in addresses
        addresses[broker_id] = address
        broker.cluster = cluster
        broker.enable_acting_master = enable_acting_master
        broker.zone_name = zone_name
        self._brokers[broker_name] = broker
        live = self._same_live(key, broker_name)
        omitted: dict[str, str] = {}
        # Slaves before 5.0, without support for acting masters, may register topics that their master has deleted.
        is_first_slave = enable_acting_master is not None and broker_id == min(addresses)
        if broker_id == MASTER_ID or is_first_slave:
            changed = is_new or live is None or live.data_version != data_version
            omitted = self._update_topics(broker_name, topics, changed)
        # After a restart of the name server, a broker's first registration may contain only one changed topic. Its
        # version must not make the complete table that follows look unchanged.
        partial = (live is None and len(topics) == 1) or bool(omitted)
        self._add_live(
            key,
            LiveBroker(
                cluster=cluster,
                broker_name=broker_name,
                broker_id=broker_id,
                address=address,
                ha_address=ha_address,
                last_update=self._clock(),
                timeout=(timeout_ms or DEFAULT_TIMEOUT_MS) / 1000,
                data_version=None if partial else data_version,
                channel=channel,
            ),
            filter_servers,
        )
        self._report(broker_name, address, omitted, channel)
        return self._master_of(cluster, broker_id, addresses)

    def _same_live(self, key: _Key, broker_name: str) -> LiveBroker | None:
        """The last registration from this address, if it had this name.

        A broker that was renamed is removed under its old name, because nothing else would remove it.
        """
        live = self._live.get(key)
        if live is None or live.broker_name == broker_name:
            return live
        self.unregister_broker(live.cluster, live.broker_name, live.broker_id, live.address)
        return None

    def _master_of(self, cluster: str, broker_id: int, addresses: Mapping[int, str]) -> RegistrationResponse:
        """The response to a broker: the master of a slave."""
        master = addresses.get(MASTER_ID)
        if broker_id == MASTER_ID or master is None:
            return RegistrationResponse()
        live = self._live.get((cluster, master))
        return RegistrationResponse(None if live is None else live.ha_address, master)

    def _take_place(
        self,
        broker: BrokerData,
        broker_id: int,
        cluster: str,
        address: str,
        data_version: DataVersion,
        channel: Hashable,
    ) -> None:
        """Remove the previous broker with the same name and id. RefusedError if it is still alive."""
        addresses = broker.broker_addrs
        holder = self._live.get((broker.cluster, addresses.get(broker_id, "")))
        if holder is not None and (holder.cluster, holder.address) == (cluster, address):
            holder = None
        if holder is not None:
            self._check_place(holder, cluster, address, data_version, channel)
        self._check_cluster(broker, broker_id, cluster, address, channel)
        if holder is not None:
            message = "broker %s, id %d, moved to %s (cluster %s) from %s (cluster %s)"
            places = (address, cluster, holder.address, holder.cluster)
            self._log(channel, logging.WARNING, message, broker.broker_name, broker_id, *places)
            self._remove_live((holder.cluster, holder.address))
        # A promoted slave, or a demoted master, was registered under another id.
        for other in [id_ for id_, known in addresses.items() if known == address and id_ != broker_id]:
            del addresses[other]

    def _check_bounds(self, key: _Key, channel: Hashable, *names: str) -> None:
        """RefusedError if a name is too long, or if there are too many brokers."""
        too_long = next((name for name in (*key, *names) if len(json.dumps(name)) - 2 > MAX_NAME_CHARACTERS), None)
        of_channel = self._of_channel.get(channel, {})
        problem = None
        if too_long is not None:
            problem = f"{too_long[:40]!r}... has more than {MAX_NAME_CHARACTERS} characters"
        elif channel is not None and key not in of_channel and len(of_channel) >= (_BROKERS.per_connection or 0):
            problem = f"{len(of_channel)} brokers are registered over this connection, which is the limit"
        elif key not in self._live and len(self._live) >= _BROKERS.total:
            problem = f"{len(self._live):,} brokers are registered, which is the limit"
        if problem is not None:
            raise RefusedError(f"Registration refused: {problem}.", response_code=ResponseCode.SYSTEM_ERROR)

    def _update_topics(self, broker_name: str, topics: Mapping[str, TopicConfig], changed: bool) -> dict[str, str]:
        """Update the queues of a broker that has changed, and add unknown topics.

        Returns the omitted ones with the reason.
        """
        omitted: dict[str, str] = {}
        for topic, config in topics.items():
            if changed or not self._topics.has(topic, broker_name):
                queues = QueueData(
                    broker_name=broker_name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm,
                    topic_sys_flag=config.topic_sys_flag,
                )
                problem = self._topics.put(topic, queues)
                if problem is not None:
                    omitted[topic] = problem
        return omitted

    def _log(self, channel: Hashable, level: int, message: str, *values: object) -> None:
        """Log what a peer can cause with each request; limited for each host."""
        peer = channel.remote_addr if isinstance(channel, Channel) else str(channel)
        self._often.peer(peer, message, *values, level=level)

    def _report(self, broker_name: str, address: str, omitted: Mapping[str, str], channel: Hashable) -> None:
        """Log and raise RefusedError if topics were omitted."""
        if not omitted:
            return
        topic, problem = next(iter(omitted.items()))
        text = f"{len(omitted):,} topics of broker {broker_name} ({address}) are not registered"
        text = f"{text}: the name server accepts no topic {topic[:80]!r} with {problem}"
        self._log(channel, logging.ERROR, "topics omitted: %s", text)
        raise RefusedError(
            f"{text}. The broker's other topics are registered.",
            response_code=ResponseCode.SYSTEM_ERROR,
            remedy="Delete or change these topics, or distribute them over several clusters.",
        )

    def _check_cluster(self, broker: BrokerData, broker_id: int, cluster: str, address: str, channel: Hashable) -> None:
        """RefusedError if live brokers of this name are in another cluster: slaves would copy another cluster's log."""
        for other_id, other_address in broker.broker_addrs.items() if broker.cluster != cluster else ():
            other = self._live.get((broker.cluster, other_address))
            if other is None or other_address == address or other_id == broker_id:
                continue
            if self._clock() - other.last_update > min(ALIVE_SECONDS, other.timeout):
                continue
            text = (
                f"{address} is broker {broker.broker_name} of cluster {cluster}, but {other_address} (id "
                f"{other.broker_id}) is broker {broker.broker_name} of cluster {broker.cluster}"
            )
            self._log(channel, logging.WARNING, "one name in two clusters: %s", text)
            raise RefusedError(
                f"{text}. A master and its slaves have one brokerClusterName; give others another brokerName.",
                response_code=ResponseCode.SYSTEM_ERROR,
            )

    def _check_place(
        self, holder: LiveBroker, cluster: str, address: str, data_version: DataVersion, channel: Hashable
    ) -> None:
        """Raise RefusedError unless the new broker may replace the registered one."""
        held = 0 if holder.data_version is None else holder.data_version.state_version
        silent = self._clock() - holder.last_update
        if data_version.state_version > held:
            return
        if data_version.state_version == held:
            if silent > min(ALIVE_SECONDS, holder.timeout):
                return
            why = f"{holder.address} (cluster {holder.cluster}) is registered with it, last {silent:.0f} s ago"
        else:
            why = f"{holder.address} (cluster {holder.cluster}) is registered with it and a newer state version"
        text = f"{address} (cluster {cluster}) cannot be id {holder.broker_id} of broker {holder.broker_name}: {why}"
        self._log(channel, logging.WARNING, "two brokers of one name: %s", text)
        raise RefusedError(
            f"{text}. Give one of them another brokerName (or brokerId, if it is a slave).",
            response_code=ResponseCode.SYSTEM_ERROR,
        )

    def data_version_of(self, cluster: str, address: str) -> DataVersion | None:
        live = self._live.get((cluster, address))
        return None if live is None else live.data_version

    def heartbeat(self, cluster: str, address: str) -> None:
        """Record a heartbeat without a topic table. Ignored for unknown brokers: they must register."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.last_update = self._clock()

    # --- removal of brokers -----------------------------------------------------------------------------------

    def unregister_broker(self, cluster: str, broker_name: str, broker_id: int, address: str) -> None:
        """Remove a broker. Ignored unless the cluster, name, id and address are those of a live broker.

        Apache's name server removes the liveness entry of the address and, separately, an address of the name.
        """
        live = self._live.get((cluster, address))
        if live is None or (live.broker_name, live.broker_id) != (broker_name, broker_id):
            return
        self._remove_live((cluster, address))
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        if broker.broker_addrs.get(broker_id) == address:
            del broker.broker_addrs[broker_id]
            message = "broker %s (%s, id %d) of cluster %s removed"
            self._log(live.channel, logging.INFO, message, broker_name, address, broker_id, cluster)
        if broker.broker_addrs:
            return
        del self._brokers[broker_name]
        self._topics.remove_broker(broker_name)
        self.on_removal()

    def _add_live(self, key: _Key, live: LiveBroker, filter_servers: Sequence[str]) -> None:
        if key not in self._live:
            message = "broker %s (%s, id %d) of cluster %s registered"
            names = (live.broker_name, live.address, live.broker_id, live.cluster)
            self._log(live.channel, logging.INFO, message, *names)
        self._remove_live(key)
        self._of_channel.setdefault(live.channel, {})[key] = None
        self._live[key] = live
        if filter_servers:
            self._filter_servers[key] = list(filter_servers)

    def _remove_live(self, key: _Key) -> None:
        """Remove a broker process from the tables that have its address as key."""
        self._filter_servers.pop(key, None)
        live = self._live.pop(key, None)
        if live is not None:
            of_channel = self._of_channel[live.channel]
            del of_channel[key]
            if not of_channel:
                del self._of_channel[live.channel]

    def channel_closed(self, channel: Hashable) -> None:
        """Remove the brokers whose last registration used this connection."""
        for live in [self._live[key] for key in self._of_channel.get(channel, ())]:
            self.unregister_broker(live.cluster, live.broker_name, live.broker_id, live.address)

    def sweep(self) -> bool:
        """Remove some entries of removed brokers that no query sees; False if none is left."""
        return self._topics.sweep(_SWEEP_ENTRIES)

    def expire(self) -> list[LiveBroker]:
        """Remove and return brokers without a heartbeat within their timeout; the caller closes their connections."""
        now = self._clock()
        expired = [live for live in self._live.values() if now - live.last_update > live.timeout]
        for live in expired:
            message = "broker %s (%s) expired: no registration for %d s"
            self._log(live.channel, logging.WARNING, message, live.broker_name, live.address, live.timeout)
            self.unregister_broker(live.cluster, live.broker_name, live.broker_id, live.address)
        return expired

    # --- topics -----------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        queues = self._topics.queues(topic)
        brokers = [self._brokers[each.broker_name] for each in queues if each.broker_name in self._brokers]
        if not brokers:
            return None
        filters = {
            address: self._filter_servers[broker.cluster, address]
            for broker in brokers
            for address in broker.broker_addrs.values()
            if (broker.cluster, address) in self._filter_servers
        }
        return TopicRouteData(queue_datas=queues, broker_datas=brokers, filter_server_table=filters)

    def register_topic(self, topic: str, queues: Sequence[QueueData]) -> None:
        """Add a topic on registered brokers; other brokers are ignored. RefusedError if it exceeds a bound."""
        for each in queues:
            if each.broker_name in self._brokers:
                problem = self._topics.put(topic, each)
                if problem is not None:
                    raise RefusedError(
                        f"Topic {topic[:80]!r} is not registered: the name server accepts no topic with {problem}.",
                        response_code=ResponseCode.SYSTEM_ERROR,
                    )

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        self._topics.remove(topic, self._members(cluster) if cluster else None)

    def set_write_permission(self, broker_name: str, allowed: bool) -> int:
        """Set or clear the write permission of all of a broker's topics; returns their number."""
        return self._topics.set_write_permission(broker_name, allowed)

    def silences(self) -> list[tuple[LiveBroker, float]]:
        """Live brokers, and the seconds since their last registration or heartbeat."""
        now = self._clock()
        return [(broker, max(now - broker.last_update, 0.0)) for broker in self._live.values()]

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def topics(self) -> list[str]:
        return self._topics.topics()

    def topics_of_cluster(self, cluster: str) -> list[str]:
        return self._topics.topics_of(self._members(cluster))

    def system_topics(self) -> tuple[list[str], str | None]:
        """The topics named after clusters and brokers, and the address of any one broker."""
        names: dict[str, None] = {}
        for cluster, brokers in sorted(self._clusters().items()):
            names.update(dict.fromkeys((cluster, *brokers)))
        address = next(
            (address for broker in self._brokers.values() for _, address in sorted(broker.broker_addrs.items())), None
        )
        return list(names), address

    def unit_topics(self, required: int, forbidden: int = 0) -> list[str]:
        """Topics whose system flag has the required bits and none of the forbidden."""
        return [
            topic
            for topic in self._topics.topics()
            for flag in (self._topics.queues(topic)[0].topic_sys_flag,)
            if flag & required == required and not flag & forbidden
        ]

    # --- clusters ---------------------------------------------------------------------------------------------

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(broker_addr_table=dict(self._brokers), cluster_addr_table=self._clusters())

    def _clusters(self) -> dict[str, list[str]]:
        """The names of the brokers of each cluster, sorted."""
        clusters: dict[str, list[str]] = {}
        for name, broker in sorted(self._brokers.items()):
            clusters.setdefault(broker.cluster, []).append(name)
        return clusters

    def _members(self, cluster: str) -> list[str]:
        return [name for name, broker in self._brokers.items() if broker.cluster == cluster]

    def member_group(self, broker_name: str) -> dict[int, str]:
        broker = self._brokers.get(broker_name)
        return {} if broker is None else dict(broker.broker_addrs)
