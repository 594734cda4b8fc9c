"""``rocket topic create`` and ``rocket group create``: what RocketMQ 5's own clients need before they start.

A message of theirs creates no topic, and whether a topic takes ordered, delayed or transactional messages, and a group
is given them in order, is set where these are kept: at the broker.

Exit status: 0 done, 1 it could not be done, 2 the command line is wrong.
Corresponds to mqadmin's updateTopic and updateSubGroup.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from spark_rocket.errors import BrokerError, TopicNotFoundError

if TYPE_CHECKING:
    from spark_rocket.client import Admin

_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


def add_topic(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs."""
    create = _create(verbs, "topic", "create topics", "TOPIC")
    create.add_argument(
        "--queues", type=_queues, default=8, metavar="N", help="read and write queues on each broker (8)"
    )
    create.add_argument(
        "--write-queues",
        type=_queues,
        metavar="N",
        help="write to so many only: the first step in taking queues away from a topic in use",
    )
    create.add_argument(
        "--type", choices=_TYPES, help="the messages that gRPC clients may send to it; any unless it is given"
    )
    create.set_defaults(run=_create_topics)
    create = _create(verbs, "group", "create consumer groups", "GROUP")
    create.add_argument(
        "--ordered",
        action=argparse.BooleanOptionalAction,
        help="whether messages of a message group are consumed in order (not, in a new group)",
    )
    create.add_argument(
        "--attempts", type=_attempts, metavar="N", help="then a message is a dead letter (17, in a new group)"
    )
    create.set_defaults(run=_create_groups)


def _create(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], what: str, summary: str, name: str
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(what, help=summary, description=f"{summary[0].upper()}{summary[1:]}, or change them.")
    actions = verb.add_subparsers(title="commands", required=True, metavar="COMMAND")
    text = f"{summary} on every broker of the name server; those that are there are changed"
    create = actions.add_parser("create", help=summary, description=f"{text[0].upper()}{text[1:]}.")
    create.add_argument("names", nargs="+", metavar=name)
    create.add_argument("-n", "--nameserver", metavar="ADDR", help="host:port, several with ';' between")
    return create


def _create_topics(options: argparse.Namespace) -> int:
    from spark_rocket.client import Admin

    with Admin(options.nameserver) as admin:
        for name in options.names:
            _check_queues(admin, name, options.queues)
            admin.create_topic(
                name,
                options.queues,
                write_queues=options.write_queues,
                attributes=None if options.type is None else f"+message.type={options.type}",
            )
            written = "" if options.write_queues is None else f" ({options.write_queues} of them written to)"
            taken = options.type or _type_of(admin, name) or "messages of any type"
            print(f"Topic {name} has {options.queues} queues{written} and takes {taken}.")
    return 0


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


def _create_groups(options: argparse.Namespace) -> int:
    from spark_rocket.client import Admin

    with Admin(options.nameserver) as admin:
        for name in options.names:
            retries = None if options.attempts is None else options.attempts - 1
            admin.create_group(name, ordered=options.ordered, retry_max_times=retries)
            print(_description(admin, name))
    return 0


def _description(admin: Admin, group: str) -> str:
    for data in admin.cluster_info().broker_addr_table.values():
        found = admin.subscription_groups(data.broker_addrs[0]).get(group) if 0 in data.broker_addrs else None
        if found is not None:
            order = ", in order" if found.consume_message_orderly else ""
            return f"Group {group} is given messages {found.retry_max_times + 1} times at most{order}."
    return f"Group {group} is there."


def _queues(text: str) -> int:
    return _number(text, 1, 65_536, "number of queues")


def _attempts(text: str) -> int:
    return _number(text, 1, 1_000_000, "number of attempts")


def _number(text: str, low: int, high: int, what: str) -> int:
    if not text.isdigit() or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"{text} is no {what}; give one from {low} to {high}")
    return int(text)
