"""Values of declared fields: plausible ones, which reach the depths of a handler, and hostile ones."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.headers.base import Header, camel_case

TOPIC, GROUP, BROKER, CLUSTER = "cost", "cost-group", "broker-a", "DefaultCluster"
QUEUES = 8
FAKE_ADDRESS = "127.0.0.1:1"
NOW = int(time.time() * 1000)

INT_EXTREMES = (0, -1, -(1 << 31), (1 << 31) - 1)
LONG_EXTREMES = (*INT_EXTREMES, -(1 << 63), (1 << 63) - 1)

#: Plausible values by the name of a field, in headers and bodies. Others are ``x``, 1 and false.
PLAUSIBLE: dict[str, object] = {
    "topic": TOPIC, "t": TOPIC, "defaultTopic": "TBW102", "originTopic": TOPIC, "topicName": TOPIC,
    "group": GROUP, "groupName": GROUP, "consumerGroup": GROUP, "producerGroup": GROUP, "c": GROUP,
    "srcGroup": GROUP, "destGroup": GROUP,
    "brokerName": BROKER, "cluster": CLUSTER, "clusterName": CLUSTER,
    "brokerAddr": FAKE_ADDRESS, "haServerAddr": FAKE_ADDRESS,
    "queueId": 0, "q": 0, "rq": 0, "r": "0", "so": 0, "pt": NOW, "it": 60_000, "popTime": NOW,
    "queueOffset": 0, "offset": 0, "index": 0, "commitOffset": 0, "count": 10,
    "invisibleTime": 60_000, "bornTime": NOW, "pollTime": 0, "suspendTimeoutMillis": 0, "maxMsgNums": 32,
    "sysFlag": 0, "flag": 0, "expType": "TAG", "expressionType": "TAG", "subscription": "*", "subString": "*",
    "exp": "*", "extraInfo": f"0 {NOW} 60000 0 0 {BROKER} 0 0", "initMode": 0,
    "beginTimestamp": 0, "endTimestamp": 1 << 60, "key": "key", "namespace": "ORDER_TOPIC_CONFIG",
    "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0,
    "properties": "", "delayLevel": 0, "timestamp": 0, "brokerId": 0, "bodyCrc32": 0, "reconsumeTimes": 0,
    "statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC, "clientId": "cost-client", "clientID": "cost-client",
    "strategyName": "AVG", "messageModel": "CLUSTERING", "mode": "PULL", "heartbeatTimeoutMillis": 120_000,
    "msgId": "7F00000100002A9F0000000000000000", "consumeType": "CONSUME_PASSIVELY",
    "attributes": "+message.type=NORMAL",
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "popShareQueueNum": 0, "accessKey": "attacker",
    "consumeEnable": True,
}  # fmt: skip


#: Entries of the lists in headers that are one text.
LIST_ENTRIES = {
    "attributes": "+message.type=NORMAL",
    "globalWhiteAddrs": "10.0.0.1",
    "groupPerms": f"{GROUP}=SUB",
    "topicList": TOPIC,
    "topicPerms": f"{TOPIC}=PUB",
    "whiteRemoteAddress": "10.0.0.1",
}


class Variant(Enum):
    """How the entries of a collection differ."""

    KNOWN = "known names"  # plausible strings, so that the handler finds topic and group; numbers differ
    UNIQUE = "new names"
    SAME = "one name"
    COLLIDING = "colliding names"  # of equal Java hash codes, which the index and tags use


def colliding(index: int) -> str:
    """Strings of 24 characters with the same Java hash code."""
    return "".join("Aa" if index >> bit & 1 else "BB" for bit in range(12))


def varied(base: str, variant: Variant, index: int) -> str:
    if variant is Variant.UNIQUE:
        return f"{base}-{index}"
    return colliding(index) if variant is Variant.COLLIDING else base


# --- headers --------------------------------------------------------------------------------------------------------


def wire_name(field: Field[Any]) -> str:
    return str(field.metadata.get("wire") or camel_case(field.name))


def header_type(field: Field[Any]) -> str:
    """``str``, ``Int``, ``Long`` or ``bool``."""
    return str(field.type).partition(" ")[0]


def header_fields(cls: type[Header]) -> tuple[Field[Any], ...]:
    return fields(cls)  # type: ignore[arg-type]  # every header is a dataclass


def header_values(cls: type[Header], changed: dict[str, object] | None = None) -> dict[str, object]:
    """Plausible values of all fields by attribute, with those in ``changed``."""
    values: dict[str, object] = {}
    for field in header_fields(cls):
        kind = header_type(field)
        value = PLAUSIBLE.get(wire_name(field))
        if kind == "str":
            values[field.name] = value if isinstance(value, str) else "x"
        elif kind == "bool":
            values[field.name] = False
        else:
            values[field.name] = value if type(value) is int else 1
    return {**values, **(changed or {})}


# --- bodies ---------------------------------------------------------------------------------------------------------


class Filling:
    """What a generated body has: entries of each collection (1 if not given), their variant, and changed values."""

    def __init__(
        self,
        counts: dict[str, int] | None = None,
        variant: Variant = Variant.KNOWN,
        changed: dict[str, object] | None = None,
        start: int = 0,
    ) -> None:
        """``start``: the number of the first entry, so that several bodies have different ones."""
        self.counts = counts or {}
        self.start = start
        self.variant = variant
        self.changed = changed or {}


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def body_of(cls: type[Body], filling: Filling) -> dict[str, Any]:
    """A body as plain dicts and lists."""
    return _body(cls, filling, "", filling.start)


def _body(cls: Any, filling: Filling, path: str, index: int) -> dict[str, Any]:
    hints = _hints(cls)
    value: dict[str, Any] = {}
    for field in fields(cls):
        wire = wire_name(field)
        here = f"{path}.{wire}" if path else wire
        made = _value(hints[field.name], here, wire, filling, index)
        if made is not None:
            value[wire] = made
    return value


def _value(hint: Any, path: str, wire: str, filling: Filling, index: int) -> Any:
    if path in filling.changed:
        return filling.changed[path]
    plain = _PLAIN.get(hint)
    if plain is not None:
        return plain(wire, filling, index)
    origin = get_origin(hint)
    if origin in (list, dict):
        return _collection(hint, path, wire, filling, index)
    if isinstance(hint, type) and issubclass(hint, Body):
        return _body(hint, filling, path, index)
    (choice,) = (one for one in get_args(hint) if one is not NoneType)
    return _value(choice, path, wire, filling, index)


def _collection(hint: Any, path: str, wire: str, filling: Filling, index: int) -> Any:
    count = filling.counts.get(path, 1)
    if get_origin(hint) is list:
        (entry,) = get_args(hint)
        return [_value(entry, path, wire, filling, index + at) for at in range(count)]
    key, entry = get_args(hint)
    made: dict[str, Any] = {}
    for at in range(index, index + count):
        name = str(at << 32) if key is int else colliding(at) if filling.variant is Variant.COLLIDING else f"k{at}"
        made[name] = _value(entry, path, wire, filling, at)
    return made


def _text(wire: str, filling: Filling, index: int) -> str:
    base = PLAUSIBLE.get(wire)
    return varied(base if isinstance(base, str) else "x", filling.variant, index)


def _number(wire: str, filling: Filling, index: int) -> int:
    base = PLAUSIBLE.get(wire)
    number = base if type(base) is int else 1
    differs = filling.variant is not Variant.SAME and wire in ("pt", "queueId", "codeSet", "subVersion")
    return number + index if differs else number


def _queue(wire: str, filling: Filling, index: int) -> dict[str, object]:
    return {
        "brokerName": BROKER,
        "queueId": index % (1 << 31) if filling.variant is Variant.UNIQUE else index % QUEUES,
        "topic": varied(TOPIC, filling.variant, index),
    }


def _any(wire: str, filling: Filling, index: int) -> object:
    if wire == "b":  # a bit set
        bits = filling.counts.get("bits", 64)
        return base64.b64encode(b"\xff" * (bits // 8)).decode()
    count = filling.counts.get(wire, 1)
    return [[] for _ in range(count)] if count > 1 else None


_PLAIN: dict[Any, Callable[[str, Filling, int], Any]] = {
    str: _text,
    int: _number,
    float: lambda wire, filling, index: 1.5,
    bool: lambda wire, filling, index: PLAUSIBLE.get(wire) is True,
    object: _any,
    MessageQueue: _queue,
}


def collections_in(cls: type[Body]) -> list[str]:
    """The paths of the lists and maps in a body and in the bodies in it, and of fields of any type."""
    return [path for path, kind in _paths(cls, "") if kind == "collection"]


def numbers_in(cls: type[Body]) -> list[str]:
    return [path for path, kind in _paths(cls, "") if kind == "number"]


def strings_in(cls: type[Body]) -> list[str]:
    return [path for path, kind in _paths(cls, "") if kind == "text"]


def _paths(cls: Any, path: str) -> Iterator[tuple[str, str]]:
    hints = _hints(cls)
    for field in fields(cls):
        wire = wire_name(field)
        yield from _paths_of(hints[field.name], f"{path}.{wire}" if path else wire)


def _paths_of(hint: Any, path: str) -> Iterator[tuple[str, str]]:
    if hint in (int, float):
        yield path, "number"
    elif hint is str:
        yield path, "text"
    elif hint is object or get_origin(hint) in (list, dict):
        yield path, "collection"
        inner = get_args(hint)[-1] if get_args(hint) else None
        if isinstance(inner, type) and issubclass(inner, Body):
            yield from _paths(inner, path)
    elif isinstance(hint, type) and issubclass(hint, Body):
        yield from _paths(hint, path)
    else:
        for choice in get_args(hint):
            if choice is not NoneType:
                yield from _paths_of(choice, path)
