"""Long loops run in steps, one large response at a time, and other requests are answered meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from spark_rocket.broker import steps
from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.broker.steps import in_steps
from spark_rocket.client import Admin
from spark_rocket.client.admin import Failures
from spark_rocket.client.admin.base import MAX_IN_FLIGHT
from spark_rocket.protocol.requests import BROKER_REQUESTS, StateLimit
from spark_rocket.protocol.requests.state import LARGE_RESPONSES
from spark_rocket.protocol.wire.bodies.client import ConsumerData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.kit.waiting import until

LARGE = [RequestCode(code) for code, limit in BROKER_REQUESTS.items() if LARGE_RESPONSES in limit.state]


def test_other_work_runs_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP_S", 0.0)
    order: list[str] = []

    async def iterate(name: str) -> None:
        async for number in in_steps(range(3)):
            ran = f"{name}{number}"
            order.append(ran)

    async def both() -> None:
        await asyncio.gather(iterate("a"), iterate("b"))

    asyncio.run(both())
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_short_loop_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP_S", 3600.0)

    async def iterate() -> list[int]:
        asyncio.get_running_loop().call_soon(pytest.fail)
        found = [number async for number in in_steps(range(1_000))]
        asyncio.get_running_loop().stop()
        return found

    loop = asyncio.new_event_loop()
    task = loop.create_task(iterate())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert task.result() == list(range(1_000))


# --- offsets ------------------------------------------------------------------------------------------------------


def test_a_snapshot_in_steps_has_offsets_that_were_valid_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP_S", 0.0)
    offsets = ConsumerOffsetManager()
    for number in range(10):
        offsets.commit("g", f"T{number}", 0, 1)

    async def change() -> None:
        offsets.remove_topic("T9")
        for number in range(9):
            await asyncio.sleep(0)
            offsets.commit("g", f"T{number}", 0, 2)
        offsets.commit("g", "new", 0, 1)

    async def both() -> dict[str, Any]:
        found, _ = await asyncio.gather(offsets.snapshot_in_steps(), change())
        return found

    table = asyncio.run(both())["offsetTable"]
    assert table.keys() == {f"T{number}@g" for number in range(9)}
    assert all(queues in ({0: 1}, {0: 2}) for queues in table.values())
    assert offsets.dirty


def test_topics_and_groups_of_offsets_are_those_of_the_table() -> None:
    numbers, offsets = random.Random(7), ConsumerOffsetManager()
    names = [f"n{number}" for number in range(5)] + ["%RETRY%n1"]
    for _ in range(3_000):
        group, topic, queue = numbers.choice(names), numbers.choice(names), numbers.randrange(3)
        match numbers.randrange(11):
            case 0:
                offsets.remove_group(group)
            case 1:
                offsets.remove_topic(topic)
            case 2:
                offsets.clone(group, numbers.choice(names), topic)
            case 3:
                offsets.reset(group, topic, queue, 5)
            case 4:
                offsets.take_reset(group, topic, queue)
            case _:
                offsets.commit(group, topic, queue, 7)
        pairs = [key.split("@") for key in offsets.table]
        assert offsets.topics_of(group) == {topic for topic, other in pairs if other == group}
        assert offsets.groups_of(topic) == {group for other, group in pairs if other == topic}
    assert offsets._count == sum(map(len, offsets.table.values()))
    for name in names:
        offsets.remove_group(name)
    assert (offsets.table, offsets._count, offsets._topics, offsets._groups) == ({}, 0, {}, {})


# --- over the wire ------------------------------------------------------------------------------------------------


@contextmanager
def large_response_running(parts: BrokerParts) -> Iterator[None]:
    """Other large responses wait until the end of the block."""
    asyncio.run_coroutine_threadsafe(parts.responses.one_large.acquire(), parts.loop).result(10)
    try:
        yield
    finally:
        parts.loop.call_soon_threadsafe(parts.responses.one_large.release)


@pytest.mark.live
def test_other_requests_are_answered_while_large_ones_wait(
    wire: Wire, parts: BrokerParts, topic: str, group: str
) -> None:
    fields = {"topic": topic, "group": group, "consumerGroup": group, "producerGroup": group, "timestamp": "0"}
    fields |= {"srcGroup": group, "destGroup": group, "isForce": "true", "queueId": "0"}
    wire.create_group(group)
    wire.beat(ConsumerData(group), producers=[group])
    with large_response_running(parts):
        waiting = {code: wire.ask_later(code, **fields) for code in LARGE}
        assert wire.ask(RequestCode.GET_ALL_DELAY_OFFSET).code == ResponseCode.SUCCESS
        assert [code.name for code, answer in waiting.items() if answer.done()] == []
    assert {code.name: answer.result(30).code for code, answer in waiting.items()} == {code.name: 0 for code in LARGE}
    assert parts.responses.large.total == 0


OFFLINE = {"consumerGroup": "unknown", "producerGroup": "unknown"}
UNKNOWN = {"topic": "Unknown", "group": "unknown", "timestamp": "0", "isForce": "true", "queueId": "0"}
NO_NUMBER = {"topicSeq": "x", "groupSeq": "x"}
#: Large requests that are refused, and the codes of the refusals.
REFUSED: dict[str, tuple[RequestCode, dict[str, str], ResponseCode]] = {
    "offline group": (RequestCode.GET_CONSUMER_CONNECTION_LIST, OFFLINE, ResponseCode.CONSUMER_NOT_ONLINE),
    "offline producers": (RequestCode.GET_PRODUCER_CONNECTION_LIST, OFFLINE, ResponseCode.SYSTEM_ERROR),
    "statistics of an unknown topic": (RequestCode.GET_TOPIC_STATS_INFO, UNKNOWN, ResponseCode.TOPIC_NOT_EXIST),
    "time span of an unknown topic": (RequestCode.QUERY_CONSUME_TIME_SPAN, UNKNOWN, ResponseCode.TOPIC_NOT_EXIST),
    "queue of an unknown topic": (RequestCode.QUERY_CONSUME_QUEUE, UNKNOWN, ResponseCode.TOPIC_NOT_EXIST),
    "reset in an unknown topic": (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, UNKNOWN, ResponseCode.TOPIC_NOT_EXIST),
    "statistics without a group": (RequestCode.GET_CONSUME_STATS, {}, ResponseCode.SYSTEM_ERROR),
    "copy without groups": (RequestCode.CLONE_GROUP_OFFSET, {}, ResponseCode.SYSTEM_ERROR),
    "page of topics": (RequestCode.GET_ALL_TOPIC_CONFIG, NO_NUMBER, ResponseCode.SYSTEM_ERROR),
    "page of groups": (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, NO_NUMBER, ResponseCode.SYSTEM_ERROR),
}


@pytest.mark.live
@pytest.mark.parametrize(("code", "fields", "refusal"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_does_not_wait_for_another_large_response(
    wire: Wire, parts: BrokerParts, code: RequestCode, fields: dict[str, str], refusal: ResponseCode
) -> None:
    with large_response_running(parts):
        answer = wire.ask(code, **fields)
        assert parts.responses.large.total == 0
    assert answer.code == refusal, answer.remark


@pytest.mark.live
def test_the_states_of_many_groups_fit_into_the_queue(cluster: LocalCluster, parts: BrokerParts) -> None:
    names, failed = [f"offline-{number}" for number in range(300)], Failures()
    with Admin(cluster.name_server) as admin, ThreadPoolExecutor(1) as other:
        with large_response_running(parts):
            states = other.submit(admin.group_states, names, failed=failed)
            until(lambda: parts.responses.large.total == MAX_IN_FLIGHT)
        assert list(states.result(60)) == names
    assert failed == {}


@pytest.mark.live
def test_too_many_large_requests_are_refused(wire: Wire, parts: BrokerParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.responses.large, "limit", StateLimit(1, None, 10, "when sent"))
    with large_response_running(parts):
        first = wire.ask_later(RequestCode.GET_ALL_TOPIC_CONFIG)
        answer = wire.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "too many large responses: at most 1 per connection" in (answer.remark or "")
    assert first.result(30).code == ResponseCode.SUCCESS
    assert wire.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).code == ResponseCode.SUCCESS
