"""Select the decoder of a body format, and the columns that a format defines itself; text and variants.

Pure.
"""

from __future__ import annotations

import pyarrow as pa

from spark_rocket.datasource.bodies.decoding import BAD, Decoded, Decoder, OneByOneDecoder, reason
from spark_rocket.datasource.bodies.json_values import STRICT, Rules, parse_value, variant_reader
from spark_rocket.datasource.bodies.nullability import all_nullable
from spark_rocket.datasource.bodies.types import check_types
from spark_rocket.datasource.column_types import VARIANT, same_types, type_name
from spark_rocket.datasource.options.bodies import BodyFormat, BodySettings
from spark_rocket.datasource.time_zones import Zone, zone_of
from spark_rocket.errors import OptionError, SchemaError


class TextDecoder:
    """Decodes UTF-8, all bodies at once."""

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


def known_columns(settings: BodySettings) -> pa.Schema:
    """Return the columns of the format, for reads without a schema."""
    if settings.format is BodyFormat.TEXT:
        return pa.schema([pa.field("value", pa.string())])
    if settings.format is BodyFormat.VARIANT:
        return pa.schema([pa.field("value", VARIANT)])
    if settings.format is BodyFormat.AVRO:
        from spark_rocket.datasource.bodies.avro import AvroSchema

        return AvroSchema(settings).columns
    if settings.format is BodyFormat.PROTOBUF:
        from spark_rocket.datasource.bodies.protobuf import ProtobufType

        return ProtobufType(settings).columns
    raise SchemaError(
        f"bodyFormat={settings.format.value} needs a schema.",
        remedy='Declare the columns of the bodies: .schema("id bigint, name string"). In SQL, use a temporary view '
        "instead of a table: CREATE TEMPORARY VIEW v (id bigint, name string) USING rocket OPTIONS (…).",
    )


def decoder(settings: BodySettings, body: pa.Schema) -> Decoder:
    """Return the decoder for the columns ``body``; SchemaError if it is impossible. Modules are imported lazily.

    It ignores NOT NULL (``nullability.py``).
    """
    form = settings.format
    check_types(body, settings, "READ")
    fields = pa.schema([item.with_type(all_nullable(item.type)) for item in body])
    if not len(body) and form in (BodyFormat.CSV, BodyFormat.ARROW):
        raise SchemaError(
            f"bodyFormat={form.value} needs at least one column of the body.", remedy="Declare all of them."
        )
    match form:
        case BodyFormat.JSON:
            from spark_rocket.datasource.bodies.epoch_units import check_units
            from spark_rocket.datasource.bodies.json_reader import JsonDecoder

            check_units(settings.json_epoch_units, body)
            return JsonDecoder(fields, Rules(_zone(settings), settings.json_quoted_values, settings.json_epoch_units))
        case BodyFormat.CSV:
            from spark_rocket.datasource.bodies.csv_reader import CsvDecoder

            return CsvDecoder(fields, settings.csv_delimiter, settings.csv_escape, _zone(settings))
        case BodyFormat.ARROW:
            from spark_rocket.datasource.bodies.arrow_bodies import ArrowDecoder

            return ArrowDecoder(fields)
        case BodyFormat.AVRO:
            from spark_rocket.datasource.bodies.avro import AvroSchema

            schema = AvroSchema(settings)
            check_known(body, schema.columns, "avroSchema")
            return OneByOneDecoder(fields, schema.read)
        case BodyFormat.PROTOBUF:
            from spark_rocket.datasource.bodies.protobuf import ProtobufType

            kind = ProtobufType(settings)
            check_known(body, kind.columns, "protobufMessage")
            return OneByOneDecoder(fields, kind.reader(fields.names))
    wanted = VARIANT if form is BodyFormat.VARIANT else pa.string()
    if [type_name(kind) for kind in body.types] != [type_name(wanted)]:
        raise SchemaError(
            f"bodyFormat={form.value} has one column of type {type_name(wanted)}, but the schema has "
            f"{type_name(pa.struct(list(body))) if len(body) else 'none'}.",
            remedy=f"Declare `value {type_name(wanted)}`; name columns of the message in metadataColumns.",
        )
    if form is BodyFormat.TEXT:
        return TextDecoder(fields)
    name, variant_of = fields.names[0], variant_reader()
    return OneByOneDecoder(fields, lambda body: {name: variant_of(parse_value(body, STRICT))})


def _zone(settings: BodySettings) -> Zone:
    name = settings.time_zone or settings.default_zone
    try:
        return zone_of(name)
    except ValueError:
        raise OptionError(
            f"the session's time zone {name} is unknown to Python.",
            remedy="Set the option timeZone, for example to Asia/Shanghai, +08:00 or UTC.",
        ) from None


def check_known(body: pa.Schema, known: pa.Schema, option: str) -> None:
    """Reject columns that the format's own schema does not have, or has with another type."""
    for field in body:
        if field.name not in known.names:
            raise SchemaError(
                f"the schema has a column {field.name}, which is missing in {option}.",
                remedy=f"It has {', '.join(known.names)}; name columns of the message in metadataColumns.",
            )
        wanted = known.field(field.name).type
        if not same_types(field.type, wanted):
            raise SchemaError(
                f"the column {field.name} is {type_name(wanted)}, not {type_name(field.type)}.",
                remedy="Declare that type and cast in the query, or omit the schema.",
            )
