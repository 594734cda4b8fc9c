"""Runs of stored records -> Arrow columns, with no Python per record.

``decode_records`` turns a run, such as the body of a pull response, into a ``pyarrow.RecordBatch`` with columns of
``ARROW_SCHEMA`` and decodes only the requested ones. Runs of 2 to 8 MiB are fastest: smaller ones have the overhead of
calls, larger ones that of fresh memory.

1. A loop follows the sizes of the records from the first to the end of the run (``parts.py``).
2. One indexing operation on a view with a stride of one byte gathers the headers.
3. Bodies, topics and property strings are taken from one binary array over the received buffer.
4. One scan splits the property strings (``column_properties.py``).

Uniform records (same size, parts of the same lengths) are read as the rows of a matrix instead. A header field whose
minimum and maximum bytes are equal in all rows is constant, and its column is created once.

Compressed bodies and inner batches are rare; ``unwrap.py`` rewrites them into plain records first, one at a time, and
only the requested ones. So a damaged body only affects columns that need it. Records with IPv6 hosts or the v2 magic
are vectorised with computed positions.

Invalid UTF-8 is decoded with U+FFFD: one invalid message must not stop a query. Times beyond Arrow's microseconds are
clipped. Any input results in a batch or a ``ProtocolError``. The batch has copies, so the buffer may be reused.

Thread-safety: functions of their arguments; working memory is used by one call at a time.
Corresponds to MessageDecoder.decodesBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.ids import IPV4_HOST_SIZE, IPV6_HOST_SIZE, offset_id_text, unpack_host
from spark_rocket.protocol.namespace import NO_NAMESPACE, Namespace
from spark_rocket.protocol.record.arrays import array_of, even_edges, repeated_text, strings_of, to_strings
from spark_rocket.protocol.record.column_properties import PropertyColumns, property_columns
from spark_rocket.protocol.record.encoder import hex_strings
from spark_rocket.protocol.record.layout import AT, COMPRESSED
from spark_rocket.protocol.record.namespaced import unwrapped_batch
from spark_rocket.protocol.record.run import RecordRun, Scratch, borrowed_scratch
from spark_rocket.protocol.record.unwrap import unwrap_records, wrapped_records

_TIME = pa.timestamp("us", tz="UTC")
_INT32_FIELDS = {"queueId": "queue_id", "flag": "flag", "sysFlag": "sys_flag", "reconsumeTimes": "reconsume_times"}

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
# Stored values for comparing records; requested by name like columns, but not columns of a message.
STORED_SCHEMA: pa.Schema = pa.schema(
    [
        # CRC of the stored body, and its length: 0 if compressed, so that decompression changes nothing.
        pa.field("storedBody", pa.int64(), nullable=False),
        # The property string.
        pa.field("storedProperties", pa.binary(), nullable=False),
    ]
)
# Why a body cannot be decompressed, else null; requested like STORED_SCHEMA. It follows its row through every filter.
BODY_FAULT: pa.Field = pa.field("bodyFault", pa.string())

_MAX_MILLIS = (2**63 - 1) // 1000

_OF_BODIES = frozenset({"body", BODY_FAULT.name})
_OF_TAILS = frozenset({"topic", "tags", "keys", "properties", "msgId"})
_I64 = np.ndarray[Any, np.dtype[np.int64]]


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
    namespace: Namespace = NO_NAMESPACE,
) -> pa.RecordBatch:
    """Decode the records that fill ``buffer``; see the module docstring for invalid ones.

    Records whose queue offset is outside ``[start_offset, end_offset)`` are dropped, and so are those whose tag is not
    one of ``tags``; ``check_crc`` looks at those within the offsets. ``schema`` replaces ``ARROW_SCHEMA`` as the
    description of the columns: same names and types, but possibly other nullability. A body that cannot be
    decompressed is an error, unless ``BODY_FAULT`` is requested: it has the reason, and the body stays as stored.
    ``namespace`` is removed from the names in the columns.

    Raises ``ProtocolError`` for bytes that are not whole records, and its ``RunTooLargeError`` when bodies inflate
    beyond ``compression.MAX_RUN_BYTES``: decode with that error's ``queue_offset`` as the end, then from there on.
    """
    made = _usual_schema(tuple(columns)) if schema is None else _schema_of(columns, schema)
    with borrowed_scratch() as scratch:
        with_tails = tags is not None or not _OF_TAILS.isdisjoint(columns)
        run = RecordRun(buffer, scratch, with_tails=with_tails)
        run.keep_offsets(start_offset, end_offset)
        if check_crc:
            run.check_crc()
        faults: dict[int, str] = {}
        wrapped = wrapped_records(run, bodies=not _OF_BODIES.isdisjoint(columns))
        if wrapped is not None:
            accepts_faults = BODY_FAULT.name in columns
            plain = unwrap_records(run, wrapped, start_offset, end_offset, faults if accepts_faults else None)
            run = RecordRun(plain, scratch, with_tails=with_tails)
            run.keep_offsets(start_offset, end_offset)
        maker = _Columns(run, broker_name, scratch, faults)
        batch = pa.RecordBatch.from_arrays([maker.column(field) for field in made], schema=made)
        if tags is not None:
            wanted = strings_of(sorted(tags))
            batch = batch.filter(pc.is_in(maker.properties().value_of("TAGS"), value_set=wanted))
    return unwrapped_batch(batch, namespace)


def _schema_of(columns: Sequence[str], described: pa.Schema) -> pa.Schema:
    fields = []
    for name in columns:
        if name in STORED_SCHEMA.names:
            fields.append(STORED_SCHEMA.field(name))
            continue
        if name == BODY_FAULT.name:
            fields.append(BODY_FAULT)
            continue
        index = described.get_field_index(name)
        if index < 0 or name not in COLUMNS:
            raise ProtocolError(f"Unknown column {name!r}.", remedy=f"Use one of {', '.join(COLUMNS)}.")
        fields.append(described.field(index))
    return pa.schema(fields)


@lru_cache(64)
def _usual_schema(columns: tuple[str, ...]) -> pa.Schema:
    return _schema_of(columns, ARROW_SCHEMA)


class _Columns:
    """Creates single columns of a run; shared intermediate results are computed once."""

    def __init__(self, run: RecordRun, broker_name: str, scratch: Scratch, faults: dict[int, str]) -> None:
        self._run = run
        self._broker_name = broker_name
        self._scratch = scratch
        self._faults = faults
        self._parts: pa.Array | None = None
        self._properties: PropertyColumns | None = None

    def column(self, field: pa.Field) -> pa.Array:
        name = field.name
        if name == "properties":
            return self.properties().map_array(field.type)
        maker = _MAKERS.get(name)
        if maker is not None:
            return maker(self)
        return self._int32(_INT32_FIELDS[name])

    def _int32(self, field: str) -> pa.Array:
        run = self._run
        same = run.same_number(field)
        if same is not None and len(run):
            return array_of(np.full(len(run), same, np.int32))
        return array_of(run.number(field).astype(np.int32))

    def properties(self) -> PropertyColumns:
        if self._properties is None:
            run = self._run
            tails = None
            if run.tails is not None:
                tails = run.tails.behind(int(run.properties_start[0] - run.body_end[0]))
            self._properties = property_columns(run.raw, run.properties_start, run.properties_end, self._scratch, tails)
        return self._properties

    def _part(self, which: int) -> pa.Array:
        """Copy 1: bodies, 3: topics together from the received buffer."""
        run = self._run
        if which == 1 and run.is_uniform:
            bodies = run.cells(int(run.body_start[0]), int(run.body_end[0])).copy()
            count, length = bodies.shape
            return pa.Array.from_buffers(pa.binary(), count, [None, even_edges((length,), count), pa.py_buffer(bodies)])
        if self._parts is None:
            bounds = np.zeros(4 * len(run) + 1, np.int32)
            bounds[1::4], bounds[2::4] = run.body_start, run.body_end
            bounds[3::4], bounds[4::4] = run.topic_start, run.topic_end
            data = [None, pa.py_buffer(bounds), pa.py_buffer(run.raw)]
            self._parts = pa.Array.from_buffers(pa.binary(), 4 * len(run), data)
        return self._parts.take(array_of(np.arange(which, 4 * len(run), 4)))

    def _broker(self) -> pa.Array:
        return repeated_text(self._broker_name, len(self._run))

    def _topic(self) -> pa.Array:
        run = self._run
        if len(run) == 0:
            return strings_of([])
        length = int(run.topic_end[0] - run.topic_start[0])
        if length and (run.is_uniform or bool((run.topic_end - run.topic_start == length).all())):
            # One topic is the common case: compare, and store it once.
            if run.tails is not None:
                topics, is_one = run.tails.cells[:, 1 : 1 + length], not run.tails.vary(1, 1 + length)
            else:
                view = np.ndarray((len(run.raw) - length + 1, length), np.uint8, run.raw, strides=(1, 1))
                topics = view[run.topic_start]
                is_one = bool((topics == topics[0]).all())
            if is_one:
                return repeated_text(topics[0].tobytes().decode("utf-8", "replace"), len(run))
        return to_strings(self._part(3))

    def _stored_body(self) -> pa.Array:
        run = self._run
        lengths = np.where(run.number("sys_flag") & COMPRESSED, 0, run.body_end - run.body_start)
        return array_of((run.number("body_crc") & 0xFFFFFFFF) | (lengths << 32))

    def _body_fault(self) -> pa.Array:
        if not self._faults:
            return pa.nulls(len(self._run), BODY_FAULT.type)
        return strings_of(map(self._faults.get, self._run.starts.tolist()))

    def _stored_properties(self) -> pa.Array:
        run = self._run
        bounds = np.zeros(2 * len(run) + 1, np.int32)
        bounds[1::2], bounds[2::2] = run.properties_start, run.properties_end
        strings = pa.Array.from_buffers(pa.binary(), 2 * len(run), [None, pa.py_buffer(bounds), pa.py_buffer(run.raw)])
        return strings.take(array_of(np.arange(1, 2 * len(run), 2)))

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
        ids = np.empty((len(run), 2), ">i8")
        ids[:, 0] = run.number("store_host")
        ids[:, 1] = run.number("physical_offset")
        if not np.any(run.store_extra):
            return hex_strings(ids.view(np.uint8))
        return strings_of(map(offset_id_text, self._long_hosts("store_host"), ids[:, 1].tolist()))

    def _long_hosts(self, field: str) -> list[bytes]:
        """Return the packed hosts where some are IPv6."""
        run = self._run
        extra, moved = (run.born_extra, 0) if field == "born_host" else (run.store_extra, run.born_extra)
        begin = run.starts + AT[field] + moved
        raw = run.raw.data
        sizes = (np.zeros(len(run), np.int64) + extra + IPV4_HOST_SIZE).tolist()
        return [bytes(raw[at : at + size]) for at, size in zip(begin.tolist(), sizes, strict=True)]

    def _host(self, field: str) -> pa.Array:
        run = self._run
        if np.any(run.born_extra if field == "born_host" else run.store_extra):
            return strings_of(map(_host_text, self._long_hosts(field)))
        same = run.same_number(field)
        if same is not None and len(run):
            return repeated_text(_host_text(same.to_bytes(8, "big", signed=True)), len(run))
        coded = array_of(run.number(field)).dictionary_encode()
        texts = [_host_text(value.to_bytes(8, "big", signed=True)) for value in coded.dictionary.to_pylist()]
        return strings_of(texts).take(coded.indices)


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
    BODY_FAULT.name: _Columns._body_fault,
    "queueOffset": lambda make: array_of(make._run.number("queue_offset")),
    "bornTimestamp": lambda make: _times(make._run.number("born_timestamp")),
    "storeTimestamp": lambda make: _times(make._run.number("store_timestamp")),
    "bornHost": lambda make: make._host("born_host"),
    "storeHost": lambda make: make._host("store_host"),
}


def _times(millis: _I64) -> pa.Array:
    micros = np.clip(millis, -_MAX_MILLIS, _MAX_MILLIS) * 1000
    return pa.Array.from_buffers(_TIME, len(micros), [None, pa.py_buffer(micros)])


def _host_text(packed: bytes) -> str:
    """Format ``ip:port``, or ``[ip]:port`` for an IPv6 address."""
    address, port = unpack_host(packed)
    return f"[{address}]:{port}" if len(packed) == IPV6_HOST_SIZE else f"{address}:{port}"
