"""The encoding of typed bodies as JSON.

A body is a dataclass whose fields all have defaults, as in Java: absent or null fields keep theirs, unknown fields are
ignored. The annotation of a field is its type: ``str``, ``int``, ``float``, ``bool``, ``object`` (unchanged),
``list[…]``, ``dict[str | int | MessageQueue, …]`` and other bodies. Its name on the wire is its own in camel case,
unless its metadata has ``wire``. Fields are written in the order of the names, without those that are ``None``.

Thread-safety: bodies belong to one thread; tables are built once and then only read.
Corresponds to remoting.protocol.RemotingSerializable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from types import NoneType
from typing import Any, Self, TypeAlias, get_args, get_origin, get_type_hints

from spark_rocket.common.values import Value
from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.wire.headers.base import camel_case
from spark_rocket.protocol.wire.json import REQUEST_LIMITS, dumps_fastjson, dumps_standard, loads_tolerant

_Reader: TypeAlias = Callable[[Any], Any]
_Table: TypeAlias = tuple[tuple[str, str, _Reader], ...]  # attribute, wire name, reader; sorted by wire name


class Body(Value):
    """Base class of all typed bodies, which are dataclasses without methods for equality and text of their own."""

    __slots__ = ()

    def to_json(self, *, standard: bool = False, pretty: bool = False) -> bytes:
        """Encode like fastjson, or with ``standard`` as standard JSON; ``pretty`` for configuration files."""
        value = self.to_value()
        return dumps_standard(value) if standard else dumps_fastjson(value, pretty=pretty)

    def to_value(self) -> dict[str, Any]:
        """Return plain dicts and lists."""
        value: dict[str, Any] = {}
        for name, wire, _ in _table_of(type(self)):
            item = getattr(self, name)
            if item is not None:
                value[wire] = _plain(item)
        return value

    @classmethod
    def from_json(cls, data: Buffer | str) -> Self:
        """Decode either form; ``ProtocolError`` if it is not JSON or a field has an invalid type."""
        return cls.from_value(loads_tolerant(data))

    @classmethod
    def from_request(cls, data: Buffer) -> Self:
        """Like :meth:`from_json`, for servers: rejects bodies that would take too much time or memory."""
        return cls.from_value(loads_tolerant(data, REQUEST_LIMITS))

    @classmethod
    def from_value(cls, value: object) -> Self:
        """Decode plain dicts and lists."""
        if not isinstance(value, dict):
            raise _wrong(cls.__name__, value)
        known: dict[str, Any] = {}
        for name, wire, read in _table_of(cls):
            item = value.get(wire)
            if item is not None:
                known[name] = read(item)
        return cls(**known)


def _plain(value: Any) -> Any:
    if isinstance(value, Body):
        return value.to_value()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {queue_key(key) if type(key) is MessageQueue else key: _plain(item) for key, item in value.items()}
    if type(value) is MessageQueue:
        return dict(queue_key(value))
    return value


def queue_key(queue: MessageQueue) -> tuple[tuple[str, str | int], ...]:
    """Return a queue in the form for fastjson's object map keys."""
    return ("brokerName", queue.broker_name), ("queueId", queue.queue_id), ("topic", queue.topic)


_TABLES: dict[type[Body], _Table] = {}


def _table_of(cls: type[Body]) -> _Table:
    table = _TABLES.get(cls)
    if table is None:
        hints = get_type_hints(cls)
        rows = [
            (field.name, field.metadata.get("wire") or camel_case(field.name), _reader(hints[field.name]))
            for field in fields(cls)  # type: ignore[arg-type]  # every body is a dataclass
        ]
        table = _TABLES[cls] = tuple(sorted(rows, key=lambda row: row[1]))
    return table


# --- readers ------------------------------------------------------------------------------------------------------


def _reader(hint: Any) -> _Reader:
    """Return the reader of values of the annotated type."""
    simple = _SIMPLE.get(hint)
    if simple is not None:
        return simple
    origin = get_origin(hint)
    if origin is list:
        return _list_reader(_reader(get_args(hint)[0]))
    if origin is dict:
        key, item = get_args(hint)
        return _dict_reader(_reader(key), _reader(item))
    for choice in get_args(hint):  # X | None
        if choice is not NoneType:
            return _reader(choice)
    reader: _Reader = hint.from_value
    return reader


def _list_reader(read: _Reader) -> _Reader:
    def read_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong("a list", value)
        return [read(item) for item in value]

    return read_list


def _dict_reader(read_key: _Reader, read: _Reader) -> _Reader:
    def read_dict(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _wrong("a map", value)
        return {read_key(key): read(item) for key, item in value.items()}

    return read_dict


def _read_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise _wrong("a string", value)


def _read_int(value: Any) -> int:
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = int(value)
        except ValueError:
            raise _wrong("a number", value) from None
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise _wrong("a number", value)
    return value


def _read_float(value: Any) -> float:
    return float(value) if type(value) is float else float(_read_int(value))


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _wrong("true or false", value)


def _read_queue(value: Any) -> MessageQueue:
    if isinstance(value, tuple):
        value = dict(value)
    if not isinstance(value, dict):
        raise _wrong("a message queue", value)
    get = value.get
    return MessageQueue(_read_str(get("topic", "")), _read_str(get("brokerName", "")), _read_int(get("queueId", 0)))


def _keep(value: Any) -> Any:
    return value


_SIMPLE: dict[Any, _Reader] = {
    str: _read_str,
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    object: _keep,
    MessageQueue: _read_queue,
}


def _wrong(wanted: str, value: object) -> ProtocolError:
    shown = repr(value)[:60] if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
    return ProtocolError(
        f"A body has {shown} instead of {wanted}.", remedy="The peer sent a wrong body: check its version."
    )
