"""``rocket group …``: consumer groups on every broker.

Exit status: 0 done, 1 it could not be done, 2 the command line is wrong.
Corresponds to mqadmin's updateSubGroup and its like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_rocket.cli.arguments import whole
from spark_rocket.cli.connect import Link, connection

if TYPE_CHECKING:
    from spark_rocket.client import Admin


@click.group(short_help="create consumer groups, or change them")
def group() -> None:
    """Create consumer groups, or change them."""


@group.command(short_help="create consumer groups")
@click.argument("names", nargs=-1, required=True, metavar="GROUP…")
@connection
@click.option(
    "--ordered/--no-ordered",
    default=None,
    help="whether messages of a message group are consumed in order (not, in a new group)",
)
@click.option(
    "--attempts",
    type=whole(1, 1_000_000, "number of attempts"),
    metavar="N",
    help="then a message is a dead letter (17, in a new group)",
)
def create(link: Link, names: tuple[str, ...], ordered: bool | None, attempts: int | None) -> None:
    """Create consumer groups on every broker of the name server; those that are there are changed."""
    with link.admin() as admin:
        for name in names:
            retries = None if attempts is None else attempts - 1
            admin.create_group(name, ordered=ordered, retry_max_times=retries)
            print(_description(admin, name))


def _description(admin: Admin, name: str) -> str:
    for data in admin.cluster_info().broker_addr_table.values():
        found = admin.subscription_groups(data.broker_addrs[0]).get(name) if 0 in data.broker_addrs else None
        if found is not None:
            order = ", in order" if found.consume_message_orderly else ""
            return f"Group {name} is given messages {found.retry_max_times + 1} times at most{order}."
    return f"Group {name} is there."
