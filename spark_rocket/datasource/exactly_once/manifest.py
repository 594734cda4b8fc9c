"""Staged blocks, and the manifest of an epoch: the list of its blocks.

A *block* is rows for one target queue, encoded as one batch body, which is the body of one message of the staging
topic. An epoch's *manifest* lists its blocks in the order in which they are published. It is JSON, compressed with
zlib; integers and strings only:

===========  ===========================================================================================================
member       what
===========  ===========================================================================================================
``v``        1
``targets``  ``[topic, broker, queue id]`` of each target queue
``staging``  ``[topic, broker, queue id]`` of each staging queue
``ends``     ``[topic, broker, queue id, offset]``: the ends of the queues to read back, asked before the decision
``blocks``   ``[target, staging, offset, rows, bytes, sysFlag, delayed, partition, first row]``; ``target`` and
             ``staging`` are indexes of those lists, ``delayed`` is 1 if the rows are sent one by one
===========  ===========================================================================================================

The UNIQ_KEY of a row is that of ``write.row_encoder``, whose first ten bytes are ``epoch_key``: another one than that
of an at-least-once write of the same query, and another one for delayed rows, because a delayed row is stored again in
its target queue when it is delivered.

Values and pure functions.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.write.row_encoder import write_key
from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.json import dumps, loads

VERSION = 1
_MAX_MANIFEST_BYTES = 256 << 20
_NUMBERS = ("offset", "rows", "size", "sys_flag", "is_delayed", "partition", "first_row")  # of ``blocks``
T = TypeVar("T")


@dataclass(slots=True)
class StagedBlock:
    """Rows for one queue, and the position of the message that they are staged in."""

    target: MessageQueue
    rows: int
    size: int
    first_row: int
    partition: int
    sys_flag: int = 0
    is_delayed: bool = False
    staged: MessageQueue | None = None
    offset: int = -1
    crc: int = field(default=0, compare=False)
    """CRC-32 of the body, from the task to the decision; not in a manifest."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Epoch(FrozenValue):
    """The unit that a query commits: a micro-batch, or a whole batch write (``batch`` is 0)."""

    query: str
    batch: int
    run: str = ""
    name: str = ""
    """The query's name, if it has one."""

    def key(self, partition: int, *, is_delayed: bool) -> bytes:
        """The first ten bytes of the UNIQ_KEYs of a partition's rows."""
        return write_key(f"exactly once{' delayed' * is_delayed}\0{self.query}", str(self.batch), partition)

    def prefix(self, block: StagedBlock) -> str:
        """``key`` as the first 20 digits of UNIQ_KEY."""
        return self.key(block.partition, is_delayed=block.is_delayed).hex().upper()

    def first_id(self, block: StagedBlock) -> str:
        """The UNIQ_KEY of a block's first row."""
        return f"{self.prefix(block)}{block.first_row:012X}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Manifest(FrozenValue):
    """The blocks of an epoch, and where the queues to read back ended before it was decided."""

    blocks: list[StagedBlock]
    ends: dict[MessageQueue, int]

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    def encode(self) -> bytes:
        targets = _numbered(block.target for block in self.blocks)
        staging = _numbered(block.staged for block in self.blocks)
        blocks = [
            [targets[block.target], staging[block.staged], *(int(getattr(block, each)) for each in _NUMBERS)]
            for block in self.blocks
        ]
        document = {
            "v": VERSION,
            "targets": [[queue.topic, queue.broker_name, queue.queue_id] for queue in targets],
            "staging": [[queue.topic, queue.broker_name, queue.queue_id] for queue in staging if queue is not None],
            "ends": [[queue.topic, queue.broker_name, queue.queue_id, end] for queue, end in self.ends.items()],
            "blocks": blocks,
        }
        return zlib.compress(dumps(document), 1)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """ProtocolError if the bytes are not a manifest of this version."""
        try:
            inflater = zlib.decompressobj()
            document = loads(inflater.decompress(data, _MAX_MANIFEST_BYTES))
            if document["v"] != VERSION or not inflater.eof:
                raise ValueError(f"version {document['v']}")
            targets = [MessageQueue(*queue) for queue in document["targets"]]
            staging = [MessageQueue(*queue) for queue in document["staging"]]
            blocks = [
                StagedBlock(targets[target], staged=staging[place], **dict(zip(_NUMBERS, numbers, strict=True)))
                for target, place, *numbers in document["blocks"]
            ]
            return cls(blocks, {MessageQueue(*queue): end for *queue, end in document["ends"]})
        except (zlib.error, ValueError, KeyError, TypeError, IndexError) as error:
            raise ProtocolError(f"Not a manifest of version {VERSION}: {error}.") from None


def _numbered(values: Iterable[T]) -> dict[T, int]:
    numbers: dict[T, int] = {}
    for value in values:
        numbers.setdefault(value, len(numbers))
    return numbers
