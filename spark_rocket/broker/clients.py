"""Live producers and consumers, by group and connection, as their heartbeats tell.

A member is one connection in one group. It goes when its client unregisters, when its connection closes, or when no
heartbeat came for ``channelExpiredTimeout``, by a clock that nobody sets. Whenever a member of a consumer group comes,
goes or names other topics than before, all members are told with NOTIFY_CONSUMER_IDS_CHANGED (40), and share out the
queues again at once.

Members of a group ought to subscribe alike: of those that do not, each gets messages that another asked for, or loses
them. Apache's broker lets the last heartbeat count and says nothing; here the log names both, once for each change.

Thread-safety: used on the event loop only. After a crash: nothing is kept; heartbeats fill the tables again.
Corresponds to org.apache.rocketmq.broker.client.{ProducerManager, ConsumerManager, ConsumerGroupInfo}.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from spark_rocket.protocol.bodies import BROADCASTING, ConsumerData, SubscriptionData
from spark_rocket.remoting.server import Channel

_log = logging.getLogger(__name__)

_SHOWN = 10


def monotonic_ms() -> int:
    """Milliseconds that go on whatever is done to the wall clock."""
    return time.monotonic_ns() // 1_000_000


@dataclass(slots=True)
class ClientInfo:
    """One member: a client's connection in one group."""

    channel: Channel
    client_id: str
    language: str
    version: int
    last_update: int
    """When its last heartbeat came, to be shown: by the wall clock (ms)."""
    heard: int
    """The same by the clock that its expiry goes by (ms)."""
    subscribed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What it said it wants: topic -> kind and text of the expression. Of consumers only."""


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group's members and what they said about their consuming."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[Channel, ClientInfo] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        return sorted({member.client_id for member in self.members.values()})

    def channel_of(self, client_id: str) -> Channel | None:
        """The client's connection."""
        return _latest(member for member in self.members.values() if member.client_id == client_id)

    def update_subscriptions(self, data: Iterable[SubscriptionData]) -> None:
        """Take over newer subscriptions, drop topics no longer named."""
        named = set()
        for subscription in data:
            named.add(subscription.topic)
            known = self.subscriptions.get(subscription.topic)
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[subscription.topic] = subscription
        for topic in [topic for topic in self.subscriptions if topic not in named]:
            del self.subscriptions[topic]


class ClientManager:
    """Producers and consumers. ``notify`` tells one connection that its group's members changed.

    ``clock`` is the wall clock, for what is shown; members expire by ``monotonic``. Both in milliseconds.
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
        self.producers: dict[str, dict[Channel, ClientInfo]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}

    # --- registering --------------------------------------------------------------------------------------------

    def register_producer(self, group: str, channel: Channel, client_id: str, language: str, version: int) -> None:
        info = self._info(channel, client_id, language, version)
        self.producers.setdefault(group, {})[channel] = info

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
        """Add or renew a member; True when it is new or names other topics than before."""
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(channel)
        changed = known is None
        info = self._info(channel, client_id, language, version)
        group.members[channel] = info
        if with_subscriptions:
            info.subscribed = {one.topic: (one.expression_type, one.sub_string) for one in data.subscription_data_set}
            group.update_subscriptions(data.subscription_data_set)
            if known is None or known.subscribed != info.subscribed:
                changed = known is None or known.subscribed.keys() != info.subscribed.keys()
                _warn_if_different(group, info)
        elif known is not None:
            info.subscribed = known.subscribed
        if changed and notify:
            self._tell(group)
        return changed

    def _info(self, channel: Channel, client_id: str, language: str, version: int) -> ClientInfo:
        return ClientInfo(channel, client_id, language, version, self._clock(), self._monotonic())

    def unregister(
        self, channel: Channel, producer_group: str | None, consumer_group: str | None, *, notify: bool = True
    ) -> None:
        """A client says goodbye to a group."""
        if producer_group:
            members = self.producers.get(producer_group)
            if members is not None:
                members.pop(channel, None)
                if not members:
                    del self.producers[producer_group]
        if consumer_group:
            self._drop_consumer(consumer_group, channel, notify=notify)

    def channel_closed(self, channel: Channel) -> None:
        for name in [name for name, members in self.producers.items() if channel in members]:
            self.unregister(channel, name, None)
        for name in [name for name, group in self.consumers.items() if channel in group.members]:
            self._drop_consumer(name, channel)

    def expire(self, timeout_ms: int) -> None:
        """Close the connections of members that have sent no heartbeat for so long."""
        limit = self._monotonic() - timeout_ms
        silent: dict[Channel, None] = {}
        for members in [*self.producers.values(), *(group.members for group in self.consumers.values())]:
            for info in members.values():
                if info.heard < limit:
                    silent[info.channel] = None
        for channel in silent:
            _log.warning("No heartbeat from %s for %d ms: closing.", channel.remote_addr, timeout_ms)
            self.channel_closed(channel)
            channel.close()

    def _drop_consumer(self, name: str, channel: Channel, *, notify: bool = True) -> None:
        group = self.consumers.get(name)
        if group is None or group.members.pop(channel, None) is None:
            return
        if not group.members:
            del self.consumers[name]
        elif notify:
            self._tell(group)

    def _tell(self, group: ConsumerGroup) -> None:
        if group.message_model == BROADCASTING:
            return  # who gets all the queues does not share them out
        for member in list(group.members):
            if member.rebalances:
                self._notify(member, group.group)

    # --- asking -------------------------------------------------------------------------------------------------

    def producer_channel(self, client_id: str) -> Channel | None:
        """The connection of a client that produces, in whichever group."""
        every = (info for members in self.producers.values() for info in members.values())
        return _latest(info for info in every if info.client_id == client_id)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        found = self.consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def groups_of(self, topic: str) -> set[str]:
        """Groups with a live member that subscribes to the topic."""
        return {name for name, group in self.consumers.items() if topic in group.subscriptions}


def _latest(connections: Iterable[ClientInfo]) -> Channel | None:
    """Of a client's connections the one with the latest heartbeat: who connects anew may leave a dead one behind."""
    found = list(connections)
    return max(reversed(found), key=lambda info: info.heard).channel if found else None


def _warn_if_different(group: ConsumerGroup, info: ClientInfo) -> None:
    other = next((one for one in group.members.values() if one.subscribed and one.subscribed != info.subscribed), None)
    if other is not None and info.subscribed:
        _log.warning(
            "Consumers of group %s subscribe differently: %s to %s, %s to %s. Each is given queues of all these topics "
            "and uses the subscription of whoever spoke last. Give one of them another group.",
            group.group,
            info.client_id,
            _said(info),
            other.client_id,
            _said(other),
        )


def _said(info: ClientInfo) -> str:
    shown = [f"{topic} by {text!r}" for topic, (_, text) in sorted(info.subscribed.items())]
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")
