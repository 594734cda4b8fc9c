"""Ctrl-C while a call waits for a server: the call ends with KeyboardInterrupt, and the next one works."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from spark_rocket.client import Admin, LitePullConsumer, Producer, Reader, TransactionProducer
from spark_rocket.model import Message
from spark_rocket.protocol.wire.bodies.client import GetConsumerListByGroupResponseBody
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.client.producing import Decides
from tests.kit.interrupts import interrupted_at
from tests.kit.scripted import POSITION, QUEUE, FakeCluster, Handler, says, says_offset

pytestmark = pytest.mark.live

BROKERS = 1


class Held:
    """Responds to all requests but the first."""

    def __init__(self, then: Handler) -> None:
        self.asked = threading.Event()
        self._then = then

    def __call__(self, request: RemotingCommand) -> RemotingCommand | None:
        if self.asked.is_set():
            return self._then(request)
        self.asked.set()
        return None


class Blocking(NamedTuple):
    """A client, a call of it, and the request whose response is missing."""

    name: str
    client: Callable[[str], Any]
    call: Callable[[Any], object]
    code: int


def _producer(**settings: Any) -> Callable[[str], Any]:
    return lambda address: Producer("g", name_server=address, send_timeout=2.0, **settings)


def _reader(address: str) -> Reader:
    return Reader(address, request_timeout=60.0)


def _admin(address: str) -> Admin:
    return Admin(address, request_timeout=60.0)


CALLS = [
    Blocking("Producer.start", _producer(), lambda c: c.start(), Code.HEART_BEAT),
    Blocking("Producer.send, route", _producer(), lambda c: c.send(Message.of("t", "x")), Code.GET_ROUTEINFO_BY_TOPIC),
    Blocking("Producer.send", _producer(), lambda c: c.send(Message.of("t", "x")), Code.SEND_MESSAGE_V2),
    Blocking(
        "Producer.send, batch", _producer(), lambda c: c.send([Message.of("t", "x")] * 2), Code.SEND_BATCH_MESSAGE
    ),
    Blocking(
        "Producer.send, accumulated",
        _producer(auto_batch=True),
        lambda c: c.send(Message.of("t", "x")),
        Code.SEND_BATCH_MESSAGE,
    ),
    Blocking(
        "Producer.send_async, result",
        _producer(),
        lambda c: c.send_async(Message.of("t", "x")).result(),
        Code.SEND_MESSAGE_V2,
    ),
    Blocking("Producer.queues", _producer(), lambda c: c.queues("t"), Code.GET_ROUTEINFO_BY_TOPIC),
    Blocking(
        "TransactionProducer.send_in_transaction",
        lambda address: TransactionProducer("g", Decides(), name_server=address, send_timeout=2.0),
        lambda c: c.send_in_transaction(Message.of("t", "x")),
        Code.SEND_MESSAGE_V2,
    ),
    Blocking("Reader.queues", _reader, lambda c: c.queues("t"), Code.GET_ROUTEINFO_BY_TOPIC),
    Blocking("Reader.pull", _reader, lambda c: c.pull(QUEUE, 0), Code.PULL_MESSAGE),
    Blocking("Reader.messages", _reader, lambda c: c.messages(QUEUE, 0), Code.PULL_MESSAGE),
    Blocking("Reader.max_offset", _reader, lambda c: c.max_offset(QUEUE), Code.GET_MAX_OFFSET),
    Blocking("Reader.brokers", _reader, lambda c: c.brokers(), Code.GET_BROKER_CLUSTER_INFO),
    Blocking("Admin.cluster_info", _admin, lambda c: c.cluster_info(), Code.GET_BROKER_CLUSTER_INFO),
    Blocking("Admin.create_topic", _admin, lambda c: c.create_topic("t", queues=1), Code.UPDATE_AND_CREATE_TOPIC),
]


@pytest.fixture
def mq(mq: FakeCluster) -> FakeCluster:
    for code in (Code.UPDATE_AND_CREATE_TOPIC, Code.END_TRANSACTION):
        mq.everywhere(code, says(0))
    mq.everywhere(Code.PULL_MESSAGE, says(19, None, POSITION))
    for code in (Code.GET_MIN_OFFSET, Code.GET_MAX_OFFSET, Code.QUERY_CONSUMER_OFFSET):
        mq.everywhere(code, says_offset(0))
    members = GetConsumerListByGroupResponseBody([])
    mq.everywhere(Code.GET_CONSUMER_LIST_BY_GROUP, says(0, body=members.to_json()))
    return mq


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
@pytest.mark.parametrize("blocking", CALLS, ids=[call.name for call in CALLS])
def test_an_interrupt_ends_a_call_and_the_next_one_works(
    mq: FakeCluster, closing: Callable[[Any], Any], blocking: Blocking
) -> None:
    server = mq.name_server if blocking.code in mq.name_server.responses else mq.brokers[0]
    if blocking.code == Code.HEART_BEAT:  # a heartbeat needs a broker
        closing(Producer(name_server=mq.name_server.address)).send(Message.of("t", "x"))
    held = server.responses[blocking.code] = Held(server.responses[blocking.code])
    client = closing(blocking.client(mq.name_server.address))
    with interrupted_at(held.asked):
        blocking.call(client)
    if blocking.name == "Producer.start":  # documented: a failed start is final
        client = closing(blocking.client(mq.name_server.address))
    blocking.call(client)


def test_an_interrupt_ends_a_poll(mq: FakeCluster, closing: Callable[[Any], Any]) -> None:
    consumer = closing(LitePullConsumer("g", name_server=mq.name_server.address))
    consumer.assign([QUEUE])
    consumer.start()
    polling = threading.Event()
    with interrupted_at(polling):
        polling.set()
        consumer.poll(60.0)
    assert not consumer.poll(0.0)


AT_EXIT = """
import atexit, sys

def send():
    for call in (lambda: producer.send(message), lambda: producer.send_async(message).result()):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, error.message)

atexit.register(send)  # before the import: called when the event loop has ended
from spark_rocket.client import Producer
from spark_rocket.model import Message
producer, message = Producer(name_server=sys.argv[1]), Message.of("t", "x")
producer.send(message)
"""


def test_an_exit_handler_registered_before_the_import_is_refused_at_once(mq: FakeCluster) -> None:
    command = [sys.executable, "-c", AT_EXIT, mq.name_server.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "StateError The interpreter is exiting: no message can be sent.\n" * 2
    assert len(mq.sends()) == 1
