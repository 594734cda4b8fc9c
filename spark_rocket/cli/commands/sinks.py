"""``rocket offsets sinks`` and ``rocket offsets ledger``: exactly-once writes, and the place of their ledger.

Exit status: 0 success, 1 failure, duplicates or a ledger without a clear place, 2 invalid command line.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import exclusive, ledger_place_options, ledger_queue_of, yes_option
from spark_rocket.cli.connect import Link, complete_topics, connection
from spark_rocket.cli.show import Column
from spark_rocket.cli.text import camel
from spark_rocket.common.units import count_text, second_text
from spark_rocket.errors import RocketError, TopicNotFoundError

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Reader

_json = click.option("--json", "as_json", is_flag=True, help="print one JSON object per line instead of a table")
_ledger = click.option(
    "--ledger", default="ROCKET_SINK_LEDGER", metavar="TOPIC", shell_complete=complete_topics,
    help="ledgerTopic of the writes",
)  # fmt: skip


@click.command(short_help="show the state of exactly-once writes")
@connection
@_json
@_ledger
@ledger_place_options
@click.option("--staging", default="ROCKET_SINK_STAGING", metavar="TOPIC", help="stagingTopic of the writes")
def sinks(
    link: Link, ledger: str, staging: str, ledger_broker: str | None, ledger_queue: int | None, as_json: bool
) -> int:
    """Show the last micro-batch of each query that writes with deliveryGuarantee=exactlyOnce.

    DONE: it is published. PREPARED or RESUMED: its publication is in progress, or its driver died. Restart the query
    before STAGED UNTIL, when the brokers delete its staged rows. Newer version: a newer spark_rocket writes the query;
    use that version here. Exit status 1 if a micro-batch has duplicates.

    A ledger topic may have several queues if one of them was used, or if --ledger-broker names the ledger's.
    """
    from spark_rocket.datasource.exactly_once.status import sink_statuses

    link, namespace = link.with_full_names()
    ledger, staging = namespace.wrap(ledger), namespace.wrap(staging)
    place = ledger_queue_of(ledger, ledger_broker, ledger_queue)
    with link.admin() as admin, link.reader() as reader:
        try:
            statuses = sink_statuses(reader, ledger, place)
        except TopicNotFoundError:
            statuses = []  # the first write creates it
        hours = _retention_hours(admin, reader, staging) if any(each.prepared for each in statuses) else None
    rows = []
    for each in statuses:
        until = each.prepared + hours * 3_600_000 if each.state != "DONE" and each.prepared and hours else None
        topics = [namespace.unwrap(topic) for topic in each.topics]
        rows.append(camel(asdict(each)) | {"topics": topics, "stagedUntil": until})
    columns = (
        Column("query"), Column("name"), Column("topics", form=", ".join), Column("batch"), Column("state"),
        Column("time", form=second_text, spare=True), Column("blocks", spare=True),
        Column("rows", form=count_text, spare=True), Column("published", form=count_text), Column("duplicates"),
        Column("ms", spare=True),
        Column("stagedUntil", "STAGED UNTIL", form=second_text),
    )  # fmt: skip
    show.rows(rows, columns, as_json, empty="No exactly-once writes with this ledger.")
    return 1 if any(each.duplicates for each in statuses) else 0


def _retention_hours(admin: Admin, reader: Reader, staging: str) -> int | None:
    """Return the shortest retention of the topic's brokers; None if unknown."""
    try:
        brokers = {queue.broker_name for queue in reader.refresh(staging)}
        return min(int(admin.broker_config(broker)["fileReservedTime"]) for broker in brokers)
    except (RocketError, KeyError, ValueError):
        return None


@click.command(short_help="show or replace the place of the ledger of exactly-once writes")
@connection
@_json
@_ledger
@ledger_place_options
@click.option("--replace", "broker", metavar="BROKER", help="make the topic's queue on this broker the ledger")
@yes_option
def ledger(
    link: Link,
    ledger: str,
    ledger_broker: str | None,
    ledger_queue: int | None,
    broker: str | None,
    as_json: bool,
    yes: bool,
) -> int:
    """Show where the ledger of exactly-once writes is: the entry of each name server, and the topic's queues.

    All must name the same broker and id. Exit status 1 if they do not.

    --ledger-broker is for writes with this option, whose ledger needs no entries: then it shows the entries that there
    are, the used queues, and the given one. Exit status 1 if they do not agree, or if the given queue does not exist.

    --replace is for a ledger whose broker is permanently lost: it creates the topic on BROKER if it is missing there
    and sets the entries. Decisions of the lost ledger are unknown then: a micro-batch that was decided but that Spark
    has not recorded as complete is written again. Stop the queries first, and compare the last micro-batch of each
    with its target topics.
    """
    from spark_rocket.client import Producer
    from spark_rocket.datasource.exactly_once.replace import given_evidence, is_clear, ledger_evidence, replace_ledger

    exclusive({"--ledger-broker": ledger_broker, "--replace": broker})
    link, namespace = link.with_full_names()
    ledger = namespace.wrap(ledger)
    place = ledger_queue_of(ledger, ledger_broker, ledger_queue)
    with link.admin() as admin, link.reader() as reader:
        if broker is not None:
            question = f"Make {ledger} on broker {broker} the ledger? The decisions of another one are not known then."
            show.confirm(question, yes)
            with Producer("rocket_ledger", **link.options(), member=False) as producer:
                replace_ledger(admin, reader, producer, ledger, broker)
        found = ledger_evidence(admin, reader, ledger) if place is None else given_evidence(admin, reader, place)
    columns = (Column("source"), Column("broker"), Column("ledger", "LEDGER ID"))
    show.rows([camel(asdict(each)) for each in found], columns, as_json, empty="No name server responds.")
    return 0 if is_clear(found) else 1
