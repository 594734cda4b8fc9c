"""The ``rocket`` command: its arguments, and what it says when something is wrong.

Exit status: 0 done or stopped on request, 1 it could not be done (one line on stderr says why and what to do), 2 the
command line is wrong (argparse's own). What a verb needs is imported by the verb, so that ``rocket --help`` and a
server's start stay quick: no pyarrow, pandas or pyspark anywhere here.
Corresponds to mqnamesrv, mqbroker and mqadmin.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import spark_rocket
from spark_rocket.cli.doctor import add_doctor
from spark_rocket.cli.drain import add_drain
from spark_rocket.cli.offsets import add_offsets
from spark_rocket.cli.package import add_package
from spark_rocket.cli.store import add_store
from spark_rocket.cli.topic import add_topic
from spark_rocket.errors import RocketError

DEFAULT_DATA = Path("rocket-data")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except RocketError as error:
        print(f"rocket: {error.message} {error.remedy}".rstrip(), file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has had enough; what is left in the buffer must not be tried again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        print(f"rocket: {what}{error.strerror or error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rocket", description="RocketMQ-compatible name server and broker, made for PySpark."
    )
    parser.add_argument("--version", action="version", version=f"spark_rocket {spark_rocket.__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what the servers do, not only what is wrong")
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_up(verbs)
    _add_namesrv(verbs)
    _add_broker(verbs)
    add_store(verbs)
    add_offsets(verbs)
    add_doctor(verbs)
    add_topic(verbs)
    add_package(verbs)
    return parser


def _add_up(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    up = verbs.add_parser(
        "up",
        help="name server and broker in one process, or a cluster",
        description="Start a name server and a broker in one process, or a cluster, and say how to use it.",
    )
    where = up.add_mutually_exclusive_group()
    where.add_argument("--data", type=Path, metavar="DIR", help=f"where messages are kept (./{DEFAULT_DATA})")
    where.add_argument("--ephemeral", action="store_true", help="keep nothing: a temporary directory, gone at stop")
    up.add_argument("--nameserver-port", type=_port, default=9876, metavar="PORT", help="9876; 0 takes a free one")
    up.add_argument("--broker-port", type=_port, metavar="PORT", help="10911, or listenPort of -c; 0 takes a free one")
    _add_grpc(up)
    _add_host(up)
    up.add_argument("-c", "--config", type=Path, metavar="FILE", help="a broker.conf with Apache's property names")
    up.add_argument("--brokers", type=_brokers, default=1, metavar="N", help="so many, each a process of its own (1)")
    up.add_argument("--slaves", action="store_true", help="a slave for each broker, with a copy of its messages")
    _add_descriptors(up)
    up.set_defaults(run=_run_up)


def _add_namesrv(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    namesrv = verbs.add_parser("namesrv", help="a name server alone", description="Start a name server.")
    namesrv.add_argument("--port", type=_port, default=9876, help="9876; 0 takes a free one")
    _add_host(namesrv)
    namesrv.add_argument("--data", type=Path, metavar="DIR", help="where its KV configuration is kept (~/namesrv)")
    _add_descriptors(namesrv)
    namesrv.set_defaults(run=_run_namesrv)


def _add_broker(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    broker = verbs.add_parser(
        "broker", help="a broker alone; drain one before it is stopped", description="Start a broker, or drain one."
    )
    broker.add_argument("-c", "--config", type=Path, metavar="FILE", help="a broker.conf with Apache's property names")
    broker.add_argument("-n", "--nameserver", metavar="ADDR", help="name servers, host:port with ';' between")
    broker.add_argument("--port", type=_port, help="10911, or listenPort of -c; 0 takes a free one")
    _add_grpc(broker)
    broker.add_argument("--data", type=Path, metavar="DIR", help="the store's directory (storePathRootDir, ~/store)")
    _add_host(broker)
    _add_descriptors(broker)
    broker.set_defaults(run=_run_broker)
    add_drain(broker)


def _add_grpc(parser: argparse.ArgumentParser) -> None:
    grpc = parser.add_mutually_exclusive_group()
    grpc.add_argument(
        "--grpc-port", type=_port, metavar="PORT", help="8081, or grpcServerPort of -c; 0 takes a free one"
    )
    grpc.add_argument(
        "--no-grpc",
        action="store_const",
        dest="grpc_port",
        const=-1,
        help="without the endpoint for RocketMQ 5's own clients",
    )


def _add_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="HOST", help="address to listen on (127.0.0.1); 0.0.0.0 opens it to everyone")


def _add_descriptors(parser: argparse.ArgumentParser) -> None:
    """For programs that start this one: where to say that all is up, and what to stop with."""
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline-fd", type=int, help=argparse.SUPPRESS)


def _brokers(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 26:
        raise argparse.ArgumentTypeError(f"{text} is no number of brokers; give one from 1 to 26")
    return int(text)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port; give a number from 0 to 65535")
    return int(text)


def store_directory(directory: Path) -> Path:
    """The store in a data directory: the directory itself if it is one (Apache's layout), else ``store`` in it."""
    is_store = any((directory / name).exists() for name in ("commitlog", "consumequeue", "config", "lock"))
    return directory if is_store else directory / "store"


def _run_up(options: argparse.Namespace) -> int:
    from spark_rocket.cli.serve import serve_up

    return serve_up(options)


def _run_namesrv(options: argparse.Namespace) -> int:
    from spark_rocket.cli.serve import serve_namesrv

    return serve_namesrv(options)


def _run_broker(options: argparse.Namespace) -> int:
    from spark_rocket.cli.serve import serve_broker

    return serve_broker(options)
