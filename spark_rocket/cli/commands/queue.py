"""``rocket queue dump``: what one queue holds, as messages or as the entries of its consume queue.

Exit status: 0 done, 1 it could not be done, 2 the command line is wrong.
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
from spark_rocket.cli.text import count_text, fields, size_text
from spark_rocket.errors import ClientError

if TYPE_CHECKING:
    from spark_rocket.client import Admin
    from spark_rocket.client.admin import ConsumeQueueEntry
    from spark_rocket.model import MessageQueue

_offset = whole(0, 2**63 - 1, "offset")
_PAGE = 1_000
_USUAL = 100


@click.group()
def queue() -> None:
    """See what a queue holds."""


@queue.command("dump", short_help="messages or entries of a queue, from one offset to another")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("name", metavar="QUEUE")
@click.option("--from", "begin", type=_offset, metavar="OFFSET", help="the first one (the first that is there)")
@click.option("--to", "end", type=_offset, metavar="OFFSET", help="before this one (100 further; with --json, the end)")
@click.option("--entries", is_flag=True, help="the consume queue's own entries, not the messages")
@click.option("--group", shell_complete=complete_groups, help="with --entries: whether this group would be given each")
@click.option("--long", "is_long", is_flag=True, help="all that is known of each message")
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
    """Show what QUEUE (BROKER/ID, or ID where one broker has the topic) of a topic holds. JSON is one line for each.

    \b
    rocket queue dump orders broker-a/0 --from 1000 --to 1010 --body json
    rocket queue dump orders 0 --entries
    """
    if group is not None and not entries:
        raise click.UsageError("--group needs --entries.")
    with link.admin() as admin:
        found = find_queue(admin, topic, name)
        low, high = admin.offsets(topic)[found]
        first = low if begin is None else begin
        if not low <= first <= high:
            raise ClientError(
                f"Queue {name} of topic {topic!r} has nothing at offset {first}.",
                remedy=f"It has the offsets {low} to before {high}.",
            )
        last = min(high, end if end is not None else high if as_json else first + _USUAL)
        foot = f"Offsets {first} to before {max(last, first)}; the queue has {low} to before {high}."
        if entries:
            _entries(admin, found, first, last, group, as_json, foot)
            return
        every = admin.messages_between(found, first, last)
        for one in every:
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
            row = _row(entry, group)
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
        show.table(rows, columns, empty="There are no entries.", foot=foot)


def _row(entry: ConsumeQueueEntry, group: str | None) -> dict[str, object]:
    names = ("queue_offset", "physical_offset", "size", "tags_code")
    return fields(entry, *names, *(() if group is None else ("matches",)))
