"""Hostile requests for every method of the proxy, from the protobuf descriptors of its requests.

For each method: every repeated field and map with one entry, at its bound, beyond it and in 1 MB; every text long;
every number and enumeration at its extremes; more fields than allowed; invalid bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_rocket.proxy import definitions
from spark_rocket.proxy.method_types import METHODS as METHOD_TYPES
from spark_rocket.proxy.method_types import MethodType
from spark_rocket.proxy.transport.limits import MAX_REQUEST_BYTES
from tests.cost.generator import MB, Case, Size
from tests.cost.values import BROKER, GROUP, INT_EXTREMES, LONG_EXTREMES, TOPIC, Variant, colliding
from tests.proxy.caller import METHODS

#: Plausible values by the name of a field, or of a resource. Others are not set.
PLAUSIBLE: dict[str, object] = {
    "topic": TOPIC, "group": GROUP, "topics": TOPIC, "host": "127.0.0.1", "port": 8081, "scheme": 1,
    "body": b"x", "message_id": "01AABBCCDDEEFF00112233445566778899", "message_type": 1, "batch_size": 32,
    "receipt_handle": "x", "recall_handle": "x", "transaction_id": "x", "client_type": 3, "resolution": 1,
    "source": 1, "type": 1, "name": BROKER, "expression": "*", "delivery_attempt": 1, "max_delivery_attempts": 16,
    "lite_topic_set": "x", "max_attempts": 3, "query_offset_policy": 1,
}  # fmt: skip
_SECONDS = {"invisible_duration": 60, "request_timeout": 3}
_UNSET = {"status", "dead_letter_queue", "body_digest", "offset_option"}
_IGNORED = ("recover_orphaned_transaction_command", "verify_message_command")
"""Commands for clients: only their size counts. The messages in them are those of SendMessage."""


@dataclass(frozen=True)
class RpcRequest:
    """The serialized request of a method."""

    method: str
    raw: bytes


VARIANTS = (Variant.KNOWN, Variant.UNIQUE, Variant.COLLIDING)


def rpc_cases(method: str, variants: tuple[Variant, ...] = VARIANTS) -> Iterator[Case]:
    """All requests of a method, with these entries in collections."""
    limit = METHOD_TYPES[method]
    yield _case(method, "plausible", limit, lambda request: None)
    for path, field in paths_of(METHODS[method].input_type):
        if field.is_repeated:
            yield from _collection(method, limit, path, field, variants)
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            yield from _texts(method, limit, path, field)
        elif field.message_type is None:
            for number in _extremes(field):
                yield _case(method, f"{path}={number}", limit, partial(_set, path=path, value=number), is_number=True)
    yield from _raw(method, limit)


def plausible(method: str) -> Any:
    """A request that reaches the depths of its method."""
    request = getattr(definitions, METHODS[method].input_type.name)()
    _fill(request, 0, Variant.KNOWN)
    return request


def paths_of(descriptor: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted paths of all fields, at all levels."""
    for field in descriptor.fields:
        here = f"{path}.{field.name}" if path else field.name
        yield here, field
        if field.message_type is not None and not _is_map(field) and field.name not in _IGNORED:
            yield from paths_of(field.message_type, here)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def fields_of(message: Any) -> int:
    """The fields of a request, at all levels together."""
    count = 0
    for field, value in message.ListFields():
        is_map = _is_map(field)
        entries = value if field.is_repeated else [value]
        count += 3 * len(entries) if is_map else len(entries)  # an entry with its key and value
        if field.message_type is not None and not is_map:
            count += sum(fields_of(each) for each in entries)
    return count


# --- values -----------------------------------------------------------------------------------------------------------


def _fill(message: Any, index: int, variant: Variant) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.name in _UNSET or (field.containing_oneof and message.WhichOneof(field.containing_oneof.name)):
            continue
        if field.name in _SECONDS:
            getattr(message, field.name).seconds = _SECONDS[field.name]
        elif field.message_type is None:
            if field.name in PLAUSIBLE:
                _put(message, field, _varied(field, PLAUSIBLE[field.name], index, variant))
        elif field.message_type.name == "Resource":
            value = getattr(message, field.name)
            resource = value.add() if field.is_repeated else value
            resource.name = str(_varied(field, PLAUSIBLE[field.name], index, variant))
        elif not _is_map(field) and not field.message_type.full_name.startswith("google."):
            value = getattr(message, field.name)
            if not field.is_repeated:
                value.SetInParent()
            _fill(value.add() if field.is_repeated else value, index, variant)


def _varied(field: Any, base: object, index: int, variant: Variant) -> object:
    is_name = isinstance(base, str) and field.name not in ("expression", "host")
    if variant is Variant.KNOWN or not is_name:
        return base
    return colliding(index) if variant is Variant.COLLIDING else f"{base}-{index}"


def _put(message: Any, field: Any, value: Any) -> None:
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def _parent(request: Any, path: str) -> tuple[Any, str]:
    """The message that has the last field of a path, in the first entries of repeated fields."""
    *parents, last = path.split(".")
    message = request
    for name in parents:
        value = getattr(message, name)
        if message.DESCRIPTOR.fields_by_name[name].is_repeated:
            message = value[0] if len(value) else value.add()
        else:
            value.SetInParent()
            message = value
    return message, last


def _set(request: Any, path: str, value: object) -> None:
    message, name = _parent(request, path)
    setattr(message, name, value)


def _extremes(field: Any) -> list[Any]:
    if field.type == field.TYPE_BOOL:
        return [True]
    if field.type == field.TYPE_ENUM:
        return [0, *(each.number for each in field.enum_type.values[-1:]), -1, INT_EXTREMES[-1]]
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return [0.0, -1.0, 3e38, float("inf"), float("nan")]
    return list(LONG_EXTREMES if field.type == field.TYPE_INT64 else INT_EXTREMES)


# --- requests ---------------------------------------------------------------------------------------------------------


def _request(method: str, change: Callable[[Any], None]) -> RpcRequest:
    request = plausible(method)
    change(request)
    return RpcRequest(method, request.SerializeToString())


def _case(
    method: str, label: str, limit: MethodType, change: Callable[[Any], None], *,
    is_beyond: bool = False, is_number: bool = False,
) -> Case:  # fmt: skip
    """A case that knows whether its bytes or fields are too many."""
    if is_number:
        return Case(method, label, partial(_request, method, change), is_number=True)
    request = plausible(method)
    change(request)
    size = request.ByteSize()
    too_much = is_beyond or size > max_bytes(limit) or fields_of(request) > limit.max_fields
    kind = Size.SMALL if size <= 1.1 * MB else Size.FRAME
    return Case(method, label, partial(_request, method, change), kind, too_much)


def max_bytes(limit: MethodType) -> int:
    return limit.max_bytes or MAX_REQUEST_BYTES


def _collection(method: str, limit: MethodType, path: str, field: Any, variants: tuple[Variant, ...]) -> Iterator[Case]:
    entries = limit.max_entries.get(path)
    for variant in variants:
        if variant is not Variant.KNOWN and field.enum_type is not None:
            continue
        each = _entry_bytes(method, path, field, variant)
        most = limit.max_fields if entries is None else entries.most
        fill = MB // each
        counts = {1, most, most + 1, fill} if variant is Variant.KNOWN else {min(most, fill), min(most + 1, fill)}
        for count in sorted(counts):
            change = partial(_extend, path=path, field=field, count=count, variant=variant)
            is_beyond = entries is not None and count > entries.most
            yield _case(method, f"{path}: {count:,} entries, {variant.value}", limit, change, is_beyond=is_beyond)


def _entry_bytes(method: str, path: str, field: Any, variant: Variant) -> int:
    sizes: list[int] = []
    for count in (100, 200):
        request = plausible(method)
        _extend(request, path, field, count, variant)
        sizes.append(request.ByteSize())
    return max((sizes[1] - sizes[0]) // 100, 2)


def _extend(request: Any, path: str, field: Any, count: int, variant: Variant) -> None:
    message, name = _parent(request, path)
    message.ClearField(name)
    value = getattr(message, name)
    is_varied = variant is not Variant.KNOWN
    if field.message_type is None:
        if not is_varied:
            value.extend([PLAUSIBLE.get(name, 1 if field.enum_type is not None else "x")] * count)
        else:
            value.extend(str(_varied(field, "x", at, variant)) for at in range(count))
    elif _is_map(field):
        for at in range(count):
            value[colliding(at) if variant is Variant.COLLIDING else f"k{at}"] = "v"
    else:
        for at in range(count if is_varied else 1):
            _entry(value.add(), field, at, variant)
        if not is_varied:
            value.MergeFrom([value[0]] * (count - 1))


def _entry(entry: Any, field: Any, index: int, variant: Variant) -> None:
    if entry.DESCRIPTOR.name == "Resource":
        entry.name = str(_varied(field, TOPIC, index, variant))
    elif entry.DESCRIPTOR.name == "Duration":
        entry.seconds = index + 1
    else:
        _fill(entry, index, variant)


def _texts(method: str, limit: MethodType, path: str, field: Any) -> Iterator[Case]:
    bound = max_bytes(limit)
    for size in sorted({min(bound, 256 * 1024) - 1024, MB, bound - 1024 if bound > MB else MB}):
        units = ["x"] if size > MB else ["x", "a||b,", "%RETRY%"]
        for unit in units:
            change = partial(_set_text, path=path, unit=unit, size=size, is_bytes=field.type == field.TYPE_BYTES)
            kind = Size.FRAME if size > MB else Size.SMALL
            label = f"{path}: {size:,} characters of {unit!r}"
            yield Case(method, label, partial(_request, method, change), kind, size > bound)


def _set_text(request: Any, path: str, unit: str, size: int, *, is_bytes: bool) -> None:
    text = (unit * (size // len(unit) + 1))[:size]
    _set(request, path, text.encode() if is_bytes else text)


def _raw(method: str, limit: MethodType) -> Iterator[Case]:
    """Bytes without regard to the method's fields."""
    bound = max_bytes(limit)
    unknown = b"\xf8\x07\x01"  # field 127
    sizes = {min(bound, MB), MB}
    for label, unit in (("unknown fields", unknown), ("zeros", b"\x00"), ("empty submessages", b"\x0a\x00")):
        for size in sorted(sizes):
            count = size // len(unit)
            is_beyond = len(unit) * count > bound or (unit is unknown and count > limit.max_fields)
            make = partial(_bytes, method, unit, count)
            yield Case(method, f"{size:,} bytes of {label}", make, is_beyond=is_beyond)


def _bytes(method: str, unit: bytes, count: int) -> RpcRequest:
    return RpcRequest(method, unit * count)
