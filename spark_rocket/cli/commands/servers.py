"""Commands for running servers: ``rocket broker config``, ``drain`` and others, ``rocket namesrv config`` and ``kv``.

``BROKER`` is the name of a broker, or its address, which selects a slave.

Exit status: 0 success, 1 failure (``drain``: messages still arrive; ``kv get``: no entry), 2 invalid command line.
Corresponds to mqadmin's getBrokerConfig, updateBrokerConfig, brokerStatus, haStatus, cleanExpiredCQ,
deleteExpiredCommitLog, cleanUnusedTopic, wipeWritePerm, addWritePerm, getNamesrvConfig, updateNamesrvConfig,
updateKvConfig, deleteKvConfig.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import bundle, exclusive, json_option, seconds, settings, yes_option
from spark_rocket.cli.connect import Link, complete_brokers, connection, connection_but_timeout
from spark_rocket.cli.show import Column
from spark_rocket.cli.text import camel, percent_text, print_problem
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.system import now_ms
from spark_rocket.common.units import count_text, duration_text, second_text, size_text
from spark_rocket.errors import BrokerError, ClientError, RocketError

if TYPE_CHECKING:
    from spark_rocket.client import Admin

broker_argument = click.argument("broker", shell_complete=complete_brokers)
_CHANGES = (Column("name", "SETTING"), Column("from", "NOW"), Column("to", "THEN"))


@click.command()
@broker_argument
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]…")
@connection
@click.option("--like", metavar="TEXT", help="only settings whose name contains TEXT")
@yes_option
@json_option
def config(link: Link, broker: str, changes: tuple[str, ...], like: str | None, yes: bool, as_json: bool) -> int:
    """Show the settings of a running broker, or set NAME=VALUE after showing the changes.

    The broker refuses settings that cannot change at run time, and writes the others to its broker.conf.
    """
    wanted = settings(changes)
    with link.admin() as admin:
        known = admin.broker_config(broker)
        if wanted:
            return change_settings(
                f"broker {broker}",
                known,
                wanted,
                yes,
                lambda: admin.update_broker_config(broker, wanted),
                lambda: admin.broker_config(broker),
            )
    show_settings(known, like, as_json)
    return 0


def show_settings(known: dict[str, str], like: str | None, as_json: bool) -> None:
    shown = {name: known[name] for name in sorted(known) if like is None or like.lower() in name.lower()}
    if as_json:
        show.document(shown)
    elif shown:
        show.record(shown)
    else:
        print(f"No setting contains {like!r} in its name.")


def change_settings(
    what: str,
    known: dict[str, str],
    wanted: dict[str, str],
    yes: bool,
    change: Callable[[], str | None],
    look: Callable[[], dict[str, str]],
) -> int:
    """Show the changes, ask for confirmation, apply them and verify them: servers silently ignore unknown settings."""
    rows = [{"name": name, "from": known.get(name), "to": value} for name, value in sorted(wanted.items())]
    show.table(rows, _CHANGES)
    if all(row["from"] == row["to"] for row in rows):
        print("Already up to date.")
        return 0
    for name in sorted(wanted.keys() - known.keys()):
        near = get_close_matches(name, known, 2)
        suggestion = f" Did you mean {' or '.join(near)}?" if near else ""
        print(f"Unknown setting {name}.{suggestion}")
    show.confirm(f"Apply to {what}?", yes)
    remark = change()
    unknown = sorted(wanted.keys() - look().keys())
    if unknown:
        others = " The other settings were applied." if len(unknown) < len(wanted) else ""
        raise ClientError(
            f"Unknown setting of {what}: {', '.join(unknown)}.{others}",
            remedy="Run the command without NAME=VALUE to list the settings.",
        )
    ignored = len(wanted.keys() - known.keys()) if remark else 0  # a broker of this package stores them
    if applied := len(rows) - ignored:
        print(f"Applied {applied} setting{'s' * (applied != 1)}.")
    if remark:
        print_problem(f"{what}: {remark}")
    return 1 if ignored else 0


@click.command()
@broker_argument
@connection
@click.option("--raw", is_flag=True, help="show all statistics with their names in the protocol")
@json_option
def runtime(link: Link, broker: str, raw: bool, as_json: bool) -> None:
    """Show the statistics of a running broker: version, rates, disk usage, pending requests."""
    with link.admin() as admin:
        found = admin.broker_runtime(broker)
    if raw:
        show_settings(found.raw, None, as_json)
        return
    if as_json:
        values = asdict(found)
        show.document({**camel({k: v for k, v in values.items() if k != "raw"}), "raw": found.raw})
        return
    now = now_ms()
    up = f"{duration_text(max(now - found.started_ms, 0))}, since {second_text(found.started_ms)}"
    show.record(
        {
            "version": found.version,
            "up": up if found.started_ms else None,
            "active": found.active,
            "messages in": _rates(found.put_tps, found.put_tps_1m, found.put_tps_10m),
            "messages out": _rates(found.get_tps, found.get_tps_1m, found.get_tps_10m),
            "in today": f"{count_text(found.put_today)} ({count_text(found.put_yesterday)} yesterday)",
            "out today": f"{count_text(found.get_today)} ({count_text(found.get_yesterday)} yesterday)",
            "commit log": f"{size_text(found.commit_log_bytes)}, offsets {found.commit_log_min_offset:,} to "
            f"{found.commit_log_max_offset:,}",
            "oldest message": second_text(found.earliest_message_ms or 0),
            "disk": None if found.disk_ratio is None else f"{percent_text(found.disk_ratio)} full",
            "not dispatched": size_text(found.dispatch_behind_bytes),
            "pending sends": f"{found.send_queue_size}, the first for {found.send_wait_ms} ms",
            "pending pulls": f"{found.pull_queue_size}, the first for {found.pull_wait_ms} ms",
        },
        broker,
    )


def _rates(now: float, minute: float, ten: float) -> str:
    return f"{now:,.1f}/s, {minute:,.1f} over 1 min, {ten:,.1f} over 10 min"


_SLAVES = (
    Column("addr", "SLAVE"),
    Column("slaveAckOffset", "ACKED"),
    Column("diff", "BEHIND", form=size_text, right=True),
    Column("inSync", "IN SYNC"),
    Column("transferredByteInSecond", "PER SECOND", form=size_text, right=True),
)


@click.command()
@broker_argument
@connection
@json_option
def ha(link: Link, broker: str, as_json: bool) -> None:
    """Show the replication state of a broker: of a master its slaves, of a slave (by its address) its own."""
    with link.admin() as admin:
        found = admin.ha_status(broker)
    rows = [camel(asdict(slave)) for slave in found.ha_connection_info]
    itself = camel(asdict(found.ha_client_runtime_info))
    if as_json:
        whole = {"master": found.master, "masterCommitLogMaxOffset": found.master_commit_log_max_offset}
        show.document(whole | {"inSyncSlaveNums": found.in_sync_slave_nums, "slaves": rows, "asSlave": itself})
    elif found.master:
        end = f"Its log ends at {found.master_commit_log_max_offset:,}."
        show.table(rows, _SLAVES, title=f"{broker} is a master.", foot=end, empty="No slaves connected.")
    else:
        slave = found.ha_client_runtime_info
        values = {
            "master": slave.master_addr,
            "following": slave.activated,
            "log ends at": f"{slave.max_offset:,}",
            "per second": size_text(slave.transferred_byte_in_second),
            "last heard": second_text(slave.last_read_timestamp),
        }
        show.record(values, f"{broker} is a slave.")


@click.command()
@broker_argument
@connection
@json_option
def timers(link: Link, broker: str, as_json: bool) -> None:
    """Show the number of pending delayed messages by topic."""
    with link.admin() as admin:
        found = admin.timer_metrics(broker)
    rows = [{"topic": topic, "count": count} for topic, count in found.items()]
    columns = (Column("topic"), Column("count", "MESSAGES", form=count_text, right=True))
    show.rows(rows, columns, as_json, empty="No pending delayed messages.")


_CLEAN = {
    "log": "expired files of its commit log, without waiting for deleteWhen",
    "queues": "files of consume queues whose messages are deleted",
    "topics": "the queues of deleted topics",
}


@click.command()
@broker_argument
@click.argument("what", type=click.Choice(list(_CLEAN)))
@connection
@yes_option
def clean(link: Link, broker: str, what: str, yes: bool) -> None:
    """Let a broker delete files now instead of at its next cleanup.

    \b
    log     expired files of the commit log
    queues  files of consume queues whose messages are deleted
    topics  the queues of deleted topics
    """
    show.confirm(f"Let {broker} delete {_CLEAN[what]}?", yes)
    with link.admin() as admin:
        doing = {
            "log": admin.delete_expired_commit_log,
            "queues": admin.clean_expired_queues,
            "topics": admin.clean_unused_topics,
        }
        doing[what](broker)
    print(f"Sent the request to {broker}.")


# --- drain -----------------------------------------------------------------------------------------------------------

# A drained broker's topics have no write permission at any name server (code 205). Producers see this when they refresh
# their routes, at most 30 s later, and send to other brokers. Consumers keep reading. A broker that registers a changed
# topic gets the permission back, so the verb removes it repeatedly while it waits. A restart of the broker restores the
# permission, and so does ``undrain`` (327).

_POLL_SECONDS = 1.0
_ROUTE_SECONDS = 35  # producers refresh routes every 30 s


def _name_of(broker: str | None, broker_name: str | None) -> str | None:
    exclusive({"BROKER": broker, "--broker-name": broker_name}, required=True)
    return broker or broker_name


_broker_name = bundle(
    "broker_name",
    _name_of,
    click.argument("broker", required=False, shell_complete=complete_brokers),
    click.option("--broker-name", metavar="NAME", shell_complete=complete_brokers, help="alternative to BROKER"),
)


@click.command()
@_broker_name
@connection_but_timeout
@yes_option
@click.option(
    "--quiet",
    type=seconds,
    default=str(_ROUTE_SECONDS),
    metavar="SECONDS",
    help=f"required time without new messages ({_ROUTE_SECONDS}: producers refresh routes every 30)",
)
@click.option("--timeout", "drain_timeout", type=seconds, default="600", metavar="SECONDS", help="timeout (600)")
def drain(link: Link, broker_name: str, yes: bool, quiet: float, drain_timeout: float) -> int:
    """Stop new messages to a broker, and report when it can be stopped."""
    with link.admin() as admin:
        brokers = admin.cluster_info().broker_addr_table
        if broker_name not in brokers:
            raise BrokerError(
                f"Unknown broker {broker_name!r}.",
                remedy=f"Registered brokers: {', '.join(sorted(brokers)) or 'none'}.",
            )
        if not brokers.keys() - {broker_name}:
            print(f"{broker_name} is the only broker: while it is drained, no messages can be sent.")
        show.confirm(f"Stop new messages to {broker_name}?", yes)
        topics = admin.wipe_write_perm(broker_name)
        print(
            f"Draining {topics} topics of {broker_name}. Waiting for {quiet:g} s without new messages.",
            flush=True,
        )
        try:
            is_quiet = _wait_until_quiet(admin, broker_name, quiet, drain_timeout)
        except (KeyboardInterrupt, RocketError) as error:
            print(f"The broker stays drained; `rocket broker undrain {broker_name}` undoes it.", flush=True)
            if isinstance(error, RocketError):
                raise
            return 1
        if not is_quiet:
            print(
                f"{broker_name} still receives messages after {drain_timeout:g} s: from producers that do not refresh "
                "routes, or from due delayed messages. The broker stays drained; `rocket broker undrain` undoes it."
            )
            return 1
    print(f"No new messages for {quiet:g} s: {broker_name} can be stopped. A restart ends the drained state.")
    return 0


def _wait_until_quiet(admin: Admin, name: str, quiet: float, timeout: float) -> bool:
    began = since = time.monotonic()
    count: str | None = None
    while True:
        total = admin.runtime_info(name).get("msgPutTotalTodayNow", "")
        now = time.monotonic()
        if total != count:
            count, since = total, now
        elif now - since >= quiet:
            return True
        if now - began >= timeout:
            return False
        time.sleep(min(_POLL_SECONDS, quiet / 4))
        admin.wipe_write_perm(name)


@click.command()
@_broker_name
@connection
def undrain(link: Link, broker_name: str) -> None:
    """Let a drained broker receive messages again."""
    with link.admin() as admin:
        topics = admin.add_write_perm(broker_name)
    if not topics:
        raise BrokerError(f"The name server has no topics of broker {broker_name!r}.")
    print(f"{broker_name} receives messages of its {topics} topics again.")


# --- name servers ----------------------------------------------------------------------------------------------------


@click.command("config")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]…")
@connection
@click.option("--like", metavar="TEXT", help="only settings whose name contains TEXT")
@yes_option
@json_option
def name_server_config(link: Link, changes: tuple[str, ...], like: str | None, yes: bool, as_json: bool) -> int:
    """Show the settings of the running name servers, or set NAME=VALUE at all of them after showing the changes."""
    wanted = settings(changes)
    with link.admin() as admin:
        known = admin.name_server_configs()
        if wanted:
            return change_settings(
                f"name server {', '.join(known)}",
                _of_all(known),
                wanted,
                yes,
                lambda: admin.update_name_server_config(wanted),
                lambda: _of_all(admin.name_server_configs()),
            )
    if as_json:
        show.document(known)
        return 0
    for i, (address, found) in enumerate(known.items()):
        if len(known) > 1:
            print(f"{chr(10) * (i > 0)}{address}")
        show_settings(found, like, False)
    return 0


def _of_all(servers: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the settings that all name servers have. Where they differ, the value lists theirs: ``true, false``."""
    every = list(servers.values())
    names = set(every[0]).intersection(*every[1:])
    return {name: ", ".join(dict.fromkeys(each[name] for each in every)) for name in names}


@click.group(cls=VerbGroup)
def kv() -> None:
    """Show and change key-value entries of name servers, such as ORDER_TOPIC_CONFIG."""


_namespace = click.argument("namespace")
_key = click.argument("key")


@kv.command("list", short_help="list the entries of a namespace")
@_namespace
@connection
@json_option
def list_entries(link: Link, namespace: str, as_json: bool) -> None:
    """List the entries of NAMESPACE."""
    with link.admin() as admin:
        found = admin.kv_configs(namespace)
    rows = [{"key": key, "value": value} for key, value in sorted(found.items())]
    show.rows(rows, (Column("key"), Column("value")), as_json, empty=f"No entries in {namespace}.")


@kv.command("get", short_help="print an entry")
@_namespace
@_key
@connection
@json_option
def get_entry(link: Link, namespace: str, key: str, as_json: bool) -> None:
    """Print the value of KEY in NAMESPACE."""
    with link.admin() as admin:
        value = admin.get_kv_config(namespace, key)
    if value is None:
        raise _no_entry(namespace, key)
    if as_json:
        show.document({"namespace": namespace, "key": key, "value": value})
    else:
        print(value)


@kv.command("set", short_help="create or replace an entry")
@_namespace
@_key
@click.argument("value")
@connection
def set_entry(link: Link, namespace: str, key: str, value: str) -> None:
    """Set KEY in NAMESPACE to VALUE at every name server."""
    with link.admin() as admin:
        admin.put_kv_config(namespace, key, value)
    print(f"Set {namespace}/{key} to {value}.")


@kv.command("delete", short_help="delete an entry")
@_namespace
@_key
@connection
@yes_option
def delete_entry(link: Link, namespace: str, key: str, yes: bool) -> None:
    """Delete KEY from NAMESPACE at every name server."""
    with link.admin() as admin:
        values = sorted({*admin.kv_config_of_each(namespace, key).values()})
        if not values:
            raise _no_entry(namespace, key)
        print(f"{namespace}/{key} is {', '.join(values)}.")
        show.confirm("Delete it?", yes)
        admin.delete_kv_config(namespace, key)
    print("Deleted.")


def _no_entry(namespace: str, key: str) -> ClientError:
    return ClientError(
        f"No entry {key!r} in {namespace}.", remedy=f"`rocket namesrv kv list {namespace}` shows the entries."
    )
