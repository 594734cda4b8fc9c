"""Live producers and consumers by group and connection, from their heartbeats.

A member is one client id on one connection in one group: a proxy registers many clients over one connection. A member
is removed when its client unregisters, when its connection closes, or without a heartbeat for
``channelExpiredTimeout`` of the monotonic clock. A connection without any live member is closed. When a member of a
consumer group is added or removed, or changes its topics, all members get NOTIFY_CONSUMER_IDS_CHANGED (40) and
rebalance at once.

All members of a group must have the same subscription; otherwise members receive messages that only another one
subscribes to, or miss messages. In Apache's broker the last heartbeat wins, without a warning. This broker does the
same, but logs both subscriptions, once per change.

Thread-safety: used on the event loop only. After a crash: nothing is stored; heartbeats rebuild the tables.
Corresponds to org.apache.rocketmq.broker.client.{ProducerManager, ConsumerManager, ConsumerGroupInfo}
and client.rebalance.RebalanceLockManager.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from spark_rocket.errors import RefusedError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.bodies import BROADCASTING, ConsumerData, HeartbeatData, SubscriptionData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers import NotifyConsumerIdsChangedRequestHeader
from spark_rocket.protocol.wire.json import REQUEST_LIMITS, loads_tolerant
from spark_rocket.remoting.server.channel import Channel

_log = logging.getLogger(__name__)

_SHOWN = 10
_MAX_BODY_BYTES = 1024 * 1024  # decoding more blocks the event loop for too long
_MAX_GROUPS = 1_000
_MAX_TOPICS = 10_000


def monotonic_ms() -> int:
    """Milliseconds of a clock that is not affected by changes of the wall clock."""
    return time.monotonic_ns() // 1_000_000


@dataclass(slots=True)
class ClientInfo:
    """One member: a client's connection in one group."""

    channel: Channel
    client_id: str
    language: str
    version: int
    last_update: int
    """Wall-clock time of the last heartbeat (ms), for display."""
    heard: int
    """Monotonic time of the last heartbeat (ms), for expiry."""
    subscribed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Subscriptions of a consumer: topic -> type and text of the expression."""


class Members:
    """The members of one group, by connection and client id."""

    __slots__ = ("_by_channel",)

    def __init__(self) -> None:
        self._by_channel: dict[Channel, dict[str, ClientInfo]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_channel.values()))

    def __iter__(self) -> Iterator[ClientInfo]:
        for clients in self._by_channel.values():
            yield from clients.values()

    def channels(self) -> list[Channel]:
        """The members' connections, without duplicates."""
        return list(self._by_channel)

    def get(self, channel: Channel, client_id: str) -> ClientInfo | None:
        clients = self._by_channel.get(channel)
        return None if clients is None else clients.get(client_id)

    def put(self, info: ClientInfo) -> None:
        self._by_channel.setdefault(info.channel, {})[info.client_id] = info

    def drop(self, channel: Channel, client_id: str | None) -> bool:
        """Drop one member, or all of the connection if ``client_id`` is None; False if there was none."""
        clients = self._by_channel.get(channel)
        if clients is None or (client_id is not None and clients.pop(client_id, None) is None):
            return False
        if client_id is None or not clients:
            del self._by_channel[channel]
        return True


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group's members, and the settings and subscriptions from their heartbeats."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: Members = field(default_factory=Members)

    def client_ids(self) -> list[str]:
        return sorted({member.client_id for member in self.members})

    def channel_of(self, client_id: str) -> Channel | None:
        """Return the client's connection with the latest heartbeat."""
        return _latest(member for member in self.members if member.client_id == client_id)

    def update_subscriptions(self, data: Iterable[SubscriptionData]) -> None:
        """Accept newer subscriptions; drop topics that are no longer subscribed to."""
        named = set()
        for subscription in data:
            named.add(subscription.topic)
            known = self.subscriptions.get(subscription.topic)
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[subscription.topic] = subscription
        for topic in [topic for topic in self.subscriptions if topic not in named]:
            del self.subscriptions[topic]


class ClientManager:
    """Producers and consumers. ``notify`` is called for each connection whose group's members changed.

    ``clock`` is the wall clock, for display; members expire by ``monotonic``. Both in milliseconds.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        notify: Callable[[Channel, str], None],
        monotonic: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._notify = notify
        self.producers: dict[str, Members] = {}
        self.consumers: dict[str, ConsumerGroup] = {}

    # --- registering --------------------------------------------------------------------------------------------

    def register_producer(self, group: str, channel: Channel, client_id: str, language: str, version: int) -> None:
        info = self._info(channel, client_id, language, version)
        self.producers.setdefault(group, Members()).put(info)

    def register_consumer(
        self,
        data: ConsumerData,
        channel: Channel,
        client_id: str,
        language: str,
        version: int,
        *,
        notify: bool = True,
        with_subscriptions: bool = True,
    ) -> bool:
        """Add or renew a member; True if it is new or its topics changed."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(channel, client_id)
        changed = known is None
        info = self._info(channel, client_id, language, version)
        group.members.put(info)
        if with_subscriptions:
            info.subscribed = {one.topic: (one.expression_type, one.sub_string) for one in data.subscription_data_set}
            group.update_subscriptions(data.subscription_data_set)
            if known is None or known.subscribed != info.subscribed:
                changed = known is None or known.subscribed.keys() != info.subscribed.keys()
                _warn_if_different(group, info)
        elif known is not None:
            info.subscribed = known.subscribed
        if changed and notify:
            self._notify_members(group)
        return changed

    def _info(self, channel: Channel, client_id: str, language: str, version: int) -> ClientInfo:
        return ClientInfo(channel, client_id, language, version, self._clock(), self._monotonic())

    def unregister(
        self,
        channel: Channel,
        client_id: str,
        producer_group: str | None,
        consumer_group: str | None,
        *,
        notify: bool = True,
    ) -> None:
        """Remove a client from a group."""
        if producer_group:
            self._drop_producer(producer_group, channel, client_id)
        if consumer_group:
            self._drop_consumer(consumer_group, channel, client_id, notify=notify)

    def channel_closed(self, channel: Channel) -> None:
        for name in list(self.producers):
            self._drop_producer(name, channel, None)
        for name in list(self.consumers):
            self._drop_consumer(name, channel, None)

    def expire(self, timeout_ms: int) -> None:
        """Drop members without a heartbeat for ``timeout_ms``, and close connections without other members."""
        limit = self._monotonic() - timeout_ms
        every = [(name, info, True) for name, members in self.producers.items() for info in members]
        every += [(name, info, False) for name, group in self.consumers.items() for info in group.members]
        alive = {info.channel for _, info, _ in every if info.heard >= limit}
        for name, info, produces in every:
            if info.heard >= limit:
                continue
            if info.channel in alive:
                self.unregister(info.channel, info.client_id, name if produces else None, None if produces else name)
                continue
            alive.add(info.channel)  # close each connection once
            _log.warning("closing connection %s: no heartbeat for %d ms", info.channel.remote_addr, timeout_ms)
            self.channel_closed(info.channel)
            info.channel.close()

    def _drop_producer(self, name: str, channel: Channel, client_id: str | None) -> None:
        members = self.producers.get(name)
        if members is not None and members.drop(channel, client_id) and not len(members):
            del self.producers[name]

    def _drop_consumer(self, name: str, channel: Channel, client_id: str | None, *, notify: bool = True) -> None:
        group = self.consumers.get(name)
        if group is None or not group.members.drop(channel, client_id):
            return
        if not len(group.members):
            del self.consumers[name]
        elif notify:
            self._notify_members(group)

    def _notify_members(self, group: ConsumerGroup) -> None:
        if group.message_model == BROADCASTING:
            return  # each member gets all queues: no rebalance
        for channel in group.members.channels():
            self._notify(channel, group.group)

    # --- queries ------------------------------------------------------------------------------------------------

    def producer_channel(self, client_id: str) -> Channel | None:
        """Return the connection of a producer, in any group."""
        every = (info for members in self.producers.values() for info in members)
        return _latest(info for info in every if info.client_id == client_id)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        found = self.consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def groups_of(self, topic: str) -> set[str]:
        """Groups with a live member that subscribes to the topic."""
        return {name for name, group in self.consumers.items() if topic in group.subscriptions}


class RebalanceLockManager:
    """Locks for ordered consumption: group -> queue -> (client, time of the last renewal).

    A lock expires ``live_time_ms`` after its last renewal.

    ``clock``: monotonic milliseconds.
    """

    def __init__(self, clock: Callable[[], int], live_time_ms: int) -> None:
        self._clock = clock
        self._live_time = live_time_ms
        self._locks: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> list[MessageQueue]:
        """Lock or renew queues that are free, expired or the client's own; returns the queues that it now holds."""
        now = self._clock()
        locks = self._locks.setdefault(group, {})
        held = []
        for queue in queues:
            owner = locks.get(queue)
            if owner is None or owner[0] == client_id or now - owner[1] > self._live_time:
                locks[queue] = (client_id, now)
                held.append(queue)
        return held

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        locks = self._locks.get(group, {})
        for queue in queues:
            owner = locks.get(queue)
            if owner is not None and owner[0] == client_id:
                del locks[queue]
        if not locks:
            self._locks.pop(group, None)


def _latest(connections: Iterable[ClientInfo]) -> Channel | None:
    """The connection with the latest heartbeat: a client that reconnects may leave a dead connection behind."""
    found = list(connections)
    return max(reversed(found), key=lambda info: info.heard).channel if found else None


def _warn_if_different(group: ConsumerGroup, info: ClientInfo) -> None:
    other = next((one for one in group.members if one.subscribed and one.subscribed != info.subscribed), None)
    if other is not None and info.subscribed:
        _log.warning(
            "Consumers of group %s have different subscriptions: %s has %s, %s has %s. Each gets queues of all these "
            "topics, filtered by the subscription of the last heartbeat. Use a separate group for one of them.",
            group.group,
            info.client_id,
            _shown_subscriptions(info),
            other.client_id,
            _shown_subscriptions(other),
        )


def _shown_subscriptions(info: ClientInfo) -> str:
    shown = [f"{topic} by {text!r}" for topic, (_, text) in sorted(info.subscribed.items())]
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")


def notify_consumer_ids_changed(channel: Channel, group: str) -> None:
    """Notify one member that its group changed (40)."""
    header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
    request = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header.to_ext(), oneway=True)
    channel.write(request)


def heartbeat_of(request: RemotingCommand) -> HeartbeatData:
    """Decode the body; RefusedError if it is too large, since decoding it delays all other clients."""
    value = loads_tolerant(bounded_body(request), REQUEST_LIMITS)
    if isinstance(value, dict):
        consumers = _list(value, "consumerDataSet")
        groups = len(_list(value, "producerDataSet")) + len(consumers)
        _check_number("groups", groups, _MAX_GROUPS)
        _check_number("subscriptions", sum(len(_list(item, "subscriptionDataSet")) for item in consumers), _MAX_TOPICS)
    return HeartbeatData.from_value(value)


def bounded_body(request: RemotingCommand) -> bytes | bytearray | memoryview:
    if len(request.body) > _MAX_BODY_BYTES:
        raise RefusedError(
            f"the body of the request has {len(request.body)} bytes, at most {_MAX_BODY_BYTES} are allowed",
            ResponseCode.SYSTEM_ERROR,
            remedy="Spread the groups and queues over several clients.",
        )
    return request.body


def _list(value: object, name: str) -> list[object]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _check_number(what: str, number: int, most: int) -> None:
    if number > most:
        raise RefusedError(
            f"the heartbeat has {number} {what}, at most {most} are allowed",
            ResponseCode.SYSTEM_ERROR,
            remedy="Spread the groups over several clients.",
        )
