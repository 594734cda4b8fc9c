"""``rocket cluster …``: the brokers of a cluster with their state, and connected producers.

Exit status: 0 success, 1 failure or an unavailable broker, 2 invalid command line.
Corresponds to mqadmin's clusterList, producer and producerConnection.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import json_option, watch_option
from spark_rocket.cli.connect import Link, cluster_option, connection
from spark_rocket.cli.show import Column, Table
from spark_rocket.cli.text import camel, percent_text
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.attributes import pick
from spark_rocket.common.system import now_ms
from spark_rocket.common.units import count_text, duration_text, second_text

if TYPE_CHECKING:
    from spark_rocket.client.admin import BrokerStatus

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
MEMBER = "client_id address language version brokers last_heartbeat_ms"
_MEMBER_COLUMNS = (
    Column("group"),
    Column("clientId", "CLIENT"),
    Column("address"),
    Column("language"),
    Column("version"),
    Column("lastHeartbeatMs", "LAST HEARTBEAT", form=second_text, right=False, spare=True),
    Column("brokers", spare=True),
)


@click.group(cls=VerbGroup)
def cluster() -> None:
    """Show the brokers of a cluster with their state, and connected producers."""


@cluster.command("list", short_help="list brokers with rates and disk usage")
@connection
@cluster_option
@json_option
@watch_option
def list_brokers(link: Link, cluster_name: str | None, as_json: bool, watch: float | None) -> int:
    """List masters (id 0) and slaves with messages per second and disk usage.

    Exit status 1 if a broker does not respond.
    """
    unavailable = 0
    with link.admin() as admin:

        def fetch() -> tuple[object, Table]:
            nonlocal unavailable
            brokers = admin.brokers(cluster=cluster_name)
            rows = [_row(broker) for broker in brokers]
            errors = [f"{broker.name} ({broker.broker_id}): {broker.error}" for broker in brokers if broker.error]
            unavailable = len(errors)
            table = Table(
                rows,
                _COLUMNS,
                foot="\n".join(errors),
                empty="No broker is registered with the name server.",
                marked=lambda row: row["error"] is not None,
            )
            return rows, table

        show.show_table(fetch, watch, as_json)
    return 1 if unavailable else 0


def _row(broker: BrokerStatus) -> dict[str, Any]:
    row = pick(broker, "cluster brokerName=name broker_id address error")
    if (runtime := broker.runtime) is not None:
        now = now_ms()
        row |= camel({name: value for name, value in asdict(runtime).items() if name != "raw"})
        row |= pick(runtime, "commit_log_bytes")
        row["upMs"] = max(now - runtime.started_ms, 0) if runtime.started_ms else None
    return row


@cluster.command(short_help="list connected producers")
@click.argument("group", required=False)
@connection
@json_option
def producers(link: Link, group: str | None, as_json: bool) -> None:
    """List connected producers of GROUP, or of all groups (brokers of 5.x report all groups)."""
    with link.partial() as (admin, failed):
        if group is not None:
            found = {group: admin.producers(group, failed=failed)}
        else:
            found = admin.producer_groups(failed=failed)
        rows = [{"group": name, **pick(member, MEMBER)} for name, members in found.items() for member in members]
        empty = "No producer is connected." if not failed else "The available brokers have no producers."
        show.rows(rows, _MEMBER_COLUMNS, as_json, empty=empty)
