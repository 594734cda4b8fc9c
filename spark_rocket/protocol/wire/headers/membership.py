"""Membership of clients in groups: requests of clients, and notifications of brokers.

Fields in the order required, then optional; see ``base`` for the encoding.
Corresponds to remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.protocol.wire.headers.base import Header


@dataclass(slots=True, eq=False, repr=False)
class GetConsumerListByGroupRequestHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP."""

    consumer_group: str


@dataclass(slots=True, eq=False, repr=False)
class NotifyConsumerIdsChangedRequestHeader(Header):
    """NOTIFY_CONSUMER_IDS_CHANGED."""

    consumer_group: str


@dataclass(slots=True, eq=False, repr=False)
class UnregisterClientRequestHeader(Header):
    """UNREGISTER_CLIENT."""

    client_id: str = field(metadata={"wire": "clientID"})
    producer_group: str | None = None
    consumer_group: str | None = None
