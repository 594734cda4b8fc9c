"""Single calls to the messaging service, as any client would send them."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import grpc

from spark_rocket.proxy import definitions

SECONDS = 30.0
_SERVICE = definitions.messaging().descriptor.services_by_name["MessagingService"]
METHODS = {method.name: method for method in _SERVICE.methods}


class Caller:
    """One client: a connection and an id. ``call`` is for unary methods, ``stream`` for methods with several responses.

    The request is a message of definitions.py, or its fields by name.
    """

    def __init__(self, endpoint: str, client_id: str) -> None:
        self.endpoint = endpoint
        self.client_id = client_id
        self.metadata = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON", "x-mq-client-version": "5.1.2"}
        # Each caller its own connection: by default channels to one address share one.
        self._channel = grpc.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)])

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Break the connection."""
        self._channel.close()

    def call(self, method: str, request: Any = None, *, timeout: float = SECONDS, **fields: Any) -> Any:
        """The answer of a unary method."""
        return self._stub(method)(self._request(method, request, fields), timeout=timeout, metadata=self._pairs())

    def later(self, method: str, request: Any = None, *, timeout: float = SECONDS, **fields: Any) -> Any:
        """A pending unary call: ``.result()`` is its response."""
        stub = self._stub(method)
        return stub.future(self._request(method, request, fields), timeout=timeout, metadata=self._pairs())

    def stream(self, method: str, request: Any = None, *, timeout: float = SECONDS, **fields: Any) -> Any:
        """The answers of ReceiveMessage or PullMessage: an iterator that can be cancelled."""
        return self._stub(method)(self._request(method, request, fields), timeout=timeout, metadata=self._pairs())

    def raw(
        self, path: str, payload: bytes, metadata: dict[str, str] | None = None, *, timeout: float = SECONDS
    ) -> list[bytes]:
        """The answers of ``/service/Method``, or of a method of the messaging service, to any bytes."""
        method = METHODS.get(path)
        sides = (method.client_streaming, method.server_streaming) if method is not None else (False, False)
        kinds = "_".join("stream" if many else "unary" for many in sides)
        path = f"/{definitions.SERVICE}/{path}" if method is not None else path
        pairs = self._pairs() if metadata is None else list(metadata.items())
        answer = getattr(self._channel, kinds)(path)(
            iter([payload]) if sides[0] else payload, timeout=timeout, metadata=pairs
        )
        return list(answer) if sides[1] else [answer]

    def answers(self, group: str, topic: str, broker: str = "", *, seconds: float = 20, **fields: Any) -> list[Any]:
        """The answers of a receive that polls so long; by default messages are invisible for a minute."""
        request = definitions.ReceiveMessageRequest(
            group=resource(group), message_queue={"topic": resource(topic)}, **{"batch_size": 32, **fields}
        )
        request.message_queue.broker.name = broker
        request.long_polling_timeout.FromMilliseconds(int(seconds * 1000))
        if not (request.auto_renew or request.HasField("invisible_duration")):
            request.invisible_duration.seconds = 60
        return list(self.stream("ReceiveMessage", request))

    def receive(self, group: str, topic: str, broker: str = "", *, seconds: float = 20, **fields: Any) -> list[Any]:
        """The messages of a receive."""
        status, *answers = self.answers(group, topic, broker, seconds=seconds, **fields)
        messages = [answer.message for answer in answers if answer.WhichOneof("content") == "message"]
        code = definitions.Code
        assert status.status.code == (code.OK if messages else code.MESSAGE_NOT_FOUND), status
        return messages

    def ack(self, group: str, topic: str, *messages: Any) -> Any:
        """The answer to acks of these messages."""
        systems = [message.system_properties for message in messages]
        return self.call(
            "AckMessage",
            group=resource(group),
            topic=resource(topic),
            entries=[{"message_id": one.message_id, "receipt_handle": one.receipt_handle} for one in systems],
        )

    def telemetry(self) -> Telemetry:
        """A bidirectional stream, as a context manager."""
        return Telemetry(self._stub("Telemetry"), self._pairs())

    def publish(self, *topics: str) -> Telemetry:
        """Open a stream with the settings of a producer, and wait for the first response."""
        return self.telemetry().say_settings(producer_settings(*topics))

    def subscribe(self, group: str, *topics: str, kind: str = "SIMPLE_CONSUMER") -> Telemetry:
        """Open a stream with the settings of a consumer, and wait for the first response."""
        return self.telemetry().say_settings(consumer_settings(group, *topics, kind=kind))

    def _pairs(self) -> list[tuple[str, str]]:
        return list(self.metadata.items())

    def _stub(self, name: str) -> Any:
        method = METHODS[name]
        make = getattr(
            self._channel,
            f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}",
        )
        return make(
            f"/{definitions.SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(definitions, method.output_type.name).FromString,
        )

    @staticmethod
    def _request(method: str, request: Any, fields: dict[str, Any]) -> Any:
        return getattr(definitions, METHODS[method].input_type.name)(**fields) if request is None else request


class Telemetry:
    """An open Telemetry stream."""

    def __init__(self, stub: Any, metadata: list[tuple[str, str]]) -> None:
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = stub(iter(self._said.get, None), timeout=10 * SECONDS, metadata=metadata)
        self.settings: Any = None

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self.call.cancel()

    def say(self, command: Any = None, **fields: Any) -> None:
        """Send a TelemetryCommand."""
        self._said.put(definitions.TelemetryCommand(**fields) if command is None else command)

    def hear(self) -> Any:
        """The next command; StopIteration at the stream's end."""
        return next(self.call)

    def say_settings(self, settings: Any) -> Telemetry:
        """Send settings and take the answer."""
        self.say(settings=settings)
        answer = self.hear()
        assert answer.status.code == definitions.Code.OK, answer
        self.settings = answer.settings
        return self

    def end(self) -> None:
        """No more from this side."""
        self._said.put(None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.call)


def producer_settings(*topics: str) -> Any:
    settings = definitions.Settings(client_type=definitions.ClientType.PRODUCER)
    settings.publishing.topics.extend(resource(topic) for topic in topics)
    settings.publishing.SetInParent()
    return settings


def consumer_settings(
    group: str, *topics: str, kind: str = "SIMPLE_CONSUMER", expression: str = "*", filter_type: str = "TAG"
) -> Any:
    settings = definitions.Settings(client_type=definitions.ClientType.Value(kind))
    settings.subscription.group.CopyFrom(resource(group))
    for topic in topics:
        entry = settings.subscription.subscriptions.add(topic=resource(topic))
        entry.expression.type = definitions.FilterType.Value(filter_type)
        entry.expression.expression = expression
    return settings


def resource(name: str, namespace: str = "") -> Any:
    return definitions.Resource(name=name, resource_namespace=namespace)
