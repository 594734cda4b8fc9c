"""``rocket doctor``: check the requirements of a pipeline, on this machine and on Spark's executors.

It checks Java, Spark and Python on this machine, the Python of Spark's workers, the name server, and the addresses that
brokers advertise. ``--topic`` reads it as a pipeline does, ``--write`` sends a message to a topic. ``--grpc`` adds
a gRPC endpoint, ``--exactly-once`` takes the steps of that sink. ``--master`` or ``--remote`` starts a small job
that repeats the checks on the executors. Each line is a finding, with the remedy below it if there is a problem.

Exit status: 0 no problem, 1 the checks themselves failed, 2 invalid command line, 3 at least one problem was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import exclusive, ledger_place_options, ledger_queue_of
from spark_rocket.cli.commands.doctor_finding import Finding, guarded
from spark_rocket.cli.commands.doctor_grpc import check_grpc
from spark_rocket.cli.commands.doctor_machine import (
    check_executors,
    check_java,
    check_module,
    check_python,
    check_workers_python,
)
from spark_rocket.cli.commands.doctor_pipeline import check_read, check_write
from spark_rocket.cli.commands.doctor_servers import check_servers
from spark_rocket.cli.commands.doctor_sink import SinkNames, check_exactly_once
from spark_rocket.cli.connect import Link, complete_groups, complete_topics, connection
from spark_rocket.cli.text import escape_controls
from spark_rocket.model import READER_GROUP

PROBLEM_FOUND = 3
"""Exit status if there is a problem."""
_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}


@click.command()
@connection
@click.option(
    "-t", "--topic", metavar="TOPIC", shell_complete=complete_topics, help="read this topic as a pipeline does"
)
@click.option(
    "-g",
    "--group",
    default=READER_GROUP,
    metavar="GROUP",
    shell_complete=complete_groups,
    help="consumerGroup of reads",
)
@click.option("--write", metavar="TOPIC", shell_complete=complete_topics, help="send one message to this topic")
@click.option("--grpc", metavar="HOST:PORT", help="check this gRPC endpoint (rocket proxy)")
@click.option("--exactly-once", is_flag=True, help="take the steps of a write with deliveryGuarantee=exactlyOnce")
@click.option(
    "--staging-topic", default="ROCKET_SINK_STAGING", metavar="TOPIC", help="with --exactly-once: stagingTopic"
)
@click.option("--ledger-topic", default="ROCKET_SINK_LEDGER", metavar="TOPIC", help="with --exactly-once: ledgerTopic")
@click.option("--ledger-group", default="ROCKET_SINK_LEDGER", metavar="GROUP", help="with --exactly-once: ledgerGroup")
@ledger_place_options
@click.option("--master", metavar="URL", help="check the executors of this Spark: local[2], spark://host:7077, yarn")
@click.option("--remote", metavar="URL", help="check executors through Spark Connect: sc://host:15002")
@click.option("--py-files", metavar="FILES", help="with --master: files to ship with the job")
@click.option("--json", "as_json", is_flag=True, help="print one finding per line as JSON")
def doctor(
    link: Link,
    topic: str | None,
    group: str,
    write: str | None,
    grpc: str | None,
    exactly_once: bool,
    staging_topic: str,
    ledger_topic: str,
    ledger_group: str,
    ledger_broker: str | None,
    ledger_queue: int | None,
    master: str | None,
    remote: str | None,
    py_files: str | None,
    as_json: bool,
) -> int:
    """Check the requirements of a pipeline: Java, Spark and Python, name server and brokers.

    --topic asks for the ends of its queues and pulls one message from each broker as the group; nothing is consumed.
    --write sends one message to the topic that you give. A problem names the missing permission, topic or group,
    the account, and the commands that create it. The exit status is 3 if there is a problem.

    The checks run on this machine, and with --master or --remote on the executors too. --grpc adds the endpoint
    of RocketMQ 5 clients, with the same TLS options and account.

    --exactly-once takes the steps of the exactly-once sink up to the entry of its ledger, and undoes them; with --write
    those on that topic too. It checks that each broker acknowledges only durable messages and retains them long
    enough, and that the ledger topic has one queue. With --topic, it checks only the brokers of that topic, the
    staging topic and the ledger topic. With --ledger-broker, no entry is written and no topic is created, as with this
    option of a write. Where the given queue was never used, nothing is sent either: the first query begins the ledger.
    """
    exclusive({"--master": master, "--remote": remote})
    wrong = warnings = 0
    link, namespace = link.with_full_names()  # findings have the names that accounts and mqadmin need
    topic, write = topic and namespace.wrap(topic), write and namespace.wrap(write)
    group, staging_topic, ledger_topic = map(namespace.wrap, (group, staging_topic, ledger_topic))
    spark = {"master": master, "remote": remote, "py_files": py_files}
    place = ledger_queue_of(ledger_topic, ledger_broker, ledger_queue)
    sink = SinkNames(staging_topic, ledger_topic, ledger_group, place) if exactly_once else None
    for finding in _findings(link, topic, group, write, grpc, sink, spark):
        wrong += finding.grade == "wrong"
        warnings += finding.grade == "warning"
        if as_json:
            show.line(asdict(finding))
            continue
        grade = show.coloured(f"{finding.grade:>7}", _COLOURS[finding.grade])
        print(f"{grade}  {finding.about}: {escape_controls(finding.text)}", flush=True)
        if finding.remedy:
            print(f"         {finding.remedy}")
    if not as_json:
        print(f"\n{_summary(wrong, warnings)}")
    return PROBLEM_FOUND if wrong else 0


def _summary(wrong: int, warnings: int) -> str:
    counts = [(wrong, "problem"), (warnings, "warning")]
    found = [f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count]
    return f"{', '.join(found)} found" if found else "no problems found"


def _findings(
    link: Link,
    topic: str | None,
    group: str,
    write: str | None,
    grpc: str | None,
    sink: SinkNames | None,
    spark: dict[str, str | None],
) -> Iterator[Finding]:
    yield from check_python()
    yield check_java()
    yield check_module()
    yield check_workers_python()
    addresses: list[str] = []
    yield from guarded("name server", check_servers(link, addresses.append))
    if topic is not None:
        yield from guarded(f"topic {topic}", check_read(link, topic, group))
    if write is not None:
        yield from guarded(f"send to {write}", check_write(link, write, group))
    if grpc is not None:
        yield from check_grpc(link, grpc, topic)
    if sink is not None:
        yield from guarded("exactly once", check_exactly_once(link, topic, write, sink))
    if spark["master"] or spark["remote"]:
        from spark_rocket.datasource.executors import Reading, ask_executors

        targets = [link.addresses().target(address) for address in addresses]
        reading = None if topic is None else Reading(topic, group, link.options())
        yield from check_executors(lambda: ask_executors(targets, reading, **spark))
