"""The store as the broker sees it: put, get, find by time, key and id, flush, close.

A put takes blocks on the disk first, then writes the record, then its consume-queue entry, then shows both to readers
and wakes held pulls: nothing is half visible, and a full disk refuses before a byte is written. The index is built
behind the writer's back from the log.

Thread-safety: puts, gets and topic changes are for one thread (the broker's event loop). ``when_flushed`` may be called
from any thread; its callbacks come from a flush thread. After a crash: see recovery.py.
Corresponds to org.apache.rocketmq.store.DefaultMessageStore.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from zlib import crc32

import numpy as np

from spark_rocket.errors import StateError, StoreError, StoreNotWritableError
from spark_rocket.protocol.host import IPV6_HOST_SIZE, pack_host
from spark_rocket.protocol.record import MAGIC_V1, MAGIC_V2
from spark_rocket.store.batch import BatchError, plan_batch, write_batch
from spark_rocket.store.checkpoint import Checkpoint
from spark_rocket.store.commit_log import CommitLog
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.consume_queue import ConsumeQueue
from spark_rocket.store.deleted_topics import DeletedTopics
from spark_rocket.store.flush import FlushCallback, FlushCommitLogService, FlushConsumeQueueService
from spark_rocket.store.index_service import IndexService
from spark_rocket.store.layout import (
    BORN_HOST_V6,
    ENTRY,
    ENTRY_SIZE,
    ENTRY_TYPE,
    HEAD_STRUCTS,
    MAX_PROPERTIES,
    SCHEDULE_TOPIC,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from spark_rocket.store.queue_table import ConsumeQueueTable, is_storable
from spark_rocket.store.reader import StoreReader
from spark_rocket.store.recovery import Recovery, RecoveryReport
from spark_rocket.store.results import GetMessageResult, PutResult, PutStatus, QueryMessageResult
from spark_rocket.store.store_lock import StoreLock, abort_path, write_abort
from spark_rocket.store.tags import DelayLevels
from spark_rocket.store.tags import tags_code as tags_code_of

_log = logging.getLogger(__name__)
_SHORT = Struct(">h")
_pack_short = _SHORT.pack
_MAX_STEP_BACK = 60_000  # milliseconds

Bytes = bytes | bytearray | memoryview
ArriveCallback = Callable[[str, int, int, int, int], None]


def now_ms() -> int:
    """Wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


class MessageStore:
    """A store directory, open for one broker."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        store_host: tuple[str, int],
        clock: Callable[[], int] = now_ms,
        on_arrive: ArriveCallback | None = None,
    ) -> None:
        self.config = config
        self._clock = clock
        self._on_arrive = on_arrive
        self._lock = StoreLock(config.store_path)
        self._checkpoint = Checkpoint(config.store_path / "checkpoint")
        self._log = CommitLog(config)
        self._queues = ConsumeQueueTable(config)
        self._reader = StoreReader(self._log, self._queues, config.max_filter_message_size)
        self._delays = DelayLevels(config.delay_levels())
        self._deleted = DeletedTopics(config.store_path)
        self._flush_log = FlushCommitLogService(
            config, self._log, self._checkpoint, self._get_store_timestamp, self._disk_failed
        )
        self._flush_queues = FlushConsumeQueueService(
            config,
            self._log,
            self._checkpoint,
            self._queues.take_dirty,
            self._get_store_timestamp,
            self._flush_log,
            self._disk_failed,
        )
        self._index = IndexService(config, self._log, self._checkpoint, clock) if config.message_index_enable else None
        self._host = pack_host(store_host)
        self._host_flag = STORE_HOST_V6 if len(self._host) == IPV6_HOST_SIZE else 0
        self._max_body = config.max_message_size
        self._store_timestamp = 0
        self._opened: dict[tuple[str, int], ConsumeQueue] = {}
        self._running = False
        self._boot_timestamp = 0
        self._put_total = 0
        self._put_bytes = 0
        self.write_error: StoreNotWritableError | None = StoreNotWritableError(
            f"The store in {config.store_path} is not running.", remedy="Start it."
        )
        self.recovery: RecoveryReport | None = None

    # --- opening and closing ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Lock the directory, recover, take messages. StoreLockedError, StoreCorruptError, StoreNotWritableError."""
        if self._running:
            raise StateError(f"The store in {self.config.store_path} is already started.")
        try:
            self.config.store_path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            self._open()
        except BaseException as error:
            if self._index is not None:
                self._index.close()
            self._queues.close()
            with suppress(StateError):
                self._log.close()
            self._lock.release()
            if isinstance(error, OSError):
                raise StoreNotWritableError(
                    f"The store in {self.config.store_path} cannot be opened: {error}.",
                    remedy="Give the broker the right to read and write there, and some free space.",
                    retriable=False,
                ) from error
            raise
        self._log.start()
        self._flush_log.start()
        self._flush_queues.start()
        if self._index is not None:
            self._index.start()
        self._boot_timestamp = self._clock()
        self._running = True
        self.write_error = None

    def _open(self) -> None:
        clean = not abort_path(self.config.store_path).exists()
        self._checkpoint.load()
        self._log.load()
        self._queues.load()
        self._deleted.load()
        write_abort(self.config.store_path)
        try:
            recovery = Recovery(self.config, self._log, self._queues, self._checkpoint, self._delays, self._deleted)
            report = recovery.run(clean=clean)
        except StoreError:
            if clean:  # refused, not crashed: the next attempt must be as careful with the tail as this one
                abort_path(self.config.store_path).unlink(missing_ok=True)
            raise
        self.recovery = report
        if not self._checkpoint.existed:
            self._checkpoint.save()
        self._store_timestamp = report.last_store_timestamp
        if self._index is not None:
            self._index.load(clean=report.clean)

    def close(self) -> None:
        """Flush everything, say that the stop was clean, unlock. StoreError when the disk would not take it all."""
        if not self._running:
            return
        self._running = False
        text = f"The store in {self.config.store_path} is closed."
        self.write_error = StoreNotWritableError(text, remedy="Start it.")
        failure: OSError | None = None
        if self._index is not None:
            self._index.stop()
        self._flush_log.stop()
        self._flush_queues.stop()
        self._log.shutdown()
        try:
            self._flush_log.flush()
            self._flush_queues.flush(thorough=True)
            abort_path(self.config.store_path).unlink(missing_ok=True)
        except OSError as error:
            failure = error
        self._opened.clear()
        if self._index is not None:
            self._index.close()
        self._queues.close()
        self._log.close()
        self._lock.release()
        if failure is not None:
            raise StoreError(
                f"The store in {self.config.store_path} could not be flushed: {failure}.",
                remedy="Mend the disk; the next start recovers what reached it.",
            )

    def _get_store_timestamp(self) -> int:
        return self._store_timestamp

    def _disk_failed(self, error: OSError) -> None:
        self.write_error = StoreNotWritableError(
            f"The disk of {self.config.store_path} failed: {error}.",
            remedy="Mend the disk and start the broker again; it recovers what reached the disk.",
            retriable=False,
        )

    # --- putting ------------------------------------------------------------------------------------------------

    def put_message(
        self,
        topic: str,
        queue_id: int,
        body: Bytes,
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
        """Store one message. The result's status says what became of it; nothing is raised for a message's faults."""
        queue = self._opened.get((topic, queue_id))
        if queue is None:
            queue = self._open_queue(topic, queue_id)
            if queue is None:
                return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=f"{topic!r} queue {queue_id} cannot be stored")
        if self.write_error is not None:
            return self._refuse()
        body_length = len(body)
        properties_length = len(properties)
        if body_length > self._max_body or properties_length > MAX_PROPERTIES or b"\0" in properties:
            return self._illegal(body_length, properties)
        born = born_host if type(born_host) is bytes else pack_host(born_host)
        topic_field = queue.topic_field
        head, sys_flag, magic = self._shape(born, sys_flag, topic_field)
        size = head.size + body_length + len(topic_field) + 2 + properties_length
        log = self._log
        transaction = sys_flag & TRANSACTION_MASK
        queued = transaction != TRANSACTION_PREPARED and transaction != TRANSACTION_ROLLBACK
        if log.position + size + 8 > log.soft_limit or queue.position + ENTRY_SIZE > queue.limit:
            try:
                self._make_room(queue, size, 1)
            except OSError as error:
                return self._full(error)
            except StoreError as error:
                return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=error.message)
        timestamp = self._clock()
        if timestamp < self._store_timestamp:
            timestamp = self._not_before(timestamp)
        position = log.position
        physical_offset = log.base + position
        queue_offset = queue.max_offset if queued else 0
        mm = log.mm
        at = position + head.size
        mm[at : position + size] = b"".join((body, topic_field, _pack_short(properties_length), properties))
        head.pack_into(
            mm,
            position,
            size,
            magic,
            crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born,
            timestamp,
            self._host,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        )
        end = physical_offset + size
        log.position = position + size
        log.max_offset = end
        self._put_total += 1
        self._put_bytes += size
        if queued:
            if topic == SCHEDULE_TOPIC or tags_code is None:
                tags_code = self._tags_code(topic, properties, timestamp)
            ENTRY.pack_into(queue.mm, queue.position, physical_offset, size, tags_code)
            queue.position += ENTRY_SIZE
            queue.max_offset = queue_offset + 1
            if not queue.dirty:
                self._queues.mark_dirty(queue)
            self._store_timestamp = timestamp
            if self._on_arrive is not None:
                self._on_arrive(topic, queue_id, queue_offset + 1, tags_code, timestamp)
        else:
            self._store_timestamp = timestamp
        return PutResult(PutStatus.PUT_OK, queue_offset, physical_offset, end, 1, timestamp)

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        batch_body: Bytes,
        *,
        batch_properties: bytes = b"",
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int,
        born_host: tuple[str, int] | bytes,
        reconsume_times: int = 0,
    ) -> PutResult:
        """Store every message of a batch body, one after another in log and queue, or none of them.

        ``flag`` is there for symmetry only: in a batch body every message has its own.
        """
        queue = self._opened.get((topic, queue_id)) or self._open_queue(topic, queue_id)
        if queue is None:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=f"{topic!r} queue {queue_id} cannot be stored")
        if self.write_error is not None:
            return self._refuse()
        if len(batch_body) > self._max_body:
            return self._illegal(len(batch_body), batch_properties)
        if topic == SCHEDULE_TOPIC or sys_flag & TRANSACTION_MASK or b"\0" in batch_properties:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason="a batch can be neither delayed nor transactional")
        born = born_host if isinstance(born_host, bytes) else pack_host(born_host)
        topic_field = queue.topic_field
        head, sys_flag, magic = self._shape(born, sys_flag, topic_field)
        raw = batch_body if isinstance(batch_body, bytes) else bytes(batch_body)
        try:
            plan = plan_batch(raw, head.size + len(topic_field) + 2, batch_properties)
            self._make_room(queue, plan.total, plan.count)
        except BatchError as error:
            return PutResult(error.status, reason=error.reason)
        except OSError as error:
            return self._full(error)
        except StoreError as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=error.message)
        timestamp = self._clock()
        if timestamp < self._store_timestamp:
            timestamp = self._not_before(timestamp)
        log = self._log
        physical_offset = log.base + log.position
        queue_offset = queue.max_offset
        template = head.pack(
            0,
            magic,
            0,
            queue_id,
            flag,
            0,
            0,
            sys_flag,
            born_timestamp,
            born,
            timestamp,
            self._host,
            reconsume_times,
            0,
            0,
        )
        physical = write_batch(plan, log.mm, log.position, template, topic_field, queue_offset, physical_offset)
        log.advance(plan.total)
        entries = np.empty(plan.count, ENTRY_TYPE)
        entries["physical_offset"] = physical
        entries["size"] = plan.sizes
        entries["tags_code"] = plan.codes
        queue.append_many(entries.tobytes())
        if not queue.dirty:
            self._queues.mark_dirty(queue)
        self._store_timestamp = timestamp
        self._put_total += plan.count
        self._put_bytes += plan.total
        if self._on_arrive is not None:
            for code in set(entries["tags_code"].tolist()):
                self._on_arrive(topic, queue_id, queue.max_offset, code, timestamp)
        end = physical_offset + plan.total
        return PutResult(PutStatus.PUT_OK, queue_offset, physical_offset, end, plan.count, timestamp, physical.tolist())

    def _open_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        if not is_storable(topic, queue_id):
            return None
        queue = self._queues.find_or_create(topic, queue_id)
        self._opened[topic, queue_id] = queue
        return queue

    def _shape(self, born: bytes, sys_flag: int, topic_field: bytes) -> tuple[Struct, int, int]:
        """How the record's head is laid out, the sysFlag that says so, and the magic."""
        sys_flag = sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6) | self._host_flag
        if len(born) == IPV6_HOST_SIZE:
            sys_flag |= BORN_HOST_V6
        return HEAD_STRUCTS[len(born), len(self._host)], sys_flag, MAGIC_V1 if topic_field[0] else MAGIC_V2

    def _make_room(self, queue: ConsumeQueue, size: int, entries: int) -> None:
        """Disk blocks for the record and its entries. OSError when the disk is full; StoreError if it can never fit."""
        log = self._log
        if not log.fits(size):
            raise StoreError(f"{size} bytes do not fit in a commit-log file of {log.file_size}.")
        if queue.position + entries * ENTRY_SIZE > queue.limit:
            queue.make_room(entries)
        if log.position + size + 8 > log.soft_limit:
            log.make_room(size)

    def _not_before(self, timestamp: int) -> int:
        """A clock set back a little does not take the log's order of times with it; one set back far is believed."""
        return self._store_timestamp if self._store_timestamp - timestamp <= _MAX_STEP_BACK else timestamp

    def _tags_code(self, topic: str, properties: bytes, timestamp: int) -> int:
        if topic == SCHEDULE_TOPIC:
            due = self._delays.deliver_time(properties, timestamp)
            if due is not None:
                return due
        return tags_code_of(properties)

    def _refuse(self) -> PutResult:
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=str(self.write_error))

    def _full(self, error: OSError) -> PutResult:
        """No room on the disk: this put is refused, the next one tries again."""
        _log.error("no room for a message in %s: %s", self.config.store_path, error)
        text = f"The disk of {self.config.store_path} has no room: {error}."
        refusal = StoreNotWritableError(text, remedy="Free some space; the broker goes on by itself.")
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=str(refusal))

    def _illegal(self, length: int, properties: bytes) -> PutResult:
        if len(properties) > MAX_PROPERTIES:
            reason = f"properties have {len(properties)} bytes, more than {MAX_PROPERTIES}"
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason=reason)
        if length > self._max_body:
            reason = f"the body has {length} bytes, more than maxMessageSize {self._max_body}"
        else:
            reason = "the properties contain a NUL character"
        return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=reason)

    def when_flushed(self, physical_offset: int, callback: FlushCallback) -> None:
        """Call back once everything below ``physical_offset`` is on disk (True), or after syncFlushTimeout (False)."""
        self._flush_log.wait_for(physical_offset, callback)

    def flush(self) -> None:
        """Put everything on disk now, log and consume queues. OSError when the disk fails."""
        self._flush_log.flush()
        self._flush_queues.flush(thorough=True)

    # --- getting ------------------------------------------------------------------------------------------------

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_msgs: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None = None,
    ) -> GetMessageResult:
        """Raw records from a queue offset on; ``tag_codes`` chooses by tags code (None: all)."""
        return self._reader.get_message(topic, queue_id, offset, max_msgs, max_bytes, tag_codes)

    def get_max_offset(self, topic: str, queue_id: int) -> int:
        """One past the last message; 0 for a queue that never had one."""
        queue = self._opened.get((topic, queue_id)) or self._queues.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def get_min_offset(self, topic: str, queue_id: int) -> int:
        """The first message that is still there (or would be)."""
        queue = self._queues.find(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def get_offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """First offset stored at or after a time, the end if none; ``upper``: the last one at or before it."""
        queue = self._queues.find(topic, queue_id)
        return self._reader.offset_by_time(queue, timestamp_ms, upper) if queue is not None else 0

    def get_store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored; −1 if it is not there."""
        queue = self._queues.find(topic, queue_id)
        return self._reader.store_time(queue, offset) if queue is not None else -1

    def get_earliest_store_time(self, topic: str, queue_id: int) -> int:
        """When the queue's first message was stored; −1 without one."""
        queue = self._queues.find(topic, queue_id)
        return self._reader.store_time(queue, queue.min_offset) if queue is not None else -1

    def look_message_by_offset(self, physical_offset: int) -> bytes | None:
        """The record that starts at a physical offset, if one does."""
        return self._reader.record_at(physical_offset)

    def query_message(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, unique: bool = False
    ) -> QueryMessageResult:
        """Records of a topic with a key (UNIQ_KEY only, if ``unique``), stored in a span of time."""
        if self._index is None:
            return QueryMessageResult()
        return self._index.query(topic, key, max_num, begin_ms, end_ms, unique=unique)

    # --- topics and figures -------------------------------------------------------------------------------------

    def topics(self) -> set[str]:
        """Topics that have had a message."""
        return {topic for topic, _ in self._queues.known()}

    def queues(self, topic: str) -> list[int]:
        """Ids of a topic's queues that have had a message."""
        return sorted(queue_id for name, queue_id in self._queues.known() if name == topic)

    def delete_topic(self, topic: str) -> int:
        """Remove a topic's consume queues and say how many. Its records stay in the log until that is trimmed."""
        for key in [key for key in self._opened if key[0] == topic]:
            del self._opened[key]
        if any(name == topic for name, _ in self._queues.table):
            self._deleted.add(topic, self._log.max_offset, self._log.min_offset)
        return self._queues.delete_topic(topic)

    @property
    def max_physical_offset(self) -> int:
        """End of the commit log."""
        return self._log.max_offset

    @property
    def min_physical_offset(self) -> int:
        """Beginning of the commit log."""
        return self._log.min_offset

    @property
    def flushed_where(self) -> int:
        """Everything below is on disk."""
        return self._log.flushed_where

    def runtime_info(self) -> dict[str, str]:
        """Figures for request 28, under Apache's names."""
        return {
            "bootTimestamp": str(self._boot_timestamp),
            "putMessageTimesTotal": str(self._put_total),
            "putMessageSizeTotal": str(self._put_bytes),
            "commitLogMinOffset": str(self._log.min_offset),
            "commitLogMaxOffset": str(self._log.max_offset),
            "flushedWhere": str(self._log.flushed_where),
            "dispatchMaxBuffer": "0",
            "consumeQueueCount": str(len(self._queues.table)),
        }
