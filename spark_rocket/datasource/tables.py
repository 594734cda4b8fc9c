"""``CREATE TABLE t USING rocket OPTIONS (…)``: a table's options, kept where Spark brings them back.

Spark tells a Python data source a table's options once, when the table is created (as ``option.NAME`` among the
catalog's own properties, and without the prefix). Whoever reads the table or inserts into it later comes without
them. What does come every time is the table's schema with the metadata of its fields, so a new table's schema
carries its options in the metadata of its first column, as JSON under ``rocket.options``.

Metadata travels with columns, so rows read from a table bring that table's options wherever they are written. Two
things tell whose options a writer sees:

* where the writer has options of its own, those of the metadata are not looked at;
* ``topic`` is declared VARCHAR(127) (a topic's longest name), which makes Spark bring every row to the type of the
  table's column, and give it that column's metadata. Where VARCHAR is still to be seen in a writer's schema, Spark has
  not done so, and the metadata is that of the table the rows came from.

A table or view that names both what to read and the ``topic`` to write can do both; each way then leaves the other's
options, and the columns that only brokers fill, alone.

Pure. Corresponds to nothing in RocketMQ.
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
from spark_rocket.datasource.options.options import (
    SPARKS_OWN,
    belongs_to,
    body_of,
    check_options,
    is_view,
    parse_write_options,
)
from spark_rocket.datasource.options.table import READS, WRITES, Scope

_METADATA = "rocket.options"
_PREFIX = "option."
_CATALOGS_OWN = frozenset({"provider", "owner"})  # what the catalog tells beside the options, always
_TOPICS_TO_READ = frozenset({"subscribe", "subscribepattern", "assign"})
_WHAT_TO_READ = _TOPICS_TO_READ | {"storepath", "view"}
_SPARKS_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_TOPIC_TYPE = VarcharType(127)

# What a table that is only inserted into looks like: what can be written, the likeliest first.
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
    """What was given in OPTIONS, if it is a table that is being created."""
    if not options.keys() >= _CATALOGS_OWN:
        return None
    return {key[len(_PREFIX) :]: text for key, text in options.items() if key.startswith(_PREFIX)}


def new_table(options: Mapping[str, str], schema_to_read: Callable[[Mapping[str, str]], StructType]) -> StructType:
    """A new table's schema, with the table's options in it. ``schema_to_read`` says what a read with options gives."""
    if not options:
        raise error("BAD_OPTION.NONE")
    refuse_secrets(options)
    two_way = is_two_way(options)
    if "topic" in options and not two_way:
        schema = _schema_to_insert(options)
    else:
        schema = schema_to_read(one_way(options, reading=True))
        if not is_view(options):
            check_options(one_way(options, reading=False), WRITES if two_way else READS)
    fields = []
    for field in schema.fields:
        kind = _TOPIC_TYPE if field.name == "topic" else field.dataType
        # Inserts leave columns out, which is to say that they are null.
        fields.append(StructField(field.name, kind, field.nullable or two_way, dict(field.metadata or {})))
    fields[0].metadata[_METADATA] = json.dumps(dict(options), sort_keys=True)
    return StructType(fields)


def _schema_to_insert(options: Mapping[str, str]) -> StructType:
    """The columns of a table that is only inserted into: its bodies' own where their format has any."""
    check_options(options, WRITES)
    body = parse_write_options(options, Scope.WRITE).body
    if body is None:
        return INSERT_SCHEMA
    from spark_rocket.datasource.bodies.codecs import known_columns

    columns = known_columns(body).fields
    taken = {"body", *(field.name.lower() for field in columns)}
    return StructType([*columns, *(field for field in INSERT_SCHEMA.fields if field.name.lower() not in taken)])


def plain(schema: StructType, *, all_nullable: bool = False) -> StructType:
    """A table's schema as anybody else's: without what Spark and we keep in its metadata.

    ``all_nullable``: as a view's that is also inserted into, for inserts leave columns out.
    """
    fields = []
    for field in schema.fields:
        kind = StringType() if isinstance(field.dataType, VarcharType) else field.dataType
        fields.append(StructField(field.name, kind, field.nullable or all_nullable))
    return StructType(fields)


def options_to_read(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """A read's options: the table's, and over them those of the query itself (``SELECT … FROM t WITH (…)``).

    One that says itself what to read has none of a table's: its schema may be another frame's.
    """
    says = not _WHAT_TO_READ.isdisjoint(key.lower() for key in options)
    both = dict(options) if says else _kept(schema) | dict(options)
    if not _are_given(both):
        raise error("BAD_OPTION.NONE")
    return one_way(both, reading=True)


def options_to_write(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """A write's options: its own if it has any, else those of the table."""
    found = _options_of_write(options, schema)
    if found == dict(options):
        if not _are_given(found) and "topic" not in (field.name.lower() for field in schema.fields):
            raise error("BAD_OPTION.NONE")
    elif any(_SPARKS_VARCHAR in (field.metadata or {}) for field in schema.fields):
        raise error("BAD_OPTION.WHICH_TABLE")
    return one_way(found, reading=False)


def _options_of_write(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Those of both ways: rows that come from a table bring its options to whoever writes them, who has his own."""
    return dict(options) if _are_given(options) else _kept(schema) | dict(options)


def _are_given(options: Mapping[str, str]) -> bool:
    """Whether any option is meant for this source, known or mistyped."""
    return any(key.lower() not in SPARKS_OWN for key in options)


def one_way(options: Mapping[str, str], *, reading: bool) -> dict[str, str]:
    """The options of one direction, where both are given; else all of them."""
    if not is_two_way(options):
        return dict(options)
    here, elsewhere = (READS, WRITES) if reading else (WRITES, READS)
    return {key: text for key, text in options.items() if belongs_to(key, here) or not belongs_to(key, elsewhere)}


def written(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The columns that are written: all, but for a table or view that is read as well, those that can be."""
    found = _options_of_write(options, schema)
    fields = plain(schema).fields
    if not is_two_way(found):
        return StructType(fields)
    can_be = {name.lower() for name in INSERT_SCHEMA.names}
    body = body_of(one_way(found, reading=True))
    if body is None:
        return StructType([field for field in fields if field.name.lower() in can_be])
    only_read = {body.bad_record_column.lower()} if body.bad_records is BadRecords.COLUMN else set()
    for name, known in metadata_fields(body):
        if name.lower() != known.name.lower() or name.lower() not in can_be:
            only_read.add(name.lower())
    return StructType([field for field in fields if field.name.lower() not in only_read])


def is_two_way(options: Mapping[str, str]) -> bool:
    """Whether they say both what to read and where to write."""
    keys = {key.lower() for key in options}
    return "topic" in keys and not keys.isdisjoint(_TOPICS_TO_READ)


def _kept(schema: StructType) -> dict[str, str]:
    text = (schema.fields[0].metadata or {}).get(_METADATA) if schema.fields else None
    return {} if text is None else dict(json.loads(text))
