"""What is done with receipt handles (handles.py) at brokers, and the renewal of those that are to be renewed.

A message received with ``auto_renew`` is invisible for a minute. Ten seconds before that is over it is made invisible
again, for longer each time (1, 3, 5, 10, 30, 60 minutes), until it is acked or three hours have passed; then it comes
back. The client goes on using the handle that it was given first. When a client is no longer a member of its group,
its messages come back within a second.

=============================  =======================================================================================
what goes wrong                what becomes of the message
=============================  =======================================================================================
the change is refused          not renewed any more: it was acked, or comes back when its time is over
the client is gone             looked at every 5 s, and when its time comes: made visible
too many are renewed           ReceiveMessage with ``auto_renew`` is refused with TOO_MANY_REQUESTS
the proxy stops                it comes back soon; one that was not yet renewed can be acked for its minute
the proxy or broker is killed  it comes back when its time is over
=============================  =======================================================================================

Thread-safety: used on the event loop only. Corresponds to
org.apache.rocketmq.proxy.service.receipt.DefaultReceiptHandleManager.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping, Sequence

from spark_rocket.errors import RemotingError, RocketError
from spark_rocket.protocol.filter.tags import SUB_ALL, TYPE_TAG
from spark_rocket.protocol.ids import ExtraInfo, real_topic
from spark_rocket.protocol.record.record import iter_records
from spark_rocket.protocol.wire.bodies import BatchAck, BatchAckMessageRequestBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.proxy.cluster.cluster import Cluster
from spark_rocket.proxy.messages.statuses import StatusError
from spark_rocket.proxy.methods.handles import (
    Handle,
    fields_of,
    invalid_handle,
    read_handle,
    refusal,
    unreachable,
)
from spark_rocket.remoting.wall_clock_timer import WallClockTimer

_log = logging.getLogger(__name__)

RENEWED_FOR_MS = 60_000
"""How long a message that is renewed is invisible at first."""
SOON_MS = 1_000
"""After how long a message comes back that its receiver does not have any more."""
LEAST_MS = 1
"""After how long one comes back that nobody was given."""
MAX_RENEWED = 200_000

_AHEAD_MS = 10_000
_RENEWALS_MS = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
_LONGEST_MS = 3 * 3_600_000
_LOOK_MS = 5_000
_AGAIN_MS = 2_000
_MOST_ENDS = 100_000
_WITH_SUBSCRIPTION = 4
_AT_ONCE = 50
_SLACK = 1_000
_MOST_GIVEN_UP = 10_000


class _Renewed:
    """A message that is renewed. ``handle`` is the one that the client was given, ``latest`` the one that counts."""

    __slots__ = ("dropped", "handle", "kept", "latest", "since", "times", "topic")

    def __init__(self, kept: _Kept, topic: str, handle: str, since: int) -> None:
        self.kept = kept
        self.topic = topic
        self.handle = handle
        self.latest = handle
        self.since = since
        self.times = 0
        self.dropped = False


class _Kept:
    """What a client of a group has. ``seen``: it was registered in the group at some time."""

    __slots__ = ("client_id", "group", "messages", "seen")

    def __init__(self, client_id: str, group: str, *, seen: bool) -> None:
        self.client_id = client_id
        self.group = group
        self.messages: dict[str, _Renewed] = {}
        self.seen = seen


class Receipts:
    """The handles that are renewed, and what is done with handles at the broker."""

    def __init__(self, cluster: Cluster, is_member: Callable[[str, str], bool]) -> None:
        """``is_member(client_id, group)``: whether a client is a member of a group now."""
        self._cluster = cluster
        self._is_member = is_member
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._due: list[tuple[int, int, _Renewed]] = []
        self._numbers = itertools.count()
        self._given_up: dict[tuple[str, str, str], None] = {}
        self._ends: dict[tuple[str, str, int], int] = {}
        self._look_at = 0
        self.timer = WallClockTimer(asyncio.get_running_loop(), cluster.clock, self._run)
        self.count = 0
        """How many are renewed."""

    def close(self) -> None:
        """Renew no more. What was renewed comes back: after a restart nobody could ack it, its first handle is over."""
        self.timer.close()
        given_back: dict[tuple[str, str], list[str]] = {}
        for kept in tuple(self._kept.values()):
            for renewed in tuple(kept.messages.values()):
                self._drop(renewed)
                if renewed.times:
                    given_back.setdefault((kept.group, renewed.topic), []).append(renewed.latest)
        for (group, topic), handles in given_back.items():
            self.release(group, topic, handles)

    async def read(self, text: str) -> Handle:
        """A handle that a client says."""
        handle = read_handle(text, self._cluster.clock())
        broker = handle.info.broker_name
        if not self._cluster.knows_broker(broker) and not await self._cluster.is_broker(broker):
            raise invalid_handle(f"the receipt handle is of broker {broker[:100]!r}, which is not in this cluster")
        return handle

    def given(self, broker: str, topic: str, queue_id: int, offset: int) -> None:
        """A message of a queue was received: that offset, and those before it, are there."""
        place = broker, topic, queue_id
        if offset >= self._ends.get(place, 0):
            if place not in self._ends and len(self._ends) >= _MOST_ENDS:
                del self._ends[next(iter(self._ends))]
            self._ends[place] = offset + 1

    # --- at the broker ------------------------------------------------------------------------------------------

    async def change_invisible(self, group: str, topic: str, handle: Handle, ms: int, *, suspend: bool = False) -> str:
        """Make a message invisible for ``ms`` from now on; its new handle. StatusError when that cannot be.

        ``suspend``: that it comes again then counts as no attempt.
        """
        info = handle.info
        ext = fields_of(group, topic, handle)
        ext["invisibleTime"] = str(max(ms, 1))
        if suspend:
            ext["suspend"] = "true"
        answer = await self._cluster.ask(info.broker_name, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer, handle)
        fields = answer.ext_fields
        if not fields.get("popTime"):  # popped in order, and acked already
            return handle.text
        changed = info._replace(
            start_offset=handle.offset,
            pop_time=int(fields["popTime"]),
            invisible_time=int(fields["invisibleTime"]),
            revive_queue_id=int(fields["reviveQid"]),
            offset=handle.offset,
        )
        return f"{changed.text()} {handle.physical_offset}"

    async def ack(self, group: str, topic: str, handles: Sequence[Handle]) -> list[StatusError | None]:
        """Messages are consumed: for each what was wrong. Twice is not wrong.

        Those of a broker go to it together, if this proxy has given them out: a batch says nothing of a message that is
        not there. All others are asked about one by one.
        """
        if len(handles) == 1:
            return [await self._ack(group, topic, handles[0])]
        results: list[StatusError | None] = [None] * len(handles)
        batches: dict[str, dict[ExtraInfo, list[int]]] = {}
        alone: list[int] = []
        for at, handle in enumerate(handles):
            info = handle.info
            end = self._ends.get((info.broker_name, real_topic(topic, group, info.flag), info.queue_id), 0)
            if handle.offset >= end:
                alone.append(at)
            else:
                batches.setdefault(info.broker_name, {}).setdefault(info, []).append(at)
        works = [self._ack_batch(group, topic, handles, pops, broker, results) for broker, pops in batches.items()]
        if alone:
            works.append(self._ack_each(group, topic, handles, alone, results))
        if len(works) == 1:
            await works[0]
        else:
            await asyncio.gather(*works)
        return results

    async def _ack_batch(
        self,
        group: str,
        topic: str,
        handles: Sequence[Handle],
        pops: Mapping[ExtraInfo, list[int]],
        broker: str,
        results: list[StatusError | None],
    ) -> None:
        acks: list[BatchAck] = []
        for info, members in pops.items():
            bits = 0
            for at in members:
                bits |= 1 << handles[at].offset - info.start_offset
            acks.append(
                BatchAck(
                    group,
                    topic,
                    info.flag,
                    info.start_offset,
                    info.queue_id,
                    info.revive_queue_id,
                    info.pop_time,
                    info.invisible_time,
                    b2a_base64(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), newline=False).decode(),
                )
            )
        body = BatchAckMessageRequestBody(broker, acks).to_json()
        try:
            answer = await self._cluster.ask(broker, RequestCode.BATCH_ACK_MESSAGE, {}, body)
        except RemotingError as error:
            for members in pops.values():
                for at in members:
                    results[at] = unreachable(error)
            return
        if answer.code != ResponseCode.SUCCESS:  # some were taken: acked again, each gets its own answer
            every = [at for members in pops.values() for at in members]
            await self._ack_each(group, topic, handles, every, results)

    async def _ack_each(
        self,
        group: str,
        topic: str,
        handles: Sequence[Handle],
        places: Sequence[int],
        results: list[StatusError | None],
    ) -> None:
        for start in range(0, len(places), _AT_ONCE):  # whoever forges thousands keeps nobody else waiting
            some = places[start : start + _AT_ONCE]
            answers = await asyncio.gather(*(self._ack(group, topic, handles[at]) for at in some))
            for at, answer in zip(some, answers, strict=True):
                results[at] = answer

    async def _ack(self, group: str, topic: str, handle: Handle) -> StatusError | None:
        ext = fields_of(group, topic, handle)
        try:
            answer = await self._cluster.ask(handle.info.broker_name, RequestCode.ACK_MESSAGE, ext)
        except RemotingError as error:
            return unreachable(error)
        return None if answer.code == ResponseCode.SUCCESS else refusal(answer, handle)

    async def give_up(self, group: str, topic: str, handle: Handle, message_id: str) -> None:
        """Put a message into the group's dead-letter topic, and ack it. StatusError when that cannot be.

        Twice is not wrong: a client whose answer was lost says it again.
        """
        done = (group, topic, handle.text)
        if done in self._given_up:
            return
        await self._check_place(group, topic, handle)
        ext = {
            "offset": str(handle.physical_offset),
            "group": group,
            "delayLevel": "-1",
            "originMsgId": message_id,
            "originTopic": handle.topic(topic, group),
            "maxReconsumeTimes": "0",
        }
        await self._cluster.demand(handle.info.broker_name, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        problem = await self._ack(group, topic, handle)
        if problem is not None:
            raise problem
        self._given_up[done] = None
        if len(self._given_up) > _MOST_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]

    async def _check_place(self, group: str, topic: str, handle: Handle) -> None:
        """StatusError unless the handle's place in the log is its message's: another would be given up for this one.

        A pull (11) of its offset says where the message is.
        """
        where = handle.topic(topic, group)
        ext = {
            "consumerGroup": group,
            "topic": where,
            "queueId": str(handle.info.queue_id),
            "queueOffset": str(handle.offset),
            "maxMsgNums": "1",
            "sysFlag": str(_WITH_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": SUB_ALL,
            "subVersion": "0",
            "expressionType": TYPE_TAG,
        }
        answer = await self._cluster.ask(handle.info.broker_name, RequestCode.PULL_MESSAGE, ext)
        if answer.code == ResponseCode.SUCCESS:
            record = next(iter(iter_records(answer.body)), None)
            if record is not None and (record.queue_offset, record.physical_offset) == (
                handle.offset,
                handle.physical_offset,
            ):
                return
        raise invalid_handle(f"{handle.text[:100]!r} is not the handle of a message of topic[{topic}]")

    def release(self, group: str, topic: str, handles: Iterable[str], *, unseen: bool = False) -> None:
        """Let messages come back soon: nobody has them. It goes on beside; what is refused was acked or is back.

        ``unseen``: nobody had them, so that it counts as no attempt.
        """
        self._cluster.spawn(self._release(group, topic, list(handles), unseen))

    async def _release(self, group: str, topic: str, handles: list[str], unseen: bool) -> None:
        for at, text in enumerate(handles, 1):
            try:
                ms = LEAST_MS if unseen else SOON_MS
                await self.change_invisible(group, topic, await self.read(text), ms, suspend=unseen)
            except (StatusError, RocketError) as error:
                _log.debug("a message of %s for %s was not released: %s", topic, group, error.message)
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)

    # --- renewal ------------------------------------------------------------------------------------------------

    def keep(self, client_id: str, group: str, topic: str, handle: str) -> None:
        """Renew a message from now on. Look at ``count`` before."""
        key = client_id, group
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(client_id, group, seen=self._is_member(client_id, group))
            if len(self._kept) == 1:
                self._look_at = self._cluster.clock() + _LOOK_MS
                self.timer.expect(self._look_at)
        known = kept.messages.get(handle)
        if known is not None:
            return
        now = self._cluster.clock()
        renewed = kept.messages[handle] = _Renewed(kept, topic, handle, now)
        self.count += 1
        self._plan(renewed, now + RENEWED_FOR_MS - _AHEAD_MS)

    def take(self, client_id: str, group: str, handle: str) -> str:
        """Renew a message no more: it is acked, changed or given up. The handle that counts now."""
        kept = self._kept.get((client_id, group))
        renewed = kept.messages.get(handle) if kept is not None else None
        if renewed is None:
            return handle
        self._drop(renewed)
        return renewed.latest

    def client_left(self, client_id: str, groups: Iterable[str]) -> None:
        """A client has said goodbye, or is silent for too long."""
        for group in groups:
            self.client_gone(client_id, group)

    def client_gone(self, client_id: str, group: str) -> None:
        """What a client had comes back soon."""
        kept = self._kept.get((client_id, group))
        if kept is None:
            return
        of_topics: dict[str, list[str]] = {}
        for renewed in tuple(kept.messages.values()):
            of_topics.setdefault(renewed.topic, []).append(renewed.latest)
            self._drop(renewed)
        for topic, handles in of_topics.items():
            self.release(group, topic, handles)

    def _drop(self, renewed: _Renewed) -> None:
        kept = renewed.kept
        renewed.dropped = True
        del kept.messages[renewed.handle]
        self.count -= 1
        if not kept.messages:
            del self._kept[kept.client_id, kept.group]
        if len(self._due) > 2 * self.count + _SLACK:  # most are acked long before their time
            self._due = [entry for entry in self._due if not entry[2].dropped]
            heapq.heapify(self._due)

    def _plan(self, renewed: _Renewed, due: int) -> None:
        heapq.heappush(self._due, (due, next(self._numbers), renewed))
        self.timer.expect(due)

    def _run(self, now: int) -> int | None:
        """Called by the timer; return when to call again."""
        if not self._kept:
            return None
        if self._look_at <= now:
            self._look_at = now + _LOOK_MS
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
        return min(self._look_at, self._due[0][0]) if self._due else self._look_at

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
        now = self._cluster.clock()
        group, topic = renewed.kept.group, renewed.topic
        if now - renewed.since >= _LONGEST_MS:
            self._drop(renewed)
            return
        ms = _RENEWALS_MS[min(renewed.times, len(_RENEWALS_MS) - 1)]
        try:
            renewed.latest = await self.change_invisible(group, topic, await self.read(renewed.latest), ms)
        except RemotingError as error:  # the broker is away: there are some seconds left
            _log.debug("a message of %s for %s is not renewed yet: %s", topic, group, error.message)
            if not renewed.dropped:
                self._plan(renewed, now + _AGAIN_MS)
            return
        except (StatusError, RocketError) as error:
            _log.debug("a message of %s for %s is not renewed: %s", topic, group, error.message)
            if not renewed.dropped:
                self._drop(renewed)
            return
        if renewed.dropped:  # acked meanwhile, with the handle before this one
            self.release(group, topic, [renewed.latest])
            return
        renewed.times += 1
        self._plan(renewed, now + ms - _AHEAD_MS)
