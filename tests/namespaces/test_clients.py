"""Every public method of the clients in a namespace: requests have full names, and results and errors have short ones.

A method's arguments are made from the names of its parameters: one with a new parameter fails until it is here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from typing import Any

import pytest

from spark_rocket.client import Admin, ConsumeConcurrentlyStatus, LitePullConsumer, Producer, PushConsumer, Reader
from spark_rocket.client.consume.pull import max_offset
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.protocol.namespace import Namespace
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.kit.recording import recording, text_of
from tests.namespaces.world import BARE, GROUP, INSTANCE, TOPIC, fill, full

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
FULL_NAMES = {"put_permission", "delete_permission"}
"""Accounts have the names on the wire."""


@dataclass
class World:
    cluster: LocalCluster
    requests: list[RemotingCommand]
    message: MessageExt

    def value(self, method: str, name: str, named: Callable[[str], str]) -> Any:
        """Return an argument. ``named`` returns a name as the user writes it."""
        topic, group = named(TOPIC), named(GROUP)
        queue = MessageQueue(topic, "broker-a", 0)
        message = replace(self.message, topic=topic)
        if name == "message":
            return Message.of(topic, "x") if method.startswith("send") else message
        if name == "state":
            with Admin(self.cluster.name_server, namespace=INSTANCE) as admin:
                return admin.group_state(group)
        return {
            "topic": topic, "group": group, "source": group, "target": named("zlate"), "queue": queue, "where": topic,
            "queues": [queue], "topics": [topic], "groups": [group], "messages": [message], "offsets": {queue: 0},
            "offset": 0, "count": 1, "start": 0, "end": 1, "timestamp_ms": 0, "key": "k", "value": "v",
            "namespace": "ORDER_TOPIC_CONFIG", "msg_id": message.msg_id, "offset_msg_id": message.msg_id,
            "client_id": "none", "broker": "broker-a", "brokers": [], "addresses": ["127.0.0.1"], "failed": {},
            "username": "alice", "password": "p4ssw0rd", "resource": f"Topic:{topic}", "actions": ["Pub"],
            "access_key": "alice-key", "admin": False, "topic_perms": [f"{topic}=PUB"], "group_perms": [f"{group}=SUB"],
            "name": "TOPIC_PUT_NUMS", "sql": "a = 1", "handle": "none", "body": b"x", "timeout": 5.0,
            "trace_topic": topic, "query": max_offset(queue),
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
    """With short names, and with full ones: the result is the same."""
    short, long = (shown(client, method, world, named) for named in (str, full))
    assert method in FULL_NAMES or INSTANCE not in short
    assert [text_of(each) for each in world.requests if BARE.search(text_of(each))] == []
    assert changing(long) == changing(short)


def changing(text: str) -> str:
    """The text without what differs between two calls: ids, times and counts."""
    return re.sub(r"[0-9A-F]{16,}|\d+", "0", text)


def shown(client: str, method: str, world: World, named: Callable[[str], str]) -> str:
    """Call a method; return its result or its error."""
    fill(world.cluster)
    with CLIENTS[client](name_server=world.cluster.name_server, namespace=INSTANCE) as running:
        if "Consumer" in client:
            running.subscribe(named(TOPIC))
        call = getattr(running, method)
        given = {
            parameter.name: world.value(method, parameter.name, named)
            for parameter in inspect.signature(call).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
            and (parameter.default is parameter.empty or (parameter.name in NAMED and parameter.default is None))
        }
        world.requests.clear()
        try:
            return repr(plain(call(**given)))
        except RocketError as error:
            return str(error)
