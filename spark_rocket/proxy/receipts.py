"""Receipt handles: what a client holds for a message that it was given, and the renewal of those that it asked to have
renewed.

A handle is the broker's receipt with a ninth part, blanks between:

``startOffset popTime invisibleTime reviveQueueId topicFlag brokerName queueId offset commitLogOffset``

Clients hand it back with every ack and change. One that says nothing, is another broker's, or whose time is over, is
refused with INVALID_RECEIPT_HANDLE.

A message received with ``auto_renew`` is invisible for a minute. Ten seconds before that is over it is made invisible
again, for longer each time (1, 3, 5, 10, 30, 60 minutes), until it is acked or three hours have passed; then it comes
back. The client goes on using the handle that it was given first. When a client is no longer registered in its group,
its messages come back within a second.

=============================  =======================================================================================
what goes wrong                what becomes of the message
=============================  =======================================================================================
the change is refused          not renewed any more: it was acked, or comes back when its time is over
the client is gone             looked at every 5 s, and when its time comes: made visible
too many are renewed           ReceiveMessage with ``auto_renew`` is refused with TOO_MANY_REQUESTS
the broker stops               it comes back at the next start; one that was not yet renewed can be acked for its minute
the broker is killed           it comes back when its time is over
=============================  =======================================================================================

Thread-safety: used on the event loop only. Corresponds to common.consumer.ReceiptHandle and
org.apache.rocketmq.proxy.service.receipt.DefaultReceiptHandleManager.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from spark_rocket.broker.delivery_driver import DeliveryDriver
from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.bodies import BatchAck, BatchAckMessageRequestBody
from spark_rocket.protocol.codes import RequestCode, ResponseCode
from spark_rocket.protocol.command import RemotingCommand
from spark_rocket.protocol.extra_info import FLAG_NORMAL, ExtraInfo, parse_extra_info, real_topic
from spark_rocket.protocol.record import view_record
from spark_rocket.proxy.definitions import Code
from spark_rocket.proxy.local_broker import LocalBroker, ProxyChannel
from spark_rocket.proxy.statuses import StatusError, status_code_of

_log = logging.getLogger(__name__)

RENEWED_FOR_MS = 60_000
"""How long a message that is renewed is invisible at first."""
SOON_MS = 1_000
"""After how long a message comes back that its receiver does not have any more."""
MAX_RENEWED = 200_000

_AHEAD_MS = 10_000
_RENEWALS_MS = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
_LONGEST_MS = 3 * 3_600_000
_LOOK_MS = 5_000
_LATELY_MS = 1_000
_AT_ONCE = 50
_SLACK = 1_000
_MOST_GIVEN_UP = 10_000
_NO_RECEIPT = (ResponseCode.NO_MESSAGE, ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL)
_MAX_SPAN = 1 << 16
_MAX_QUEUE = (1 << 31) - 1
_MAX_OFFSET = (1 << 63) - 1
_MOST_LENGTH = 1_000


class Handle(NamedTuple):
    """A handle that was read: what the messages of one queue in one pop have in common, and which of them it is.

    ``physical_offset`` is −1 when it does not say where in the log the message is.
    """

    info: ExtraInfo
    offset: int
    physical_offset: int
    text: str

    def topic(self, topic: str, group: str) -> str:
        """Where the message really is: ``topic`` itself, or the group's retry topic for it."""
        return real_topic(topic, group, self.info.flag)


def read_handle(text: str, broker_name: str, now: int) -> Handle:
    """StatusError with INVALID_RECEIPT_HANDLE when it is none of this broker's, or not any more."""
    parts = text.rsplit(" ", 2 if text.count(" ", 0, _MOST_LENGTH) > 7 else 1)
    try:
        info = _info_of(parts[0])
        offset = int(parts[1])
        physical_offset = int(parts[2]) if len(parts) > 2 else -1
    except (ProtocolError, ValueError, IndexError):
        raise _invalid(f"{text[:100]!r} is no receipt handle: it comes with each message received") from None
    if info.broker_name != broker_name:
        raise _invalid(f"the receipt handle is of broker {info.broker_name[:100]!r}, this is {broker_name!r}")
    if (
        info.offset >= 0
        or max(info.queue_id, info.revive_queue_id) > _MAX_QUEUE
        or not info.start_offset <= offset < info.start_offset + _MAX_SPAN
        or max(offset, physical_offset) > _MAX_OFFSET
    ):
        raise _invalid(f"{text[:100]!r} names no message")
    if info.pop_time + info.invisible_time <= now:
        raise _invalid("receipt handle is expired: the message is delivered again, with a new one")
    return Handle(info, offset, physical_offset, text)


@lru_cache(4096)
def _info_of(head: str) -> ExtraInfo:
    """All of a handle but the offsets."""
    if len(head) > _MOST_LENGTH:
        raise ValueError
    return parse_extra_info(head)


def _fields(group: str, topic: str, handle: Handle) -> dict[str, str]:
    """What ACK_MESSAGE says, and CHANGE_MESSAGE_INVISIBLETIME besides the time."""
    info = handle.info
    return {
        "consumerGroup": group,
        "topic": handle.topic(topic, group),
        "queueId": str(info.queue_id),
        "extraInfo": handle.text,
        "offset": str(handle.offset),
    }


def refusal(answer: RemotingCommand, handle: Handle) -> StatusError:
    """What an answer of the broker's to an ack or a change means, that is not success."""
    remark = answer.remark or f"the broker answered {answer.code}"
    forged = answer.code == ResponseCode.TOPIC_NOT_EXIST and handle.info.flag != FLAG_NORMAL
    if answer.code in _NO_RECEIPT or forged:
        return _invalid(remark)
    return StatusError(status_code_of(answer.code), remark)


def _invalid(message: str) -> StatusError:
    return StatusError(Code.INVALID_RECEIPT_HANDLE, message)


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

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        service = self._service = broker.service
        self._broker_name = service.config.broker_name
        self._channel = ProxyChannel("127.0.0.1:0")
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._due: list[tuple[int, int, _Renewed]] = []
        self._numbers = itertools.count()
        self._given_up: dict[tuple[str, str, str], None] = {}
        self._lately: dict[str, tuple[int, set[str]]] = {}
        self._look_at = 0
        self.driver = DeliveryDriver(service.loop, service.clock, self._run)
        self.count = 0
        """How many are renewed."""

    def close(self) -> None:
        """Renew no more. What was renewed comes back: after a restart nobody could ack it, its first handle is over."""
        self.driver.close()
        given_back: dict[tuple[str, str], list[str]] = {}
        for kept in tuple(self._kept.values()):
            for renewed in tuple(kept.messages.values()):
                self._drop(renewed)
                if renewed.times:
                    given_back.setdefault((kept.group, renewed.topic), []).append(renewed.latest)
        for (group, topic), handles in given_back.items():
            self.release(group, topic, handles)

    def read(self, text: str) -> Handle:
        """A handle that a client says."""
        return read_handle(text, self._broker_name, self._service.clock())

    # --- at the broker ------------------------------------------------------------------------------------------

    async def change_invisible(self, group: str, topic: str, handle: Handle, ms: int, *, suspend: bool = False) -> str:
        """Make a message invisible for ``ms`` from now on; its new handle. StatusError when that cannot be.

        ``suspend``: that it comes again then counts as no attempt.
        """
        info = handle.info
        ext = _fields(group, topic, handle)
        ext["invisibleTime"] = str(max(ms, 1))
        if suspend:
            ext["suspend"] = "true"
        answer = await self._broker.ask(self._channel, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
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

        Those of a pop go to the broker together. A batch says nothing of a message that is not there: handles that
        cannot be are asked about one by one.
        """
        batches: dict[ExtraInfo, list[int]] = {}
        for at, handle in enumerate(handles):
            batches.setdefault(handle.info, []).append(at)
        results: list[StatusError | None] = [None] * len(handles)
        acks: list[BatchAck] = []
        together: list[int] = []
        alone = 0
        for info, members in batches.items():
            offsets = [handles[at].offset for at in members]
            where = real_topic(topic, group, info.flag)
            if len(handles) == 1 or not self._is_there(where, info.queue_id, offsets):
                for at in members:
                    alone += 1
                    if alone % _AT_ONCE == 0:  # whoever forges thousands keeps nobody else waiting
                        await asyncio.sleep(0)
                    results[at] = await self._ack(group, topic, handles[at])
                continue
            bits = 0
            for offset in offsets:
                bits |= 1 << offset - info.start_offset
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
            together += members
        if acks:
            body = BatchAckMessageRequestBody(self._broker_name, acks).to_json()
            answer = await self._broker.ask(self._channel, RequestCode.BATCH_ACK_MESSAGE, {}, body)
            if answer.code != ResponseCode.SUCCESS:  # some were taken: acked again, each gets its own answer
                for at in together:
                    results[at] = await self._ack(group, topic, handles[at])
        return results

    def _is_there(self, topic: str, queue_id: int, offsets: Sequence[int]) -> bool:
        service = self._service
        config = service.topics.get(topic)
        if config is None or not queue_id < config.read_queue_nums:
            return False
        store = service.store
        return store.get_min_offset(topic, queue_id) <= min(offsets) and max(offsets) < store.get_max_offset(
            topic, queue_id
        )

    async def _ack(self, group: str, topic: str, handle: Handle) -> StatusError | None:
        ext = _fields(group, topic, handle)
        answer = await self._broker.ask(self._channel, RequestCode.ACK_MESSAGE, ext)
        return None if answer.code == ResponseCode.SUCCESS else refusal(answer, handle)

    async def give_up(self, group: str, topic: str, handle: Handle, message_id: str) -> None:
        """Put a message into the group's dead-letter topic, and ack it. StatusError when that cannot be.

        Twice is not wrong: a client whose answer was lost says it again.
        """
        done = (group, topic, handle.text)
        if done in self._given_up:
            return
        self._check_place(group, topic, handle)
        ext = {
            "offset": str(handle.physical_offset),
            "group": group,
            "delayLevel": "-1",
            "originMsgId": message_id,
            "originTopic": handle.topic(topic, group),
            "maxReconsumeTimes": "0",
        }
        await self._broker.demand(self._channel, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        problem = await self._ack(group, topic, handle)
        if problem is not None:
            raise problem
        self._given_up[done] = None
        if len(self._given_up) > _MOST_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]

    def _check_place(self, group: str, topic: str, handle: Handle) -> None:
        """StatusError unless the handle's place in the log is its message's: another would be lost for this one."""
        raw = None
        if handle.physical_offset >= 0:
            raw = self._service.store.look_message_by_offset(handle.physical_offset)
        try:
            record = view_record(raw or b"")
        except ProtocolError:
            raise _invalid(f"{handle.text[:100]!r} does not say where its message is") from None
        found = (str(record.topic, "utf-8", "replace"), record.queue_id, record.queue_offset)
        if found != (handle.topic(topic, group), handle.info.queue_id, handle.offset) or not (
            self._service.store.is_message(*found, handle.physical_offset)
        ):
            raise _invalid(f"{handle.text[:100]!r} is no message of topic[{topic}]")

    def release(self, group: str, topic: str, handles: Iterable[str], *, unseen: bool = False) -> None:
        """Let messages come back soon: nobody has them. It goes on beside; what is refused was acked or is back.

        ``unseen``: nobody had them, so that it counts as no attempt.
        """
        self._service.spawn(self._release(group, topic, list(handles), unseen))

    async def _release(self, group: str, topic: str, handles: list[str], unseen: bool) -> None:
        for at, text in enumerate(handles, 1):
            try:
                await self.change_invisible(group, topic, self.read(text), SOON_MS, suspend=unseen)
            except StatusError as error:
                _log.debug("a message of %s for %s was not released: %s", topic, group, error.message)
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)

    # --- renewal ------------------------------------------------------------------------------------------------

    def keep(self, client_id: str, group: str, topic: str, handle: str) -> None:
        """Renew a message from now on. Look at ``count`` before."""
        key = client_id, group
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(client_id, group, seen=self._was_lately_live(client_id, group))
            if len(self._kept) == 1:
                self._look_at = self._service.clock() + _LOOK_MS
                self.driver.expect(self._look_at)
        known = kept.messages.get(handle)
        if known is not None:
            return
        now = self._service.clock()
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
        self.driver.expect(due)

    def _run(self, now: int, budget: float) -> int | None:
        """The driver's turn."""
        if not self._kept:
            return None
        if self._look_at <= now:
            self._look_at = now + _LOOK_MS
            live = {group: self._live(group) for group in {group for _, group in self._kept}}
            for kept in tuple(self._kept.values()):
                if kept.client_id in live[kept.group]:
                    kept.seen = True
                elif kept.seen:
                    self.client_gone(kept.client_id, kept.group)
        due: list[_Renewed] = []
        while self._due and (self._due[0][0] <= now or self._due[0][2].dropped):
            renewed = heapq.heappop(self._due)[2]
            if not renewed.dropped:
                due.append(renewed)
        if due:
            self._service.spawn(self._renew_all(due))
        if not self._kept:
            return None
        return min(self._look_at, self._due[0][0]) if self._due else self._look_at

    async def _renew_all(self, due: list[_Renewed]) -> None:
        live: dict[str, set[str]] = {}
        for at, renewed in enumerate(due, 1):
            if not renewed.dropped:
                kept = renewed.kept
                if kept.group not in live:
                    live[kept.group] = self._live(kept.group)
                if kept.client_id in live[kept.group]:
                    await self._renew(renewed)
                else:
                    self.client_gone(kept.client_id, kept.group)
            if at % _AT_ONCE == 0:
                await asyncio.sleep(0)
                live.clear()

    async def _renew(self, renewed: _Renewed) -> None:
        now = self._service.clock()
        group, topic = renewed.kept.group, renewed.topic
        if now - renewed.since >= _LONGEST_MS:
            self._drop(renewed)
            return
        ms = _RENEWALS_MS[min(renewed.times, len(_RENEWALS_MS) - 1)]
        try:
            renewed.latest = await self.change_invisible(group, topic, self.read(renewed.latest), ms)
        except StatusError as error:
            _log.debug("a message of %s for %s is not renewed: %s", topic, group, error.message)
            if not renewed.dropped:
                self._drop(renewed)
            return
        if renewed.dropped:  # acked meanwhile, with the handle before this one
            self.release(group, topic, [renewed.latest])
            return
        renewed.times += 1
        self._plan(renewed, now + ms - _AHEAD_MS)

    def _was_lately_live(self, client_id: str, group: str) -> bool:
        """Whether a client is registered in a group, or was within this second: asked for nearly each message."""
        now = self._service.clock()
        until, found = self._lately.get(group, (0, set()))
        if client_id not in found or not now < until <= now + _LATELY_MS:
            if len(self._lately) >= _SLACK:
                self._lately.clear()
            found = self._live(group)
            self._lately[group] = (now + _LATELY_MS, found)
        return client_id in found

    def _live(self, group: str) -> set[str]:
        """The clients that are registered in a group."""
        found = self._service.clients.consumers.get(group)
        return set() if found is None else {member.client_id for member in found.members.values()}
