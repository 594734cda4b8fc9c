"""Message trace: the events that clients write to RMQ_SYS_TRACE_TOPIC about sent, consumed and recalled messages.

A trace message's body is UTF-8 text: records, each terminated by 0x02, of fields separated by 0x01. Java's null is the
word ``null``; booleans are ``true`` and ``false``; times are milliseconds since the epoch, costs milliseconds.

==================  ================================================================================================
record              fields after its name
==================  ================================================================================================
``Pub``             time, region, group, topic, msgId, tags, keys, store host, body length, cost, message type,
                    offset msgId, success (older clients: without the offset msgId; some newer: client host behind)
``SubBefore``       time, region, group, request id, msgId, retry times, keys
``SubAfter``        request id, msgId, cost, success, keys, context code, time, group (older: without the last three)
``EndTransaction``  time, region, group, topic, msgId, tags, keys, store host, message type, transaction id, state,
                    from a check
``Recall``          time, region, group, topic, msgId, success
==================  ================================================================================================

The message types are numbers: 0 normal, 1 half, 2 commit, 3 delayed, 4 ordered, 5 priority. The trace message's KEYS
are the msgIds and keys of all its records, so that a query by key finds it; it has records of other messages too.

Pure. Corresponds to org.apache.rocketmq.client.trace.{TraceDataEncoder, TraceContext, TraceBean, TraceType}.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum

NORMAL_MSG, TRANS_MSG_HALF, TRANS_MSG_COMMIT, DELAY_MSG, ORDER_MSG, PRIORITY_MSG = range(6)

_FIELD_END = "\x01"  # CONTENT_SPLITOR
_RECORD_END = "\x02"  # FIELD_SPLITOR
_NULL = "null"


class TraceType(Enum):
    """The kind of an event."""

    Pub = "Pub"
    SubBefore = "SubBefore"
    SubAfter = "SubAfter"
    EndTransaction = "EndTransaction"
    Recall = "Recall"


@dataclass(slots=True)
class TraceBean:
    """The message of an event. Fields that a record does not have keep their defaults."""

    topic: str = ""
    msg_id: str = ""
    offset_msg_id: str = ""
    tags: str | None = None
    keys: str | None = None
    store_host: str = ""
    client_host: str = ""
    body_length: int = 0
    retry_times: int = 0
    msg_type: int = NORMAL_MSG
    transaction_id: str | None = None
    transaction_state: str = "UNKNOW"
    from_transaction_check: bool = False


@dataclass(slots=True)
class TraceContext:
    """One event. ``SubBefore`` and ``SubAfter`` of one call of a listener have the same request id."""

    trace_type: TraceType
    time_stamp: int = 0
    region_id: str = ""
    group_name: str = ""
    cost_time: int = 0
    success: bool = True
    request_id: str = ""
    context_code: int = 0
    trace_beans: list[TraceBean] = field(default_factory=list)


_WHERE = ("time_stamp", "region_id", "group_name")
_FIELDS: dict[TraceType, tuple[str, ...]] = {
    TraceType.Pub: (
        *_WHERE, "topic", "msg_id", "tags", "keys", "store_host", "body_length", "cost_time", "msg_type",
        "offset_msg_id", "success",
    ),
    TraceType.SubBefore: (*_WHERE, "request_id", "msg_id", "retry_times", "keys"),
    TraceType.SubAfter: (
        "request_id", "msg_id", "cost_time", "success", "keys", "context_code", "time_stamp", "group_name",
    ),
    TraceType.EndTransaction: (
        *_WHERE, "topic", "msg_id", "tags", "keys", "store_host", "msg_type", "transaction_id", "transaction_state",
        "from_transaction_check",
    ),
    TraceType.Recall: (*_WHERE, "topic", "msg_id", "success"),
}  # fmt: skip
_OLD_PUB = tuple(name for name in _FIELDS[TraceType.Pub] if name != "offset_msg_id")
_OLD_SUB_AFTER_COUNT = 5
_OF_CONTEXT = frozenset(field.name for field in fields(TraceContext))
_READERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("time_stamp", "cost_time", "context_code", "body_length", "retry_times", "msg_type"), int),
    **dict.fromkeys(("success", "from_transaction_check"), lambda text: text.lower() == "true"),
    **dict.fromkeys(("tags", "keys", "transaction_id"), lambda text: None if text == _NULL else text),
}


def encode_trace_data(context: TraceContext) -> str:
    """Encode the records of an event: one for each of its messages."""
    names = _FIELDS[context.trace_type]
    records = []
    for bean in context.trace_beans:
        texts = [_text(getattr(context if name in _OF_CONTEXT else bean, name)) for name in names]
        records.append(_FIELD_END.join((context.trace_type.value, *texts)) + _RECORD_END)
    return "".join(records)


def _text(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).replace(_FIELD_END, " ").replace(_RECORD_END, " ")


def trace_keys(context: TraceContext) -> list[str]:
    """Return the distinct keys of the trace message, in order."""
    keys: dict[str, None] = {}
    for bean in context.trace_beans:
        keys[bean.msg_id] = None
        keys.update(dict.fromkeys((bean.keys or "").split()))
    return [key for key in keys if key]


def decode_trace_data(body: bytes | bytearray | memoryview | str) -> list[TraceContext]:
    """Decode the events in a trace message's body. Damaged records and other kinds are skipped."""
    text = body if isinstance(body, str) else bytes(body).decode(errors="replace")
    found = (_decode(*record.split(_FIELD_END)) for record in text.split(_RECORD_END) if record)
    return [context for context in found if context is not None]


def _decode(name: str, *values: str) -> TraceContext | None:
    try:
        kind = TraceType(name)
        names = _FIELDS[kind]
        required = _OLD_SUB_AFTER_COUNT if kind is TraceType.SubAfter else len(names)
        if kind is TraceType.Pub:
            names, required = (*names, "client_host"), len(_OLD_PUB)
            if len(values) == len(_OLD_PUB):
                names = _OLD_PUB
        if len(values) < required:
            return None
        context, bean = TraceContext(kind), TraceBean()
        context.trace_beans.append(bean)
        for name, value in zip(names, values, strict=False):
            setattr(context if name in _OF_CONTEXT else bean, name, _READERS.get(name, str)(value))
    except ValueError:
        return None
    return context
