"""What the values of options are made of: parsers from text to typed values, and the values themselves.

A parser takes an option's documented name and its text, and returns the value or raises OptionError, which names the
option, the text and what would be right. Pure but for relative times, which count from now. Corresponds to nothing in
RocketMQ.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.offsets import from_tree, name, no_duplicates, parse_offsets_option
from spark_rocket.errors import OptionError, ProtocolError
from spark_rocket.model import (
    BENCHMARK_TOPIC,
    MAX_GROUP_LENGTH,
    MAX_TOPIC_LENGTH,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    MessageQueue,
    is_legal_name,
)
from spark_rocket.protocol.filter.sql92 import parse_sql92
from spark_rocket.protocol.filter.tags import parse_tags
from spark_rocket.units import Moment, are_seconds, duration_ms, moment, size_bytes

MAX_MESSAGE_SIZE = 4 * 1024 * 1024

Parser = Callable[[str, str], object]


class Values(dict[str, Any]):
    """Parsed options by their documented names, with defaults; ``given`` are those of the query, in lower case."""

    def __init__(self, values: Mapping[str, Any], given: frozenset[str]) -> None:
        super().__init__(values)
        self.given = given

    def is_given(self, option: str) -> bool:
        return option.lower() in self.given


class Start(Enum):
    """The ways to say a position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    TIMESTAMP = "timestamp"
    TIMES = "time stamps as JSON"
    OFFSETS = "JSON"


class Fallback(Enum):
    """Where queues begin of which the group has committed nothing."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    ERROR = "error"


class Strategy(Enum):
    """What to do with queues that have no message at or after a time."""

    LATEST = "latest"
    ERROR = "error"


class Guarantee(Enum):
    """How often a written row is stored."""

    AT_LEAST_ONCE = "atLeastOnce"
    EXACTLY_ONCE = "exactlyOnce"


class Compression(Enum):
    """How the bodies of written messages are compressed."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True)
class Position:
    """Where to begin or end: a way to say it, and what that way needs."""

    kind: Start
    timestamp_ms: int = 0
    offsets: Mapping[MessageQueue, int] | None = None
    times: Mapping[MessageQueue, int] | None = None
    fallback: Fallback = Fallback.EARLIEST
    strategy: Strategy = Strategy.LATEST
    is_relative: bool = False
    """Whether ``timestamp_ms`` or one of ``times`` counted from the moment of parsing."""


@dataclass(frozen=True)
class LookUp:
    """The messages to look up: those with one of ``values`` among their keys, or as their id."""

    option: str
    column: str
    """``keys`` or ``msgId``."""
    values: tuple[str, ...]


def bad_value(option: str, text: str, wanted: str) -> OptionError:
    shown = repr(text if len(text) <= 200 else text[:200] + "…")
    refused = error("BAD_OPTION.VALUE", option=option, value=shown, wanted=wanted)
    assert isinstance(refused, OptionError)
    return refused


E = TypeVar("E", bound=Enum)


def one_of(choices: type[E]) -> Callable[[str, str], E]:
    """One of an enumeration's values, without case."""
    by_text = {str(choice.value).lower(): choice for choice in choices}
    wanted = ", ".join(str(choice.value) for choice in choices)

    def parse(option: str, text: str) -> E:
        if text.strip().lower() not in by_text:
            raise bad_value(option, text, f"one of {wanted}")
        return by_text[text.strip().lower()]

    return parse


_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_HIGHEST = 2**63 - 1


def number(lowest: int, highest: int | None = None) -> Parser:
    wanted = f"a whole number from {lowest} to {highest}" if highest else f"a whole number of at least {lowest}"

    def parse(option: str, text: str) -> int:
        bare = text.strip()  # of more than int() would: of control characters, too
        if not _WHOLE.fullmatch(bare) or not lowest <= int(bare) <= (highest or _HIGHEST):
            raise bad_value(option, text, wanted)
        return int(bare)

    return parse


def boolean(option: str, text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise bad_value(option, text, "true or false")
    return value


def tag_expression(option: str, text: str) -> tuple[str, ...] | None:
    """The tags in order; None is all.

    A comma or a single ``|`` would be a tag's own, and read nothing without a word."""
    try:
        tags = parse_tags(text).tags if text.strip() else ("|",)
        if not any("|" in tag or "," in tag for tag in tags):
            return tuple(sorted(tags)) or None
    except ProtocolError:
        pass
    wanted = "tags as a || b, or * for all (one with a comma in it: sqlFilter=\"TAGS = 'a,b'\")"
    raise bad_value(option, text[:100], wanted)


def sql_expression(option: str, text: str) -> str:
    try:
        parse_sql92(text)
    except ProtocolError as error:
        reason = f"option {option} is {text[:100]!r}: {error.message}"
        raise OptionError(reason, remedy=f"It should be an SQL92 expression. {error.remedy}") from None
    return text.strip()


def key_list(option: str, text: str) -> tuple[str, ...]:
    """Keys or message ids: separated by commas, or a JSON list of strings. They contain no spaces."""
    wanted = 'values separated by commas, none with a space, or a JSON list such as ["a,b", "c"] if one has a comma'
    try:
        given = json.loads(text) if text.strip().startswith("[") else [part.strip() for part in text.split(",")]
    except (ValueError, RecursionError):
        raise bad_value(option, text, wanted) from None
    if not given or not all(isinstance(value, str) and value and " " not in value for value in given):
        raise bad_value(option, text, wanted)
    return tuple(dict.fromkeys(given))


VIEW_NAMES = (
    "cluster", "brokers", "topics", "queues", "groups", "lag", "consumers", "producers", "messages", "dlq"
)  # fmt: skip


def view_name(option: str, text: str) -> str:
    if text.strip().lower() not in VIEW_NAMES:
        raise bad_value(option, text, f"one of {', '.join(VIEW_NAMES)}")
    return text.strip().lower()


def _is_name(text: str) -> bool:
    return is_legal_name(text) and len(text) <= MAX_TOPIC_LENGTH


WRITABLE_TOPIC = "a topic's name, 1 to 127 of the characters a-z A-Z 0-9 _ - % |, and no system or retry topic"


def _is_reserved(topic: str) -> bool:
    """Whether only brokers write to the topic, or it is a retry topic, which takes no batch sends."""
    reserved = topic in SYSTEM_TOPICS and topic != BENCHMARK_TOPIC
    return reserved or topic.lower().startswith(SYSTEM_PREFIX) or topic.startswith(RETRY_PREFIX)


def can_be_written(topic: str) -> bool:
    """Whether messages may be sent to a topic of this name."""
    return _is_name(topic) and not _is_reserved(topic)


def writable_topic(option: str, text: str) -> str:
    if not can_be_written(text):
        raise bad_value(option, text, WRITABLE_TOPIC)
    return text


def topic_names(option: str, text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",")))
    if not all(_is_name(topic) for topic in topics):
        wanted = "topics' names, each 1 to 127 of the characters a-z A-Z 0-9 _ - % |, separated by commas"
        raise bad_value(option, text, wanted)
    return topics


def broker_names(option: str, text: str) -> tuple[str, ...]:
    brokers = tuple(dict.fromkeys(broker.strip() for broker in text.split(",")))
    if not all(brokers):
        raise bad_value(option, text, "brokers' names, separated by commas")
    return brokers


def topic_pattern(option: str, text: str) -> str:
    """A regular expression for whole names, in what Java's and Python's have in common."""
    wanted = "a regular expression for whole names of topics, such as orders-.*"
    if not text.strip():
        raise bad_value(option, text, wanted)
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as problem:
        raise bad_value(option, text, f"{wanted} ({problem})") from None
    return text


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """The topics that a pattern means: those of users, and retry or DLQ topics only if it begins with their ``%``."""
    matches = re.compile(pattern).fullmatch
    groups = pattern.lstrip("^(?:").startswith("%")
    return sorted(
        topic
        for topic in topics
        if matches(topic) and (is_for_users(topic) or (groups and topic.startswith("%"))) and topic != BENCHMARK_TOPIC
    )


_QUEUES_EXAMPLE = '{"topic": {"broker-a": [0, 1]}}'


def assigned_queues(option: str, text: str) -> tuple[MessageQueue, ...]:
    """The JSON of ``assign``, in the queues' order."""
    try:
        value = json.loads(text, object_pairs_hook=no_duplicates)
        if not isinstance(value, dict) or not value:
            raise ValueError("it names no topic")
        queues = []
        for topic, brokers in value.items():
            if not _is_name(topic):
                raise ValueError(f"{topic!r} is not a topic's name")
            if not isinstance(brokers, dict) or not brokers:
                raise ValueError(f"{topic} should be an object of brokers, not {json.dumps(brokers)}")
            for broker, ids in brokers.items():
                if not isinstance(ids, list) or not ids:
                    raise ValueError(f"{topic}/{broker} should be a list of queues' numbers, not {json.dumps(ids)}")
                for number in ids:
                    if type(number) is not int or not 0 <= number < 10**9:
                        raise ValueError(f"{topic}/{broker} has {json.dumps(number)}, which is not a queue's number")
                    queues.append(MessageQueue(topic, broker, number))
        if twice := next((queue for at, queue in enumerate(queues) if queue in queues[:at]), None):
            raise ValueError(f"{name(twice)} is named twice")
    except (ValueError, RecursionError) as problem:
        raise error("BAD_OPTION.JSON", option=option, what="queues", problem=problem, example=_QUEUES_EXAMPLE) from None
    return tuple(sorted(queues))


def is_for_users(topic: str) -> bool:
    """Whether a topic is neither a system topic nor one of a group's (``%RETRY%…``, ``%DLQ%…``)."""
    return not topic.startswith("%") and not _is_reserved(topic)


def group_name(option: str, text: str) -> str:
    if not _is_name(text) or len(text) > MAX_GROUP_LENGTH:
        raise bad_value(option, text, "a group's name: 1 to 120 of the characters a-z A-Z 0-9 _ - % |")
    return text


def name_servers(option: str, text: str) -> str:
    addresses = [address.strip() for address in text.split(";") if address.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or "," in address or "/" in address or not port.isdecimal() or not 0 < int(port) < 65536:
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


def _of_a_range(
    lowest: int, highest: int | None, unit: str, with_unit: Callable[[str], int | None], wanted: str
) -> Parser:
    """A number with a unit, or a bare number of ``unit``."""
    limits = f"from {lowest} to {highest} {unit}" if highest else f"of at least {lowest} {unit}"

    def parse(option: str, text: str) -> int:
        value = with_unit(text)
        if value is None and _WHOLE.fullmatch(text.strip()):
            value = int(text.strip())
        if value is None or not lowest <= value <= (highest or _HIGHEST):
            raise bad_value(option, text, f"{wanted}, {limits}")
        return value

    return parse


def duration(lowest_ms: int, highest_ms: int) -> Parser:
    """Milliseconds: a number with a unit, or a bare number of them."""
    wanted = "a duration such as 500ms, 90s, 15m, 2h or 1d, or milliseconds"
    return _of_a_range(lowest_ms, highest_ms, "ms", duration_ms, wanted)


def size(lowest: int, highest: int | None = None) -> Parser:
    """Bytes: a number with a unit, or a bare number of them."""
    return _of_a_range(lowest, highest, "bytes", size_bytes, "a size such as 64k, 4m or 1g, or a number of bytes")


def now_ms() -> int:
    return int(time.time() * 1000)


def timestamp(option: str, text: str) -> Moment:
    """Milliseconds since 1970, ISO-8601 (without a zone it is UTC), or how long ago: ``-2h``."""
    try:
        return moment(text, now_ms())
    except ValueError as problem:
        raise bad_value(option, text, str(problem)) from None


_TIMES_EXAMPLE = '{"topic": {"broker-a": {"0": 1769860800000, "1": "2026-01-31T12:00:00Z", "2": "-2h"}}}'


def timestamps(option: str, text: str) -> Position:
    """A time for each queue, as JSON: numbers are milliseconds, texts are what ``timestamp`` takes."""
    moments: list[Moment] = []

    def parsed(value: object) -> object:
        if isinstance(value, dict):
            return {key: parsed(inner) for key, inner in value.items()}
        if type(value) is int and are_seconds(value):
            raise ValueError(f"{value} should be milliseconds since 1970 (did you mean {value * 1000}?)")
        if not isinstance(value, str):
            return value
        moments.append(timestamp(option, value))
        return moments[-1].ms

    try:
        times = from_tree(parsed(json.loads(text, object_pairs_hook=no_duplicates)))
        if not times:
            raise ValueError("it names no queue")
    except (ValueError, RecursionError) as problem:
        raise error(
            "BAD_OPTION.JSON", option=option, what="time stamps", problem=problem, example=_TIMES_EXAMPLE
        ) from None
    return Position(Start.TIMES, times=times, is_relative=any(each.is_relative for each in moments))


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
