"""The clients of this endpoint, by the ids that they send with every call.

A client is known from its settings on, which come by Telemetry. Brokers are told of it under its own id
(cluster/membership.py), so that their lists of members, their tools and their check-backs know these clients beside
those of the classic protocol. Settings of a consumer group that change are told to its members within half a minute.

=======================================  ==============================================================================
a client is forgotten                    when
=======================================  ==============================================================================
it says NotifyClientTermination          at once
neither settings nor heartbeats come     after 120 s, whatever streams are open
the proxy stops                          then
=======================================  ==============================================================================

A Telemetry stream that breaks changes nothing else: clients open another. Commands go to the newest stream on which
settings came. After a client was forgotten its heartbeats are answered with UNRECOGNIZED_CLIENT_TYPE, and it sends its
settings again.

Thread-safety: used on the event loop only. Nothing is kept on disk.
Corresponds to org.apache.rocketmq.proxy.grpc.v2.channel.GrpcChannelManager and GrpcClientSettingsManager.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any

from spark_rocket.client.core.config import MAX_MESSAGE_SIZE
from spark_rocket.errors import ProtocolError, RemotingConnectError, RocketError
from spark_rocket.protocol.auth import access_key_of
from spark_rocket.protocol.filter.tags import MAX_EXPRESSION, TYPE_SQL92, TYPE_TAG
from spark_rocket.protocol.wire.bodies import CONSUME_ACTIVELY, CONSUME_PASSIVELY, ConsumerData, SubscriptionData
from spark_rocket.protocol.wire.codes import LanguageCode
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.cluster import Cluster
from spark_rocket.proxy.cluster.membership import HEARTBEAT_SECONDS, Membership
from spark_rocket.proxy.messages.names import group_of, topic_of
from spark_rocket.proxy.messages.statuses import StatusError, status
from spark_rocket.proxy.messaging import CLIENT_ID
from spark_rocket.proxy.methods.client import Client, CommandStream
from spark_rocket.proxy.methods.settings import merged_settings
from spark_rocket.proxy.transport.context import Context, GrpcCode, RpcError

_log = logging.getLogger(__name__)

MAX_CLIENTS = 100_000
MAX_TOPICS = 10_000
MAX_GROUPS = 1_000
MAX_SETTINGS = 4 << 20
MAX_ALL_SETTINGS = 256 << 20
"""Bytes of a client's settings, and of all clients': they are kept, and are larger in memory."""
EXPIRE_SECONDS = 120.0
HEARD_SECONDS = 1.0
_SCAN_SECONDS = 10.0
_Code = definitions.Code
_ClientType = definitions.ClientType

#: What a client of each kind is at the broker; the others are not served.
_CONSUME_TYPES: dict[int, str] = {
    _ClientType.PUSH_CONSUMER: CONSUME_PASSIVELY,
    _ClientType.SIMPLE_CONSUMER: CONSUME_ACTIVELY,
    _ClientType.PULL_CONSUMER: CONSUME_ACTIVELY,
}
_LITE = (_ClientType.LITE_PUSH_CONSUMER, _ClientType.LITE_SIMPLE_CONSUMER)
_LANGUAGES = {"GOLANG": "GO", "DOT_NET": "DOTNET"}  # where the two protocols' names differ
_EXPRESSIONS = {definitions.FilterType.SQL: TYPE_SQL92}


class ClientRegistry:
    """Every client. ``on_gone`` is called with a client's id and its groups when it is forgotten."""

    def __init__(
        self, cluster: Cluster, *, max_body_size: int = MAX_MESSAGE_SIZE, expire_seconds: float = EXPIRE_SECONDS
    ) -> None:
        """``max_body_size``: what producers are told, and up to which size bodies are unpacked. ``expire_seconds``: how
        long a client may be silent."""
        self._cluster = cluster
        self.max_body_size = max_body_size
        self._expire_seconds = expire_seconds
        self._clients: dict[str, Client] = {}
        self._size = 0  # of all settings
        self._publishers: dict[str, dict[Client, None]] = {}
        self._members: dict[str, dict[Client, None]] = {}
        self._membership = Membership(cluster, lambda: self._clients.values())
        self._announced = cluster.monotonic()
        self.on_gone: list[Callable[[str, Iterable[str]], None]] = []
        self._timer = asyncio.get_running_loop().call_later(_SCAN_SECONDS, self._scan)

    def __len__(self) -> int:
        return len(self._clients)

    # --- asking -------------------------------------------------------------------------------------------------

    def of(self, context: Context) -> Client | None:
        """The client that calls; None before its settings have come."""
        return self._clients.get(context.metadata[CLIENT_ID])

    def owner(self, client_id: str) -> str | None:
        """The access key of a client; None if it is not known."""
        client = self._clients.get(client_id)
        return None if client is None else client.access_key

    def is_member(self, client_id: str, group: str) -> bool:
        """Whether a client is a member of a consumer group."""
        client = self._clients.get(client_id)
        return client is not None and group in client.data

    def named(self, client_id: str) -> Client:
        """The client of this id. RemotingConnectError if there is none."""
        client = self._clients.get(client_id)
        if client is None:
            raise RemotingConnectError(f"{client_id} is not a client of this proxy.")
        return client

    def required(self, context: Context) -> Client:
        """The client that calls. StatusError with UNRECOGNIZED_CLIENT_TYPE before its settings have come."""
        client = self.of(context)
        if client is None:
            raise StatusError(
                _Code.UNRECOGNIZED_CLIENT_TYPE,
                f"client {context.metadata[CLIENT_ID]} is not known, or no longer: it has to send its settings by "
                "Telemetry first",
            )
        return client

    def tell_producer_of(self, topic: str, command: Any) -> bool:
        """Send a command to some client that produces to the topic; False when there is none with an open stream."""
        producers = [client for client in self._publishers.get(topic, ()) if client.streams]
        random.shuffle(producers)
        return any(client.tell(command) for client in producers)

    # --- what clients say ---------------------------------------------------------------------------------------

    async def take_settings(self, context: Context, settings: Any, stream: CommandStream) -> Any:
        """A client's first settings, or others than before: the TelemetryCommand to answer with."""
        topics, group, data = self._checked(settings)
        client = self._client(context, settings)
        told = self._settle_topics(client, topics)
        told += [self._leave(client, other) for other in client.data.keys() - {group}]
        if data is not None:
            self._join(client, data)
        if stream in client.streams:
            client.streams.remove(stream)
        client.streams.append(stream)
        await _heard([*told, self._membership.announce(client)])
        client.shown = await self._merged(client)
        return definitions.TelemetryCommand(status=status(_Code.OK), settings=client.shown)

    async def heartbeat(self, context: Context, request: Any) -> None:
        """A client lives. StatusError when it is not known."""
        client = self.required(context)
        self._touch(client, context)
        if client.kind not in _CONSUME_TYPES:
            return
        group = group_of(request.group)
        if group in client.data:
            return
        if len(client.data) >= MAX_GROUPS:
            raise StatusError(
                _Code.TOO_MANY_REQUESTS, f"client {client.id} is a member of {MAX_GROUPS} groups, which is the most"
            )
        subscribed = group_of(client.settings.subscription.group) == group
        self._join(client, self._consumer_data(client.settings, group), with_subscriptions=subscribed)
        await _heard([self._membership.announce(client)])

    async def terminate(self, context: Context) -> None:
        """A client says goodbye. StatusError when it is not known."""
        await _heard(self.forget(self.required(context)))

    async def produces(self, context: Context, topic: str) -> None:
        """A client sends a transaction to a topic, which its settings may name only minutes later."""
        client = self.of(context)
        if client is None or client.kind != _ClientType.PRODUCER or topic in client.topics:
            return
        if len(client.topics) < MAX_TOPICS:
            self._settle_topics(client, client.topics | {topic})
            await _heard([self._membership.announce(client)])

    def stream_ended(self, context: Context, stream: CommandStream) -> None:
        """A Telemetry stream is over, for whatever reason."""
        client = self.of(context)
        if client is not None and stream in client.streams:
            client.streams.remove(stream)

    def _checked(self, settings: Any) -> tuple[set[str], str | None, ConsumerData | None]:
        """What the settings name: topics to produce to, or a group with its subscriptions."""
        size = settings.ByteSize()
        if size > MAX_SETTINGS:
            raise StatusError(_Code.BAD_REQUEST, f"the settings have {size} bytes, at most {MAX_SETTINGS} are taken")
        kind, which = settings.client_type, settings.WhichOneof("pub_sub")
        if kind in _LITE:
            raise StatusError(
                _Code.UNSUPPORTED,
                "lite topics are not served here, and so no lite consumers: use a PushConsumer or a SimpleConsumer",
            )
        if which is None:
            raise StatusError(_Code.BAD_REQUEST, "there is no publishing or subscription in the settings")
        if which == "publishing":
            named = settings.publishing.topics
            expected = kind == _ClientType.PRODUCER
        else:
            named = settings.subscription.subscriptions
            expected = kind in _CONSUME_TYPES
        if not expected:
            raise StatusError(
                _Code.UNRECOGNIZED_CLIENT_TYPE,
                f"settings with {which} do not fit the client type {_kind_name(kind)}: publishing goes with PRODUCER, "
                "subscription with PUSH_CONSUMER, SIMPLE_CONSUMER or PULL_CONSUMER",
            )
        if len(named) > MAX_TOPICS:
            raise StatusError(
                _Code.BAD_REQUEST, f"the settings name {len(named)} topics, at most {MAX_TOPICS} are taken"
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
            if kind == TYPE_SQL92 and length > MAX_EXPRESSION:
                raise StatusError(
                    _Code.ILLEGAL_FILTER_EXPRESSION,
                    f"an SQL92 expression has {length} characters, {MAX_EXPRESSION} are possible",
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

    def _client(self, context: Context, settings: Any) -> Client:
        client_id = context.metadata[CLIENT_ID]
        client = self._clients.get(client_id)
        size = settings.ByteSize()
        more = size - (0 if client is None else client.size)
        if more > 0 and self._size + more > MAX_ALL_SETTINGS:
            raise StatusError(
                _Code.TOO_MANY_REQUESTS, f"the settings of all clients have {self._size} bytes, which is the most"
            )
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                raise StatusError(_Code.TOO_MANY_REQUESTS, f"there are {MAX_CLIENTS} clients, which is the most")
            client = self._clients[client_id] = Client(client_id, context.peer, settings, self._cluster.clock())
            client.access_key = access_key_of(context.metadata)
        client.settings = settings
        client.size = size
        self._size += more
        client.kind = settings.client_type
        client.language = _language(context.metadata.get("x-mq-language", ""))
        client.version = context.metadata.get("x-mq-client-version", "")
        self._touch(client, context)
        return client

    def _touch(self, client: Client, context: Context) -> None:
        client.address = context.peer
        client.last_seen = self._cluster.monotonic()

    def _settle_topics(self, client: Client, topics: set[str]) -> list[asyncio.Task[None]]:
        """Produce to these topics, and no longer to others."""
        gone = client.topics - topics
        for topic in gone:
            _drop(self._publishers, topic, client)
        for topic in topics:
            self._publishers.setdefault(topic, {})[client] = None
        client.topics = topics
        return [self._membership.leave(client.id, gone, {})] if gone else []

    def _join(self, client: Client, data: ConsumerData, *, with_subscriptions: bool = True) -> None:
        group = data.group_name
        self._members.setdefault(group, {})[client] = None
        client.data[group] = data
        client.unsubscribed.discard(group)
        if not with_subscriptions:
            client.unsubscribed.add(group)

    def _leave(self, client: Client, group: str) -> asyncio.Task[None]:
        _drop(self._members, group, client)
        client.unsubscribed.discard(group)
        return self._membership.leave(client.id, (), {group: client.data.pop(group)})

    def forget(self, client: Client) -> list[asyncio.Task[None]]:
        """It is gone: from here, and for whoever keeps something for it. The tasks tell the brokers."""
        if self._clients.get(client.id) is not client:
            return []
        del self._clients[client.id]
        self._size -= client.size
        groups = tuple(client.data)
        told = self._settle_topics(client, set())
        told += [self._leave(client, group) for group in groups]
        client.end()
        for gone in self.on_gone:
            gone(client.id, groups)
        return told

    # --- from time to time --------------------------------------------------------------------------------------

    def _scan(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_SCAN_SECONDS, self._scan)
        self.expire()
        self._cluster.spawn(self.tell_changes())
        now = self._cluster.monotonic()
        if self._clients and now - self._announced >= HEARTBEAT_SECONDS:
            self._announced = now
            self._cluster.spawn(self._membership.announce_all())

    def expire(self) -> None:
        """Forget clients that have been silent for too long."""
        limit = self._cluster.monotonic() - self._expire_seconds
        for client in [one for one in self._clients.values() if one.last_seen < limit]:
            _log.info("forgot client %s of %s: it is silent", client.id, client.address)
            self.forget(client)

    async def tell_changes(self) -> None:
        """Tell members of groups whose settings are others than they were told, if that means something to them."""
        for group, members in list(self._members.items()):
            for client in list(members):
                if client.shown is None:
                    continue
                try:
                    merged = await self._merged(client)
                except RocketError as error:
                    _log.debug("the settings of group %s are not known: %s", group, error.message)
                    break
                if merged != client.shown and client.tell(
                    definitions.TelemetryCommand(status=status(_Code.OK), settings=merged)
                ):
                    client.shown = merged

    def end_streams(self) -> None:
        """The proxy is about to stop: Telemetry streams would go on."""
        for client in self._clients.values():
            for stream in client.streams:
                stream.end(RpcError(GrpcCode.UNAVAILABLE, "the proxy stops"))

    def close(self) -> None:
        """The proxy stops."""
        self._timer.cancel()
        for client in list(self._clients.values()):
            self.forget(client)

    async def _merged(self, client: Client) -> Any:
        sent = client.settings
        group = None
        if sent.WhichOneof("pub_sub") == "subscription":
            group = await self._cluster.groups.get(group_of(sent.subscription.group))
        return merged_settings(sent, max_body_size=self.max_body_size, group=group)


async def _heard(told: list[asyncio.Task[None]]) -> None:
    """Until brokers have heard of a change, but no longer than a second: one that is away must not keep a client."""
    if told:
        await asyncio.wait(told, timeout=HEARD_SECONDS)


def _drop(table: dict[str, dict[Client, None]], name: str, client: Client) -> None:
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


def _language(said: str) -> str:
    name = _LANGUAGES.get(said.upper(), said.upper())
    return name if name in LanguageCode.__members__ else LanguageCode.OTHER.name
