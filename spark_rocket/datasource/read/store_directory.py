"""``storePath``: read a stopped broker's files as a data frame, without a broker.

The commit log is the only source of messages. A store can therefore be read if its consume queues are lost, if its
broker was killed, or on a read-only mount. The result is what a broker started on the directory would serve, with the
columns of a topic read:

===================================  ================================================================================
prepared and rolled-back messages    omitted: they are in no queue
deleted topics                       omitted: topics in ``config/deletedTopic.json`` and, after a clean stop, topics
                                     without a consume queue that ``config/topics.json`` does not list
an earlier topic of the same name    omitted if the consume queue shows that its first message lies behind; without
                                     consume queues an Apache store does not show this, and both are read
system topics, %RETRY%…, %DLQ%…      only if ``subscribe`` names them: they hold copies, or brokers' own records
incomplete records                   an error with file and offset, or skipped (``failOnDataLoss=false``); after the
                                     last complete record they are a torn tail and omitted; so is the part that the
                                     next start of a killed broker would truncate
===================================  ================================================================================

Planning holds a shared lock on the store. Each task reads one span of one file (``store.tools.span``) and decodes it in
columns. Records are selected by topic, time and position before they are decoded. No other module of the data source
uses the store. Tasks hold only values: Spark pickles them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.datasource.options.options import ReadOptions
from spark_rocket.datasource.options.parsers import Position, Start, is_user_topic
from spark_rocket.datasource.schema import Projection
from spark_rocket.datasource.stream_offsets import LATEST, Positions
from spark_rocket.errors import DataLossError, OffsetsError, ProtocolError, StoreError, TopicNotFoundError
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.layout import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from spark_rocket.protocol.record.messages import damaged_record
from spark_rocket.protocol.record.record import scan_record
from spark_rocket.store.log.record_scan import RecordBlock
from spark_rocket.store.queues.queue_table import is_storable
from spark_rocket.store.read_only import ReadOnlyStore, open_read_only
from spark_rocket.store.recovery.recovery import is_deleted, topics_on_record
from spark_rocket.store.tools.salvage import cut_of
from spark_rocket.store.tools.span import LogSpan, Lost, plan_spans, read_span

DEFAULT_BROKER_NAME = "broker-a"
_PERM_INHERIT = 1
_BROKER_NAME = re.compile(r"^[ \t]*brokerName[ \t]*[=:][ \t]*(\S+)", re.MULTILINE)


def locate(path: Path) -> Path:
    """Return the store in a directory: the directory itself, or its ``store``, as created by ``rocket up``."""
    if not path.is_dir():
        raise StoreError(
            f"{path} is not a directory on the driver's machine.",
            remedy="Set storePath to a directory with the same path on the driver and the executors.",
        )
    for candidate in (path, path / "store"):
        if any(candidate.glob("dledger-*/*")):
            raise StoreError(
                f"{candidate} has the log of a DLedger group, which is unsupported here.",
                remedy="Start its broker, and read its topics from the broker.",
            )
        if any((candidate / part).exists() for part in ("commitlog", "checkpoint", "lock")):
            return candidate
    hint = f"Use {path.parent}." if path.name == "commitlog" else "Use the broker's storePathRootDir."
    raise StoreError(f"{path} has no commitlog: it is not a store directory.", remedy=hint)


def broker_name_of(path: Path, given: Path) -> str:
    for file in (path / "config" / "broker.properties", given / "broker.conf", path.parent / "broker.conf"):
        try:
            found = _BROKER_NAME.findall(file.read_text(encoding="utf-8-sig", errors="replace"))
        except OSError:
            continue
        if found:
            return str(found[-1])
    return _own_topic(path) or DEFAULT_BROKER_NAME


def _own_topic(path: Path) -> str:
    """Return the broker's own topic: one queue, inherited permissions. Empty if several topics look like it."""
    for file in ("topics.json", "topics.json.bak"):
        try:
            table = json.loads((path / "config" / file).read_bytes())["topicConfigTable"].values()
            own = [
                str(one["topicName"])
                for one in table
                if (one["perm"] & _PERM_INHERIT, one["readQueueNums"], one["writeQueueNums"]) == (_PERM_INHERIT, 1, 1)
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        return own[0] if len(own) == 1 else ""
    return ""


log = logging.getLogger("spark_rocket.datasource")

_SPAN_BYTES = 128 << 20
_MIN_SPAN_BYTES = 4096
_MAX_CLOCK_STEP_MS = 60_000  # store times increase with offsets, unless a clock was set back a little
_NO_OFFSET = 2**63 - 1
_PLACE = ("topic", "queueId", "queueOffset")
_REMEDY = (
    "failOnDataLoss=false reads the complete records. To read the rest, restore the file from a copy. To serve the "
    "complete records from a broker, run `rocket store rebuild --skip-damage` on a copy of the directory. If the "
    "broker rejects damage near the log's end even then, its error has the remedy."
)

Queue = tuple[str, int]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass
class SpanTask:
    """A task: a span of the log, and the store's data that its task requires."""

    span: LogSpan
    store_path: Path
    queues_path: Path
    broker_name: str
    deleted: dict[str, int]
    """Deleted topics: records below the offset belong to the deleted topic."""
    firsts: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    """Queue offset and physical offset of the first message of each queue whose first message is after the span's
    start."""
    lists_topics: bool = True
    """Whether a topic without a consume queue and without an entry in ``config/topics.json`` was deleted."""


# --- planning: on the driver ------------------------------------------------------------------------------------


def plan_directory(options: ReadOptions) -> list[SpanTask]:
    """Find the store, reject unsupported ones, and split its log into tasks."""
    given = Path(options.store_path or "")
    path = locate(given)
    broker_name = options.broker_name or broker_name_of(path, given)
    _check_positions(options, broker_name)
    with open_read_only(path) as view:
        if not view.config.commit_log_path.is_dir():
            raise StoreError(
                f"{path} has no commit log: {view.config.commit_log_path} is not a directory.",
                remedy="If its broker.conf sets storePathCommitLog, start and stop it with a broker of this package, "
                "which records the path; or create a link with that name to it.",
            )
        for problem in view.log.unreadable:
            raise StoreError(
                f"{problem.path}: {problem.text} (on the driver).",
                remedy="Give driver and executors read permission for the entire directory.",
            )
        lists_topics = _lists_topics(view)
        if lists_topics:
            _check_topics(options, view)
        firsts, queued_end = _look_at_queues(view, options)
        size = _SPAN_BYTES
        if options.min_partitions is not None:
            total = view.data_end() - view.log.min_offset
            pieces = options.min_partitions + len(view.log.files)  # the last span of each file may be 50% longer
            size = min(size, max(total // pieces, _MIN_SPAN_BYTES))
        queued_end = 0 if view.is_killed else queued_end
        spans = plan_spans(view.log, size, queued_end=queued_end, cut=cut_of(view), lost=_lost(options))
        return [
            SpanTask(
                span,
                path,
                view.config.consume_queue_path,
                broker_name,
                view.deleted.offsets,
                {queue: first for queue, first in firsts.items() if first[1] > span.start},
                lists_topics,
            )
            for span in _in_time(spans, options)
        ]


def _is_wanted(topic: str, options: ReadOptions) -> bool:
    return topic in options.topics if options.topics else is_user_topic(topic)


def _check_positions(options: ReadOptions, broker_name: str) -> None:
    starts, ends = options.starting.offsets or {}, options.ending.offsets or {}
    for option, positions in (("startingOffsets", starts), ("endingOffsets", ends)):
        for queue in positions:
            if queue.broker_name != broker_name:
                raise OffsetsError(
                    f"option {option} names broker {queue.broker_name}, but this is the store of {broker_name}.",
                    remedy="Use that name, or set the option brokerName to the name of the store's broker.",
                )
    for queue, end in ends.items():
        if 0 <= end < starts.get(queue, 0):
            raise OffsetsError(
                f"{queue.name} would be read from {starts[queue]} to {end}: the end is before the start.",
                remedy="Check startingOffsets and endingOffsets.",
            )


def _time(position: Position) -> int | None:
    return position.timestamp_ms if position.kind is Start.TIMESTAMP else None


def _lists_topics(view: ReadOnlyStore) -> bool:
    """Return whether the files list the topics: not after a kill, nor if RocksDB has the list instead (5.x)."""
    return not view.is_killed and not any(
        any(view.path.glob(f"{part}/CURRENT")) for part in ("config/*", "consumequeue*")
    )


def _check_topics(options: ReadOptions, view: ReadOnlyStore) -> None:
    """Reject unknown topic names. Without a list of topics they cannot be checked."""
    listed = topics_on_record(view.path)
    if listed is None:
        return
    known = listed | {topic for topic, _ in view.queues}
    for topic in options.topics:
        if topic not in known:
            there = ", ".join(sorted(topic for topic in known if is_user_topic(topic))[:20])
            raise TopicNotFoundError(f"{view.path} has no topic {topic}.", remedy=f"Topics: {there or 'none'}.")


def _look_at_queues(view: ReadOnlyStore, options: ReadOptions) -> tuple[dict[Queue, tuple[int, int]], int]:
    """Return each queue's first message if it is certain, and the log offset that their last messages require."""
    firsts: dict[Queue, tuple[int, int]] = {}
    end = 0
    for key in view.queues:
        if not _is_wanted(key[0], options):
            continue
        try:
            queue = view.queue(*key)
            if queue is None or not queue.files.is_sound:
                continue
            queue.correct_min_offset(view.log.min_offset)
            if queue.min_offset < queue.max_offset:
                physical, size, _ = queue.entry(queue.max_offset - 1)
                end = max(end, physical + size)
                first, _, _ = queue.entry(queue.min_offset)
                if first > view.log.min_offset and _points_to_its_record(view, key, queue.min_offset, first):
                    firsts[key] = queue.min_offset, first
        except StoreError as error:  # an unreadable queue is ignored: the log has its messages
            log.warning("%s", error)
    return firsts, end


def _points_to_its_record(view: ReadOnlyStore, queue: Queue, number: int, physical: int) -> bool:
    file = view.log.find(physical)
    if file is None:
        return False
    at = physical - file.file_from_offset
    size = int.from_bytes(file.read(at, 4), "big")
    record = scan_record(file.read(at, max(0, min(size, file.size - at)))).record
    return (
        record is not None
        and record.physical_offset == physical
        and (str(record.topic, "utf-8", "replace"), record.queue_id, record.queue_offset) == (*queue, number)
    )


def _in_time(spans: list[LogSpan], options: ReadOptions) -> Iterator[LogSpan]:
    """Skip the spans before or after the time stamps."""
    first, last = _time(options.starting), _time(options.ending)
    for span, following in pairwise([*spans, None]):
        assert span is not None
        until = following.store_timestamp if following is not None else None
        if first is not None and until is not None and until + _MAX_CLOCK_STEP_MS < first:
            continue
        if last is not None and span.store_timestamp is not None and span.store_timestamp - _MAX_CLOCK_STEP_MS >= last:
            continue
        yield span


def _lost(options: ReadOptions) -> Lost:
    """Return the handler for damage: fail, or log it and continue."""

    def lost(text: str) -> None:
        if options.fail_on_data_loss:
            raise DataLossError(f"{text}.", remedy=_REMEDY)
        log.warning("%s. Continuing after it (failOnDataLoss=false).", text)

    return lost


# --- reading: in the executors ----------------------------------------------------------------------------------


def read_span_task(task: SpanTask, options: ReadOptions, projection: Projection) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a span in the log's order, as batches of Spark's own schema."""
    selection = _Selection(task, options)
    bounds = _Bounds(options)
    columns = [*projection.columns, *(column for column in bounds.columns if column not in projection.columns)]
    rows = options.arrow_batch_rows
    tags = None if options.tags is None else frozenset(options.tags)
    blocks = read_span(task.span, _lost(options), chunk=options.arrow_batch_bytes)
    while (block := _next(blocks, task)) is not None:
        run = selection.run(block)
        if not len(run):
            continue
        batch, problem = None, None
        while batch is None:
            try:
                batch = decode_records(run, columns, broker_name=task.broker_name, tags=tags)
            except ProtocolError as error:
                damaged = damaged_record(run)
                if damaged is None or bounds.contain(run[damaged.position : damaged.end]):
                    problem, run = error, run[: 0 if damaged is None else damaged.position]
                else:
                    run = memoryview(b"".join((run[: damaged.position], run[damaged.end :])))
        batch = bounds.filter(batch)
        for start in range(0, batch.num_rows, rows):
            yield projection.conform(batch.slice(start, rows))
        if problem is not None:
            raise ProtocolError(
                f"{task.span.path}: a record from offset {block.base} to {block.base + len(block.data)} cannot "
                f"be decoded: {problem.message}",
                remedy="Narrow it down with arrowBatchBytes=1024. Select columns without body (.schema(…)) if only "
                "bodies are unreadable, or begin after the record with startingOffsets as JSON.",
            ) from problem


def _next(blocks: Iterator[RecordBlock], task: SpanTask) -> RecordBlock | None:
    try:
        return next(blocks, None)
    except OSError as error:
        raise StoreError(
            f"{task.span.path} cannot be read on an executor: {error.strerror or error}.",
            remedy="storePath must be visible to all executors under the same path, and no broker may run on it.",
        ) from None


class _Selection:
    """Selects the records of a block that are messages to read. Topics and queues are compared as numbers."""

    def __init__(self, task: SpanTask, options: ReadOptions) -> None:
        self._task = task
        self._options = options
        self._first_time, self._last_time = _time(options.starting), _time(options.ending)
        self._numbers: dict[bytes, int] = {}
        self._valid_from: list[int] = []
        firsts = {(self._number(topic.encode()), queue): at for (topic, queue), at in task.firsts.items()}
        order = sorted(firsts)
        self._first_keys = np.array([_key(number, queue) for number, queue in order], np.int64)
        self._first_numbers = np.array([firsts[key][0] for key in order], np.int64)
        self._first_places = np.array([firsts[key][1] for key in order], np.int64)
        self._firsts_end = max(self._first_places.tolist(), default=0)

    @cached_property
    def _topics_on_record(self) -> frozenset[str] | None:
        return topics_on_record(self._task.store_path)

    def _number(self, topic: bytes) -> int:
        number = self._numbers.get(topic)
        if number is None:
            number = self._numbers[topic] = len(self._valid_from)
            self._valid_from.append(self._from(topic.decode("utf-8", "replace")))
        return number

    def _from(self, topic: str) -> int:
        """Return the physical offset from which a topic's records are read."""
        if not _is_wanted(topic, self._options) or not is_storable(topic, 0):
            return _NO_OFFSET
        queues = self._task.queues_path / topic
        if self._task.lists_topics and not queues.is_dir() and is_deleted(topic, self._topics_on_record):
            return _NO_OFFSET
        return self._task.deleted.get(topic, 0)

    def run(self, block: RecordBlock) -> memoryview:
        """Return the records to read, concatenated."""
        state = block.sys_flags & TRANSACTION_MASK
        keep: Bools = (state != TRANSACTION_PREPARED) & (state != TRANSACTION_ROLLBACK) & (block.queue_ids >= 0)
        if self._first_time is not None:
            keep &= block.store_timestamps >= self._first_time
        if self._last_time is not None:
            keep &= block.store_timestamps < self._last_time
        offsets = block.physical_offsets
        topics, codes = _topics(block)
        numbers = np.array([self._number(topic) for topic in topics], np.int64)
        keep &= offsets >= np.array([self._valid_from[number] for number in numbers], np.int64)[codes]
        if block.base < self._firsts_end:
            keys = _key(numbers[codes], block.queue_ids)
            at = np.minimum(np.searchsorted(self._first_keys, keys), len(self._first_keys) - 1)
            keep &= ~(
                (self._first_keys[at] == keys)
                & (block.queue_offsets >= self._first_numbers[at])
                & (offsets < self._first_places[at])
            )
        return _gather(block, keep)


def _key(number: Any, queue: Any) -> Any:
    return number << 32 | queue


def _topics(block: RecordBlock) -> tuple[list[bytes], Any]:
    """Return the distinct topics of a block, and for each record the index of its topic."""
    count = len(block)
    bounds = np.zeros(2 * count + 1, np.int32)
    bounds[1::2], bounds[2::2] = block.topic_starts, block.topic_ends
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(block.data)]
    every = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
    coded = every.take(pa.array(np.arange(1, 2 * count, 2))).dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy()


def _gather(block: RecordBlock, keep: Bools) -> memoryview:
    if keep.all():
        return memoryview(block.data)[int(block.starts[0]) : int(block.starts[-1] + block.sizes[-1])]
    if not keep.any():
        return memoryview(b"")
    bounds = np.append(block.starts, block.starts[-1] + block.sizes[-1]).astype(np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(block.data)]
    records = pa.Array.from_buffers(pa.binary(), len(block), buffers).filter(pa.array(keep))
    return memoryview(records.buffers()[2])[: int(block.sizes[keep].sum())]


class _Bounds:
    """The range of each queue, from offsets as JSON. Applied to rows, because inner batches hide their offsets."""

    def __init__(self, options: ReadOptions) -> None:
        self._sides: list[tuple[str, Positions]] = []
        for option, position in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
            if position.offsets is not None:
                self._sides.append((option, position.offsets))
        self.columns = _PLACE if self._sides else ()

    def contain(self, record: memoryview) -> bool:
        """Whether a damaged record is in the range, as far as it shows its place."""
        try:
            return len(self.filter(decode_records(record, _PLACE, broker_name=""))) > 0
        except ProtocolError:  # a damaged inner batch
            return True

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for option, positions in self._sides:
            keep = named = pa.repeat(pa.scalar(False), batch.num_rows)
            for queue, offset in positions.items():
                mine = pc.and_(pc.equal(batch["topic"], queue.topic), pc.equal(batch["queueId"], queue.queue_id))
                named = pc.or_(named, mine)
                # -1 is after every message, -2 before.
                bound = pa.scalar(_NO_OFFSET if offset == LATEST else offset, pa.int64())
                compare = pc.greater_equal if option == "startingOffsets" else pc.less
                keep = pc.or_(keep, pc.and_(mine, compare(batch["queueOffset"], bound)))
            if batch.num_rows and not pc.all(named).as_py():
                row = batch.filter(pc.invert(named)).slice(0, 1).to_pylist()[0]
                raise OffsetsError(
                    f"option {option} has no offset for {row['topic']}, queue {row['queueId']}.",
                    remedy="Name every queue, with -1 for latest or -2 for earliest.",
                )
            batch = batch.filter(keep)
        return batch
