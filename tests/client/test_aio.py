"""The asyncio client: sends, pulls and administration, and that none of them blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from spark_rocket.client import Admin, PullStatus, aio
from spark_rocket.errors import ClientError, RemotingTooMuchRequestError, StateError, TopicNotFoundError
from spark_rocket.model import SHARDING_KEY, Message, MessageQueue
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.kit.scripted import POSITION, STORED, FakeCluster, route, says

pytestmark = pytest.mark.live

BROKERS = 1


class Held:
    """A response that is sent when ``go`` is set."""

    def __init__(self, then: Callable[[RemotingCommand], RemotingCommand | None]) -> None:
        self.asked = threading.Event()
        self.go = threading.Event()
        self._then = then

    def __call__(self, request: RemotingCommand) -> RemotingCommand | None:
        self.asked.set()
        assert self.go.wait(20)
        return self._then(request)


async def test_messages_are_sent_and_read(cluster: LocalCluster) -> None:
    async with (
        aio.Admin(cluster.name_server) as admin,
        aio.Producer("aio", name_server=cluster.name_server) as producer,
        aio.Reader(cluster.name_server) as reader,
    ):
        await admin.create_topic("aio", queues=3)
        sent = await asyncio.gather(*(producer.send(Message.of("aio", f"{number}")) for number in range(300)))
        (queue, *_) = await reader.queues("aio")
        batch = await producer.send([Message.of("aio", "one"), Message.of("aio", "two")], queue=queue, timeout=5.0)
        assert {one.queue for one in sent} == set(await reader.queues("aio"))
        assert batch.queue == queue
        bodies = []
        for queue in await reader.queues("aio"):
            found: list[bytes] = []
            while len(found) < await reader.max_offset(queue):
                found += [each.body for each in await reader.messages(queue, len(found), max_msgs=100)]
            bodies += found
        assert sorted(bodies) == sorted([b"%d" % number for number in range(300)] + [b"one", b"two"])
        pulled = await reader.pull(queue, 0)
        assert pulled.status is PullStatus.FOUND
        assert await admin.call(Admin.topic_config, "aio", broker="broker-a") is not None
        assert "aio" in await admin.topics()


async def test_errors_are_raised(mq: FakeCluster) -> None:
    async with aio.Producer(name_server=mq.name_server.address) as producer:
        with pytest.raises(TopicNotFoundError):
            await producer.send(Message.of("missing", "x"))
        for invalid in (5, [], [5]):
            with pytest.raises(ClientError):
                await producer.send(invalid)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="closed"):
        await producer.send(Message.of("t", "x"))


async def test_an_unresponsive_name_server_does_not_block_the_loop(mq: FakeCluster) -> None:
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    held = mq.name_server.responses[code] = Held(mq.name_server.responses[code])
    async with (
        aio.Producer(name_server=mq.name_server.address) as producer,
        aio.Reader(mq.name_server.address) as reader,
    ):
        sent = asyncio.create_task(producer.send(Message.of("t", "x")))
        pulled = asyncio.create_task(reader.pull(MessageQueue("t", "b0", 0), 0))
        await asyncio.to_thread(held.asked.wait, 20)
        assert not sent.done(), "the loop runs on"
        assert not pulled.done()
        held.go.set()
        assert (await sent).queue_offset == 7
        await asyncio.gather(pulled, return_exceptions=True)


@pytest.mark.parametrize("how", ["queue", "selector", "sharding key", "pull"])
async def test_a_queue_of_a_lost_broker_does_not_block_the_loop(mq: FakeCluster, how: str) -> None:
    code, queue = RequestCode.GET_ROUTEINFO_BY_TOPIC, MessageQueue("t", "gone", 0)
    keyed = Message("t", b"x", properties={SHARDING_KEY: "a"})
    mq.everywhere(RequestCode.PULL_MESSAGE, says(19, None, POSITION))
    less, address = mq.topics["t"], mq.brokers[0].address
    both = route({"b0": (1, 1, 6), "gone": (1, 1, 6)}, {"b0": {0: address}, "gone": {0: address}})
    mq.topics["t"] = both
    async with (
        aio.Producer(name_server=mq.name_server.address) as producer,
        aio.Reader(mq.name_server.address) as reader,
    ):
        sent = await producer.send(keyed)
        assert sent.queue.broker_name == "gone"
        assert not producer.blocking.may_block(keyed, {}), "while all brokers are there, sends stay in their order"
        assert not producer.blocking.may_block(keyed, {"queue": queue})
        assert not reader.blocking.may_block(queue)
        mq.topics["t"] = less
        await asyncio.to_thread(reader.blocking.refresh, "t")
        held = mq.name_server.responses[code] = Held(mq.name_server.responses[code])
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "queue": lambda: producer.send(Message("t", b"x"), queue=queue),
            "selector": lambda: producer.send(Message("t", b"x"), selector=lambda queues, *_: queues[-1]),
            "sharding key": lambda: producer.send(keyed),
            "pull": lambda: reader.pull(queue, 0),
        }
        work = asyncio.create_task(calls[how]())
        await asyncio.to_thread(held.asked.wait, 20)
        mq.topics["t"] = both
        held.go.set()  # a blocked loop would not get here before the request of the route fails
        assert await work


async def test_a_full_producer_does_not_block_the_loop(mq: FakeCluster) -> None:
    held = Held(says(0, ext=STORED))
    async with aio.Producer(name_server=mq.name_server.address, max_in_flight=1) as producer:
        await producer.send(Message.of("t", "the route is known from now on"))
        mq.everywhere(RequestCode.SEND_MESSAGE_V2, held)
        first, second = (asyncio.create_task(producer.send(Message.of("t", "x"), timeout=20.0)) for _ in range(2))
        await asyncio.to_thread(held.asked.wait, 20)
        assert not first.done()
        assert not second.done()
        held.go.set()
        assert (await first).queue_offset == (await second).queue_offset == 7


async def test_a_cancelled_send_is_not_withdrawn(mq: FakeCluster) -> None:
    held = Held(says(0, ext=STORED))
    async with aio.Producer(name_server=mq.name_server.address, max_in_flight=1, block_when_full=False) as producer:
        await producer.send(Message.of("t", "the route is known from now on"))
        mq.everywhere(RequestCode.SEND_MESSAGE_V2, held)
        cancelled = asyncio.create_task(producer.send(Message.of("t", "x"), timeout=20.0))
        await asyncio.to_thread(held.asked.wait, 20)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(RemotingTooMuchRequestError):
            await producer.send(Message.of("t", "y"))
        held.go.set()
    assert len([one for one in mq.brokers[0].requests if one.code == RequestCode.SEND_MESSAGE_V2]) == 2
