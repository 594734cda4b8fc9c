"""Delayed messages that were delivered before a stop, as found in the commit log.

The saved progress of delay levels and timer is some seconds old after a kill, and on a promoted slave. The log is not:
each delivery is a record in it. At start, the records stored since the time of the saved progress are read, and the
message of each delivery is noted by its identity. A pending message with a noted identity is not delivered again.

Identity: original topic and queue, UNIQ_KEY, born time, born host, flag, reconsume times, and length and CRC of the
body, which a delivery keeps; for a rolled message (timer_store.py) also the number of rolls. Equal messages are
counted, so that one delivery stands for one message. A message without UNIQ_KEY has no identity and may be delivered
again. The same applies if the clock was set back, and to deliveries before the last 2 GiB of the log or the last
million: time and memory at start are bounded.

Works on Apache's stores too, as it needs only the log. Apache's brokers deliver such messages again.

No state on disk.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b

from spark_rocket.errors import StoreError
from spark_rocket.model import TIMER_TOPIC
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import RecordView, view_record
from spark_rocket.store.log.record_scan import RecordBlock
from spark_rocket.store.message_store import MessageStore

_log = logging.getLogger(__name__)

_REAL_TOPIC = b"REAL_TOPIC"
_MARK = _REAL_TOPIC + b"\x01"
_TIMER_TOPIC = TIMER_TOPIC.encode()
_MAX_SCAN_BYTES = 2 << 30
_MAX_IDENTITIES = 1_000_000


def rolls_of(properties: bytes) -> int:
    """Return how often a timed message was rolled."""
    value = find_property(properties, b"TIMER_ROLL_TIMES") or b""
    return int(value) if value.isdigit() and len(value) < 10 else 0


def _identity(record: RecordView, properties: bytes, rolls: int) -> bytes | None:
    unique_key = find_property(properties, b"UNIQ_KEY")
    if not unique_key:
        return None
    place = (find_property(properties, name) for name in (_REAL_TOPIC, b"REAL_QID", b"TIMER_DEL_UNIQKEY"))
    numbers = (record.born_timestamp, record.flag, record.reconsume_times, record.body_crc, len(record.body), rolls)
    parts = (*place, unique_key, bytes(record.born_host), numbers)
    return blake2b(repr(parts).encode(), digest_size=16).digest()


class DeliveredMessages:
    """The deliveries in the log since a time."""

    def __init__(self, store: MessageStore, what: str) -> None:
        """``what``: kind of messages, for the log."""
        self._store = store
        self._what = what
        self._counts: Counter[bytes] = Counter()
        self._until = 0

    def __bool__(self) -> bool:
        return bool(self._counts)

    @property
    def until(self) -> int:
        """Store time of the log's last message at start: no later message had been delivered."""
        return self._until

    def find(self, since_ms: int) -> None:
        """Read the log from a time on, instead of an earlier result. Call before the first delivery."""
        store = self._store
        self._counts.clear()
        self._until = store.store_timestamp
        if since_ms > self._until:
            return
        try:
            start, is_complete = self._read(since_ms)
        except (StoreError, OSError) as error:
            _log.error("Messages of the last seconds may be delivered again: the log cannot be read: %s", error)
            return
        if self._counts:
            _log.info(
                "found %d deliveries of %s in the log, in %d bytes from offset %d on: not delivering them again",
                self._counts.total(),
                self._what,
                store.max_physical_offset - start,
                start,
            )
        if not is_complete:
            _log.warning(
                "Not all deliveries of %s since the last saved progress were read from the log (limits: %d bytes, %d "
                "messages): some messages may be delivered again.",
                self._what,
                _MAX_SCAN_BYTES,
                _MAX_IDENTITIES,
            )

    def _read(self, since_ms: int) -> tuple[int, bool]:
        """Count the deliveries; return the offset of the first record, and whether no limit was reached."""
        start, is_complete, blocks = self._store.log_since(since_ms, _MAX_SCAN_BYTES)
        for block in blocks:
            for record, properties in _deliveries(block, since_ms):
                key = _identity(record, properties, rolls_of(properties) if record.topic == _TIMER_TOPIC else 0)
                if key is not None:
                    self._counts[key] += 1
            if len(self._counts) > _MAX_IDENTITIES:  # retain the newest
                self._counts.clear()
                is_complete = False
        return start, is_complete

    def take(self, record: RecordView, *, is_roll: bool = False) -> bool:
        """Return whether a pending message was delivered before; ``is_roll``: whether it was rolled before."""
        if not self._counts:
            return False
        properties = bytes(record.properties)
        key = _identity(record, properties, rolls_of(properties) + 1 if is_roll else 0)
        if key is None or key not in self._counts:
            return False
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        return True

    def clear(self) -> None:
        """Drop the rest: all messages that were due before the start are delivered."""
        self._counts.clear()


def _deliveries(block: RecordBlock, since_ms: int) -> Iterator[tuple[RecordView, bytes]]:
    """Yield delivered delayed messages, and rolled ones, with their properties. Other records cost one search."""
    data = block.data
    at = data.find(_MARK)
    if at < 0:
        return
    starts, ends = block.property_starts.tolist(), block.property_ends.tolist()
    while at >= 0:
        number = bisect_right(starts, at) - 1
        if number < 0 or at >= ends[number]:  # in a body, or after the block's last good record
            at = data.find(_MARK, at + 1)
            continue
        if int(block.store_timestamps[number]) >= since_ms:
            record = view_record(data, int(block.starts[number]), check_crc=False)
            properties = bytes(record.properties)
            if _is_delivery(record, properties):
                yield record, properties
        at = data.find(_MARK, ends[number])


def _is_delivery(record: RecordView, properties: bytes) -> bool:
    if find_property(properties, b"TIMER_OUT_MS") is None and find_property(properties, b"DELAY") is None:
        return False
    if record.topic == _TIMER_TOPIC:
        return rolls_of(properties) > 0
    queue_id = b"%d" % record.queue_id
    topic = find_property(properties, _REAL_TOPIC)
    return bytes(record.topic) == topic and queue_id == find_property(properties, b"REAL_QID")
