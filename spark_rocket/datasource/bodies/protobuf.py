"""Protobuf bodies, by google.protobuf (the extra ``protobuf``) and a FileDescriptorSet.

Types live in their own descriptor pool, so they do not collide with other types of the same names in the process.
Fields have the types of Spark's ``from_protobuf``, except that unsigned numbers get a type that holds all of them.
Fields without presence are never null: proto3 does not distinguish 0 from a missing value. Recursive messages are
rejected.

Belongs to one task.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_rocket.common.extras import pip_install
from spark_rocket.datasource.bodies.decoding import BAD, BodyError, library_text
from spark_rocket.datasource.column_types import TIMESTAMP, list_of
from spark_rocket.datasource.options.bodies import BodySettings
from spark_rocket.errors import OptionError, SchemaError, StateError

_WELL_KNOWN = ("timestamp", "duration", "any", "wrappers", "struct", "empty", "field_mask")
_TIMESTAMP = "google.protobuf.Timestamp"
# By FieldDescriptorProto.Type.
_PLAIN: dict[int, pa.DataType] = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.decimal128(20, 0),
    5: pa.int32(),
    6: pa.decimal128(20, 0),
    7: pa.int64(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.int64(),
    14: pa.string(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
_ENUM = 14
_UNSIGNED_64 = (4, 6)
Read = Callable[[Any], Any]


class ProtobufType:
    """A message type, its columns, and its reader and writer."""

    def __init__(self, settings: BodySettings) -> None:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
        except ImportError:
            raise StateError(
                "bodyFormat=protobuf requires the package protobuf, which is not installed.",
                remedy=f"Run {pip_install('protobuf')} on the driver and on the executors.",
            ) from None
        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(settings.protobuf_descriptor).file
            _add(pool, files)
        except (*BAD, message.DecodeError) as error:
            raise OptionError(
                f"option protobufDescriptor is not a complete FileDescriptorSet: {library_text(error)}.",
                remedy="Create it with protoc --include_imports --descriptor_set_out=….",
            ) from None
        try:
            found = pool.FindMessageTypeByName(settings.protobuf_message)
        except KeyError:
            names = sorted(_names(files))
            raise OptionError(
                f"option protobufMessage is {settings.protobuf_message}, which is missing in the descriptor.",
                remedy=f"Its messages: {', '.join(names[:20]) or 'none'}.",
            ) from None
        self._decode_error = message.DecodeError
        self._class = message_factory.GetMessageClass(found)
        self._descriptor: Any = found
        self.columns = pa.schema(list(_struct(found, ())))

    def reader(self, names: list[str]) -> Callable[[bytes], dict[str, Any]]:
        """Return a function that reads these fields of a body."""
        read = _message_reader([field for field in self._descriptor.fields if field.name in names])

        def read_body(body: bytes) -> dict[str, Any]:
            try:
                message = self._class.FromString(body)
            except self._decode_error:
                raise BodyError(f"it is not a message of type {self._descriptor.full_name}") from None
            return read(message)

        return read_body

    def write(self, row: dict[str, Any]) -> bytes:
        message = self._class()
        _fill(message, self._descriptor, row)
        return bytes(message.SerializeToString())


def _add(pool: Any, files: Any) -> None:
    """Add the files in dependency order; Google's own may be missing in the set."""
    import importlib

    by_name = {file.name: file for file in files}
    added: set[str] = set()

    def add(name: str) -> None:
        if name in added:
            return
        added.add(name)
        file = by_name.get(name)
        if file is None:
            stem = name.removeprefix("google/protobuf/").removesuffix(".proto")
            if stem not in _WELL_KNOWN:
                raise ValueError(f"the imported file {name} is missing")
            module = importlib.import_module(f"google.protobuf.{stem}_pb2")
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
            return
        for needed in file.dependency:
            add(needed)
        pool.AddSerializedFile(file.SerializeToString())

    for name in by_name:
        add(name)


def _names(files: Any) -> list[str]:
    return [f"{file.package}.{kind.name}".lstrip(".") for file in files for kind in file.message_type]


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _entry(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _struct(descriptor: Any, inside: tuple[str, ...]) -> pa.DataType:
    if descriptor.full_name in inside:
        raise SchemaError(
            f"the Protobuf message {descriptor.full_name} is recursive, which a column type does not support.",
            remedy="Read the body as binary, and use from_protobuf in the query.",
        )
    inside = (*inside, descriptor.full_name)
    return pa.struct([(field.name, _column_type(field, inside)) for field in descriptor.fields])


def _column_type(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if _entry(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_single_type(key, inside), _single_type(value, inside))
    single = _single_type(field, inside)
    return list_of(single) if _repeated(field) else single


def _single_type(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if field.message_type is None:
        return _PLAIN[field.type]
    return TIMESTAMP if field.message_type.full_name == _TIMESTAMP else _struct(field.message_type, inside)


def _message_reader(fields: list[Any]) -> Callable[[Any], dict[str, Any]]:
    readers = [(field.name, _field_reader(field)) for field in fields]
    return lambda message: {name: read(message) for name, read in readers}


def _field_reader(field: Any) -> Read:
    name = field.name
    if _entry(field):
        key = _value_reader(field.message_type.fields_by_name["key"])
        value = _value_reader(field.message_type.fields_by_name["value"])
        return lambda message: [(key(one), value(item)) for one, item in getattr(message, name).items()]
    read = _value_reader(field)
    if _repeated(field):
        return lambda message: [read(item) for item in getattr(message, name)]
    if field.has_presence:
        return lambda message: read(getattr(message, name)) if message.HasField(name) else None
    return lambda message: read(getattr(message, name))


def _value_reader(field: Any) -> Read:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda moment: moment.seconds * 1_000_000 + moment.nanos // 1000
        return _message_reader(list(field.message_type.fields))
    if field.type == _ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    return Decimal if field.type in _UNSIGNED_64 else _same


def _same(value: Any) -> Any:
    return value


def _fill(message: Any, descriptor: Any, row: dict[str, Any]) -> None:
    for field in descriptor.fields:
        value = row.get(field.name)
        if value is None:
            continue
        if _entry(field):
            held = field.message_type.fields_by_name["value"]
            target = getattr(message, field.name)
            for key, item in value:
                _check_item(field, item)
                if held.message_type is not None:
                    _fill_value(target[key], held, item)
                else:
                    target[key] = _plain(held, item)
        elif _repeated(field):
            target = getattr(message, field.name)
            for item in value:
                _check_item(field, item)
                if field.message_type is not None:
                    _fill_value(target.add(), field, item)
                else:
                    target.append(_plain(field, item))
        elif field.message_type is not None:
            target = getattr(message, field.name)
            target.SetInParent()
            _fill_value(target, field, value)
        else:
            setattr(message, field.name, _plain(field, value))


def _check_item(field: Any, item: Any) -> None:
    if item is None:
        raise ValueError(f"{field.name} has a null, which Protobuf does not support in lists and maps")


def _fill_value(target: Any, field: Any, value: Any) -> None:
    if field.message_type.full_name == _TIMESTAMP:
        target.FromDatetime(value)
    else:
        _fill(target, field.message_type, value)


def _plain(field: Any, value: Any) -> Any:
    if field.type == _ENUM:
        known = field.enum_type.values_by_name.get(value)
        if known is None:
            raise ValueError(f"invalid value {value!r} of {field.name} for {field.enum_type.full_name}")
        return known.number
    return int(value) if isinstance(value, Decimal) else value
