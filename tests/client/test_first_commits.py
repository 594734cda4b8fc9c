"""The first commits of a group at a broker that loses those that arrive together, as Apache's does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from spark_rocket.client import Reader
from spark_rocket.client.consume.offset_store import RemoteOffsetStore
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.cluster import Cluster
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from tests.kit.scripted import FakeCluster, says, says_offset

pytestmark = pytest.mark.live

QUEUES = 8


class Offsets:
    """The offsets at one broker. A table is created when a commit finds none, and stored a moment later."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], dict[int, int]] = {}

    def commit(self, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields
        key = fields["topic"], fields["consumerGroup"]
        offset = {int(fields["queueId"]): int(fields["commitOffset"])}
        table = self.tables.get(key)
        if table is None:
            asyncio.get_running_loop().call_soon(self.tables.__setitem__, key, offset)
        else:
            table.update(offset)
        return RemotingCommand.response(request, 0)


@pytest.fixture
def stores() -> Iterator[tuple[FakeCluster, list[Offsets]]]:
    mq = FakeCluster(brokers=2)
    mq.add("t", QUEUES)
    mq.add("u", QUEUES)
    mq.everywhere(RequestCode.QUERY_CONSUMER_OFFSET, says(22, "Not found"))
    mq.everywhere(RequestCode.GET_MAX_OFFSET, says_offset(100))
    stores = [Offsets() for _ in mq.brokers]
    for broker, store in zip(mq.brokers, stores, strict=True):
        broker.responses[RequestCode.UPDATE_CONSUMER_OFFSET] = store.commit
    yield mq, stores
    mq.close()


def offsets_of(reader: Reader) -> dict[MessageQueue, int]:
    queues = reader.queues("t") + reader.queues("u")
    return {queue: number + 1 for number, queue in enumerate(queues)}


def check(stores: list[Offsets], expected: dict[MessageQueue, int]) -> None:
    found = {
        MessageQueue(topic, f"b{number}", queue_id): offset
        for number, store in enumerate(stores)
        for (topic, _), table in store.tables.items()
        for queue_id, offset in table.items()
    }
    assert found == expected


@pytest.mark.parametrize("attempt", range(10))
def test_of_a_consumer(stores: tuple[FakeCluster, list[Offsets]], attempt: int) -> None:
    mq, kept = stores
    with Reader(mq.name_server.address) as reader:
        expected = offsets_of(reader)
        assert RemoteOffsetStore(reader, f"g{attempt}").commit(expected) == {}
    check(kept, expected)


def test_of_a_stream(stores: tuple[FakeCluster, list[Offsets]]) -> None:
    mq, kept = stores
    given = {"nameServer": mq.name_server.address, "subscribe": "t", "consumerGroup": "g"}
    with Reader(mq.name_server.address) as reader:
        expected = offsets_of(reader)
    assert Cluster(parse_read_options(given, Scope.READ_STREAM)).commit_offsets("g", expected) == {}
    check(kept, expected)


def test_the_broker_loses_commits_that_arrive_together(stores: tuple[FakeCluster, list[Offsets]]) -> None:
    """So that these tests can fail."""
    mq, kept = stores
    with Reader(mq.name_server.address) as reader:
        expected = offsets_of(reader)
        pending = [reader.commit_offset_async("g", queue, offset, 20.0) for queue, offset in expected.items()]
        assert all(response.result() for response in pending)
    assert sum(len(table) for store in kept for table in store.tables.values()) < len(expected)
