"""Pulls, offsets, and exact searches by time for any hint of the broker."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_rocket.client import Admin, PullStatus, Reader, aio
from spark_rocket.client.consume.pull import pull_seconds
from spark_rocket.errors import (
    BrokerError,
    ClientError,
    ProtocolError,
    QueueNotFoundError,
    RemotingConnectError,
    RemotingTimeoutError,
    TopicNotFoundError,
)
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.pull import PullMessageRequestHeader
from tests.kit.scripted import QUEUE, FakeCluster, record, route, says, says_offset, undecodable

pytestmark = pytest.mark.live

BROKERS, QUEUES = 1, 2
PULL = RequestCode.PULL_MESSAGE
PULLS: list[Callable[..., Any]] = [
    lambda reader, *args, **options: reader.pull(*args, **options),
    lambda reader, *args, **options: reader.pull_async(*args, **options).result(10),
]


def position(next_offset: int, least: int = 0, most: int = 100) -> dict[str, str]:
    numbers = {"nextBeginOffset": next_offset, "minOffset": least, "maxOffset": most, "suggestWhichBrokerId": 0}
    return {name: str(number) for name, number in numbers.items()}


@pytest.fixture
def reader(mq: FakeCluster, closing: Callable[[Reader], Reader]) -> Reader:
    return closing(Reader(mq.name_server.address))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, PullStatus.FOUND),
        (19, PullStatus.NO_NEW_MSG),
        (20, PullStatus.NO_MATCHED_MSG),
        (21, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_the_result_of_a_pull(mq: FakeCluster, reader: Reader, code: int, status: PullStatus) -> None:
    body = record(5) + record(6)
    mq.everywhere(PULL, says(code, "remark", position(7, 2, 9), body))
    for pull in PULLS:
        found = pull(reader, QUEUE, 5)
        assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (status, 7, 2, 9)
        assert isinstance(found.records, memoryview)
        assert bytes(found.records) == (body if code == 0 else b"")


def test_the_request_of_a_pull(mq: FakeCluster, reader: Reader) -> None:
    mq.everywhere(PULL, says(19, None, position(5)))
    reader.pull(QUEUE, 5, max_msgs=32_768, max_bytes=1 << 22, tags="A || B")
    reader.pull(QUEUE, 5, suspend_ms=20)
    big, suspended = (PullMessageRequestHeader.from_ext(request.ext_fields) for request in mq.brokers[0].requests)
    assert (big.topic, big.queue_id, big.queue_offset) == ("t", 0, 5)
    assert (big.max_msg_nums, big.max_msg_bytes) == (32_768, 1 << 22)
    assert (big.subscription, big.expression_type, big.sub_version, big.commit_offset) == ("A || B", "TAG", 0, 0)
    assert (big.sys_flag, big.suspend_timeout_millis) == (4, 0)
    assert big.consumer_group == "spark_rocket_reader"
    assert (suspended.sys_flag, suspended.suspend_timeout_millis) == (6, 20)
    assert (suspended.subscription, suspended.max_msg_nums, suspended.max_msg_bytes) == ("*", 32, None)


def test_the_timeout_is_added_to_the_suspension(mq: FakeCluster, reader: Reader) -> None:
    mq.everywhere(PULL, lambda request: None)
    for pull in PULLS:
        with pytest.raises(RemotingTimeoutError) as caught:
            pull(reader, QUEUE, 0, timeout=0.1)
        assert caught.value.retriable
    assert pull_seconds({"suspend_ms": 15_000, "timeout": 3.0}, 5.0) == 28.0
    assert pull_seconds({"suspend_ms": 15_000}, 5.0) == 30.0
    assert pull_seconds({}, 5.0) == 5.0


@pytest.mark.parametrize(
    ("code", "error", "retriable"),
    [
        (2, BrokerError, True),
        (14, BrokerError, True),
        (16, BrokerError, False),
        (17, TopicNotFoundError, False),
        (24, BrokerError, False),
        (26, BrokerError, False),
        (1, QueueNotFoundError, False),
        (29, QueueNotFoundError, False),
    ],
)
def test_refused_pulls(mq: FakeCluster, reader: Reader, code: int, error: type[BrokerError], retriable: bool) -> None:
    mq.everywhere(PULL, says(code, "queueId[7] is illegal, topic:[t]"))
    for pull in PULLS:
        with pytest.raises(error) as caught:
            pull(reader, QUEUE, 0)
        assert (type(caught.value), caught.value.retriable, caught.value.response_code) == (error, retriable, code)


def test_a_deleted_topic_is_forgotten(mq: FakeCluster, reader: Reader) -> None:
    assert reader.queues("t") == reader.write_queues("t")
    mq.everywhere(PULL, says(17, "topic[t] not exist"))
    del mq.topics["t"]
    with pytest.raises(TopicNotFoundError):
        reader.pull(QUEUE, 0)
    with pytest.raises(TopicNotFoundError):
        reader.queues("t")


def test_new_queues_are_seen_on_request(mq: FakeCluster, reader: Reader) -> None:
    assert len(reader.queues("t")) == 2
    mq.add("t", queues=5)
    assert len(reader.queues("t")) == 2
    assert len(reader.refresh("t")) == 5


def test_the_end_of_a_slave_is_not_used(fake: Callable[..., FakeCluster], closing: Callable[[Reader], Reader]) -> None:
    cluster = fake(2)
    master, slave = cluster.brokers
    cluster.topics["t"] = route({"b0": (1, 1, 6)}, {"b0": {0: master.address, 1: slave.address}})
    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
        slave.responses[code] = says_offset(5)
    slave.responses[PULL] = says(19, None, position(5, most=5))
    reader = closing(Reader(cluster.name_server.address))
    master.close()
    questions = (reader.min_offset, reader.max_offset, lambda queue: reader.offset_for_time(queue, 1))
    for ask in questions:
        for _ in range(2):  # the second time the master is known to be unavailable
            with pytest.raises(RemotingConnectError):
                ask(QUEUE)
    assert slave.requests == []
    with pytest.raises(QueueNotFoundError) as caught:
        reader.store_time(QUEUE, 9)
    assert caught.value.retriable
    with pytest.raises(RemotingConnectError):
        reader.pull(QUEUE, 5)  # the slave could not serve it: retries the master
    found = reader.pull(QUEUE, 5)
    assert (found.status, found.from_master) == (PullStatus.NO_NEW_MSG, False)


def test_messages_are_decoded_and_tags_compared(mq: FakeCluster, reader: Reader) -> None:
    tags = {4: "A", 5: "A", 6: "B", 7: "A"}
    body = b"".join(record(offset, b"m%d" % offset, TAGS=tag) for offset, tag in tags.items())
    mq.everywhere(PULL, says(0, None, position(8), body))
    assert [(m.queue_offset, m.broker_name) for m in reader.messages(QUEUE, 5)] == [(5, "b0"), (6, "b0"), (7, "b0")]
    assert [m.body for m in reader.messages(QUEUE, 5, tags="A || C")] == [b"m5", b"m7"]
    mq.everywhere(PULL, says(19, None, position(8)))
    assert reader.messages(QUEUE, 8) == []
    mq.everywhere(PULL, says(0, None, position(8), body[:-1]))
    with pytest.raises(ProtocolError):
        reader.messages(QUEUE, 5)


def test_offsets(mq: FakeCluster, reader: Reader) -> None:
    mq.everywhere(RequestCode.GET_MIN_OFFSET, says_offset(3))
    mq.everywhere(RequestCode.GET_MAX_OFFSET, says_offset(30))
    mq.everywhere(RequestCode.GET_EARLIEST_MSG_STORETIME, says(0, None, {"timestamp": "1234"}))
    assert (reader.min_offset(QUEUE), reader.max_offset(QUEUE), reader.earliest_store_time(QUEUE)) == (3, 30, 1234)
    mq.everywhere(RequestCode.GET_EARLIEST_MSG_STORETIME, says(0, None, {"timestamp": "-1"}))
    assert reader.earliest_store_time(QUEUE) is None
    mq.everywhere(RequestCode.GET_EARLIEST_MSG_STORETIME, says(3, "request type 32 not supported"))  # a proxy
    assert reader.earliest_store_time_later(QUEUE).result() is None
    mq.everywhere(RequestCode.QUERY_CONSUMER_OFFSET, says_offset(12))
    assert reader.committed_offset("g", QUEUE) == 12
    mq.everywhere(RequestCode.QUERY_CONSUMER_OFFSET, says(22, "Not found, V3_0_6_SNAPSHOT maybe this group first boot"))
    assert reader.committed_offset("g", QUEUE) is None
    assert mq.brokers[0].requests[-1].ext_fields == {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": "0",
        "setZeroIfNotFound": "false",
        "bname": "b0",
    }
    reader.committed_offset("g", QUEUE, or_zero=True)  # as Java's consumers ask
    assert "setZeroIfNotFound" not in mq.brokers[0].requests[-1].ext_fields


def test_a_queue_without_messages_starts_at_0(mq: FakeCluster, reader: Reader) -> None:
    """RocksDB's consume queues say -1."""
    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
        mq.everywhere(code, says_offset(-1))
    assert (reader.min_offset(QUEUE), reader.max_offset(QUEUE)) == (0, 0)
    assert reader.offset_for_time(QUEUE, 5) == 0


def sparse(request: RemotingCommand) -> RemotingCommand:
    """Messages before 3 are deleted, those before 9 do not match at the broker, those before 12 in the client."""
    offset = int(request.ext_fields["queueOffset"])
    if offset < 3:
        answer = says(21, None, position(3))
    elif offset < 9:
        answer = says(20, None, position(min(offset + 4, 9)))
    elif offset < 12:
        answer = says(0, None, position(12), record(10, b"other", TAGS="BBBB"))
    elif offset < 14:
        answer = says(0, None, position(14), record(13, b"wanted", TAGS="AaAa"))
    else:
        answer = says(21 if offset > 14 else 19, None, position(14))
    response = answer(request)
    assert response is not None
    return response


def test_messages_before_an_undecodable_one_are_read(
    mq: FakeCluster, reader: Reader, closing: Callable[[Admin], Admin]
) -> None:
    records = [record(0, b"m0"), record(1, b"m1"), undecodable(2), record(3, b"m3")]
    mq.everywhere(PULL, says(0, None, position(4), b"".join(records)))
    assert [m.queue_offset for m in reader.messages(QUEUE, 0)] == [0, 1]
    with pytest.raises(ProtocolError, match=r"The message at offset 2: Invalid zlib"):
        reader.messages(QUEUE, 2)
    admin = closing(Admin(mq.name_server.address))
    assert [m.queue_offset for m in admin.messages_between(QUEUE, 0, 2)] == [0, 1]
    every = admin.messages_between(QUEUE, 1, 4)
    assert next(every).queue_offset == 1
    with pytest.raises(ProtocolError, match="The message at offset 2"):
        next(every)


async def test_an_async_readers_messages_are_empty_only_at_the_end_of_the_queue(mq: FakeCluster) -> None:
    mq.everywhere(PULL, sparse)
    async with aio.Reader(mq.name_server.address) as reader:
        for start in range(14):
            found, offset = [], start
            while messages := await reader.messages(QUEUE, offset, tags="AaAa"):
                found += messages
                offset = messages[-1].queue_offset + 1
            assert [(each.queue_offset, each.body) for each in found] == [(13, b"wanted")]
        assert await reader.messages(QUEUE, 99, tags="AaAa") == [], "never written"


def test_messages_are_empty_only_at_the_end_of_the_queue(mq: FakeCluster, reader: Reader) -> None:
    mq.everywhere(PULL, sparse)
    for start in range(14):
        found, offset = [], start
        while messages := reader.messages(QUEUE, offset, tags="AaAa"):
            found += messages
            offset = messages[-1].queue_offset + 1
        assert [(each.queue_offset, each.body) for each in found] == [(13, b"wanted")]
    assert reader.messages(QUEUE, 99, tags="AaAa") == [], "never written"
    pulls = [int(each.ext_fields["queueOffset"]) for each in mq.brokers[0].requests if each.code == PULL]
    assert pulls[:6] == [0, 3, 7, 9, 12, 14]


def test_commits(mq: FakeCluster, reader: Reader) -> None:
    mq.everywhere(RequestCode.UPDATE_CONSUMER_OFFSET, says(0))
    reader.commit_offset("g", QUEUE, 9)
    assert mq.brokers[0].requests[-1].ext_fields["commitOffset"] == "9"
    assert mq.brokers[0].arrived.acquire(timeout=10)
    reader.commit_offset("g", QUEUE, 10, oneway=True)
    assert mq.brokers[0].arrived.acquire(timeout=10)
    assert mq.brokers[0].requests[-1].is_oneway
    with pytest.raises(ClientError, match="-1"):
        reader.commit_offset("g", QUEUE, -1)
    mq.everywhere(RequestCode.UPDATE_CONSUMER_OFFSET, says(26, "subscription group does not exist"))
    with pytest.raises(BrokerError, match="first pull of group g for t/b0/0"):
        reader.commit_offset("g", QUEUE, 11)  # this broker serves no pulls


def test_a_commit_for_a_group_unknown_to_a_5x_broker(mq: FakeCluster, reader: Reader) -> None:
    known: set[str] = set()

    def commit(request: RemotingCommand) -> RemotingCommand:
        code = 0 if request.ext_fields["consumerGroup"] in known else 26
        return RemotingCommand.response(request, code, "subscription group does not exist")

    def pull(request: RemotingCommand) -> RemotingCommand:
        known.add(request.ext_fields["consumerGroup"])
        return RemotingCommand.response(request, 19, None, position(11, 0, 11))

    mq.everywhere(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    mq.everywhere(RequestCode.PULL_MESSAGE, pull)
    reader.commit_offset("g", QUEUE, 11)
    assert known == {"g"}
    assert mq.brokers[0].codes()[-3:] == [15, 11, 15]
    mq.everywhere(RequestCode.PULL_MESSAGE, says(26, "groups are not created by themselves here"))
    with pytest.raises(BrokerError, match="group other for t/b0/0"):
        reader.commit_offset("other", QUEUE, 11)


def time_broker(cluster: FakeCluster, times: list[int], first: int, hint: Callable[[int], int]) -> None:
    """A queue whose messages from ``first`` on were stored at ``times``, and whose search by time returns ``hint``."""
    end = first + len(times)

    def pull(request: RemotingCommand) -> RemotingCommand:
        offset = int(request.ext_fields["queueOffset"])
        if first <= offset < end:
            body = record(offset, stored=times[offset - first])
            return RemotingCommand.response(request, 0, None, position(offset + 1, first, end), body)
        return RemotingCommand.response(request, 19, None, position(offset, first, end))

    def search(request: RemotingCommand) -> RemotingCommand:
        offset = hint(int(request.ext_fields["timestamp"]))
        return RemotingCommand.response(request, 0, None, {"offset": str(offset)})

    responses: dict[int, Any] = {
        PULL: pull,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search,
        RequestCode.GET_MIN_OFFSET: says_offset(first),
        RequestCode.GET_MAX_OFFSET: says_offset(end),
    }
    for code, respond in responses.items():
        cluster.everywhere(code, respond)


@given(
    steps=st.lists(st.sampled_from([0, 0, 0, 1, 10]), max_size=40),
    first=st.integers(0, 5),
    at=st.integers(-5, 120),
    hint=st.integers(-3, 60),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_search_by_time_is_exact_for_any_hint(
    mq: FakeCluster, reader: Reader, steps: list[int], first: int, at: int, hint: int
) -> None:
    times = list(itertools.accumulate(steps))
    time_broker(mq, times, first, lambda _: hint)
    wanted = next((first + i for i, stored in enumerate(times) if stored >= at), first + len(times))
    assert reader.offset_for_time(QUEUE, at) == wanted


def test_a_correct_hint_costs_two_pulls(mq: FakeCluster, reader: Reader) -> None:
    times = list(range(0, 10_000, 10))
    time_broker(mq, times, 0, lambda timestamp: -(-timestamp // 10))
    assert reader.offset_for_time(QUEUE, 5_001) == 501
    assert mq.brokers[0].codes().count(PULL) == 2
    mq.brokers[0].requests.clear()
    time_broker(mq, [7] * 1000, 0, lambda _: 999)  # an old broker returns any offset in a run of equal times
    assert reader.offset_for_time(QUEUE, 7) == 0
    assert mq.brokers[0].codes().count(PULL) < 25
