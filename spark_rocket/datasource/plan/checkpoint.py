"""Read a streaming query's checkpoint directory: the positions of its rocket sources.

Spark keeps two logs there, with one file per batch: ``offsets/N`` is written when batch N is planned, ``commits/N``
when it is done. A file of ``offsets`` has these lines::

    v1                        the version
    {"batchWatermarkMs":…}    Spark's own
    {…} or -                  the end of each source, in the order of the query; the form identifies rocket sources

The directory is only read, and the query may be running: Spark writes each file under a temporary name first.

Pure, except for the files; safe from any thread. Corresponds to Spark's OffsetSeqLog and CommitLog.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.stream_offsets import StreamOffset, parse_stream_offset, starts_of
from spark_rocket.model import MessageQueue


@dataclass(frozen=True)
class Checkpoint:
    """A query's position. ``positions`` are the next messages to read after the last finished batch; ``planned`` is the
    end of the batch after it, if that batch was planned."""

    batch: int | None
    positions: dict[MessageQueue, int]
    planned: dict[MessageQueue, int] | None


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a query's checkpoint directory (the option ``checkpointLocation``).

    Several rocket sources of a query are merged. If two read the same queue, the lower offset counts. Raises
    OffsetsError if the directory is not a checkpoint or has no rocket source.
    """
    batches = _numbers(directory / "offsets")
    if not batches:
        raise error("BAD_OFFSETS.NO_CHECKPOINT", directory=directory)
    done = _numbers(directory / "commits") & batches
    batch, last = max(done, default=None), max(batches)
    planned = _read(directory, last)
    if batch == last:
        return Checkpoint(batch, _positions(planned), None)
    before: list[StreamOffset | None] = [None] * len(planned)
    if batch is not None:
        before = list(_read(directory, batch))
        before += [None] * (len(planned) - len(before))
    positions: dict[MessageQueue, int] = {}
    for previous, end in zip(before, planned, strict=False):
        if end is not None:
            _lowest(positions, starts_of(previous, end))
    return Checkpoint(batch, positions, _positions(planned))


def _positions(ends: list[StreamOffset | None]) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for end in ends:
        if end is not None:
            _lowest(found, dict(end.ends))
    return found


def _lowest(into: dict[MessageQueue, int], positions: dict[MessageQueue, int]) -> None:
    for queue, offset in positions.items():
        into[queue] = min(offset, into.get(queue, offset))


def _numbers(log: Path) -> set[int]:
    return {int(file.name) for file in log.iterdir() if file.name.isdecimal()} if log.is_dir() else set()


def _read(directory: Path, batch: int) -> list[StreamOffset | None]:
    """Return the ends of the rocket sources in a batch, in their order; None is a source without a planned batch."""
    file = directory / "offsets" / str(batch)
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0].strip() != "v1":
        found = lines[0].strip()[:20] if lines else ""
        raise error("BAD_OFFSETS.CHECKPOINT_LOG", file=file, found=repr(found))
    ours = []
    for line in lines[2:]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and "version" in value and ("offsets" in value or "initial" in value):
            ours.append(parse_stream_offset(value))
    if not ours:
        raise error("BAD_OFFSETS.NOT_OURS", directory=directory)
    return ours
