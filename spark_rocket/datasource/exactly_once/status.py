"""The last epoch of every query that writes exactly once, as the ledger has it.

Reads the ledger from its first message to its end, and staged parts of manifests, by pulls alone. Changes nothing and
does not import PySpark. The newest epoch of a query is that of its highest batch.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from spark_rocket.client.consume.reader import Reader
from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.manifest import Manifest
from spark_rocket.datasource.exactly_once.records import DONE, LEDGER, PREPARED, VERSION, Record, parse_record
from spark_rocket.errors import DataSourceError, QueueNotFoundError, RocketError
from spark_rocket.model import MessageExt, MessageQueue

log = logging.getLogger("spark_rocket.datasource")

NEWER = "newer version"


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The last epoch of one query. Times are ms since 1970.

    ``state`` is PREPARED, RESUMED or DONE, or NEWER if a newer spark_rocket wrote records of the query; only ``query``
    and ``time`` are known then.
    """

    query: str
    batch: int | None
    state: str
    run: str
    time: int
    """Of the epoch's newest record."""
    prepared: int | None = None
    """When it was decided; None if that record has expired."""
    blocks: int | None = None
    """Staged blocks and their rows; None if the manifest cannot be read any more."""
    rows: int | None = None
    published: int | None = None
    """Rows that the publisher sent, duplicates and duration: known when it is DONE."""
    duplicates: int | None = None
    ms: int | None = None
    name: str | None = None
    """The query's name; None if it has none, or for records of older versions."""
    topics: tuple[str, ...] = ()
    """The target topics, as far as they are known."""


def sink_statuses(reader: Reader, ledger_topic: str, place: MessageQueue | None = None) -> list[SinkStatus]:
    """One status for each query in the ledger, sorted by time, the newest first.

    ``place``: the queue that ledgerBroker and ledgerQueue name. Without it, it is the topic's only queue that was used.

    Raises TopicNotFoundError, QueueNotFoundError for a missing place, EXACTLY_ONCE.LEDGER_QUEUES for a topic with
    several used queues, EXACTLY_ONCE.FOREIGN_MESSAGE for a message that is not a record, and the errors of requests.
    """
    ledger = _ledger_queue(reader, ledger_topic, place)
    epochs: dict[str, list[tuple[Record, int]]] = {}
    newer: dict[str, int] = {}
    for message in _messages(reader, ledger):
        record = parse_record(message, ledger)
        if record.version != VERSION:
            newer[record.query] = message.store_timestamp
            continue
        if record.kind == LEDGER:
            continue
        epoch = epochs.setdefault(record.query, [])
        if epoch and record.batch > epoch[-1][0].batch:
            epoch.clear()
        if not epoch or record.batch == epoch[-1][0].batch:
            epoch.append((record, message.store_timestamp))
    found = [_status(reader, epoch) for query, epoch in epochs.items() if query not in newer]
    unknown = [SinkStatus(query, None, NEWER, "", time) for query, time in newer.items()]
    return sorted(found + unknown, key=lambda status: -status.time)


def _ledger_queue(reader: Reader, topic: str, place: MessageQueue | None) -> MessageQueue:
    queues = reader.refresh(topic)
    if place is not None:
        if place in queues:
            return place
        where = ", ".join(queue.name for queue in queues)
        raise QueueNotFoundError(
            f"The ledger topic has no queue {place.name} now; its queues: {where}.",
            remedy="Use ledgerBroker and ledgerQueue of the writes, and start that broker.",
        )
    used = queues if len(queues) == 1 else [queue for queue in queues if reader.max_offset(queue)]
    if len(used) > 1:
        where = ", ".join(queue.name for queue in used)
        raise condition("EXACTLY_ONCE.LEDGER_QUEUES", topic=topic, count=len(used), where=where)
    return (used or queues)[0]


def ledger_id(reader: Reader, queue: MessageQueue) -> str | None:
    """The id in the ledger's first record that has one."""
    ids = (parse_record(message, queue).more.get("ledger") for message in _messages(reader, queue))
    return next(filter(None, ids), None)


def _messages(reader: Reader, queue: MessageQueue) -> Iterator[MessageExt]:
    position, end = reader.min_offset(queue), reader.max_offset(queue)
    while position < end:
        found = reader.messages(queue, position)
        if not found:
            raise DataSourceError(f"{queue.name} does not show its messages from {position} on now.", retriable=True)
        yield from found
        position = found[-1].queue_offset + 1


def _status(reader: Reader, epoch: list[tuple[Record, int]]) -> SinkStatus:
    decision, prepared = next((each for each in epoch if each[0].kind == PREPARED), (None, None))
    done = next((each for each in epoch if each[0].kind == DONE), None)
    newest, time = done or epoch[-1]
    figures = done[0].more if done else {}
    manifest = _manifest(reader, decision) if decision and not done else None
    known = [record for record in (decision, done and done[0]) if record is not None]
    topics: set[str] = {topic for record in known for topic in record.more.get("topics", ())}
    if manifest:
        topics |= {block.target.topic for block in manifest.blocks}
    return SinkStatus(
        newest.query,
        newest.batch,
        newest.kind,
        newest.run,
        time,
        prepared,
        len(manifest.blocks) if manifest else figures.get("blocks"),
        manifest.rows if manifest else figures.get("rows"),
        figures.get("published"),
        figures.get("duplicates"),
        figures.get("ms"),
        next((record.more["name"] for record in known if "name" in record.more), None),
        tuple(sorted(topics)),
    )


def _manifest(reader: Reader, decision: Record) -> Manifest | None:
    """The manifest of a decision; None if staged parts of it have expired or are of a newer version."""
    try:
        if "manifest" in decision.more:
            return Manifest.decode(base64.b64decode(decision.more["manifest"]))
        places = [(MessageQueue(*queue), offset) for *queue, offset in decision.more["parts"]]
        return Manifest.decode(b"".join(_body(reader, queue, offset) for queue, offset in places))
    except (RocketError, ValueError, KeyError, TypeError) as problem:
        log.info("the manifest of batch %d of %s cannot be read: %s", decision.batch, decision.query, problem)
        return None


def _body(reader: Reader, queue: MessageQueue, offset: int) -> bytes:
    for message in reader.messages(queue, offset, max_msgs=1):
        if message.queue_offset == offset:
            return bytes(message.body)
    raise DataSourceError(f"{queue.name} has no message at offset {offset}.")
