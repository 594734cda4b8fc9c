"""Convert servers' responses to the rows of views.

A view shows what is available. The log names the brokers that did not respond; the query fails only if none responded.
Runs in one task of an executor, on one thread; an unavailable broker gets one request. Corresponds to the list commands
of RocketMQ's mqadmin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.client.admin import Admin
from spark_rocket.datasource.options.connection import connecting
from spark_rocket.datasource.options.options import ViewOptions, parse_read_options
from spark_rocket.datasource.options.parsers import is_user_topic
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.cluster import Cluster
from spark_rocket.datasource.plan.lookup import BrokerIndex, physical_offset
from spark_rocket.datasource.plan.planner import batch_ranges
from spark_rocket.datasource.read.fetch import read_range
from spark_rocket.datasource.readers import reader_of
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, project
from spark_rocket.errors import ClientError, RocketError, TopicNotFoundError
from spark_rocket.model import BENCHMARK_TOPIC, DLQ_PREFIX, RETRY_PREFIX, MessageQueue
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig
from spark_rocket.protocol.wire.bodies.route import MASTER_ID, BrokerData
from spark_rocket.protocol.wire.bodies.stats import (
    ConsumerConnection,
    OffsetWrapper,
    ProducerConnection,
    TopicStatsTable,
)
from spark_rocket.protocol.wire.codes import PERM_INHERIT, PERM_READ, PERM_WRITE
from spark_rocket.remoting.tls.settings import TlsSettings

T = TypeVar("T")
Row = dict[str, Any]
log = logging.getLogger("spark_rocket.datasource")

_MAX_MESSAGES = 1024  # per broker and key


def _admin_for(options: ViewOptions) -> Admin:
    return _admin(options.name_server, options.request_timeout_ms, options.credentials, options.tls)


@cache
def _admin(
    name_server: str, request_timeout_ms: int, credentials: Credentials | None, tls: TlsSettings | None
) -> Admin:
    return Admin(name_server, request_timeout=request_timeout_ms / 1000, **connecting(credentials, tls))


@dataclass
class ViewRequests:
    """The requests of one view, and the brokers that did not respond."""

    options: ViewOptions
    admin: Admin
    unavailable: dict[str, RocketError] = field(default_factory=dict)
    answered: bool = False

    def brokers(self) -> list[BrokerData]:
        table = self.admin.cluster_info().broker_addr_table
        return [table[name] for name in sorted(table)]

    def of_each_broker(self, question: Callable[[str], T]) -> Iterator[tuple[BrokerData, T]]:
        """Yield each master's response; brokers that fail are recorded."""
        for broker in self.brokers():
            answer = self.ask(broker, question)
            if answer is not None:
                yield broker, answer

    def ask(self, broker: BrokerData, question: Callable[[str], T]) -> T | None:
        """Send one more request; None if the broker does not respond, or did not before."""
        if broker.broker_name in self.unavailable:
            return None
        address = broker.broker_addrs.get(MASTER_ID)
        try:
            if address is None:
                raise ClientError(f"Broker {broker.broker_name!r} has no master now.", remedy="Start the master.")
            answer = question(address)
        except RocketError as error:
            self.unavailable[broker.broker_name] = error
            return None
        self.answered = True
        return answer

    def finish(self) -> None:
        """Log the brokers that did not respond. Raises the first error if none responded."""
        for name, error in self.unavailable.items():
            if not self.answered:
                raise error
            log.warning("the view %s lacks the data of broker %s: %s", self.options.view, name, error)


def rows_of(options: ViewOptions) -> Iterator[Row]:
    """Yield a view's rows with all columns."""
    requests = ViewRequests(options, _admin_for(options))
    for topic in options.topics:
        requests.admin.topic_route(topic)  # raises if the topic does not exist
    yield from _ROWS[options.view](requests)
    requests.finish()


def _cluster(requests: ViewRequests) -> Iterator[Row]:
    for broker in requests.brokers():
        for broker_id, address in sorted(broker.broker_addrs.items()):
            yield {
                "cluster": broker.cluster,
                "brokerName": broker.broker_name,
                "brokerId": broker_id,
                "address": address,
                "zone": broker.zone_name or None,
            }


def _brokers(requests: ViewRequests) -> Iterator[Row]:
    for row in _cluster(requests):
        info: dict[str, str] = {}
        error = None
        try:
            info = requests.admin.runtime_info(row["address"])
        except RocketError as failure:
            error = str(failure)
        yield row | {
            "version": info.get("brokerVersionDesc"),
            "startTime": _time(_whole(info.get("bootTimestamp"))),
            "putTps": _rate(info.get("putTps")),
            "getTps": _rate(info.get("getTransferredTps") or info.get("getTransferedTps")),
            "messagesToday": _today(info),
            "commitLogMinOffset": _whole(info.get("commitLogMinOffset")),
            "commitLogMaxOffset": _whole(info.get("commitLogMaxOffset")),
            "diskRatio": _rate(info.get("commitLogDiskRatio")),
            "info": info if error is None else None,
            "error": error,
        }


def _topics(requests: ViewRequests) -> Iterator[Row]:
    for broker, topics in requests.of_each_broker(requests.admin.topic_configs):
        for name, topic in sorted(topics.items()):
            if requests.options.topics and name not in requests.options.topics:
                continue
            letters = ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))
            attributes = {key.removeprefix("+"): str(value) for key, value in topic.attributes.items()}
            yield {
                "topic": name,
                "cluster": broker.cluster,
                "brokerName": broker.broker_name,
                "readQueues": topic.read_queue_nums,
                "writeQueues": topic.write_queue_nums,
                "perm": "".join(letter if topic.perm & bit else "-" for bit, letter in letters),
                "order": topic.order,
                "isSystem": _is_system(name, broker),
                "attributes": attributes,
                "type": attributes.get("message.type"),
            }


def _queues(requests: ViewRequests) -> Iterator[Row]:
    for broker, topics in requests.of_each_broker(requests.admin.topic_configs):
        for topic in sorted(topics):
            if topic not in requests.options.topics if requests.options.topics else _is_system(topic, broker):
                continue
            stats = requests.ask(broker, partial(_topic_stats, requests.admin, topic))
            for queue, offsets in sorted(stats.offset_table.items()) if stats is not None else ():
                yield {
                    "topic": topic,
                    "brokerName": broker.broker_name,
                    "queueId": queue.queue_id,
                    "minOffset": offsets.min_offset,
                    "maxOffset": offsets.max_offset,
                    "messages": max(0, offsets.max_offset - offsets.min_offset),
                    "lastUpdateTime": _time(offsets.last_update_timestamp),
                }


def _known_groups(requests: ViewRequests) -> Iterator[tuple[BrokerData, dict[str, SubscriptionGroupConfig]]]:
    """Yield the groups known to each broker; only the requested one if the options name one."""
    wanted = requests.options.consumer_group
    for broker, groups in requests.of_each_broker(requests.admin.subscription_groups):
        yield broker, {name: groups[name] for name in sorted(groups) if wanted in (None, name)}


def _groups(requests: ViewRequests) -> Iterator[Row]:
    found: dict[str, Row] = {}
    members: dict[str, set[str]] = {}
    for broker, groups in _known_groups(requests):
        for name, config in groups.items():
            row = found.setdefault(
                name,
                {
                    "group": name,
                    "brokers": [],
                    "topics": set(),
                    "consumeType": None,
                    "messageModel": None,
                    "consumeFromWhere": None,
                    "retryMaxTimes": config.retry_max_times,
                },
            )
            row["brokers"].append(broker.broker_name)
            connection = requests.ask(broker, partial(_members, requests.admin, name))
            if connection is None:
                continue
            topics = set(connection.subscription_table)
            if connection.connection_set:
                members.setdefault(name, set()).update(one.client_id for one in connection.connection_set)
                row["consumeType"] = connection.consume_type or row["consumeType"]
                row["messageModel"] = connection.message_model or row["messageModel"]
                row["consumeFromWhere"] = connection.consume_from_where or row["consumeFromWhere"]
            else:  # no consumer is connected: list the topics with committed offsets
                stats = requests.ask(broker, partial(_consumed, requests.admin, name, None))
                topics = {queue.topic for queue in stats or ()}
            row["topics"].update(topic for topic in topics if not topic.startswith(RETRY_PREFIX))
    for name in sorted(found):
        row = found[name]
        yield row | {"members": len(members.get(name, ())), "topics": sorted(row["topics"])}


def _lag(requests: ViewRequests) -> Iterator[Row]:
    for broker, groups in _known_groups(requests):
        for name in groups:
            for topic in requests.options.topics or (None,):
                stats = requests.ask(broker, partial(_consumed, requests.admin, name, topic))
                for queue, offsets in sorted((stats or {}).items()):
                    yield {
                        "group": name,
                        "topic": queue.topic,
                        "brokerName": broker.broker_name,
                        "queueId": queue.queue_id,
                        "brokerOffset": offsets.broker_offset,
                        "consumerOffset": offsets.consumer_offset,
                        "lag": max(0, offsets.broker_offset - max(0, offsets.consumer_offset)),
                        "lastConsumeTime": _time(offsets.last_timestamp),
                    }


def _consumers(requests: ViewRequests) -> Iterator[Row]:
    for broker, groups in _known_groups(requests):
        for name in groups:
            connection = requests.ask(broker, partial(_members, requests.admin, name)) or ConsumerConnection()
            subscription = {topic: one.sub_string for topic, one in sorted(connection.subscription_table.items())}
            for row in _clients(name, broker, connection):
                yield row | {
                    "subscription": subscription,
                    "consumeType": connection.consume_type,
                    "messageModel": connection.message_model,
                }


def _producers(requests: ViewRequests) -> Iterator[Row]:
    group = requests.options.producer_group or ""
    for broker, connection in requests.of_each_broker(partial(_producer_connection, requests.admin, group)):
        yield from _clients(group, broker, connection)


def _clients(group: str, broker: BrokerData, connection: ConsumerConnection | ProducerConnection) -> Iterator[Row]:
    for one in sorted(connection.connection_set, key=lambda client: client.client_id):
        yield {
            "group": group,
            "clientId": one.client_id,
            "brokerName": broker.broker_name,
            "address": one.client_addr,
            "language": one.language,
            "version": one.version,
        }


_ROWS: dict[str, Callable[[ViewRequests], Iterator[Row]]] = {
    "cluster": _cluster,
    "brokers": _brokers,
    "topics": _topics,
    "queues": _queues,
    "groups": _groups,
    "lag": _lag,
    "consumers": _consumers,
    "producers": _producers,
}


def _topic_stats(admin: Admin, topic: str, broker: str) -> TopicStatsTable:
    try:
        return admin.topic_stats(topic, broker=broker)
    except ClientError as error:
        if error.response_code is None:
            raise
        return TopicStatsTable()  # deleted in the meantime


def _members(admin: Admin, group: str, broker: str) -> ConsumerConnection:
    return admin.consumer_connection(group, broker=broker) or ConsumerConnection()


def _producer_connection(admin: Admin, group: str, broker: str) -> ProducerConnection:
    return admin.producer_connection(group, broker=broker) or ProducerConnection()


def _consumed(admin: Admin, group: str, topic: str | None, broker: str) -> dict[MessageQueue, OffsetWrapper]:
    """Return a group's offsets on a broker. Brokers respond with an error if there are none, or no such topic."""
    try:
        return admin.consume_stats(group, broker=broker, topic=topic).offset_table
    except ClientError as error:
        if error.response_code is None:
            raise
        return {}


# --- messages ---------------------------------------------------------------------------------------------------


def batches_of(options: ViewOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of views that consist of messages."""
    return _messages(options) if options.view == "messages" else _dead_letters(options, schema)


def _messages(options: ViewOptions) -> Iterator[pa.RecordBatch]:
    reader = reader_of(options)
    index = BrokerIndex(reader, options.request_timeout_ms / 1000)
    requests = ViewRequests(options, _admin_for(options))
    columns = project(MESSAGE_SCHEMA)
    for topic in options.topics:
        brokers = {queue.broker_name: queue for queue in reader.refresh(topic)}
        for name, queue in sorted(brokers.items()):
            try:
                records = b"".join(_hits(index, queue, options))
                if records:
                    yield columns.conform(decode_records(records, columns.columns, broker_name=name))
                requests.answered = True
            except RocketError as error:
                requests.unavailable[name] = error
    requests.finish()


def _hits(index: BrokerIndex, queue: MessageQueue, options: ViewOptions) -> Iterator[bytes | bytearray | memoryview]:
    """Yield the records that have the key or the id. The index only compares hashes of keys."""
    wanted = options.key or options.msg_id or ""
    answers = [index.query(queue, wanted, _MAX_MESSAGES)]
    if options.msg_id is not None and (at := physical_offset(options.msg_id)) >= 0:
        answers.append(index.view(queue, at))
    seen: set[int] = set()
    for answer in answers:
        start = 0
        for message in answer.messages:
            end = start + message.store_size
            has = wanted == message.msg_id if options.key is None else wanted in (message.keys or "").split(" ")
            if has and message.topic == queue.topic and message.physical_offset not in seen:
                seen.add(message.physical_offset)
                yield answer.records[start:end]
            start = end


def _dead_letters(options: ViewOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    group = options.consumer_group or ""
    given = {
        "subscribe": DLQ_PREFIX + group,
        "nameServer": options.name_server,
        "requestTimeout": str(options.request_timeout_ms),
        "failOnDataLoss": "false",
    }
    reading = replace(parse_read_options(given, Scope.READ), credentials=options.credentials, tls=options.tls)
    try:
        spans = batch_ranges(Cluster(reading), reading)
    except TopicNotFoundError:
        return  # the group never had a dead letter
    reader = reader_of(options)
    for span in spans:
        for batch in read_range(span, reading, project(MESSAGE_SCHEMA), reader):
            properties = batch.column("properties")
            first = [
                pc.coalesce(*(pc.map_lookup(properties, pa.scalar(name), "first") for name in names))
                for names in (("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"), ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID"))
            ]
            groups = pa.repeat(pa.scalar(group), batch.num_rows)
            others = [batch.column(name) for name in schema.names[3:]]
            yield pa.RecordBatch.from_arrays([groups, *first, *others], schema=schema)


# --- values -----------------------------------------------------------------------------------------------------


def _is_system(topic: str, broker: BrokerData) -> bool:
    """Return whether a topic belongs to brokers or groups."""
    own = (broker.cluster, broker.broker_name, f"{broker.cluster}_REPLY_TOPIC", BENCHMARK_TOPIC)
    return topic in own or not is_user_topic(topic)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _rate(text: str | None) -> float | None:
    """Return the first number: rates are those of the last 10, 60 and 600 s."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None


def _today(info: dict[str, str]) -> int | None:
    now, morning = _whole(info.get("msgPutTotalTodayNow")), _whole(info.get("msgPutTotalTodayMorning"))
    return None if now is None or morning is None else now - morning


def _time(milliseconds: int | None) -> datetime | None:
    if milliseconds is None or not 0 < milliseconds < 1 << 47:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
