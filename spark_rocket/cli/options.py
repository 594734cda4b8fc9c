"""``rocket options``: the options of ``format("rocket")``."""

from __future__ import annotations

import shutil
from dataclasses import asdict

import click

import spark_rocket
from spark_rocket.cli import show
from spark_rocket.cli.arguments import json_option, language_option
from spark_rocket.cli.text import wrapped
from spark_rocket.errors import ConfigError

_MAX_WIDTH = 100


@click.command()
@click.argument("pattern", default="")
@click.option("--scope", type=click.Choice(["read", "write", "view"]), help="only the options of this operation")
@language_option
@json_option
def options(pattern: str, scope: str | None, language: str, as_json: bool) -> None:
    """List the options of format("rocket") whose name contains PATTERN.

    PATTERN also matches the names of Spark's Kafka source and of rocketmq-spark, such as kafka.bootstrap.servers.
    """
    found = [
        option
        for option in spark_rocket.options(pattern, language)
        if scope is None or any(name.startswith(scope) for name in option.scope)
    ]
    if not found:
        raise ConfigError(f"No option contains {pattern!r}.", remedy="List all options with: rocket options")
    if as_json:
        show.document([asdict(option) for option in found])
        return
    width = min(shutil.get_terminal_size((_MAX_WIDTH, 0)).columns, _MAX_WIDTH)
    for option in found:
        print(wrapped(option.in_chinese() if language == "zh" else str(option), width, "    "))
