"""Pulls that found nothing and wait: woken by a message for their queue, or answered when their time is up.

One loop timer per held pull, so an answer on expiry comes at its time and not on a later tick. Arrivals of one turn of
the loop are gathered: a pull is run again once, with everything that has come by then.

Tags: a pull with tags stays asleep while only other tags arrive (the 8-byte tag code decides, as for the real filter).

Thread-safety: used on the event loop only. Bound: ``maxHeldPulls`` of the broker's settings; above it nothing is held.
After a crash: nothing is kept; clients pull again.
Corresponds to org.apache.rocketmq.broker.longpolling.{PullRequestHoldService, ManyPullRequest}.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TypeVar

from spark_rocket.remoting.server.channel import Channel

_log = logging.getLogger(__name__)

_K = TypeVar("_K")


@dataclass(slots=True, eq=False)
class HeldPull:
    """One waiting pull. ``answer`` runs it again, without waiting, and writes the answer."""

    channel: Channel
    key: tuple[str, int]
    offset: int
    tag_codes: frozenset[int] | None
    answer: Callable[[], None]
    timer: asyncio.TimerHandle | None = None


class PullRequestHoldService:
    """The held pulls by queue and by connection."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, watched: Container[str], notify: Callable[[str, int, int | None], None]
    ) -> None:
        """``notify`` is called with topic, queue and tag code of what comes for the topics in ``watched``."""
        self._loop = loop
        self._watched = watched
        self._notify = notify
        self._by_queue: dict[tuple[str, int], set[HeldPull]] = {}
        self._by_channel: dict[Channel, set[HeldPull]] = {}
        self._woken: list[HeldPull] = []
        self.count = 0

    def hold(self, pull: HeldPull, seconds: float) -> None:
        """Keep a pull until a message comes or ``seconds`` are over."""
        self._by_queue.setdefault(pull.key, set()).add(pull)
        self._by_channel.setdefault(pull.channel, set()).add(pull)
        self.count += 1
        pull.timer = self._loop.call_later(max(seconds, 0.0), self._expire, pull)

    def notify_arriving(
        self, topic: str, queue_id: int, next_offset: int, tags_code: int | None, store_timestamp: int = 0
    ) -> None:
        """A message (``tags_code``) or several (None) came; ``next_offset`` is one past the last."""
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
        """Run every held pull of a topic again, because the topic itself changed."""
        for key in [key for key in self._by_queue if key[0] == topic]:
            self.notify_arriving(key[0], key[1], 2**63 - 1, None)

    def channel_closed(self, channel: Channel) -> None:
        for pull in list(self._by_channel.get(channel, ())):
            self._forget(pull)

    def close(self) -> None:
        """Forget all of them; their connections are about to close."""
        for pulls in list(self._by_queue.values()):
            for pull in list(pulls):
                self._forget(pull)
        self._woken.clear()

    def _run_woken(self) -> None:
        woken, self._woken = self._woken, []
        for pull in woken:
            self._answer(pull)

    def _expire(self, pull: HeldPull) -> None:
        self._forget(pull)
        self._answer(pull)

    @staticmethod
    def _answer(pull: HeldPull) -> None:
        try:
            pull.answer()
        except Exception:  # the others that were woken with it still get theirs
            _log.exception("a held pull of %s was not answered", pull.key)

    def _forget(self, pull: HeldPull) -> None:
        if pull.timer is not None:
            pull.timer.cancel()
            pull.timer = None
        if _discard(self._by_queue, pull.key, pull):
            _discard(self._by_channel, pull.channel, pull)
            self.count -= 1


def _discard(table: dict[_K, set[HeldPull]], key: _K, pull: HeldPull) -> bool:
    pulls = table.get(key)
    if pulls is None or pull not in pulls:
        return False
    pulls.remove(pull)
    if not pulls:
        del table[key]
    return True
