"""The protocol's messages, as classes: ``definitions.SendMessageRequest(...)``, ``definitions.Code.OK``.

They are built from messaging_service.proto when they are first asked for, in a descriptor pool of their own. Generated
code would register in protobuf's one default pool, where RocketMQ's own Python client registers the same names: a
process that imports both would fail, whichever comes first.

Messages of other services (health, reflection) are made from their own text by :class:`Definitions`.

Thread-safety: all of it; what is built once does not change.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{PACKAGE}.MessagingService"
FILE = "apache/rocketmq/v2/messaging_service.proto"

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: dict[str, Any] = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
}
_TOKEN = re.compile(r'"[^"]*"|[\w.]+|[{}()<>,;=]')


class Definitions:
    """The messages and enumerations of one file, by their names."""

    def __init__(self, text: str, file_name: str) -> None:
        file = _Parser(text, file_name).file()
        self.pool = descriptor_pool.DescriptorPool()
        for imported in (duration_pb2, timestamp_pb2):
            if imported.DESCRIPTOR.name in file.dependency:
                self.pool.AddSerializedFile(imported.DESCRIPTOR.serialized_pb)
        self.pool.AddSerializedFile(file.SerializeToString())
        self.descriptor = self.pool.FindFileByName(file_name)
        self.types: dict[str, Any] = {
            name: message_factory.GetMessageClass(message)
            for name, message in self.descriptor.message_types_by_name.items()
        }
        self.types.update((name, EnumTypeWrapper(enum)) for name, enum in self.descriptor.enum_types_by_name.items())

    def well_known(self, name: str) -> Any:
        """``Timestamp`` or ``Duration``, of this pool."""
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"google.protobuf.{name}"))


@cache
def messaging() -> Definitions:
    """Those of the messaging service."""
    found = Definitions(files(__package__).joinpath("messaging_service.proto").read_text("utf-8"), FILE)
    found.types |= {name: found.well_known(name) for name in ("Duration", "Timestamp")}
    return found


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        found = messaging().types[name]
    except KeyError:
        raise AttributeError(f"The protocol has no message or enumeration {name}.") from None
    globals()[name] = found
    return found


class _Parser:
    """A file's text to its descriptor."""

    def __init__(self, text: str, file_name: str) -> None:
        self._tokens = _TOKEN.findall(re.sub(r"//[^\n]*", "", text))
        self._at = 0
        self._file = descriptor_pb2.FileDescriptorProto(name=file_name)

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        file = self._file
        while self._at < len(self._tokens):
            word = self._next()
            if word == "syntax":
                self._expect("=")
                file.syntax = self._next().strip('"')
                self._expect(";")
            elif word == "package":
                file.package = self._next()
                self._expect(";")
            elif word == "import":
                file.dependency.append(self._next().strip('"'))
                self._expect(";")
            elif word == "enum":
                self._enum(file.enum_type.add())
            elif word == "message":
                self._message(file.message_type.add(), f".{file.package}")
            elif word == "service":
                self._service(file.service.add())
            else:
                raise ValueError(f"{file.name}: {word!r} begins no definition")
        _Resolver(file).resolve()
        return file

    def _next(self) -> str:
        self._at += 1
        token: str = self._tokens[self._at - 1]
        return token

    def _expect(self, *tokens: str) -> None:
        for token in tokens:
            found = self._next()
            if found != token:
                raise ValueError(f"{self._file.name}: {found!r} where {token!r} belongs")

    def _take(self, token: str) -> bool:
        if self._tokens[self._at] != token:
            return False
        self._at += 1
        return True

    def _enum(self, enum: Any) -> None:
        enum.name = self._next()
        self._expect("{")
        while not self._take("}"):
            value = enum.value.add(name=self._next())
            self._expect("=")
            value.number = int(self._next())
            self._expect(";")

    def _message(self, message: Any, scope: str) -> None:
        message.name = self._next()
        scope = f"{scope}.{message.name}"
        self._expect("{")
        optional: list[Any] = []
        while not self._take("}"):
            if self._take("enum"):
                self._enum(message.enum_type.add())
            elif self._take("message"):
                self._message(message.nested_type.add(), scope)
            elif self._take("oneof"):
                message.oneof_decl.add(name=self._next())
                self._expect("{")
                while not self._take("}"):
                    self._field(message, scope).oneof_index = len(message.oneof_decl) - 1
            elif self._take("optional"):
                optional.append(self._field(message, scope))
            else:
                repeated = self._take("repeated")
                field = self._field(message, scope)
                if repeated:
                    field.label = _Field.LABEL_REPEATED
        for field in optional:  # behind the real ones, as the language wants it
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def _field(self, message: Any, scope: str) -> Any:
        kind = self._next()
        field = message.field.add(label=_Field.LABEL_OPTIONAL)
        if kind == "map":
            self._expect("<")
            key = self._next()
            self._expect(",")
            value = self._next()
            self._expect(">")
        field.name = self._next()
        self._expect("=")
        field.number = int(self._next())
        self._expect(";")
        if kind == "map":
            entry = message.nested_type.add(name=f"{field.name.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            for number, (name, of) in enumerate((("key", key), ("value", value)), 1):
                _set_type(entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL), of)
            field.label = _Field.LABEL_REPEATED
            kind = f"{scope}.{entry.name}"
        _set_type(field, kind)
        return field

    def _service(self, service: Any) -> None:
        service.name = self._next()
        self._expect("{")
        while not self._take("}"):
            self._expect("rpc")
            method = service.method.add(name=self._next())
            self._expect("(")
            method.client_streaming = self._take("stream")
            method.input_type = self._next()
            self._expect(")", "returns", "(")
            method.server_streaming = self._take("stream")
            method.output_type = self._next()
            self._expect(")", ";")


class _Resolver:
    """Names of types to full names, and whether each is a message or an enumeration."""

    def __init__(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        self._file = file
        self._enums: set[str] = set()
        self._messages: set[str] = set()

    def resolve(self) -> None:
        root = f".{self._file.package}"
        self._enums.update(f"{root}.{enum.name}" for enum in self._file.enum_type)
        for message in self._file.message_type:
            self._collect(message, root)
        for message in self._file.message_type:
            self._fields(message, f"{root}.{message.name}")
        for service in self._file.service:
            for method in service.method:
                method.input_type = self._full(method.input_type, root)
                method.output_type = self._full(method.output_type, root)

    def _collect(self, message: Any, scope: str) -> None:
        name = f"{scope}.{message.name}"
        self._messages.add(name)
        self._enums.update(f"{name}.{enum.name}" for enum in message.enum_type)
        for nested in message.nested_type:
            self._collect(nested, name)

    def _fields(self, message: Any, scope: str) -> None:
        for nested in message.nested_type:
            self._fields(nested, f"{scope}.{nested.name}")
        for field in message.field:
            if field.type_name:
                field.type_name = self._full(field.type_name, scope)
                field.type = _Field.TYPE_ENUM if field.type_name in self._enums else _Field.TYPE_MESSAGE

    def _full(self, name: str, scope: str) -> str:
        if name.startswith("."):
            return name
        while scope:
            full = f"{scope}.{name}"
            if full in self._enums or full in self._messages:
                return full
            scope = scope.rpartition(".")[0]
        if name.startswith("google.protobuf."):
            return f".{name}"
        raise ValueError(f"{self._file.name}: {name} is not defined")


def _set_type(field: Any, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind  # message or enumeration: seen when all are known
