"""``CREATE TABLE t USING rocket OPTIONS (…)``: store a table's options where Spark passes them back.

Spark passes a table's options to a Python data source only once, when the table is created (as ``option.NAME`` among
the catalog's own properties, and without the prefix). Later reads and inserts do not receive them. Spark always passes
the table's schema with the metadata of its fields. A new table's schema therefore stores its options in the metadata of
its first column, as JSON under ``rocket.options``.

Spark copies metadata along with columns, so rows read from a table carry that table's options wherever they are
written. Two rules decide whose options a writer sees:

* If the writer has its own options, the metadata is ignored.
* ``topic`` is declared VARCHAR(127) (the longest topic name). Spark then converts every row to the type of the table's
  column and gives it that column's metadata. If a writer's schema still shows VARCHAR, Spark has not converted the
  rows, and the metadata belongs to the table that the rows came from.

A table or view that names both a topic to read and the ``topic`` to write supports both. Each direction ignores the
options of the other and the columns that only brokers set.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from spark_rocket.datasource.bodies.columns import metadata_fields
from spark_rocket.datasource.conditions import error
from spark_rocket.datasource.options.bodies import BadRecords
from spark_rocket.datasource.options.connection import refuse_secrets
from spark_rocket.datasource.options.parse import (
    SPARK_OPTIONS,
    belongs_to,
    body_of,
    is_view,
    parse_given,
    parse_write_options,
)
from spark_rocket.datasource.options.table import READS, WRITES, Scope
from spark_rocket.datasource.spark_schema import spark_schema

_METADATA = "rocket.options"
_PREFIX = "option."
_CATALOG_OPTIONS = frozenset({"provider", "owner"})  # the catalog always passes these with the options
_TOPICS_TO_READ = frozenset({"subscribe", "subscribepattern", "assign"})
_WHAT_TO_READ = _TOPICS_TO_READ | {"storepath", "view"}
_VARCHAR_KEY = "__CHAR_VARCHAR_TYPE_STRING"
_TOPIC_TYPE = VarcharType(127)

# The schema of a table for inserts only: the writable columns, the most used first.
INSERT_SCHEMA = StructType(
    [
        StructField("body", BinaryType()),
        StructField("tags", StringType()),
        StructField("keys", StringType()),
        StructField("properties", MapType(StringType(), StringType(), True)),
        StructField("shardingKey", StringType()),
        StructField("queueId", IntegerType()),
        StructField("topic", StringType()),
    ]
)


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the OPTIONS of a table that is being created, else None."""
    if not options.keys() >= _CATALOG_OPTIONS:
        return None
    return {key[len(_PREFIX) :]: text for key, text in options.items() if key.startswith(_PREFIX)}


def new_table(options: Mapping[str, str], schema_to_read: Callable[[Mapping[str, str]], StructType]) -> StructType:
    """Return a new table's schema with the table's options in it. ``schema_to_read`` maps read options to a schema."""
    if not options:
        raise error("BAD_OPTION.NONE")
    refuse_secrets(options)
    two_way = is_two_way(options)
    if "topic" in options and not two_way:
        schema = _schema_to_insert(options)
    else:
        schema = schema_to_read(options_of_direction(options, reading=True))
        if two_way and not is_view(options):
            parse_given(options_of_direction(options, reading=False), WRITES)
    fields = []
    for field in schema.fields:
        kind = _TOPIC_TYPE if field.name == "topic" else field.dataType
        # Inserts may omit columns; Spark then passes null.
        fields.append(StructField(field.name, kind, field.nullable or two_way, dict(field.metadata or {})))
    fields[0].metadata[_METADATA] = json.dumps(dict(options), sort_keys=True)
    return StructType(fields)


def _schema_to_insert(options: Mapping[str, str]) -> StructType:
    """Return the columns of a table for inserts only: the columns of its body format if it has any."""
    body = parse_write_options(options, Scope.WRITE).body
    if body is None:
        return INSERT_SCHEMA
    from spark_rocket.datasource.bodies.codecs import known_columns

    columns = spark_schema(known_columns(body)).fields
    taken = {"body", *(field.name.lower() for field in columns)}
    return StructType([*columns, *(field for field in INSERT_SCHEMA.fields if field.name.lower() not in taken)])


def plain(schema: StructType, *, all_nullable: bool = False) -> StructType:
    """Return a table's schema without the metadata that Spark and this module store in it.

    ``all_nullable``: for a view that also supports inserts, which may omit columns.
    """
    fields = []
    for field in schema.fields:
        kind = StringType() if isinstance(field.dataType, VarcharType) else field.dataType
        fields.append(StructField(field.name, kind, field.nullable or all_nullable))
    return StructType(fields)


def options_to_read(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return a read's options: the table's, overridden by those of the query (``SELECT … FROM t WITH (…)``).

    A query that names what to read ignores the table's options: its schema may come from another data frame.
    """
    says = not _WHAT_TO_READ.isdisjoint(key.lower() for key in options)
    both = dict(options) if says else _stored_options(schema) | dict(options)
    if not _are_given(both):
        raise error("BAD_OPTION.NONE")
    return options_of_direction(both, reading=True)


def options_to_write(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return a write's options: its own if it has any, else the options of the table."""
    found = _options_of_write(options, schema)
    if found == dict(options):
        if not _are_given(found) and "topic" not in (field.name.lower() for field in schema.fields):
            raise error("BAD_OPTION.NONE")
    elif any(_VARCHAR_KEY in (field.metadata or {}) for field in schema.fields):
        raise error("BAD_OPTION.WHICH_TABLE")
    return options_of_direction(found, reading=False)


def _options_of_write(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of both directions. A writer's own options win: rows may carry those of another table."""
    return dict(options) if _are_given(options) else _stored_options(schema) | dict(options)


def _are_given(options: Mapping[str, str]) -> bool:
    """Return whether any option is meant for this source, known or mistyped."""
    return any(key.lower() not in SPARK_OPTIONS for key in options)


def options_of_direction(options: Mapping[str, str], *, reading: bool) -> dict[str, str]:
    """Return the options of one direction if both are given, else all of them."""
    if not is_two_way(options):
        return dict(options)
    here, elsewhere = (READS, WRITES) if reading else (WRITES, READS)
    return {key: text for key, text in options.items() if belongs_to(key, here) or not belongs_to(key, elsewhere)}


def written(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns to write: all, or only the writable ones if the table or view is also read."""
    found = _options_of_write(options, schema)
    fields = plain(schema).fields
    if not is_two_way(found):
        return StructType(fields)
    can_be = {name.lower() for name in INSERT_SCHEMA.names}
    body = body_of(options_of_direction(found, reading=True))
    if body is None:
        return StructType([field for field in fields if field.name.lower() in can_be])
    only_read = {body.bad_record_column.lower()} if body.bad_records is BadRecords.COLUMN else set()
    for name, known in metadata_fields(body):
        if name.lower() != known.name.lower() or name.lower() not in can_be:
            only_read.add(name.lower())
    return StructType([field for field in fields if field.name.lower() not in only_read])


def is_two_way(options: Mapping[str, str]) -> bool:
    """Return whether the options name both a topic to read and the topic to write."""
    keys = {key.lower() for key in options}
    return "topic" in keys and not keys.isdisjoint(_TOPICS_TO_READ)


def _stored_options(schema: StructType) -> dict[str, str]:
    text = (schema.fields[0].metadata or {}).get(_METADATA) if schema.fields else None
    return {} if text is None else dict(json.loads(text))
