"""Assign the columns of typed rows to the body, the message and bad records. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_rocket.common.values import FrozenValue
from spark_rocket.datasource.column_types import type_name
from spark_rocket.datasource.options.bodies import BadRecords, BodyFormat, BodySettings
from spark_rocket.datasource.schema import MESSAGE_SCHEMA, check_column
from spark_rocket.errors import SchemaError

_BY_KEY = {field.name.lower(): field for field in MESSAGE_SCHEMA}
_ALL = tuple((name, name) for name in MESSAGE_SCHEMA.names if name != "body")


@dataclass(frozen=True, eq=False, repr=False)
class RowLayout(FrozenValue):
    """The columns of a schema, by source."""

    body: pa.Schema
    metadata: dict[str, str]
    """The message's column for each column that belongs to the message."""
    bad_column: str | None


def metadata_fields(settings: BodySettings) -> list[tuple[str, pa.Field]]:
    """Return the columns of ``metadataColumns``: their names in the rows, and their fields."""
    fields = []
    for source, name in settings.metadata if settings.metadata is not None else _ALL:
        known = _BY_KEY.get(source.lower())
        if known is None:
            raise SchemaError(
                f"option metadataColumns names {source}, which is not a message column.",
                remedy=f"Valid names: {', '.join(MESSAGE_SCHEMA.names)}.",
            )
        fields.append((name, known))
    return fields


def default_schema(settings: BodySettings, body: pa.Schema) -> pa.Schema:
    """Return the schema for reads without one."""
    fields = [*body, *(known.with_name(name) for name, known in metadata_fields(settings))]
    if settings.bad_records is BadRecords.COLUMN:
        fields.append(pa.field(settings.bad_record_column, pa.binary()))
    schema = pa.schema(fields)
    _check_names(schema)
    return schema


def layout(settings: BodySettings, schema: pa.Schema) -> RowLayout:
    """Assign the columns of a schema; SchemaError if it is invalid."""
    _check_names(schema)
    wanted = {name.lower(): known for name, known in metadata_fields(settings)}
    bad_column = settings.bad_record_column if settings.bad_records is BadRecords.COLUMN else None
    metadata: dict[str, str] = {}
    body = []
    for field in schema:
        known = wanted.pop(field.name.lower(), None)
        if known is not None:
            check_column(field, known, f"{field.name} (the message's {known.name})")
            metadata[field.name] = known.name
        elif bad_column is not None and field.name.lower() == bad_column.lower():
            if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)) or not field.nullable:
                raise SchemaError(
                    f"the column {field.name} for bad records is {type_name(field.type)}.",
                    remedy=f"Declare it as `{field.name} binary` or `{field.name} string`, without NOT NULL.",
                )
            bad_column = field.name
        else:
            if not field.nullable:
                raise SchemaError(
                    f"the body column {field.name} is nullable, but the schema declares it NOT NULL.",
                    remedy="Remove NOT NULL: a body may lack any column. Its members can be NOT NULL.",
                )
            body.append(field)
    if wanted and settings.metadata is not None:
        missing = next(iter(wanted))
        raise SchemaError(
            f"option metadataColumns names {missing}, which is missing in the schema.",
            remedy=f"Add `{missing} {type_name(wanted[missing].type)}` to the schema, or remove the name.",
        )
    if bad_column is not None and bad_column not in schema.names:
        raise SchemaError(
            f"badRecords=column needs the column {bad_column}, which is missing in the schema.",
            remedy=f"Add `{bad_column} binary` to the schema, or name another column with badRecordColumn.",
        )
    return RowLayout(pa.schema(body), metadata, bad_column)


def looks_like_metadata(settings: BodySettings, names: Sequence[str]) -> list[str]:
    """Return columns that are read from bodies but have the name of a message column. Avro and Protobuf define their
    columns, so they have none."""
    if settings.metadata != () or settings.format not in (BodyFormat.JSON, BodyFormat.CSV, BodyFormat.ARROW):
        return []
    return [name for name in names if name in MESSAGE_SCHEMA.names and name != "body"]


def _check_names(schema: pa.Schema) -> None:
    seen = set()
    for name in schema.names:
        if name.lower() in seen:
            raise SchemaError(
                f"duplicate column {name}.",
                remedy="Rename the message's column: metadataColumns accepts `storeTimestamp as stored_at`.",
            )
        seen.add(name.lower())
