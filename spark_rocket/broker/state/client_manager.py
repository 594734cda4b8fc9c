"""Live producers and consumers by group and connection, from their heartbeats.

A member is one client id on one connection in one group: a proxy registers many clients over one connection. A member
is removed when its client unregisters, when its connection closes, or without a heartbeat for
``channelExpiredTimeout`` of the monotonic clock. A connection without any live member is closed. When a member of a
consumer group is added or removed, or changes its topics, all members get NOTIFY_CONSUMER_IDS_CHANGED (40) and
rebalance at once.

All members of a group must have the same subscription; otherwise members receive messages that only another one
subscribes to, or miss messages. In Apache's broker the last heartbeat wins, without a warning. This broker does the
same, but logs both subscriptions, once for a host and group in ten seconds.

After a crash: nothing is stored; heartbeats rebuild the tables. Corresponds to
org.apache.rocketmq.broker.client.{ProducerManager, ConsumerManager, ConsumerGroupInfo}.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from spark_rocket.common.logs import RateLimited
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.requests.state import CONSUMERS, PRODUCERS, SUBSCRIPTIONS
from spark_rocket.protocol.wire.bodies.client import BROADCASTING, ConsumerData, SubscriptionData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.membership import NotifyConsumerIdsChangedRequestHeader
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.remoting.server.state_quota import StateQuota, weight_of

_often = RateLimited(logging.getLogger(__name__))

MAX_GROUP_MEMBERS = 10_000
"""Of a consumer group: requests of its members read the list of all of them."""
_SHOWN = 10


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
    weight: int = 1
    """How often it counts in the quota of members."""
    subscribed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Subscriptions of a consumer: topic -> type and text of the expression."""
    subscriptions_weight: int = 0
    """How often its subscriptions count in their quota."""


class Members:
    """The members of one group, by connection and client id."""

    __slots__ = ("_by_channel", "_count")

    def __init__(self) -> None:
        self._by_channel: dict[Channel, dict[str, ClientInfo]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._by_channel)

    def __iter__(self) -> Iterator[ClientInfo]:
        for clients in self._by_channel.values():
            yield from clients.values()

    def silent_since(self, limit: int) -> list[ClientInfo]:
        return [info for clients in self._by_channel.values() for info in clients.values() if info.heard < limit]

    def channels(self) -> list[Channel]:
        return list(self._by_channel)

    def get(self, channel: Channel, client_id: str) -> ClientInfo | None:
        clients = self._by_channel.get(channel)
        return None if clients is None else clients.get(client_id)

    def put(self, info: ClientInfo) -> None:
        clients = self._by_channel.setdefault(info.channel, {})
        self._count += info.client_id not in clients
        clients[info.client_id] = info

    def drop(self, channel: Channel, client_id: str | None) -> list[ClientInfo]:
        """Drop one member, or all of the connection if ``client_id`` is None; returns what was dropped."""
        clients = self._by_channel.get(channel, {})
        names = list(clients) if client_id is None else [client_id]
        dropped = [clients.pop(name) for name in names if name in clients]
        self._count -= len(dropped)
        if dropped and not clients:
            del self._by_channel[channel]
        return dropped

    def has(self, channel: Channel) -> bool:
        return channel in self._by_channel


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
        #: Groups with members of a connection: what its end costs depends on these only.
        self._produces: dict[Channel, dict[str, None]] = {}
        self._consumes: dict[Channel, dict[str, None]] = {}
        #: Client id -> connection -> number of producer groups; the connection of the latest heartbeat is the last.
        self._producers_by_id: dict[str, dict[Channel, int]] = {}
        self._producer_quota = StateQuota(PRODUCERS)
        self._consumer_quota = StateQuota(CONSUMERS)
        self._subscription_quota = StateQuota(SUBSCRIPTIONS)

    # --- registering --------------------------------------------------------------------------------------------

    def register_producer(self, group: str, channel: Channel, client_id: str, language: str, version: int) -> None:
        """Add or renew a member; RefusedError if there are too many."""
        info = self._info(channel, client_id, language, version, group)
        members = self.producers.get(group)
        known = None if members is None else members.get(channel, client_id)
        if known is None:
            self._producer_quota.take(channel, info.weight)
            self._produces.setdefault(channel, {})[group] = None
        if members is None:
            members = self.producers[group] = Members()
        members.put(info)
        connections = self._producers_by_id.setdefault(client_id, {})
        connections[channel] = connections.pop(channel, 0) + (known is None)

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
        """Add or renew a member; True if it is new or its topics changed. RefusedError if there are too many."""
        group = self.consumers.get(data.group_name)
        known = None if group is None else group.members.get(channel, client_id)
        info = self._info(channel, client_id, language, version, data.group_name)
        if known is None and group is not None and len(group.members) >= MAX_GROUP_MEMBERS:
            raise RefusedError(
                f"too many consumers of group {data.group_name}: at most {MAX_GROUP_MEMBERS:,}",
                ResponseCode.SYSTEM_BUSY,
                remedy="Close unused clients, or use several groups.",
            )
        if known is not None:
            info.subscribed, info.subscriptions_weight = known.subscribed, known.subscriptions_weight
        self._count_consumer(info, known, data.subscription_data_set if with_subscriptions else None)
        self._consumes.setdefault(channel, {})[data.group_name] = None
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        changed = known is None
        group.members.put(info)
        if with_subscriptions:
            info.subscribed = {one.topic: (one.expression_type, one.sub_string) for one in data.subscription_data_set}
            group.update_subscriptions(data.subscription_data_set)
            if known is None or known.subscribed != info.subscribed:
                changed = known is None or known.subscribed.keys() != info.subscribed.keys()
                _warn_if_different(group, info)
        if changed and notify:
            self._notify_members(group)
        return changed

    def _info(self, channel: Channel, client_id: str, language: str, version: int, group: str) -> ClientInfo:
        now, heard = self._clock(), self._monotonic()
        return ClientInfo(channel, client_id, language, version, now, heard, weight_of(group, client_id))

    def _count_consumer(
        self, info: ClientInfo, known: ClientInfo | None, subscriptions: list[SubscriptionData] | None
    ) -> None:
        """Count a new member, and new subscriptions of a member; RefusedError without effect if there are too many."""
        if subscriptions is not None:
            before = info.subscriptions_weight
            info.subscriptions_weight = sum(map(_weight_of_subscription, subscriptions))
            self._subscription_quota.take(info.channel, info.subscriptions_weight - before)
        if known is None:
            try:
                self._consumer_quota.take(info.channel, info.weight)
            except RefusedError:
                self._subscription_quota.release(info.channel, info.subscriptions_weight)
                raise

    def unregister(
        self,
        channel: Channel,
        client_id: str,
        producer_group: str | None,
        consumer_group: str | None,
        *,
        notify: bool = True,
    ) -> None:
        if producer_group:
            self._drop_producer(producer_group, channel, client_id)
        if consumer_group:
            self._drop_consumer(consumer_group, channel, client_id, notify=notify)

    def channel_closed(self, channel: Channel) -> None:
        for name in list(self._produces.get(channel, ())):
            self._drop_producer(name, channel, None)
        for name in list(self._consumes.get(channel, ())):
            self._drop_consumer(name, channel, None)

    def expire(self, timeout_ms: int) -> None:
        """Drop members without a heartbeat for ``timeout_ms``, and close connections without other members."""
        limit = self._monotonic() - timeout_ms
        late = [(name, info, True) for name, members in self.producers.items() for info in members.silent_since(limit)]
        late += [
            (name, info, False) for name, group in self.consumers.items() for info in group.members.silent_since(limit)
        ]
        if not late:
            return
        every = itertools.chain(self.producers.values(), (group.members for group in self.consumers.values()))
        alive = {info.channel for members in every for info in members if info.heard >= limit}
        for name, info, produces in late:
            if info.channel in alive:
                self.unregister(info.channel, info.client_id, name if produces else None, None if produces else name)
                continue
            alive.add(info.channel)  # close each connection once
            peer = info.channel.remote_addr
            _often.peer(peer, "closing connection %s: no heartbeat for %d ms", peer, timeout_ms)
            self.channel_closed(info.channel)
            info.channel.close()

    def _drop_producer(self, name: str, channel: Channel, client_id: str | None) -> None:
        members = self.producers.get(name)
        if members is None:
            return
        for info in members.drop(channel, client_id):
            self._producer_quota.release(channel, info.weight)
            connections = self._producers_by_id[info.client_id]
            connections[channel] -= 1
            if not connections[channel]:
                del connections[channel]
            if not connections:
                del self._producers_by_id[info.client_id]
        _forget(self._produces, channel, name, members)
        if not members:
            del self.producers[name]

    def _drop_consumer(self, name: str, channel: Channel, client_id: str | None, *, notify: bool = True) -> None:
        group = self.consumers.get(name)
        dropped = [] if group is None else group.members.drop(channel, client_id)
        if group is None or not dropped:
            return
        for info in dropped:
            self._consumer_quota.release(channel, info.weight)
            self._subscription_quota.release(channel, info.subscriptions_weight)
        _forget(self._consumes, channel, name, group.members)
        if not group.members:
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
        return next(reversed(self._producers_by_id.get(client_id, {})), None)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        found = self.consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def groups_of(self, topic: str) -> set[str]:
        """Groups with a live member that subscribes to the topic."""
        return {name for name, group in self.consumers.items() if topic in group.subscriptions}


def _latest(connections: Iterable[ClientInfo]) -> Channel | None:
    """The connection with the latest heartbeat: a client that reconnects may leave a dead connection behind."""
    found = list(connections)
    return max(reversed(found), key=lambda info: info.heard).channel if found else None


def _weight_of_subscription(data: SubscriptionData) -> int:
    return weight_of(data.topic, data.sub_string, *data.tags_set) + (len(data.tags_set) + len(data.code_set)) // 16


def _forget(groups: dict[Channel, dict[str, None]], channel: Channel, name: str, members: Members) -> None:
    """Remove a group from those of a connection, if none of its members has that connection any more."""
    of_channel = groups.get(channel)
    if of_channel is not None and not members.has(channel):
        of_channel.pop(name, None)
        if not of_channel:
            del groups[channel]


def _warn_if_different(group: ConsumerGroup, info: ClientInfo) -> None:
    other = next((one for one in group.members if one.subscribed and one.subscribed != info.subscribed), None)
    if other is not None and info.subscribed:
        _often.warning(
            (info.channel.remote_addr.rpartition(":")[0], group.group),
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
