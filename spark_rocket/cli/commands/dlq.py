"""``rocket dlq …``: dead letters, the messages that a group could not consume within its retries.

Exit status: 0 success, 1 failure, 2 invalid command line.
Corresponds to the dead-letter page of RocketMQ's dashboard.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import exclusive, json_option, moment, past, whole, yes_option
from spark_rocket.cli.commands import message as messages
from spark_rocket.cli.commands.group import known_group
from spark_rocket.cli.commands.message_show import body_option
from spark_rocket.cli.connect import Link, complete_groups, connection
from spark_rocket.cli.show import Column
from spark_rocket.cli.text import Bar
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.attributes import pick
from spark_rocket.common.units import count_text, second_text
from spark_rocket.errors import ClientError, RocketError, TopicNotFoundError
from spark_rocket.model import DLQ_PREFIX

if TYPE_CHECKING:
    from spark_rocket.client import Admin
    from spark_rocket.client.admin import Failures
    from spark_rocket.model import MessageExt

_begin = click.option("--from", "begin", type=past, metavar="TIME", help="dead letters since this time")
_end = click.option("--to", "end", type=moment, metavar="TIME", help="dead letters until this time")


@click.group(cls=VerbGroup)
def dlq() -> None:
    """List and resend dead letters: messages that a group could not consume within its retries."""


@dlq.command("list", short_help="list groups with dead letters, or the dead letters of a group")
@click.argument("group", required=False, shell_complete=complete_groups)
@_begin
@_end
@click.option(
    "--limit", type=whole(1, 100_000, "number of messages"), default="64", metavar="N", help="maximum number (64)"
)
@connection
@body_option
@json_option
def list_dead_letters(
    link: Link, group: str | None, begin: int | None, end: int | None, limit: int, form: str, as_json: bool
) -> None:
    """List groups with dead letters, or the dead letters of GROUP, newest first."""
    with link.partial() as (admin, failed):
        if group is None:
            rows = admin.dead_letter_topics(failed=failed)
            names = "group topic messages lastUpdate=last_update_ms"
            empty = show.nothing_text("No group has dead letters", failed)
            show.rows([pick(row, names) for row in rows], _GROUPS, as_json, empty=empty)
            return
        found = admin.dead_letters(group, begin_ms=begin or 0, end_ms=end, limit=limit, failed=failed)
        if not found:
            known_group(admin, group, failed)
        foot = f"Showing the newest {count_text(limit)}; use --limit for more." if len(found) == limit else ""
        empty = show.nothing_text(f"Group {group} has no dead letters", failed)
        messages.table(found, form, as_json, empty=empty, foot=foot)


_GROUPS = (
    Column("group"),
    Column("messages", form=count_text, right=True),
    Column("lastUpdate", "LAST", form=second_text, right=False),
    Column("topic", spare=True),
)


@dlq.command("resend", short_help="resend dead letters to their group or topic")
@click.argument("group", shell_complete=complete_groups)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "is_all", is_flag=True, help="all dead letters, or those between --from and --to")
@click.option(
    "--to-topic", is_flag=True, help="send to the original topic: every group receives it again, not only this one"
)
@_begin
@_end
@connection
@yes_option
@json_option
def resend(
    link: Link,
    group: str,
    ids: tuple[str, ...],
    is_all: bool,
    to_topic: bool,
    begin: int | None,
    end: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Resend dead letters of GROUP: the letters with these ids, or all of them.

    A copy goes to the group's retry topic, which only this group reads, or with --to-topic to the message's original
    topic. The dead letters themselves stay until they expire.
    """
    exclusive({"ID": ids or None, "--all": is_all}, required=True)
    if ids and (begin is not None or end is not None):
        raise click.UsageError("--from and --to need --all.")
    with link.partial() as (admin, failed):
        chosen = [_dead_letter(admin, group, msg_id) for msg_id in dict.fromkeys(ids)]
        # With ids, brokers without these dead letters need not be available.
        count = len(chosen) if ids else _count(admin, group)
        if not count:
            known_group(admin, group)
            print(f"Group {group} has no dead letters.", file=sys.stderr)
            return
        where = "their topics, for all groups" if to_topic else f"group {group}"
        many = f"up to {count_text(count)}" if is_all and (begin or end) else count_text(count)
        show.confirm(f"Resend {many} dead letter{'s' if count > 1 else ''} to {where}?", yes)
        sent = 0
        try:
            with Bar(is_bytes=False, what="dead letters") as bar:
                found = iter(chosen) if ids else _dead_letters(admin, group, begin, end, failed)
                for message, result in admin.resend_each(found, group=None if to_topic else group):
                    if isinstance(result, RocketError):
                        failed[message.msg_id] = result
                        continue
                    sent += 1
                    bar(sent, count)
                    if as_json:
                        show.line({"msgId": message.msg_id, "sentAs": result.msg_id, "topic": result.queue.topic})
        finally:
            if not as_json:
                print(f"Resent {count_text(sent)} dead letter{'s' if sent != 1 else ''} to {where}.")


def _dead_letter(admin: Admin, group: str, msg_id: str) -> MessageExt:
    try:
        found = admin.message(DLQ_PREFIX + group, msg_id)
    except TopicNotFoundError:
        found = None
    if found is None:
        raise ClientError(
            f"Group {group!r} has no dead letter {msg_id!r}.",
            remedy=f"`rocket dlq list {group}` shows its dead letters.",
        )
    return found


def _count(admin: Admin, group: str) -> int:
    return sum(one.messages for one in admin.dead_letter_topics() if one.group == group)


def _dead_letters(
    admin: Admin, group: str, begin: int | None, end: int | None, failed: Failures
) -> Iterator[MessageExt]:
    """Iterate over the present dead letters, without those that arrive during the iteration, or until an error."""
    topic = DLQ_PREFIX + group
    try:
        for queue, (low, high) in admin.offsets(topic).items():
            for message in admin.messages_between(queue, low, high, failed=failed):
                if (begin or 0) <= message.store_timestamp <= (message.store_timestamp if end is None else end):
                    yield message
    except RocketError as error:  # resends in flight are still counted
        failed[topic] = error
