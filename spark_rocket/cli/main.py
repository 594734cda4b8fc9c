"""The ``rocket`` command: its verbs and its error output.

Exit status: 0 for success or a requested stop, 1 for a failure (one line on stderr gives the reason and the remedy), 2
for an invalid command line (click's own). A verb's module is imported when the verb is used, and a verb imports what it
needs itself. So ``rocket --help`` and servers start fast, without pyarrow, pandas or pyspark.
Corresponds to mqnamesrv, mqbroker and mqadmin.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import sys
from collections.abc import Sequence

import click

import spark_rocket
from spark_rocket.cli.text import print_problem
from spark_rocket.cli.verbs import VerbGroup, commands_with
from spark_rocket.common.extras import requires
from spark_rocket.common.system import check_system, hold_standard_descriptors
from spark_rocket.errors import RocketError

COMPLETE_VARIABLE = "_ROCKET_COMPLETE"
_CLI = "spark_rocket.cli"

SECTIONS = {
    "Servers": {
        "up": (f"{_CLI}.servers.up:up", "name server and broker in one process, or a cluster"),
        "namesrv": (f"{_CLI}.servers.up:namesrv", "a name server alone; settings of running name servers"),
        "broker": (f"{_CLI}.servers.up:broker", "a broker alone; settings and state of running brokers; drain"),
        "proxy": (f"{_CLI}.servers.proxy:proxy", "the gRPC endpoint for RocketMQ 5's own clients, for any cluster"),
        "console": (f"{_CLI}.servers.console:console", "the web console, for any cluster"),
        "cluster": (f"{_CLI}.commands.cluster:cluster", "brokers with their state and rates; connected producers"),
        "acl": (f"{_CLI}.commands.acl:acl", "accounts and permissions of brokers with access control"),
    },
    "Topics and groups": {
        "topic": (f"{_CLI}.commands.topic:topic", "list, describe, create, change and delete topics"),
        "group": (f"{_CLI}.commands.group:group", "consumer groups: members, lag, settings, offsets"),
        "offsets": (f"{_CLI}.commands.offsets:offsets", "offsets of queries and groups: show, set, copy, preview"),
    },
    "Messages": {
        "message": (f"{_CLI}.commands.message:message", "send, follow, find and resend messages"),
        "dlq": (f"{_CLI}.commands.dlq:dlq", "dead letters: list and resend them"),
        "queue": (f"{_CLI}.commands.queue:queue", "contents of a queue"),
        "bench": (f"{_CLI}.commands.bench:bench", "measure sending and consuming"),
    },
    "This machine": {
        "store": (f"{_CLI}.commands.store:store", "check, dump, rebuild and measure a store directory"),
        "doctor": (f"{_CLI}.commands.doctor:doctor", "check Java, Spark, Python, servers and executors"),
        "package": (f"{_CLI}.package:package", "write the connector as a zip for --py-files"),
        "options": (f"{_CLI}.options:options", 'the options of format("rocket"), with Kafka\'s names for them'),
        "help": (f"{_CLI}.help:help", "the documentation: list its pages, show one"),
        "completion": (f"{_CLI}.main:completion", "print the shell completion script"),
    },
}


@click.group(
    cls=VerbGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(spark_rocket.__version__, message="spark_rocket %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="log server activity too, not only warnings")
def rocket(verbose: bool) -> None:
    """RocketMQ-compatible servers for PySpark, and the administration tool for these and Apache RocketMQ clusters."""
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
    """Print the script that completes verbs, options, and names of topics and groups in a shell."""
    from click.shell_completion import get_completion_class

    maker = get_completion_class(shell)
    assert maker is not None
    click.echo(maker(rocket, {}, "rocket", COMPLETE_VARIABLE).source())


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return characters that the terminal's encoding does not have as in JSON, so that JSON stays valid."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("rocket.escape", _escaped)


def _open_standard_streams() -> None:
    """Replace streams that the parent process has closed. Python has None for them, and ``print`` then uses stdout."""
    hold_standard_descriptors()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", errors="backslashreplace", closefd=False))


def _escape_characters() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="rocket.escape")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit status. SystemExit(2) if it is invalid."""
    _open_standard_streams()
    _escape_characters()
    if arguments is None and COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(rocket, {}, "rocket", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE])
    try:
        # Not rocket.main: it ends the process and handles interrupts and closed pipes differently.
        with (
            requires("This command"),
            rocket.make_context("rocket", list(sys.argv[1:] if arguments is None else arguments)) as context,
        ):
            check_system()
            status: int | None = rocket.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        # --help and --version end the process themselves, as in any program.
        if end.exit_code == 0:
            raise SystemExit(0) from None
        return end.exit_code
    except click.NoSuchOption as error:
        meant = " or ".join(map(repr, commands_with(error.option_name, error.ctx) if error.ctx else ()))
        if meant:
            error = click.NoSuchOption(error.option_name, f"{error.message} Did you mean {meant}?", ctx=error.ctx)
        error.show()
        raise SystemExit(error.exit_code) from None
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except RocketError as error:
        print_problem(error.text)
        return 1
    except BrokenPipeError:  # the reader closed the pipe; Python must not flush the rest of the buffer at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        print_problem(f"{what}{error.strerror or error}.")
        return 1
    except (KeyboardInterrupt, click.Abort):
        return 0
    return status or 0
