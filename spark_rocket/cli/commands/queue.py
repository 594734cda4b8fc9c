"""``rocket queue dump``: the contents of a queue, as messages or as the entries of its consume queue.

Exit status: 0 success, 1 failure, 2 invalid command line.
Corresponds to mqadmin's printMsgByQueue and queryCq.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import json_option, whole
from spark_rocket.cli.commands import message_show
from spark_rocket.cli.commands.message import find_queue
from spark_rocket.cli.commands.message_show import body_option
from spark_rocket.cli.connect import Link, complete_groups, complete_topics, connection
from spark_rocket.cli.show import Column
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.attributes import pick
from spark_rocket.common.units import count_text, size_text
from spark_rocket.errors import ClientError

if TYPE_CHECKING:
    from spark_rocket.client import Admin
    from spark_rocket.model import MessageQueue

_offset = whole(0, 2**63 - 1, "offset")
_PAGE = 1_000
_DEFAULT_COUNT = 100


@click.group(cls=VerbGroup)
def queue() -> None:
    """Show the contents of a queue."""


@queue.command("dump", short_help="show messages or entries of a queue between two offsets")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("name", metavar="QUEUE")
@click.option("--from", "begin", type=_offset, metavar="OFFSET", help="first offset (the queue's first)")
@click.option(
    "--to", "end", type=_offset, metavar="OFFSET", help="end, exclusive (100 further; with --json, the queue's end)"
)
@click.option("--entries", is_flag=True, help="show consume queue entries, not messages")
@click.option(
    "--group", shell_complete=complete_groups, help="with --entries: show which ones match this group's subscription"
)
@click.option("--long", "is_long", is_flag=True, help="show all fields of each message")
@connection
@body_option
@json_option
def dump(
    link: Link,
    topic: str,
    name: str,
    begin: int | None,
    end: int | None,
    entries: bool,
    group: str | None,
    is_long: bool,
    form: str,
    as_json: bool,
) -> None:
    """Show the contents of QUEUE (BROKER/ID, or ID if one broker has the topic). JSON is printed one per line.

    \b
    rocket queue dump orders broker-a/0 --from 1000 --to 1010 --body json
    rocket queue dump orders 0 --entries
    """
    if group is not None and not entries:
        raise click.UsageError("--group needs --entries.")
    with link.partial() as (admin, failed):
        found = find_queue(admin, topic, name)
        low, high = admin.offsets(topic)[found]
        first = low if begin is None else begin
        if not low <= first <= high:
            raise ClientError(
                f"Queue {name} of topic {topic!r} has no offset {first}.",
                remedy=f"Use an offset from {low} to {high}.",
            )
        last = min(high, end if end is not None else high if as_json else first + _DEFAULT_COUNT)
        foot = f"Offsets {first} to {max(last, first)} (exclusive) of {low} to {high}."
        if entries:
            _entries(admin, found, first, last, group, as_json, foot)
            return
        for one in admin.messages_between(found, first, last, failed=failed):
            message_show.put(one, form, is_long, as_json)
        if not as_json:
            print(foot)


def _entries(
    admin: Admin, found: MessageQueue, first: int, last: int, group: str | None, as_json: bool, foot: str
) -> None:
    rows = []
    while first < last:
        page = admin.consume_queue(found, first, min(last - first, _PAGE), group=group)
        for entry in page.entries:
            row = pick(entry, f"queue_offset physical_offset size tags_code {'' if group is None else 'matches'}")
            if as_json:
                show.line(row)
            else:
                rows.append(row)
        if not page.entries:
            break
        first = page.entries[-1].queue_offset + 1
    if not as_json:
        columns = [
            Column("queueOffset", "OFFSET", form=count_text, right=True),
            Column("physicalOffset", "IN LOG AT", form=count_text, right=True),
            Column("size", form=size_text, right=True),
            Column("tagsCode", "TAGS CODE"),
        ]
        if group is not None:
            columns.append(Column("matches", f"FOR {group}"))
        show.table(rows, columns, empty="No entries.", foot=foot)
