"""The ``rocket`` command: its verbs, and what it says when something is wrong.

Exit status: 0 done or stopped on request, 1 it could not be done (one line on stderr says why and what to do), 2 the
command line is wrong (click's own). A verb's module is imported when the verb is asked for, and what it needs by the
verb itself, so that ``rocket --help`` and a server's start stay quick: no pyarrow, pandas or pyspark anywhere here.
Corresponds to mqnamesrv, mqbroker and mqadmin.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import click

import spark_rocket
from spark_rocket.cli.lazy import LazyGroup
from spark_rocket.errors import RocketError
from spark_rocket.system import check_system

COMPLETE_VARIABLE = "_ROCKET_COMPLETE"
_CLI = "spark_rocket.cli"

SECTIONS = {
    "Servers": {
        "up": (f"{_CLI}.servers.up:up", "name server and broker in one process, or a cluster"),
        "namesrv": (f"{_CLI}.servers.up:namesrv", "a name server alone; settings of running ones"),
        "broker": (f"{_CLI}.servers.up:broker", "a broker alone; settings and state of running ones; drain one"),
        "proxy": (f"{_CLI}.servers.proxy:proxy", "the gRPC endpoint for RocketMQ 5's own clients, for any cluster"),
        "console": (f"{_CLI}.servers.console:console", "the web console, for any cluster"),
        "cluster": (f"{_CLI}.commands.cluster:cluster", "brokers and what they do; producers that are connected"),
        "acl": (f"{_CLI}.commands.acl:acl", "who may do what on brokers with access control"),
    },
    "Topics and groups": {
        "topic": (f"{_CLI}.commands.topic:topic", "topics, what is in them, and changes of them"),
        "group": (f"{_CLI}.commands.group:group", "consumer groups, their members and lag, and changes of them"),
        "offsets": (f"{_CLI}.commands.offsets:offsets", "where queries and groups are; set, copy and preview it"),
    },
    "Messages": {
        "message": (f"{_CLI}.commands.message:message", "send messages, follow and find them, send them again"),
        "dlq": (f"{_CLI}.commands.dlq:dlq", "dead letters: see them, send them again"),
        "queue": (f"{_CLI}.commands.queue:queue", "what a queue holds"),
        "bench": (f"{_CLI}.commands.bench:bench", "measure sending and consuming"),
    },
    "Here": {
        "store": (f"{_CLI}.commands.store:store", "check, dump, rebuild and measure a store directory"),
        "doctor": (f"{_CLI}.commands.doctor:doctor", "check Java, Spark, Python, servers and executors"),
        "package": (f"{_CLI}.package:package", "write the connector as a zip for --py-files"),
        "completion": (f"{_CLI}.main:completion", "a script that lets the shell complete commands"),
    },
}


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(spark_rocket.__version__, message="spark_rocket %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="log what the servers do, not only what is wrong")
def rocket(verbose: bool) -> None:
    """RocketMQ-compatible name server and broker, made for PySpark, and the tool for either kind of cluster."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )


_COMPLETION = {
    "bash": 'eval "$(rocket completion bash)"    in ~/.bashrc',
    "zsh": 'eval "$(rocket completion zsh)"     in ~/.zshrc, after compinit',
    "fish": "rocket completion fish > ~/.config/fish/completions/rocket.fish",
}


@click.command(
    epilog="\b\n" + "\n".join(_COMPLETION.values()),
)
@click.argument("shell", type=click.Choice(list(_COMPLETION)))
def completion(shell: str) -> None:
    """Print the script with which a shell completes verbs, options, and the names of topics and groups."""
    from click.shell_completion import get_completion_class

    maker = get_completion_class(shell)
    assert maker is not None
    click.echo(maker(rocket, {}, "rocket", COMPLETE_VARIABLE).source())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status. SystemExit(2) if it is wrong."""
    if arguments is None and COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(rocket, {}, "rocket", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE])
    try:
        # Not rocket.main: that ends the process, and has ends of its own for interrupts and closed pipes.
        with rocket.make_context("rocket", list(sys.argv[1:] if arguments is None else arguments)) as context:
            check_system()
            status: int | None = rocket.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        # --help and --version end the process by themselves, as in any program.
        if end.exit_code == 0:
            raise SystemExit(0) from None
        return end.exit_code
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
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
    except (KeyboardInterrupt, click.Abort):
        return 0
    return status or 0
