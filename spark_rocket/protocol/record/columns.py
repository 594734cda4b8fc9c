"""Many commit-log records at once -> Arrow columns, with no Python per record.

A pull answer's body is a run of records (``record.py`` has their byte table). ``decode_records`` turns such a run into
a ``pyarrow.RecordBatch`` whose columns are those of ``ARROW_SCHEMA``, decoding only the columns asked for. The other
direction, rows -> the body of a batch send, is in ``columnar_encode.py`` and exported here too. Runs of 2 to 8 MiB are
decoded fastest: smaller ones pay for the calls, larger ones for memory that the system has to hand out first.

How it is done, step by step:

1. the starts of all records are found by one scan for the magic number and *proven*: every candidate must be where the
   record before it ends. If stray bytes in bodies look like a magic number, a plain loop follows the chain instead;
2. the first 88 bytes, which are fixed for IPv4 hosts, are gathered for all records in one indexing operation on a view
   with a stride of one byte;
3. bodies, topics and property strings are taken from one binary array over the received buffer whose offsets
   alternate between what is wanted and the gaps;
4. property strings are split in one scan (``columnar_properties.py``).

Records of one size whose parts are as long need none of this: their heads and what is behind their bodies are put
together as rows, and a field that the least and the greatest of its bytes show to be the same everywhere is made once.

Compressed bodies and inner batches are rare, and are first rewritten into plain records (``columnar_unwrap.py``), one
at a time. Nothing is decompressed that is not asked for: neither bodies without the body column, nor records outside
the offsets, so a damaged body spoils only what would show it. Records with IPv6 hosts or the v2 magic are vectorised as
well, only with computed positions.

Text that is not valid UTF-8 is shown with U+FFFD in place of the bad bytes: a single odd message must not stop a query.
Times that do not fit Arrow's microseconds are clipped to the nearest that does.

Any bytes at all give a batch or a ``ProtocolError``. The batch holds copies, so the buffer may be reused.
Thread-safety: functions of their arguments; working memory is lent to one call at a time. Corresponds to
MessageDecoder.decodesBatch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.ids import IPV6_HOST_SIZE, unpack_host
from spark_rocket.protocol.record.column_encoder import encode_batch, encode_properties_columns, hex_strings
from spark_rocket.protocol.record.column_properties import PropertyColumns, to_strings
from spark_rocket.protocol.record.column_repeats import even_edges, repeated_text
from spark_rocket.protocol.record.column_scratch import Scratch, Tails, borrowed_scratch, column_extremes
from spark_rocket.protocol.record.column_starts import gather, record_starts, refuse
from spark_rocket.protocol.record.record import BORN_HOST_V6, COMPRESSED, FIXED_SIZE, MAGIC_V1, MAGIC_V2, STORE_HOST_V6
from spark_rocket.protocol.record.unwrap import needs_unwrap, unwrap_records

__all__ = [
    "ARROW_SCHEMA",
    "COLUMNS",
    "STORED_SCHEMA",
    "decode_records",
    "encode_batch",
    "encode_properties_columns",
    "hex_strings",
]

_TIME = pa.timestamp("us", tz="UTC")

ARROW_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("brokerName", pa.string(), nullable=False),
        pa.field("queueId", pa.int32(), nullable=False),
        pa.field("queueOffset", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("tags", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("properties", pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)), nullable=False),
        pa.field("msgId", pa.string(), nullable=False),
        pa.field("bornTimestamp", _TIME, nullable=False),
        pa.field("storeTimestamp", _TIME, nullable=False),
        pa.field("bornHost", pa.string(), nullable=False),
        pa.field("storeHost", pa.string(), nullable=False),
        pa.field("reconsumeTimes", pa.int32(), nullable=False),
        pa.field("flag", pa.int32(), nullable=False),
        pa.field("sysFlag", pa.int32(), nullable=False),
    ]
)
COLUMNS: tuple[str, ...] = tuple(ARROW_SCHEMA.names)
# What is stored, to compare records by; asked for by name like the columns, but no columns of a message.
STORED_SCHEMA: pa.Schema = pa.schema(
    [
        # CRC of the body as it is stored, and its length: 0 if it is compressed, so that inflating it changes nothing.
        pa.field("storedBody", pa.int64(), nullable=False),
        # The property string.
        pa.field("storedProperties", pa.binary(), nullable=False),
    ]
)

_MAX_BUFFER = 2**31 - 1 - 64  # Arrow's offsets for binary and string are 32 bits wide
_MAX_MILLIS = (2**63 - 1) // 1000

_HEAD = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("crc", ">i4"),
        ("queueId", ">i4"),
        ("flag", ">i4"),
        ("queueOffset", ">i8"),
        ("physicalOffset", ">i8"),
        ("sysFlag", ">i4"),
        ("bornTimestamp", ">i8"),
        ("bornHost", ">i8"),
        ("storeTimestamp", ">i8"),
        ("storeHost", ">i8"),
        ("reconsumeTimes", ">i4"),
        ("prepared", ">i8"),
        ("bodyLength", ">i4"),
    ]
)
_ENDS = np.cumsum([_HEAD[name].itemsize for name in _HEAD.names or ()]).tolist()
_FIELDS = [(name, end - _HEAD[name].itemsize, end) for name, end in zip(_HEAD.names or (), _ENDS, strict=True)]
_V6 = BORN_HOST_V6 | STORE_HOST_V6
_OF_TAILS = frozenset({"topic", "tags", "keys", "properties", "msgId"})
_INT = Struct(">i")
_Any = np.ndarray[Any, Any]
_I64 = np.ndarray[Any, np.dtype[np.int64]]
_U8 = np.ndarray[Any, np.dtype[np.uint8]]


def decode_records(
    buffer: bytes | bytearray | memoryview,
    columns: Sequence[str] = COLUMNS,
    *,
    broker_name: str,
    start_offset: int | None = None,
    end_offset: int | None = None,
    tags: frozenset[str] | None = None,
    check_crc: bool = False,
    schema: pa.Schema | None = None,
    damaged: dict[int, str] | None = None,
) -> pa.RecordBatch:
    """Decode the records that fill ``buffer``; see the module's text for what happens to odd ones.

    Records whose queue offset is outside ``[start_offset, end_offset)`` are dropped, and so are those whose tag is not
    one of ``tags``; ``check_crc`` looks at those within the offsets. ``schema`` replaces ``ARROW_SCHEMA`` as the
    description of the columns: same names and types, but possibly other nullability. A body that cannot be
    decompressed is an error, unless ``damaged`` is given: it is told why, by queue offset, and the body stays as it is.

    Raises ``ProtocolError`` for bytes that are not whole records, and its ``RunTooLargeError`` when bodies inflate
    beyond ``columnar_unwrap.MAX_RUN``: decode with that error's ``queue_offset`` as the end, then from there on.
    """
    made = _usual_schema(tuple(columns)) if schema is None else _schema_of(columns, schema)
    with borrowed_scratch() as scratch:
        with_tails = tags is not None or not _OF_TAILS.isdisjoint(columns)
        run = _Run(buffer, scratch, with_tails=with_tails)
        run.keep_offsets(start_offset, end_offset)
        if check_crc:
            run.check_crc()
        wrapped = run.wrapped(bodies="body" in columns)
        if wrapped is not None:
            run = _Run(run.unwrapped(wrapped, start_offset, end_offset, damaged), scratch, with_tails=with_tails)
            run.keep_offsets(start_offset, end_offset)
        maker = _Columns(run, broker_name, scratch)
        batch = pa.RecordBatch.from_arrays([maker.column(field) for field in made], schema=made)
        if tags is not None:
            wanted = pa.array(sorted(tags), pa.string())
            batch = batch.filter(pc.is_in(maker.properties().value_of("TAGS"), value_set=wanted))
    return batch


def _schema_of(columns: Sequence[str], described: pa.Schema) -> pa.Schema:
    fields = []
    for name in columns:
        if name in STORED_SCHEMA.names:
            fields.append(STORED_SCHEMA.field(name))
            continue
        index = described.get_field_index(name)
        if index < 0 or name not in COLUMNS:
            raise ProtocolError(f"Records have no column {name!r}.", remedy=f"Columns are {', '.join(COLUMNS)}.")
        fields.append(described.field(index))
    return pa.schema(fields)


@lru_cache(64)
def _usual_schema(columns: tuple[str, ...]) -> pa.Schema:
    return _schema_of(columns, ARROW_SCHEMA)


class _Run:
    """A run of records whose lengths have all been checked: positions of every part, and the fixed header fields."""

    def __init__(self, buffer: bytes | bytearray | memoryview, scratch: Scratch, *, with_tails: bool) -> None:
        raw: _U8 = np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
        if len(raw) > _MAX_BUFFER:
            raise ProtocolError(f"{len(raw):,} bytes of records are too many to decode at once.", remedy="Pull fewer.")
        self.raw = raw
        self._same: dict[str, int] = {}  # fields that all records have alike
        self._step = self._equal_step(scratch)  # of each record; 0: they differ
        if self._step:
            self.starts = np.arange(0, len(raw), self._step)
        else:
            self.starts = record_starts(raw, scratch)
            padded = raw if len(raw) else np.zeros(_HEAD.itemsize, np.uint8)
            self._heads = np.ndarray((len(padded) - 87,), "V88", padded, strides=(1,))[self.starts].view(_HEAD)
        self.parted_alike = False  # whether all records are as long, and so is each of their parts
        self.tails: Tails | None = None  # then, and if asked for, everything behind the bodies
        self.sizes = self.number("size")
        self.born_extra: int | _I64 = 0  # bytes that IPv6 hosts take more: 0 or 12
        self.store_extra: int | _I64 = 0
        self.plain = self._same.get("magic") == MAGIC_V1 and not self._same.get("sysFlag", -1) & _V6
        if self.plain and self._find_equal_parts(scratch if with_tails else None):
            self.parted_alike = True
            return
        sys_flags = self.number("sysFlag").astype(np.int32)
        magic = self._heads["magic"].astype(np.uint32)
        v1 = magic == MAGIC_V1
        self.plain = bool(v1.all()) and not bool((sys_flags & _V6).any())
        self._find_parts(v1, magic, sys_flags)

    def _equal_step(self, scratch: Scratch) -> int:
        """Of records of one size, as sensors and counters send them: if each says so, the chain is proven. Else 0.

        Their heads are put together, so that what is asked of them later is found in few places of the memory.
        """
        raw = self.raw
        first: int = _INT.unpack_from(raw.data, 0)[0] if len(raw) >= FIXED_SIZE else 0
        if first < FIXED_SIZE or len(raw) % first:
            return 0
        count = len(raw) // first
        heads = scratch.bytes("heads", count * _HEAD.itemsize).reshape(count, -1)
        heads[:] = np.ndarray(heads.shape, np.uint8, raw, strides=(first, 1))
        low, high = column_extremes(heads)
        if low[:4].tobytes() != high[:4].tobytes():
            return 0
        self._heads = heads.view(_HEAD)[:, 0]
        for name, at, end in _FIELDS:
            if low[at:end].tobytes() == high[at:end].tobytes():
                self._same[name] = int(self._heads[name][0])
        return first

    def _find_equal_parts(self, scratch: Scratch | None) -> bool:
        """Where the first record's parts say it for all. What is wrong with others is found by ``_find_parts``."""
        raw, step, count = self.raw, self._step, len(self.starts)
        body_end = 88 + self._same.get("bodyLength", -1)
        if not 88 <= body_end <= step - 3:
            return False
        topic_end = body_end + 1 + int(raw[body_end])
        if topic_end + 2 > step or topic_end + 2 + int.from_bytes(raw[topic_end : topic_end + 2].tobytes()) != step:
            return False
        if scratch is None:
            for at, length in ((body_end, 1), (topic_end, 2)):
                fields = self.cells(at, at + length)
                if not bool((fields == fields[0]).all()):
                    return False
        else:
            rows = scratch.bytes("tails", count * (step - body_end)).reshape(count, -1)
            rows[:] = self.cells(body_end, step)
            tails = Tails(rows, *column_extremes(rows))
            if tails.vary(0, 1) or tails.vary(topic_end - body_end, topic_end - body_end + 2):
                return False
            self.tails = tails
        self.body_start, self.body_end = self.starts + 88, self.starts + body_end
        self.topic_start, self.topic_end = self.body_end + 1, self.starts + topic_end
        self.properties_start, self.properties_end = self.topic_end + 2, self.starts + step
        return True

    def cells(self, start: int, end: int) -> _U8:
        """The same bytes of every record, a row for each; only where all are parted alike."""
        return np.ndarray((len(self.starts), end - start), np.uint8, self.raw, start, (self._step, 1))

    def _find_parts(self, v1: _Any, magic: _Any, sys_flags: _Any) -> None:
        raw, starts = self.raw, self.starts
        ends = starts + self.sizes
        if self.plain:
            self.body_start = starts + 88
            body_length = self.number("bodyLength")
            topic_prefix: int | _I64 = 1
        else:
            refuse(~v1 & (magic != MAGIC_V2), raw, starts, "has an unknown magic number")
            self.born_extra = 12 * ((sys_flags & BORN_HOST_V6) != 0)
            self.store_extra = 12 * ((sys_flags & STORE_HOST_V6) != 0)
            self.body_start = starts + 88 + self.born_extra + self.store_extra
            topic_prefix = np.where(v1, 1, 2)
            refuse(self.body_start + topic_prefix + 2 > ends, raw, starts, "is shorter than its fixed fields")
            body_length = gather(raw, self.body_start - 4, ">i4")
        self.body_end = self.body_start + body_length
        wrong = (body_length < 0) | (self.body_end + topic_prefix + 2 > ends)
        refuse(wrong, raw, starts, "has a body that does not fit")
        topic_length = raw[self.body_end].astype(np.int64)
        if not self.plain:
            two = topic_prefix == 2
            topic_length[two] = gather(raw, self.body_end[two], ">i2")
        self.topic_start = self.body_end + topic_prefix
        self.topic_end = self.topic_start + topic_length
        refuse((topic_length < 0) | (self.topic_end + 2 > ends), raw, starts, "has a topic that does not fit")
        self.properties_start = self.topic_end + 2
        properties_length = gather(raw, self.topic_end, ">i2") if len(starts) else np.empty(0, np.int64)
        self.properties_end = self.properties_start + properties_length
        wrong = (properties_length < 0) | (self.properties_end != ends)
        refuse(wrong, raw, starts, "has properties that do not end where it ends")

    def __len__(self) -> int:
        return len(self.starts)

    def number(self, name: str) -> _I64:
        """A field of the first 56 bytes, or any field when ``plain``, as native 64-bit integers."""
        if name in self._same:
            return np.full(len(self.starts), self._same[name])
        values: _I64 = self._heads[name].astype(np.int64)
        return values

    def same_number(self, name: str) -> int | None:
        """That field, if every record has the same; None: perhaps they have."""
        return self._same.get(name) if self.plain else None

    def wrapped(self, *, bodies: bool) -> _Any | None:
        """Which records are not plain; None: all are."""
        flags = self.number("sysFlag") if "sysFlag" not in self._same else np.array([self._same["sysFlag"]])
        if not needs_unwrap(flags, bodies=bodies).any():
            return None
        return needs_unwrap(self.number("sysFlag"), bodies=bodies)

    def number_after_hosts(self, name: str, position: int) -> _I64:
        """A field that IPv6 hosts push back; ``position`` is that in a record with IPv4 hosts."""
        if self.plain:
            return self.number(name)
        moved = self.starts + position + self.born_extra + (self.store_extra if position > 64 else 0)
        return gather(self.raw, moved, _HEAD[name].str)

    def check_crc(self) -> None:
        view = self.raw.data
        crc32 = zlib.crc32
        spans = zip(self.body_start.tolist(), self.body_end.tolist(), strict=True)
        real = np.array([crc32(view[start:end]) for start, end in spans], np.int64) & 0x7FFFFFFF
        refuse(real != self.number("crc"), self.raw, self.starts, "has a body that does not match its CRC")

    def unwrapped(self, wrapped: _Any, start: int | None, end: int | None, damaged: dict[int, str] | None) -> bytearray:
        """The same records with compressed bodies and inner batches undone."""
        return unwrap_records(
            self.raw.data,
            wrapped,
            start,
            end,
            self.number("sysFlag"),
            self.number("queueOffset"),
            self.starts,
            self.sizes,
            self.body_start,
            self.body_end,
            self.properties_start,
            damaged,
        )

    def keep_offsets(self, start: int | None, end: int | None) -> None:
        """Inner batches stay: only unwrapping shows the offsets of what is in them."""
        if start is None and end is None:
            return
        offsets = self.number("queueOffset")
        if not len(offsets):
            return
        if (start is None or int(offsets.min()) >= start) and (end is None or int(offsets.max()) < end):
            return
        keep = np.ones(len(offsets), bool)
        if start is not None:
            keep &= offsets >= start
        if end is not None:
            keep &= offsets < end
        if not keep.all():
            keep |= needs_unwrap(self.number("sysFlag"), bodies=False)
        if keep.all():
            return
        self._step, self.parted_alike, self.tails = 0, False, None
        self._heads = self._heads[keep]
        for name in ("starts", "sizes", "body_start", "body_end", "topic_start", "topic_end"):
            setattr(self, name, getattr(self, name)[keep])
        self.properties_start, self.properties_end = self.properties_start[keep], self.properties_end[keep]
        if not self.plain:
            self.born_extra, self.store_extra = np.asarray(self.born_extra)[keep], np.asarray(self.store_extra)[keep]


class _Columns:
    """Makes single columns of a run; what several columns need is made once."""

    def __init__(self, run: _Run, broker_name: str, scratch: Scratch) -> None:
        self._run = run
        self._broker_name = broker_name
        self._scratch = scratch
        self._parts: pa.Array | None = None
        self._properties: PropertyColumns | None = None

    def column(self, field: pa.Field) -> pa.Array:
        name = field.name
        if name == "properties":
            return self.properties().map_array(field.type)
        maker = _MAKERS.get(name)
        if maker is not None:
            return maker(self)
        if name == "queueOffset":
            return pa.array(self._run.number(name))
        return self._int32(name)

    def _int32(self, name: str, position: int | None = None) -> pa.Array:
        run = self._run
        same = run.same_number(name)
        if same is not None and len(run):
            return pa.repeat(pa.scalar(same, pa.int32()), len(run))
        values = run.number(name) if position is None else run.number_after_hosts(name, position)
        return pa.array(values.astype(np.int32))

    def properties(self) -> PropertyColumns:
        if self._properties is None:
            run = self._run
            tails = None
            if run.tails is not None:
                tails = run.tails.behind(int(run.properties_start[0] - run.body_end[0]))
            self._properties = PropertyColumns(run.raw, run.properties_start, run.properties_end, self._scratch, tails)
        return self._properties

    def _part(self, which: int) -> pa.Array:
        """1: bodies, 3: topics, copied together from the received buffer."""
        run = self._run
        if which == 1 and run.parted_alike:
            bodies = run.cells(int(run.body_start[0]), int(run.body_end[0])).copy()
            count, length = bodies.shape
            return pa.Array.from_buffers(pa.binary(), count, [None, even_edges((length,), count), pa.py_buffer(bodies)])
        if self._parts is None:
            bounds = np.zeros(4 * len(run) + 1, np.int32)
            bounds[1::4], bounds[2::4] = run.body_start, run.body_end
            bounds[3::4], bounds[4::4] = run.topic_start, run.topic_end
            data = [None, pa.py_buffer(bounds), pa.py_buffer(run.raw)]
            self._parts = pa.Array.from_buffers(pa.binary(), 4 * len(run), data)
        return self._parts.take(pa.array(np.arange(which, 4 * len(run), 4)))

    def _broker(self) -> pa.Array:
        return repeated_text(self._broker_name, len(self._run))

    def _topic(self) -> pa.Array:
        run = self._run
        if len(run) == 0:
            return pa.array([], pa.string())
        length = int(run.topic_end[0] - run.topic_start[0])
        if length and (run.parted_alike or bool((run.topic_end - run.topic_start == length).all())):
            # One topic is the usual case: compare, and write it down once.
            if run.tails is not None:
                topics, is_one = run.tails.rows[:, 1 : 1 + length], not run.tails.vary(1, 1 + length)
            else:
                view = np.ndarray((len(run.raw) - length + 1, length), np.uint8, run.raw, strides=(1, 1))
                topics = view[run.topic_start]
                is_one = bool((topics == topics[0]).all())
            if is_one:
                return repeated_text(topics[0].tobytes().decode("utf-8", "replace"), len(run))
        return to_strings(self._part(3))

    def _stored_body(self) -> pa.Array:
        run = self._run
        lengths = np.where(run.number("sysFlag") & COMPRESSED, 0, run.body_end - run.body_start)
        return pa.array((run.number("crc") & 0xFFFFFFFF) | (lengths << 32))

    def _stored_properties(self) -> pa.Array:
        run = self._run
        bounds = np.zeros(2 * len(run) + 1, np.int32)
        bounds[1::2], bounds[2::2] = run.properties_start, run.properties_end
        strings = pa.Array.from_buffers(pa.binary(), 2 * len(run), [None, pa.py_buffer(bounds), pa.py_buffer(run.raw)])
        return strings.take(pa.array(np.arange(1, 2 * len(run), 2)))

    def _message_id(self) -> pa.Array:
        unique = self.properties().value_of("UNIQ_KEY")
        if unique.null_count == 0 and pc.min(pc.binary_length(unique)).as_py() != 0:
            return unique
        missing = pc.or_kleene(pc.is_null(unique), pc.equal(pc.binary_length(unique), 0))
        if not pc.any(missing, min_count=0).as_py():
            return unique
        return pc.if_else(missing, self._offset_ids(), unique)

    def _offset_ids(self) -> pa.Array:
        run = self._run
        count = len(run)
        if not np.any(run.store_extra):
            ids = np.empty((count, 2), ">i8")
            ids[:, 0] = run.number_after_hosts("storeHost", 64)
            ids[:, 1] = run.number("physicalOffset")
            return hex_strings(ids.view(np.uint8))
        size = np.add(run.store_extra, 8).tolist()
        begin = (run.starts + 64 + run.born_extra).tolist()
        tail = run.number("physicalOffset").astype(">i8").tobytes()
        raw = run.raw.data
        rows = [raw[begin[i] : begin[i] + size[i]].hex() + tail[8 * i : 8 * i + 8].hex() for i in range(count)]
        return pa.array([row.upper() for row in rows], pa.string())

    def _host(self, name: str) -> pa.Array:
        run = self._run
        count = len(run)
        extra = run.born_extra if name == "bornHost" else run.store_extra
        if np.any(extra):
            begin = run.starts + 48 if name == "bornHost" else run.starts + 64 + run.born_extra
            raw = run.raw.data
            spans = zip(begin.tolist(), np.add(extra, 8).tolist(), strict=True)
            return pa.array([_host_text(bytes(raw[at : at + size])) for at, size in spans], pa.string())
        same = run.same_number(name)
        if same is None or not count:
            values = run.number("bornHost") if name == "bornHost" else run.number_after_hosts("storeHost", 64)
            if count and bool((values == values[0]).all()):
                same = int(values[0])
        if count and same is not None:
            return repeated_text(_host_text(same.to_bytes(8, "big", signed=True)), count)
        coded = pa.array(values).dictionary_encode()
        texts = [_host_text(value.to_bytes(8, "big", signed=True)) for value in coded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(coded.indices)


# Not bound methods in the instance: those would be a cycle, and keep the received buffer until the next collection.
_MAKERS: dict[str, Callable[[_Columns], pa.Array]] = {
    "topic": _Columns._topic,
    "brokerName": _Columns._broker,
    "body": lambda make: make._part(1),
    "tags": lambda make: make.properties().value_of("TAGS"),
    "keys": lambda make: make.properties().value_of("KEYS"),
    "msgId": _Columns._message_id,
    "storedBody": _Columns._stored_body,
    "storedProperties": _Columns._stored_properties,
    "bornTimestamp": lambda make: _times(make._run.number("bornTimestamp")),
    "storeTimestamp": lambda make: _times(make._run.number_after_hosts("storeTimestamp", 56)),
    "bornHost": lambda make: make._host("bornHost"),
    "storeHost": lambda make: make._host("storeHost"),
    "reconsumeTimes": lambda make: make._int32("reconsumeTimes", 72),
}


def _times(millis: _I64) -> pa.Array:
    micros = np.clip(millis, -_MAX_MILLIS, _MAX_MILLIS) * 1000
    return pa.Array.from_buffers(_TIME, len(micros), [None, pa.py_buffer(micros)])


def _host_text(packed: bytes) -> str:
    """``ip:port``, or ``[ip]:port`` when the address has colons of its own."""
    address, port = unpack_host(packed)
    return f"[{address}]:{port}" if len(packed) == IPV6_HOST_SIZE else f"{address}:{port}"
