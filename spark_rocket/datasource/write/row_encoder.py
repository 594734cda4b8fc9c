"""Encode rows of a data frame to blocks that are ready to be sent. Pure.

A batch of rows is checked, and each row gets its queue, its properties and its UNIQ_KEY. The batch is then encoded at
once into batch bodies, one for each run of rows with the same queue. No Python code runs per row, except to compress a
body.

A batch request has limits: brokers reject delayed messages in it, and it has one sysFlag for all its messages. Rows for
one queue therefore become up to three kinds of blocks:

* Plain blocks.
* Compressed blocks. Of free rows, the large ones are compressed; of rows with a queue of their own, all or none of a
  batch, so that their order is preserved.
* Delayed rows, each in its own block. They are delivered later than the rows around them in any case.

Queue selection: ``queueId`` names the queue. Otherwise ``shardingKey``, or the sharding key among the properties of a
copied message, selects it like RocketMQ's SelectMessageQueueByHash, so Java producers and this one use the same queue
for a key. Otherwise the row is *free*. A task's rows form *lots* of at most 10,000 rows and about 4 MiB of bodies; the
free rows of a lot go to one queue that is drawn for it (``TaskQueues``). Lots depend on the rows alone: batch and
request boundaries and compression do not move a row to another queue.

UNIQ_KEY (16 bytes, shown as 32 hexadecimal digits; the size and shape of the classic client's):

==========  ======================================================================================
bytes       what
==========  ======================================================================================
0 … 9       BLAKE2b of the write (query or job), the batch and the partition
10 … 15     the row's number in its partition. Where the classic id has its time stamp, so that tools
            which search the index from that time on begin at the start of the month
==========  ======================================================================================

It is a pure function of those four, so the duplicates of a retried task can be detected.

A ``RowEncoder`` belongs to one task and counts its rows. Corresponds to MessageBatch, MessageClientIDSetter and
SelectMessageQueueByHash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parsers import WRITABLE_TOPIC, can_be_written
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.errors import ProtocolError, RocketError, RowError
from spark_rocket.model import (
    DELAY,
    KEYS,
    MAX_DELAY_LEVEL,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    MessageQueue,
)
from spark_rocket.protocol.record.arrays import array_of, binary_of, numpy_of, string_scalar, strings_of
from spark_rocket.protocol.record.compression import COMPRESSION_BITS, compress_body
from spark_rocket.protocol.record.encoder import RowsPlan, hex_strings, plan_rows, value_offsets
from spark_rocket.protocol.record.namespaced import renamed
from spark_rocket.protocol.record.properties import PROPERTIES_LIMIT
from spark_rocket.protocol.record.spans import java_hashes

I64 = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

FREE = -1  # a row whose queue is drawn
LOT_ROWS, LOT_BYTES = 10_000, 4 << 20
# Properties that brokers and clients set, or that belong to one stored message: not copied from read messages.
_NOT_COPIED = (
    UNIQ_KEY, "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "MIN_OFFSET", "MAX_OFFSET", "MSG_TYPE",
    DELAY, TIMER_DELIVER_MS, "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "REAL_TOPIC", "REAL_QID",
    "TRAN_MSG", "PGROUP", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "__transactionId__", "RETRY_TOPIC", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME",
    "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET", "__CRC32#", "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT",
)  # fmt: skip
_TEXTS = ((TAGS, "tags"), (KEYS, "keys"), (SHARDING_KEY, "shardingkey"))
_TRANSIENT = "__RMQ.TRANSIENT."

_PLAIN, _COMPRESSED, _DELAYED = range(3)
_RESERVED_BYTES = 40_000  # more than any message's properties and what compression adds to incompressible bytes


@dataclass(frozen=True, slots=True)
class Block:
    """Rows for one queue, encoded as one batch body."""

    topic: str
    queue: MessageQueue
    body: memoryview
    count: int
    first_row: int
    sys_flag: int = 0
    is_delayed: bool = False
    """A single row, to be sent in its own request."""
    order: str | None = None
    """Delayed rows are ordered only among those with the same key."""
    is_free: bool = False
    """``queue`` was drawn: if it fails, another one may be drawn."""
    lot: int = 0
    """Free blocks of one lot go to the same queue; a delayed row is a lot of its own."""

    def rows(self) -> str:
        """Format the rows for messages."""
        return f"row {self.first_row}" if self.count == 1 else f"{self.count} rows from row {self.first_row} on"


def write_key(name: str, batch_id: str, partition: int) -> bytes:
    """Return the first ten bytes of UNIQ_KEY, which are the same for all rows of a task."""
    text = f"{name}\0{batch_id}\0{partition}".encode()
    return hashlib.blake2b(text, digest_size=10, person=b"spark_rocket").digest()


def unique_keys(key: bytes, rows: I64) -> pa.Array:
    """Return the UNIQ_KEY of each row number."""
    count, task = len(rows), key.hex().upper().encode()
    numbers = hex_strings(rows.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:])
    text = np.empty(count, np.dtype([("task", f"V{len(task)}"), ("row", "V12")]))
    text["task"] = np.frombuffer(task, f"V{len(task)}")
    text["row"] = np.frombuffer(numbers.buffers()[2], "V12") if count else b""
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(text.itemsize)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(text)])


class QueuesOf(Protocol):
    """Look up the writable queues of a topic; ``ordered``: including queues of unavailable brokers."""

    def __call__(self, topic: str, *, ordered: bool = False) -> Sequence[MessageQueue]: ...


class TaskQueues:
    """Chooses the queues of a task's rows: the one place that does.

    The queue of a free block is a function of the write, the block's lot and the topic's writable queues. A queue that
    is added or removed moves no lot between the others. A retried task draws the queue of the first attempt, where a
    reader can detect the duplicate.

    ``key`` is the write's. A look-up that fails is repeated within a ``retry_deadline``.
    """

    def __init__(self, queues_of: QueuesOf, key: bytes, retry_deadline: Callable[[], RetryDeadline]) -> None:
        self._queues_of = queues_of
        self._key = key
        self._retry_deadline = retry_deadline
        self._ordered: dict[str, list[MessageQueue]] = {}

    def ordered(self, topic: str) -> list[MessageQueue]:
        """Return the queues that rows may name, sorted; the same ones for all rows of the task."""
        queues = self._ordered.get(topic)
        if queues is None:
            queues = self._ordered[topic] = sorted(self._find(topic, ordered=True))
        return queues

    def drawn(self, topic: str, lot: int) -> MessageQueue:
        """Draw the queue of a lot."""
        return choose_queue(lot, self._find(topic, ordered=False), self._key)

    def drawn_elsewhere(self, topic: str, lot: int, avoid: Collection[str]) -> MessageQueue | None:
        """Draw a queue of brokers other than these; None if none is known now."""
        try:
            queues = [queue for queue in self._queues_of(topic) if queue.broker_name not in avoid]
        except RocketError:
            return None
        return choose_queue(lot, queues, self._key) if queues else None

    def _find(self, topic: str, *, ordered: bool) -> Sequence[MessageQueue]:
        return self._retry_deadline().call(lambda: self._queues_of(topic, ordered=ordered), f"to find {topic}")


def choose_queue(lot: int, queues: Sequence[MessageQueue], key: bytes) -> MessageQueue:
    """Draw a number for the lot in each queue; return the queue with the highest."""
    salt = lot.to_bytes(8, "big")

    def drawn(queue: MessageQueue) -> bytes:
        name = f"{queue.broker_name}\0{queue.queue_id}".encode()
        return hashlib.blake2b(name, digest_size=8, key=key, salt=salt).digest()

    return max(queues, key=drawn)


class RowEncoder:
    """Encodes the Arrow batches of one task as blocks."""

    def __init__(
        self,
        options: WriteOptions,
        queues: TaskQueues,
        key: bytes,
        where: str,
        delayed_key: bytes | None = None,
    ) -> None:
        """``delayed_key``: a separate key for delayed rows, if their ids must differ from those of other rows."""
        self._options = options
        self._queues = queues
        self._key = key
        self._delayed_key = delayed_key or key
        self._where = where
        self._rows_before = 0
        self._lot_bytes = 0  # bytes of bodies since the last row whose number is a multiple of LOT_ROWS

    def blocks(self, batch: pa.RecordBatch) -> Iterator[Block]:
        """Check and encode one batch. Invalid rows are found before any block is yielded."""
        count = batch.num_rows
        if count == 0:
            return
        columns = {name.lower(): batch.column(index) for index, name in enumerate(batch.schema.names)}
        body = columns["body"]
        lengths = self._check_body(body)
        properties = _copied(columns.get("properties"))
        if (keys := column_or_property(columns.get("shardingkey"), properties, SHARDING_KEY)) is not None:
            columns["shardingkey"] = keys
        given = {
            **{name: columns.get(column) for name, column in _TEXTS},
            **self._delays(columns),
        }
        queues, targets = self._targets(count, columns)
        is_free = np.array([queue is None for _, queue in queues])[targets]
        kinds = self._kinds(targets, is_free, lengths, given)
        groups = targets * 3 + kinds
        rows = np.arange(self._rows_before, self._rows_before + count)
        lots = np.where(is_free, self._lots(rows, lengths), 0)
        if bool((groups != groups[0]).any()):
            order = np.argsort(groups, kind="stable")
            groups, rows, kinds, lots = groups[order], rows[order], kinds[order], lots[order]
            taken = array_of(order)
            given = {name: column if column is None else column.take(taken) for name, column in given.items()}
            body, properties = body.take(taken), properties if properties is None else properties.take(taken)
        given[UNIQ_KEY] = self._unique_keys(rows, given)
        try:
            plan = plan_rows(self._compressed(body, kinds == _COMPRESSED), given, properties)
        except ProtocolError as error:
            raise self._bad_row(rows, error) from None
        self._check_properties(plan.property_lengths, rows)
        self._rows_before += count
        sharding = given[SHARDING_KEY]
        for low, high in self._cuts(groups, lots, plan):
            topic, queue = queues[int(groups[low]) // 3]
            kind = int(kinds[low])
            lot = int(rows[low] if kind == _DELAYED else lots[low])
            yield Block(
                topic,
                queue or self._queues.drawn(topic, lot),
                plan.encode(low, high),
                high - low,
                int(rows[low]),
                COMPRESSION_BITS[self._options.compression] if kind == _COMPRESSED else 0,
                kind == _DELAYED,
                sharding[low].as_py() if kind == _DELAYED and sharding is not None else None,
                queue is None,
                lot,
            )

    def _unique_keys(self, rows: I64, given: dict[str, pa.Array | None]) -> pa.Array:
        keys = unique_keys(self._key, rows)
        if self._delayed_key != self._key:
            for name in (DELAY, TIMER_DELIVER_MS):
                if (column := given.get(name)) is not None:
                    keys = pc.if_else(column.is_valid(), unique_keys(self._delayed_key, rows), keys)
        return keys

    # --- kinds ------------------------------------------------------------------------------------------------

    def _delays(self, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Return the delay properties of the delayed rows; empty if no row is delayed."""
        delays: dict[str, pa.Array] = {}
        level = columns.get("delaylevel")
        if level is not None:
            levels = _numbers(level, 0)
            bad = (levels < 0) | (levels > MAX_DELAY_LEVEL)
            if bad.any():
                row = int(bad.argmax())
                raise self._error(
                    row, f"delayLevel is {levels[row]}.", f"Use 1 to {MAX_DELAY_LEVEL}; 0 or null: no delay."
                )
            delays[DELAY] = array_of(levels, levels == 0).cast(pa.string())
        moment = columns.get("deliverat")
        if moment is not None:
            micros = _numbers(moment.cast(pa.timestamp("us", moment.type.tz)), 0)
            if int(micros.min()) < 0:
                row = int((micros < 0).argmax())
                raise self._error(row, "deliverAt is before 1970.", "Use null for immediate delivery.")
            delays[TIMER_DELIVER_MS] = array_of(micros // 1000, numpy_of(moment.is_null())).cast(pa.string())
        if len(delays) == 2:
            both = numpy_of(delays[DELAY].is_valid()) & numpy_of(delays[TIMER_DELIVER_MS].is_valid())
            if both.any():
                row = int(both.argmax())
                raise self._error(row, "both delayLevel and deliverAt are set.", "Set one of them to null.")
        return {name: column for name, column in delays.items() if column.null_count < len(column)}

    def _kinds(
        self, targets: I64, is_free: Mask, lengths: I64, given: dict[str, pa.Array | None]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        kinds = np.full(len(targets), _PLAIN, np.int64)
        if self._options.compression != "none":
            large = lengths >= self._options.compress_above
            # A body that may not fit into a batch is sent alone, and the producer compresses it.
            small_enough = lengths <= self._options.max_message_size - _RESERVED_BYTES
            any_large = np.bincount(targets, large) > 0
            all_fit = np.bincount(targets, ~small_enough) == 0
            kinds[np.where(is_free, large & small_enough, (any_large & all_fit)[targets])] = _COMPRESSED
        for name in (DELAY, TIMER_DELIVER_MS):
            column = given.get(name)
            if column is not None:
                kinds[numpy_of(column.is_valid())] = _DELAYED
        return kinds

    def _compressed(self, body: pa.Array, chosen: Mask) -> pa.Array:
        if not chosen.any():
            return body
        kind = self._options.compression
        bodies, mask = body.cast(pa.binary()), array_of(chosen)
        values = [compress_body(value.as_buffer(), kind=kind) for value in bodies.filter(mask)]
        return pc.replace_with_mask(bodies, mask, binary_of(values))

    # --- checks -----------------------------------------------------------------------------------------------

    def _error(self, row: int, text: str, remedy: str) -> RowError:
        return RowError(f"row {self._rows_before + row} of {self._where}: {text}", remedy=remedy)

    def _check_body(self, body: pa.Array) -> I64:
        """Return the bodies' lengths."""
        if body.null_count:
            row = int(numpy_of(body.is_null()).argmax())
            raise self._error(row, "body is null.", "Filter such rows out, or use an empty body.")
        lengths: I64 = np.diff(value_offsets(body))
        limit = self._options.max_message_size
        if int(lengths.max()) > limit:
            row = int((lengths > limit).argmax())
            raise self._error(
                row,
                f"the body has {lengths[row]} bytes, above the limit of {limit} (option maxMessageSize).",
                "Split or compress it, or raise maxMessageSize here and on the brokers.",
            )
        return lengths

    def _check_properties(self, lengths: I64, rows: I64) -> None:
        if lengths.max() > PROPERTIES_LIMIT:
            row = int((lengths > PROPERTIES_LIMIT).argmax())
            raise RowError(
                f"row {int(rows[row])} of {self._where}: the properties have {int(lengths[row])} bytes with tags, keys "
                f"and ids, above the limit of {PROPERTIES_LIMIT}: RocketMQ's 32767 minus what brokers add.",
                remedy="Move large values into the body.",
            )

    def _bad_row(self, rows: I64, error: ProtocolError) -> RowError:
        row = getattr(error, "row", None)
        if isinstance(row, int):
            # The codec numbers the rows after sorting. Use the row number that the user knows.
            text = re.sub(r"^row -?\d+ ", "it ", error.message)
            return RowError(f"row {int(rows[row])} of {self._where}: {text}", remedy=error.remedy)
        return RowError(f"{self._where}: {error.message}", remedy=error.remedy)

    # --- queues -----------------------------------------------------------------------------------------------

    def _targets(
        self, count: int, columns: dict[str, pa.Array]
    ) -> tuple[list[tuple[str, MessageQueue | None]], np.ndarray[Any, Any]]:
        """Return the targets of a batch, and for each row the index of its target."""
        places: list[tuple[str, MessageQueue | None]] = []
        targets = np.zeros(count, np.int64)
        for topic, members in self._topics(count, columns):
            queues = self._queues_for(topic, members)
            chosen = self._choose(topic, queues, columns, members)
            base = len(places)
            if chosen is None:
                places.append((topic, None))
                targets[members] = base
                continue
            found = np.flatnonzero(np.bincount(chosen - FREE))  # numbered from FREE on
            places += [(topic, None if index == FREE else queues[index]) for index in (found + FREE).tolist()]
            targets[members] = base + np.searchsorted(found, chosen - FREE)
        return places, targets

    def _topics(self, count: int, columns: dict[str, pa.Array]) -> Iterator[tuple[str, I64]]:
        everything = np.arange(count)
        if self._options.topic is not None:
            yield self._options.topic, everything
            return
        column = columns["topic"]
        if column.null_count:
            row = int(numpy_of(column.is_null()).argmax())
            raise self._error(row, "topic is null.", "Set it, or use the option topic.")
        encoded = renamed(column, self._options.namespace.wrap).dictionary_encode()
        codes = numpy_of(encoded.indices)
        for code, topic in enumerate(encoded.dictionary.to_pylist()):
            yield topic, everything if len(encoded.dictionary) == 1 else np.flatnonzero(codes == code)

    def _queues_for(self, topic: str, members: I64) -> list[MessageQueue]:
        if not can_be_written(topic):
            raise self._error(
                int(members[0]),
                f"topic is {topic[:200]!r}, which is not writable.",
                f"Use {WRITABLE_TOPIC}.",
            )
        return self._queues.ordered(topic)

    def _choose(
        self, topic: str, queues: list[MessageQueue], columns: dict[str, pa.Array], members: I64
    ) -> np.ndarray[Any, Any] | None:
        """Return for each row of one topic the index of its queue, or FREE; None if all rows are free."""
        sharding, queue_id = columns.get("shardingkey"), columns.get("queueid")
        if sharding is None and queue_id is None:
            return None
        chosen = np.full(len(members), FREE, np.int64)
        if sharding is not None:
            encoded = sharding.take(array_of(members)).dictionary_encode()
            places = np.abs(_java_hashes(encoded.dictionary)) % len(queues)
            chosen = np.append(places, FREE)[_numbers(encoded.indices, len(places))]
        if queue_id is not None:
            given = queue_id.take(array_of(members))
            ids, known = _numbers(given, FREE), numpy_of(given.is_valid())
            by_id: dict[int, list[int]] = {}
            for index, queue in enumerate(queues):
                by_id.setdefault(queue.queue_id, []).append(index)
            bad = known & ~np.isin(ids, list(by_id))
            if bad.any():
                at = int(np.flatnonzero(bad)[0])
                raise self._error(
                    int(members[at]),
                    f"queueId is {int(ids[at])}, but topic {topic} has no such queue.",
                    f"Valid queue ids: {', '.join(map(str, sorted(by_id)))}.",
                )
            # If several brokers have the queue, always use the same one to preserve order, but not one for all ids.
            for number, indexes in by_id.items():
                chosen[known & (ids == number)] = indexes[number % len(indexes)]
        return chosen

    def _lots(self, rows: I64, lengths: I64) -> I64:
        ends = self._lot_bytes + np.cumsum(lengths)
        starts = ends - lengths
        first = -int(rows[0]) % LOT_ROWS
        base = np.zeros(len(rows), np.int64)
        base[first::LOT_ROWS] = starts[first::LOT_ROWS]
        np.maximum.accumulate(base, out=base)
        self._lot_bytes = int(ends[-1] - base[-1])
        lots: I64 = rows // LOT_ROWS << 32 | (starts - base) // LOT_BYTES
        return lots

    # --- blocks -----------------------------------------------------------------------------------------------

    def _cuts(self, groups: I64, lots: I64, plan: RowsPlan) -> Iterator[tuple[int, int]]:
        positions = plan.positions
        changes = (np.diff(groups) != 0) | (np.diff(lots) != 0)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(groups)]
        for low, end in pairwise(edges):
            if groups[low] % 3 == _DELAYED:
                yield from pairwise(range(low, end + 1))
                continue
            # Blocks of nearly equal size, not full ones and a small rest.
            size = int(positions[end] - positions[low])
            aim = -(-size // -(-size // self._options.send_batch_bytes))
            while low < end:
                fits = int(np.searchsorted(positions, positions[low] + aim, side="right")) - 1
                high = min(end, low + self._options.send_batch_size, max(low + 1, fits))
                yield low, high
                low = high


def _numbers(array: pa.Array, default: int) -> I64:
    """Return the values of an array of integers or times, with ``default`` for nulls."""
    values: I64 = numpy_of(array.cast(pa.int64()).fill_null(array_of(np.array([default]))[0]))
    return values


def _java_hashes(texts: pa.Array) -> I64:
    """Return Java's ``String.hashCode`` of each string."""
    edges = value_offsets(texts)
    first, last = int(edges[0]), int(edges[-1])
    if first == last:  # may have no buffers
        return np.zeros(len(texts), np.int64)
    raw = np.frombuffer(texts.buffers()[2], np.uint8)[first:last]
    edges -= first
    signed: I64 = java_hashes(raw, edges[:-1], edges[1:]).view(np.int32).astype(np.int64)
    return signed


def _copied(properties: pa.Array | None) -> pa.Array | None:
    """Return the map without the properties that belong to the message that was read."""
    if properties is None or len(properties.keys) == 0:
        return properties
    if properties.offset:  # the keys of a slice are those of the entire array
        properties = properties.take(array_of(np.arange(len(properties))))
    names = properties.keys
    not_copied = strings_of(_NOT_COPIED).cast(names.type)
    drop = pc.or_(pc.is_in(names, value_set=not_copied), pc.starts_with(names, _TRANSIENT))
    if not pc.any(drop).as_py():
        return properties
    # The encoder omits null values, so setting a value to null removes its entry.
    items = pc.if_else(drop, pa.nulls(1, properties.items.type)[0], properties.items)
    kind = pa.map_(names.type, items.type)
    mask = properties.is_null() if properties.null_count else None
    return pa.MapArray.from_arrays(properties.offsets, names, items, type=kind, mask=mask)


def column_or_property(column: pa.Array | None, properties: pa.Array | None, name: str) -> pa.Array | None:
    """Return each row's value: from the column, or else from the property ``name``."""
    if properties is None:
        return column
    at = np.flatnonzero(numpy_of(pc.equal(properties.keys, string_scalar(name))))
    if not len(at):
        return column
    rows = np.searchsorted(numpy_of(properties.offsets), at, side="right") - 1
    places = np.full(len(properties) + 1, -1, np.int64)  # the last one is for entries after the rows of a slice
    places[np.minimum(rows, len(properties))] = at
    missing = (places[:-1] < 0) | numpy_of(properties.is_null())
    found = properties.items.take(array_of(places[:-1], missing))
    return found if column is None else pc.coalesce(column, found)
