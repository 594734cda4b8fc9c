"""``rocket offsets …``: the offsets of streaming queries and consumer groups, and setting the offsets of groups.

A query continues from its checkpoint and ignores the group's offsets. Those are for other consumers, for new queries
with ``startingOffsets=group``, and for monitoring the lag. These verbs show both, copy offsets from one to the other,
and preview what a replay would read.

An offset is the next offset to read. The JSON is that of ``startingOffsets``. Verbs that change a group show the
changes and ask for confirmation, unless ``--yes`` is given. A group with online consumers is refused, because they
would overwrite its offsets, unless ``--online`` is given. ``rocket group reset-offset`` and ``clone`` are the names
that earlier versions and mqadmin have for ``reset``.

Exit status: 0 success (``diff``: no differences), 1 failure (``diff``: differences), 2 invalid command line.
Corresponds to mqadmin's consumerProgress, resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import PATH, dry_run_option, group_name, limit, past, yes_option
from spark_rocket.cli.commands.offset_rows import connected, limits_of, print_rows, rows_of, show_plan
from spark_rocket.cli.commands.offset_target import TARGETS, OffsetTarget, only_queue, positions_of, target_options
from spark_rocket.cli.commands.sinks import ledger, sinks
from spark_rocket.cli.connect import Link, complete_groups, complete_topics, connection
from spark_rocket.cli.text import escape_controls
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.units import moment_text
from spark_rocket.errors import ClientError

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Reader
    from spark_rocket.client.admin import PlannedReset
    from spark_rocket.model import MessageQueue

_checkpoint = click.argument("checkpoint", type=PATH, required=False)
_group = click.option(
    "-g", "--group", type=group_name, metavar="GROUP", shell_complete=complete_groups, help="the consumer group"
)
_group_required = click.option(
    "-g", "--group", type=group_name, required=True, metavar="GROUP", shell_complete=complete_groups,
    help="the consumer group",
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="print one JSON object per line instead of a table")


def _topics(meaning: str) -> Callable[[Any], Any]:
    return click.option(
        "-t", "--topic", "topics", multiple=True, metavar="TOPIC", shell_complete=complete_topics, help=meaning
    )


# --- verbs -----------------------------------------------------------------------------------------------------------


@click.group(cls=VerbGroup)
def offsets() -> None:
    """Offsets of streaming queries (their checkpoints) and of consumer groups (on the brokers)."""


offsets.add_command(sinks)
offsets.add_command(ledger)


@offsets.command("show", short_help="show the offsets and the lag of a checkpoint or a group")
@_checkpoint
@connection
@_json
@_group
@_topics("for a group: only this topic; repeatable")
def show_offsets(
    link: Link, checkpoint: Path | None, group: str | None, topics: tuple[str, ...], as_json: bool
) -> None:
    """Show the offsets and the lag of a checkpoint or a group.

    CHECKPOINT is a query's checkpointLocation.
    """
    rows = rows_of(link, checkpoint, group, topics)
    print_rows(rows, as_json)
    if not as_json and (behind := [row.lag for row in rows if row.lag is not None]):
        print(f"lag: {sum(behind):,} messages in {len(rows)} queues")


@offsets.command(short_help="compare the offsets of a checkpoint and a group")
@click.argument("checkpoint", type=PATH)
@connection
@_json
@_group_required
def diff(link: Link, checkpoint: Path, group: str, as_json: bool) -> int:
    """Show the queues in which a checkpoint and a group differ. Exit status 1 if they differ."""
    rows = [row for row in rows_of(link, checkpoint, group) if row.checkpoint != row.group]
    if not rows:
        if not as_json:
            print(f"{checkpoint} and group {group} have the same offsets")
        return 0
    print_rows(rows, as_json)
    return 1


@offsets.command(short_help="show what a replay would read")
@connection
@_json
@_topics("topic to read; repeatable")
@target_options
@click.option("-l", "--limit", type=limit, default="3", metavar="N", help="messages to show per queue (3)")
def preview(link: Link, topics: tuple[str, ...], where: OffsetTarget, limit: int, as_json: bool) -> None:
    """Show what a replay from these offsets would read, and in which Spark partitions a batch read would."""
    with connected(link) as (admin, reader):
        positions = positions_of(where, topics, reader)
        limits = {queue: ends for queue, ends in limits_of(admin, positions).items() if queue in positions}
        starts = {queue: max(low, positions[queue]) for queue, (low, _) in limits.items()}
        partitions = _partitions(starts, {queue: high for queue, (_, high) in limits.items()}, reader)
        total = 0
        for queue, (low, high) in limits.items():
            start = starts[queue]
            total += max(0, high - start)
            found = [] if start >= high else reader.messages(queue, start, max_msgs=limit)
            if as_json:
                first = found[0].store_timestamp if found else None
                values = {"from": start, "to": high, "firstStoreTimestamp": first, "deletedBefore": low}
                show.line(show.place(queue) | values | {"partition": partitions.get(queue)})
                continue
            partition = f", partition {partitions[queue]}" if queue in partitions else ""
            lost = f"; {low - positions[queue]:,} earlier messages have been deleted" if positions[queue] < low else ""
            print(f"{queue.name}: {max(0, high - start):,} messages, [{start}, {high}){partition}{lost}")
            for message in found:
                label = " ".join(filter(None, (message.tags, message.keys)))
                when = moment_text(message.store_timestamp)
                print(f"  {message.queue_offset:>10}  {when}  {escape_controls(label)}")
        if not as_json:
            print(f"total: {total:,} messages, Spark partitions: {len({*partitions.values()}):,}")


@offsets.command(short_help="reset a group to a time, an end, an offset, a checkpoint, another group or a file")
@_group_required
@connection
@_json
@_topics("topic; repeatable")
@click.option("-q", "--queue", metavar="BROKER/ID", help="only this queue of the topic")
@target_options
@click.option("--online", is_flag=True, help="reset online members too: brokers notify them")
@yes_option
@dry_run_option
def reset(
    link: Link,
    group: str,
    topics: tuple[str, ...],
    where: OffsetTarget,
    queue: str | None,
    online: bool,
    as_json: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Reset the offsets of a group to a time, an end, an offset, a checkpoint, another group or a file.

    Shows the present and the new offset of each queue, and asks for confirmation. Without --online, a group with online
    members is refused.
    """
    if as_json and not yes and not dry_run:
        raise click.UsageError("--json needs --yes or --dry-run: it cannot ask for confirmation.")
    with connected(link) as (admin, reader):
        wanted = positions_of(where, topics, reader)
        if queue is not None:
            wanted = only_queue(queue, wanted, topics, admin)
        plan = _plan(admin, group, wanted)
        show_plan(plan, as_json)
        by_topic = {
            topic: {each.queue: each.target for each in of_topic}
            for topic, of_topic in groupby(plan, key=lambda each: each.queue.topic)
        }
        if not online and (members := sorted({one for topic in by_topic for one in admin.consumers(group, topic)})):
            raise ClientError(
                f"Group {group} has {len(members)} member{'s' * (len(members) > 1)} online: {', '.join(members)}.",
                remedy="Stop them first, or use --online: brokers notify them of the new offsets.",
            )
        if dry_run:
            if not as_json:
                print("Nothing was changed (--dry-run).")
            return
        show.confirm(f"Set the offsets of group {group} in {len(plan)} queues?", yes)
        for topic, targets in by_topic.items():
            # Brokers of 4.x reset online members only to a time.
            if online and queue is None and where.timestamp_ms is not None:
                admin.reset_offsets(group, topic, where.timestamp_ms, online=True)
            else:
                admin.reset_offsets_to(group, targets, online=online)
    if not as_json:
        print(f"Set the offsets of group {group} in {len(plan)} queues.")


def _like_reset(
    name: str, text: str, own: list[click.Parameter], translate: Callable[..., dict[str, Any]], *, drops: set[str]
) -> click.Command:
    """A command with the options of ``reset`` but ``drops``; ``translate`` returns these from its own parameters."""

    def run(**values: Any) -> Any:
        given = {str(parameter.name): values.pop(parameter.name) for parameter in own}
        assert reset.callback is not None
        return reset.callback(**(dict.fromkeys(drops) | values | translate(**given)))

    params = own + [parameter for parameter in reset.params if parameter.name not in drops]
    return click.Command(name, callback=run, params=params, help=text)


def _when(text: str) -> dict[str, Any]:
    return {text: True} if text in ("earliest", "latest") else {"at": past(text)}


import_offsets = _like_reset(
    "import",
    "Set the offsets of a group from FILE, written by export; - for stdin.",
    [click.Argument(["file"], type=PATH)],
    lambda file: {"file": file},
    drops={*TARGETS, "topics", "queue"},
)
import_offsets.short_help = "set the offsets of a group from a file"
offsets.add_command(import_offsets)
# The names of earlier versions in `rocket group`.
reset_offset = _like_reset(
    "reset-offset",
    "The same as `rocket offsets reset -g GROUP`.",
    [
        click.Argument(["group"], shell_complete=complete_groups),
        click.Option(["--to"], type=_when, metavar="WHEN", help="earliest, latest or a time"),
    ],
    lambda group, to: {"group": group} | (to or {}),
    drops={*TARGETS, "group"} - {"offset"},
)
clone_offsets = _like_reset(
    "clone",
    "The same as `rocket offsets reset -g TARGET --of-group SOURCE`.",
    [click.Argument([name], type=group_name, shell_complete=complete_groups) for name in ("source", "target")],
    lambda source, target: {"of_group": source, "group": target},
    drops={*TARGETS, "group"},
)


@offsets.command(short_help="write offsets as JSON for startingOffsets")
@_checkpoint
@connection
@_json
@_group
@_topics("for a group: only this topic; repeatable")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="write to a file instead of stdout")
def export(
    link: Link,
    checkpoint: Path | None,
    group: str | None,
    topics: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Write offsets as JSON for startingOffsets. CHECKPOINT is a query's checkpointLocation."""
    from spark_rocket.datasource.stream_offsets import to_tree

    rows = rows_of(link, checkpoint, group, topics, queries_brokers=group is not None)
    if checkpoint is None and all(row.offset is None for row in rows):
        raise ClientError(f"Group {group} has no offsets in {', '.join(topics)}.", remedy="Check both names.")
    text = json.dumps(to_tree({row.queue: row.offset for row in rows if row.offset is not None}))
    if output is None:
        print(text)
    else:
        output.write_text(text + "\n", encoding="utf-8")


def _plan(admin: Admin, group: str, wanted: dict[MessageQueue, int]) -> list[PlannedReset]:
    from spark_rocket.client.admin import PlannedReset

    limits = limits_of(admin, wanted)
    committed = {
        queue: at for topic in {q.topic for q in wanted} for queue, at in admin.committed_offsets(group, topic).items()
    }
    plan = []
    for queue, offset in sorted(wanted.items()):
        if queue not in limits:
            others = ", ".join(other.name for other in limits if other.topic == queue.topic)
            raise ClientError(f"Unknown queue {queue.name}.", remedy=f"The topic has {others}.")
        low, high = limits[queue]
        if not 0 <= offset <= high:
            raise ClientError(
                f"Invalid offset {offset} of {queue.name}, which ends at {high}.",
                remedy="Use offsets of the present topic; -1 is the end, -2 the beginning.",
            )
        plan.append(PlannedReset(queue, committed.get(queue), max(offset, low)))
    return plan


def _partitions(
    starts: dict[MessageQueue, int], ends: dict[MessageQueue, int], reader: Reader
) -> dict[MessageQueue, int]:
    """Return the number of the partition in which a batch read without other options reads each queue."""
    from spark_rocket.datasource.plan.ranges import OffsetRange
    from spark_rocket.datasource.plan.tasks import combine

    def sizes_of(places: Mapping[MessageQueue, int], count: int) -> dict[MessageQueue, list[int]]:
        asked = {queue: reader.message_sizes_later(queue, start, count) for queue, start in places.items()}
        return {queue: response.result() for queue, response in asked.items() if response.exception() is None}

    ranges = [OffsetRange(queue, start, ends[queue]) for queue, start in starts.items() if start < ends[queue]]
    tasks = combine(ranges, sizes_of)
    return {span.queue: number for number, task in enumerate(tasks) for span in task}
