"""``rocket broker drain`` and ``undrain``: a broker that takes no more messages, so that it can be stopped unnoticed.

``drain`` wipes the write permission of the broker's topics at every name server (code 205). Producers see that when
they ask for routes again, every 30 s at most, and send to other brokers; consumers go on reading. The verb waits until
no message has come for a while, and then says that the broker can be stopped. A broker that tells name servers of a
changed topic gives itself the permission back, so it is wiped again and again meanwhile. Nothing of this outlives a
restart of the broker: it comes back with its permission, and so does ``undrain`` (327) without one.

Exit status: 0 it can be stopped, 1 it could not be done, or messages still come.
Corresponds to mqadmin's wipeWritePerm and addWritePerm.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import exclusive, seconds, yes_option
from spark_rocket.cli.commands.connect import Link, complete_brokers, connection, connection_but_timeout
from spark_rocket.errors import BrokerError, RocketError

if TYPE_CHECKING:
    from spark_rocket.client import Admin

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
