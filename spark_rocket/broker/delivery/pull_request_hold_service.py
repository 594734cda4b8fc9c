"""Long polling: pulls that found no message are held until one arrives for their queue or their timeout expires.

Each held pull has its own timer, so its response is sent when the timeout expires, not on a later tick. Arrivals within
one iteration of the loop are collected: a pull is run again once, for all messages that have arrived.

A held pull with a tag filter is not woken by messages with other tags (the 8-byte tag code decides, as in the filter).

Limits: ``maxHeldPulls`` of the broker's settings, and those of a connection and an address
(protocol/requests/state.py); further pulls are not held. A pull with a long filter counts more. After a crash, held
pulls are lost; clients pull again. Corresponds to org.apache.rocketmq.broker.longpolling.{PullRequestHoldService,
ManyPullRequest}.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TypeVar

from spark_rocket.protocol.requests.state import HELD_PULLS
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.state_quota import StateQuota

_log = logging.getLogger(__name__)

_K = TypeVar("_K")


@dataclass(slots=True, eq=False)
class HeldPull:
    """A held pull. ``respond`` runs it again and writes the response."""

    channel: Channel
    key: tuple[str, int]
    offset: int
    tag_codes: frozenset[int] | None
    respond: Callable[[], None]
    weight: int = 1
    timer: asyncio.TimerHandle | None = None


class PullRequestHoldService:
    """Held pulls by queue and by connection."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, watched: Container[str], notify: Callable[[str, int, int | None], None]
    ) -> None:
        """``notify`` is called with topic, queue and tag code of each arrival for a topic in ``watched``."""
        self._loop = loop
        self._watched = watched
        self._notify = notify
        self._by_queue: dict[tuple[str, int], set[HeldPull]] = {}
        self._by_channel: dict[Channel, set[HeldPull]] = {}
        self._woken: list[HeldPull] = []
        self._quota = StateQuota(HELD_PULLS)
        self.count = 0

    def has_room(self, channel: Channel, weight: int, most: int) -> bool:
        """Whether another pull may be held; ``most``: ``maxHeldPulls``."""
        return self.count < most and self._quota.problem(channel, weight) is None

    def hold(self, pull: HeldPull, seconds: float) -> None:
        """Hold a pull until a message arrives, but at most ``seconds``."""
        self._by_queue.setdefault(pull.key, set()).add(pull)
        self._by_channel.setdefault(pull.channel, set()).add(pull)
        self.count += 1
        self._quota.add(pull.channel, pull.weight)
        pull.timer = self._loop.call_later(max(seconds, 0.0), self._expire, pull)

    def notify_arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_code: int | None, store_timestamp: int = 0
    ) -> None:
        """Wake the pulls that match one message (``tags_code``) or several (None) before ``next_offset``."""
        if topic in self._watched:
            self._notify(topic, queue_id, tags_code)
        held = self._by_queue.get((topic, queue_id))
        if not held:
            return
        ready = [
            pull
            for pull in held
            if next_offset > pull.offset
            and (tags_code is None or pull.tag_codes is None or tags_code in pull.tag_codes)
        ]
        for pull in ready:
            self._forget(pull)
        if ready:
            if not self._woken:
                self._loop.call_soon(self._run_woken)
            self._woken.extend(ready)

    def wake_topic(self, topic: str) -> None:
        """Run all held pulls of a topic again because the topic itself changed."""
        for key in [key for key in self._by_queue if key[0] == topic]:
            self.notify_arriving(key[0], key[1], 2**63 - 1, None)

    def channel_closed(self, channel: Channel) -> None:
        for pull in list(self._by_channel.get(channel, ())):
            self._forget(pull)

    def close(self) -> None:
        """Drop all held pulls; their connections are about to close."""
        for pulls in list(self._by_queue.values()):
            for pull in list(pulls):
                self._forget(pull)
        self._woken.clear()

    def _run_woken(self) -> None:
        woken, self._woken = self._woken, []
        for pull in woken:
            self._respond(pull)

    def _expire(self, pull: HeldPull) -> None:
        self._forget(pull)
        self._respond(pull)

    @staticmethod
    def _respond(pull: HeldPull) -> None:
        try:
            pull.respond()
        except Exception:  # the other woken pulls still get a response
            _log.exception("failed to respond to a held pull of %s", pull.key)

    def _forget(self, pull: HeldPull) -> None:
        if pull.timer is not None:
            pull.timer.cancel()
            pull.timer = None
        if _discard(self._by_queue, pull.key, pull):
            _discard(self._by_channel, pull.channel, pull)
            self.count -= 1
            self._quota.release(pull.channel, pull.weight)


def _discard(table: dict[_K, set[HeldPull]], key: _K, pull: HeldPull) -> bool:
    pulls = table.get(key)
    if pulls is None or pull not in pulls:
        return False
    pulls.remove(pull)
    if not pulls:
        del table[key]
    return True
