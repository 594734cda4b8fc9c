"""``rocket doctor``: is everything there that a pipeline needs, seen from here and from Spark's executors?

It looks at Java, Spark and Python here, at the Python that workers will run, at the name server and at the addresses
that brokers advertise, with ``--grpc`` at a gRPC endpoint (``doctor_grpc``); with ``--master`` or ``--remote`` it
starts a small job that looks again from where the executors are. Each line says what was found, and below those that
are wrong, what to change.

Exit status: 0 nothing is wrong, 1 something is. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import exclusive
from spark_rocket.cli.commands.connect import Link, complete_topics, connection
from spark_rocket.cli.commands.doctor_checks import (
    Finding,
    check_executors,
    check_java,
    check_module,
    check_python,
    check_servers,
    check_workers_python,
)

_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}


@click.command()
@connection
@click.option("-t", "--topic", metavar="TOPIC", shell_complete=complete_topics, help="a topic that should be there")
@click.option("--grpc", metavar="HOST:PORT", help="a gRPC endpoint (rocket proxy) that should be there")
@click.option("--master", metavar="URL", help="ask this Spark's executors: local[2], spark://host:7077, yarn")
@click.option("--remote", metavar="URL", help="the same through Spark Connect: sc://host:15002")
@click.option("--py-files", metavar="FILES", help="with --master: what the jobs take along")
@click.option("--json", "as_json", is_flag=True, help="findings as JSON, one a line")
def doctor(
    link: Link,
    topic: str | None,
    grpc: str | None,
    master: str | None,
    remote: str | None,
    py_files: str | None,
    as_json: bool,
) -> int:
    """Check all that a pipeline needs: Java, Spark and Python, name server and brokers.

    Looked at from here, and with --master or --remote from the executors too. With --grpc also the endpoint
    of RocketMQ 5's own clients; --tls and the account are used for it as well.
    """
    exclusive({"--master": master, "--remote": remote})
    wrong = 0
    for finding in _findings(link, topic, grpc, {"master": master, "remote": remote, "py_files": py_files}):
        wrong += finding.grade == "wrong"
        if as_json:
            show.line(asdict(finding))
            continue
        grade = show.coloured(f"{finding.grade:>7}", _COLOURS[finding.grade])
        print(f"{grade}  {finding.about}: {finding.text}", flush=True)
        if finding.remedy:
            print(f"         {finding.remedy}")
    if not as_json:
        print("\nnothing is wrong" if not wrong else f"\n{wrong} thing{'s are' if wrong > 1 else ' is'} wrong")
    return 1 if wrong else 0


def _findings(link: Link, topic: str | None, grpc: str | None, spark: dict[str, str | None]) -> Iterator[Finding]:
    yield from check_python()
    yield check_java()
    yield check_module()
    yield check_workers_python()
    addresses: list[str] = []
    yield from check_servers(link, topic, addresses.append)
    if grpc is not None:
        from spark_rocket.cli.commands.doctor_grpc import check_grpc

        yield from check_grpc(link, grpc, topic)
    if spark["master"] or spark["remote"]:
        from spark_rocket.datasource.executors import ask_executors

        yield from check_executors(lambda: ask_executors(addresses, **spark))
