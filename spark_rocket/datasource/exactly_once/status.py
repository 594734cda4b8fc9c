"""What the ledger says of every query that writes exactly once: its last epoch, for people who watch it.

Reads the ledger from its first message to its end, by pulls alone, and changes nothing. The newest epoch of a query is
the one of its highest batch. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

from spark_rocket.client.consume.reader import Reader
from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.ledger import DONE, PREPARED, VERSION, Record, parse_record
from spark_rocket.datasource.exactly_once.manifest import Manifest
from spark_rocket.datasource.offsets import name
from spark_rocket.errors import DataSourceError
from spark_rocket.model import MessageExt, MessageQueue


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The last epoch of one query. ``state``: PREPARED, RESUMED or DONE; times are ms since 1970."""

    query: str
    batch: int
    state: str
    run: str
    time: int
    """Of the epoch's newest record."""
    prepared: int | None
    """When it was decided; None if that record has expired."""
    blocks: int | None
    """Staged blocks and their rows; None if the manifest is not in the ledger's record."""
    rows: int | None
    published: int | None
    """Rows that the publisher sent, duplicates and duration: known when it is DONE."""
    duplicates: int | None
    ms: int | None


def sink_statuses(reader: Reader, ledger_topic: str) -> list[SinkStatus]:
    """One for each query in the ledger, the one that wrote last first.

    Raises TopicNotFoundError, EXACTLY_ONCE.LEDGER_QUEUES for a topic with several queues, EXACTLY_ONCE.FOREIGN_MESSAGE
    for a message that is not a record, and the errors of requests.
    """
    queues = reader.refresh(ledger_topic)
    if len(queues) != 1:
        raise condition("EXACTLY_ONCE.LEDGER_QUEUES", topic=ledger_topic, count=len(queues))
    epochs: dict[str, list[tuple[Record, int]]] = {}
    for message in _messages(reader, queues[0]):
        record = parse_record(message, queues[0])
        if record.version != VERSION:
            where, version = name(queues[0]), record.version
            raise condition(
                "EXACTLY_ONCE.LEDGER_VERSION", queue=where, offset=record.offset, version=version, ours=VERSION
            )
        epoch = epochs.setdefault(record.query, [])
        if epoch and record.batch > epoch[-1][0].batch:
            epoch.clear()
        if not epoch or record.batch == epoch[-1][0].batch:
            epoch.append((record, message.store_timestamp))
    return sorted((_status(epoch) for epoch in epochs.values()), key=lambda status: -status.time)


def _messages(reader: Reader, queue: MessageQueue) -> Iterator[MessageExt]:
    position, end = reader.min_offset(queue), reader.max_offset(queue)
    while position < end:
        found = reader.messages(queue, position)
        if not found:
            raise DataSourceError(f"{name(queue)} does not show its messages from {position} on now.", retriable=True)
        yield from found
        position = found[-1].queue_offset + 1


def _status(epoch: list[tuple[Record, int]]) -> SinkStatus:
    decision, prepared = next((each for each in epoch if each[0].kind == PREPARED), (None, None))
    done = next((each for each in epoch if each[0].kind == DONE), None)
    newest, time = done or epoch[-1]
    figures = done[0].more if done else {}
    encoded = decision.more.get("manifest") if decision and not done else None
    manifest = Manifest.decode(base64.b64decode(encoded)) if encoded else None
    return SinkStatus(
        newest.query,
        newest.batch,
        newest.kind,
        newest.run,
        time,
        prepared,
        len(manifest.blocks) if manifest else figures.get("blocks"),
        manifest.rows if manifest else figures.get("rows"),
        *(figures.get(key) for key in ("published", "duplicates", "ms")),
    )
