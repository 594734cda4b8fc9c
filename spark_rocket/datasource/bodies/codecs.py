"""From settings to the decoder of a body format, and to the columns that a format defines itself; text and variants.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType, VariantType

from spark_rocket.datasource.bodies.columns import same_types
from spark_rocket.datasource.bodies.decoding import BAD, Decoded, Decoder, decode_each, reason
from spark_rocket.datasource.bodies.json_values import parse_value, variant_of
from spark_rocket.datasource.bodies.settings import BodyFormat, BodySettings
from spark_rocket.errors import SchemaError


class TextDecoder:
    """UTF-8, looked at for all bodies at once."""

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = fields

    def decode(self, bodies: pa.Array) -> Decoded:
        try:
            return Decoded([bodies.cast(pa.string())])
        except pa.ArrowInvalid:
            texts: list[str | None] = []
            bad: dict[int, str] = {}
            for index, body in enumerate(bodies.to_pylist()):
                try:
                    texts.append(body.decode())
                except BAD as error:
                    texts.append(None)
                    bad[index] = reason(error)
            return Decoded([pa.array(texts, pa.string())], bad)


class VariantDecoder:
    """JSON of any shape, built one by one by PySpark's own builder: Arrow knows no variants."""

    def __init__(self, fields: pa.Schema) -> None:
        self._fields = fields
        self._name = fields.names[0]

    def decode(self, bodies: pa.Array) -> Decoded:
        return decode_each(bodies, self._fields, lambda body: {self._name: variant_of(parse_value(body))})


def known_columns(settings: BodySettings) -> StructType:
    """The columns of the format, where the user gives no schema."""
    if settings.format is BodyFormat.TEXT:
        return StructType([StructField("value", StringType())])
    if settings.format is BodyFormat.VARIANT:
        return StructType([StructField("value", VariantType())])
    if settings.format is BodyFormat.AVRO:
        from spark_rocket.datasource.bodies.avro import AvroSchema

        return AvroSchema(settings).columns
    if settings.format is BodyFormat.PROTOBUF:
        from spark_rocket.datasource.bodies.protobuf import ProtobufType

        return ProtobufType(settings).columns
    raise SchemaError(
        f"bodyFormat={settings.format.value} needs a schema.",
        remedy='Give the columns of the bodies: .schema("id bigint, name string"). In SQL, use a temporary view '
        "instead of a table: CREATE TEMPORARY VIEW v (id bigint, name string) USING rocket OPTIONS (…).",
    )


def decoder(settings: BodySettings, body: StructType) -> Decoder:
    """What decodes bodies to the columns ``body``; SchemaError where it cannot."""
    fields = to_arrow_schema(body, timezone="UTC")
    return _MAKERS[settings.format](settings, body, fields)


def _json(settings: BodySettings, body: StructType, fields: pa.Schema) -> Decoder:
    from spark_rocket.datasource.bodies.json_reader import JsonDecoder

    return JsonDecoder(fields)


def _csv(settings: BodySettings, body: StructType, fields: pa.Schema) -> Decoder:
    from spark_rocket.datasource.bodies.csv_reader import CsvDecoder

    if not body.fields:
        raise SchemaError("bodyFormat=csv needs at least one column of the body.", remedy="Declare all of them.")
    return CsvDecoder(fields, settings.csv_delimiter)


def _arrow(settings: BodySettings, body: StructType, fields: pa.Schema) -> Decoder:
    from spark_rocket.datasource.bodies.arrow_bodies import ArrowDecoder

    if not body.fields:
        raise SchemaError("bodyFormat=arrow needs at least one column of the body.", remedy="Declare one.")
    return ArrowDecoder(fields)


def _text(settings: BodySettings, body: StructType, fields: pa.Schema) -> Decoder:
    from spark_rocket.datasource.bodies.codecs import TextDecoder, VariantDecoder

    variant = settings.format is BodyFormat.VARIANT
    wanted = VariantType() if variant else StringType()
    if [field.dataType for field in body.fields] != [wanted]:
        raise SchemaError(
            f"bodyFormat={settings.format.value} is one column of type {wanted.simpleString()}, and the schema has "
            f"{body.simpleString() if body.fields else 'none'}.",
            remedy=f"Declare `value {wanted.simpleString()}`; columns of the message are named in metadataColumns.",
        )
    return VariantDecoder(fields) if variant else TextDecoder(fields)


def _avro(settings: BodySettings, body: StructType, fields: pa.Schema) -> Decoder:
    from spark_rocket.datasource.bodies.avro import AvroDecoder, AvroSchema

    schema = AvroSchema(settings)
    check_known(body, schema.columns, "avroSchema")
    return AvroDecoder(fields, schema)


def _protobuf(settings: BodySettings, body: StructType, fields: pa.Schema) -> Decoder:
    from spark_rocket.datasource.bodies.protobuf import ProtobufDecoder, ProtobufType

    kind = ProtobufType(settings)
    check_known(body, kind.columns, "protobufMessage")
    return ProtobufDecoder(fields, kind)


def check_known(body: StructType, known: StructType, option: str) -> None:
    """Refuse columns that the format's own schema does not have so."""
    for field in body.fields:
        if field.name not in known.names:
            raise SchemaError(
                f"the schema has a column {field.name}, and what {option} describes has not.",
                remedy=f"It has {', '.join(known.names)}; columns of the message are named in metadataColumns.",
            )
        wanted = known[field.name].dataType
        if not same_types(field.dataType, wanted):
            raise SchemaError(
                f"the column {field.name} is {wanted.simpleString()}, not {field.dataType.simpleString()}.",
                remedy="Declare it so, and cast in the query; without a schema it is so by itself.",
            )


_MAKERS: dict[BodyFormat, Callable[[BodySettings, StructType, pa.Schema], Decoder]] = {
    BodyFormat.JSON: _json,
    BodyFormat.CSV: _csv,
    BodyFormat.ARROW: _arrow,
    BodyFormat.TEXT: _text,
    BodyFormat.VARIANT: _text,
    BodyFormat.AVRO: _avro,
    BodyFormat.PROTOBUF: _protobuf,
}
