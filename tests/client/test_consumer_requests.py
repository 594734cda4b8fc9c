"""Requests from brokers to consumers, over the consumer's own connection."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.client.consume.listeners import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus
from spark_rocket.client.consume.tool_requests import stacks
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.bodies.consumer import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from spark_rocket.testing import LocalCluster
from tests.client.consuming import SECONDS, found
from tests.client.pushing import Consume, RecordingListener, committed, send

pytestmark = pytest.mark.live

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@pytest.fixture
def instance(cluster: LocalCluster, acquired: Callable[..., ClientInstance]) -> ClientInstance:
    return acquired(cluster.name_server)


def ask(instance: ClientInstance, code: RequestCode, header: Any, body: bytes = b"") -> RemotingCommand:
    request = RemotingCommand.request(code, header.to_ext(), body)
    response = instance.members.handlers[code]("a broker", request)
    assert response is not None
    return response


def test_offsets_and_running_info(cluster: LocalCluster, instance: ClientInstance, consume: Consume) -> None:
    topic, seen = cluster.create_topic("asked", 2), RecordingListener()
    consume(topic, seen, group="asked")
    with Producer("p", name_server=cluster.name_server) as producer:
        send(producer, topic, 6)
    seen.until_has(6)
    instance.members.consumers["asked"].persist_offsets()
    response = ask(
        instance,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        GetConsumerStatusRequestHeader(topic=topic, group="asked"),
    )
    offsets = GetConsumerStatusBody.from_json(response.body).message_queue_table
    assert {queue.queue_id for queue in offsets} == {0, 1}
    header = GetConsumerRunningInfoRequestHeader(
        consumer_group="asked", client_id=instance.client_id, jstack_enable=True
    )
    info = ConsumerRunningInfo.from_json(ask(instance, RequestCode.GET_CONSUMER_RUNNING_INFO, header).body)
    assert {queue for queue in info.mq_table if queue.topic == topic} == set(offsets)
    assert {data.topic for data in info.subscription_set} == {topic, "%RETRY%asked"}
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert info.properties["PROP_NAMESERVER_ADDR"] == cluster.name_server
    assert "rocket-consume-0" in (info.jstack or "")
    assert "test_where_it_is" in stacks()


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            GetConsumerRunningInfoRequestHeader(consumer_group="missing", client_id="x"),
        ),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyResultRequestHeader(consumer_group="missing")),
    ],
)
def test_an_unknown_group(
    cluster: LocalCluster, instance: ClientInstance, consume: Consume, code: RequestCode, header: Any
) -> None:
    consume(cluster.create_topic("asked", 2), group="other")
    response = ask(instance, code, header)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "missing" in (response.remark or "")


def _fail(*_: object) -> Any:
    raise KeyError("mine")


@pytest.mark.parametrize(
    ("kind", "listener", "result"),
    [
        ("listener", lambda *_: SUCCESS, "CR_SUCCESS"),
        ("listener", lambda *_: ConsumeConcurrentlyStatus.RECONSUME_LATER, "CR_LATER"),
        ("listener", lambda *_: None, "CR_RETURN_NULL"),
        ("listener", _fail, "CR_THROW_EXCEPTION"),
        ("orderly", lambda *_: ConsumeOrderlyStatus.SUCCESS, "CR_SUCCESS"),
        ("orderly", lambda *_: ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, "CR_LATER"),
        ("batches", lambda *_: ConsumeOrderlyStatus.SUCCESS, "CR_SUCCESS"),
    ],
)
def test_one_message_is_consumed_directly(
    cluster: LocalCluster,
    instance: ClientInstance,
    consume: Consume,
    kind: str,
    listener: Callable[..., Any],
    result: str,
) -> None:
    given: list[list[MessageExt] | pa.RecordBatch] = []

    def listen(what: Any, context: Any) -> Any:
        given.append(what)
        assert context.message_queue == MessageQueue("t", "b", 0)
        return listener(what, context)

    consume(cluster.create_topic("empty", 1), group="direct", **{kind: listen})
    response = ask(
        instance,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        ConsumeMessageDirectlyResultRequestHeader(consumer_group="direct", broker_name="b", msg_id="x"),
        bytes(found([7]).records),
    )
    told = ConsumeMessageDirectlyResult.from_json(response.body)
    assert told.consume_result == result
    assert told.order is (result in ("CR_SUCCESS", "CR_LATER") and kind != "listener")
    assert (told.remark == "KeyError: 'mine'") is (result == "CR_THROW_EXCEPTION")
    assert len(given) == 1
    assert len(given[0]) == 1


@pytest.mark.parametrize("orderly", [False, True])
def test_offsets_are_reset(
    cluster: LocalCluster,
    instance: ClientInstance,
    consume: Consume,
    closing: Callable[[Reader], Reader],
    orderly: bool,
) -> None:
    group = f"reset{orderly}"
    topic, seen = cluster.create_topic(group, 1), RecordingListener()
    one = consume(topic, group=group, **{"orderly": seen.orderly} if orderly else {"listener": seen})
    with Producer("p", name_server=cluster.name_server) as producer:
        send(producer, topic, 6)
    seen.until_has(6)
    reader = closing(Reader(cluster.name_server))
    (queue,) = reader.queues(topic)
    elsewhere = MessageQueue(topic, "not ours", 0)
    request = RemotingCommand.request(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        ResetOffsetRequestHeader(topic=topic, group=group, timestamp=1, is_force=True).to_ext(),
        ResetOffsetBody({queue: 4, elsewhere: 1}).to_json(),
        oneway=True,
    )
    handle = instance.members.handlers[RequestCode.RESET_CONSUMER_CLIENT_OFFSET]
    handled: Future[object] = Future()
    # On the thread of the connection's callbacks, like a request of the broker.
    reader.pull_async(queue, 0).add_done_callback(lambda _: handled.set_result(handle("a broker", request)))
    assert handled.result(SECONDS) is None
    seen.until(lambda: len(seen.bodies) == 8)
    assert seen.bodies[6:] == [b"4", b"5"] or not orderly
    assert sorted(seen.bodies[6:]) == [b"4", b"5"]
    one.close()
    assert committed(cluster, group, topic) == 6
