"""Filters of pulls: by tag, with the consume queue only, or by SQL92, with the properties of the records.

A tag filter is a set of 8-byte codes and reads no records. An SQL92 filter (only with ``enablePropertyFilter``, as in
Apache's broker) reads the properties of every record that it examines. To bound the delay of other requests, one pull
examines at most ``maxFilterMessageSize`` / 20 records (800), 16 MiB, and 20 ms of CPU time. The response has the next
offset to examine, and the client pulls again. Parsed expressions are cached, and so are parse errors.

Thread-safety: values are immutable, functions are for the broker's event loop.
Corresponds to org.apache.rocketmq.broker.filter.ExpressionMessageFilter and common.filter.FilterAPI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from time import thread_time
from typing import NamedTuple, TypeAlias

from spark_rocket.errors import ProtocolError, RefusedError, StoreCorruptError
from spark_rocket.protocol.filter.sql92 import parse_sql92
from spark_rocket.protocol.filter.tags import TYPE_SQL92, TYPE_TAG, parse_tags
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.record.record import iter_records
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.store.message_store import MessageStore
from spark_rocket.store.results import GetMessageResult, GetMessageStatus

Matches: TypeAlias = Callable[[Mapping[str, str]], bool]

_BATCH_MESSAGES = 80
_BATCH_BYTES = 1 << 20
_MAX_BYTES = 16 << 20
_MAX_EXAMINE_S = 0.02
_EXAMINED = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)


class PullFilter(NamedTuple):
    """``tag_codes``: codes of the tags; ``matches``: predicate of a message's properties. None: all messages."""

    tag_codes: frozenset[int] | None = None
    matches: Matches | None = None


ALL = PullFilter()


def check_expression_type(kind: str | None, *, sql92: bool) -> None:
    """Raise RefusedError for a filter type that this broker does not support. Without a type it is TAG."""
    if kind and kind != TYPE_TAG and not (kind == TYPE_SQL92 and sql92):
        raise RefusedError(
            f"The broker does not support consumer to filter message by {kind}",
            ResponseCode.SYSTEM_ERROR,
            remedy="Set enablePropertyFilter=true at the broker." if kind == TYPE_SQL92 else "",
        )


def parse_filter(kind: str | None, expression: str | None, *, sql92: bool) -> PullFilter:
    """Parse a client's filter; RefusedError with SUBSCRIPTION_PARSE_FAILED and the position of the error."""
    check_expression_type(kind, sql92=sql92)
    try:
        if kind == TYPE_SQL92:
            found = _parsed(expression or "")
            if isinstance(found, ProtocolError):
                raise _wrong(found)
            return PullFilter(matches=found)
        tags = parse_tags(expression)
    except ProtocolError as error:
        raise _wrong(error) from None
    return ALL if tags.matches_all else PullFilter(tags.codes)


@lru_cache(maxsize=128)
def _parsed(expression: str) -> Matches | ProtocolError:
    try:
        return parse_sql92(expression).matches
    except ProtocolError as error:
        return error


def _wrong(error: ProtocolError) -> RefusedError:
    return RefusedError(
        f"parse the consumer's subscription failed: {error.message}",
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        remedy=error.remedy,
    )


def get_matching(
    store: MessageStore,
    topic: str,
    queue_id: int,
    offset: int,
    max_msgs: int,
    max_bytes: int,
    matches: Matches,
    most_examined: int,
) -> GetMessageResult:
    """Do what the store's ``get_message`` does, with a filter of the records' properties."""
    parts: list[bytes | memoryview] = []
    size = read = 0
    at = offset
    until = thread_time() + _MAX_EXAMINE_S
    while True:
        try:
            got = store.get_message(
                topic, queue_id, at, min(_BATCH_MESSAGES, offset + most_examined - at), _BATCH_BYTES
            )
        except StoreCorruptError:
            if not parts:
                raise
            break
        if got.status not in _EXAMINED:
            if at == offset:
                return got
            break
        last = got
        start = 0
        for record in iter_records(got.records):
            if thread_time() >= until and record.queue_offset > offset:
                return _result(got, parts, record.queue_offset)
            stop = start + record.size
            if matches(decode_properties(record.properties)):
                if parts and (len(parts) >= max_msgs or size + record.size > max_bytes):
                    return _result(got, parts, record.queue_offset)
                parts.append(got.records[start:stop])
                size += record.size
            start = stop
        at = got.next_begin_offset
        read += start
        if at >= got.max_offset or at - offset >= most_examined or read >= _MAX_BYTES or len(parts) >= max_msgs:
            break
    return _result(last, parts, at)


def _result(last: GetMessageResult, parts: list[bytes | memoryview], next_begin_offset: int) -> GetMessageResult:
    status = GetMessageStatus.FOUND if parts else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetMessageResult(status, next_begin_offset, last.min_offset, last.max_offset, b"".join(parts), len(parts))
