"""A cache of responses of brokers and name servers, with one request in flight for each name.

=========================  ==========================================================================================
age of an entry            action
=========================  ==========================================================================================
below ``fresh``            returned
below three times that     returned, and refreshed in the background
older                      refreshed before it is returned
=========================  ==========================================================================================

A refresh in the background does not count as a use of the value (``used_since``).

A missing value (None) is cached for ``missing`` seconds. If a refresh fails, the old value is returned; it stays
usable, and is refreshed again after ``RETRY_SECONDS``. Without an old value, the caller gets the error.

Thread-safety: event loop only, except ``last``, ``peek``, ``used``, ``used_since`` and ``forget``, which other threads
may call.
Corresponds to the Caffeine caches of org.apache.rocketmq.proxy.service, and to topicRouteTable in MQClientInstance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
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
    __slots__ = ("fresh_until", "loaded", "usable_until", "used", "value")

    def __init__(self, value: T, now: float, fresh: float) -> None:
        self.value = value
        self.loaded = self.used = now
        self.fresh_until = now + fresh
        self.usable_until = now + 3 * fresh


class Cache(Generic[T]):
    """Values by name. ``load`` requests a value: returns it, or None if it does not exist, or raises RocketError.

    ``post`` runs a call on the loop, for threads that find a stale value; default: at once.
    """

    def __init__(
        self,
        load: Callable[[str], Coroutine[Any, Any, T | None]],
        *,
        fresh: float = FRESH_SECONDS,
        missing: float = MISS_SECONDS,
        max_entries: int | None = None,
        monotonic: Callable[[], float],
        post: Callable[[Callable[[], object]], object] = lambda call: call(),
    ) -> None:
        self._load = load
        self._fresh = fresh
        self._miss = min(fresh, missing)
        self._max_entries = max_entries
        self._monotonic = monotonic
        self._post = post
        self._entries: dict[str, _Entry[T]] = {}
        self._missing: dict[str, float] = {}  # until when
        self._loading: dict[str, asyncio.Task[T | None]] = {}

    def last(self, name: str) -> T | None:
        """Return the last value of any age."""
        entry = self._entries.get(name)
        return None if entry is None else entry.value

    def peek(self, name: str) -> T | None:
        """Return a value that can be used without a request; if it is stale, it is refreshed in the background."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        now = entry.used = self._monotonic()
        if now >= entry.usable_until:
            return None
        if now >= entry.fresh_until:
            entry.fresh_until = now + RETRY_SECONDS
            self._post(partial(self.refresh, name))
        return entry.value

    async def get(self, name: str) -> T | None:
        """Return the value, requested if necessary; None if it does not exist. RocketError without a response."""
        value = self.peek(name)
        if value is not None:
            return value
        if self._monotonic() < self._missing.get(name, 0.0):
            return None
        return await asyncio.shield(self.refresh(name))

    def refresh(self, name: str) -> asyncio.Task[T | None]:
        """Request the value in the background, unless that is in flight already."""
        task = self._loading.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self.store(name, partial(self._load, name)))
            self._loading[name] = task
            task.add_done_callback(partial(self._loaded, name))
        return task

    async def store(self, name: str, load: Callable[[], Awaitable[T | None]]) -> T | None:
        """Request a value and cache it. If that fails, return the cached value."""
        try:
            value = await load()
        except RocketError:
            entry = self._entries.get(name)
            if entry is None:
                raise
            now = self._monotonic()
            entry.fresh_until = now + min(RETRY_SECONDS, self._fresh)
            entry.usable_until = now + 3 * self._fresh
            return entry.value
        self.put(name, value)
        return value

    def put(self, name: str, value: T | None) -> None:
        """Cache a value, or that it does not exist."""
        known = self._entries.pop(name, None)
        self._missing.pop(name, None)
        now = self._monotonic()
        if value is not None:
            entry = self._entries[name] = _Entry(value, now, self._fresh)
            if known is not None:
                entry.used = known.used
            self._bound(self._entries)
        elif self._miss:
            self._missing[name] = now + self._miss
            self._bound(self._missing)

    def _bound(self, table: dict[str, Any]) -> None:
        """Evict the oldest entry. Missing names have a separate table, so that invented names do not evict values."""
        if len(table) > (MAX_ENTRIES if self._max_entries is None else self._max_entries):
            del table[next(iter(table))]

    def suspect(self, name: str) -> None:
        """Mark the value as possibly outdated: it is refreshed before its next use."""
        entry = self._entries.get(name)
        if entry is not None and self._monotonic() - entry.loaded >= min(MIN_RELOAD_INTERVAL_S, self._fresh):
            entry.fresh_until = entry.usable_until = 0.0

    def forget(self, name: str) -> None:
        """Remove the value."""
        self._entries.pop(name, None)
        self._missing.pop(name, None)

    def used(self, name: str) -> None:
        """Record a use of the value, if there is one; ``peek`` and ``get`` do."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.used = self._monotonic()

    def used_since(self, oldest: float) -> list[str]:
        """Return the names of the values that were used since a time."""
        return [name for name, entry in list(self._entries.items()) if entry.used >= oldest]

    def _loaded(self, name: str, task: asyncio.Task[T | None]) -> None:
        if self._loading.get(name) is task:
            del self._loading[name]
        if not task.cancelled():
            task.exception()  # retrieved: a background refresh may fail

    def after_fork(self) -> None:
        """Leave the requests in flight to the parent process."""
        self._loading = {}

    def close(self) -> None:
        """Cancel pending requests."""
        for task in list(self._loading.values()):
            task.cancel()
