"""What the values of options are made of: parsers from text to typed values, and the values themselves.

A parser takes an option's documented name and its text, and returns the value or raises OptionError, which names the
option, the text and what would be right. Pure. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spark_rocket.datasource.offsets import parse_offsets_option
from spark_rocket.errors import OptionError
from spark_rocket.model import MessageQueue

MAX_MESSAGE_SIZE = 4 * 1024 * 1024

Parser = Callable[[str, str], object]


class Start(Enum):
    """The ways to say a position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    TIMESTAMP = "timestamp"
    OFFSETS = "JSON"


class Pushdown(Enum):
    """Which filters of a query decide what is read."""

    OFF = "false"
    ON = "true"
    INDEX = "index"


@dataclass(frozen=True)
class Position:
    """Where to begin or end: a way to say it, and what that way needs."""

    kind: Start
    timestamp_ms: int = 0
    offsets: Mapping[MessageQueue, int] | None = None


def bad_value(option: str, text: str, wanted: str) -> OptionError:
    return OptionError(f"option {option} is {text!r}.", remedy=f"It should be {wanted}.")


def number(lowest: int, highest: int | None = None) -> Parser:
    wanted = f"a whole number from {lowest} to {highest}" if highest else f"a whole number of at least {lowest}"

    def parse(option: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise bad_value(option, text, wanted) from None
        if value < lowest or (highest is not None and value > highest):
            raise bad_value(option, text, wanted)
        return value

    return parse


def boolean(option: str, text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise bad_value(option, text, "true or false")
    return value


def pushdown(option: str, text: str) -> Pushdown:
    try:
        return Pushdown(text.strip().lower())
    except ValueError:
        raise bad_value(option, text, "false, true or index") from None


_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")


def topic_name(option: str, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise bad_value(option, text, "a topic's name: 1 to 127 of the characters a-z A-Z 0-9 _ - % |")
    return text


# What only brokers write, or stands for something else; retry topics take no batch sends.
_NOT_WRITABLE = re.compile(
    r"TBW102|SCHEDULE_TOPIC_XXXX|TRANS_CHECK_MAX_TIME_TOPIC|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT"
    r"|(?i:rmq_sys_).*|%RETRY%.*"
)
WRITABLE_TOPIC = "a topic's name, 1 to 127 of the characters a-z A-Z 0-9 _ - % |, and no system or retry topic"


def can_be_written(topic: str) -> bool:
    """Whether messages may be sent to a topic of this name."""
    return bool(_NAME.fullmatch(topic)) and not _NOT_WRITABLE.fullmatch(topic)


def writable_topic(option: str, text: str) -> str:
    if not can_be_written(text):
        raise bad_value(option, text, WRITABLE_TOPIC)
    return text


def topic_names(option: str, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(topic_name(option, topic.strip()) for topic in text.split(",")))


def is_for_users(topic: str) -> bool:
    """Whether a topic is neither a system topic nor one of a group's (``%RETRY%…``, ``%DLQ%…``)."""
    return not topic.startswith("%") and not _NOT_WRITABLE.fullmatch(topic)


def group_name(option: str, text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > 120:
        raise bad_value(option, text, "a group's name: 1 to 120 of the characters a-z A-Z 0-9 _ - % |")
    return text


def name_servers(option: str, text: str) -> str:
    addresses = [address.strip() for address in text.split(";") if address.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or "," in address or not port.isdecimal() or not 0 < int(port) < 65536:
            raise bad_value(option, text, "host:port, several of them separated by semicolons")
    if not addresses:
        raise bad_value(option, text, "host:port, several of them separated by semicolons")
    return ";".join(addresses)


def some_text(option: str, text: str) -> str:
    if not text:
        raise bad_value(option, text, "a text that is not empty")
    return text


def directory(option: str, text: str) -> str:
    """An absolute path: relative ones are the driver's."""
    if scheme := re.match("([A-Za-z][A-Za-z0-9+.-]*):", text):
        uri = urlsplit(text)
        if scheme[1].lower() != "file" or uri.netloc not in ("", "localhost") or uri.query or uri.fragment:
            raise bad_value(option, text, "a directory of a file system that driver and executors have mounted")
        text = unquote(uri.path)
    if not text.strip() or "\0" in text:
        raise bad_value(option, text, "a store directory (storePathRootDir), or the data directory of rocket up")
    return str(Path(text).expanduser().absolute())


def timestamp(option: str, text: str) -> int:
    """Milliseconds since the epoch, or ISO-8601; without a zone it is UTC. Rounded up: a later start loses nothing."""
    text = text.strip()
    wanted = "milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z"
    if text.isascii() and text.isdigit():
        if len(text) in (4, 8):
            raise bad_value(option, text, f"{wanted}; for a date write 2026-01-31")
        if len(text) > 19 or int(text) >= 2**63:
            raise bad_value(option, text, f"{wanted}, below 2^63")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise bad_value(option, text, wanted) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    microseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
    return max(0, -(-microseconds // 1000))


_MICROSECOND = datetime.resolution


def positions(*kinds: Start) -> Parser:
    names = [kind.value for kind in kinds if kind is not Start.OFFSETS]
    wanted = f"{', '.join(names)}, or offsets as JSON"

    def parse(option: str, text: str) -> Position:
        text = text.strip()
        if text.startswith("{"):
            return Position(Start.OFFSETS, offsets=parse_offsets_option(text, option))
        if text.lower() not in names:
            raise bad_value(option, text, wanted)
        return Position(Start(text.lower()))

    return parse
