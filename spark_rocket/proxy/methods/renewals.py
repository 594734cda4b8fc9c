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
    """A renewed message. ``handle``: the client's handle; ``latest``: the valid one."""

    __slots__ = ("dropped", "due", "handle", "kept", "latest", "since", "times", "topic")

    def __init__(self, kept: _ClientMessages, topic: str, handle: str, since: int) -> None:
        self.kept = kept
        self.topic = topic
        self.handle = handle
        self.latest = handle
        self.since = since
        self.times = 0
        self.due = 0
        self.dropped = False


class _ClientMessages:
    """The messages of a client in a group. ``seen``: it has been registered in the group."""

    __slots__ = ("client_id", "group", "messages", "seen")

    def __init__(self, client_id: str, group: str, *, seen: bool) -> None:
        self.client_id = client_id
        self.group = group
        self.messages: dict[str, _Renewed] = {}
        self.seen = seen


class Taken(NamedTuple):
    """A message that is not renewed any more. ``handle``: its valid handle; ``renewed``: None if it never was."""

    handle: str
    renewed: _Renewed | None


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
        self.timer = WallClockTimer(asyncio.get_running_loop(), cluster.clock, self._run)
        self.count = 0
        """The number of renewed messages."""

    def close(self) -> None:
        """Stop. Renewed messages become visible: their first handle is expired, so clients cannot ack them."""
        self.timer.close()
        given_back: dict[tuple[str, str], list[str]] = {}
        for kept in tuple(self._kept.values()):
            for renewed in tuple(kept.messages.values()):
                self._drop(renewed)
                if renewed.times:
                    given_back.setdefault((kept.group, renewed.topic), []).append(renewed.latest)
        for (group, topic), handles in given_back.items():
            self._receipts.release(group, topic, handles)

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
        renewed = self._keep(client_id, group, topic, handle, now)
        if renewed is not None:
            self._plan(renewed, now + RENEWED_FOR_MS - _AHEAD_MS)

    def _keep(self, client_id: str, group: str, topic: str, handle: str, since: int) -> _Renewed | None:
        """Add a message; None if it is renewed already."""
        key = client_id, group
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _ClientMessages(client_id, group, seen=self._is_member(client_id, group))
            if len(self._kept) == 1:
                self._next_check = self._cluster.clock() + _CHECK_INTERVAL_MS
                self.timer.expect(self._next_check)
        if handle in kept.messages:
            return None
        renewed = kept.messages[handle] = _Renewed(kept, topic, handle, since)
        self.count += 1
        return renewed

    def take(self, client_id: str, group: str, handle: str) -> Taken:
        """Stop renewing a message that is acked, changed or dead."""
        kept = self._kept.get((client_id, group))
        renewed = kept.messages.get(handle) if kept is not None else None
        if renewed is None:
            return Taken(handle, None)
        self._drop(renewed)
        return Taken(renewed.latest, renewed)

    def put_back(self, taken: Taken) -> None:
        """Renew a message again whose request failed: otherwise its client's handle would mean an old receipt."""
        former = taken.renewed
        if former is None:
            return
        again = self._keep(former.kept.client_id, former.kept.group, former.topic, former.handle, former.since)
        if again is not None:
            again.kept.seen |= former.kept.seen  # the client may have left in the meantime
            again.latest, again.times = former.latest, former.times
            self._plan(again, max(former.due, self._cluster.clock()))

    def client_left(self, client_id: str, groups: Iterable[str]) -> None:
        """Handle the end of a client."""
        for group in groups:
            self.client_gone(client_id, group)

    def client_gone(self, client_id: str, group: str) -> None:
        """Make the messages of a client visible soon."""
        kept = self._kept.get((client_id, group))
        if kept is None:
            return
        of_topics: dict[str, list[str]] = {}
        for renewed in tuple(kept.messages.values()):
            of_topics.setdefault(renewed.topic, []).append(renewed.latest)
            self._drop(renewed)
        for topic, handles in of_topics.items():
            self._receipts.release(group, topic, handles)

    def _drop(self, renewed: _Renewed) -> None:
        kept = renewed.kept
        renewed.dropped = True
        del kept.messages[renewed.handle]
        self.count -= 1
        if not kept.messages:
            del self._kept[kept.client_id, kept.group]
        if len(self._due) > 2 * self.count + _SLACK:  # most messages are acked before their renewal
            self._due = [entry for entry in self._due if not entry[2].dropped]
            heapq.heapify(self._due)

    def _plan(self, renewed: _Renewed, due: int) -> None:
        renewed.due = due
        heapq.heappush(self._due, (due, next(self._numbers), renewed))
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
        due: list[_Renewed] = []
        while self._due and (self._due[0][0] <= now or self._due[0][2].dropped):
            renewed = heapq.heappop(self._due)[2]
            if not renewed.dropped:
                due.append(renewed)
        if due:
            self._cluster.spawn(self._renew_all(due))
        if not self._kept:
            return None
        return min(self._next_check, self._due[0][0]) if self._due else self._next_check

    async def _renew_all(self, due: list[_Renewed]) -> None:
        for start in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*(self._renew_one(renewed) for renewed in due[start : start + _AT_ONCE]))

    async def _renew_one(self, renewed: _Renewed) -> None:
        kept = renewed.kept
        if renewed.dropped:
            return
        if self._is_member(kept.client_id, kept.group):
            await self._renew(renewed)
        else:
            self.client_gone(kept.client_id, kept.group)

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
            if not renewed.dropped:
                self._plan(renewed, now + _RETRY_DELAY_MS)
            return
        except (StatusError, RocketError) as error:
            _log.debug("stopped renewal of a message of %s for %s: %s", topic, group, error.message)
            if not renewed.dropped:
                self._drop(renewed)
            return
        if renewed.dropped:  # acked meanwhile, with the handle before this one
            self._receipts.release(group, topic, [renewed.latest])
            return
        renewed.times += 1
        self._plan(renewed, now + ms - _AHEAD_MS)
