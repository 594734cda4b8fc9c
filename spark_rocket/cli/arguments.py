"""Options shared by several verbs, their value types, and rules between them.

A type is a function from text to value that raises ``click.BadParameter``. RocketMQ has no counterpart.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from spark_rocket.units import duration_ms, size_bytes

PATH = click.Path(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
yes_option = click.option("--yes", is_flag=True, help="do not ask for confirmation")
all_option = click.option("-a", "--all", "is_all", is_flag=True, help="include RocketMQ's system topics and groups")


dry_run_option = click.option("--dry-run", is_flag=True, help="show what would be done without doing it")


def bundle(
    name: str, make: Callable[..., Any], *options: Callable[[Any], Any], is_last: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds options to a verb and passes them as one argument: ``name=make(**values)``.

    ``is_last``: they are listed after the verb's own, wherever the decorator is.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_value(**values: Any) -> Any:
            given = {key: values.pop(key) for key in names}
            return function(**values, **{name: make(**given)})

        own = vars(with_value).pop("__click_params__", [])
        wrapped: Callable[..., Any] = with_value
        for option in reversed(options):
            wrapped = option(wrapped)
        params = vars(wrapped)["__click_params__"]
        names = [parameter.name for parameter in reversed(params)]
        params[:] = [*params, *own] if is_last else [*own, *params]  # click lists them in the reverse order
        return wrapped

    return decorate


def exclusive(given: dict[str, object], *, required: bool = False) -> None:
    """Check that at most one of these options is given; with ``required``, exactly one."""
    used = [name for name, value in given.items() if value is not None and value is not False]
    if len(used) > 1:
        raise click.UsageError(f"{' and '.join(used)} cannot be given together.")
    if required and not used:
        raise click.UsageError(f"Give one of {', '.join(given)}.")


def whole(low: int, high: int, what: str) -> Callable[[str], int]:
    """Return a type for integers in a range; ``what`` names the value in the error."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not text.isascii() or not low <= int(text) <= high:
            raise click.BadParameter(f"invalid {what} {text!r}: use {low} to {high}")
        return int(text)

    return convert


def port(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or int(text) > 65535:
        raise click.BadParameter(f"invalid port {text!r}: use a number from 0 to 65535")
    return int(text)


def name_servers(text: str) -> str:
    """A type: name servers, in the notation of ``remoting.name_server_list``."""
    from spark_rocket.errors import ConfigError
    from spark_rocket.remoting.name_server_list import parse_name_servers

    try:
        return str(parse_name_servers(text))
    except ConfigError as error:
        raise click.BadParameter(error.text) from None


def descriptor(text: str) -> int:
    """A type: a file descriptor inherited from the parent process. Child processes do not inherit it."""
    number = int(text)
    os.set_inheritable(number, False)
    return number


def seconds(text: str) -> float:
    """A type: seconds, or a duration with its unit."""
    span = duration_ms(text)
    try:
        value = float(text) if span is None else span / 1000
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise click.BadParameter(f"invalid duration {text!r}: use seconds, or 500ms, 10s, 5m or 2h, below 1,000,000 s")
    return value


def byte_size(low: int, high: int, unit: int = 1) -> Callable[[str], int]:
    """Return a type for sizes: a number of ``unit`` bytes or a size with its unit. The limits are in ``unit`` bytes."""
    named = {1: "bytes", 1 << 20: "MiB"}[unit]

    def convert(text: str) -> int:
        given = size_bytes(text)
        if given is None and text.isdecimal() and text.isascii():
            given = int(text) * unit
        if given is None or given % unit or not low <= given // unit <= high:
            limits = f"from {low:,} to {high:,} {named}"
            raise click.BadParameter(f"invalid size {text!r}: use {named} or a size such as 64k or 4m, {limits}")
        return given // unit

    return convert


# Defined here because it needs seconds(). The value of the flag is optional.
watch_option = click.option(
    "-w",
    "--watch",
    is_flag=False,
    flag_value="2",
    type=seconds,
    metavar="[SECONDS]",
    help="refresh every 2 (or SECONDS) seconds until Ctrl-C",
)


def settings(texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"invalid setting {text!r}: use NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def group_name(text: str) -> str:
    from spark_rocket.client.core.validators import check_group
    from spark_rocket.errors import ClientError

    try:
        return check_group(text)
    except ClientError as error:
        raise click.BadParameter(error.text) from None


def store_directory(directory: Path) -> Path:
    """Return the store of a data directory: the directory itself if it is a store (Apache's layout), else ``store``."""
    is_store = any((directory / name).exists() for name in ("commitlog", "consumequeue", "config", "lock"))
    return directory if is_store else directory / "store"
