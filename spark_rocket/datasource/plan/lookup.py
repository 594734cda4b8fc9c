"""``lookupKeys``, ``lookupMsgIds``: find messages with the brokers' index instead of reading entire queues.

A broker's index returns the records that have a key, but not whether it is complete. A broker's results therefore count
only if all of these conditions hold. Otherwise its queues are read in full, and the log has the reason:

* The broker builds an index (``messageIndexEnable``).
* The index contains the first and the last message of the ranges, by their own keys. It was then neither trimmed
  further than the log, nor does it lag behind it.
* Each response has fewer records than the broker returns at most (``maxMsgsNumBatch``, 64), and fewer than
  ``_MAX_BYTES`` bytes: it was not truncated. Records of other keys with the same hash count too.

A hole in the middle cannot be detected: an index that was disabled for some time, or that an Apache broker did not
rebuild after it was killed (``messageIndexSafe=false``, its default). Brokers of this package have no such holes.
Lookups are therefore separate options, and filters of a query do not use the index.

A message is found by each of the words of ``KEYS``. A ``msgId`` is a unique key, which is in the index, or, for
messages without one, an offset id, which contains the position of the message. The index compares hashes, and entire
queues may be read. ``LookupFilter`` therefore compares the words of each message: rows never depend on the index alone.

Ranges are planned for one reader with its own options, and are not shared with another data frame. ``find`` is pure
over the ``Index`` queries. Corresponds to MQAdminImpl.queryMessage.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.reader import Reader
from spark_rocket.datasource.options.parsers import LookUp
from spark_rocket.datasource.plan.ranges import OffsetRange
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, Projection
from spark_rocket.errors import ProtocolError, RocketError
from spark_rocket.model import UNIQ_KEY, MessageExt, MessageQueue
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.ids import decode_offset_msg_id
from spark_rocket.protocol.record.messages import UndecodableError, decode_messages
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.messages import QueryMessageRequestHeader, ViewMessageRequestHeader

log = logging.getLogger("spark_rocket.datasource")

MAX_LOOKUPS = 200  # per broker: beyond that, reading the queues is faster
_MAX_RECORDS = 64
_MAX_BYTES = 3 * 1024 * 1024  # brokers of this package truncate at 8 MiB, before a record of at most 4 MiB


@dataclass(frozen=True, slots=True)
class IndexResult:
    """A broker's response: its records, decoded and as bytes."""

    messages: Sequence[MessageExt] = ()
    records: bytes | bytearray | memoryview = b""


class Index(Protocol):
    """The broker queries of a lookup. Tests implement them with a table."""

    def settings(self, queue: MessageQueue) -> dict[str, str]: ...
    def query(self, queue: MessageQueue, key: str, at_most: int) -> IndexResult: ...
    def view(self, queue: MessageQueue, physical_offset: int) -> IndexResult: ...
    def messages_at(self, places: Sequence[tuple[MessageQueue, int]]) -> list[MessageExt | None]: ...


class _UnreliableIndexError(Exception):
    """Why the index cannot be used."""


def find(spans: Iterable[OffsetRange], look_up: LookUp, index: Index) -> list[OffsetRange]:
    """Return the messages that the index returns, or all ranges of brokers whose index is unreliable."""
    by_broker: dict[str, list[OffsetRange]] = defaultdict(list)
    for span in spans:
        by_broker[span.queue.broker_name].append(span)
    found: list[OffsetRange] = []
    for broker, whole in by_broker.items():
        try:
            hits = _BrokerLookup(whole, index).hits(look_up)
        except (_UnreliableIndexError, RocketError) as reason:
            log.warning("%s: reading the queues on %s in full: %s", look_up.option, broker, reason)
            found += whole
        else:
            found += [piece for span in whole for piece in _pieces(span, hits[span.queue])]
    return found


def _pieces(span: OffsetRange, offsets: Iterable[int]) -> list[OffsetRange]:
    """Return the messages of a range at some offsets; adjacent offsets form one range."""
    found: list[OffsetRange] = []
    for offset in sorted({offset for offset in offsets if span.start <= offset < span.end}):
        if found and found[-1].end == offset:
            found[-1] = OffsetRange(span.queue, found[-1].start, offset + 1)
        else:
            found.append(OffsetRange(span.queue, offset, offset + 1))
    return found


class LookupFilter:
    """Filters the batches of a task for the messages of a lookup.

    Batches must be read with ``projection``: the columns of the read, and the column to compare.
    """

    def __init__(self, look_up: LookUp, projection: Projection) -> None:
        self._is_list = look_up.column == "keys"
        self._values = pa.array(look_up.values, pa.string())
        self._width = len(projection.columns)
        self.projection = projection
        if look_up.column not in projection.columns:
            compared = MESSAGE_SCHEMA.field(look_up.column)
            columns = (*projection.columns, look_up.column)
            self.projection = replace(projection, columns=columns, target=projection.target.append(compared))
        self._compared = self.projection.columns.index(look_up.column)

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            chosen = batch.filter(self._matches(batch.column(self._compared))).select(list(range(self._width)))
            if chosen.num_rows:
                yield chosen

    def _matches(self, texts: pa.Array) -> pa.Array:
        if not self._is_list:
            return pc.is_in(texts, value_set=self._values)
        words = pc.split_pattern(texts, " ")
        found = pc.list_parent_indices(words).filter(pc.is_in(pc.list_flatten(words), value_set=self._values))
        mask = np.zeros(len(texts), bool)
        mask[found.to_numpy(zero_copy_only=False)] = True
        return pa.array(mask)


class _BrokerLookup:
    """The lookups of one read on one broker."""

    def __init__(self, spans: Sequence[OffsetRange], index: Index) -> None:
        self._index = index
        self._spans = spans
        self._queues = {span.queue.topic: span.queue for span in spans}  # one per topic, to find the broker's address
        self._max_records = _MAX_RECORDS
        self._first = self._last = 0

    def hits(self, look_up: LookUp) -> defaultdict[MessageQueue, set[int]]:
        keys = look_up.values
        if len(keys) * len(self._queues) > MAX_LOOKUPS:
            raise _UnreliableIndexError(f"{len(keys)} keys in {len(self._queues)} topics are too many lookups")
        self._check()
        found: defaultdict[MessageQueue, set[int]] = defaultdict(set)
        for queue in self._queues.values():
            for key in keys:
                for message in self._query(queue, key):
                    found[_queue_of(message, queue)].add(message.queue_offset)
        queue = self._spans[0].queue
        for msg_id in keys if look_up.column == "msgId" else ():
            at = physical_offset(msg_id)
            if self._first <= at <= self._last:
                for message in self._index.view(queue, at).messages:
                    found[_queue_of(message, queue)].add(message.queue_offset)
        return found

    def _check(self) -> None:
        if any(topic.startswith("%LMQ%") for topic in self._queues):
            raise _UnreliableIndexError("the index has messages of light queues under another topic")
        settings = self._index.settings(self._spans[0].queue)
        if settings.get("messageIndexEnable") != "true":
            raise _UnreliableIndexError("the broker builds no index (messageIndexEnable)")
        given = settings.get("maxMsgsNumBatch", "")
        if given.isdecimal():
            self._max_records = min(self._max_records, int(given))
        ends = [(span.queue, offset) for span in self._spans for offset in sorted({span.start, span.end - 1})]
        messages = self._index.messages_at(ends)
        there = [message for message in messages if message is not None]
        if len(there) < len(messages):
            raise _UnreliableIndexError("messages at the ends of its queues were deleted")
        first, last = min(there, key=_place), max(there, key=_place)
        self._first, self._last = first.physical_offset, last.physical_offset
        for message in first, last:
            key = message.properties.get(UNIQ_KEY) or _first_word(message.keys or "")
            queue = self._queues.get(message.topic)
            if not key or queue is None:
                raise _UnreliableIndexError(f"message {message.msg_id}, at the end of a queue, has no key")
            answer = self._query(queue, key)
            if all(one.physical_offset != message.physical_offset for one in answer):
                raise _UnreliableIndexError(f"message {message.msg_id} is missing in the broker's index")

    def _query(self, queue: MessageQueue, key: str) -> Sequence[MessageExt]:
        answer = self._index.query(queue, key, self._max_records)
        if len(answer.messages) >= self._max_records or len(answer.records) > _MAX_BYTES:
            raise _UnreliableIndexError(
                f"the response for key {key} may be truncated ({len(answer.messages)} messages)"
            )
        return answer.messages


def _place(message: MessageExt) -> int:
    return message.physical_offset


def _queue_of(message: MessageExt, asked: MessageQueue) -> MessageQueue:
    return MessageQueue(message.topic, asked.broker_name, message.queue_id)


def _first_word(text: str) -> str:
    return next((word for word in text.split(" ") if word), "")


def physical_offset(msg_id: str) -> int:
    """Return the physical offset in an offset id; -1 for other ids."""
    try:
        return decode_offset_msg_id(msg_id)[1]
    except ProtocolError:
        return -1


class BrokerIndex:
    """Sends the queries of a lookup to the masters of queues."""

    def __init__(self, reader: Reader, timeout: float) -> None:
        self._reader = reader
        self._timeout = timeout

    def settings(self, queue: MessageQueue) -> dict[str, str]:
        answer = self._ask(queue, RequestCode.GET_BROKER_CONFIG, {})
        lines = bytes(answer.body).decode("utf-8", "replace").splitlines()
        pairs = (line.partition("=") for line in lines)
        return {name.strip(): value.strip() for name, _, value in pairs}

    def query(self, queue: MessageQueue, key: str, at_most: int) -> IndexResult:
        header = QueryMessageRequestHeader(
            topic=queue.topic, key=key, max_num=at_most, begin_timestamp=0, end_timestamp=2**63 - 1
        )
        answer = self._ask(queue, RequestCode.QUERY_MESSAGE, header.to_ext(), ResponseCode.QUERY_NOT_FOUND)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return IndexResult()
        return IndexResult(_heads(answer.body, queue), answer.body)

    def view(self, queue: MessageQueue, physical_offset: int) -> IndexResult:
        """Return the message at a log position. Brokers respond with SYSTEM_ERROR if no message begins there."""
        header = ViewMessageRequestHeader(topic=queue.topic, offset=physical_offset)
        answer = self._ask(queue, RequestCode.VIEW_MESSAGE_BY_ID, header.to_ext(), ResponseCode.SYSTEM_ERROR)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return IndexResult()
        try:
            found = _heads(answer.body, queue)
        except ProtocolError:
            return IndexResult()
        is_there = [one.physical_offset for one in found] == [physical_offset]
        return IndexResult(found, answer.body) if is_there else IndexResult()

    def messages_at(self, places: Sequence[tuple[MessageQueue, int]]) -> list[MessageExt | None]:
        asked = [(self._reader.pull_async(queue, offset, max_msgs=1), queue, offset) for queue, offset in places]
        return [_message(pulled.result(), queue, offset) for pulled, queue, offset in asked]

    def _ask(
        self, queue: MessageQueue, code: RequestCode, ext: dict[str, str], allowed: ResponseCode = ResponseCode.SUCCESS
    ) -> RemotingCommand:
        address = self._reader.address(queue)
        request, what = RemotingCommand.request(code, ext), f"{code.name} for {queue.topic}"
        codes = frozenset({int(ResponseCode.SUCCESS), int(allowed)})
        return self._reader.instance().invoke(
            address, request, what, topic=queue.topic, timeout=self._timeout, allowed=codes
        )


def _heads(records: Buffer, queue: MessageQueue) -> list[MessageExt]:
    """Decode messages for their ids, keys and places: a damaged body must not hide the others."""
    try:
        return decode_messages(records, queue.broker_name)
    except UndecodableError:
        return decode_messages(records, queue.broker_name, check_crc=False, decompress=False)


def _message(pulled: PullResult, queue: MessageQueue, offset: int) -> MessageExt | None:
    if pulled.status is not PullStatus.FOUND:
        return None
    found = _heads(pulled.records, queue)
    return next((message for message in found if message.queue_offset == offset), None)
