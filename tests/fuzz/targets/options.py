"""What users write: filters, Spark's options, and the offsets in its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable

from spark_rocket.datasource.options import parsers as options
from spark_rocket.datasource.stream_offsets import no_duplicates, parse_offsets_option, parse_stream_offset
from spark_rocket.errors import DataSourceError
from spark_rocket.protocol.filter import tags as subscription
from spark_rocket.protocol.filter.sql92 import parse_sql92
from spark_rocket.protocol.record import properties
from tests.fuzz.targets.base import target, text_of


@target(
    b"a > 5 AND b BETWEEN 1 AND 2.5 OR NOT c IN ('x', 'it''s')\na\x017\x02b\x012",
    b"(a IS NULL) = TRUE AND b STARTSWITH 'x' OR -1.5E3 < c -- why\na\x01NaN\x02c\x01-1",
    b"a = 9223372036854775807L /* c */ AND b NOT CONTAINS 'y'\nb\x01xy",
    longest=1024,
)
def sql92(raw: bytes) -> None:
    """An expression, and the properties of a message behind the first line break that is meant so."""
    expression, _, texts = text_of(raw).rpartition("\n")
    parsed = parse_sql92(expression)
    assert parsed.matches(properties.decode_properties(texts)) in (True, False)
    parsed.matches({})


@target(b"TagA || TagB", b"*", b" a||| b ")
def tags(raw: bytes) -> None:
    found = subscription.parse_tags(text_of(raw))
    found.matches("TagA")
    assert subscription.parse_tags(str(found)) == found or found.tags == {"*"}  # a tag of that name, among blanks


_OFFSETS = b'{"T":{"broker-a":{"0":123,"1":-2}}}'


@target(
    _OFFSETS,
    b"earliest",
    b'{"T":{"b":{"0":"2024-01-01T00:00:00"}}}',
    b"2024-01-01 00:00:00",
    b"1h",
    errors=(DataSourceError,),
)
def offsets_option(raw: bytes) -> None:
    """startingOffsets, startingTimestamp, tags, topics and the rest of what users write into options."""
    text = text_of(raw)
    refused: DataSourceError | None = None
    for parser in (lambda _, given: parse_offsets_option(given, "startingOffsets"), *_PARSERS):
        try:
            parser("option", text)
        except DataSourceError as error:
            refused = error
    if refused is not None:
        raise refused


_PARSERS: tuple[Callable[[str, str], object], ...] = (
    options.positions(*options.Start),
    options.timestamp,
    options.timestamps,
    options.tag_expression,
    options.sql_expression,
    options.topic_names,
    options.assigned_queues,
    options.group_name,
    options.name_servers,
    options.view_name,
    options.writable_topic,
    options.boolean,
    options.number(0, 100),
    options.duration(0, 1 << 40),
)


@target(
    b'{"offsets":' + _OFFSETS.replace(b"-2", b"7") + b',"version":1}',
    b'{"initial":true,"version":1}',
    errors=(DataSourceError, ValueError),
)
def checkpoint_offsets(raw: bytes) -> None:
    """The offsets in a stream's checkpoint; Spark refuses invalid JSON."""
    try:
        value = json.loads(raw, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError):
        return
    found = parse_stream_offset(value)
    if found is not None:
        assert parse_stream_offset(found.to_json()) == found
