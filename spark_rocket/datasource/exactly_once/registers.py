"""Registers: two numbers that a streaming query remembers beyond the life of the ledger's messages.

They are offsets of one group for all queries (``ledgerGroup``), in queues that the ledger topic does not have. So an
administrator can grant all names before the first start. Brokers store the offset of any queue id of an existing topic,
and do not delete the offsets of a group that has one above the start of its queue.

==================  ====================================================================================================
queue id            offset
==================  ====================================================================================================
``2 * slot``        the position of the query's last PREPARED
``2 * slot + 1``    its batch: fingerprint (22 bits), former (1 bit), batch + 1 (40 bits), from the highest bit down
0                   the end of the ledger after a DONE, so that the group never shows a lag
==================  ====================================================================================================

Slot and fingerprint are hashes of the query's id. A query whose slot has another fingerprint takes the next of its
slots. The batch is trusted if the fingerprint is the query's; the position, if the record there is the query's.
A lost or rewound register costs reading: what the ledger shows counts.

Earlier versions had a group for each query (``former_group``): queue 0 had the position, queue 1 the batch + 1. It is
adopted in these steps, each of which can be the last one: write both registers, with ``former`` set; read the batch
back; remove the group; write the batch without ``former``.

Not thread-safe.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from spark_rocket.datasource.exactly_once.records import tag_of
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers
from spark_rocket.errors import DataSourceError, RocketError
from spark_rocket.model import SINK_PREFIX, MessageQueue, group_problem
from spark_rocket.protocol.wire.codes import ResponseCode

_SLOTS = 8  # of a query: two queries that share one are rare, and share the next one independently
_FIRST_SLOT, _LAST_SLOT = 1 << 9, (1 << 30) - 1  # above the queues of any topic, and at most 2^31 - 1 as a queue id
_BATCH_BITS, _FINGERPRINT_BITS = 40, 22
_FORMER = 1 << _BATCH_BITS
_ABSENT = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST})

log = logging.getLogger("spark_rocket.datasource")


def former_group(ledger_topic: str, query: str) -> str:
    """The group whose offsets a query remembered in earlier versions."""
    group = f"{ledger_topic}-{query}"
    return group if group_problem(group) is None else f"{SINK_PREFIX}-{tag_of(group)}"


def slots_of(query: str) -> Iterator[int]:
    """The slots of a query, in the order in which it tries them."""
    for number in range(_SLOTS):
        yield _FIRST_SLOT + _hash(f"slot {number} of {query}", 64) % (_LAST_SLOT + 1 - _FIRST_SLOT)


def fingerprint_of(query: str) -> int:
    return _hash(f"fingerprint of {query}", _FINGERPRINT_BITS)


def _hash(text: str, bits: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 64 - bits


@dataclass(frozen=True, slots=True)
class RememberedPosition:
    """The position of a query's last PREPARED, and its batch. None: unknown."""

    position: int | None = None
    batch: int | None = None


class Registers:
    """The registers of one query."""

    def __init__(self, brokers: Brokers, ledger: MessageQueue, query: str) -> None:
        self._brokers = brokers
        self._ledger = ledger
        self._query = query
        self._former = former_group(ledger.topic, query)
        self._slot: int | None = None
        self._is_new = True
        self._adopts = False

    def read(self) -> RememberedPosition:
        """What the query remembers. One attempt: what may succeed later is a retriable error."""
        value = self._find()
        self._is_new = not value
        position = self._number(2 * self._slot) if value and self._slot is not None else None
        memory = RememberedPosition(position or None, (value & _FORMER - 1) - 1 if value else None)
        if value and not value & _FORMER:
            return memory
        former = self._read_former()
        self._adopts = bool(value) or former != RememberedPosition()
        if memory.batch is None or (former.batch or 0) > memory.batch:
            return former
        return memory

    def write(self, position: int, batch: int) -> None:
        """Remember a decision, and adopt the former group."""
        self._store(position, batch, _FORMER if self._adopts else 0)
        if self._adopts and self._brokers.remove_group(self._former):
            log.info("adopted the offsets of group %s, and removed it", self._former)
            self._store(position, batch, 0)
            self._adopts = False

    def _store(self, position: int, batch: int, former: int) -> None:
        value = fingerprint_of(self._query) << _BATCH_BITS + 1 | former | batch + 1
        for _ in range(_SLOTS):
            if self._slot is None:
                break
            self._set(2 * self._slot, position)
            self._set(2 * self._slot + 1, value)
            if not self._is_new or self._number(2 * self._slot + 1) == value:
                self._is_new = False
                return
            self._find()  # another query wrote there at the same time, or the broker lost the group's first offset
        raise DataSourceError(f"group {self._brokers.group} has no free register for query {self._query}")

    def _find(self) -> int:
        """Find the query's slot, or the first free one. Returns the value of its batch; 0: it is free."""
        for slot in slots_of(self._query):
            value = self._number(2 * slot + 1)
            if not value or value >> _BATCH_BITS + 1 == fingerprint_of(self._query):
                self._slot = slot
                return value
        self._slot = None
        return 0

    def _number(self, queue_id: int) -> int:
        """A register; 0 if it is not set, as some brokers answer."""
        return self._brokers.committed(self._brokers.group, self._queue(queue_id)) or 0

    def _set(self, queue_id: int, value: int) -> None:
        self._brokers.commit(self._brokers.group, self._queue(queue_id), value)

    def _queue(self, queue_id: int) -> MessageQueue:
        return MessageQueue(self._ledger.topic, self._ledger.broker_name, queue_id)

    def _read_former(self) -> RememberedPosition:
        try:
            position, batch = (self._brokers.committed(self._former, self._queue(queue_id)) for queue_id in (0, 1))
        except RocketError as problem:
            if problem.response_code not in _ABSENT:
                raise
            log.info("group %s of an earlier version is not read: %s", self._former, problem)
            return RememberedPosition()
        return RememberedPosition(position or None, batch - 1 if batch else None)

    def show_progress(self, end: int) -> None:
        """Commit the end of the ledger for tools that show lags."""
        self._set(0, end)
