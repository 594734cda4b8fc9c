"""Requests of every method with arbitrary fields: each gets a status, and none is an internal error."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from spark_rocket.proxy import definitions
from spark_rocket.proxy.methods import receiving
from spark_rocket.proxy.server import ProxyServer
from spark_rocket.testing import LocalCluster
from tests.proxy.caller import METHODS
from tests.proxy.direct import DirectContext

pytestmark = pytest.mark.live

Code = definitions.Code
_METHOD_NAMES = [name for name in METHODS if name != "Telemetry"]
_MISTAKES = (Code.CODE_UNSPECIFIED, Code.INTERNAL_ERROR, Code.INTERNAL_SERVER_ERROR)
_TEXTS = [
    "",
    " ",
    "Any",
    "Any",
    "G",
    "GO",
    "%DLQ%G",
    "%RETRY%G",
    "a\x01b",
    "\x00",
    "é",
    "x" * 300,
    "*",
    "a||b",
    "a = 1",
]
_NUMBERS = [0, 0, 1, 1, 2, 3, 20, 32, -1, 2**31 - 1, -(2**31), 1000]
_SECONDS = [0, 0, 1, 15, 60, -1, 2**62, -(2**62), 2**63 - 1, -(2**63)]
_NANOS = [0, 0, 1_000_000, 999_999_999, -1, 2**31 - 1, -(2**31)]
_PARTS = ["", "0", "-1", "7", str(2**31), str(2**62), str(2**64), "x", "1", "2", "999"]


class Asking:
    """Makes requests, and remembers what answers gave: handles, transactions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.given: dict[str, list[str]] = {
            "receipt_handle": ["x"],
            "transaction_id": ["1-2-broker-a"],
            "recall_handle": ["x"],
        }

    def make(self, name: str) -> Any:
        chance = self.random
        request = getattr(definitions, f"{name}Request")()
        self.fill(request)
        if name == "PullMessage":
            request.ClearField("long_polling_timeout")
        elif name == "SendMessage" and chance.random() < 0.7:  # else few would be taken
            for message in request.messages:
                system = definitions.SystemProperties(message_id="M", body_encoding=1)
                system.message_type = chance.choice((1, 1, 4))
                if system.message_type == 1 and chance.random() < 0.3:
                    system.delivery_timestamp.seconds = int(time.time()) + 3600
                message.CopyFrom(definitions.Message(topic={"name": "Any"}, body=b"z", system_properties=system))
        elif name == "ReceiveMessage" and chance.random() < 0.8:
            request.message_queue.topic.CopyFrom(definitions.Resource(name="Any"))
            request.group.CopyFrom(definitions.Resource(name=chance.choice(("G", "GO"))))
            request.invisible_duration.CopyFrom(definitions.Duration(seconds=10))
            request.batch_size = chance.choice((1, 8, 32))
            request.ClearField("filter_expression")
        return request

    def fill(self, message: Any) -> None:
        chance = self.random
        for field in message.DESCRIPTOR.fields:
            if chance.random() < 0.25:
                continue
            of = field.message_type
            if of is not None and of.GetOptions().map_entry:
                for _ in range(chance.choice((0, 1, 3))):
                    getattr(message, field.name)[chance.choice(_TEXTS)] = chance.choice(_TEXTS)
                continue
            repeated = field.is_repeated
            for _ in range(chance.choice((0, 1, 2, 5)) if repeated else 1):
                if of is not None:
                    part = getattr(message, field.name).add() if repeated else getattr(message, field.name)
                    if not repeated:
                        part.SetInParent()
                    if of.name in ("Duration", "Timestamp"):
                        part.seconds, part.nanos = chance.choice(_SECONDS), chance.choice(_NANOS)
                    elif of.name == "Resource" and chance.random() < 0.8:
                        part.name = chance.choice(("G", "GO") if field.name == "group" else ("Any", "Any", "Nowhere"))
                    else:
                        self.fill(part)
                elif repeated:
                    getattr(message, field.name).append(self.value(field))
                else:
                    setattr(message, field.name, self.value(field))

    def value(self, field: Any) -> Any:
        chance = self.random
        if field.enum_type is not None:
            return chance.choice([*(value.number for value in field.enum_type.values), 99, -1])
        if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.choice((b"", b"x", b"\x1f\x8b\x08", b"\x78\x9c\x03\x00"))
        if field.type == FieldDescriptor.TYPE_STRING:
            given = self.given.get(field.name)
            if given is None or chance.random() < 0.1:
                return chance.choice(_TEXTS)
            parts = chance.choice(given[-50:]).split(" ")
            if chance.random() < 0.3:
                parts[chance.randrange(len(parts))] = chance.choice(_PARTS)
            return " ".join(parts)
        if field.type == FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.5
        if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
            return chance.choice((0.0, 1.5, float("nan"), float("inf"), -1e30))
        return chance.choice(_NUMBERS)

    def learn(self, answer: Any) -> None:
        found = [answer, *getattr(answer, "entries", ())]
        if getattr(answer, "message", None) is not None:
            found.append(answer.message.system_properties)
        for part in found:
            for name, known in self.given.items():
                if getattr(part, name, ""):
                    known.append(getattr(part, name))


def test_anything_in_every_field(cluster: LocalCluster, proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create_topic("Any", queues=2)
    cluster.create_group("GO", ordered=True)
    methods = proxy.methods
    assert methods is not None
    monkeypatch.setattr(methods.receiving, "_min_polling_ms", 1)
    monkeypatch.setattr(receiving, "MAX_POLLING_MS", 1)
    rpcs, asking = methods.rpcs(), Asking(7)

    async def answers(name: str, raw: bytes) -> list[Any]:
        version = {"x-mq-client-version": "5.1.2"}
        client_id = f"any@{asking.random.randrange(5)}"
        context = DirectContext(client_id, deadline=time.monotonic() + 30, **version)
        rpc = rpcs[f"/{definitions.SERVICE}/{name}"]
        answer = getattr(definitions, METHODS[name].output_type.name).FromString
        if rpc.response_streaming:
            return [answer(one) async for one in rpc.handler(context, raw)]
        return [answer(await rpc.handler(context, raw))]

    async def ask() -> set[int]:
        seen = set()
        for at in range(3_000):
            name = asking.random.choice([*_METHOD_NAMES, *["SendMessage", "ReceiveMessage", "AckMessage"] * 4])
            request = asking.make(name)
            for answer in await answers(name, request.SerializeToString()):
                for part in (answer, *getattr(answer, "entries", ())):
                    if part.HasField("status"):
                        assert part.status.message, request
                        assert part.status.code not in _MISTAKES, (name, part.status, request)
                        seen.add(part.status.code)
                asking.learn(answer)
            if at % 20 == 0:
                await asyncio.sleep(0)
        return seen

    seen = asyncio.run_coroutine_threadsafe(ask(), cluster.proxy.loop).result(120)
    assert {Code.OK, Code.INVALID_RECEIPT_HANDLE, Code.ILLEGAL_TOPIC, Code.MESSAGE_NOT_FOUND} <= seen
