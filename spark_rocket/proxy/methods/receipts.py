"""Requests to brokers with receipt handles (handles.py), and automatic renewal of the invisible time.

A message received with ``auto_renew`` is invisible for a minute. Ten seconds before the end, its invisible time is
renewed, each time for longer (1, 3, 5, 10, 30, 60 minutes), until it is acked or for three hours; then it becomes
visible again. The client always uses its first handle. When a client leaves its group, its messages become visible
within a second.

=============================  =======================================================================================
problem                        effect on the message
=============================  =======================================================================================
a renewal is refused           no more renewals: it was acked, or becomes visible at the end of its time
the client is gone             checked every 5 s and at each renewal: the message becomes visible
too many renewed messages      ReceiveMessage with ``auto_renew`` is refused with TOO_MANY_REQUESTS
the proxy stops                renewed messages become visible soon; others can be acked for their minute
proxy or broker is killed      it becomes visible at the end of its time
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
from spark_rocket.protocol.wire.bodies.consumer import BatchAck, BatchAckMessageRequestBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster
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
"""The first invisible time of a renewed message."""
RELEASE_DELAY_MS = 1_000
"""The invisible time of a message whose receiver is gone."""
UNSEEN_RELEASE_DELAY_MS = 1
"""The invisible time of a message that was not delivered to a client."""
MAX_RENEWED = 200_000

_AHEAD_MS = 10_000
_RENEWALS_MS = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
_MAX_RENEWED_MS = 3 * 3_600_000
_CHECK_INTERVAL_MS = 5_000
_RETRY_DELAY_MS = 2_000
_MAX_ENDED = 100_000
_WITH_SUBSCRIPTION = 4
_AT_ONCE = 50
_SLACK = 1_000
_MAX_GIVEN_UP = 10_000


class _Renewed:
    """A renewed message. ``handle``: the client's handle; ``latest``: the valid one."""

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
    """The messages of a client in a group. ``seen``: it has been registered in the group."""

    __slots__ = ("client_id", "group", "messages", "seen")

    def __init__(self, client_id: str, group: str, *, seen: bool) -> None:
        self.client_id = client_id
        self.group = group
        self.messages: dict[str, _Renewed] = {}
        self.seen = seen


class Receipts:
    """Sends requests with handles to brokers, and renews handles."""

    def __init__(self, cluster: ProxyCluster, is_member: Callable[[str, str], bool]) -> None:
        """``is_member(client_id, group)``: whether a client is currently a member of a group."""
        self._cluster = cluster
        self._is_member = is_member
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._due: list[tuple[int, int, _Renewed]] = []
        self._numbers = itertools.count()
        self._given_up: dict[tuple[str, str, str], None] = {}
        self._ends: dict[tuple[str, str, int], int] = {}
        self._next_check = 0
        self.timer = WallClockTimer(asyncio.get_running_loop(), cluster.clock, self._run)
        self.count = 0
        """The number of renewed messages."""

    def close(self) -> None:
        """Stop renewals. Renewed messages become visible: their first handle is expired, so clients cannot ack them."""
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
        """Parse a client's handle."""
        handle = read_handle(text, self._cluster.clock())
        broker = handle.info.broker_name
        if not self._cluster.knows_broker(broker) and not await self._cluster.is_broker(broker):
            raise invalid_handle(f"broker {broker[:100]!r} of the receipt handle is not in this cluster")
        return handle

    def given(self, broker: str, topic: str, queue_id: int, offset: int) -> None:
        """Record that a message was received: its offset and those before exist."""
        place = broker, topic, queue_id
        if offset >= self._ends.get(place, 0):
            if place not in self._ends and len(self._ends) >= _MAX_ENDED:
                del self._ends[next(iter(self._ends))]
            self._ends[place] = offset + 1

    # --- at the broker ------------------------------------------------------------------------------------------

    async def change_invisible(self, group: str, topic: str, handle: Handle, ms: int, *, suspend: bool = False) -> str:
        """Make a message invisible for ``ms`` from now; return its new handle. StatusError on failure.

        ``suspend``: the next delivery does not count as an attempt.
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
        if not fields.get("popTime"):  # ordered pop, and already acked
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
        """Ack messages; return the error of each, or None. A duplicate ack is not an error.

        Messages that this proxy delivered are acked in a batch per broker. Others are acked one by one, because a batch
        does not report missing messages.
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
        if answer.code != ResponseCode.SUCCESS:  # partly accepted: ack each again to get its own result
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
        for start in range(0, len(places), _AT_ONCE):  # thousands of forged handles must not block others
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
        """Send a message to the group's dead-letter topic and ack it. StatusError on failure.

        A duplicate request is not an error: clients retry after a lost response.
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
        if len(self._given_up) > _MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]

    async def _check_place(self, group: str, topic: str, handle: Handle) -> None:
        """Verify the handle's log position, because it selects the message that becomes a dead letter.

        A pull (11) of its offset returns the message's position. StatusError if they differ.
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
        raise invalid_handle(f"receipt handle {handle.text[:100]!r} does not belong to a message of topic[{topic}]")

    def release(self, group: str, topic: str, handles: Iterable[str], *, unseen: bool = False) -> None:
        """Make messages visible soon, in the background. A refused request means acked or already visible.

        ``unseen``: they were not delivered to a client, so the delivery does not count as an attempt.
        """
        self._cluster.spawn(self._release(group, topic, list(handles), unseen))

    async def _release(self, group: str, topic: str, handles: list[str], unseen: bool) -> None:
        for at, text in enumerate(handles, 1):
            try:
                ms = UNSEEN_RELEASE_DELAY_MS if unseen else RELEASE_DELAY_MS
                await self.change_invisible(group, topic, await self.read(text), ms, suspend=unseen)
            except (StatusError, RocketError) as error:
                _log.debug("a message of %s for %s was not released: %s", topic, group, error.message)
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)

    # --- renewal ------------------------------------------------------------------------------------------------

    def keep(self, client_id: str, group: str, topic: str, handle: str) -> None:
        """Start renewing a message. Check ``count`` before."""
        key = client_id, group
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(client_id, group, seen=self._is_member(client_id, group))
            if len(self._kept) == 1:
                self._next_check = self._cluster.clock() + _CHECK_INTERVAL_MS
                self.timer.expect(self._next_check)
        known = kept.messages.get(handle)
        if known is not None:
            return
        now = self._cluster.clock()
        renewed = kept.messages[handle] = _Renewed(kept, topic, handle, now)
        self.count += 1
        self._plan(renewed, now + RENEWED_FOR_MS - _AHEAD_MS)

    def take(self, client_id: str, group: str, handle: str) -> str:
        """Stop renewing a message that is acked, changed or dead; return its valid handle."""
        kept = self._kept.get((client_id, group))
        renewed = kept.messages.get(handle) if kept is not None else None
        if renewed is None:
            return handle
        self._drop(renewed)
        return renewed.latest

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
            self.release(group, topic, handles)

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
        now = self._cluster.clock()
        group, topic = renewed.kept.group, renewed.topic
        if now - renewed.since >= _MAX_RENEWED_MS:
            self._drop(renewed)
            return
        ms = _RENEWALS_MS[min(renewed.times, len(_RENEWALS_MS) - 1)]
        try:
            renewed.latest = await self.change_invisible(group, topic, await self.read(renewed.latest), ms)
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
            self.release(group, topic, [renewed.latest])
            return
        renewed.times += 1
        self._plan(renewed, now + ms - _AHEAD_MS)
