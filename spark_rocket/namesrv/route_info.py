"""The name server's memory: which brokers live, and which topics they have.

======================  =======================================  ============================================
table                   key -> value                             filled by
======================  =======================================  ============================================
topic queues            topic -> broker name -> QueueData        a master's registration; permissions changed
brokers                 broker name -> BrokerData                registration: id -> address, 0 the master
clusters                cluster -> broker names                  registration
live                    cluster, address -> LiveBroker           registration and heartbeat; expires
filter servers          cluster, address -> addresses            registration
======================  =======================================  ============================================

A registration's topic table is looked at only if its data version differs from the last one's, or the broker or the
topic is new: so a permission that was wiped here stays wiped while the broker keeps repeating what it said. Topics
that a table does not name are left alone, because brokers also send tables of the one topic that changed. Topics come
from masters; while a broker has no master, from the first of its slaves, so that a name server which was restarted
meanwhile knows where to read.

Two brokers of one name and id: the first keeps its place as long as its connection stands and it is heard of, which a
living broker is every 60 s. The other is refused, and is told both addresses. (Apache's name server lets each take the
other's place by turns.) A newer state version wins, as after an election by Apache's controller.

Pure: no I/O, and the clock is given. Thread-safety: none, it belongs to the name server's loop. Nothing of it is kept
on disk: brokers register again every 30 seconds.
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
ALIVE_SECONDS = 60.0  # no broker lets more time pass between two registrations

FLAG_UNIT = 0x1
FLAG_UNIT_SUB = 0x2


@dataclass(slots=True)
class LiveBroker:
    """A broker process: one address, heard of at ``last_update`` over ``channel``."""

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
    """What a registration is told."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class RouteInfoManager:
    """The tables. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}
        self._filter_servers: dict[tuple[str, str], list[str]] = {}

    # --- brokers come -----------------------------------------------------------------------------------------

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
        """Take a registration in. RefusedError if another broker holds the same name and id."""
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
        # Brokers before 5.0, which do not know acting masters, would name topics that their master has deleted.
        is_first_slave = enable_acting_master is not None and broker_id == min(addresses)
        if broker_id == MASTER_ID or is_first_slave:
            changed = is_new or live is None or live.data_version != data_version
            self._take_topics(broker_name, topics, changed)
        # A broker's first registration may name only the one topic that changed (we were restarted meanwhile). Its
        # version must not make the whole table that follows look known.
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
        """Remove the former holder of a broker's name and id. RefusedError if it keeps its place."""
        addresses = broker.broker_addrs
        holder = self._live.get((broker.cluster, addresses.get(broker_id, "")))
        if holder is not None and (holder.cluster, holder.address) == (cluster, address):
            holder = None
        if holder is not None:
            self._check_place(holder, cluster, address, data_version)
        self._check_cluster(broker, broker_id, cluster, address)
        if holder is not None:
            logger.warning(
                "id %d of broker %s is at %s now; it was at %s", broker_id, broker.broker_name, address, holder.address
            )
            del self._live[holder.cluster, holder.address]
            self._filter_servers.pop((holder.cluster, holder.address), None)
        # A slave that became master (or the reverse) had its address under another id.
        for other in [id_ for id_, known in addresses.items() if known == address and id_ != broker_id]:
            del addresses[other]

    def _take_topics(self, broker_name: str, topics: Mapping[str, TopicConfig], changed: bool) -> None:
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
        """RefusedError when others of this name live, in another cluster: what they copy would be another's log."""
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
        """RefusedError unless the newcomer may take the holder's place."""
        held = 0 if holder.data_version is None else holder.data_version.state_version
        silent = self._clock() - holder.last_update
        if data_version.state_version > held:
            return
        if data_version.state_version == held:
            if silent > min(ALIVE_SECONDS, holder.timeout):
                return
            why = f"{holder.address} (cluster {holder.cluster}), which was heard of {silent:.0f} s ago, holds it"
        else:
            why = f"{holder.address} (cluster {holder.cluster}) holds it with a newer state"
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
        """A sign of life without a table. Of an unknown broker it means nothing: it has to register."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.last_update = self._clock()

    # --- brokers go -------------------------------------------------------------------------------------------

    def unregister_broker(self, cluster: str, broker_name: str, broker_id: int, address: str) -> None:
        self._live.pop((cluster, address), None)
        self._filter_servers.pop((cluster, address), None)
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        if broker.broker_addrs.get(broker_id) == address:
            del broker.broker_addrs[broker_id]
            logger.info("broker %s (%s, id %d) of cluster %s is gone", broker_name, address, broker_id, cluster)
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
        """Brokers that registered last over this connection are gone with it."""
        for live in [live for live in self._live.values() if live.channel is channel]:
            self.unregister_broker(live.cluster, live.broker_name, live.broker_id, live.address)

    def expire(self) -> list[LiveBroker]:
        """Remove the brokers not heard of within their time; the removed, whose channels are to be closed."""
        now = self._clock()
        expired = [live for live in self._live.values() if now - live.last_update > live.timeout]
        for live in expired:
            logger.warning(
                "broker %s (%s) expired: nothing heard for %d s", live.broker_name, live.address, live.timeout
            )
            self.unregister_broker(live.cluster, live.broker_name, live.broker_id, live.address)
        return expired

    # --- topics -----------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """Where a topic is; None when no living broker has it."""
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
        """Add a topic on brokers that are registered; others are ignored."""
        known = {queue.broker_name: queue for queue in queues if queue.broker_name in self._brokers}
        if known:
            self._queues.setdefault(topic, {}).update(known)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or on one cluster's brokers."""
        if cluster:
            self._remove_queues(topic, tuple(self._clusters.get(cluster, ())))
        else:
            self._queues.pop(topic, None)

    def set_write_permission(self, broker_name: str, allowed: bool) -> int:
        """Give or take the write permission of all of a broker's topics; how many those are."""
        count = 0
        for queues in self._queues.values():
            queue = queues.get(broker_name)
            if queue is not None:
                perm = queue.perm | PERM_WRITE if allowed else queue.perm & ~PERM_WRITE
                queues[broker_name] = replace(queue, perm=perm)
                count += 1
        return count

    def silences(self) -> list[tuple[LiveBroker, float]]:
        """Each live broker, and how many seconds ago it was heard of."""
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
