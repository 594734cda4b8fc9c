"""``rocket topic …``: topics on every broker.

A message of RocketMQ 5's own clients creates no topic, and whether a topic takes ordered, delayed or transactional
messages is set where it is kept: at the broker.

Exit status: 0 done, 1 it could not be done, 2 the command line is wrong.
Corresponds to mqadmin's updateTopic and its like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_rocket.cli.arguments import whole
from spark_rocket.cli.connect import Link, connection
from spark_rocket.errors import BrokerError, TopicNotFoundError

if TYPE_CHECKING:
    from spark_rocket.client import Admin

_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
_queues = whole(1, 65_536, "number of queues")


@click.group(short_help="create topics, or change them")
def topic() -> None:
    """Create topics, or change them."""


@topic.command(short_help="create topics")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC…")
@connection
@click.option("--queues", type=_queues, default="8", metavar="N", help="read and write queues on each broker (8)")
@click.option(
    "--write-queues",
    type=_queues,
    metavar="N",
    help="write to so many only: the first step in taking queues away from a topic in use",
)
@click.option(
    "--type",
    "message_type",
    type=click.Choice(_TYPES),
    help="the messages that gRPC clients may send to it; any unless it is given",
)
def create(link: Link, names: tuple[str, ...], queues: int, write_queues: int | None, message_type: str | None) -> None:
    """Create topics on every broker of the name server; those that are there are changed."""
    with link.admin() as admin:
        for name in names:
            _check_queues(admin, name, queues)
            admin.create_topic(name, queues, write_queues=write_queues, message_type=message_type)
            written = "" if write_queues is None else f" ({write_queues} of them written to)"
            taken = message_type or _type_of(admin, name) or "messages of any type"
            print(f"Topic {name} has {queues} queues{written} and takes {taken}.")


def _check_queues(admin: Admin, topic: str, queues: int) -> None:
    """Refuse to take away queues that are written to: nobody would see the messages in them any more."""
    try:
        found = max((data.write_queue_nums for data in admin.topic_route(topic).queue_datas), default=0)
    except TopicNotFoundError:
        return
    if found > queues:
        raise BrokerError(
            f"Topic {topic} has {found} queues: with {queues}, messages in the others could not be read any more.",
            remedy=f"Give --queues {found}. To have fewer, give --queues {found} --write-queues {queues} first, and"
            f" --queues {queues} when every group has read the others.",
        )


def _type_of(admin: Admin, topic: str) -> str | None:
    """The type that the topic has; None if it takes all of them."""
    masters = [data.broker_addrs.get(0) for data in admin.cluster_info().broker_addr_table.values()]
    for address in filter(None, masters):
        config = admin.topic_configs(address).get(topic)
        if config is not None:
            return config.attributes.get("message.type")
    return None
