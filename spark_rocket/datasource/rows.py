"""Rows of a data frame -> blocks that are ready to be sent: the pure half of writing.

A batch of rows is checked, each row gets its queue, its properties and its UNIQ_KEY, and the batch is encoded at once
into batch bodies, one for each run of rows that go to one queue. No Python runs per row.

Which queue: ``queueId`` names it; else ``shardingKey`` chooses as RocketMQ's SelectMessageQueueByHash does, so that
Java producers and this one put a key into the same queue; else the row is *free* and its block takes the next queue
in turn.

UNIQ_KEY (16 bytes, shown as 32 hexadecimal digits; the size and shape of the classic client's):

==========  ======================================================================================
bytes       what
==========  ======================================================================================
0 … 9       BLAKE2b of the write (query or job), the batch and the partition
10 … 15     the row's number in its partition. Where the classic id has its time stamp, so that tools
            which search the index from that time on begin at the start of the month
==========  ======================================================================================

It is a pure function of those four, so that a repeated task's duplicates can be told.

A ``RowEncoder`` belongs to one task and counts its rows. Corresponds to MessageBatch, MessageClientIDSetter and
SelectMessageQueueByHash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.datasource.option_parsers import WRITABLE_TOPIC, can_be_written
from spark_rocket.datasource.options import WriteOptions
from spark_rocket.datasource.patience import Patience
from spark_rocket.errors import ProtocolError, RowError
from spark_rocket.model import KEYS, SHARDING_KEY, TAGS, UNIQ_KEY, MessageQueue
from spark_rocket.protocol.columnar import encode_batch, encode_properties_columns, hex_strings
from spark_rocket.protocol.properties import MAX_PROPERTIES_LENGTH
from spark_rocket.protocol.subscription import java_hash

I64 = np.ndarray[Any, np.dtype[np.int64]]

PROPERTIES_LIMIT = MAX_PROPERTIES_LENGTH - 512  # brokers and the client add CLUSTER, WAIT and more
FREE = -1  # a row whose queue is chosen block by block
# What brokers set by themselves, or what belongs to one stored message: not copied from a message that was read.
_NOT_COPIED = (UNIQ_KEY, "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "MIN_OFFSET", "MAX_OFFSET")
# What would make a message more than a plain one, which a batch send cannot carry.
_NOT_PLAIN = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG")


@dataclass(frozen=True, slots=True)
class Block:
    """Rows for one queue (or for any, when ``queue`` is None), encoded as one batch body."""

    topic: str
    queue: MessageQueue | None
    body: memoryview
    count: int
    first_row: int

    def rows(self) -> str:
        """The rows in messages to people."""
        return f"row {self.first_row}" if self.count == 1 else f"{self.count} rows from row {self.first_row} on"


def write_key(name: str, batch_id: str, partition: int) -> bytes:
    """The first ten bytes of UNIQ_KEY: the same for all rows of a task."""
    text = f"{name}\0{batch_id}\0{partition}".encode()
    return hashlib.blake2b(text, digest_size=10, person=b"spark_rocket").digest()


def unique_keys(key: bytes, rows: I64) -> pa.Array:
    """UNIQ_KEY of each row number."""
    raw = np.empty((len(rows), 16), np.uint8)
    raw[:, :10] = np.frombuffer(key, np.uint8)
    raw[:, 10:] = rows.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]
    return hex_strings(raw)


class RowEncoder:
    """Turns the Arrow batches of one task into blocks."""

    def __init__(
        self,
        options: WriteOptions,
        queues_of: Callable[[str], Sequence[MessageQueue]],
        key: bytes,
        where: str,
    ) -> None:
        self._options = options
        self._queues_of = queues_of
        self._key = key
        self._where = where
        self._rows_before = 0
        self._queues: dict[str, list[MessageQueue]] = {}

    def blocks(self, batch: pa.RecordBatch) -> Iterator[Block]:
        """Check and encode one batch. A row that cannot be written is found before any block is yielded."""
        count = batch.num_rows
        if count == 0:
            return
        columns = {name.lower(): batch.column(index) for index, name in enumerate(batch.schema.names)}
        body = columns["body"]
        self._check_body(body)
        properties = self._plain_properties(columns.get("properties"))
        queues, targets = self._targets(count, columns)
        rows = np.arange(self._rows_before, self._rows_before + count)
        order: I64 | None = None
        if bool((targets != targets[0]).any()):
            order = np.argsort(targets, kind="stable")
            targets, rows = targets[order], rows[order]
        body, tags, keys, sharding = (
            _reorder(columns.get(name), order) for name in ("body", "tags", "keys", "shardingkey")
        )
        try:
            strings = encode_properties_columns(
                count,
                {TAGS: tags, KEYS: keys, SHARDING_KEY: sharding, UNIQ_KEY: unique_keys(self._key, rows)},
                _reorder(properties, order),
            )
            self._check_properties(strings, rows)
            encoded, positions = encode_batch(body, strings)
        except ProtocolError as error:
            raise self._bad_row(rows, error) from None
        self._rows_before += count
        for low, high in self._cuts(targets, positions):
            topic, queue = queues[int(targets[low])]
            yield Block(topic, queue, encoded[positions[low] : positions[high]], high - low, int(rows[low]))

    # --- checks -----------------------------------------------------------------------------------------------

    def _error(self, row: int, text: str, remedy: str) -> RowError:
        return RowError(f"row {self._rows_before + row} of {self._where}: {text}", remedy=remedy)

    def _check_body(self, body: pa.Array) -> None:
        if body.null_count:
            raise self._error(_first(body.is_null()), "body is null.", "Filter such rows out, or use an empty body.")
        lengths = pc.binary_length(body)
        limit = self._options.max_message_size
        if pc.max(lengths).as_py() > limit:
            row = _first(pc.greater(lengths, limit))
            raise self._error(
                row,
                f"its body has {lengths[row].as_py()} bytes, and the limit is {limit} (option maxMessageSize).",
                "Split or compress it, or raise maxMessageSize here and on the brokers.",
            )

    def _plain_properties(self, properties: pa.Array | None) -> pa.Array | None:
        if properties is None or len(properties.keys) == 0:
            return properties
        if properties.offset:  # a slice's keys are those of the whole array
            properties = properties.take(pa.array(np.arange(len(properties))))
        names = properties.keys
        bad = pc.is_in(names, value_set=pa.array(_NOT_PLAIN, names.type))
        if pc.any(bad).as_py():
            entry = _first(bad)
            edges = properties.offsets.to_numpy()
            row = int(np.searchsorted(edges, entry, side="right")) - 1
            raise self._error(
                max(0, row),
                f"its properties have {names[entry].as_py()}, which this sink cannot write.",
                "Delayed and transactional messages need a Producer; leave the property out.",
            )
        drop = pc.is_in(names, value_set=pa.array(_NOT_COPIED, names.type))
        if not pc.any(drop).as_py():
            return properties
        # A null value is left out by the encoder, so dropping an entry is making its value null.
        items = pc.if_else(drop, pa.scalar(None, properties.items.type), properties.items)
        kind = pa.map_(names.type, items.type)
        mask = properties.is_null() if properties.null_count else None
        return pa.MapArray.from_arrays(properties.offsets, names, items, type=kind, mask=mask)

    def _check_properties(self, strings: pa.Array, rows: I64) -> None:
        lengths = pc.binary_length(strings)
        if pc.max(lengths).as_py() > PROPERTIES_LIMIT:
            row = _first(pc.greater(lengths, PROPERTIES_LIMIT))
            raise RowError(
                f"row {int(rows[row])} of {self._where}: its properties take {lengths[row].as_py()} bytes, tags, keys "
                f"and ids included, and the limit is {PROPERTIES_LIMIT}: RocketMQ's 32767 less what brokers add.",
                remedy="Move large values into the body.",
            )

    def _bad_row(self, rows: I64, error: ProtocolError) -> RowError:
        row = getattr(error, "row", None)
        if isinstance(row, int):
            # The codec counts the rows as they are put in order; only our number means something to the user.
            text = re.sub(r"^row -?\d+ ", "it ", error.message)
            return RowError(f"row {int(rows[row])} of {self._where}: {text}", remedy=error.remedy)
        return RowError(f"{self._where}: {error.message}", remedy=error.remedy)

    # --- queues -----------------------------------------------------------------------------------------------

    def _targets(
        self, count: int, columns: dict[str, pa.Array]
    ) -> tuple[list[tuple[str, MessageQueue | None]], np.ndarray[Any, Any]]:
        """What can be sent to, and for every row which of these it is."""
        places: list[tuple[str, MessageQueue | None]] = []
        targets = np.zeros(count, np.int64)
        for topic, members in self._topics(count, columns):
            queues = self._queues_for(topic, members)
            chosen = self._choose(topic, queues, columns, members)
            found = np.unique(chosen)
            base = len(places)
            places += [(topic, None if index == FREE else queues[index]) for index in found.tolist()]
            targets[members] = base + np.searchsorted(found, chosen)
        return places, targets

    def _topics(self, count: int, columns: dict[str, pa.Array]) -> Iterator[tuple[str, I64]]:
        everything = np.arange(count)
        if self._options.topic is not None:
            yield self._options.topic, everything
            return
        column = columns["topic"]
        if column.null_count:
            raise self._error(_first(column.is_null()), "topic is null.", "Give it one, or use the option topic.")
        encoded = column.dictionary_encode()
        codes = encoded.indices.to_numpy()
        for code, topic in enumerate(encoded.dictionary.to_pylist()):
            yield topic, everything if len(encoded.dictionary) == 1 else np.flatnonzero(codes == code)

    def _queues_for(self, topic: str, members: I64) -> list[MessageQueue]:
        queues = self._queues.get(topic)
        if queues is None:
            if not can_be_written(topic):
                raise self._error(
                    int(members[0]),
                    f"topic is {topic[:200]!r}, which cannot be written to.",
                    f"It should be {WRITABLE_TOPIC}.",
                )
            patience = Patience(self._options.retry_timeout_ms)
            queues = self._queues[topic] = sorted(patience.call(lambda: self._queues_of(topic), f"to find {topic}"))
        return queues

    def _choose(
        self, topic: str, queues: list[MessageQueue], columns: dict[str, pa.Array], members: I64
    ) -> np.ndarray[Any, Any]:
        """For each row of one topic the index of its queue, or FREE."""
        chosen = np.full(len(members), FREE, np.int64)
        sharding = columns.get("shardingkey")
        if sharding is not None:
            encoded = sharding.take(pa.array(members)).dictionary_encode()
            places = [abs(java_hash(key)) % len(queues) for key in encoded.dictionary.to_pylist()]
            codes = encoded.indices.fill_null(len(places)).to_numpy()
            chosen = np.array([*places, FREE], np.int64)[codes]
        queue_id = columns.get("queueid")
        if queue_id is not None:
            given = queue_id.take(pa.array(members)).cast(pa.int64())
            ids = given.fill_null(FREE).to_numpy()
            known = given.is_valid().to_numpy(zero_copy_only=False)
            by_id: dict[int, list[int]] = {}
            for index, queue in enumerate(queues):
                by_id.setdefault(queue.queue_id, []).append(index)
            bad = known & ~np.isin(ids, list(by_id))
            if bad.any():
                at = int(np.flatnonzero(bad)[0])
                raise self._error(
                    int(members[at]),
                    f"queueId is {int(ids[at])}, and the topic {topic} has no such queue.",
                    f"Its queues are {', '.join(map(str, sorted(by_id)))}.",
                )
            # Several brokers have the queue: always the same one, so that order holds; not the same one for all ids.
            for number, indexes in by_id.items():
                chosen[known & (ids == number)] = indexes[number % len(indexes)]
        return chosen

    # --- blocks -----------------------------------------------------------------------------------------------

    def _cuts(self, targets: np.ndarray[Any, Any], positions: I64) -> Iterator[tuple[int, int]]:
        edges = [0, *(np.flatnonzero(np.diff(targets)) + 1).tolist(), len(targets)]
        for low, end in pairwise(edges):
            # Blocks of nearly the same size, rather than full ones and a small rest.
            size = int(positions[end] - positions[low])
            aim = -(-size // -(-size // self._options.send_batch_bytes))
            while low < end:
                fits = int(np.searchsorted(positions, positions[low] + aim, side="right")) - 1
                high = min(end, low + self._options.send_batch_size, max(low + 1, fits))
                yield low, high
                low = high


def _first(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())


def _reorder(column: pa.Array | None, order: I64 | None) -> pa.Array | None:
    return column if column is None or order is None else column.take(pa.array(order))
