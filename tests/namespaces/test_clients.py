"""Every public method of the clients in a namespace: requests have full names, and results and errors have short ones.

A method's arguments are made from the names of its parameters: one with a new parameter fails until it is here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any

import pytest

from spark_rocket.client import Admin, ConsumeConcurrentlyStatus, LitePullConsumer, Producer, PushConsumer, Reader
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.protocol.namespace import Namespace
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.kit.recording import recording, text_of
from tests.namespaces.world import BARE, GROUP, INSTANCE, TOPIC, fill

pytestmark = pytest.mark.live

CLIENTS: dict[str, Callable[..., Any]] = {
    "Admin": Admin,
    "Reader": Reader,
    "Producer": lambda **connecting: Producer("zshop", **connecting),
    "PushConsumer": lambda **connecting: PushConsumer(
        GROUP, lambda *_: ConsumeConcurrentlyStatus.CONSUME_SUCCESS, **connecting
    ),
    "LitePullConsumer": lambda **connecting: LitePullConsumer(GROUP, **connecting),
}
WITHOUT_NAMES = {
    "start", "close", "instance", "after_fork", "add_metrics", "resume", "suspend", "running", "process_queues",
    "remoting", "update_broker_config", "update_name_server_config", "delete_expired_commit_log", "wipe_write_perm",
    "add_write_perm", "clean_expired_queues", "clean_unused_topics", "poll", "poll_batches", "consume_directly",
    "request", "request_async", "may_block", "masters_away",
}  # fmt: skip
"""Methods whose arguments and results have no names, that others call, deprecated ones, or ones that wait."""


@dataclass
class World:
    cluster: LocalCluster
    requests: list[RemotingCommand]
    message: MessageExt

    def value(self, method: str, name: str) -> Any:
        queue = MessageQueue(TOPIC, "broker-a", 0)
        if name == "message":
            return Message.of(TOPIC, "x") if method.startswith("send") else self.message
        if name == "state":
            with Admin(self.cluster.name_server, namespace=INSTANCE) as admin:
                return admin.group_state(GROUP)
        return {
            "topic": TOPIC, "group": GROUP, "source": GROUP, "target": "zlate", "queue": queue, "where": TOPIC,
            "queues": [queue], "topics": [TOPIC], "groups": [GROUP], "messages": [self.message], "offsets": {queue: 0},
            "offset": 0, "count": 1, "start": 0, "end": 1, "timestamp_ms": 0, "key": "k", "value": "v",
            "namespace": "ORDER_TOPIC_CONFIG", "msg_id": self.message.msg_id, "offset_msg_id": self.message.msg_id,
            "client_id": "none", "broker": "broker-a", "brokers": [], "addresses": ["127.0.0.1"], "failed": {},
            "username": "alice", "password": "p4ssw0rd", "resource": f"Topic:{TOPIC}", "actions": ["Pub"],
            "access_key": "alice-key", "admin": False, "topic_perms": [f"{TOPIC}=PUB"], "group_perms": [f"{GROUP}=SUB"],
            "name": "TOPIC_PUT_NUMS", "sql": "a = 1", "handle": "none", "body": b"x", "timeout": 5.0,
            "trace_topic": TOPIC,
        }[name]  # fmt: skip


NAMED = {"topic", "group", "queue", "trace_topic", "topic_perms", "group_perms"}
"""Parameters with names, which are given although they have defaults."""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    requests: list[RemotingCommand] = []
    with recording(lambda request, _: requests.append(request)), LocalCluster(in_process=True) as cluster:
        yield World(cluster, requests, fill(cluster))


def methods() -> list[tuple[str, str]]:
    kinds = {"Admin": Admin, "Reader": Reader, "Producer": Producer, "PushConsumer": PushConsumer,
             "LitePullConsumer": LitePullConsumer}  # fmt: skip
    found = [(name, method) for name, kind in kinds.items() for method in dir(kind) if method[0] != "_"]
    return [
        (name, method)
        for name, method in found
        if method not in WITHOUT_NAMES and callable(getattr(kinds[name], method))
    ]


def plain(value: Any) -> Any:
    """Resolve futures and iterators, and open the values in a result."""
    if isinstance(value, Future):
        return plain(value.result(30))
    if hasattr(value, "result") and callable(value.result):
        return plain(value.result(30))
    if isinstance(value, Namespace):
        return None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {repr(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(each) for each in islice(value, 100)]
    return value


@pytest.mark.parametrize(("client", "method"), methods(), ids=lambda text: text)
def test_a_method(client: str, method: str, world: World) -> None:
    fill(world.cluster)
    with CLIENTS[client](name_server=world.cluster.name_server, namespace=INSTANCE) as running:
        if "Consumer" in client:
            running.subscribe(TOPIC)
        call = getattr(running, method)
        given = {
            parameter.name: world.value(method, parameter.name)
            for parameter in inspect.signature(call).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
            and (parameter.default is parameter.empty or (parameter.name in NAMED and parameter.default is None))
        }
        world.requests.clear()
        try:
            shown = repr(plain(call(**given)))
        except RocketError as error:
            shown = str(error)
    assert INSTANCE not in shown
    assert [text_of(each) for each in world.requests if BARE.search(text_of(each))] == []
