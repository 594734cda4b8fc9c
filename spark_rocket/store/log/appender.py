"""Putting messages into the log: one at a time, or a batch.

The order is what makes a put whole: blocks on the disk first, and every file mapped that is going to be written to (a
full disk refuses here, or a process without a free descriptor, before a byte is written), then
the record behind its head, then the head, then the end of the log for those who read it, then the consume-queue entry
and the queue's end, then whoever waits for a message.

Thread-safety: for the store's one thread; other threads may read ``store_timestamp``, which names the last message that
lies whole below the log's end, and set ``write_error``. Corresponds to CommitLog.asyncPutMessage(s) and
DefaultAppendMessageCallback.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from zlib import crc32

import numpy as np

from spark_rocket.errors import StoreError, StoreNotWritableError
from spark_rocket.logs import RateLimited
from spark_rocket.model import SCHEDULE_TOPIC
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.layout import (
    BORN_HOST_V6,
    CRC_MASK,
    HEADERS,
    HOSTS_MASK,
    IPV6_HOST_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.descriptors import ShortageError
from spark_rocket.store.layout import ENTRY, ENTRY_SIZE, ENTRY_TYPE, MAX_PROPERTIES
from spark_rocket.store.log.batch import BatchError, BatchPlan, build_records, plan_batch
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.put_times import PutTimes
from spark_rocket.store.queues.consume_queue import ConsumeQueue
from spark_rocket.store.queues.queue_table import ConsumeQueueTable, is_storable
from spark_rocket.store.queues.tags import DelayLevels
from spark_rocket.store.queues.tags import tags_code as tags_code_of
from spark_rocket.store.results import PutResult, PutStatus

_log = logging.getLogger(__name__)
_pack_short = PROPERTIES_LENGTH.pack
_MAX_STEP_BACK = 60_000  # milliseconds

Bytes = bytes | bytearray | memoryview
ArriveCallback = Callable[[str, int, int, int, int], None]
"""topic, queue id, next offset, tags code, store timestamp"""


class MessageAppender:
    """The one writer of a store."""

    def __init__(
        self,
        config: StoreConfig,
        commit_log: CommitLog,
        queues: ConsumeQueueTable,
        delays: DelayLevels,
        store_host: tuple[str, int],
        clock: Callable[[], int],
        on_arrive: ArriveCallback | None,
    ) -> None:
        self._config = config
        self._log = commit_log
        self._queues = queues
        self._delays = delays
        self._clock = clock
        self._on_arrive = on_arrive
        self._host = pack_host(store_host)
        self._host_flag = STORE_HOST_V6 if len(self._host) == IPV6_HOST_SIZE else 0
        self._max_body = config.max_message_size
        self._opened: dict[tuple[str, int], ConsumeQueue] = {}
        self.store_timestamp = 0
        self.put_total = 0
        self.put_bytes = 0
        self._merged = 0
        """Messages minus puts: how many more messages than one the batches had."""
        self.times = PutTimes()
        self._often = RateLimited(_log, 60.0, lambda: clock() / 1000)
        """Why there was no room, and when the log was last told."""
        self.write_error: StoreNotWritableError | None = StoreNotWritableError(
            f"The store in {config.store_path} is not running.", remedy="Start it."
        )

    def sample(self) -> None:
        """Have ``times`` begin the next ten seconds."""
        self.times.sample(self.put_total - self._merged)

    def forget(self, topic: str | None = None) -> None:
        """Let go of the queues of a topic, or of all."""
        for key in [key for key in self._opened if topic is None or key[0] == topic]:
            del self._opened[key]

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
            try:
                queue = self._open_queue(topic, queue_id)
            except OSError as error:
                return self._full(error)
            if queue is None:
                return self._failed(f"{topic!r} queue {queue_id} cannot be stored")
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
        prepared = 0
        if log.position + size + 8 > log.soft_limit or queue.position + ENTRY_SIZE > queue.limit:
            prepared = self._clock()
            try:
                self._make_room(queue, size, 1)
            except OSError as error:
                return self._full(error)
            except StoreError as error:
                return self._failed(error.message)
        timestamp = now = self._clock()
        if timestamp < self.store_timestamp:
            timestamp = self._not_before(timestamp)
        position = log.position
        physical_offset = log.base + position
        queue_offset = queue.max_offset if queued else 0
        if queued and (topic == SCHEDULE_TOPIC or tags_code is None):
            tags_code = self._tags_code(topic, properties, timestamp)
        try:  # everything that can be refused is, before a byte is written
            packed = head.pack(
                size,
                magic,
                crc32(body) & CRC_MASK,
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
            entry = ENTRY.pack(physical_offset, size, tags_code) if queued else b""
        except StructError as error:
            return self._failed(f"a number is out of its field's range: {error}")
        mm = log.mm
        at = position + head.size
        mm[at : position + size] = b"".join((body, topic_field, _pack_short(properties_length), properties))
        mm[position:at] = packed
        end = physical_offset + size
        log.position = position + size
        log.max_offset = end
        self.put_total += 1
        self.put_bytes += size
        if queued:
            queue.mm[queue.position : queue.position + ENTRY_SIZE] = entry
            queue.position += ENTRY_SIZE
            queue.max_offset = queue_offset + 1
            if not queue.dirty:
                self._queues.mark_dirty(queue)
            self.store_timestamp = timestamp
            if self._on_arrive is not None:
                self._on_arrive(topic, queue_id, queue_offset + 1, tags_code or 0, timestamp)
        else:
            self.store_timestamp = timestamp
        took = self._clock() - (prepared or now)
        if took > 0:
            self.times.slow[took] += 1
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
        check: Callable[[BatchPlan], None] | None = None,
    ) -> PutResult:
        """Store every message of a batch body, one after another in log and queue, or none of them.

        ``flag`` is there for symmetry only: in a batch body every message has its own. ``check`` may refuse the
        batch by raising: nothing is stored then.
        """
        try:
            queue = self._opened.get((topic, queue_id)) or self._open_queue(topic, queue_id)
        except OSError as error:
            return self._full(error)
        if queue is None:
            return self._failed(f"{topic!r} queue {queue_id} cannot be stored")
        if self.write_error is not None:
            return self._refuse()
        if len(batch_body) > self._max_body:
            return self._illegal(len(batch_body), batch_properties)
        if topic == SCHEDULE_TOPIC or sys_flag & TRANSACTION_MASK or b"\0" in batch_properties:
            return self._failed("a batch can be neither delayed nor transactional")
        born = born_host if isinstance(born_host, bytes) else pack_host(born_host)
        topic_field = queue.topic_field
        head, sys_flag, magic = self._shape(born, sys_flag, topic_field)
        begun = self._clock()
        try:
            plan = plan_batch(batch_body, head.size + len(topic_field) + 2, batch_properties)
            if check is not None:
                check(plan)
            self._make_room(queue, plan.total, plan.count)
        except BatchError as error:
            return self._failed(error.reason, error.status)
        except OSError as error:
            return self._full(error)
        except StoreError as error:
            return self._failed(error.message)
        timestamp = self._clock()
        if timestamp < self.store_timestamp:
            timestamp = self._not_before(timestamp)
        log = self._log
        physical_offset = log.base + log.position
        queue_offset = queue.max_offset
        try:
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
        except StructError as error:
            return self._failed(f"a number is out of its field's range: {error}")
        records, physical = build_records(plan, template, topic_field, queue_offset, physical_offset)
        try:
            log.write(records)
        except OSError as error:
            return self._full(error)
        log.advance(plan.total)
        entries = np.empty(plan.count, ENTRY_TYPE)
        entries["physical_offset"] = physical
        entries["size"] = plan.sizes
        entries["tags_code"] = plan.codes
        queue.append_many(entries.tobytes())
        if not queue.dirty:
            self._queues.mark_dirty(queue)
        self.store_timestamp = timestamp
        self.put_total += plan.count
        self.put_bytes += plan.total
        if self._on_arrive is not None:
            codes = plan.codes
            for code in [int(codes[0])] if bool((codes == codes[0]).all()) else set(codes.tolist()):
                self._on_arrive(topic, queue_id, queue.max_offset, code, timestamp)
        end = physical_offset + plan.total
        self._merged += plan.count - 1
        took = self._clock() - begun
        if took > 0:
            self.times.slow[took] += 1
        return PutResult(PutStatus.PUT_OK, queue_offset, physical_offset, end, plan.count, timestamp, physical)

    def _open_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        if not is_storable(topic, queue_id):
            return None
        queue = self._queues.find_or_create(topic, queue_id)
        self._opened[topic, queue_id] = queue
        return queue

    def _shape(self, born: bytes, sys_flag: int, topic_field: bytes) -> tuple[Struct, int, int]:
        """How the record's head is laid out, the sysFlag that says so, and the magic."""
        sys_flag = sys_flag & ~HOSTS_MASK | self._host_flag
        if len(born) == IPV6_HOST_SIZE:
            sys_flag |= BORN_HOST_V6
        return HEADERS[sys_flag & HOSTS_MASK], sys_flag, MAGIC_V1 if topic_field[0] else MAGIC_V2

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
        return self.store_timestamp if self.store_timestamp - timestamp <= _MAX_STEP_BACK else timestamp

    def _tags_code(self, topic: str, properties: bytes, timestamp: int) -> int:
        if topic == SCHEDULE_TOPIC:
            due = self._delays.deliver_time(properties, timestamp)
            if due is not None:
                return due
        return tags_code_of(properties)

    def _failed(self, reason: str, status: PutStatus = PutStatus.MESSAGE_ILLEGAL) -> PutResult:
        self.times.failed += 1
        return PutResult(status, reason=reason)

    def _refuse(self) -> PutResult:
        return self._failed(str(self.write_error), PutStatus.SERVICE_NOT_AVAILABLE)

    def _full(self, error: OSError) -> PutResult:
        """No room on the disk, or no descriptor: this put is refused, the next one tries again.

        Said in the log once a minute.
        """
        path = self._config.commit_log_path
        self._often.log(
            logging.ERROR, error.errno, "No room for messages in %s: %s. They are refused until there is.", path, error
        )
        if error.errno == errno.ENOMEM:  # of a mapping, too
            text, remedy = f"No file of {path} can be mapped: {error}.", "Give the process more memory or mappings"
        elif isinstance(error, ShortageError):
            text, remedy = f"No file of {path} can be opened: {error}.", "Raise the limit of open files (ulimit -Hn)"
        else:
            text, remedy = f"The disk of {path} has no room: {error}.", "Free some space"
        refusal = StoreNotWritableError(text, remedy=f"{remedy}; the broker goes on by itself.")
        return self._failed(str(refusal), PutStatus.SERVICE_NOT_AVAILABLE)

    def _illegal(self, length: int, properties: bytes) -> PutResult:
        if len(properties) > MAX_PROPERTIES:
            reason = f"properties have {len(properties)} bytes, more than {MAX_PROPERTIES}"
            return self._failed(reason, PutStatus.PROPERTIES_SIZE_EXCEEDED)
        if length > self._max_body:
            reason = f"the body has {length} bytes, more than maxMessageSize {self._max_body}"
        else:
            reason = "the properties contain a NUL character"
        return self._failed(reason)
