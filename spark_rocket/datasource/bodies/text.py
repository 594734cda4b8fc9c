"""Bodies that are one value: text, and variants (any JSON value). Pure."""

from __future__ import annotations

import pyarrow as pa

from spark_rocket.datasource.bodies.decoding import BAD, Decoded, decode_each, reason
from spark_rocket.datasource.bodies.json_values import parse_value, variant_of


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
