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

import argparse
import sys
import time
from typing import TYPE_CHECKING

from spark_rocket.errors import BrokerError

if TYPE_CHECKING:
    from spark_rocket.client import Admin

_POLL_SECONDS = 1.0
_ROUTE_SECONDS = 35  # producers ask for routes every 30 s


def add_drain(broker: argparse.ArgumentParser) -> None:
    """Add the verbs under ``rocket broker``."""
    actions = broker.add_subparsers(title="commands, for a broker that runs", metavar="COMMAND")
    text = "have a broker get no more messages, and say when it can be stopped"
    drain = actions.add_parser("drain", help=text, description=f"{text[0].upper()}{text[1:]}.")
    _add_common(drain)
    drain.add_argument("--yes", action="store_true", help="do not ask")
    drain.add_argument(
        "--quiet",
        type=_seconds,
        default=_ROUTE_SECONDS,
        metavar="SECONDS",
        help=f"so long no message must have come ({_ROUTE_SECONDS}: producers look for new routes every 30)",
    )
    drain.add_argument("--timeout", type=_seconds, default=600, metavar="SECONDS", help="give up after that (600)")
    drain.set_defaults(run=_drain)
    text = "give a drained broker its messages back"
    undrain = actions.add_parser("undrain", help=text, description=f"{text[0].upper()}{text[1:]}.")
    _add_common(undrain)
    undrain.set_defaults(run=_undrain)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broker-name", required=True, metavar="NAME", help="brokerName, as broker-a")
    # An argument of the verb above it too, whose value this one's default would replace.
    parser.add_argument(
        "-n", "--nameserver", metavar="ADDR", default=argparse.SUPPRESS, help="host:port, several with ';' between"
    )


def _drain(options: argparse.Namespace) -> int:
    from spark_rocket.client import Admin

    name = options.broker_name
    with Admin(options.nameserver) as admin:
        brokers = admin.cluster_info().broker_addr_table
        if name not in brokers:
            raise BrokerError(
                f"The name server knows no broker {name!r}.", remedy=f"It knows {', '.join(sorted(brokers)) or 'none'}."
            )
        others = sorted(other for other in brokers if other != name)
        if not others:
            print(f"{name} is the only broker: while it is drained nothing can be sent.")
        if not options.yes and not _agreed(f"No more messages to {name}? [y/N] "):
            print("Nothing was changed.")
            return 1
        topics = admin.wipe_write_perm(name)
        print(f"{name} is to get no more messages of its {topics} topics. Waiting until none has come for "
              f"{options.quiet:g} s.")  # fmt: skip
        sys.stdout.flush()
        if not _wait_until_quiet(admin, name, options.quiet, options.timeout):
            print(
                f"Messages still come to {name} after {options.timeout:g} s: from producers that do not ask for routes,"
                " or as delayed messages become due. It is left drained; `rocket broker undrain` takes that back."
            )
            return 1
    print(f"No message has come for {options.quiet:g} s: {name} can be stopped. It is as before once it is started "
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


def _undrain(options: argparse.Namespace) -> int:
    from spark_rocket.client import Admin

    with Admin(options.nameserver) as admin:
        topics = admin.add_write_perm(options.broker_name)
    if not topics:
        raise BrokerError(f"The name server knows no topics of a broker {options.broker_name!r}.")
    print(f"{options.broker_name} gets messages of its {topics} topics again.")
    return 0


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise BrokerError("Nobody is there to be asked.", remedy="Give --yes.")
    return input(question).strip().lower() in ("y", "yes")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return seconds
