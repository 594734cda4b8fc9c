"""A cache of responses of brokers and name servers, with one request in flight for each name.

=========================  ==========================================================================================
age of an entry            action
=========================  ==========================================================================================
below ``fresh``            returned
below three times that     returned, and refreshed in the background
older                      refreshed before it is returned
=========================  ==========================================================================================

A missing value (None) is cached for ``MISS_SECONDS``. If a refresh fails, the old value is returned and the refresh is
retried after ``RETRY_SECONDS``. Without an old value, the caller gets the error.

Thread-safety: used on the event loop only. Corresponds to the Caffeine caches of org.apache.rocketmq.proxy.service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from spark_rocket.errors import RocketError

T = TypeVar("T")

FRESH_SECONDS = 20.0
MISS_SECONDS = 1.0
RETRY_SECONDS = 2.0
MIN_RELOAD_INTERVAL_S = 0.5
"""The minimum interval of invalidations for each name."""
MAX_ENTRIES = 20_000


class _Entry(Generic[T]):
    __slots__ = ("fresh_until", "loaded", "usable_until", "value")

    def __init__(self, value: T, loaded: float, fresh: float) -> None:
        self.value = value
        self.loaded = loaded
        self.fresh_until = loaded + fresh
        self.usable_until = loaded + 3 * fresh


class Cache(Generic[T]):
    """Values by name. ``load`` requests a value: returns it, or None if it does not exist, or raises RocketError."""

    def __init__(
        self,
        load: Callable[[str], Awaitable[T | None]],
        *,
        fresh: float = FRESH_SECONDS,
        monotonic: Callable[[], float],
    ) -> None:
        self._load = load
        self._fresh = fresh
        self._monotonic = monotonic
        self._entries: dict[str, _Entry[T]] = {}
        self._missing: dict[str, float] = {}  # until when
        self._loading: dict[str, asyncio.Task[T | None]] = {}

    def last(self, name: str) -> T | None:
        """Return the last value of any age."""
        entry = self._entries.get(name)
        return None if entry is None else entry.value

    async def get(self, name: str) -> T | None:
        """Return the value, requested if necessary; None if it does not exist. RocketError without a response."""
        now = self._monotonic()
        if now < self._missing.get(name, 0.0):
            return None
        entry = self._entries.get(name)
        if entry is not None:
            if now < entry.fresh_until:
                return entry.value
            if now < entry.usable_until:
                self._start(name)
                return entry.value
        return await asyncio.shield(self._start(name))

    def suspect(self, name: str) -> None:
        """Mark the value as possibly outdated: it is refreshed before its next use."""
        entry = self._entries.get(name)
        if entry is not None and self._monotonic() - entry.loaded >= min(MIN_RELOAD_INTERVAL_S, self._fresh):
            entry.fresh_until = entry.usable_until = 0.0

    def forget(self, name: str) -> None:
        """Remove the value."""
        self._entries.pop(name, None)
        self._missing.pop(name, None)

    def _start(self, name: str) -> asyncio.Task[T | None]:
        task = self._loading.get(name)
        if task is None:
            task = self._loading[name] = asyncio.get_running_loop().create_task(self._reload(name))
            task.add_done_callback(_retrieve_exception)
        return task

    async def _reload(self, name: str) -> T | None:
        try:
            value = await self._load(name)
        except RocketError:
            entry = self._entries.get(name)
            if entry is None:
                raise
            now = self._monotonic()
            entry.fresh_until = now + min(RETRY_SECONDS, self._fresh)
            entry.usable_until = max(entry.usable_until, entry.fresh_until)
            return entry.value
        finally:
            self._loading.pop(name, None)
        self._entries.pop(name, None)
        self._missing.pop(name, None)
        if value is None:
            self._missing[name] = self._monotonic() + min(self._fresh, MISS_SECONDS)
            _bound(self._missing)
        else:
            self._entries[name] = _Entry(value, self._monotonic(), self._fresh)
            _bound(self._entries)
        return value

    def close(self) -> None:
        """Cancel pending requests."""
        for task in self._loading.values():
            task.cancel()


def _bound(table: dict[str, Any]) -> None:
    """Evict the oldest entry. Missing names have a separate table, so that invented names do not evict values."""
    if len(table) > MAX_ENTRIES:
        del table[next(iter(table))]


def _retrieve_exception(task: asyncio.Task[T | None]) -> None:
    """Mark the exception of a background refresh as retrieved."""
    if not task.cancelled():
        task.exception()
