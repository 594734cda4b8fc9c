"""The encoding of typed headers as ext fields of a command.

A header is a dataclass; the annotation of a field is its type: ``str``, ``Int`` (32 bits), ``Long`` (64 bits) or
``bool``. Its name on the wire is its own in camel case, unless its metadata has ``wire``. A field without a default is
required; ``None`` is omitted. Unknown fields are ignored, as in every RocketMQ, so that peers of other versions
interoperate.

Thread-safety: headers belong to one thread; tables are built once and then only read.
Corresponds to remoting.CommandCustomHeader and RemotingCommand.decodeCommandCustomHeader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from functools import lru_cache
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from spark_rocket.common.values import Value
from spark_rocket.errors import ProtocolError

Int: TypeAlias = int
Long: TypeAlias = int


class Header(Value):
    """Base class of all typed headers, which are dataclasses without methods for equality and text of their own."""

    __slots__ = ()

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields of this header."""
        return ext_of(self, _own_table(type(self)))

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Decode ext fields; ``ProtocolError`` if a required one is missing or has an invalid type."""
        return build(cls, _own_table(cls), ext)


HeaderT = TypeVar("HeaderT", bound=Header)


class HeaderTable(NamedTuple):
    """A dataclass as its codec needs it: required fields come first, as dataclasses have them."""

    required: tuple[tuple[str, Callable[[str], object]], ...]  # wire name, reader
    optional: tuple[tuple[str, Callable[[str], object], object], ...]  # … and default
    names: tuple[tuple[str, str], ...]  # attribute, wire name


def _number(text: str, limit: int) -> int:
    number = int(text)
    if not -limit <= number < limit:
        raise ValueError(text)
    return number


@lru_cache(maxsize=4096)  # queue ids, flags and counts are few
def _int(text: str) -> int:
    return _number(text, 1 << 31)


def _long(text: str) -> int:
    return _number(text, 1 << 63)


def _bool(text: str) -> bool:
    return text == "true" or text.lower() == "true"  # as Boolean.parseBoolean: anything else is false


_READERS: dict[str, Callable[[str], object]] = {"str": str, "Int": _int, "Long": _long, "bool": _bool}


def camel_case(name: str) -> str:
    """Return ``queue_id`` as in Java: ``queueId``."""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def table_of(cls: type[Header], wire_names: Iterable[str] | None = None) -> HeaderTable:
    """The codec table of a header, with other names on the wire if given (one per field, in order)."""
    every: tuple[Field[Any], ...] = fields(cls)  # type: ignore[arg-type]  # every header is a dataclass
    wires = (
        list(wire_names) if wire_names else [field.metadata.get("wire") or camel_case(field.name) for field in every]
    )
    readers = [_READERS[str(field.type).partition(" ")[0]] for field in every]
    return HeaderTable(
        tuple((wire, reader) for field, wire, reader in zip(every, wires, readers, strict=True) if _is_required(field)),
        tuple(
            (wire, reader, field.default)
            for field, wire, reader in zip(every, wires, readers, strict=True)
            if not _is_required(field)
        ),
        tuple((field.name, wire) for field, wire in zip(every, wires, strict=True)),
    )


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING


_TABLES: dict[type[Header], HeaderTable] = {}


def _own_table(cls: type[Header]) -> HeaderTable:
    table = _TABLES.get(cls)
    if table is None:
        table = _TABLES[cls] = table_of(cls)  # two threads may both build it: the tables are equal
    return table


def build(cls: type[HeaderT], table: HeaderTable, ext: Mapping[str, str]) -> HeaderT:
    """Decode a header of ``cls`` from ext fields named as in ``table``."""
    get = ext.get
    try:
        values: list[Any] = [reader(ext[wire]) for wire, reader in table.required]
        values += [default if (text := get(wire)) is None else reader(text) for wire, reader, default in table.optional]
    except KeyError as error:
        raise ProtocolError(
            f"{cls.__name__} is missing the required field {error.args[0]!r}.",
            remedy="The peer must send every required field.",
        ) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ProtocolError(
            f"{cls.__name__} has an invalid number: {str(error)[:100]}.",
            remedy="The peer must send numbers as decimal text, within 32 or 64 bits.",
        ) from None
    return cls(*values)


def ext_of(header: Header, table: HeaderTable) -> dict[str, str]:
    """Return the ext fields of ``header``, named as in ``table``."""
    ext: dict[str, str] = {}
    for name, wire in table.names:
        value = getattr(header, name)
        if type(value) is str:
            ext[wire] = value
        elif value is not None:
            ext[wire] = "true" if value is True else "false" if value is False else str(value)
    return ext
