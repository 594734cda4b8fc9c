"""The rows of ``rocket offsets``: offsets of a checkpoint and a group, and planned changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_rocket.cli import show
from spark_rocket.cli.commands.offset_target import in_namespace
from spark_rocket.cli.connect import Link
from spark_rocket.cli.show import Column
from spark_rocket.common.units import count_text
from spark_rocket.errors import ClientError
from spark_rocket.model import RETRY_PREFIX

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Reader
    from spark_rocket.client.admin import Failures, PlannedReset
    from spark_rocket.model import MessageQueue


@contextmanager
def connected(link: Link) -> Iterator[tuple[Admin, Reader]]:
    with link.admin() as admin, link.reader() as reader:
        yield admin, reader


@dataclass(frozen=True)
class OffsetRow:
    """A queue with the offsets of query and group (None: no offset) and its limits (None: not requested)."""

    queue: MessageQueue
    checkpoint: int | None
    group: int | None
    low: int | None = None
    high: int | None = None

    @property
    def offset(self) -> int | None:
        return self.group if self.checkpoint is None else self.checkpoint

    @property
    def lag(self) -> int | None:
        if self.high is None or self.low is None:
            return None
        return max(0, self.high - max(self.offset or 0, self.low))


def rows_of(
    link: Link,
    checkpoint: Path | None,
    group: str | None,
    only: tuple[str, ...] = (),
    *,
    queries_brokers: bool = True,
) -> list[OffsetRow]:
    """Return the queues of a checkpoint, of a group's topics, or of both; with offsets if ``queries_brokers``."""
    positions: dict[MessageQueue, int] = {}
    if checkpoint is not None:
        from spark_rocket.datasource.plan.checkpoint import read_checkpoint

        positions = in_namespace(read_checkpoint(checkpoint).positions, link.with_full_names()[1])
    elif group is None:
        raise ClientError("Missing checkpoint or group.", remedy="Give a checkpoint directory, or a group with -g.")
    topics = sorted({queue.topic for queue in positions} | set(only))
    if not queries_brokers:
        return [OffsetRow(queue, offset, None) for queue, offset in sorted(positions.items())]
    rows = []
    with connected(link) as (admin, reader):
        if not topics:
            topics = topics_of(admin, group or "")
        limits = {queue: ends for topic in topics for queue, ends in admin.offsets(topic).items()}
        for queue in sorted(limits.keys() | positions.keys()):
            committed = None if group is None or queue not in limits else reader.committed_offset(group, queue)
            rows.append(OffsetRow(queue, positions.get(queue), committed, *limits.get(queue, (None, None))))
    return rows


def limits_of(admin: Admin, queues: Iterable[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
    """Return the first offset and the end of all queues of these queues' topics, sorted."""
    topics = sorted({queue.topic for queue in queues})
    return dict(sorted(item for topic in topics for item in admin.offsets(topic).items()))


def topics_of(admin: Admin, group: str) -> list[str]:
    """Return the topics with an offset of the group at any broker, except its retry topic."""
    failed: Failures = {}
    state = admin.group_states([group], delays=False, failed=failed)[group]
    topics = {found.queue.topic for found in state.queues if found.consumer_offset >= 0}
    topics = {topic for topic in topics if not topic.startswith(RETRY_PREFIX)}
    if not topics:
        raise next(iter(failed.values()), None) or ClientError(
            f"No broker has an offset of group {group}.", remedy="Check its name, or give its topics with -t."
        )
    return sorted(topics)


ROWS = (
    *show.PLACE,
    Column("checkpoint", right=True),
    Column("group", right=True),
    Column("min", "FIRST", right=True),
    Column("max", "END", right=True),
    Column("lag", right=True),
)
_CHANGES = (
    *show.PLACE,
    Column("from", "NOW", right=True),
    Column("to", "THEN", right=True),
    Column("change", "", right=False),
)


def print_rows(rows: Iterable[OffsetRow], is_json: bool) -> None:
    found = [
        show.place(row.queue)
        | {"checkpoint": row.checkpoint, "group": row.group, "min": row.low, "max": row.high, "lag": row.lag}
        for row in rows
    ]
    if is_json:
        for values in found:
            show.line(values)
    else:
        # Omit empty columns.
        known = [column for column in ROWS if any(values[column.key] is not None for values in found)]
        show.table(found, known or ROWS)


def show_plan(plan: list[PlannedReset], is_json: bool) -> None:
    rows = [show.place(each.queue) | {"from": each.committed, "to": each.target} for each in plan]
    changes = [each.change for each in plan]
    if is_json:
        for row, change in zip(rows, changes, strict=True):
            show.line(row | {"again": max(0, -(change or 0))})
        return
    repeated, skipped = (sum(max(sign * (change or 0), 0) for change in changes) for sign in (-1, 1))
    foot = f"{count_text(repeated)} messages repeated, {count_text(skipped)} skipped"
    rows = [row | {"change": _change_text(change)} for row, change in zip(rows, changes, strict=True)]
    show.table(rows, _CHANGES, foot=foot)


def _change_text(change: int | None) -> str:
    if change is None:
        return "first time"
    return f"{count_text(-change)} repeated" if change < 0 else f"{count_text(change)} skipped" if change else "same"
