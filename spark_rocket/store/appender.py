"""Appends messages to the log, singly or as a batch.

The order makes a put atomic:

1. Allocate disk blocks and map every file to be written. A full disk or a shortage of descriptors is detected here,
   before a byte is written.
2. Write the records, the size of the first one last.
3. Advance the end of the log, which makes the record visible to readers.
4. Write the consume-queue entry and advance the queue's end.
5. Notify pending pulls.

Other threads may call ``refuse``, and read ``store_timestamp``: the time of the last message that is completely below
the log's end. Corresponds to CommitLog.asyncPutMessage(s) and DefaultAppendMessageCallback.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from struct import Struct
from struct import error as StructError
from zlib import crc32

from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import StoreError, StoreNotWritableError
from spark_rocket.model import SCHEDULE_TOPIC
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.ids import IPV6_HOST_SIZE, pack_host
from spark_rocket.protocol.record.layout import (
    BORN_HOST_V6,
    CRC_MASK,
    HEADERS,
    HOSTS_MASK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from spark_rocket.store.batch_plan import BatchPlan, plan_batch
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.descriptors import ShortageError
from spark_rocket.store.index.keys import WrittenRun, tail_of
from spark_rocket.store.layout import ENTRY, MAX_PROPERTIES_BYTES, DelayLevels, entries_of_run
from spark_rocket.store.layout import tags_code as tags_code_of
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.put_times import PutTimes
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.queue_table import ConsumeQueueTable, is_storable
from spark_rocket.store.results import PutError, PutResult, PutStatus

_log = logging.getLogger(__name__)
_pack_short = PROPERTIES_LENGTH.pack
_PUT_ERRORS = (PutError, OSError, StructError)
_NOT_QUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
_MAX_STEP_BACK_MS = 60_000

ArriveCallback = Callable[[str, int, int, int, int], None]
"""topic, queue id, next offset, tags code, store timestamp"""
NoteCallback = Callable[[WrittenRun], None]


class MessageAppender:
    """The only writer of a store."""

    def __init__(
        self,
        config: StoreConfig,
        commit_log: CommitLog,
        queues: ConsumeQueueTable,
        delays: DelayLevels,
        store_host: tuple[str, int],
        clock: Callable[[], int],
        on_arrive: ArriveCallback | None,
        note: NoteCallback | None,
    ) -> None:
        """Set up a writer. ``note`` is called with the places of the records of each stored batch, for the index."""
        self._config = config
        self._log = commit_log
        self._queues = queues
        self._delays = delays
        self._clock = clock
        self._on_arrive = on_arrive
        self._note = note
        self._host = pack_host(store_host)
        self._host_flag = STORE_HOST_V6 if len(self._host) == IPV6_HOST_SIZE else 0
        self._max_body = config.max_message_size
        self._opened: dict[tuple[str, int], ConsumeQueue] = {}
        self._store_timestamp = 0
        self.put_total = 0
        self.put_bytes = 0
        self._merged = 0
        """Messages minus puts: the messages of batches beyond the first of each."""
        self.times = PutTimes()
        self._limited = RateLimited(_log, 60.0, lambda: clock() / 1000)
        """Limits log lines about missing disk space."""
        self._refusal: StoreNotWritableError | None = StoreNotWritableError(
            f"The store in {config.store_path} is not running.", remedy="Start it."
        )

    @property
    def write_error(self) -> StoreNotWritableError | None:
        """Why messages are rejected at present; None if they are accepted."""
        return self._refusal

    def refuse(self, error: StoreNotWritableError | None) -> None:
        """Reject messages with this error from now on; None: accept them."""
        self._refusal = error

    @property
    def store_timestamp(self) -> int:
        """Store time of the log's last message."""
        return self._store_timestamp

    def continue_from(self, store_timestamp: int) -> None:
        """Continue after a message that recovery has found or a replica has copied; 0: after none."""
        self._store_timestamp = store_timestamp

    def sample(self) -> None:
        """Start the next ten-second sample of ``times``."""
        self.times.sample(self.put_total - self._merged)

    def forget(self, topic: str | None = None) -> None:
        """Drop cached references to the queues of a topic, or of all."""
        for key in [key for key in self._opened if topic is None or key[0] == topic]:
            del self._opened[key]

    def put_message(
        self,
        topic: str,
        queue_id: int,
        body: Buffer,
        properties: bytes,
        *,
        tags_code: int | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int,
        born_host: tuple[str, int] | bytes,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> PutResult:
        """Store one message. The result has the status; invalid messages do not raise."""
        begun = self._clock()
        try:  # everything that can fail comes before the first write
            queue = self._queue_of(topic, queue_id, len(body), properties)
            head, sys_flag, magic, born = self._shape(born_host, sys_flag, queue.topic_field)
            size = head.size + len(body) + len(queue.topic_field) + 2 + len(properties)
            queued = sys_flag & TRANSACTION_MASK not in _NOT_QUEUED
            self._make_room(queue, size, 1)
            timestamp = self._store_time(begun)
            offset, number = self._log.max_offset, queue.max_offset if queued else 0
            if queued and (topic == SCHEDULE_TOPIC or tags_code is None):
                tags_code = self._tags_code(topic, properties, timestamp)
            times = (born_timestamp, born, timestamp, self._host, reconsume_times, prepared_transaction_offset)
            crc = crc32(body) & CRC_MASK
            packed = head.pack(size, magic, crc, queue_id, flag, number, offset, sys_flag, *times, len(body))
            record = b"".join((packed, body, queue.topic_field, _pack_short(len(properties)), properties))
            entry = ENTRY.pack(offset, size, tags_code) if queued else b""
        except _PUT_ERRORS as error:
            return self._failure(error)
        self._log.write(record)
        self._finish(begun, queue, size, 1, entry, (tags_code or 0,), timestamp)
        return PutResult(PutStatus.PUT_OK, number, offset, offset + size, 1, timestamp)

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        batch_body: Buffer,
        *,
        batch_properties: bytes = b"",
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int,
        born_host: tuple[str, int] | bytes,
        reconsume_times: int = 0,
        check: Callable[[BatchPlan], None] | None = None,
    ) -> PutResult:
        """Store all messages of a batch body, consecutively in log and queue, or none of them.

        Each message has its own flag; ``flag`` is not used. ``check`` may raise to reject the batch: nothing is stored.
        """
        begun, log = self._clock(), self._log
        try:
            queue = self._queue_of(topic, queue_id, len(batch_body), batch_properties)
            if topic == SCHEDULE_TOPIC or sys_flag & TRANSACTION_MASK:
                raise PutError(PutStatus.MESSAGE_ILLEGAL, "a batch can be neither delayed nor transactional")
            head, sys_flag, magic, born = self._shape(born_host, sys_flag, queue.topic_field)
            plan = plan_batch(batch_body, head.size + len(queue.topic_field) + 2, batch_properties)
            if check is not None:
                check(plan)
            size, count = int(plan.sizes.sum()), len(plan.sizes)
            self._make_room(queue, size, count)
            timestamp = self._store_time(begun)
            times = (born_timestamp, born, timestamp, self._host, reconsume_times, 0)
            template = head.pack(0, magic, 0, queue_id, flag, 0, 0, sys_flag, *times, 0)
        except _PUT_ERRORS as error:
            return self._failure(error)
        offset, number = log.max_offset, queue.max_offset
        try:
            physical = plan.write(log.writable(size), template, queue.topic_field, number, offset)
            log.complete(int(plan.sizes[0]))
        except BaseException:  # no memory for intermediate results
            log.erase(size)
            raise
        entries = entries_of_run(physical, plan.sizes, plan.codes)
        self._finish(begun, queue, size, count, entries, set(plan.codes.tolist()), timestamp)
        self._merged += count - 1
        if self._note is not None:
            tail = tail_of(batch_properties)
            self._note(WrittenRun(topic, timestamp, physical, plan.lengths - tail, tail, offset + size))
        return PutResult(PutStatus.PUT_OK, number, offset, offset + size, count, timestamp, physical)

    def _queue_of(self, topic: str, queue_id: int, size: int, properties: bytes) -> ConsumeQueue:
        """Return the queue of a message or batch of a valid size. PutError."""
        queue = self._opened.get((topic, queue_id))
        if queue is None:
            if not is_storable(topic, queue_id):
                raise PutError(PutStatus.MESSAGE_ILLEGAL, f"{topic!r} queue {queue_id} cannot be stored")
            queue = self._opened[topic, queue_id] = self._queues.find_or_create(topic, queue_id)
        if self._refusal is not None:
            raise PutError(PutStatus.SERVICE_NOT_AVAILABLE, str(self._refusal))
        if len(properties) > MAX_PROPERTIES_BYTES:
            reason = f"properties have {len(properties)} bytes, more than {MAX_PROPERTIES_BYTES}"
            raise PutError(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason)
        if size > self._max_body:
            reason = f"the body has {size} bytes, more than maxMessageSize {self._max_body}"
            raise PutError(PutStatus.MESSAGE_ILLEGAL, reason)
        if b"\0" in properties:
            raise PutError(PutStatus.MESSAGE_ILLEGAL, "the properties contain a NUL character")
        return queue

    def _finish(
        self,
        begun: int,
        queue: ConsumeQueue,
        size: int,
        count: int,
        entries: bytes,
        codes: Iterable[int],
        timestamp: int,
    ) -> None:
        """Make the written records visible, first in the log, then in the queue."""
        self._log.advance(size)
        if entries:
            queue.append(entries)
            self._queues.mark_dirty(queue)
        # After the entries: a flush reads it first, and what it then writes as flushed must include them.
        self._store_timestamp = timestamp
        self.put_bytes += size
        self.put_total += count
        if entries and self._on_arrive is not None:
            for code in codes:
                self._on_arrive(queue.topic, queue.queue_id, queue.max_offset, code, timestamp)
        if (took := self._clock() - begun) > 0:
            self.times.slow[took] += 1

    def _shape(
        self, born_host: tuple[str, int] | bytes, sys_flag: int, topic_field: bytes
    ) -> tuple[Struct, int, int, bytes]:
        """Return the layout of the record's head, the sysFlag for that layout, the magic, and the packed host."""
        born = born_host if isinstance(born_host, bytes) else pack_host(born_host)
        sys_flag = sys_flag & ~HOSTS_MASK | self._host_flag
        if len(born) == IPV6_HOST_SIZE:
            sys_flag |= BORN_HOST_V6
        return HEADERS[sys_flag & HOSTS_MASK], sys_flag, MAGIC_V1 if topic_field[0] else MAGIC_V2, born

    def _make_room(self, queue: ConsumeQueue, size: int, entries: int) -> None:
        """Allocate room for records and their entries. OSError if the disk is full; PutError if they can never fit."""
        if size > self._log.max_run_size:
            reason = f"{size} bytes do not fit in a commit-log file of {self._log.file_size}."
            raise PutError(PutStatus.MESSAGE_ILLEGAL, reason)
        try:
            queue.make_room(entries)  # first: a refused put leaves the log as it is
            self._log.make_room(size)
        except StoreError as error:
            raise PutError(PutStatus.MESSAGE_ILLEGAL, error.message) from error

    def _store_time(self, now: int) -> int:
        """Return a store time in log order: clock steps back of up to a minute are ignored, larger ones followed."""
        last = self._store_timestamp
        return last if now < last <= now + _MAX_STEP_BACK_MS else now

    def _tags_code(self, topic: str, properties: bytes, timestamp: int) -> int:
        if topic == SCHEDULE_TOPIC:
            due = self._delays.deliver_time(properties, timestamp)
            if due is not None:
                return due
        return tags_code_of(properties)

    def _failure(self, error: Exception) -> PutResult:
        """Count a failed put and return its result."""
        self.times.failed += 1
        if isinstance(error, StructError):
            error = PutError(PutStatus.MESSAGE_ILLEGAL, f"a number is out of its field's range: {error}")
        if isinstance(error, PutError):
            return PutResult(error.status, reason=error.reason)
        assert isinstance(error, OSError)
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self._full(error))

    def _full(self, error: OSError) -> str:
        """Return the reason for a put that failed for lack of disk space, memory or descriptors.

        Logged once a minute. Only this put is rejected; the next one checks again.
        """
        path = self._config.commit_log_path
        self._limited.log(
            logging.ERROR, error.errno, "No room for messages in %s: %s. Sends are rejected meanwhile.", path, error
        )
        if error.errno == errno.ENOMEM:  # also for lack of mappings
            reason, remedy = f"No file of {path} can be mapped: {error}.", "Give the process more memory or mappings"
        elif isinstance(error, ShortageError):
            reason, remedy = f"No file of {path} can be opened: {error}.", "Raise the limit of open files (ulimit -Hn)"
        else:
            reason, remedy = f"The disk of {path} has no room: {error}.", "Free some space"
        return str(StoreNotWritableError(reason, remedy=f"{remedy}; the broker then resumes by itself."))
