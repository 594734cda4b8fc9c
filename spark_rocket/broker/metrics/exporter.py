"""A broker's data for /metrics, /health and /ready.

The counters are those of ``BrokerStats``. Lags and ends are computed for each scrape, in small steps between which
requests are served. Each step reads the present tables, so values of one scrape may be milliseconds apart.

Metrics of groups have a series for each topic. One scrape shows ``maxMetricsGroupTopics`` pairs of group and topic: of
lags those that have offsets for the longest time, which new names cannot replace; of counts those that changed last.

The store time of a lag's oldest message is read from the log and cached until another message is the oldest. Texts of
labels, the largest part of a scrape, are cached for the next scrape, and forgotten with their topic or pair.

Corresponds to BrokerMetricsManager and ConsumerLagCalculator, without the latter's estimates for filtered
subscriptions: a lag counts all messages from the committed offset on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_rocket.broker.metrics.table import METRICS
from spark_rocket.broker.processors.statistics import VERSION_TEXT
from spark_rocket.broker.state.broker_stats import MESSAGE_TYPES
from spark_rocket.model import DLQ_PREFIX, RETRY_PREFIX, is_sink_group, is_system_topic
from spark_rocket.protocol.wire.codes import PERM_WRITE
from spark_rocket.remoting.exposition import Exposition, label_text
from spark_rocket.remoting.server.overload import OVERLOAD_METRICS, add_overload

if TYPE_CHECKING:
    from spark_rocket.broker.broker import Broker
    from spark_rocket.broker.broker_parts import BrokerParts

_SYSTEM_GROUP = "cid_rmq_sys_"
_SIZE_BOUNDS = {10: 1 << 10, 12: 1 << 12, 19: 1 << 19, 20: 1 << 20, 21: 1 << 21, 22: 1 << 22}
_STEP = 64
_QUEUES_OF_PAIR = 16  # on average, of the pairs in a scrape


def is_system_group(group: str) -> bool:
    """Whether this is a group of the broker itself, of an Apache tool or of the data source's exactly-once sink."""
    return group.lower().startswith(_SYSTEM_GROUP) or is_sink_group(group)


class BrokerMetrics:
    """One broker as a source of metrics, also while it starts or stops."""

    metrics = (*METRICS, *OVERLOAD_METRICS)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._cached = _Cached()

    # --- health -------------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        parts = self._broker.running
        if parts is None:
            return ["the broker is starting or stopping"]
        config, found = parts.config, []
        if parts.store.write_error is not None and not config.is_slave:
            found.append(parts.store.write_error.message)
        if not config.broker_permission & PERM_WRITE:
            found.append(f"brokerPermission is {config.broker_permission}: messages are not accepted")
        if parts.clock() < config.start_accept_send_request_time_stamp:
            found.append("startAcceptSendRequestTimeStamp is in the future: messages are not accepted")
        states = parts.registration.states()
        if states and not any(states.values()):
            found.append(f"not registered with any name server: {', '.join(sorted(states))}")
        slave = parts.slave
        if slave is not None and not slave.is_following:
            found.append(f"the slave does not follow a master{': ' + slave.problem if slave.problem else ''}")
        return found

    def facts(self) -> dict[str, Any]:
        parts = self._broker.running
        if parts is None:
            return {}
        config = parts.config
        return {
            "cluster": config.broker_cluster_name,
            "broker": config.broker_name,
            "brokerId": config.broker_id,
            "address": self._broker.address,
            "nameServers": parts.registration.states(),
        }

    # --- metrics ------------------------------------------------------------------------------------------------

    def node_labels(self) -> dict[str, object]:
        config = self._broker.config
        return {"cluster": config.broker_cluster_name, "node_type": "broker", "node_id": config.broker_name}

    def collect(self, exposition: Exposition) -> Iterator[None]:
        parts = self._broker.running
        if parts is not None:
            scrape = _Scrape(self._broker, parts, exposition, self._cached)
            yield from scrape.run()
            self._cached = scrape.cached


class _PairLabels(NamedTuple):
    """The labels of a group and a topic in three kinds of metrics."""

    consumer: str
    dead_letters: str
    exporter: str
    """In metrics of rocketmq-exporter."""


@dataclass(slots=True)
class _Cached:
    """What one scrape has read and formatted, for the next one."""

    stored: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Store times, by topic, queue id and offset."""
    pairs: dict[tuple[str, str], _PairLabels] = field(default_factory=dict)
    topics: dict[str, tuple[str, str]] = field(default_factory=dict)


class _Scrape:
    """One collection of a broker's metrics. ``known``: what the last scrape has cached."""

    def __init__(
        self,
        broker: Broker,
        parts: BrokerParts,
        exposition: Exposition,
        known: _Cached,
    ) -> None:
        cluster, name = parts.config.broker_cluster_name, parts.config.broker_name
        self._broker = broker
        self._parts = parts
        self._exposition = exposition
        self._add = exposition.add
        self._known = known
        self._node = label_text({"cluster": cluster, "node_type": "broker", "node_id": name})
        self._exporter = label_text({"cluster": cluster, "broker": name})
        self._max_pairs = parts.config.max_metrics_group_topics
        self.cached = _Cached()

    def run(self) -> Iterator[None]:
        parts = self._parts
        self._broker_values()
        if self._broker.overload is not None:
            kinds = parts.overload.limits.queues
            add_overload(self._exposition, self._node, self._broker.overload, self._broker.connections, kinds)
        yield
        self._runtime()
        yield
        self._connections()
        yield
        ends: dict[tuple[str, int], int] = {}
        totals: Counter[str] = Counter()
        for number, key in enumerate(parts.store.queue_keys()):
            ends[key] = end = parts.store.get_max_offset(*key)
            totals[key[0]] += end
            if not number % _STEP:
                yield
        yield from self._topics(totals)
        yield from self._groups()
        yield from self._lags(ends)

    def _broker_values(self) -> None:
        parts, node = self._parts, self._node
        store, config, stats = parts.store, parts.config, parts.stats
        add = self._add
        add("rocketmq_broker_permission", node, config.broker_permission)
        add("rocketmq_topic_number", node, len(parts.topics.table))
        add("rocketmq_consumer_group_number", node, len(parts.groups.table))
        add("rocketmq_half_messages", node, parts.transactions.waiting)
        disk = f'{node},storage_type="local",storage_medium="disk"'
        add("rocketmq_storage_size", disk, store.max_physical_offset - store.min_physical_offset)
        add("rocketmq_storage_flush_behind_bytes", disk, max(store.max_physical_offset - store.flushed_where, 0))
        add("rocketmq_storage_dispatch_behind_bytes", disk, 0)
        first = store.first_store_time()
        add("rocketmq_storage_message_reserve_time", disk, max(parts.clock() - first, 0) if first > 0 else 0)
        if parts.pop_service is not None:
            add("rocketmq_pop_revive_retry_messages_total", node, parts.pop_service.reviver.revived)
        for topic, count in stats.committed.items():
            add("rocketmq_commit_messages_total", f"{node},{label_text({'topic': topic})}", count)
        for topic, count in stats.rolled_back.items():
            add("rocketmq_rollback_messages_total", f"{node},{label_text({'topic': topic})}", count)
        add("rocket_held_pulls", node, parts.held_requests.pulls.count)
        add("rocket_held_pops", node, parts.held_requests.pops.count)
        add("rocket_pull_misses_total", node, stats.get_misses)
        for address, registered in parts.registration.states().items():
            add("rocket_name_server_registered", f"{node},{label_text({'name_server': address})}", int(registered))
        for slave in parts.replication.slaves:
            behind = max(store.max_physical_offset - max(slave.acked, 0), 0)
            labels = f"{node},{label_text({'slave': slave.address})}"
            add("rocket_slave_behind_bytes", labels, behind)
            add("rocket_slave_bytes_per_second", labels, slave.bytes_in_second)
        if parts.access_control is not None:
            add("rocket_acl_refused_total", node, parts.access_control.refused)
        if parts.slave is not None:
            add("rocket_slave_following", node, int(parts.slave.is_following))
        if parts.synchronize is not None:
            add("rocket_clocks_differ", node, int(parts.synchronize.clocks_differ))

    def _runtime(self) -> None:
        parts = self._parts
        store, config = parts.store, parts.config
        host = parts.environment.host
        puts_a_second, gets_a_second = parts.stats.minute_rates()
        labels = label_text({"cluster": config.broker_cluster_name, "brokerIP": host, "broker": config.broker_name})
        self._add("rocketmq_broker_tps", labels, puts_a_second)
        self._add("rocketmq_broker_qps", labels, gets_a_second)
        known = store.runtime_info()
        labels = label_text(
            {
                "cluster": config.broker_cluster_name,
                "brokerIP": self._broker.address,
                "brokerHost": host,
                "des": VERSION_TEXT,
                "boottime": known["bootTimestamp"],
                "broker_version": VERSION_TEXT,
            }
        )
        disk = store.retention.log_disk()
        for name, value in (
            ("commitlog_disk_ratio", float(known["commitLogDiskRatio"])),
            ("commitlogdir_capacity_total", disk.total),
            ("commitlogdir_capacity_free", disk.free),
            ("commitlog_minoffset", store.min_physical_offset),
            ("commitlog_maxoffset", store.max_physical_offset),
            ("putmessage_times_total", int(known["putMessageTimesTotal"])),
            ("put_message_size_total", int(known["putMessageSizeTotal"])),
            ("earliest_message_timestamp", max(store.first_store_time(), 0)),
            ("consumequeue_disk_ratio", float(known["consumeQueueDiskRatio"])),
            ("remain_howmanydata_toflush", max(store.max_physical_offset - store.flushed_where, 0)),
            *(
                (f"{kind}_tps{window}", rate)
                for kind, rates in zip(("put", "getfound", "getmiss"), parts.stats.rates()[:3], strict=True)
                for window, rate in zip((10, 60, 600), rates, strict=True)
            ),
        ):
            self._add(f"rocketmq_brokeruntime_{name}", labels, value)

    def _connections(self) -> None:
        parts, node = self._parts, self._node
        producers = Counter(
            (info.language, info.version) for group in parts.clients.producers.values() for info in group
        )
        for (language, version), count in producers.items():
            labels = label_text({"language": language.lower(), "version": version, "protocol_type": "remoting"})
            self._add("rocketmq_producer_connections", f"{node},{labels}", count)
        for group in parts.clients.consumers.values():
            members = Counter((info.language, info.version) for info in group.members)
            for (language, version), count in members.items():
                labels = label_text(
                    {
                        "consumer_group": group.group,
                        "language": language.lower(),
                        "version": version,
                        "consume_mode": "push" if group.consume_type == "CONSUME_PASSIVELY" else "pull",
                        "protocol_type": "remoting",
                        "is_system": is_system_group(group.group),
                    }
                )
                self._add("rocketmq_consumer_connections", f"{node},{labels}", count)
            labels = f"{self._exporter},{label_text({'group': group.group})}"
            self._add("rocketmq_group_count", labels, len(group.members))

    def _topics(self, totals: Counter[str]) -> Iterator[None]:
        parts, node = self._parts, self._node
        for topic in list(parts.topics.table):
            total = totals[topic]
            text, of_exporter = self._labels_of_topic(topic)
            if topic.startswith(DLQ_PREFIX):
                self._add("rocketmq_topic_dlq_offset", of_exporter, total)
                continue
            retry = topic.startswith(RETRY_PREFIX)
            self._add("rocketmq_topic_retry_offset" if retry else "rocketmq_producer_offset", of_exporter, total)
            counts = parts.stats.topics.get(topic)
            if counts is None or retry:
                continue
            system = is_system_topic(topic)
            for kind, name in enumerate(MESSAGE_TYPES):
                messages, size = counts.messages[kind], counts.bytes[kind]
                if messages:
                    labels = f'{node},{text},message_type="{name}",{label_text({"is_system": system})}'
                    self._add("rocketmq_messages_in_total", labels, messages)
                    self._add("rocketmq_throughput_in_total", labels, size)
            rates = parts.stats.windows
            self._add("rocketmq_producer_tps", of_exporter, rates.put_tps(topic))
            self._add("rocketmq_producer_message_size", of_exporter, rates.put_size(topic))
            if any(counts.messages):
                sizes = _in_buckets(counts.sizes)
                self._exposition.add_histogram(
                    "rocketmq_message_size", f"{node},{text}", list(_SIZE_BOUNDS.values()), sizes, sum(counts.bytes)
                )
            yield

    def _groups(self) -> Iterator[None]:
        parts = self._parts
        counted = reversed(parts.stats.groups.items())
        for (group, topic), counts in list(islice(counted, self._max_pairs)):
            labels, of_dead_letters, of_exporter = self._labels_of(group, topic)
            if counts.gets:
                self._add("rocketmq_messages_out_total", labels, counts.gets)
                self._add("rocketmq_throughput_out_total", labels, counts.get_bytes)
            if counts.gets or counts.dead_letters:  # from 0 on: Prometheus computes no increase to a first sample
                self._add("rocketmq_send_to_dlq_messages_total", of_dead_letters, counts.dead_letters)
            tps, size, send_backs = parts.stats.windows.of_group(group, topic)
            self._add("rocketmq_consumer_tps", of_exporter, tps)
            self._add("rocketmq_consumer_message_size", of_exporter, size)
            self._add("rocketmq_send_back_nums", of_exporter, send_backs)
            yield

    def _lags(self, ends: dict[tuple[str, int], int]) -> Iterator[None]:
        parts, node = self._parts, self._node
        now = parts.clock()
        pairs, queues_left = list(islice(parts.offsets.table, self._max_pairs)), _QUEUES_OF_PAIR * self._max_pairs
        left_out = len(parts.offsets.table) - len(pairs)
        for key in pairs:
            topic, _, group = key.rpartition("@")
            queues = parts.offsets.table.get(key)
            if queues is None or topic not in parts.topics.table:
                continue
            if len(queues) > queues_left:
                left_out += 1
                continue
            queues_left -= len(queues)
            lag = ready = committed = oldest = waiting = 0
            pulled = parts.stats.pulled_of(group, topic)
            for queue_id, offset in list(queues.items()):
                end = ends.get((topic, queue_id))
                if end is None:  # a number that an application keeps, or a queue without messages
                    continue
                following = max(pulled.get(queue_id, offset), offset)
                committed += offset
                if offset < end:
                    lag += end - offset
                    ready += max(end - following, 0)
                    oldest = self._older(oldest, (topic, queue_id, offset))
                    if following < end:
                        waiting = self._older(waiting, (topic, queue_id, following))
            age = max(now - oldest, 0) if oldest else 0
            labels, _, of_exporter = self._labels_of(group, topic)
            self._add("rocketmq_consumer_lag_messages", labels, lag)
            self._add("rocketmq_consumer_lag_latency", labels, age)
            self._add("rocketmq_consumer_inflight_messages", labels, lag - ready)
            self._add("rocketmq_consumer_ready_messages", labels, ready)
            self._add("rocketmq_consumer_queueing_latency", labels, max(now - waiting, 0) if waiting else 0)
            if topic.startswith(RETRY_PREFIX):
                self._add("rocketmq_group_retrydiff", of_exporter, lag)
            else:
                self._add("rocketmq_group_diff", of_exporter, lag)
                self._add("rocketmq_message_accumulation", of_exporter, lag)
            self._add("rocketmq_consumer_offset", of_exporter, committed)
            self._add("rocketmq_group_get_latency_by_storetime", of_exporter, age)
            yield
        self._add("rocket_metrics_left_out", node, left_out)

    def _labels_of(self, group: str, topic: str) -> _PairLabels:
        key = (group, topic)
        found = self.cached.pairs.get(key)
        if found is None:
            found = self._known.pairs.get(key)
            if found is None:
                found = self._format(group, topic)
            self.cached.pairs[key] = found
        return found

    def _format(self, group: str, topic: str) -> _PairLabels:
        names: dict[str, object] = {"consumer_group": group, "topic": topic}
        is_system = {"is_system": is_system_topic(topic) or is_system_group(group)}
        is_retry = {"is_retry": topic.startswith((RETRY_PREFIX, DLQ_PREFIX))}
        return _PairLabels(
            f"{self._node},{label_text(names | is_retry | is_system)}",
            f"{self._node},{label_text(names | is_system)}",
            f"{self._exporter},{label_text({'topic': topic, 'group': group})}",
        )

    def _labels_of_topic(self, topic: str) -> tuple[str, str]:
        """The labels of a topic in metrics of RocketMQ 5, without the node's, and of rocketmq-exporter."""
        found = self._known.topics.get(topic)
        if found is None:
            text = label_text({"group": topic[len(DLQ_PREFIX) :]} if topic.startswith(DLQ_PREFIX) else {"topic": topic})
            found = text, f"{self._exporter},{text}"
        self.cached.topics[topic] = found
        return found

    def _older(self, oldest: int, place: tuple[str, int, int]) -> int:
        """The earlier of two store times, where 0 is none. For a deleted message, the first remaining one counts."""
        time = self.cached.stored.get(place) or self._known.stored.get(place)
        if time is None:
            time = self._parts.store.get_store_time(*place)
            if time < 0:
                time = self._parts.store.get_earliest_store_time(*place[:2])
        if time <= 0:
            return oldest
        self.cached.stored[place] = time
        return min(oldest, time) if oldest else time


def _in_buckets(sizes: list[int]) -> list[int]:
    """Convert counts by powers of two to counts by Apache's bounds, also powers of two, and the rest above them."""
    counts, low = [], 0
    for power in _SIZE_BOUNDS:
        counts.append(sum(sizes[low : power + 1]))
        low = power + 1
    counts.append(sum(sizes[low:]))
    return counts
