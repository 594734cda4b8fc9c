"""The name server's tables of live brokers and their topics.

======================  =======================================  ============================================
table                   key -> value                             filled by
======================  =======================================  ============================================
topic queues            topic -> broker name -> QueueData        a master's registration; changes of permissions
brokers                 broker name -> BrokerData                registration: id -> address, 0 the master
clusters                cluster -> broker names                  registration
live                    cluster, address -> LiveBroker           registration and heartbeat; expires
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

No I/O; the clock is an argument. Thread-safety: none; used on the name server's loop only. Not stored on disk: brokers
register again every 30 seconds.
Corresponds to org.apache.rocketmq.namesrv.routeinfo.RouteInfoManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_rocket.errors import RefusedError
from spark_rocket.protocol.wire.bodies import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicRouteData,
)
from spark_rocket.protocol.wire.codes import PERM_WRITE, ResponseCode

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 120_000
ALIVE_SECONDS = 60.0  # maximum interval between two registrations of a broker

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
class Registered:
    """The response to a registration."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class RouteInfoManager:
    """The tables. ``clock`` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}
        self._filter_servers: dict[tuple[str, str], list[str]] = {}

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
    ) -> Registered:
        """Apply a registration. RefusedError if another broker is registered with the same name and id."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            broker = BrokerData(cluster=cluster, broker_name=broker_name, broker_addrs={})
        addresses = broker.broker_addrs
        self._take_place(broker, broker_id, cluster, address, data_version)
        is_new = broker_id not in addresses
        addresses[broker_id] = address
        broker.enable_acting_master = enable_acting_master
        broker.zone_name = zone_name
        self._brokers[broker_name] = broker
        self._clusters.setdefault(cluster, set()).add(broker_name)

        key = (cluster, address)
        live = self._live.get(key)
        # Slaves before 5.0, without support for acting masters, may register topics that their master has deleted.
        is_first_slave = enable_acting_master is not None and broker_id == min(addresses)
        if broker_id == MASTER_ID or is_first_slave:
            changed = is_new or live is None or live.data_version != data_version
            self._update_topics(broker_name, topics, changed)
        # After a restart of the name server, a broker's first registration may contain only one changed topic. Its
        # version must not make the complete table that follows look unchanged.
        partial = live is None and len(topics) == 1
        self._live[key] = LiveBroker(
            cluster=cluster,
            broker_name=broker_name,
            broker_id=broker_id,
            address=address,
            ha_address=ha_address,
            last_update=self._clock(),
            timeout=(timeout_ms or DEFAULT_TIMEOUT_MS) / 1000,
            data_version=None if partial else data_version,
            channel=channel,
        )
        self._filter_servers.pop(key, None)
        if filter_servers:
            self._filter_servers[key] = list(filter_servers)
        if live is None:
            logger.info("broker %s (%s, id %d) of cluster %s registered", broker_name, address, broker_id, cluster)
        master = addresses.get(MASTER_ID)
        if broker_id == MASTER_ID or master is None:
            return Registered()
        master_live = self._live.get((cluster, master))
        return Registered(None if master_live is None else master_live.ha_address, master)

    def _take_place(
        self, broker: BrokerData, broker_id: int, cluster: str, address: str, data_version: DataVersion
    ) -> None:
        """Remove the previous broker with the same name and id. RefusedError if it is still alive."""
        addresses = broker.broker_addrs
        holder = self._live.get((broker.cluster, addresses.get(broker_id, "")))
        if holder is not None and (holder.cluster, holder.address) == (cluster, address):
            holder = None
        if holder is not None:
            self._check_place(holder, cluster, address, data_version)
        self._check_cluster(broker, broker_id, cluster, address)
        if holder is not None:
            logger.warning(
                "broker %s, id %d, moved to %s from %s", broker.broker_name, broker_id, address, holder.address
            )
            del self._live[holder.cluster, holder.address]
            self._filter_servers.pop((holder.cluster, holder.address), None)
        # A promoted slave, or a demoted master, was registered under another id.
        for other in [id_ for id_, known in addresses.items() if known == address and id_ != broker_id]:
            del addresses[other]

    def _update_topics(self, broker_name: str, topics: Mapping[str, TopicConfig], changed: bool) -> None:
        """Update the queues of a broker that has changed, and add topics that were unknown."""
        for topic, config in topics.items():
            known = self._queues.setdefault(topic, {})
            if changed or broker_name not in known:
                known[broker_name] = QueueData(
                    broker_name=broker_name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm,
                    topic_sys_flag=config.topic_sys_flag,
                )

    def _check_cluster(self, broker: BrokerData, broker_id: int, cluster: str, address: str) -> None:
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
            logger.warning("one name in two clusters: %s", text)
            raise RefusedError(
                f"{text}. A master and its slaves have one brokerClusterName; give others another brokerName.",
                response_code=ResponseCode.SYSTEM_ERROR,
            )

    def _check_place(self, holder: LiveBroker, cluster: str, address: str, data_version: DataVersion) -> None:
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
        logger.warning("two brokers of one name: %s", text)
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
        self._live.pop((cluster, address), None)
        self._filter_servers.pop((cluster, address), None)
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        if broker.broker_addrs.get(broker_id) == address:
            del broker.broker_addrs[broker_id]
            logger.info("broker %s (%s, id %d) of cluster %s removed", broker_name, address, broker_id, cluster)
        if broker.broker_addrs:
            return
        del self._brokers[broker_name]
        names = self._clusters.get(cluster, set())
        names.discard(broker_name)
        if not names:
            self._clusters.pop(cluster, None)
        for topic in list(self._queues):
            self._remove_queues(topic, (broker_name,))

    def channel_closed(self, channel: Hashable) -> None:
        """Remove the brokers whose last registration used this connection."""
        for live in [live for live in self._live.values() if live.channel is channel]:
            self.unregister_broker(live.cluster, live.broker_name, live.broker_id, live.address)

    def expire(self) -> list[LiveBroker]:
        """Remove and return brokers without a heartbeat within their timeout; the caller closes their connections."""
        now = self._clock()
        expired = [live for live in self._live.values() if now - live.last_update > live.timeout]
        for live in expired:
            logger.warning(
                "broker %s (%s) expired: no registration for %d s", live.broker_name, live.address, live.timeout
            )
            self.unregister_broker(live.cluster, live.broker_name, live.broker_id, live.address)
        return expired

    # --- topics -----------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic; None if no live broker has it."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        filters = {
            address: self._filter_servers[broker.cluster, address]
            for broker in brokers
            for address in broker.broker_addrs.values()
            if (broker.cluster, address) in self._filter_servers
        }
        return TopicRouteData(queue_datas=list(queues.values()), broker_datas=brokers, filter_server_table=filters)

    def register_topic(self, topic: str, queues: Sequence[QueueData]) -> None:
        """Add a topic on registered brokers; other brokers are ignored."""
        known = {queue.broker_name: queue for queue in queues if queue.broker_name in self._brokers}
        if known:
            self._queues.setdefault(topic, {}).update(known)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic, everywhere or on one cluster's brokers."""
        if cluster:
            self._remove_queues(topic, tuple(self._clusters.get(cluster, ())))
        else:
            self._queues.pop(topic, None)

    def set_write_permission(self, broker_name: str, allowed: bool) -> int:
        """Set or clear the write permission of all of a broker's topics; returns their number."""
        count = 0
        for queues in self._queues.values():
            queue = queues.get(broker_name)
            if queue is not None:
                perm = queue.perm | PERM_WRITE if allowed else queue.perm & ~PERM_WRITE
                queues[broker_name] = replace(queue, perm=perm)
                count += 1
        return count

    def silences(self) -> list[tuple[LiveBroker, float]]:
        """Live brokers, and the seconds since their last registration or heartbeat."""
        now = self._clock()
        return [(broker, max(now - broker.last_update, 0.0)) for broker in self._live.values()]

    def topics(self) -> list[str]:
        return sorted(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = self._clusters.get(cluster, set())
        return sorted(topic for topic, queues in self._queues.items() if not names.isdisjoint(queues))

    def system_topics(self) -> tuple[list[str], str | None]:
        """The topics named after clusters and brokers, and the address of any one broker."""
        names: dict[str, None] = {}
        for cluster, brokers in sorted(self._clusters.items()):
            names[cluster] = None
            names.update(dict.fromkeys(sorted(brokers)))
        address = next(
            (address for broker in self._brokers.values() for _, address in sorted(broker.broker_addrs.items())), None
        )
        return list(names), address

    def unit_topics(self, required: int, forbidden: int = 0) -> list[str]:
        """Topics whose system flag has the required bits and none of the forbidden."""
        return sorted(
            topic
            for topic, queues in self._queues.items()
            for flag in (next(iter(queues.values())).topic_sys_flag,)
            if flag & required == required and not flag & forbidden
        )

    # --- clusters ---------------------------------------------------------------------------------------------

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table=dict(self._brokers),
            cluster_addr_table={cluster: sorted(names) for cluster, names in self._clusters.items()},
        )

    def member_group(self, broker_name: str) -> dict[int, str]:
        broker = self._brokers.get(broker_name)
        return {} if broker is None else dict(broker.broker_addrs)

    def _remove_queues(self, topic: str, broker_names: Sequence[str]) -> None:
        queues = self._queues.get(topic)
        if queues is None:
            return
        for name in broker_names:
            queues.pop(name, None)
        if not queues:
            del self._queues[topic]
