"""The rows of views, from the rows of an Admin (``client.admin``).

A view shows what is available. The log names the brokers that did not respond; the query fails only if none responded.
Runs in one task of an executor, on one thread. Corresponds to the list commands of RocketMQ's mqadmin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.client.admin import (
    Admin,
    Failures,
    GroupInfo,
    GroupState,
    Member,
    TopicInfo,
    TopicKind,
)
from spark_rocket.common.attributes import pick
from spark_rocket.datasource.options.connection import ClusterConnection
from spark_rocket.datasource.options.options import ViewOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.batch_ranges import batch_ranges
from spark_rocket.datasource.plan.cluster import Cluster
from spark_rocket.datasource.plan.lookup import BrokerIndex, physical_offset
from spark_rocket.datasource.read.fetch import read_range
from spark_rocket.datasource.readers import reader_of
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.errors import ProtocolError, RocketError, TopicNotFoundError
from spark_rocket.model import DLQ_PREFIX, MessageQueue
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.messages import damaged_record
from spark_rocket.protocol.wire.codes import PERM_INHERIT, PERM_READ, PERM_WRITE

Row = dict[str, Any]
log = logging.getLogger("spark_rocket.datasource")

_MAX_MESSAGES = 1024  # per broker and key
_QUEUE = "topic broker_name queue_id"


def _admin_for(options: ViewOptions) -> Admin:
    return _admin(options.name_server, options.request_timeout_ms, options.connection)


@cache
def _admin(name_server: str, request_timeout_ms: int, connection: ClusterConnection) -> Admin:
    arguments = connection.arguments()
    arguments["namespace"] = connection.namespace.name  # its answers are rows
    return Admin(name_server, request_timeout=request_timeout_ms / 1000, **arguments)


def rows_of(options: ViewOptions) -> Iterator[Row]:
    """Yield a view's rows with all columns."""
    admin, failed = _admin_for(options), Failures()
    options = _with_short_names(options)
    for topic in options.topics:
        admin.topic_route(topic)  # raises if the topic does not exist
    yield from _ROWS[options.view](admin, options, failed)
    _report(options, failed, admin.cluster_info().broker_addr_table.keys() <= failed.keys())


def _with_short_names(options: ViewOptions) -> ViewOptions:
    """Return the options with the names that rows have."""
    unwrap = options.namespace.unwrap
    return replace(
        options,
        topics=tuple(map(unwrap, options.topics)),
        consumer_group=options.consumer_group and unwrap(options.consumer_group),
        producer_group=options.producer_group and unwrap(options.producer_group),
    )


def _report(options: ViewOptions, failed: Failures, is_nothing: bool) -> None:
    """Log the brokers that did not respond. Raises the first error if none responded."""
    for name, error in failed.items():
        if is_nothing:
            raise error
        log.warning("the view %s lacks the data of %s: %s", options.view, name, error)


def _cluster(admin: Admin, options: ViewOptions, failed: Failures) -> Iterator[Row]:
    for name, broker in sorted(admin.cluster_info().broker_addr_table.items()):
        for broker_id, address in sorted(broker.broker_addrs.items()):
            row = {"cluster": broker.cluster, "brokerName": name, "brokerId": broker_id, "address": address}
            yield row | {"zone": broker.zone_name or None}


def _brokers(admin: Admin, options: ViewOptions, failed: Failures) -> Iterator[Row]:
    names = "put_tps get_tps messagesToday=put_today commit_log_min_offset commit_log_max_offset disk_ratio info=raw"
    for broker in admin.brokers():
        reported: Row = {}
        if (runtime := broker.runtime) is not None:
            reported = pick(runtime, names) | {"startTime": _time(runtime.started_ms)}
            reported["version"] = runtime.raw.get("brokerVersionDesc")
        yield pick(broker, "cluster brokerName=name broker_id address error") | reported


def _topics(admin: Admin, options: ViewOptions, failed: Failures) -> Iterator[Row]:
    clusters = {name: broker.cluster for name, broker in admin.cluster_info().broker_addr_table.items()}
    letters = ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))
    for row in (row for info in _wanted(admin, options, failed) for row in info.rows):
        yield pick(row, "topic broker_name read_queues write_queues order") | {
            "cluster": clusters.get(row.broker_name),
            "perm": "".join(letter if row.perm & bit else "-" for bit, letter in letters),
            "isSystem": row.kind is not TopicKind.USER,
            "attributes": (attributes := {key.removeprefix("+"): str(value) for key, value in row.attributes.items()}),
            "type": attributes.get("message.type"),
        }


def _wanted(admin: Admin, options: ViewOptions, failed: Failures) -> list[TopicInfo]:
    return [info for info in admin.topic_list(failed=failed) if not options.topics or info.name in options.topics]


def _queues(admin: Admin, options: ViewOptions, failed: Failures) -> Iterator[Row]:
    infos = [info for info in _wanted(admin, options, failed) if options.topics or info.kind is TopicKind.USER]
    for state in admin.topic_states(infos, failed=failed).values():
        for row in state.queues:
            values = pick(row, "min_offset max_offset messages")
            yield pick(row.queue, _QUEUE) | values | {"lastUpdateTime": _time(row.last_stored_ms)}


def _group_states(
    admin: Admin, options: ViewOptions, failed: Failures, *, topic: str | None = None, progress: bool = True
) -> Iterator[tuple[GroupInfo, GroupState]]:
    """Yield the groups with their states; only the requested one if the options name one."""
    infos = [info for info in admin.groups(failed=failed) if options.consumer_group in (None, info.name)]
    names = [info.name for info in infos]
    states = admin.group_states(names, topic=topic, delays=False, progress=progress, failed=failed)
    for info in infos:
        yield info, states[info.name]


def _groups(admin: Admin, options: ViewOptions, failed: Failures) -> Iterator[Row]:
    for info, state in _group_states(admin, options, failed):
        of_group = pick(info, "group=name retry_max_times") | {"brokers": sorted(info.configs)}
        of_state = pick(state, "topics=own_topics consume_type message_model consume_from_where")
        yield of_group | of_state | {"members": len(state.members)}


def _lag(admin: Admin, options: ViewOptions, failed: Failures) -> Iterator[Row]:
    for topic in options.topics or (None,):
        for info, state in _group_states(admin, options, failed, topic=topic):
            for row in state.queues:
                values = pick(row, "broker_offset consumer_offset lag") | {"lastConsumeTime": _time(row.last_timestamp)}
                yield {"group": info.name} | pick(row.queue, _QUEUE) | values


def _consumers(admin: Admin, options: ViewOptions, failed: Failures) -> Iterator[Row]:
    for info, state in _group_states(admin, options, failed, progress=False):
        subscription = {topic: data.sub_string for topic, data in sorted(state.subscriptions.items())}
        of_group = pick(state, "consume_type message_model") | {"subscription": subscription}
        yield from (row | of_group for row in _connections(info.name, state.members))


def _producers(admin: Admin, options: ViewOptions, failed: Failures) -> Iterator[Row]:
    group = options.producer_group or ""
    yield from _connections(group, admin.producers(group, failed=failed))


def _connections(group: str, members: list[Member]) -> Iterator[Row]:
    for one in (one for member in members for one in member.connections):
        yield {"group": group} | pick(one, "client_id broker_name address language version")


_ROWS: dict[str, Callable[[Admin, ViewOptions, Failures], Iterator[Row]]] = {
    "cluster": _cluster,
    "brokers": _brokers,
    "topics": _topics,
    "queues": _queues,
    "groups": _groups,
    "lag": _lag,
    "consumers": _consumers,
    "producers": _producers,
}


# --- messages ---------------------------------------------------------------------------------------------------


def batches_of(options: ViewOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of views that consist of messages."""
    return _messages(options) if options.view == "messages" else _dead_letters(options, schema)


def _messages(options: ViewOptions) -> Iterator[pa.RecordBatch]:
    reader = reader_of(options)
    index = BrokerIndex(reader, options.request_timeout_ms / 1000)
    failed, has_responded = Failures(), False
    columns = project(MESSAGE_SCHEMA, options.namespace)
    for topic in options.topics:
        brokers = {queue.broker_name: queue for queue in reader.refresh(topic)}
        for name, queue in sorted(brokers.items()):
            try:
                records = b"".join(_hits(index, queue, options))
                has_responded = True
                while records:
                    try:
                        yield columns.conform(decode_records(records, columns.columns, broker_name=name))
                        break
                    except ProtocolError:
                        damaged = damaged_record(records)
                        if damaged is None:
                            raise
                        where = MessageQueue(topic, name, damaged.queue_id).name
                        failed[f"{where}@{damaged.queue_offset}"] = damaged
                        records = records[: damaged.position] + records[damaged.end :]
            except RocketError as error:
                failed[name] = error
    _report(options, failed, not has_responded)


def _hits(index: BrokerIndex, queue: MessageQueue, options: ViewOptions) -> Iterator[bytes | bytearray | memoryview]:
    """Yield the records that have the key or the id. The index only compares hashes of keys."""
    wanted = options.key or options.msg_id or ""
    responses = [index.query(queue, wanted, _MAX_MESSAGES)]
    if options.msg_id is not None and (at := physical_offset(options.msg_id)) >= 0:
        responses.append(index.view(queue, at))
    seen: set[int] = set()
    for response in responses:
        start = 0
        for message in response.messages:
            end = start + message.store_size
            has = wanted == message.msg_id if options.key is None else wanted in (message.keys or "").split(" ")
            if has and message.topic == queue.topic and message.physical_offset not in seen:
                seen.add(message.physical_offset)
                yield response.records[start:end]
            start = end


def _dead_letters(options: ViewOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    group = options.consumer_group or ""
    given = {
        "subscribe": DLQ_PREFIX + group,
        "nameServer": options.name_server,
        "requestTimeout": str(options.request_timeout_ms),
        "failOnDataLoss": "false",
        "namespace": options.namespace.name,
    }
    own = {
        "connection": options.connection,
        "consumer_group": options.consumer_group,
    }
    reading = replace(parse_read_options(given, Scope.READ), **own)  # type: ignore[arg-type]
    try:
        spans = batch_ranges(Cluster(reading), reading)
    except TopicNotFoundError:
        return  # the group never had a dead letter
    reader = reader_of(options)
    for span in spans:
        for batch in read_range(span, reading, project(MESSAGE_SCHEMA, options.namespace), reader):
            properties = batch.column("properties")
            first = [
                pc.coalesce(*(pc.map_lookup(properties, pa.scalar(name), "first") for name in names))
                for names in (("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"), ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID"))
            ]
            groups = pa.repeat(pa.scalar(options.namespace.unwrap(group)), batch.num_rows)
            others = [batch.column(name) for name in schema.names[3:]]
            yield pa.RecordBatch.from_arrays([groups, *first, *others], schema=schema)


# --- values -----------------------------------------------------------------------------------------------------


def _time(milliseconds: int | None) -> datetime | None:
    if milliseconds is None or not 0 < milliseconds < 1 << 47:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
