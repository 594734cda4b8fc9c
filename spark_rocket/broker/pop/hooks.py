"""What POP asks of others: whether a queue popped in order is free, and to hold a request that found nothing.

How a POP_MESSAGE goes (processors/pop.py):

1. The processor checks the request as Apache's does and makes a :class:`PopRequest` of it.
2. ``PopService.pop(request)`` gives a :class:`~spark_rocket.broker.pop.result.PopResult`. With messages: they are
   answered, and if ``rest_num`` is above 0 ``waiting.more(topic, queue_id, group)`` may run another that is held.
3. Without: ``waiting.hold(channel, request, pop, again)``. HELD: the answer comes later; whoever holds it calls
   ``again()``, from the loop, when a message has come that it may want, or when its time (``poll_time`` from
   ``born_time`` on) is up; ``again`` runs the whole thing from 2 on, holds it again if nothing was found and time is
   left, and answers. FULL: 209. TIMED_OUT: 210.

How order comes in (all calls from ``PopService``, on the event loop, with the queue's real topic):

* before an ordered pop of a queue: ``order.is_blocked(…)``; a blocked queue gives nothing and counts nothing;
* after it: ``order.popped(…)`` remembers the offsets, and gives the queue's part of orderCountInfo. No check point is
  written, and the group's offset stays at the first message popped;
* at an ack with reviveQid 999: ``order.ack(…)`` gives the offset to commit, ALREADY_ACKED or ILLEGAL (answered 13);
  afterwards, if the queue is free, ``waiting.more`` is told;
* at a change of the invisible time: ``order.change_invisible(…)``;
* when the group's offset is reset: ``order.clear(…)``.

Corresponds to ConsumerOrderInfoManager and PopLongPollingService as PopMessageProcessor uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from spark_rocket.broker.delivery.filters import PullFilter
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel

ALREADY_ACKED = -2
ILLEGAL = -1


class PopRequest(NamedTuple):
    """A pop whose checks are passed. ``queue_id`` −1: all queues. Times in ms; ``invisible_time`` from the pop on."""

    group: str
    topic: str
    queue_id: int
    max_msgs: int
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: int
    wanted: PullFilter
    order: bool = False
    attempt_id: str | None = None


class Held(Enum):
    """What became of a request that found nothing."""

    HELD = 0
    FULL = 1
    TIMED_OUT = 2


class PopOrder(Protocol):
    """Which messages of which queue are out, for groups that pop in order."""

    def is_blocked(
        self, attempt_id: str | None, topic: str, group: str, queue_id: int, invisible_time: int, now: int
    ) -> bool:
        """Whether messages of the queue are out, not acked and still invisible; the same attempt may have them."""

    def popped(
        self, pop: PopRequest, flag: str, topic: str, queue_id: int, pop_time: int, offsets: Sequence[int]
    ) -> str:
        """Remember what is out now; the queue's part of orderCountInfo back, empty if there is nothing to say."""

    def ack(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, now: int) -> int:
        """Mark a message acked. The offset to commit, or ALREADY_ACKED (nothing to do), or ILLEGAL."""

    def change_invisible(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, visible_at: int
    ) -> None:
        """The message is out until ``visible_at``."""

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """Nothing of the queue is out."""


class PopWaiting(Protocol):
    """Requests that found nothing."""

    def hold(self, channel: Channel, request: RemotingCommand, pop: PopRequest, again: Callable[[], None]) -> Held:
        """Keep a request until there may be something for it, or its time is up, and then call ``again``."""

    def more(self, topic: str, queue_id: int, group: str) -> None:
        """There is something left for the group in this queue (−1: in any of the topic's)."""
