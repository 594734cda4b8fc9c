"""Which blocks of an epoch are stored already: a lane for each target queue.

The blocks of a lane are sent one after another, the next one only when the broker has stored the one before. A batch is
one append. So what is stored is a *prefix* of the lane's rows, and reading the queue back tells how long it is, in
constant memory. If a broker has lost the end of its log, the last block may be there in part: its other rows are sent.

Rows of the epoch are told by their UNIQ_KEY. A block begins with its first row's; the rows behind are counted. A block
that comes again is a duplicate; one that is there without the one before it means that a broker lost what it had
acknowledged.

A delayed row is stored in a queue of the broker's own, and once more in its target queue when it is delivered, or at
once if its time has passed. So a lane of delayed rows reads all of these queues and keeps the ids that it finds.

Pure; a lane belongs to one thread. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.manifest import Epoch, StagedBlock
from spark_rocket.datasource.offsets import name
from spark_rocket.model import MOST_DELAY_LEVEL, SCHEDULE_TOPIC, TIMER_TOPIC, UNIQ_KEY, MessageQueue
from spark_rocket.protocol.record.batch import decode_batch_body
from spark_rocket.protocol.record.properties import find_property


@dataclass(frozen=True, slots=True)
class Piece:
    """What is sent at once: rows of a block as a batch body."""

    rows: int
    body: memoryview


class Lane:
    """The blocks of a target queue. ``next_block`` is the first one that is not wholly stored."""

    def __init__(self, queue: MessageQueue, blocks: Sequence[StagedBlock], epoch: Epoch) -> None:
        self.queue = queue
        self.blocks = blocks
        self._prefixes = pa.array(sorted({epoch.prefix(block) for block in blocks}))
        self._firsts = pa.array([epoch.first_id(block) for block in blocks])
        self.limit = sys.maxsize
        """Bytes of a piece of several rows. Half of what the broker refused as too large; 0 if that was one row."""
        self.forget()

    @property
    def sources(self) -> list[MessageQueue]:
        """The queues to read back."""
        return [self.queue]

    def forget(self) -> None:
        """Nothing is known to be stored."""
        self.next_block = 0
        self._rows = 0  # of that block
        self._is_duplicate = False
        self.duplicates = 0

    @property
    def is_complete(self) -> bool:
        return self.next_block == len(self.blocks)

    def feed(self, ids: pa.Array) -> None:
        """Take the ids of messages that are stored, in order."""
        ours = self._own(ids)
        if not len(ours):
            return
        found = pc.index_in(ours, value_set=self._firsts)
        starts = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
        if not len(starts) or starts[0]:
            self._add(int(starts[0]) if len(starts) else len(ours))
        for low, high in pairwise([*starts.tolist(), len(ours)]):
            self._begin(found[low].as_py())
            self._add(high - low)

    def _own(self, ids: pa.Array) -> pa.Array:
        return ids.filter(pc.is_in(pc.utf8_slice_codeunits(ids, 0, 20), value_set=self._prefixes))

    def _begin(self, block: int) -> None:
        if block > self.next_block:
            raise condition(
                "EXACTLY_ONCE.OUT_OF_ORDER", queue=name(self.queue), found=self._firsts[block].as_py(),
                missing=self._firsts[self.next_block].as_py(),
            )  # fmt: skip
        self._is_duplicate = block < self.next_block
        if block == self.next_block:
            self.duplicates += self._rows
            self._rows = 0

    def _add(self, rows: int) -> None:
        if self._is_duplicate or self.is_complete:
            self.duplicates += rows
            return
        self._rows += rows
        left = self._rows - self.blocks[self.next_block].rows
        if left >= 0:
            self.next_block += 1
            self._rows = 0
            self.duplicates += left

    def pieces(self, block: StagedBlock, body: memoryview) -> Iterator[Piece]:
        """What has to be sent of the next block; the caller says ``sent`` after each."""
        start = end = sum(len(row) for row in islice(_rows_of(body), self._rows))
        rows = block.rows - self._rows
        if len(body) - start > self.limit:
            rows = 0
            for row in _rows_of(body[start:]):
                if rows and end - start + len(row) > self.limit:
                    yield Piece(rows, body[start:end])
                    rows, start = 0, end
                rows += 1
                end += len(row)
        yield Piece(rows, body[start:])

    def sent(self, piece: Piece) -> None:
        """The broker has stored it."""
        self._is_duplicate = False
        self._add(piece.rows)


class DelayedLane(Lane):
    """The delayed rows of a target queue."""

    @property
    def sources(self) -> list[MessageQueue]:
        broker = self.queue.broker_name
        levels = [MessageQueue(SCHEDULE_TOPIC, broker, level) for level in range(MOST_DELAY_LEVEL)]
        return [self.queue, MessageQueue(TIMER_TOPIC, broker, 0), *levels]

    def forget(self) -> None:
        super().forget()
        self._stored: set[str] = set()

    def feed(self, ids: pa.Array) -> None:
        self._stored.update(self._own(ids).to_pylist())

    def pieces(self, block: StagedBlock, body: memoryview) -> Iterator[Piece]:
        for row in _rows_of(body):
            key = first_id(row)
            if key not in self._stored:
                yield Piece(1, row)
                self._stored.add(key)
        self.next_block += 1

    def sent(self, piece: Piece) -> None:
        pass


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
