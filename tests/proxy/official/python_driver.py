"""RocketMQ's own Python client, controlled by JSON lines on standard input; node/driver.js does the same.

A request is ``{"id", "do", "as", …}``; ``as`` names the client that it makes or uses. Each is carried out on a thread
of its own and answered by ``{"id", "ok"}`` or ``{"id", "error", "code"}``. What a push consumer is given, and what a
producer is asked about a transaction, is reported as ``{"as", "event", "message"}``. Bodies are text; times are in ms.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer
from rocketmq.grpc_protocol import FilterType, TransactionResolution
from rocketmq.v5.client.connection import RpcClient
from rocketmq.v5.consumer import ConsumeResult, MessageListener, PushConsumer
from rocketmq.v5.producer import TransactionChecker

CLIENTS: dict[str, Any] = {}
RECEIVED: dict[str, Message] = {}  # by the place that the other side knows it by
_lock = threading.Lock()


def tell(**what: object) -> None:
    with _lock:
        print(json.dumps(what), flush=True)


def shown(message: Message) -> dict[str, object]:
    return {
        "topic": message.topic,
        "body": message.body.decode(),
        "messageId": message.message_id,
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": message.properties,
        "group": message.message_group,
        "bornHost": message.born_host,
        "bornTimestamp": message.born_timestamp,
        "attempt": message.delivery_attempt,
        "corrupted": message.corrupted,
    }


def built(given: dict[str, Any]) -> Message:
    message = Message()
    message.topic = given["topic"]
    message.body = given["body"].encode()
    if "tag" in given:
        message.tag = given["tag"]
    for key in given.get("keys", ()):
        message.keys = key
    for name, value in given.get("properties", {}).items():
        message.add_property(name, value)
    if "group" in given:
        message.message_group = given["group"]
    if "deliverAt" in given:
        message.delivery_timestamp = -(-given["deliverAt"] // 1000)  # this client's times are in whole seconds
    if "priority" in given:
        message.priority = given["priority"]
    return message


class Checker(TransactionChecker):
    def __init__(self, name: str) -> None:
        self._name = name

    def check(self, message: Message) -> Any:
        tell(**{"as": self._name}, event="check", message=shown(message))
        return TransactionResolution.COMMIT if b"commit" in message.body else TransactionResolution.ROLLBACK


class Listener(MessageListener):
    """Fails ``failures`` times for a body."""

    def __init__(self, name: str, failures: dict[str, int]) -> None:
        self._name = name
        self._failures = failures

    def consume(self, message: Message) -> Any:
        body = message.body.decode()
        with _lock:
            left = self._failures.get(body, 0)
            self._failures[body] = left - 1
        tell(**{"as": self._name}, event="fail" if left > 0 else "success", message=shown(message))
        return ConsumeResult.FAILURE if left > 0 else ConsumeResult.SUCCESS


def _subscriptions(given: dict[str, list[str]]) -> dict[str, FilterExpression]:
    kinds = {"TAG": FilterType.TAG, "SQL": FilterType.SQL}
    return {topic: FilterExpression(text, kinds[kind]) for topic, (text, kind) in given.items()}


class Commands:
    def __init__(self, endpoint: str) -> None:
        keys = Credentials(os.environ.get("OFFICIAL_ACCESS_KEY", ""), os.environ.get("OFFICIAL_SECRET_KEY", ""))
        self._settings = ClientConfiguration(endpoint, keys, request_timeout=30)
        self._tls = {"tls_enable": "OFFICIAL_TLS" in os.environ}

    def producer(self, name: str, topics: list[str]) -> None:
        client = Producer(self._settings, topics, checker=Checker(name), **self._tls)
        client.startup()
        CLIENTS[name] = client

    def send(self, name: str, message: dict[str, Any], transaction: str | None = None) -> dict[str, object]:
        producer = CLIENTS[name]
        if transaction is None:
            receipt = producer.send(built(message))
        else:
            begun = producer.begin_transaction()
            receipt = producer.send(built(message), begun)
            if transaction != "leave":
                getattr(begun, transaction)()
        return {
            "messageId": receipt.message_id,
            "transactionId": receipt.transaction_id,
            "offset": receipt.offset,
            "recallHandle": receipt.recall_handle,
        }

    def recall(self, name: str, topic: str, handle: str) -> str:
        return CLIENTS[name].recall_message(topic, handle)

    def simple(self, name: str, group: str, topics: dict[str, list[str]]) -> None:
        client = SimpleConsumer(self._settings, group, _subscriptions(topics), await_duration=10, **self._tls)
        client.startup()
        CLIENTS[name] = client

    def receive(self, name: str, most: int = 32, invisible: int = 30) -> list[dict[str, object]]:
        messages = CLIENTS[name].receive(most, invisible)
        for message in messages:
            RECEIVED[message.message_id] = message
        return [shown(message) for message in messages]

    def ack(self, name: str, message: str) -> None:
        CLIENTS[name].ack(RECEIVED[message])

    def change(self, name: str, message: str, invisible: int) -> None:
        CLIENTS[name].change_invisible_duration(RECEIVED[message], invisible)

    def push(self, name: str, group: str, topics: dict[str, list[str]], failures: dict[str, int] | None = None) -> None:
        listener = Listener(name, failures or {})
        client = PushConsumer(self._settings, group, listener, _subscriptions(topics), **self._tls)
        client.startup()
        CLIENTS[name] = client

    def stop(self, name: str) -> None:
        CLIENTS.pop(name).shutdown()


def carry_out(commands: Commands, request: dict[str, Any]) -> None:
    number, do, name = request.pop("id"), request.pop("do"), request.pop("as")
    # The client makes calls of its loop's in the thread that asked, when an answer is there before it looks for it.
    asyncio.set_event_loop(RpcClient.get_channel_io_loop())
    try:
        tell(id=number, ok=getattr(commands, do)(name, **request))
    except Exception as error:
        tell(id=number, error=f"{type(error).__name__}: {error}", code=getattr(error, "code", None))


def main() -> None:
    RpcClient()  # starts the loop of all clients
    commands = Commands(sys.argv[1])
    for line in sys.stdin:
        threading.Thread(target=carry_out, args=(commands, json.loads(line)), daemon=True).start()
    os._exit(0)  # what still polls is not waited for


if __name__ == "__main__":
    main()
