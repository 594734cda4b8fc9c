"""Queries for messages by key, id and queue entry.

Fields in the order required, then optional; see ``base`` for the encoding.
Corresponds to remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.protocol.wire.headers.base import Header, Int, Long


@dataclass(slots=True, eq=False, repr=False)
class QueryMessageRequestHeader(Header):
    """QUERY_MESSAGE."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    unique_key_query: bool | None = field(default=None, metadata={"wire": "_UNIQUE_KEY_QUERY"})


@dataclass(slots=True, eq=False, repr=False)
class QueryMessageResponseHeader(Header):
    """Response to QUERY_MESSAGE."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


@dataclass(slots=True, eq=False, repr=False)
class ViewMessageRequestHeader(Header):
    """VIEW_MESSAGE_BY_ID."""

    offset: Long
    topic: str | None = None


@dataclass(slots=True, eq=False, repr=False)
class QueryConsumeQueueRequestHeader(Header):
    """QUERY_CONSUME_QUEUE."""

    topic: str | None = None
    queue_id: Int | None = None
    index: Long | None = None
    count: Int | None = None
    consumer_group: str | None = None
