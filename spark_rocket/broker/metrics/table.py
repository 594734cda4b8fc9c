"""All metrics of a broker. ``make tables`` writes them into ``docs/reference/metrics.md``.

Names and labels of RocketMQ 5's brokers come first (origin ``5``), then the names of rocketmq-exporter, then our own.
Metrics of POP, transactions and replication without a name in either are our own as well.

Immutable values. Corresponds to BrokerMetricsConstant, DefaultStoreMetricsConstant, PopMetricsConstant and the
exporter's RMQMetricsCollector.
"""

from __future__ import annotations

from spark_rocket.remoting.exposition import COUNTER, GAUGE, HISTOGRAM, Metric

_NODE = ("cluster", "node_type", "node_id")
_TOPIC = (*_NODE, "topic", "message_type", "is_system")
_GROUP = (*_NODE, "consumer_group", "topic", "is_retry", "is_system")
_STORAGE = (*_NODE, "storage_type", "storage_medium")
_BROKER = ("cluster", "brokerIP", "broker")
_OF_TOPIC = ("cluster", "broker", "topic")
_OF_GROUP = ("cluster", "broker", "topic", "group")
_RUNTIME = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")


def _m(name: str, kind: str, labels: tuple[str, ...], text: str, origin: str = "5") -> Metric:
    return Metric(name, kind, text, origin, labels)


METRICS: tuple[Metric, ...] = (
    # --- RocketMQ 5 ---------------------------------------------------------------------------------------------
    _m("rocketmq_messages_in_total", COUNTER, _TOPIC, "Messages stored, without retries and dead letters."),
    _m("rocketmq_throughput_in_total", COUNTER, _TOPIC, "Bytes of these messages in the commit log."),
    _m("rocketmq_message_size", HISTOGRAM, (*_NODE, "topic"), "Bytes of a message; for a batch, the mean."),
    _m("rocketmq_messages_out_total", COUNTER, _GROUP, "Messages delivered to consumers."),
    _m("rocketmq_throughput_out_total", COUNTER, _GROUP, "Bytes of these messages."),
    _m("rocketmq_consumer_lag_messages", GAUGE, _GROUP, "Messages that the group has not committed."),
    _m("rocketmq_consumer_lag_latency", GAUGE, _GROUP, "Milliseconds since the oldest uncommitted message was stored."),
    _m("rocketmq_consumer_inflight_messages", GAUGE, _GROUP, "Messages pulled and not committed."),
    _m("rocketmq_consumer_ready_messages", GAUGE, _GROUP, "Messages not pulled."),
    _m(
        "rocketmq_consumer_queueing_latency",
        GAUGE,
        _GROUP,
        "Milliseconds since the oldest message not pulled was stored.",
    ),
    _m(
        "rocketmq_send_to_dlq_messages_total",
        COUNTER,
        (*_NODE, "consumer_group", "topic", "is_system"),
        "Messages that became dead letters.",
    ),
    _m(
        "rocketmq_producer_connections",
        GAUGE,
        (*_NODE, "language", "version", "protocol_type"),
        "Members of producer groups.",
    ),
    _m(
        "rocketmq_consumer_connections",
        GAUGE,
        (*_NODE, "consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
        "Members of consumer groups.",
    ),
    _m("rocketmq_commit_messages_total", COUNTER, (*_NODE, "topic"), "Transactions committed."),
    _m("rocketmq_rollback_messages_total", COUNTER, (*_NODE, "topic"), "Transactions rolled back."),
    _m("rocketmq_half_messages", GAUGE, _NODE, "Undecided half messages of all topics."),
    _m("rocketmq_broker_permission", GAUGE, _NODE, "brokerPermission: 4 read, 2 write, 6 both."),
    _m("rocketmq_topic_number", GAUGE, _NODE, "Topics, including system topics."),
    _m("rocketmq_consumer_group_number", GAUGE, _NODE, "Consumer groups that have settings."),
    _m("rocketmq_storage_size", GAUGE, _STORAGE, "Readable bytes of the commit log."),
    _m("rocketmq_storage_flush_behind_bytes", GAUGE, _STORAGE, "Bytes of the log not flushed yet."),
    _m("rocketmq_storage_dispatch_behind_bytes", GAUGE, _STORAGE, "Bytes not dispatched to queues yet; always 0."),
    _m("rocketmq_storage_message_reserve_time", GAUGE, _STORAGE, "Age of the oldest message, in milliseconds."),
    _m("rocketmq_pop_revive_retry_messages_total", COUNTER, _NODE, "Popped messages not acked in time."),
    # --- rocketmq-exporter --------------------------------------------------------------------------------------
    _m("rocketmq_broker_tps", GAUGE, _BROKER, "Messages stored per second, last minute.", "exporter"),
    _m("rocketmq_broker_qps", GAUGE, _BROKER, "Messages delivered per second, last minute.", "exporter"),
    _m("rocketmq_producer_tps", GAUGE, _OF_TOPIC, "Messages stored per second, last minute.", "exporter"),
    _m("rocketmq_producer_message_size", GAUGE, _OF_TOPIC, "Bytes stored per second, last minute.", "exporter"),
    _m("rocketmq_producer_offset", GAUGE, _OF_TOPIC, "Sum of the end offsets of the topic's queues.", "exporter"),
    _m("rocketmq_topic_retry_offset", GAUGE, _OF_TOPIC, "Sum of the end offsets of a retry topic.", "exporter"),
    _m(
        "rocketmq_topic_dlq_offset",
        GAUGE,
        ("cluster", "broker", "group"),
        "Dead letters since the topic was created.",
        "exporter",
    ),
    _m("rocketmq_consumer_tps", GAUGE, _OF_GROUP, "Messages delivered per second, last minute.", "exporter"),
    _m("rocketmq_consumer_message_size", GAUGE, _OF_GROUP, "Bytes delivered per second, last minute.", "exporter"),
    _m("rocketmq_consumer_offset", GAUGE, _OF_GROUP, "Sum of the committed offsets of all queues.", "exporter"),
    _m("rocketmq_group_diff", GAUGE, _OF_GROUP, "Messages that the group has not committed.", "exporter"),
    _m("rocketmq_group_retrydiff", GAUGE, _OF_GROUP, "Uncommitted messages of the retry topic.", "exporter"),
    _m("rocketmq_message_accumulation", GAUGE, _OF_GROUP, "Same as rocketmq_group_diff (older name).", "exporter"),
    _m(
        "rocketmq_group_get_latency_by_storetime",
        GAUGE,
        _OF_GROUP,
        "Same as rocketmq_consumer_lag_latency.",
        "exporter",
    ),
    _m("rocketmq_send_back_nums", GAUGE, _OF_GROUP, "Messages sent back in the last minute.", "exporter"),
    _m("rocketmq_group_count", GAUGE, ("cluster", "broker", "group"), "Members of a consumer group.", "exporter"),
    _m("rocketmq_brokeruntime_commitlog_disk_ratio", GAUGE, _RUNTIME, "Used fraction of the disk, 0 to 1.", "exporter"),
    _m("rocketmq_brokeruntime_commitlogdir_capacity_total", GAUGE, _RUNTIME, "Size of the disk in bytes.", "exporter"),
    _m("rocketmq_brokeruntime_commitlogdir_capacity_free", GAUGE, _RUNTIME, "Free bytes on the disk.", "exporter"),
    _m(
        "rocketmq_brokeruntime_commitlog_minoffset",
        GAUGE,
        _RUNTIME,
        "First offset of the commit log (bytes).",
        "exporter",
    ),
    _m(
        "rocketmq_brokeruntime_commitlog_maxoffset",
        GAUGE,
        _RUNTIME,
        "End offset of the commit log (bytes).",
        "exporter",
    ),
    _m("rocketmq_brokeruntime_putmessage_times_total", GAUGE, _RUNTIME, "Records written.", "exporter"),
    _m("rocketmq_brokeruntime_put_message_size_total", GAUGE, _RUNTIME, "Bytes written.", "exporter"),
    _m(
        "rocketmq_brokeruntime_earliest_message_timestamp",
        GAUGE,
        _RUNTIME,
        "Store time of the oldest message (ms).",
        "exporter",
    ),
    _m(
        "rocketmq_brokeruntime_consumequeue_disk_ratio",
        GAUGE,
        _RUNTIME,
        "Used fraction of the queues' disk.",
        "exporter",
    ),
    _m("rocketmq_brokeruntime_remain_howmanydata_toflush", GAUGE, _RUNTIME, "Bytes not flushed yet.", "exporter"),
    *(
        _m(
            f"rocketmq_brokeruntime_{kind}_tps{window}",
            GAUGE,
            _RUNTIME,
            f"{text} per second, last {window} s.",
            "exporter",
        )
        for kind, text in (
            ("put", "Messages stored"),
            ("getfound", "Pulls that found messages"),
            ("getmiss", "Pulls without messages"),
        )
        for window in (10, 60, 600)
    ),
    # --- our own ------------------------------------------------------------------------------------------------
    _m("rocket_held_pulls", GAUGE, _NODE, "Pulls held until messages arrive.", "own"),
    _m("rocket_held_pops", GAUGE, _NODE, "Pops held until messages arrive.", "own"),
    _m(
        "rocket_metrics_left_out",
        GAUGE,
        _NODE,
        "Pairs of group and topic above maxMetricsGroupTopics.",
        "own",
    ),
    _m("rocket_pull_misses_total", COUNTER, _NODE, "Pulls and pops without messages.", "own"),
    _m("rocket_name_server_registered", GAUGE, (*_NODE, "name_server"), "1 if registered at this name server.", "own"),
    _m("rocket_slave_behind_bytes", GAUGE, (*_NODE, "slave"), "Bytes of the log a slave does not have yet.", "own"),
    _m("rocket_slave_following", GAUGE, _NODE, "On a slave: 1 if it follows its master.", "own"),
    _m(
        "rocket_slave_bytes_per_second", GAUGE, (*_NODE, "slave"), "Bytes of the log sent to a slave per second.", "own"
    ),
    _m("rocket_clocks_differ", GAUGE, _NODE, "On a slave: 1 if its clock differs from its master's.", "own"),
    _m("rocket_acl_refused_total", COUNTER, _NODE, "Requests refused by access control.", "own"),
)
