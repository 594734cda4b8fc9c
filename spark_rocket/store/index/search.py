"""One search by key, in the files of an index: which entries may be meant, and what the log says of them.

Hashes collide and an entry's time is in seconds, so every record is looked at itself. The entries of a span of time are
found by binary search, because they are in the order of the log. A search has bounds, in bytes, records and steps: the
store's thread serves nobody else meanwhile.

Thread-safety: for one thread, that holds the index's lock. Changes nothing.
Corresponds to selectPhyOffset of org.apache.rocketmq.store.index.IndexFile, and DefaultMessageStore.queryMessage.
"""

from __future__ import annotations

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.record.record import view_record
from spark_rocket.store.index.index_file import IndexFile
from spark_rocket.store.index.keys import key_hash
from spark_rocket.store.layout import STORE_TIME_END, store_time
from spark_rocket.store.log.commit_log import CommitLog

_MOST_BYTES = 8 << 20  # of one answer; a frame has at most 16 MiB
_MOST_RECORDS = 5_000  # that are looked at for one answer and turn out not to be meant
_MOST_STEPS = 50_000  # along the chains, and blocks beside them


def stored_at(log: CommitLog, offset: int) -> int:
    """When the record there was stored; −1 if it is gone."""
    head = log.read(offset, STORE_TIME_END) if offset >= log.min_offset else b""
    return store_time(head) if head else -1


class IndexSearch:
    """Records with a key that were stored in a span of time; the newest ones, if files are given newest first."""

    def __init__(
        self, log: CommitLog, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> None:
        self._log = log
        self._topic = topic
        self._key = key
        self._hash = key_hash(topic, key)
        self._max_num = max_num
        self._begin = begin_ms
        self._end = end_ms
        self._unique = unique
        self._found: dict[int, bytes] = {}
        self._room, self._looks, self._steps = _MOST_BYTES, _MOST_RECORDS, _MOST_STEPS

    def records(self) -> list[bytes]:
        """What was found, in the order of the log."""
        return [record for _, record in sorted(self._found.items())]

    def look_into(self, file: IndexFile) -> bool:
        """Search a file; False when others need not be. DamagedIndexError when it cannot be right."""
        if file.begin_timestamp > self._end or file.end_timestamp < self._begin:
            return self._goes_on
        for offset in file.find(self._hash, *self._numbers(file)):
            self._steps -= 1
            if offset is not None and offset not in self._found:
                record = self._matching(offset)
                if record is None:
                    self._looks -= 1
                else:
                    self._room -= len(record)
                    if self._room < 0 and self._found:
                        return False
                    self._found[offset] = record
            if not self._goes_on:
                return False
        return True

    @property
    def _goes_on(self) -> bool:
        return len(self._found) < self._max_num and self._room > 0 and self._steps > 0 and self._looks > 0

    def _numbers(self, file: IndexFile) -> tuple[int, int]:
        """The entries of records stored in the span of time: the first one, and the one behind the last."""
        first = 1 if self._begin <= file.begin_timestamp else self._first_stored(file, self._begin)
        return first, file.count if self._end >= file.end_timestamp else self._first_stored(file, self._end + 1)

    def _first_stored(self, file: IndexFile, timestamp: int) -> int:
        """The first entry of a record stored at or after a time."""
        low, high = 1, file.count
        while low < high:
            middle = (low + high) // 2
            if stored_at(self._log, file.offset_of(middle)) < timestamp:
                low = middle + 1
            else:
                high = middle
        return low

    def _matching(self, offset: int) -> bytes | None:
        """The record, if it is there and really has the key."""
        if not self._log.min_offset <= offset < self._log.max_offset:
            return None
        raw = self._log.read(offset, int.from_bytes(self._log.read(offset, 4), "big"))
        try:
            record = view_record(raw)
        except ProtocolError:
            return None
        if str(record.topic, "utf-8", "replace") != self._topic:
            return None
        if not self._begin <= record.store_timestamp <= self._end:
            return None
        properties = decode_properties(record.properties)
        if properties.get("UNIQ_KEY") == self._key:
            return raw
        return raw if not self._unique and self._key in properties.get("KEYS", "").split(" ") else None
