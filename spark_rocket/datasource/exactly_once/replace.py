"""The place of a ledger for people: shown, and replaced when its broker is permanently lost.

Without PySpark. After a crash the entry is the old or the new one; run the replacement again.
Corresponds to ``mqadmin updateKvConfig``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.client.admin import Failures
from spark_rocket.client.core.routes import TopicRoute
from spark_rocket.datasource.exactly_once.entry import NAMESPACE, LedgerEntry
from spark_rocket.datasource.exactly_once.records import id_record
from spark_rocket.datasource.exactly_once.status import ledger_id
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.errors import DataSourceError, TopicNotFoundError
from spark_rocket.model import Message, MessageQueue

NO_ENTRY = "no entry"
NO_QUEUE = "no queue"
_VISIBLE_MS = 5000


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one name server, or the topic's route, tells about the ledger's place."""

    source: str
    broker: str
    ledger: str


def ledger_evidence(admin: Admin, reader: Reader, topic: str) -> list[Evidence]:
    """The entries of all name servers and the queues of the topic. ``broker`` has the problem where there is one."""
    failed: Failures = {}
    entries = admin.kv_config_of_each(NAMESPACE, topic, failed=failed)
    found = []
    for server in admin.name_servers:
        try:
            entry = LedgerEntry.decode(entries[server])
            found.append(Evidence(server, entry.broker, entry.ledger or "being created"))
        except KeyError:
            problem = "no response" if server in failed else NO_ENTRY
            found.append(Evidence(server, problem, ""))
        except ValueError:
            found.append(Evidence(server, "invalid entry", entries[server]))
    queues = ledger_queues(admin, topic)
    return found + [Evidence(queue.name, queue.broker_name, ledger_id(reader, queue) or "") for queue in queues]


def given_evidence(admin: Admin, reader: Reader, queue: MessageQueue) -> list[Evidence]:
    """What tells about a ledger whose place options give (``given_place``): entries, and queues that were used.

    The given queue comes last, also if it was never used. Name servers need not have entries, nor tell them.
    """
    found = []
    for server, text in admin.kv_config_of_each(NAMESPACE, queue.topic, failed={}).items():
        with suppress(ValueError):
            entry = LedgerEntry.decode(text)
            found.append(Evidence(server, entry.broker, entry.ledger or "being created"))
    queues = ledger_queues(admin, queue.topic)
    used = [each for each in queues if each != queue and reader.max_offset(each)]
    found += [Evidence(each.name, each.broker_name, ledger_id(reader, each) or "") for each in used]
    if queue not in queues:
        return [*found, Evidence(queue.name, NO_QUEUE, "")]
    return [*found, Evidence(queue.name, queue.broker_name, ledger_id(reader, queue) or "")]


def is_clear(evidence: Sequence[Evidence]) -> bool:
    """Whether all of it names one broker and one id, of one queue. The ledger's records may have expired."""
    brokers, ids = {each.broker for each in evidence}, {each.ledger for each in evidence if each.ledger}
    queues = [each for each in evidence if "/" in each.source]
    return len(brokers) <= 1 and len(ids) <= 1 and len(queues) <= 1 and NO_QUEUE not in brokers


def ledger_queues(admin: Admin, topic: str) -> list[MessageQueue]:
    try:
        return list(TopicRoute.of(topic, admin.topic_route(topic)).readable)
    except TopicNotFoundError:
        return []


def replace_ledger(admin: Admin, reader: Reader, producer: Producer, topic: str, broker: str) -> LedgerEntry:
    """Make the queue on ``broker`` the ledger, created if it is missing, and set the entries of all name servers."""
    others = [queue for queue in ledger_queues(admin, topic) if queue.broker_name != broker or queue.queue_id]
    if others:
        raise DataSourceError(
            f"The ledger topic {topic} also has {', '.join(queue.name for queue in others)}.",
            remedy="Name this broker, or delete the queue first.",
        )
    admin.create_topic(topic, 1, broker=broker)
    queue = MessageQueue(topic, broker, 0)
    if ledger_id(reader, queue) is None:
        body, tag = id_record()
        producer.send(Message.of(topic, body, tags=tag), queue=queue)
    ledger = RetryDeadline(_VISIBLE_MS).call(lambda: ledger_id(reader, queue), "to read the ledger")
    entry = LedgerEntry(broker, ledger or "")
    admin.put_kv_config(NAMESPACE, topic, entry.encode())
    return entry
