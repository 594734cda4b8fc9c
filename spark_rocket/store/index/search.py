"""A search by key in the index files, with a check of each candidate's record in the log.

Hashes collide and an entry's time is in seconds, so every candidate's record is read. The entries of a time range are
found by binary search, because entries are in log order. A search has limits in bytes, records and steps, because the
store's thread serves no other request meanwhile.

Thread-safety: for one thread, which holds the index's lock. Read-only.
Corresponds to selectPhyOffset of org.apache.rocketmq.store.index.IndexFile, and DefaultMessageStore.queryMessage.
"""

from __future__ import annotations

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import view_record
from spark_rocket.store.index.index_file import IndexFile
from spark_rocket.store.index.keys import key_hash
from spark_rocket.store.layout import STORE_TIME_END, store_time
from spark_rocket.store.log.commit_log import CommitLog

_MAX_BYTES = 8 << 20  # per response; a frame has at most 16 MiB
_MAX_MISMATCHES = 5_000  # records read per search that do not match
_MAX_MISMATCHED_BYTES = 16 << 20  # of their properties, and an eighth of the records, which are only copied
_MAX_STEPS = 50_000  # chain entries and blocks per search


def stored_at(log: CommitLog, offset: int) -> int:
    """Return the store time of the record at an offset; −1 if it is gone."""
    head = log.read(offset, STORE_TIME_END) if offset >= log.min_offset else b""
    return store_time(head) if head else -1


class IndexSearch:
    """Search for records with a key in a time range; finds the newest if files are searched newest first."""

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
        self._bytes_left, self._mismatches_left, self._steps_left = _MAX_BYTES, _MAX_MISMATCHES, _MAX_STEPS
        self._mismatched_bytes_left = _MAX_MISMATCHED_BYTES

    def records(self) -> list[bytes]:
        """Return the found records, in log order."""
        return [record for _, record in sorted(self._found.items())]

    def search_file(self, file: IndexFile) -> bool:
        """Search a file; return False if the search is complete. DamagedIndexError if the file is damaged."""
        if file.begin_timestamp > self._end or file.end_timestamp < self._begin:
            return self._continues
        for offset in file.find(self._hash, *self._numbers(file)):
            self._steps_left -= 1
            if offset is not None and offset not in self._found:
                record = self._matching(offset)
                if record is None:
                    self._mismatches_left -= 1
                else:
                    self._bytes_left -= len(record)
                    if self._bytes_left < 0 and self._found:
                        return False
                    self._found[offset] = record
            if not self._continues:
                return False
        return True

    @property
    def _continues(self) -> bool:
        """Whether more records are needed and no limit is reached."""
        limits = self._bytes_left, self._steps_left, self._mismatches_left, self._mismatched_bytes_left
        return len(self._found) < self._max_num and min(limits) > 0

    def _numbers(self, file: IndexFile) -> tuple[int, int]:
        """Return the range of entries of records stored in the time range: the first, and the one after the last."""
        first = 1 if self._begin <= file.begin_timestamp else self._first_stored(file, self._begin)
        return first, file.count if self._end >= file.end_timestamp else self._first_stored(file, self._end + 1)

    def _first_stored(self, file: IndexFile, timestamp: int) -> int:
        """Return the first entry of a record stored at or after a time."""
        low, high = 1, file.count
        while low < high:
            middle = (low + high) // 2
            if stored_at(self._log, file.offset_of(middle)) < timestamp:
                low = middle + 1
            else:
                high = middle
        return low

    def _matching(self, offset: int) -> bytes | None:
        """Return the record at an offset if it exists and has the key."""
        if not self._log.min_offset <= offset < self._log.max_offset:
            return None
        raw = self._log.read(offset, int.from_bytes(self._log.read(offset, 4), "big"))
        self._mismatched_bytes_left -= len(raw) // 8  # a match counts too, which the limit of a response bounds
        try:
            record = view_record(raw)
        except ProtocolError:
            return None
        if str(record.topic, "utf-8", "replace") != self._topic:
            return None
        if not self._begin <= record.store_timestamp <= self._end:
            return None
        properties = bytes(record.properties)
        if self._has_key(properties):
            return raw
        self._mismatched_bytes_left -= len(properties)
        return None

    def _has_key(self, properties: bytes) -> bool:
        unique = find_property(properties, b"UNIQ_KEY")
        if unique is not None and str(unique, "utf-8", "replace") == self._key:
            return True
        keys = None if self._unique else find_property(properties, b"KEYS")
        return keys is not None and self._key in str(keys, "utf-8", "replace").split(" ")
