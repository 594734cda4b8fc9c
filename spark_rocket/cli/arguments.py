"""Options shared by several verbs, their value types, and rules between them.

A type is a function from text to value that raises ``click.BadParameter``.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from spark_rocket.common.files import read_file
from spark_rocket.common.system import now_ms
from spark_rocket.common.units import DURATION, SIZE, duration_ms, future_text, size_bytes, whole_number
from spark_rocket.common.units import moment as parse_moment
from spark_rocket.errors import ClientError
from spark_rocket.model import MessageQueue

PATH = click.Path(path_type=Path)
_MAX_LEDGER_QUEUE = 65_535
_DECIMAL = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}", re.A)

json_option = click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
yes_option = click.option("--yes", is_flag=True, help="do not ask for confirmation")
all_option = click.option("-a", "--all", "is_all", is_flag=True, help="include RocketMQ's system topics and groups")
dry_run_option = click.option("--dry-run", is_flag=True, help="show what would be done without doing it")

_LANGUAGES = ("en", "zh")


def _language() -> str:
    """Return the first language of the environment that the texts have. The variables and their order are gettext's."""
    names = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
    tags = next(filter(None, map(os.environ.get, names)), "").split(":")
    return next((tag[:2] for tag in tags if tag[:2] in _LANGUAGES), "en")


language_option = click.option(
    "--language", type=click.Choice(_LANGUAGES), default=_language, help="default: that of the shell (LANG)"
)


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
        value = whole_number(text)
        if value is None or not low <= value <= high:
            raise click.BadParameter(f"invalid {what} {text!r}: use {low} to {high}")
        return value

    return convert


port = whole(0, 65535, "port")


def number(text: str) -> int:
    """A type: an integer of at least 0, such as an offset."""
    value = whole_number(text)
    if value is None:
        raise click.BadParameter(f"invalid number {text!r}: use an integer of at least 0")
    return value


def limit(text: str) -> int:
    if not (value := number(text)):
        raise click.BadParameter(f"invalid limit {text!r}: use at least 1")
    return value


def moment(text: str) -> int:
    """A type: a time (local unless it has a zone), epoch milliseconds, or a duration ago; as epoch milliseconds."""
    try:
        return parse_moment(text, now_ms(), zone=None).ms
    except ValueError as problem:
        raise click.BadParameter(
            f"invalid time {text!r}: use {problem} (after an = on the command line, as in --from=-2h; 2h works too)"
        ) from None


def past(text: str) -> int:
    """A type: as :func:`moment`, and not in the future, where no message is stored."""
    time = moment(text)
    if ahead := future_text(time, now_ms()):
        raise click.BadParameter(
            f"invalid time {text!r}: it is {ahead}. Use a time in the past; without a zone, it is local time"
        )
    return time


def delivery_time(text: str) -> int:
    """A type: as :func:`moment`, and not in the past, when a message would be delivered at once."""
    time = moment(text)
    if time <= now_ms():
        raise click.BadParameter(
            f"invalid delivery time {text!r}: it is not in the future. Without a zone, a time is local time; "
            "for a duration from now, use --delay"
        )
    return time


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
    """A type: seconds, also with decimals, or a duration with its unit."""
    span = duration_ms(text, bare_ms=1000)
    value = float(text) if _DECIMAL.fullmatch(text.strip()) else (span or 0) / 1000
    if not 0 < value < 1e6:
        raise click.BadParameter(f"invalid duration {text!r}: use seconds, or {DURATION}, below 1,000,000 s")
    return value


def duration(text: str) -> int:
    """A type: a duration with its unit, as milliseconds. Numbers are refused: brokers have delays in s and in ms."""
    span = duration_ms(text)
    if span is None:
        raise click.BadParameter(f"invalid duration {text!r}: use {DURATION}")
    return span


def byte_size(most: int, unit: int = 1) -> Callable[[str], int]:
    """Return a type for sizes: a number of ``unit`` bytes or a size with its unit, from 1 to ``most``."""
    named = {1: "bytes", 1 << 20: "MiB"}[unit]

    def convert(text: str) -> int:
        given = size_bytes(text, bare_bytes=unit)
        if given is None or given % unit or not 1 <= given // unit <= most:
            limits = f"from 1 to {most:,} {named}"
            raise click.BadParameter(f"invalid size {text!r}: use {named} or {SIZE}, {limits}")
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


def ledger_place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--ledger-broker`` and ``--ledger-queue``, the place of an exactly-once ledger."""
    number = click.option(
        "--ledger-queue",
        type=whole(0, _MAX_LEDGER_QUEUE, "number of a queue"),
        metavar="N",
        help="ledgerQueue of the writes (0)",
    )
    broker = click.option("--ledger-broker", metavar="BROKER", help="ledgerBroker of the writes")
    return broker(number(command))


def ledger_queue_of(topic: str, broker: str | None, queue: int | None) -> MessageQueue | None:
    """Return the queue that these options name; None without ``--ledger-broker``."""
    if broker is not None:
        return MessageQueue(topic, broker, queue or 0)
    if queue is not None:
        raise click.UsageError("--ledger-queue needs --ledger-broker.")
    return None


def text_of(file: Path) -> str:
    """Return the text of a file, or of stdin for ``-``. ClientError if it is not UTF-8."""
    is_stdin = str(file) == "-"
    try:
        return sys.stdin.read() if is_stdin else read_file(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ClientError(
            f"{'stdin' if is_stdin else file}: not UTF-8 text.", remedy="Give a text file that is saved as UTF-8."
        ) from None
