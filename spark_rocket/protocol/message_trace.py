"""Message trace: what clients write to RMQ_SYS_TRACE_TOPIC about each message sent, consumed, decided or recalled.

A trace message's body is UTF-8 text: records, each ended by 0x02, of fields with 0x01 between. What is null in Java is
the word ``null``; booleans are ``true`` and ``false``; times are milliseconds since the epoch, costs milliseconds.

==================  ================================================================================================
record              fields behind its name
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

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

NORMAL_MSG, TRANS_MSG_HALF, TRANS_MSG_COMMIT, DELAY_MSG, ORDER_MSG, PRIORITY_MSG = range(6)

_FIELD_END = "\x01"  # CONTENT_SPLITOR
_RECORD_END = "\x02"  # FIELD_SPLITOR
_NULL = "null"


class TraceType(Enum):
    """What happened to a message."""

    Pub = "Pub"
    SubBefore = "SubBefore"
    SubAfter = "SubAfter"
    EndTransaction = "EndTransaction"
    Recall = "Recall"


@dataclass(slots=True)
class TraceBean:
    """The message. Fields that a record has no place for keep their defaults."""

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


def encode_trace_data(context: TraceContext) -> str:
    """The records of an event: one for each of its messages."""
    return "".join(
        _FIELD_END.join((context.trace_type.value, *map(_text, _fields(context, bean)))) + _RECORD_END
        for bean in context.trace_beans
    )


def trace_keys(context: TraceContext) -> list[str]:
    """What the trace message is to be found by, in order and each once."""
    keys: dict[str, None] = {}
    for bean in context.trace_beans:
        keys[bean.msg_id] = None
        keys.update(dict.fromkeys((bean.keys or "").split()))
    return [key for key in keys if key]


def decode_trace_data(body: bytes | bytearray | memoryview | str) -> list[TraceContext]:
    """The events in a trace message's body. Records that are damaged or of another kind are left out."""
    text = body if isinstance(body, str) else bytes(body).decode(errors="replace")
    found = (_decode(record.split(_FIELD_END)) for record in text.split(_RECORD_END) if record)
    return [context for context in found if context is not None]


def _fields(context: TraceContext, bean: TraceBean) -> Sequence[object]:
    where = (context.time_stamp, context.region_id, context.group_name)
    match context.trace_type:
        case TraceType.Pub:
            message = (bean.topic, bean.msg_id, bean.tags, bean.keys, bean.store_host, bean.body_length)
            return (*where, *message, context.cost_time, bean.msg_type, bean.offset_msg_id, context.success)
        case TraceType.SubBefore:
            return (*where, context.request_id, bean.msg_id, bean.retry_times, bean.keys)
        case TraceType.SubAfter:
            result = (context.cost_time, context.success, bean.keys, context.context_code)
            return (context.request_id, bean.msg_id, *result, context.time_stamp, context.group_name)
        case TraceType.EndTransaction:
            message = (bean.topic, bean.msg_id, bean.tags, bean.keys, bean.store_host, bean.msg_type)
            return (*where, *message, bean.transaction_id, bean.transaction_state, bean.from_transaction_check)
        case TraceType.Recall:
            return (*where, bean.topic, bean.msg_id, context.success)


def _text(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).replace(_FIELD_END, " ").replace(_RECORD_END, " ")


def _decode(line: list[str]) -> TraceContext | None:
    try:
        kind = TraceType(line[0])
        return _decode_known(kind, line)
    except (ValueError, IndexError):
        return None


def _decode_known(kind: TraceType, line: list[str]) -> TraceContext:
    context, bean = TraceContext(kind), TraceBean()
    context.trace_beans.append(bean)
    if kind is TraceType.SubAfter:
        context.request_id, bean.msg_id = line[1], line[2]
        context.cost_time, context.success, bean.keys = int(line[3]), _true(line[4]), _known(line[5])
        if len(line) >= 7:
            context.context_code = int(line[6])
        if len(line) >= 8:
            context.time_stamp = int(line[7])
        if len(line) >= 9:
            context.group_name = line[8]
        return context
    context.time_stamp, context.region_id, context.group_name = int(line[1]), line[2], line[3]
    if kind is TraceType.SubBefore:
        context.request_id, bean.msg_id = line[4], line[5]
        bean.retry_times, bean.keys = int(line[6]), _known(line[7])
        return context
    bean.topic, bean.msg_id = line[4], line[5]
    if kind is TraceType.Recall:
        context.success = _true(line[6])
        return context
    bean.tags, bean.keys, bean.store_host = _known(line[6]), _known(line[7]), line[8]
    if kind is TraceType.EndTransaction:
        bean.msg_type, bean.transaction_id, bean.transaction_state = int(line[9]), _known(line[10]), line[11]
        bean.from_transaction_check = _true(line[12])
        return context
    bean.body_length, context.cost_time, bean.msg_type = int(line[9]), int(line[10]), int(line[11])
    if len(line) == 13:
        context.success = _true(line[12])
    else:
        bean.offset_msg_id, context.success = line[12], _true(line[13])
        bean.client_host = line[14] if len(line) > 14 else ""
    return context


def _known(text: str) -> str | None:
    return None if text == _NULL else text


def _true(text: str) -> bool:
    return text.lower() == "true"
