"""Automatic renewal of the invisible time of received messages.

A message received with ``auto_renew`` is invisible for a minute. Ten seconds before the end, its invisible time is
renewed, each time for longer (1, 3, 5, 10, 30, 60 minutes), until it is acked or for three hours; then it becomes
visible again. The client always uses its first handle. When a client leaves its group, its messages become visible
within a second.

=============================  =======================================================================================
problem                        effect on the message
=============================  =======================================================================================
a renewal is refused           no more renewals: it was acked, or becomes visible at the end of its time
the client is gone             checked every 5 s and at each renewal: the message becomes visible
an ack or a change fails       the message is renewed again, because its client repeats the request
it comes during a renewal      it waits for the renewal, which ends the handle before
two of them at once            both use the valid handle; if one succeeds, the message is not renewed again
too many renewed messages      ReceiveMessage with ``auto_renew`` is refused with TOO_MANY_REQUESTS
the proxy stops                renewed messages become visible soon; others can be acked for their minute
proxy or broker is killed      it becomes visible at the end of its time
=============================  =======================================================================================

Corresponds to org.apache.rocketmq.proxy.service.receipt.DefaultReceiptHandleManager.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from spark_rocket.errors import RemotingError, RocketError
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.messages.statuses import StatusError
from spark_rocket.proxy.methods.receipts import Receipts
from spark_rocket.remoting.wall_clock_timer import WallClockTimer

_log = logging.getLogger(__name__)

RENEWED_FOR_MS = 60_000
"""The first invisible time of a renewed message."""
MAX_RENEWED = 200_000

_AHEAD_MS = 10_000
_RENEWALS_MS = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
_MAX_RENEWED_MS = 3 * 3_600_000
_CHECK_INTERVAL_MS = 5_000
_RETRY_DELAY_MS = 2_000
_AT_ONCE = 50
_SLACK = 1_000


class _Renewed:
    """A renewed message. ``handle``: the client's handle; ``latest``: the valid one, unless a renewal is in flight."""

    __slots__ = ("dropped", "due", "handle", "kept", "latest", "number", "renewal", "since", "takers", "times", "topic")

    def __init__(self, kept: _ClientMessages, topic: str, handle: str, since: int) -> None:
        self.kept = kept
        self.topic = topic
        self.handle = handle
        self.latest = handle
        self.since = since
        self.times = 0
        self.due = 0
        self.number: int | None = None  # of its valid entry in the heap
        self.renewal: asyncio.Task[None] | None = None
        self.takers = 0  # requests in flight that use its handle
        self.dropped = False

    @property
    def has_old_handle(self) -> bool:
        """Whether a renewal has ended the client's handle, or is about to."""
        return self.times > 0 or self.renewal is not None


class _ClientMessages:
    """The messages of a client in a group. ``seen``: it has been registered in the group."""

    __slots__ = ("client_id", "group", "messages", "seen")

    def __init__(self, client_id: str, group: str, *, seen: bool) -> None:
        self.client_id = client_id
        self.group = group
        self.messages: dict[str, _Renewed] = {}
        self.seen = seen


class Taken(NamedTuple):
    """A message that is not renewed now. ``given``: the client's handle; ``renewed``: None if it never was."""

    given: str
    renewed: _Renewed | None

    async def handle(self) -> str:
        """Return the valid handle, after a renewal in flight."""
        if self.renewed is None:
            return self.given
        if self.renewed.renewal is not None:
            await asyncio.wait((self.renewed.renewal,))
        return self.renewed.latest


class Renewals:
    """The renewed messages of all clients."""

    def __init__(self, cluster: ProxyCluster, receipts: Receipts, is_member: Callable[[str, str], bool]) -> None:
        """``is_member(client_id, group)``: whether a client is currently a member of a group."""
        self._cluster = cluster
        self._receipts = receipts
        self._is_member = is_member
        self._kept: dict[tuple[str, str], _ClientMessages] = {}
        self._due: list[tuple[int, int, _Renewed]] = []
        self._numbers = itertools.count()
        self._next_check = 0
        self._closed = False
        self.timer = WallClockTimer(asyncio.get_running_loop(), cluster.clock, self._run)
        self.count = 0
        """The number of renewed messages."""

    def close(self) -> None:
        """Stop. Renewed messages become visible: their first handle is expired, so clients cannot ack them."""
        self._closed = True
        self.timer.close()
        for kept in tuple(self._kept.values()):
            self._drop_all(kept)

    def check_room(self) -> None:
        """Raise StatusError if there are too many renewed messages."""
        if self.count >= MAX_RENEWED:
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"too many renewed messages ({MAX_RENEWED}): ack some, or receive without auto_renew",
            )

    def keep(self, client_id: str, group: str, topic: str, handle: str) -> None:
        """Start renewing a message."""
        now = self._cluster.clock()
        key = client_id, group
        kept = self._kept.get(key)
        if kept is None:
            if not self._kept:
                self._next_check = now + _CHECK_INTERVAL_MS
                self.timer.expect(self._next_check)
            kept = self._kept[key] = _ClientMessages(client_id, group, seen=self._is_member(client_id, group))
        if handle not in kept.messages:
            renewed = kept.messages[handle] = _Renewed(kept, topic, handle, now)
            self.count += 1
            self._plan(renewed, now + RENEWED_FOR_MS - _AHEAD_MS)

    def take(self, client_id: str, group: str, handle: str) -> Taken:
        """Do not renew a message while it is acked, changed or made a dead letter; call ``settle`` next."""
        kept = self._kept.get((client_id, group))
        renewed = kept.messages.get(handle) if kept is not None else None
        if renewed is not None:
            renewed.takers += 1
            self._cancel(renewed)
        return Taken(handle, renewed)

    def settle(self, taken: Taken, *, failed: bool = False) -> None:
        """Stop renewing a message, unless its requests failed: then its client uses the first handle again."""
        renewed = taken.renewed
        if renewed is None:
            return
        renewed.takers -= 1
        if renewed.dropped:
            return
        if not failed:
            self._drop(renewed)
        elif not renewed.takers:
            if self._closed:
                self._drop_all(renewed.kept)
            elif renewed.renewal is None:  # its end plans the next one
                self._plan(renewed, max(renewed.due, self._cluster.clock()))

    def client_left(self, client_id: str, groups: Iterable[str]) -> None:
        """Handle the end of a client."""
        for group in groups:
            self.client_gone(client_id, group)

    def client_gone(self, client_id: str, group: str) -> None:
        """Make the messages of a client visible soon."""
        kept = self._kept.get((client_id, group))
        if kept is not None:
            self._drop_all(kept)

    def _drop_all(self, kept: _ClientMessages) -> None:
        """Release the messages that no request uses; at a stop, only those whose client has an old handle."""
        of_topics: dict[str, list[Taken]] = {}
        for renewed in [one for one in kept.messages.values() if not one.takers]:
            if renewed.has_old_handle or not self._closed:
                of_topics.setdefault(renewed.topic, []).append(Taken(renewed.handle, renewed))
            self._drop(renewed)
        for topic, taken in of_topics.items():
            self.release(kept.group, topic, taken)

    def release(self, group: str, topic: str, messages: Iterable[Taken], *, unseen: bool = False) -> None:
        """Make messages visible soon, in the background. ``unseen``: as in :meth:`Receipts.release`."""
        self._cluster.spawn(self._release(group, topic, tuple(messages), unseen))

    async def _release(self, group: str, topic: str, messages: tuple[Taken, ...], unseen: bool) -> None:
        handles = [await taken.handle() for taken in messages]
        await self._receipts.release(group, topic, handles, unseen=unseen)

    def _drop(self, renewed: _Renewed) -> None:
        kept = renewed.kept
        renewed.dropped = True
        del kept.messages[renewed.handle]
        self.count -= 1
        if not kept.messages:
            del self._kept[kept.client_id, kept.group]
        self._cancel(renewed)

    def _cancel(self, renewed: _Renewed) -> None:
        """Cancel the planned renewal."""
        renewed.number = None
        if len(self._due) > 2 * self.count + _SLACK:  # most messages are acked before their renewal
            self._due = [entry for entry in self._due if entry[2].number == entry[1]]
            heapq.heapify(self._due)

    def _plan(self, renewed: _Renewed, due: int) -> None:
        renewed.due, renewed.number = due, next(self._numbers)
        heapq.heappush(self._due, (due, renewed.number, renewed))
        self.timer.expect(due)

    def _run(self, now: int) -> int | None:
        """Called by the timer; return the next time."""
        if not self._kept:
            return None
        if self._next_check <= now:
            self._next_check = now + _CHECK_INTERVAL_MS
            for kept in tuple(self._kept.values()):
                if self._is_member(kept.client_id, kept.group):
                    kept.seen = True
                elif kept.seen:
                    self.client_gone(kept.client_id, kept.group)
        due: list[tuple[int, _Renewed]] = []
        while self._due and (self._due[0][0] <= now or self._due[0][2].number != self._due[0][1]):
            _, number, renewed = heapq.heappop(self._due)
            if renewed.number == number:
                due.append((number, renewed))
        if due:
            self._cluster.spawn(self._renew_all(due))
        if not self._kept:
            return None
        return min(self._next_check, self._due[0][0]) if self._due else self._next_check

    async def _renew_all(self, due: list[tuple[int, _Renewed]]) -> None:
        for start in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*(self._renew_one(*entry) for entry in due[start : start + _AT_ONCE]))

    async def _renew_one(self, number: int, renewed: _Renewed) -> None:
        kept = renewed.kept
        if renewed.number != number:  # taken since it was due
            return
        if not self._is_member(kept.client_id, kept.group):
            self.client_gone(kept.client_id, kept.group)
            return
        renewed.number, renewed.renewal = None, asyncio.current_task()
        try:
            await self._renew(renewed)
        finally:
            renewed.renewal = None

    async def _renew(self, renewed: _Renewed) -> None:
        now, receipts = self._cluster.clock(), self._receipts
        group, topic = renewed.kept.group, renewed.topic
        if now - renewed.since >= _MAX_RENEWED_MS:
            self._drop(renewed)
            return
        ms = _RENEWALS_MS[min(renewed.times, len(_RENEWALS_MS) - 1)]
        try:
            renewed.latest = await receipts.change_invisible(group, topic, await receipts.read(renewed.latest), ms)
        except RemotingError as error:  # broker unavailable: some seconds are left for a retry
            _log.debug("renewal of a message of %s for %s will be retried: %s", topic, group, error.message)
            if not renewed.dropped and not renewed.takers:
                self._plan(renewed, now + _RETRY_DELAY_MS)
            return
        except (StatusError, RocketError) as error:
            _log.debug("stopped renewal of a message of %s for %s: %s", topic, group, error.message)
            if not renewed.dropped:
                self._drop(renewed)
            return
        renewed.times += 1
        renewed.due = now + ms - _AHEAD_MS
        if not renewed.dropped and not renewed.takers:
            self._plan(renewed, renewed.due)
