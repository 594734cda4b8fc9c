"""Requests to brokers with receipt handles (handles.py): acks, changes of the invisible time, dead letters, releases.

Nothing is stored on disk. Corresponds to org.apache.rocketmq.proxy.processor.ConsumerProcessor.
"""

from __future__ import annotations

import asyncio
import logging
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

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

_log = logging.getLogger(__name__)

RELEASE_DELAY_MS = 1_000
"""The invisible time of a message whose receiver is gone."""
RELEASE_RETRY_S = 2.0
"""The delay of a release after an attempt for which the broker was unavailable."""
UNSEEN_RELEASE_DELAY_MS = 1
"""The invisible time of a message that was not delivered to a client."""
_MAX_ENDED = 100_000
_WITH_SUBSCRIPTION = 4
_AT_ONCE = 50
_MAX_GIVEN_UP = 10_000


class Receipts:
    """Sends requests with handles to brokers."""

    def __init__(self, cluster: ProxyCluster) -> None:
        self._cluster = cluster
        self._given_up: dict[tuple[str, str, str], bool] = {}  # dead letters, and whether they are acked
        self._giving_up: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()
        self._ends: dict[tuple[str, str, int], int] = {}

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
        response = await self._cluster.ask(info.broker_name, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response, handle)
        fields = response.ext_fields
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
            response = await self._cluster.ask(broker, RequestCode.BATCH_ACK_MESSAGE, {}, body)
        except RemotingError as error:
            for members in pops.values():
                for at in members:
                    results[at] = unreachable(error)
            return
        if response.code != ResponseCode.SUCCESS:  # partly accepted: ack each again to get its own result
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
            responses = await asyncio.gather(*(self._ack(group, topic, handles[at]) for at in some))
            for at, response in zip(some, responses, strict=True):
                results[at] = response

    async def _ack(self, group: str, topic: str, handle: Handle) -> StatusError | None:
        ext = fields_of(group, topic, handle)
        try:
            response = await self._cluster.ask(handle.info.broker_name, RequestCode.ACK_MESSAGE, ext)
        except RemotingError as error:
            return unreachable(error)
        return None if response.code == ResponseCode.SUCCESS else refusal(response, handle)

    async def give_up(self, group: str, topic: str, handle: Handle, message_id: str, given: str) -> None:
        """Send a message to the group's dead-letter topic and ack it. StatusError on failure.

        A duplicate request is not an error: clients retry after a lost response. ``given``: the client's handle, which
        a renewal between the requests does not change.
        """
        done = (group, topic, given)
        async with self._giving_up.setdefault(done, asyncio.Lock()):
            await self._give_up(group, topic, handle, message_id, done)

    async def _give_up(
        self, group: str, topic: str, handle: Handle, message_id: str, done: tuple[str, str, str]
    ) -> None:
        if done not in self._given_up:
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
            self._given_up[done] = False
            if len(self._given_up) > _MAX_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]
        if self._given_up.get(done):
            return
        problem = await self._ack(group, topic, handle)
        if problem is not None:
            raise problem
        if done in self._given_up:
            self._given_up[done] = True

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
        response = await self._cluster.ask(handle.info.broker_name, RequestCode.PULL_MESSAGE, ext)
        if response.code == ResponseCode.SUCCESS:
            record = next(iter(iter_records(response.body)), None)
            if record is not None and (record.queue_offset, record.physical_offset) == (
                handle.offset,
                handle.physical_offset,
            ):
                return
        raise invalid_handle(f"receipt handle {handle.text[:100]!r} does not belong to a message of topic[{topic}]")

    async def release(self, group: str, topic: str, handles: list[str], *, unseen: bool = False) -> None:
        """Make messages visible soon. A refused request means acked or already visible.

        While a broker is unavailable, its messages are retried until they become visible anyway.

        ``unseen``: they were not delivered to a client, so the delivery does not count as an attempt.
        """
        ms = UNSEEN_RELEASE_DELAY_MS if unseen else RELEASE_DELAY_MS
        while handles:
            failed = []
            for at, text in enumerate(handles, 1):
                try:
                    await self.change_invisible(group, topic, await self.read(text), ms, suspend=unseen)
                except RemotingError:
                    failed.append(text)
                except (StatusError, RocketError) as error:
                    _log.debug("a message of %s for %s was not released: %s", topic, group, error.message)
                if at % _AT_ONCE == 0:
                    await asyncio.sleep(0)
            handles = [] if self._cluster.is_closing else failed
            if handles:
                await asyncio.sleep(RELEASE_RETRY_S)
