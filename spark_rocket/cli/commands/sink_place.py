"""The options of commands for the place of an exactly-once ledger: the data source's ledgerBroker and ledgerQueue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from spark_rocket.cli.arguments import whole
from spark_rocket.model import MessageQueue

_MAX_QUEUE = 65_535


def given_place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--ledger-broker`` and ``--ledger-queue``."""
    number = click.option(
        "--ledger-queue",
        type=whole(0, _MAX_QUEUE, "number of a queue"),
        metavar="N",
        help="ledgerQueue of the writes (0)",
    )
    broker = click.option("--ledger-broker", metavar="BROKER", help="ledgerBroker of the writes")
    return broker(number(command))


def queue_of(topic: str, broker: str | None, queue: int | None) -> MessageQueue | None:
    """Return the queue that the options name; None without ``--ledger-broker``."""
    if broker is not None:
        return MessageQueue(topic, broker, queue or 0)
    if queue is not None:
        raise click.UsageError("--ledger-queue needs --ledger-broker.")
    return None
