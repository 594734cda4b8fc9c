"""Parsers for option values, and the typed values that they return.

A parser takes an option's documented name and its text. It returns the value or raises OptionError with the option,
the text and the expected form. Pure, except that relative times count from now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from spark_rocket.common.system import now_ms
from spark_rocket.common.units import DURATION, SIZE, Moment, are_seconds, duration_ms, moment, size_bytes, whole_number
from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.stream_offsets import from_tree, no_duplicates, parse_offsets_option
from spark_rocket.errors import ConfigError, OptionError, ProtocolError
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
from spark_rocket.protocol.filter.tags import parse_tags
from spark_rocket.protocol.namespace import NO_NAMESPACE, Namespace
from spark_rocket.remoting.name_server_list import parse_name_servers

Parser = Callable[[str, str], object]


class Values(dict[str, Any]):
    """Parsed options by documented name, with defaults."""

    def __init__(self, parsed: Mapping[str, Any], given: frozenset[str]) -> None:
        super().__init__(parsed)
        self.given = given
        """The options that the query sets."""


class Start(Enum):
    """The forms in which a position can be given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    TIMESTAMP = "timestamp"
    TIMES = "time stamps as JSON"
    OFFSETS = "JSON"


class Fallback(Enum):
    """Where to begin queues without a committed offset of the group."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    ERROR = "error"


class Strategy(Enum):
    """What to do with queues that have no message at or after a time."""

    LATEST = "latest"
    ERROR = "error"


class Trigger(Enum):
    """The trigger of a query, which Spark 4.0 and 4.1 do not report."""

    PROCESSING_TIME = "processingTime"
    AVAILABLE_NOW = "availableNow"


class Guarantee(Enum):
    """The delivery guarantee of a write."""

    AT_LEAST_ONCE = "atLeastOnce"
    EXACTLY_ONCE = "exactlyOnce"


class Compression(Enum):
    """The compression of written message bodies."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, eq=False, repr=False)
class Position(FrozenValue):
    """Where to begin or end: the form, and the values that it requires."""

    kind: Start
    timestamp_ms: int = 0
    offsets: Mapping[MessageQueue, int] | None = None
    times: Mapping[MessageQueue, int] | None = None
    fallback: Fallback = Fallback.EARLIEST
    strategy: Strategy = Strategy.LATEST
    is_relative: bool = False
    """Whether ``timestamp_ms`` or one of ``times`` was relative to the time of parsing."""


@dataclass(frozen=True, eq=False, repr=False)
class LookUp(FrozenValue):
    """The messages to look up: those whose keys or id are in ``values``."""

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
    """Parse a value of an enumeration, ignoring case."""
    by_text = {str(choice.value).lower(): choice for choice in choices}
    wanted = ", ".join(str(choice.value) for choice in choices)

    def parse(option: str, text: str) -> E:
        if text.strip().lower() not in by_text:
            raise bad_value(option, text, f"one of {wanted}")
        return by_text[text.strip().lower()]

    parse.__annotations__["return"] = choices.__name__  # the type of the option's field
    return parse


_HIGHEST = 2**63 - 1


def number(lowest: int, highest: int | None = None) -> Parser:
    wanted = f"an integer from {lowest} to {highest}" if highest else f"an integer of at least {lowest}"

    def parse(option: str, text: str) -> int:
        value = whole_number(text)
        if value is None or not lowest <= value <= (highest or _HIGHEST):
            raise bad_value(option, text, wanted)
        return value

    return parse


def boolean(option: str, text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise bad_value(option, text, "true or false")
    return value


def tag_expression(option: str, text: str) -> tuple[str, ...] | None:
    """Parse tags into a sorted tuple; None selects all.

    A comma or a single ``|`` would be part of a tag, and the read would silently return nothing."""
    try:
        tags = parse_tags(text).tags if text.strip() else ("|",)
        if not any("|" in tag or "," in tag for tag in tags):
            return tuple(sorted(tags)) or None
    except ProtocolError:
        pass
    wanted = "tags such as a || b, or * for all (for a tag with a comma: sqlFilter=\"TAGS = 'a,b'\")"
    raise bad_value(option, text[:100], wanted)


def sql_expression(option: str, text: str) -> str:
    from spark_rocket.protocol.filter.sql92 import parse_sql92  # few queries have one

    try:
        parse_sql92(text)
    except ProtocolError as error:
        reason = f"option {option} is {text[:100]!r}: {error.message}"
        raise OptionError(reason, remedy=f"Use an SQL92 expression. {error.remedy}") from None
    return text.strip()


def key_list(option: str, text: str) -> tuple[str, ...]:
    """Parse keys or message ids: separated by commas, or a JSON list of strings. They contain no spaces."""
    wanted = 'comma-separated values without spaces, or a JSON list such as ["a,b", "c"] if a value has a comma'
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


WRITABLE_TOPIC = "a topic name of 1 to 127 characters a-z A-Z 0-9 _ - % |, not a system or retry topic"


def _is_reserved(topic: str) -> bool:
    """Return whether only brokers write to the topic, or it is a retry topic, which rejects batch sends."""
    reserved = topic in SYSTEM_TOPICS and topic != BENCHMARK_TOPIC
    return reserved or topic.lower().startswith(SYSTEM_PREFIX) or topic.startswith(RETRY_PREFIX)


def can_be_written(topic: str) -> bool:
    """Return whether clients may send to a topic of this name."""
    return _is_name(topic) and not _is_reserved(topic)


def writable_topic(option: str, text: str) -> str:
    if not can_be_written(text):
        raise bad_value(option, text, WRITABLE_TOPIC)
    return text


def topic_names(option: str, text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(map(str.strip, text.split(","))))
    if not all(map(_is_name, topics)):
        wanted = "comma-separated topic names, each 1 to 127 of the characters a-z A-Z 0-9 _ - % |"
        raise bad_value(option, text, wanted)
    return topics


def broker_names(option: str, text: str) -> tuple[str, ...]:
    brokers = tuple(dict.fromkeys(broker.strip() for broker in text.split(",")))
    if not all(brokers):
        raise bad_value(option, text, "comma-separated broker names")
    return brokers


def topic_pattern(option: str, text: str) -> str:
    """Check a regular expression for complete names, in the syntax that Java and Python share."""
    wanted = "a regular expression for complete topic names, such as orders-.*"
    if not text.strip():
        raise bad_value(option, text, wanted)
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as problem:
        raise bad_value(option, text, f"{wanted} ({problem})") from None
    return text


def matching(pattern: str, topics: Iterable[str], namespace: Namespace = NO_NAMESPACE) -> list[str]:
    """Return the matching user topics. Retry and DLQ topics match only if the pattern begins with their ``%``.

    With a namespace: the topics of it whose name with or without it matches.
    """
    matches = re.compile(pattern).fullmatch
    groups = pattern.lstrip("^(?:").startswith("%")
    found = []
    for topic in topics:
        name = namespace.unwrap(topic)
        is_wanted = is_user_topic(name) or (groups and name.startswith("%"))
        if is_wanted and name != BENCHMARK_TOPIC and namespace.has(topic) and (matches(name) or matches(topic)):
            found.append(topic)
    return sorted(found)


_QUEUES_EXAMPLE = '{"topic": {"broker-a": [0, 1]}}'


def assigned_queues(option: str, text: str) -> tuple[MessageQueue, ...]:
    """Parse the JSON of ``assign`` into sorted queues."""
    try:
        value = json.loads(text, object_pairs_hook=no_duplicates)
        if not isinstance(value, dict) or not value:
            raise ValueError("it lists no topics")
        queues = []
        for topic, brokers in value.items():
            if not _is_name(topic):
                raise ValueError(f"invalid topic name {topic!r}")
            if not isinstance(brokers, dict) or not brokers:
                raise ValueError(f"{topic} should be an object of brokers, not {json.dumps(brokers)}")
            for broker, ids in brokers.items():
                if not isinstance(ids, list) or not ids:
                    raise ValueError(f"{topic}/{broker} should be a list of queue numbers, not {json.dumps(ids)}")
                for number in ids:
                    if type(number) is not int or not 0 <= number < 10**9:
                        raise ValueError(f"invalid queue number {json.dumps(number)} in {topic}/{broker}")
                    queues.append(MessageQueue(topic, broker, number))
        if twice := next((queue for at, queue in enumerate(queues) if queue in queues[:at]), None):
            raise ValueError(f"duplicate queue {twice.name}")
    except (ValueError, RecursionError) as problem:
        raise error("BAD_OPTION.JSON", option=option, what="queues", problem=problem, example=_QUEUES_EXAMPLE) from None
    return tuple(sorted(queues))


def is_user_topic(topic: str) -> bool:
    """Return whether a topic is neither a system topic nor a group's topic (``%RETRY%…``, ``%DLQ%…``)."""
    return not topic.startswith("%") and not _is_reserved(topic)


def group_name(option: str, text: str) -> str:
    if not _is_name(text) or len(text) > MAX_GROUP_LENGTH:
        raise bad_value(option, text, "a group name of 1 to 120 characters a-z A-Z 0-9 _ - % |")
    return text


def name_servers(option: str, text: str) -> str:
    try:
        return str(parse_name_servers(text))
    except ConfigError as problem:
        wanted = f"host:port, or several separated by semicolons. {problem.message.rstrip('.')}"
        raise bad_value(option, text, wanted) from None


def some_text(option: str, text: str) -> str:
    if not text:
        raise bad_value(option, text, "a non-empty string")
    return text


def directory(option: str, text: str) -> str:
    """Return an absolute path. Relative paths are relative to the driver's directory."""
    if scheme := re.match("([A-Za-z][A-Za-z0-9+.-]*):", text):
        uri = urlsplit(text)
        if scheme[1].lower() != "file" or uri.netloc not in ("", "localhost") or uri.query or uri.fragment:
            raise bad_value(option, text, "a directory on a file system mounted on the driver and the executors")
        text = unquote(uri.path)
    if not text.strip() or "\0" in text:
        raise bad_value(option, text, "a store directory (storePathRootDir), or the data directory of rocket up")
    return str(Path(text).expanduser().absolute())


def _of_a_range(
    lowest: int, highest: int | None, unit: str, value_of: Callable[[str, int], int | None], wanted: str
) -> Parser:
    """Parse a number with a unit, or a bare number in ``unit``."""
    limits = f"from {lowest} to {highest} {unit}" if highest else f"of at least {lowest} {unit}"

    def parse(option: str, text: str) -> int:
        value = value_of(text, 1)
        if value is None or not lowest <= value <= (highest or _HIGHEST):
            raise bad_value(option, text, f"{wanted}, {limits}")
        return value

    return parse


def duration(lowest_ms: int, highest_ms: int) -> Parser:
    """Parse milliseconds: a number with a unit, or a bare number."""
    return _of_a_range(lowest_ms, highest_ms, "ms", duration_ms, f"{DURATION}, or milliseconds")


def size(lowest: int, highest: int | None = None) -> Parser:
    """Parse bytes: a number with a unit, or a bare number."""
    return _of_a_range(lowest, highest, "bytes", size_bytes, f"{SIZE}, or a number of bytes")


def timestamp(option: str, text: str) -> Moment:
    """Parse milliseconds since 1970, ISO-8601 (UTC without a zone), or a relative time such as ``-2h``."""
    try:
        return moment(text, now_ms())
    except ValueError as problem:
        raise bad_value(option, text, str(problem)) from None


_TIMES_EXAMPLE = '{"topic": {"broker-a": {"0": 1769860800000, "1": "2026-01-31T12:00:00Z", "2": "-2h"}}}'


def timestamps(option: str, text: str) -> Position:
    """Parse a time for each queue, as JSON: numbers are milliseconds, strings any form that ``timestamp`` accepts."""
    moments: list[Moment] = []

    def parsed(value: object) -> object:
        if isinstance(value, dict):
            return {key: parsed(inner) for key, inner in value.items()}
        if type(value) is int and are_seconds(value):
            raise ValueError(f"{value} looks like seconds, but times are milliseconds (did you mean {value * 1000}?)")
        if not isinstance(value, str):
            return value
        moments.append(timestamp(option, value))
        return moments[-1].ms

    try:
        times = from_tree(parsed(json.loads(text, object_pairs_hook=no_duplicates)))
        if not times:
            raise ValueError("it lists no queues")
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
