"""Commands for running servers: ``rocket broker config``, ``drain`` and others, ``rocket namesrv config`` and ``kv``.

``BROKER`` is its name, or its address for one that is no master.

Exit status: 0 done, 1 it could not be done (``drain``: messages still come; ``kv get``: no entry), 2 the command
line is wrong.
Corresponds to mqadmin's getBrokerConfig, updateBrokerConfig, brokerStatus, haStatus, cleanExpiredCQ,
deleteExpiredCommitLog, cleanUnusedTopic, wipeWritePerm, addWritePerm, getNamesrvConfig, updateNamesrvConfig,
updateKvConfig, deleteKvConfig.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import exclusive, json_option, seconds, settings, yes_option
from spark_rocket.cli.connect import Link, complete_brokers, connection, connection_but_timeout
from spark_rocket.cli.show import Column
from spark_rocket.cli.text import camel, count_text, duration_text, percent_text, second_text, size_text
from spark_rocket.errors import BrokerError, ClientError, RocketError

if TYPE_CHECKING:
    from spark_rocket.client import Admin

broker_argument = click.argument("broker", shell_complete=complete_brokers)
_CHANGES = (Column("name", "SETTING"), Column("from", "NOW"), Column("to", "THEN"))


@click.command()
@broker_argument
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]…")
@connection
@click.option("--like", metavar="TEXT", help="only settings with this in their name")
@yes_option
@json_option
def config(link: Link, broker: str, changes: tuple[str, ...], like: str | None, yes: bool, as_json: bool) -> int:
    """Show the settings of a running broker, or set NAME=VALUE after showing what changes.

    The broker says which settings it takes while it runs, and writes them to the broker.conf that it was started with.
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
        print(f"No setting has {like} in its name.")


def change_settings(
    what: str,
    known: dict[str, str],
    wanted: dict[str, str],
    yes: bool,
    change: Callable[[], str | None],
    look: Callable[[], dict[str, str]],
) -> int:
    """Show what changes, ask, do it, and see what came of it: servers pass over in silence what they do not know."""
    rows = [{"name": name, "from": known.get(name), "to": value} for name, value in sorted(wanted.items())]
    show.table(rows, _CHANGES)
    if all(row["from"] == row["to"] for row in rows):
        print("That is how it is.")
        return 0
    for name in sorted(wanted.keys() - known.keys()):
        near = get_close_matches(name, known, 2)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        print(f"{name} is not among the settings that it shows.{meant}")
    if not show.confirm(f"Set that of {what}?", yes):
        return 1
    remark = change()
    unknown = sorted(wanted.keys() - look().keys())
    if unknown:
        others = " The others are set." if len(unknown) < len(wanted) else ""
        raise ClientError(
            f"Nothing came of {', '.join(unknown)}: there is no such setting of {what}.{others}",
            remedy="Without NAME=VALUE the same command shows those there are.",
        )
    print(f"{'It is' if len(rows) == 1 else 'They are'} set.")
    if remark:
        print(f"rocket: {what}: {remark}", file=sys.stderr)
    return 1 if remark and wanted.keys() - known.keys() else 0


@click.command()
@broker_argument
@connection
@click.option("--raw", is_flag=True, help="all of it, under the names that it has on the wire")
@json_option
def runtime(link: Link, broker: str, raw: bool, as_json: bool) -> None:
    """Show what a running broker says about itself: version, rates, disk, waiting requests."""
    with link.admin() as admin:
        found = admin.broker_runtime(broker)
    if raw:
        show_settings(found.raw, None, as_json)
        return
    if as_json:
        values = asdict(found)
        show.document({**camel({k: v for k, v in values.items() if k != "raw"}), "raw": found.raw})
        return
    now = int(time.time() * 1000)
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
            "sends waiting": f"{found.send_queue_size}, the first for {found.send_wait_ms} ms",
            "pulls waiting": f"{found.pull_queue_size}, the first for {found.pull_wait_ms} ms",
        },
        broker,
    )


def _rates(now: float, minute: float, ten: float) -> str:
    return f"{now:,.1f}/s, {minute:,.1f} over a minute, {ten:,.1f} over ten"


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
    """Show replication as a broker sees it: a master its slaves, a slave (by its address) itself."""
    with link.admin() as admin:
        found = admin.ha_status(broker)
    rows = [camel(asdict(slave)) for slave in found.ha_connection_info]
    itself = camel(asdict(found.ha_client_runtime_info))
    if as_json:
        whole = {"master": found.master, "masterCommitLogMaxOffset": found.master_commit_log_max_offset}
        show.document(whole | {"inSyncSlaveNums": found.in_sync_slave_nums, "slaves": rows, "asSlave": itself})
    elif found.master:
        end = f"Its log ends at {found.master_commit_log_max_offset:,}."
        show.table(rows, _SLAVES, title=f"{broker} is a master.", foot=end, empty="It has no slave now.")
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
    """Show how many messages wait for their delivery time, by topic."""
    with link.admin() as admin:
        found = admin.timer_metrics(broker)
    rows = [{"topic": topic, "count": count} for topic, count in found.items()]
    columns = (Column("topic"), Column("count", "MESSAGES", form=count_text, right=True))
    show.rows(rows, columns, as_json, empty="No message waits for its time.")


_CLEAN = {
    "log": "delete files of the commit log that are past their time, not at the hour set for it",
    "queues": "delete files of consume queues whose messages are gone",
    "topics": "delete the queues of topics that the broker does not know any more",
}


@click.command()
@broker_argument
@click.argument("what", type=click.Choice(list(_CLEAN)))
@connection
@yes_option
def clean(link: Link, broker: str, what: str, yes: bool) -> int:
    """Have a broker delete files now, which it does by itself once a day or never.

    \b
    log     files of the commit log that are past their time
    queues  files of consume queues whose messages are gone
    topics  the queues of topics that the broker does not know any more
    """
    if not show.confirm(f"Have {broker} {_CLEAN[what]}?", yes):
        return 1
    with link.admin() as admin:
        doing = {
            "log": admin.delete_expired_commit_log,
            "queues": admin.clean_expired_queues,
            "topics": admin.clean_unused_topics,
        }
        doing[what](broker)
    print(f"{broker} has been told.")
    return 0


# --- drain -----------------------------------------------------------------------------------------------------------

# A drained broker's topics have no write permission at any name server (code 205). Producers see that when they ask for
# routes again, every 30 s at most, and send to other brokers; consumers go on reading. A broker that tells name servers
# of a changed topic gives itself the permission back, so it is taken again and again while the verb waits. Nothing of
# this outlives a restart of the broker: it comes back with its permission, and so does ``undrain`` (327) without one.

_POLL_SECONDS = 1.0
_ROUTE_SECONDS = 35  # producers ask for routes every 30 s


def _broker_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """BROKER, or ``--broker-name BROKER``: handed on as ``broker_name``."""

    @click.argument("broker", required=False, shell_complete=complete_brokers)
    @click.option("--broker-name", metavar="NAME", shell_complete=complete_brokers, help="instead of BROKER")
    @functools.wraps(function)
    def with_name(broker: str | None, broker_name: str | None, **values: Any) -> Any:
        exclusive({"BROKER": broker, "--broker-name": broker_name}, required=True)
        return function(broker_name=broker or broker_name, **values)

    return with_name


@click.command()
@_broker_name
@connection_but_timeout
@yes_option
@click.option(
    "--quiet",
    type=seconds,
    default=str(_ROUTE_SECONDS),
    metavar="SECONDS",
    help=f"so long no message must have come ({_ROUTE_SECONDS}: producers look for new routes every 30)",
)
@click.option("--timeout", "patience", type=seconds, default="600", metavar="SECONDS", help="give up after that (600)")
def drain(link: Link, broker_name: str, yes: bool, quiet: float, patience: float) -> int:
    """Have a broker get no more messages, and say when it can be stopped."""
    with link.admin() as admin:
        brokers = admin.cluster_info().broker_addr_table
        if broker_name not in brokers:
            raise BrokerError(
                f"The name server knows no broker {broker_name!r}.",
                remedy=f"It knows {', '.join(sorted(brokers)) or 'none'}.",
            )
        if not brokers.keys() - {broker_name}:
            print(f"{broker_name} is the only broker: while it is drained nothing can be sent.")
        if not show.confirm(f"No more messages to {broker_name}?", yes):
            return 1
        topics = admin.wipe_write_perm(broker_name)
        print(
            f"{broker_name} is to get no more messages of its {topics} topics. Waiting until none has come for "
            f"{quiet:g} s.",
            flush=True,
        )
        try:
            is_quiet = _wait_until_quiet(admin, broker_name, quiet, patience)
        except (KeyboardInterrupt, RocketError) as error:
            print(f"It is left drained; `rocket broker undrain {broker_name}` takes that back.", flush=True)
            if isinstance(error, RocketError):
                raise
            return 1
        if not is_quiet:
            print(
                f"Messages still come to {broker_name} after {patience:g} s: from producers that do not ask for "
                "routes, or as delayed messages become due. It is left drained; `rocket broker undrain` takes that "
                "back."
            )
            return 1
    print(f"No message has come for {quiet:g} s: {broker_name} can be stopped. It is as before once it is started "
          "again.")  # fmt: skip
    return 0


def _wait_until_quiet(admin: Admin, name: str, quiet: float, timeout: float) -> bool:
    began = since = time.monotonic()
    count: str | None = None
    while True:
        now_there = admin.runtime_info(name).get("msgPutTotalTodayNow", "")
        now = time.monotonic()
        if now_there != count:
            count, since = now_there, now
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
    """Give a drained broker its messages back."""
    with link.admin() as admin:
        topics = admin.add_write_perm(broker_name)
    if not topics:
        raise BrokerError(f"The name server knows no topics of a broker {broker_name!r}.")
    print(f"{broker_name} gets messages of its {topics} topics again.")


# --- name servers ----------------------------------------------------------------------------------------------------


@click.command("config")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]…")
@connection
@click.option("--like", metavar="TEXT", help="only settings with this in their name")
@yes_option
@json_option
def name_server_config(link: Link, changes: tuple[str, ...], like: str | None, yes: bool, as_json: bool) -> int:
    """Show the settings of the running name servers, or set NAME=VALUE at all of them after showing what changes."""
    wanted = settings(changes)
    with link.admin() as admin:
        known = admin.name_server_configs()
        if wanted:
            first = next(iter(known.values()), {})
            names = f"name server {', '.join(known)}"
            return change_settings(
                names,
                first,
                wanted,
                yes,
                lambda: admin.update_name_server_config(wanted),
                lambda: next(iter(admin.name_server_configs().values()), {}),
            )
    if as_json:
        show.document(known)
        return 0
    for i, (address, found) in enumerate(known.items()):
        if len(known) > 1:
            print(f"{chr(10) * (i > 0)}{address}")
        show_settings(found, like, False)
    return 0


@click.group()
def kv() -> None:
    """See and change the key-value entries that name servers keep, as ORDER_TOPIC_CONFIG."""


_namespace = click.argument("namespace")
_key = click.argument("key")


@kv.command("list", short_help="the entries of a namespace")
@_namespace
@connection
@json_option
def list_entries(link: Link, namespace: str, as_json: bool) -> None:
    """List the entries of NAMESPACE."""
    with link.admin() as admin:
        found = admin.kv_configs(namespace)
    rows = [{"key": key, "value": value} for key, value in sorted(found.items())]
    show.rows(rows, (Column("key"), Column("value")), as_json, empty=f"There are no entries in {namespace}.")


@kv.command("get", short_help="one entry")
@_namespace
@_key
@connection
@json_option
def get_entry(link: Link, namespace: str, key: str, as_json: bool) -> None:
    """Print the value of KEY in NAMESPACE."""
    with link.admin() as admin:
        value = _entry(admin, namespace, key)
    if as_json:
        show.document({"namespace": namespace, "key": key, "value": value})
    else:
        print(value)


@kv.command("set", short_help="make an entry, or replace it")
@_namespace
@_key
@click.argument("value")
@connection
def set_entry(link: Link, namespace: str, key: str, value: str) -> None:
    """Set KEY in NAMESPACE to VALUE at every name server."""
    with link.admin() as admin:
        admin.put_kv_config(namespace, key, value)
    print(f"{namespace}/{key} is {value}.")


@kv.command("delete", short_help="delete an entry")
@_namespace
@_key
@connection
@yes_option
def delete_entry(link: Link, namespace: str, key: str, yes: bool) -> int:
    """Delete KEY from NAMESPACE at every name server."""
    with link.admin() as admin:
        print(f"{namespace}/{key} is {_entry(admin, namespace, key)}.")
        if not show.confirm("Delete it?", yes):
            return 1
        admin.delete_kv_config(namespace, key)
    print("It is deleted.")
    return 0


def _entry(admin: Admin, namespace: str, key: str) -> str:
    value = admin.get_kv_config(namespace, key)
    if value is None:
        raise ClientError(f"There is no entry {key} in {namespace}.", remedy="`rocket namesrv kv list` shows them.")
    return value
