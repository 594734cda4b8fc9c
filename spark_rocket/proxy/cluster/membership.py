"""The proxy's clients as members at the brokers: heartbeats (34) and goodbyes (35) under the clients' own ids.

A client is a producer in one group for each topic that it names, called as the topic, at the brokers of that topic; and
a member of its consumer groups at the brokers of the topics that it subscribes to. All of it goes over the proxy's one
connection to each broker. (An Apache broker keeps one member per connection and group, the last: its tools show one of
the proxy's clients, and it asks the proxy about transactions all the same.)

A broker hears of a client when it comes or changes, every 30 s, and at once when the connection to it is new.

Thread-safety: used on the event loop only. Corresponds to the heartbeats of
org.apache.rocketmq.proxy.service.transaction.ClusterTransactionService.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from spark_rocket.errors import RocketError
from spark_rocket.protocol.wire.bodies import ConsumerData, HeartbeatData, ProducerData
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode, ResponseCode
from spark_rocket.proxy.cluster.cluster import Cluster

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
GOODBYE_SECONDS = 1.0
_GROUPS_AT_ONCE = 500
_AT_ONCE = 50


class Announced(Protocol):
    """A client, as brokers are to know it."""

    @property
    def id(self) -> str: ...

    @property
    def language(self) -> str: ...

    @property
    def topics(self) -> Collection[str]:
        """What it produces to."""

    @property
    def data(self) -> Mapping[str, ConsumerData]:
        """What it consumes, by consumer group."""

    @property
    def unsubscribed(self) -> Collection[str]:
        """Those groups whose subscriptions are not its to say."""


class Membership:
    """See the module. ``clients`` gives all there are."""

    def __init__(self, cluster: Cluster, clients: Callable[[], Iterable[Announced]]) -> None:
        self._cluster = cluster
        self._clients = clients
        cluster.on_connect.append(self._greet)

    def announce(self, client: Announced) -> asyncio.Task[None]:
        """Tell all brokers that are concerned."""
        return self._cluster.spawn(self._announce(client, None))

    async def announce_all(self, broker: str | None = None) -> None:
        """Tell all brokers, or one, of all clients."""
        clients = list(self._clients())
        for start in range(0, len(clients), _AT_ONCE):
            await asyncio.gather(*(self._announce(client, broker) for client in clients[start : start + _AT_ONCE]))

    def _greet(self, broker: str) -> None:
        self._cluster.spawn(self.announce_all(broker))

    async def _announce(self, client: Announced, only: str | None) -> None:
        producers: dict[str, list[ProducerData]] = {}
        for topic in list(client.topics):
            for broker in await self._brokers((topic,)):
                producers.setdefault(broker, []).append(ProducerData(topic))
        works = [
            (broker, HeartbeatData(client.id, groups[start : start + _GROUPS_AT_ONCE]))
            for broker, groups in producers.items()
            for start in range(0, len(groups), _GROUPS_AT_ONCE)
        ]
        for group, data in list(client.data.items()):
            heartbeat = HeartbeatData(client.id, consumer_data_set=[data], without_sub=group in client.unsubscribed)
            brokers = await self._brokers(one.topic for one in data.subscription_data_set)
            works += [(broker, heartbeat) for broker in brokers]
        language = LanguageCode[client.language]
        await asyncio.gather(
            *(self._heartbeat(broker, data, language) for broker, data in works if only in (None, broker))
        )

    async def _heartbeat(self, broker: str, data: HeartbeatData, language: LanguageCode) -> None:
        try:
            answer = await self._cluster.ask(broker, RequestCode.HEART_BEAT, {}, data.to_json(), language=language)
            if answer.code != ResponseCode.SUCCESS:
                _log.warning(
                    "broker %s refused a heartbeat of %s: %d, %s", broker, data.client_id, answer.code, answer.remark
                )
        except RocketError as error:
            _log.debug("no heartbeat of %s to broker %s: %s", data.client_id, broker, error.message)

    def leave(
        self, client_id: str, producer_groups: Iterable[str], consumers: Mapping[str, ConsumerData]
    ) -> asyncio.Task[None]:
        """Tell brokers that a client is gone from these groups."""
        return self._cluster.spawn(self._leave(client_id, list(producer_groups), dict(consumers)))

    async def _leave(self, client_id: str, producer_groups: list[str], consumers: dict[str, ConsumerData]) -> None:
        works = [
            (broker, {"clientID": client_id, "producerGroup": topic})
            for topic in producer_groups
            for broker in await self._brokers((topic,))
        ]
        works += [
            (broker, {"clientID": client_id, "consumerGroup": group})
            for group, data in consumers.items()
            for broker in await self._brokers(one.topic for one in data.subscription_data_set)
        ]
        for start in range(0, len(works), _AT_ONCE):
            await asyncio.gather(*(self._goodbye(broker, ext) for broker, ext in works[start : start + _AT_ONCE]))

    async def _goodbye(self, broker: str, ext: dict[str, str]) -> None:
        if self._cluster.is_away(broker):
            return
        try:
            await self._cluster.ask(broker, RequestCode.UNREGISTER_CLIENT, ext, seconds=GOODBYE_SECONDS)
        except RocketError as error:
            _log.debug("no goodbye of %s to broker %s: %s", ext["clientID"], broker, error.message)

    async def _brokers(self, topics: Iterable[str]) -> list[str]:
        """The brokers of topics, as far as they are known."""
        found: dict[str, None] = {}
        for name in topics:
            try:
                topic = await self._cluster.topics.get(name)
            except RocketError as error:
                _log.debug("the brokers of topic %s are not known: %s", name, error.message)
                continue
            if topic is not None:
                found.update((queues.broker_name, None) for queues in topic.brokers)
        return list(found)
