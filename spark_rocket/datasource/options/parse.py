"""The options of ``format("rocket")``, parsed into typed values.

Spark passes option names in lower case, so lookups ignore case; errors show the documented spelling. An unknown option,
or one of another operation (a write option on a read), is an error that suggests the nearest known option: a mistyped
option must never be silently ignored. Contradicting options, and options without effect, are rejected (``checks.py``).

``OPTIONS`` (``table.py``) is the single list of options, with their defaults, fields, requirements and conflicts. They
are parsed on the driver, for the schema and again for the reader or writer: Spark may request these in different
processes, and a table's query may add options to those of its schema. The parsed values are pickled for the executors,
so an environment variable there cannot change what the driver decided.
Pure, except for name servers and credentials from the environment. Corresponds to nothing in RocketMQ; to
KafkaSourceProvider in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from spark_rocket.datasource.conditions import BY_CASE, error
from spark_rocket.datasource.options.bodies import BodySettings, body_settings
from spark_rocket.datasource.options.checks import check_conflicts, check_needs, check_read, check_store, check_write
from spark_rocket.datasource.options.connection import connection_of, namespace_of
from spark_rocket.datasource.options.options import ReadOptions, ViewOptions, WriteOptions
from spark_rocket.datasource.options.other_names import COLUMNS_TO_WRITE, unknown_option
from spark_rocket.datasource.options.parsers import Guarantee, Position, Values
from spark_rocket.datasource.options.selection import ending_position, look_up_of, starting_position, topics_to_read
from spark_rocket.datasource.options.table import OPTIONS, READS, VIEWS, WRITES, Scope
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.namespace import Namespace

_BY_KEY = {option.name.lower(): option for option in OPTIONS}
# Spark adds these to the options of a source.
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "outputmode"})
_WITH_NAMES = frozenset(option.name for option in OPTIONS if option.has_names)


def parse_read_options(raw: Mapping[str, str], scope: Scope) -> ReadOptions:
    """Parse a read's options. OptionError has the remedy."""
    values, namespace = _parse(raw, scope, READS)
    check_store(values)
    topics, pattern, assigned = topics_to_read(values)
    own: dict[str, Any] = {
        "topics": topics,
        "topic_pattern": pattern,
        "assigned": assigned,
        "starting": starting_position(values, is_stream=scope is Scope.READ_STREAM),
        "ending": ending_position(values),
        "is_stream": scope is Scope.READ_STREAM,
        "look_up": look_up_of(values),
        "body": body_settings(values, topics, pattern, namespace),
    }
    options = ReadOptions(**_fields(READS, values) | own | connection_of(values, namespace))
    check_read(options)
    return options


def _fields(scopes: frozenset[Scope], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that hold the value of an option."""
    return {option.field: values.get(option.name) for option in OPTIONS if option.scopes & scopes and option.has_field}


def internal_read(**own: Any) -> ReadOptions:
    """Return the options of a read that no query has requested: ``own`` and defaults."""
    return ReadOptions(**_fields(READS, _defaults(READS)) | own)


def internal_write(**own: Any) -> WriteOptions:
    """Return the options of a write that no query has requested: ``own`` and defaults."""
    return WriteOptions(**_fields(WRITES, _defaults(WRITES)) | own)


def body_of(raw: Mapping[str, str]) -> BodySettings | None:
    """Return the body settings of a read that may be a batch or a stream."""
    values = parse_given(raw, READS)
    check_needs(values)
    return body_settings(values)


def parse_write_options(raw: Mapping[str, str], scope: Scope) -> WriteOptions:
    """Parse a write's options. OptionError has the remedy."""
    values, namespace = _parse(raw, scope, WRITES)
    check_write(values, scope)
    own: dict[str, Any] = {
        "exactly_once": values["deliveryGuarantee"] is Guarantee.EXACTLY_ONCE,
        "send_batch_bytes": min(values["maxMessageSize"], values["sendBatchBytes"]),
        "compression": values["compression"].value,
        "body": body_settings(values),
    }
    return WriteOptions(**_fields(WRITES, values) | own | connection_of(values, namespace))


def is_view(raw: Mapping[str, str]) -> bool:
    """Return whether the options are options of a view."""
    return "view" in map(str.lower, raw)


def parse_view_options(raw: Mapping[str, str]) -> ViewOptions:
    """Parse a view's options. OptionError has the remedy."""
    values, namespace = _parse(raw, Scope.VIEW, VIEWS)
    own = {"view": values["view"], "topics": values.get("subscribe", ())}
    return ViewOptions(**_fields(VIEWS, values) | own | connection_of(values, namespace))


def belongs_to(key: str, scopes: frozenset[Scope]) -> bool:
    """Return whether an option of this name, in any case, belongs to any of ``scopes``."""
    option = _BY_KEY.get(key.lower())
    return option is not None and bool(option.scopes & scopes)


def parse_given(raw: Mapping[str, str], scopes: frozenset[Scope]) -> Values:
    """Parse the given options, without defaults. Rejects options that belong to none of ``scopes``."""
    parsed: dict[str, Any] = {}
    for key, text in raw.items():
        option = _BY_KEY.get(key.lower())
        if option is not None and option.scopes & scopes:
            parsed[option.name] = option.parse(option.name, text)
        elif key.lower() not in SPARK_OPTIONS:
            raise _refused(key.lower(), scopes)
    return Values(parsed, frozenset(parsed))


def _refused(key: str, scopes: frozenset[Scope]) -> Exception:
    if scopes <= WRITES and key in COLUMNS_TO_WRITE:
        name, example = COLUMNS_TO_WRITE[key]
        return error("BAD_OPTION.COLUMN", option=name, example=example)
    option = _BY_KEY.get(key)
    if option is None:
        return unknown_option(key, scopes)
    wanted = " and ".join(sorted(scope.value for scope in scopes))
    belongs = " and ".join(sorted(scope.value for scope in option.scopes))
    case = option.name if ("BAD_OPTION.SCOPE", option.name) in BY_CASE else ""
    return error("BAD_OPTION.SCOPE", case=case, option=option.name, belongs=belongs, wanted=wanted)


def _parse(raw: Mapping[str, str], scope: Scope, direction: frozenset[Scope]) -> tuple[Values, Namespace]:
    """Parse the options of a scope. Options of the other scopes of its direction have their defaults.

    Names have the namespace, which is returned, too.
    """
    given = parse_given(raw, frozenset({scope}))
    values = Values({**_defaults(direction), **given}, given.given)
    check_needs(values)
    check_conflicts(values)
    namespace = namespace_of(values)
    return _with_wire_names(values, namespace) if namespace else values, namespace


def _with_wire_names(values: Values, namespace: Namespace) -> Values:
    """Put the namespace before the names in options."""
    found = {name: _renamed(value, namespace) if name in _WITH_NAMES else value for name, value in values.items()}
    return Values(found, values.given)


def _renamed(value: Any, namespace: Namespace) -> Any:
    if isinstance(value, str):
        return namespace.wrap(value)
    if isinstance(value, MessageQueue):
        return replace(value, topic=namespace.wrap(value.topic))
    if isinstance(value, tuple):
        return tuple(dict.fromkeys(_renamed(each, namespace) for each in value))
    if isinstance(value, Mapping):
        return {_renamed(key, namespace): each for key, each in value.items()}
    if isinstance(value, Position):
        return replace(value, offsets=_renamed(value.offsets, namespace), times=_renamed(value.times, namespace))
    return value


@cache
def _defaults(scopes: frozenset[Scope]) -> Mapping[str, Any]:
    return {
        option.name: option.parse(option.name, option.default)
        for option in OPTIONS
        if option.scopes & scopes and option.default is not None
    }
