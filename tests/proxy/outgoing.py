"""SendMessage requests as RocketMQ 5's clients send them."""

from __future__ import annotations

import itertools
from typing import Any

from spark_rocket.proxy import definitions
from tests.proxy.caller import Caller, resource

Type = definitions.MessageType
_numbers = itertools.count(1)


def next_id() -> str:
    """A message id in the format of these clients: 34 hexadecimal digits."""
    return f"01{0x0242AC110002:012X}{4711:04X}{0:08X}{next(_numbers):08X}"


def message(
    topic: str,
    body: bytes = b"hello",
    user: dict[str, str] | None = None,
    *,
    namespace: str = "",
    born_ms: int = 1_795_000_000_000,
    deliver_ms: int | None = None,
    recovery_seconds: int | None = None,
    **system: Any,
) -> Any:
    """A message with what every client sets; ``system`` are more system properties."""
    fields = {"message_id": next_id(), "message_type": Type.NORMAL, "body_encoding": 1, "born_host": "app-1"} | system
    made = definitions.Message(topic=resource(topic, namespace), body=body, user_properties=user or {})
    properties = made.system_properties
    properties.MergeFrom(definitions.SystemProperties(**fields))
    set_time(properties.born_timestamp, born_ms)
    if deliver_ms is not None:
        set_time(properties.delivery_timestamp, deliver_ms)
    if recovery_seconds is not None:
        properties.orphaned_transaction_recovery_duration.seconds = recovery_seconds
        properties.orphaned_transaction_recovery_duration.SetInParent()
    return made


def set_time(timestamp: Any, milliseconds: int) -> None:
    timestamp.SetInParent()
    timestamp.seconds, rest = divmod(milliseconds, 1000)
    timestamp.nanos = rest * 1_000_000


def send(client: Caller, *messages: Any) -> Any:
    """The answer to one request."""
    return client.call("SendMessage", messages=messages)


def sent(client: Caller, *messages: Any) -> list[Any]:
    """The entries of a response with the status OK."""
    answer = send(client, *messages)
    assert answer.status.code == definitions.Code.OK, answer
    assert len(answer.entries) == len(messages)
    assert all(entry.status.code == definitions.Code.OK for entry in answer.entries)
    return list(answer.entries)
