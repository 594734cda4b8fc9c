"""``rocket namesrv config`` and ``kv``: settings of running name servers, and the key-value entries that they keep.

Exit status: 0 done, 1 it could not be done (``kv get``: there is none), 2 the command line is wrong.
Corresponds to mqadmin's getNamesrvConfig, updateNamesrvConfig, updateKvConfig, deleteKvConfig.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import json_option, settings, yes_option
from spark_rocket.cli.commands.connect import Link, connection
from spark_rocket.cli.servers.broker import change_settings, show_settings
from spark_rocket.cli.show import Column
from spark_rocket.errors import ClientError

if TYPE_CHECKING:
    from spark_rocket.client import Admin


@click.command()
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]…")
@connection
@click.option("--like", metavar="TEXT", help="only settings with this in their name")
@yes_option
@json_option
def config(link: Link, changes: tuple[str, ...], like: str | None, yes: bool, as_json: bool) -> int:
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


@kv.command(short_help="one entry")
@_namespace
@_key
@connection
@json_option
def get(link: Link, namespace: str, key: str, as_json: bool) -> None:
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


@kv.command(short_help="delete an entry")
@_namespace
@_key
@connection
@yes_option
def delete(link: Link, namespace: str, key: str, yes: bool) -> int:
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
