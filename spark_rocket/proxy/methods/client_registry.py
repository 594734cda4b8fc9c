"""The clients of this endpoint, by the ids in the metadata of their calls.

A client is registered when its settings arrive by Telemetry. It is registered with brokers under its own id
(cluster/client_heartbeats.py). So their member lists, tools and transaction checks include these clients and clients
of the classic protocol. Changed settings of a consumer group are sent to its members within half a minute.

=======================================  ==============================================================================
a client is removed                      when
=======================================  ==============================================================================
it sends NotifyClientTermination         at once
it sends neither settings nor heartbeat  after 120 s, regardless of open streams
the proxy stops                          at once
=======================================  ==============================================================================

A broken Telemetry stream has no other effect: clients open another. Commands go to the newest stream on which settings
arrived. Heartbeats of a removed client get UNRECOGNIZED_CLIENT_TYPE; it then sends its settings again.

Nothing is stored on disk. Corresponds to org.apache.rocketmq.proxy.grpc.v2.channel.GrpcChannelManager and
GrpcClientSettingsManager.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any

from spark_rocket.client.core.client_config import MAX_MESSAGE_SIZE
from spark_rocket.common.logs import RateLimited
from spark_rocket.common.system import give_memory_back
from spark_rocket.errors import ProtocolError, RemotingConnectError, RocketError
from spark_rocket.protocol.auth import access_key_of
from spark_rocket.protocol.filter.tags import MAX_EXPRESSION_CHARACTERS, TYPE_SQL92, TYPE_TAG
from spark_rocket.protocol.wire.bodies.client import CONSUME_ACTIVELY, CONSUME_PASSIVELY, ConsumerData, SubscriptionData
from spark_rocket.protocol.wire.codes import LanguageCode
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.client_heartbeats import HEARTBEAT_SECONDS, ClientHeartbeats
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster
from spark_rocket.proxy.messages.names import group_of, topic_of
from spark_rocket.proxy.messages.statuses import StatusError, status
from spark_rocket.proxy.messaging import CLIENT_ID
from spark_rocket.proxy.method_types import MAX_TOPICS
from spark_rocket.proxy.methods.grpc_client import CommandStream, GrpcClient
from spark_rocket.proxy.methods.settings import merged_settings
from spark_rocket.proxy.transport.proxy_context import GrpcCode, ProxyContext, RpcError

_log = logging.getLogger(__name__)
_often = RateLimited(_log)

MAX_CLIENTS = 100_000
MAX_GROUPS = 1_000
MAX_SETTINGS = 4 << 20
MAX_ALL_SETTINGS_BYTES = 256 << 20
"""The limits of a client's settings and of all settings, in bytes: they are retained, and larger in memory."""
EXPIRE_SECONDS = 120.0
BROKER_WAIT_SECONDS = 1.0
_SCAN_SECONDS = 10.0
_Code = definitions.Code
_ClientType = definitions.ClientType

#: The consume type at the broker for each client type; other types are not supported.
_CONSUME_TYPES: dict[int, str] = {
    _ClientType.PUSH_CONSUMER: CONSUME_PASSIVELY,
    _ClientType.SIMPLE_CONSUMER: CONSUME_ACTIVELY,
    _ClientType.PULL_CONSUMER: CONSUME_ACTIVELY,
}
_LITE = (_ClientType.LITE_PUSH_CONSUMER, _ClientType.LITE_SIMPLE_CONSUMER)
_LANGUAGES = {"GOLANG": "GO", "DOT_NET": "DOTNET"}  # names that differ between the protocols
_EXPRESSIONS = {definitions.FilterType.SQL: TYPE_SQL92}


class ClientRegistry:
    """All clients. ``on_gone`` is called with id and groups of a removed client."""

    def __init__(
        self, cluster: ProxyCluster, *, max_body_size: int = MAX_MESSAGE_SIZE, expire_seconds: float = EXPIRE_SECONDS
    ) -> None:
        """``max_body_size``: the limit for producers and for decompressed bodies.

        ``expire_seconds``: the timeout of inactive clients.
        """
        self._cluster = cluster
        self.max_body_size = max_body_size
        self._expire_seconds = expire_seconds
        self._clients: dict[str, GrpcClient] = {}
        self._size = 0  # of all settings
        self._publishers: dict[str, dict[GrpcClient, None]] = {}
        self._members: dict[str, dict[GrpcClient, None]] = {}
        self._membership = ClientHeartbeats(cluster, lambda: self._clients.values())
        self._announced = cluster.monotonic()
        self.on_gone: list[Callable[[str, Iterable[str]], None]] = []
        self._timer = asyncio.get_running_loop().call_later(_SCAN_SECONDS, self._scan)

    def __len__(self) -> int:
        return len(self._clients)

    # --- queries -------------------------------------------------------------------------------------------------

    def of(self, context: ProxyContext) -> GrpcClient | None:
        """Return the calling client; None before its settings arrive."""
        return self._clients.get(context.metadata[CLIENT_ID])

    def owner(self, client_id: str) -> str | None:
        """Return the access key of a client; None for an unknown client."""
        client = self._clients.get(client_id)
        return None if client is None else client.access_key

    def is_member(self, client_id: str, group: str) -> bool:
        """Whether a client is a member of a consumer group."""
        client = self._clients.get(client_id)
        return client is not None and group in client.data

    def named(self, client_id: str) -> GrpcClient:
        """Return the client with this id. RemotingConnectError for an unknown client."""
        client = self._clients.get(client_id)
        if client is None:
            raise RemotingConnectError(f"{client_id} is not a client of this proxy.")
        return client

    def required(self, context: ProxyContext) -> GrpcClient:
        """Return the calling client. StatusError with UNRECOGNIZED_CLIENT_TYPE before its settings arrive."""
        client = self.of(context)
        if client is None:
            raise StatusError(
                _Code.UNRECOGNIZED_CLIENT_TYPE,
                f"client {context.metadata[CLIENT_ID]} is unknown or was removed: it must send its settings by "
                "Telemetry first",
            )
        return client

    def ask_producer_of(self, topic: str, command: Any) -> bool:
        """Send a command to a random producer of the topic. False if none has an open stream."""
        producers = [client for client in self._publishers.get(topic, ()) if client.streams]
        random.shuffle(producers)
        return any(client.send(command) for client in producers)

    # --- calls of clients ---------------------------------------------------------------------------------------

    async def take_settings(self, context: ProxyContext, settings: Any, stream: CommandStream) -> Any:
        """Handle new or changed settings of a client; return the TelemetryCommand to respond with."""
        topics, group, data = self._checked(settings)
        client = self._client(context, settings)
        requests = self._settle_topics(client, topics)
        requests += [self._leave(client, other) for other in client.data.keys() - {group}]
        if data is not None:
            self._join(client, data)
        if stream in client.streams:
            client.streams.remove(stream)
        client.streams.append(stream)
        await _wait_briefly([*requests, self._membership.announce(client)])
        client.shown = await self._merged(client)
        return definitions.TelemetryCommand(status=status(_Code.OK), settings=client.shown)

    async def heartbeat(self, context: ProxyContext, request: Any) -> None:
        """Handle a heartbeat of a client. StatusError for an unknown client."""
        client = self.required(context)
        self._touch(client, context)
        if client.kind not in _CONSUME_TYPES:
            return
        group = group_of(request.group)
        if group in client.data:
            return
        if len(client.data) >= MAX_GROUPS:
            raise StatusError(
                _Code.TOO_MANY_REQUESTS, f"client {client.id} is a member of {MAX_GROUPS} groups, the maximum"
            )
        subscribed = group_of(client.settings.subscription.group) == group
        self._join(client, self._consumer_data(client.settings, group), with_subscriptions=subscribed)
        await _wait_briefly([self._membership.announce(client)])

    async def terminate(self, context: ProxyContext) -> None:
        """Handle the termination of a client. StatusError for an unknown client."""
        await _wait_briefly(self.forget(self.required(context)))

    async def produces(self, context: ProxyContext, topic: str) -> None:
        """Register a client as producer of a transaction's topic, which its settings may name only minutes later."""
        client = self.of(context)
        if client is None or client.kind != _ClientType.PRODUCER or topic in client.topics:
            return
        if len(client.topics) < MAX_TOPICS:
            self._settle_topics(client, client.topics | {topic})
            await _wait_briefly([self._membership.announce(client)])

    def stream_ended(self, context: ProxyContext, stream: CommandStream) -> None:
        """Remove an ended Telemetry stream."""
        client = self.of(context)
        if client is not None and stream in client.streams:
            client.streams.remove(stream)

    def _checked(self, settings: Any) -> tuple[set[str], str | None, ConsumerData | None]:
        """Validate settings; return the topics of a producer, or the group and the subscriptions of a consumer."""
        size = settings.ByteSize()
        if size > MAX_SETTINGS:
            raise StatusError(_Code.BAD_REQUEST, f"the settings have {size} bytes, at most {MAX_SETTINGS} are allowed")
        kind, which = settings.client_type, settings.WhichOneof("pub_sub")
        if kind in _LITE:
            raise StatusError(
                _Code.UNSUPPORTED,
                "lite topics and consumers are not supported: use a PushConsumer or a SimpleConsumer",
            )
        if which is None:
            raise StatusError(_Code.BAD_REQUEST, "the settings have neither publishing nor subscription")
        if which == "publishing":
            named = settings.publishing.topics
            expected = kind == _ClientType.PRODUCER
        else:
            named = settings.subscription.subscriptions
            expected = kind in _CONSUME_TYPES
        if not expected:
            raise StatusError(
                _Code.UNRECOGNIZED_CLIENT_TYPE,
                f"invalid settings with {which} for client type {_kind_name(kind)}: publishing needs PRODUCER, "
                "subscription needs PUSH_CONSUMER, SIMPLE_CONSUMER or PULL_CONSUMER",
            )
        if which == "publishing":
            return {topic_of(topic) for topic in named}, None, None
        group = group_of(settings.subscription.group)
        return set(), group, self._consumer_data(settings, group)

    def _consumer_data(self, settings: Any, group: str) -> ConsumerData:
        now = self._cluster.clock()
        subscriptions = []
        for entry in settings.subscription.subscriptions:
            kind = _EXPRESSIONS.get(entry.expression.type, TYPE_TAG)
            length = len(entry.expression.expression)
            if kind == TYPE_SQL92 and length > MAX_EXPRESSION_CHARACTERS:
                raise StatusError(
                    _Code.ILLEGAL_FILTER_EXPRESSION,
                    f"an SQL92 expression has {length} characters, at most {MAX_EXPRESSION_CHARACTERS} are allowed",
                )
            try:
                built = SubscriptionData.build(topic_of(entry.topic), entry.expression.expression, now, kind)
            except ProtocolError as error:
                raise StatusError(_Code.ILLEGAL_FILTER_EXPRESSION, error.message) from None
            subscriptions.append(built)
        return ConsumerData(
            group_name=group,
            consume_type=_CONSUME_TYPES[settings.client_type],
            subscription_data_set=subscriptions,
        )

    # --- the tables ---------------------------------------------------------------------------------------------

    def _client(self, context: ProxyContext, settings: Any) -> GrpcClient:
        client_id = context.metadata[CLIENT_ID]
        client = self._clients.get(client_id)
        size = settings.ByteSize()
        more = size - (0 if client is None else client.size)
        if more > 0 and self._size + more > MAX_ALL_SETTINGS_BYTES:
            raise StatusError(
                _Code.TOO_MANY_REQUESTS, f"the settings of all clients have {self._size} bytes, the maximum"
            )
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                raise StatusError(_Code.TOO_MANY_REQUESTS, f"there are {MAX_CLIENTS} clients, the maximum")
            client = self._clients[client_id] = GrpcClient(client_id, context.peer, settings, self._cluster.clock())
            client.access_key = access_key_of(context.metadata)
        client.settings = settings
        client.size = size
        self._size += more
        client.kind = settings.client_type
        client.language = _language(context.metadata.get("x-mq-language", ""))
        client.version = context.metadata.get("x-mq-client-version", "")
        self._touch(client, context)
        return client

    def _touch(self, client: GrpcClient, context: ProxyContext) -> None:
        client.address = context.peer
        client.last_seen = self._cluster.monotonic()

    def _settle_topics(self, client: GrpcClient, topics: set[str]) -> list[asyncio.Task[None]]:
        """Set the topics that a client produces to; return the tasks that unregister it from others."""
        gone = client.topics - topics
        for topic in gone:
            _drop(self._publishers, topic, client)
        for topic in topics:
            self._publishers.setdefault(topic, {})[client] = None
        client.topics = topics
        return [self._membership.leave(client.id, gone, {})] if gone else []

    def _join(self, client: GrpcClient, data: ConsumerData, *, with_subscriptions: bool = True) -> None:
        group = data.group_name
        self._members.setdefault(group, {})[client] = None
        client.data[group] = data
        client.unsubscribed.discard(group)
        if not with_subscriptions:
            client.unsubscribed.add(group)

    def _leave(self, client: GrpcClient, group: str) -> asyncio.Task[None]:
        _drop(self._members, group, client)
        client.unsubscribed.discard(group)
        return self._membership.leave(client.id, (), {group: client.data.pop(group)})

    def forget(self, client: GrpcClient) -> list[asyncio.Task[None]]:
        """Remove a client and call ``on_gone``; return the tasks that unregister it from brokers."""
        if self._clients.get(client.id) is not client:
            return []
        del self._clients[client.id]
        self._size -= client.size
        groups = tuple(client.data)
        requests = self._settle_topics(client, set())
        requests += [self._leave(client, group) for group in groups]
        client.end()
        for gone in self.on_gone:
            gone(client.id, groups)
        return requests

    # --- timer --------------------------------------------------------------------------------------

    def _scan(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_SCAN_SECONDS, self._scan)
        self.expire()
        give_memory_back()  # of clients and connections that left in bulk: 20 MB after 900 clients, in 1 ms
        self._cluster.spawn(self.send_settings())
        now = self._cluster.monotonic()
        if self._clients and now - self._announced >= HEARTBEAT_SECONDS:
            self._announced = now
            self._cluster.spawn(self._membership.announce_all())

    def expire(self) -> None:
        """Remove inactive clients after the timeout."""
        limit = self._cluster.monotonic() - self._expire_seconds
        for client in [one for one in self._clients.values() if one.last_seen < limit]:
            _often.peer(
                client.address, "removed client %s of %s: no heartbeat", client.id, client.address, level=logging.INFO
            )
            self.forget(client)

    async def send_settings(self) -> None:
        """Send changed group settings to the members that they concern."""
        for group, members in list(self._members.items()):
            for client in list(members):
                if client.shown is None:
                    continue
                try:
                    merged = await self._merged(client)
                except RocketError as error:
                    _log.debug("unknown settings of group %s: %s", group, error.message)
                    break
                if merged != client.shown and client.send(
                    definitions.TelemetryCommand(status=status(_Code.OK), settings=merged)
                ):
                    client.shown = merged

    def end_streams(self) -> None:
        """End Telemetry streams before the proxy stops."""
        for client in self._clients.values():
            for stream in client.streams:
                stream.end(RpcError(GrpcCode.UNAVAILABLE, "the proxy stops"))

    def close(self) -> None:
        """Remove all clients when the proxy stops."""
        self._timer.cancel()
        for client in list(self._clients.values()):
            self.forget(client)

    async def _merged(self, client: GrpcClient) -> Any:
        sent = client.settings
        group = None
        if sent.WhichOneof("pub_sub") == "subscription":
            group = await self._cluster.groups.get(group_of(sent.subscription.group))
        return merged_settings(sent, max_body_size=self.max_body_size, group=group)


async def _wait_briefly(requests: list[asyncio.Task[None]]) -> None:
    """Wait for requests to brokers, at most a second: an unavailable broker must not block a client."""
    if requests:
        await asyncio.wait(requests, timeout=BROKER_WAIT_SECONDS)


def _drop(table: dict[str, dict[GrpcClient, None]], name: str, client: GrpcClient) -> None:
    members = table.get(name)
    if members is not None:
        members.pop(client, None)
        if not members:
            del table[name]


def _kind_name(kind: int) -> str:
    try:
        name: str = _ClientType.Name(kind)
    except ValueError:
        return str(kind)
    return name


def _language(text: str) -> str:
    name = _LANGUAGES.get(text.upper(), text.upper())
    return name if name in LanguageCode.__members__ else LanguageCode.OTHER.name
