"""The place of a ledger, and its id: the first id among the records of its queue.

Functions of one driver's process.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.datasource.exactly_once.records import id_record, parse_record
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers
from spark_rocket.errors import QueueNotFoundError
from spark_rocket.model import MessageQueue

_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """The ledger's queue and its id."""

    queue: MessageQueue
    ledger: str


def id_of(brokers: Brokers, queue: MessageQueue) -> str:
    """The id in the ledger's first record that has one. Appends such a record if there is none."""
    found = _first_id(brokers, queue, brokers.end(queue))
    if found is None:
        body, tag = id_record()
        found = _first_id(brokers, queue, brokers.append(queue, body, tags=tag).queue_offset + 1)
    if found is None:
        raise QueueNotFoundError(f"{queue.name} does not show its first record yet.", retriable=True)
    return found


def _first_id(brokers: Brokers, queue: MessageQueue, end: int) -> str | None:
    position = brokers.start(queue)
    while position < end:
        messages, following = brokers.messages(queue, position, wait_ms=_WAIT_MS)
        for message in messages:
            ledger = parse_record(message, queue).more.get("ledger")
            if ledger:
                return str(ledger)
        if following == position:
            raise QueueNotFoundError(f"{queue.name} does not show its messages from {position} on.", retriable=True)
        position = following
    return None
