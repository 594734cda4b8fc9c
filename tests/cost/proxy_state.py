"""State that clients create in bulk in a proxy: clients with settings and streams, receipts, held receives.

Each kind is created on a connection of its own, as many at a time as a connection may have calls. They all close
together, because clients and their receipts are removed by a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import grpc.aio

from spark_rocket.proxy import definitions
from spark_rocket.proxy.method_types import MAX_MESSAGES, MAX_TOPICS
from tests.cost.values import GROUP, TOPIC
from tests.proxy.caller import consumer_settings, resource

SCAN_S = 10.0
"""The interval at which the proxy removes clients."""
_CLIENTS = 900  # a connection may have 1,024 calls
_LARGE_CLIENTS = 20
_HELD = 900
_RECEIPTS = 2 * MAX_MESSAGES
_BATCH = 32
LAST_GROUP = f"large-group-{_LARGE_CLIENTS - 1}"
_AT_ONCE = 50
_SECONDS = 120.0

State = Callable[["Connection"], Coroutine[Any, Any, float]]


class Connection:
    """A connection whose calls have different client ids."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.aio.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)])
        self._open: list[Any] = []

    def call(self, method: str, request: Any, client: str, *, is_stream: bool = False) -> Any:
        """Start a call; its responses are read by the caller."""
        kind = self._channel.unary_stream if is_stream else self._channel.unary_unary
        metadata = (("x-mq-client-id", client), ("x-mq-language", "PYTHON"))
        return kind(f"/{definitions.SERVICE}/{method}")(
            request.SerializeToString(), timeout=_SECONDS, metadata=metadata
        )

    async def register(self, client: str, settings: Any) -> float:
        """Open a client's Telemetry stream and send its settings; return their MB."""
        metadata = (("x-mq-client-id", client), ("x-mq-language", "PYTHON"))
        stream = self._channel.stream_stream(f"/{definitions.SERVICE}/Telemetry")(metadata=metadata)
        raw = definitions.TelemetryCommand(settings=settings).SerializeToString()
        await stream.write(raw)
        await stream.read()
        self._open.append(stream)
        return len(raw) / 1e6

    def hold(self, call: Any) -> None:
        """Keep a call open until the connection closes."""
        self._open.append(call)

    async def close(self) -> None:
        await self._channel.close()
        self._open.clear()


async def clients(connection: Connection) -> float:
    """Small clients, each with a stream, a group and a topic of its own."""
    return await _some_at_a_time(
        connection.register(f"small-{at}", consumer_settings(f"small-group-{at}", f"small-topic-{at}"))
        for at in range(_CLIENTS)
    )


async def large_clients(connection: Connection) -> float:
    """Clients with as many subscriptions as allowed."""
    return await _some_at_a_time(
        connection.register(
            f"large-{at}", consumer_settings(f"large-group-{at}", *(f"topic-{at}-{one}" for one in range(MAX_TOPICS)))
        )
        for at in range(_LARGE_CLIENTS)
    )


async def receipts(connection: Connection) -> float:
    """Messages whose invisible time the proxy renews."""
    message = definitions.Message(topic=resource(TOPIC), body=b"x")
    message.system_properties.message_id = "01AABBCCDDEEFF00112233445566778899"
    request = definitions.SendMessageRequest(messages=[message] * MAX_MESSAGES)
    sent = await connection.register("receiver", consumer_settings(GROUP, TOPIC))
    for _ in range(_RECEIPTS // MAX_MESSAGES):
        answer = await connection.call("SendMessage", request, "sender")
        assert definitions.SendMessageResponse.FromString(answer).status.code == definitions.Code.OK
        sent += request.ByteSize() / 1e6
    for _ in range(_RECEIPTS // _BATCH):
        call = connection.call("ReceiveMessage", _receive(is_renewed=True), "receiver", is_stream=True)
        found = [definitions.ReceiveMessageResponse.FromString(raw) async for raw in call]
        assert any(one.HasField("message") for one in found), found
    return sent


async def held_receives(connection: Connection) -> float:
    """Receives of a topic whose messages are all received."""
    request = _receive(is_renewed=False)
    request.long_polling_timeout.seconds = 60
    request.invisible_duration.seconds = 60
    for at in range(_HELD):
        connection.hold(connection.call("ReceiveMessage", request, f"waiting-{at}", is_stream=True))
    route = definitions.QueryRouteRequest(topic=resource(TOPIC))
    await connection.call("QueryRoute", route, "waiting")  # sent after them
    return _HELD * request.ByteSize() / 1e6


STATES: dict[str, State] = {
    "Telemetry: 900 clients": clients,
    "Telemetry: 20 clients with 2,000 subscriptions": large_clients,
    "ReceiveMessage: 2,048 renewed receipts": receipts,
    "ReceiveMessage: 900 held calls": held_receives,
}


def _receive(*, is_renewed: bool) -> Any:
    request = definitions.ReceiveMessageRequest(
        group=resource(GROUP), message_queue={"topic": resource(TOPIC)}, batch_size=_BATCH, auto_renew=is_renewed
    )
    request.long_polling_timeout.seconds = 5
    request.filter_expression.expression = "*"
    return request


async def _some_at_a_time(works: Iterable[Coroutine[Any, Any, float]]) -> float:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(work: Coroutine[Any, Any, float]) -> float:
        async with limit:
            return await work

    return sum(await asyncio.gather(*map(one, works)))
