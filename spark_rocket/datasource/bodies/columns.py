"""Assign the columns of typed rows to the body, the message and bad records. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from spark_rocket.datasource.options.bodies import BadRecords, BodyFormat, BodySettings
from spark_rocket.datasource.schema import SOURCE_SCHEMA, check_column
from spark_rocket.errors import SchemaError

_BY_KEY = {field.name.lower(): field for field in SOURCE_SCHEMA.fields}
_ALL = tuple((name, name) for name in SOURCE_SCHEMA.names if name != "body")


@dataclass(frozen=True)
class Layout:
    """The columns of a schema, by source."""

    body: StructType
    metadata: dict[str, str]
    """The message's column for each column that belongs to the message."""
    bad_column: str | None


def metadata_fields(settings: BodySettings) -> list[tuple[str, StructField]]:
    """Return the columns of ``metadataColumns``: their names in the rows, and their fields."""
    fields = []
    for source, name in settings.metadata if settings.metadata is not None else _ALL:
        known = _BY_KEY.get(source.lower())
        if known is None:
            raise SchemaError(
                f"option metadataColumns names {source}, which is not a message column.",
                remedy=f"Valid names: {', '.join(SOURCE_SCHEMA.names)}.",
            )
        fields.append((name, known))
    return fields


def default_schema(settings: BodySettings, body: StructType) -> StructType:
    """Return the schema for reads without one."""
    fields = list(body.fields)
    fields += [StructField(name, known.dataType, known.nullable) for name, known in metadata_fields(settings)]
    if settings.bad_records is BadRecords.COLUMN:
        fields.append(StructField(settings.bad_record_column, BinaryType()))
    _check_names(StructType(fields))
    return StructType(fields)


def layout(settings: BodySettings, schema: StructType) -> Layout:
    """Assign the columns of a schema; SchemaError if it is invalid."""
    _check_names(schema)
    wanted = {name.lower(): known for name, known in metadata_fields(settings)}
    bad_column = settings.bad_record_column if settings.bad_records is BadRecords.COLUMN else None
    metadata: dict[str, str] = {}
    body = []
    for field in schema.fields:
        known = wanted.pop(field.name.lower(), None)
        if known is not None:
            check_column(field, known, f"{field.name} (the message's {known.name})")
            metadata[field.name] = known.name
        elif bad_column is not None and field.name.lower() == bad_column.lower():
            if not isinstance(field.dataType, (StringType, BinaryType)) or not field.nullable:
                raise SchemaError(
                    f"the column {field.name} for bad records is {field.dataType.simpleString()}.",
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
            remedy=f"Add `{missing} {wanted[missing].dataType.simpleString()}` to the schema, or remove the name.",
        )
    if bad_column is not None and bad_column not in schema.names:
        raise SchemaError(
            f"badRecords=column needs the column {bad_column}, which is missing in the schema.",
            remedy=f"Add `{bad_column} binary` to the schema, or name another column with badRecordColumn.",
        )
    return Layout(StructType(body), metadata, bad_column)


def looks_like_metadata(settings: BodySettings, schema: StructType) -> list[str]:
    """Return columns that are read from bodies but have the name of a message column. Avro and Protobuf define their
    columns, so they have none."""
    if settings.metadata != () or settings.format not in (BodyFormat.JSON, BodyFormat.CSV, BodyFormat.ARROW):
        return []
    return [name for name in schema.names if name in SOURCE_SCHEMA.names and name != "body"]


def _check_names(schema: StructType) -> None:
    seen = set()
    for name in schema.names:
        if name.lower() in seen:
            raise SchemaError(
                f"duplicate column {name}.",
                remedy="Rename the message's column: metadataColumns accepts `storeTimestamp as stored_at`.",
            )
        seen.add(name.lower())


def same_types(given: DataType, known: DataType) -> bool:
    """Return whether two types are equal except for nullability and missing struct fields in ``given``."""
    if isinstance(given, StructType) and isinstance(known, StructType):
        return all(
            field.name in known.names and same_types(field.dataType, known[field.name].dataType) for field in given
        )
    if isinstance(given, ArrayType) and isinstance(known, ArrayType):
        return same_types(given.elementType, known.elementType)
    if isinstance(given, MapType) and isinstance(known, MapType):
        return same_types(given.keyType, known.keyType) and same_types(given.valueType, known.valueType)
    return bool(given == known)
