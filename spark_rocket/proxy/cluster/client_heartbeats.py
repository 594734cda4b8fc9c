"""Registers the proxy's clients with brokers: heartbeats (34) and unregistrations (35) under the clients' own ids.

A client is registered as a producer in one group per topic, named like the topic, at the brokers of that topic. It is
registered in its consumer groups at the brokers of its subscribed topics. The requests use the proxy's single
connection to each broker. (An Apache broker stores only the last member per connection and group: its tools show one
of the proxy's clients, but its transaction checks reach the proxy.)

Heartbeats are sent when a client registers or changes, every 30 s, and at once over a new connection.

Corresponds to the heartbeats of org.apache.rocketmq.proxy.service.transaction.ClusterTransactionService.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from itertools import islice
from typing import Any, Protocol

from spark_rocket.client.core.membership import UNREGISTER_TIMEOUT_S, log_failure
from spark_rocket.errors import RocketError
from spark_rocket.protocol.wire.bodies.client import ConsumerData, HeartbeatData, ProducerData
from spark_rocket.protocol.wire.codes import LanguageCode, RequestCode
from spark_rocket.protocol.wire.headers.membership import UnregisterClientRequestHeader
from spark_rocket.proxy.cluster.proxy_cluster import REQUEST_SECONDS, ProxyCluster

_log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
_MAX_GROUPS_PER_REQUEST = 500
_MAX_PARALLEL_REQUESTS = 50


class AnnouncedClient(Protocol):
    """A client to register."""

    @property
    def id(self) -> str: ...

    @property
    def language(self) -> str: ...

    @property
    def topics(self) -> Collection[str]:
        """The topics that it produces to."""

    @property
    def data(self) -> Mapping[str, ConsumerData]:
        """The client's subscriptions by consumer group."""

    @property
    def unsubscribed(self) -> Collection[str]:
        """The groups whose subscriptions it does not define."""


class ClientHeartbeats:
    """Sends the heartbeats of clients. ``clients`` returns all clients."""

    def __init__(self, cluster: ProxyCluster, clients: Callable[[], Iterable[AnnouncedClient]]) -> None:
        self._cluster = cluster
        self._clients = clients
        cluster.on_connect.append(self._send_heartbeat)

    def announce(self, client: AnnouncedClient) -> asyncio.Task[None]:
        """Send heartbeats of a client to its brokers."""
        return self._cluster.spawn(self._announce(client, None))

    async def announce_all(self, broker: str | None = None) -> None:
        """Send heartbeats of all clients to their brokers, or to one broker."""
        await _in_parallel(self._announce(client, broker) for client in list(self._clients()))

    def _send_heartbeat(self, broker: str) -> None:
        self._cluster.spawn(self.announce_all(broker))

    async def _announce(self, client: AnnouncedClient, only: str | None) -> None:
        producers: dict[str, list[ProducerData]] = {}
        for topic in list(client.topics):
            for broker in await self._brokers((topic,)):
                producers.setdefault(broker, []).append(ProducerData(topic))
        works = [
            (broker, HeartbeatData(client.id, groups[start : start + _MAX_GROUPS_PER_REQUEST]))
            for broker, groups in producers.items()
            for start in range(0, len(groups), _MAX_GROUPS_PER_REQUEST)
        ]
        for group, data in list(client.data.items()):
            heartbeat = HeartbeatData(client.id, consumer_data_set=[data], without_sub=group in client.unsubscribed)
            brokers = await self._brokers(one.topic for one in data.subscription_data_set)
            works += [(broker, heartbeat) for broker in brokers]
        language = LanguageCode[client.language]
        await asyncio.gather(
            *(
                self._ask(broker, "heartbeat", RequestCode.HEART_BEAT, {}, data.to_json(), REQUEST_SECONDS, language)
                for broker, data in works
                if only in (None, broker)
            )
        )

    def leave(
        self, client_id: str, producer_groups: Iterable[str], consumers: Mapping[str, ConsumerData]
    ) -> asyncio.Task[None]:
        """Unregister a client from these groups."""
        return self._cluster.spawn(self._leave(client_id, list(producer_groups), dict(consumers)))

    async def _leave(self, client_id: str, producer_groups: list[str], consumers: dict[str, ConsumerData]) -> None:
        works = [
            (broker, UnregisterClientRequestHeader(client_id=client_id, producer_group=topic))
            for topic in producer_groups
            for broker in await self._brokers((topic,))
        ]
        works += [
            (broker, UnregisterClientRequestHeader(client_id=client_id, consumer_group=group))
            for group, data in consumers.items()
            for broker in await self._brokers(one.topic for one in data.subscription_data_set)
        ]
        await _in_parallel(
            self._ask(
                broker, "unregistration", RequestCode.UNREGISTER_CLIENT, header.to_ext(), b"", UNREGISTER_TIMEOUT_S
            )
            for broker, header in works
            if broker not in self._cluster.unavailable
        )

    async def _ask(self, broker: str, what: str, *request: Any) -> None:
        await log_failure(broker, what, self._cluster.ask(broker, *request))

    async def _brokers(self, topics: Iterable[str]) -> list[str]:
        """Return the known brokers of topics."""
        found: dict[str, None] = {}
        for name in topics:
            try:
                topic = await self._cluster.topics.get(name)
            except RocketError as error:
                _log.debug("unknown brokers of topic %s: %s", name, error.message)
                continue
            if topic is not None:
                found.update((queues.broker_name, None) for queues in topic.brokers)
        return list(found)


async def _in_parallel(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of them, a limited number at once."""
    each = iter(works)
    while some := list(islice(each, _MAX_PARALLEL_REQUESTS)):
        await asyncio.gather(*some)
