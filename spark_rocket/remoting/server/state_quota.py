"""Counts the state that peers create in a server, by connection, by address and in total.

The bounds are those of ``STATE_LIMITS`` (protocol/requests/state.py). The owner of the state takes from the
quota before it creates an entry, and releases it with the entry.

Nothing is stored on disk. Apache's servers have no such bounds.
"""

from __future__ import annotations

from typing import TypeVar

from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.server.channel import Channel

_K = TypeVar("_K")


def weight_of(*strings: str) -> int:
    """Return how often an entry with these strings counts: once, and once more for each full KiB."""
    return 1 + (sum(map(len, strings)) >> 10)


class StateQuota:
    """The entries of one kind of state."""

    __slots__ = ("_by_address", "_by_connection", "limit", "name", "total")

    def __init__(self, name: str) -> None:
        self.name = name
        self.limit = STATE_LIMITS[name]
        self.total = 0
        self._by_connection: dict[Channel, int] = {}
        self._by_address: dict[str, int] = {}

    def take(self, channel: Channel, count: int = 1) -> None:
        """Count entries of a connection; RefusedError, and nothing is counted, if they exceed a bound."""
        problem = self.problem(channel, count)
        if problem is not None:
            raise RefusedError(
                f"too many {self.name}: {problem}",
                ResponseCode.SYSTEM_BUSY,
                remedy=f"Close unused clients, or use several brokers. Released by: {self.limit.released}.",
            )
        self.add(channel, count)

    def problem(self, channel: Channel, count: int = 1) -> str | None:
        """Describe the bound that further entries would exceed; None if there is room."""
        limit = self.limit
        of_connection = self._by_connection.get(channel, 0) + count
        if limit.per_connection is not None and of_connection > limit.per_connection:
            return f"at most {limit.per_connection:,} per connection"
        of_address = self._by_address.get(_address(channel), 0) + count
        if limit.per_client is not None and of_address > limit.per_client:
            return f"at most {limit.per_client:,} of one address"
        if self.total + count > limit.total:
            return f"at most {limit.total:,} in all"
        return None

    def add(self, channel: Channel, count: int = 1) -> None:
        """Count entries without a check; a negative count releases them."""
        if not count:
            return
        self.total += count
        _add(self._by_connection, channel, count)
        _add(self._by_address, _address(channel), count)

    def release(self, channel: Channel, count: int = 1) -> None:
        self.add(channel, -count)


def _address(channel: Channel) -> str:
    return channel.remote_addr.rpartition(":")[0]


def _add(counts: dict[_K, int], key: _K, count: int) -> None:
    left = counts.get(key, 0) + count
    if left:
        counts[key] = left
    else:
        del counts[key]
