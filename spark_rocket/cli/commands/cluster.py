"""``rocket cluster …``: the brokers of a cluster and what they do, and the producers that are connected.

Exit status: 0 done, 1 it could not be done or a broker does not answer, 2 the command line is wrong.
Corresponds to mqadmin's clusterList, producer and producerConnection.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import json_option, watch_option
from spark_rocket.cli.connect import Link, cluster_option, connection
from spark_rocket.cli.show import Column, Table
from spark_rocket.cli.text import camel, count_text, duration_text, percent_text, second_text

if TYPE_CHECKING:
    from spark_rocket.client.admin import BrokerStatus, Failures

_COLUMNS = (
    Column("cluster", spare=True),
    Column("brokerName", "BROKER"),
    Column("brokerId", "ID"),
    Column("address"),
    Column("version", spare=True),
    Column("putTps", "IN/s"),
    Column("getTps", "OUT/s"),
    Column("diskRatio", "DISK", form=percent_text, right=True),
    Column("putToday", "IN TODAY", form=count_text, spare=True),
    Column("getToday", "OUT TODAY", form=count_text, spare=True),
    Column("upMs", "UP", form=duration_text, right=True, spare=True),
    Column("earliestMessageMs", "OLDEST MESSAGE", form=second_text, right=False, spare=True),
)
_MEMBER_COLUMNS = (
    Column("group"),
    Column("clientId", "CLIENT"),
    Column("address"),
    Column("language"),
    Column("version"),
    Column("brokers", spare=True),
)


@click.group()
def cluster() -> None:
    """See the brokers of a cluster and what they do, and the producers that are connected."""


@cluster.command("list", short_help="brokers with their rates and disks")
@connection
@cluster_option
@json_option
@watch_option
def list_brokers(link: Link, cluster_name: str | None, as_json: bool, watch: float | None) -> int:
    """List brokers, masters (id 0) and slaves, with messages per second and how full their disks are.

    Exit status 1 if one of them does not answer.
    """
    silent = 0
    with link.admin() as admin:

        def look() -> tuple[object, Table]:
            nonlocal silent
            brokers = admin.brokers(cluster=cluster_name)
            rows = [_row(broker) for broker in brokers]
            errors = [f"{broker.name} ({broker.broker_id}): {broker.error}" for broker in brokers if broker.error]
            silent = len(errors)
            table = Table(
                rows,
                _COLUMNS,
                foot="\n".join(errors),
                empty="No broker is registered at the name server.",
                marked=lambda row: row["error"] is not None,
            )
            return rows, table

        show.looked(look, watch, as_json)
    return 1 if silent else 0


def _row(broker: BrokerStatus) -> dict[str, Any]:
    row: dict[str, Any] = {
        "cluster": broker.cluster,
        "brokerName": broker.name,
        "brokerId": broker.broker_id,
        "address": broker.address,
        "error": broker.error,
    }
    if broker.runtime is not None:
        runtime = asdict(broker.runtime)
        runtime.pop("raw")
        row |= camel(runtime)
        row["commitLogBytes"] = broker.runtime.commit_log_bytes
        row["upMs"] = max(int(time.time() * 1000) - broker.runtime.started_ms, 0) if broker.runtime.started_ms else None
    return row


@cluster.command(short_help="producers that are connected")
@click.argument("group", required=False)
@connection
@json_option
def producers(link: Link, group: str | None, as_json: bool) -> int:
    """List the producers that are connected, of GROUP or of all groups (brokers of 5.x tell all)."""
    failed: Failures = {}
    with link.admin() as admin:
        if group is not None:
            found = {group: admin.producers(group, failed=failed)}
        else:
            found = admin.producer_groups(failed=failed)
    rows = [{"group": name, **camel(asdict(member))} for name, members in found.items() for member in members]
    nobody = "No producer is connected." if not failed else "No broker knows of any."
    show.rows(rows, _MEMBER_COLUMNS, as_json, empty=nobody)
    return show.failures(failed)
