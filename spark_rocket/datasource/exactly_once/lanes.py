"""Which rows of an epoch are stored already: a lane for each target queue.

The blocks of a lane are sent one after another, the next one only when the broker has stored the previous one. A batch
is one append. So the stored rows are a *prefix* of the lane's rows, and its length is the number of different rows that
are read back. If a broker lost the end of its log, the last block may be stored in part: its other rows are sent.

Rows are identified by their UNIQ_KEY, which has the partition and the row's number. A row that is found again is a
duplicate. The first row of a block must come after all rows of the blocks before it; otherwise a broker lost messages
that it had acknowledged.

A delayed row is stored in a queue of the broker's own, and once more in its target queue when it is delivered, or at
once if its time has passed. So a lane of delayed rows reads all of these queues, in any order, and sends the rows that
are in none of them.

Reading back takes one bit of memory for each row number of the lane's partitions; lanes of delayed rows keep these bits
while they are published.

Pure; a lane belongs to one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.manifest import Epoch, StagedBlock
from spark_rocket.model import MAX_DELAY_LEVEL, SCHEDULE_TOPIC, TIMER_TOPIC, UNIQ_KEY, MessageQueue
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.properties import find_property

I64 = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

_PAGE_ROWS = 1 << 16
_EMPTY_PAGE = np.zeros(_PAGE_ROWS // 8, np.uint8)


class RowSet:
    """A set of an epoch's rows: one bit per row, in pages of 65,536 row numbers of one partition."""

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._prefixes = pa.array(sorted({*prefixes}), pa.string())
        self._pages: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self.count = 0

    def own(self, ids: pa.Array) -> pa.Array:
        """The ids that are the epoch's."""
        ours = ids.filter(pc.is_in(pc.utf8_slice_codeunits(ids, 0, 20), value_set=self._prefixes))
        return ours.filter(pc.match_substring_regex(ours, "^[0-9A-F]{32}$"))

    def lacks(self, ids: pa.Array) -> Mask:
        """Which of these rows are not in the set; ``ids`` are the epoch's."""
        lacking = np.ones(len(ids), np.bool_)
        for page, at, rows in self._by_page(ids):
            lacking[at] = ~self._page(page)[rows]
        return lacking

    def add(self, ids: pa.Array) -> Mask:
        """Add rows. True for each id that was not there before, neither in the set nor in ``ids``."""
        is_new = np.zeros(len(ids), np.bool_)
        for page, at, rows in self._by_page(ids):
            stored = self._page(page)
            rows, first = np.unique(rows, return_index=True)
            is_new[at[first[~stored[rows]]]] = True
            stored[rows] = True
            self._pages[page] = np.packbits(stored)
        self.count += int(np.count_nonzero(is_new))
        return is_new

    def _page(self, page: int) -> Mask:
        return np.unpackbits(self._pages.get(page, _EMPTY_PAGE)).view(np.bool_)

    def _by_page(self, ids: pa.Array) -> Iterator[tuple[int, I64, I64]]:
        """Page by page, the positions in ``ids`` and the rows in the page."""
        if not len(ids):
            return
        digits = pc.utf8_slice_codeunits(ids, 20).buffers()[2].to_pybytes()[: 12 * len(ids)]
        number = np.zeros((len(ids), 8), np.uint8)
        number[:, 2:] = np.frombuffer(bytes.fromhex(digits.decode()), np.uint8).reshape(-1, 6)
        numbers = number.view(">i8").astype(np.int64).ravel()
        partitions = pc.index_in(pc.utf8_slice_codeunits(ids, 0, 20), value_set=self._prefixes).to_numpy()
        pages = partitions.astype(np.int64) << 32 | numbers // _PAGE_ROWS
        for page in np.unique(pages).tolist():
            at = np.flatnonzero(pages == page)
            yield page, at, numbers[at] % _PAGE_ROWS


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockPart(FrozenValue):
    """Rows of a block that are sent in one request, as a batch body."""

    rows: int
    body: memoryview


class Lane:
    """The blocks of a target queue, and how many of their rows are stored."""

    def __init__(self, queue: MessageQueue, blocks: Sequence[StagedBlock], epoch: Epoch) -> None:
        self.queue = queue
        self.blocks = blocks
        self._prefixes = {epoch.prefix(block) for block in blocks}
        self._firsts = pa.array([epoch.first_id(block) for block in blocks])
        self._starts = np.cumsum([0, *(block.rows for block in blocks)])  # rows before each block, and of all
        self.limit = sys.maxsize
        """Bytes of a piece of several rows. Half of what the broker refused as too large; 0 if that was one row."""
        self.forget()

    @property
    def sources(self) -> list[MessageQueue]:
        """The queues to read back."""
        return [self.queue]

    def forget(self) -> None:
        """Begin to read back: no row is known to be stored."""
        self._rows = 0  # of all blocks
        self.duplicates = 0
        self._found = RowSet(self._prefixes)

    @property
    def next_block(self) -> int:
        """The first block that is not completely stored."""
        return int(np.searchsorted(self._starts[1:], self._rows, side="right"))

    @property
    def is_complete(self) -> bool:
        return self.next_block == len(self.blocks)

    def feed(self, source: MessageQueue, ids: pa.Array) -> None:
        """Take the ids of messages that are stored in one of ``sources``, in order."""
        ours = self._found.own(ids)
        is_new = self._found.add(ours)
        self.duplicates += len(ours) - int(np.count_nonzero(is_new))
        before = self._rows + np.cumsum(is_new) - is_new
        self._rows = self._found.count
        first_of = pc.index_in(ours, value_set=self._firsts)
        at = np.flatnonzero(is_new & first_of.is_valid().to_numpy(zero_copy_only=False))
        blocks = first_of.take(pa.array(at)).to_numpy()
        wrong = np.flatnonzero(self._starts[blocks] != before[at])
        if len(wrong):
            missing = int(np.searchsorted(self._starts[1:], before[at[wrong[0]]], side="right"))
            raise condition(
                "EXACTLY_ONCE.OUT_OF_ORDER", queue=self.queue.name, found=ours[at[wrong[0]]].as_py(),
                missing=self._firsts[missing].as_py(),
            )  # fmt: skip

    def finish_read(self) -> None:
        """Everything is read back: free the memory that it took."""
        self._found = RowSet(())

    def pieces(self, block: StagedBlock, body: memoryview) -> Iterator[BlockPart]:
        """The rows to send of the next block. Call ``sent`` after each piece."""
        stored = self._rows_stored_of_next()
        start = end = sum(len(row) for row in islice(_rows_of(body), stored))
        rows = block.rows - stored
        if len(body) - start > self.limit:
            rows = 0
            for row in _rows_of(body[start:]):
                if rows and end - start + len(row) > self.limit:
                    yield BlockPart(rows, body[start:end])
                    rows, start = 0, end
                rows += 1
                end += len(row)
        yield BlockPart(rows, body[start:])

    def _rows_stored_of_next(self) -> int:
        return self._rows - int(self._starts[self.next_block])

    def sent(self, piece: BlockPart) -> None:
        """The broker has stored it."""
        self._rows += piece.rows


class DelayedLane(Lane):
    """The delayed rows of a target queue. Found rows of the remaining blocks are skipped."""

    @property
    def sources(self) -> list[MessageQueue]:
        broker = self.queue.broker_name
        levels = [MessageQueue(SCHEDULE_TOPIC, broker, level) for level in range(MAX_DELAY_LEVEL)]
        return [self.queue, MessageQueue(TIMER_TOPIC, broker, 0), *levels]

    def forget(self) -> None:
        super().forget()
        self._found_in: dict[MessageQueue, RowSet] = {}
        self._found_twice = RowSet(self._prefixes)

    def feed(self, source: MessageQueue, ids: pa.Array) -> None:
        """Take the ids of a queue, which may have rows of other lanes, too.

        A row that is found twice in one queue is a duplicate. Not in the queue of timers: brokers store a message there
        several times if its delay is long.
        """
        ours = self._found.own(ids)
        self._found.add(ours)
        if source.topic != TIMER_TOPIC:
            is_new = self._found_in.setdefault(source, RowSet(self._prefixes)).add(ours)
            self._found_twice.add(ours.filter(pa.array(~is_new)))

    def finish_read(self) -> None:
        self._found_in.clear()

    def pieces(self, block: StagedBlock, body: memoryview) -> Iterator[BlockPart]:
        number, sent = self.next_block, self._rows_stored_of_next()
        rows = list(_rows_of(body))
        ids = pa.array([first_id(row) for row in rows])
        for at in np.flatnonzero(self._found.lacks(ids)).tolist():
            if at >= sent:
                self._rows = int(self._starts[number]) + at
                yield BlockPart(1, rows[at])
        self._rows = int(self._starts[number + 1])
        self.duplicates += int(np.count_nonzero(~self._found_twice.lacks(ids)))


def _rows_of(body: memoryview) -> Iterator[memoryview]:
    """The batch body of each row."""
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        yield body[at : at + size]
        at += size


def first_id(body: memoryview) -> str:
    """The UNIQ_KEY of a batch body's first row."""
    ((_, _, properties),) = decode_batch_body(next(_rows_of(body)))
    return (find_property(properties, UNIQ_KEY.encode()) or b"").decode()


def is_body_of(block: StagedBlock, body: memoryview, epoch: Epoch) -> bool:
    """Whether a staged message's body is the block's: after a loss another message may have its offset."""
    return len(body) == block.size and first_id(body) == epoch.first_id(block)


def lanes_of(blocks: Sequence[StagedBlock], epoch: Epoch) -> list[Lane]:
    """A lane for each target queue, and one for its delayed rows."""
    groups: dict[tuple[MessageQueue, bool], list[StagedBlock]] = {}
    for block in blocks:
        groups.setdefault((block.target, block.is_delayed), []).append(block)
    return [(DelayedLane if is_delayed else Lane)(queue, group, epoch) for (queue, is_delayed), group in groups.items()]
