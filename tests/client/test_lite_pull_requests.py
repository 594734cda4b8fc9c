"""Lite pull consumers: requests, and calls that are invalid before the start and after the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_rocket.client.consume.listeners import ConsumeFromWhere
from spark_rocket.client.consume.lite_pull_consumer import LitePullConsumer
from spark_rocket.client.core.lifecycle import ServiceState
from spark_rocket.errors import (
    BrokerError,
    NameServerUnreachableError,
    StateError,
)
from spark_rocket.protocol.wire.bodies.client import GetConsumerListByGroupResponseBody, HeartbeatData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.headers.pull import PullMessageRequestHeader
from tests.kit.scripted import QUEUE, FakeCluster, says, says_offset

pytestmark = pytest.mark.live

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
BROKERS = 1
WAIT = 30.0


def test_a_failed_commit_raises_an_error(mq: FakeCluster, closing: Callable[[Any], Any]) -> None:
    mq.everywhere(RequestCode.QUERY_CONSUMER_OFFSET, says_offset(3))
    mq.everywhere(RequestCode.PULL_MESSAGE, lambda _: None)
    mq.everywhere(RequestCode.UPDATE_CONSUMER_OFFSET, says(ResponseCode.SYSTEM_ERROR, "no disk"))
    consumer = closing(LitePullConsumer("g", name_server=mq.name_server.address))
    consumer.assign([QUEUE])
    consumer.start()
    with pytest.raises(BrokerError, match="no disk"):
        consumer.commit()
    assert consumer.poll(0.01) == [], "a silent broker does not delay a poll"
    assert RequestCode.HEART_BEAT not in mq.brokers[0].codes(), "the group's members are not notified"


def test_requests_of_a_consumer(mq: FakeCluster, closing: Callable[[Any], Any]) -> None:
    (broker,) = mq.brokers
    consumer = closing(LitePullConsumer("g", name_server=mq.name_server.address, consume_from_where=FIRST))
    consumer.subscribe("t", "b || a")
    members = GetConsumerListByGroupResponseBody([consumer.instance().client_id])
    mq.everywhere(RequestCode.GET_CONSUMER_LIST_BY_GROUP, says(0, body=members.to_json()))
    mq.everywhere(RequestCode.QUERY_CONSUMER_OFFSET, says(ResponseCode.QUERY_NOT_FOUND))
    mq.everywhere(RequestCode.GET_MIN_OFFSET, says_offset(7))
    mq.everywhere(RequestCode.PULL_MESSAGE, lambda _: None)
    mq.everywhere(RequestCode.UPDATE_CONSUMER_OFFSET, says(0))
    consumer.start()
    while RequestCode.PULL_MESSAGE not in broker.codes():
        assert broker.arrived.acquire(timeout=WAIT)
    consumer.close()
    told = {request.code: request for request in broker.requests}
    (data,) = HeartbeatData.from_json(told[RequestCode.HEART_BEAT].body).consumer_data_set
    assert (data.group_name, data.consume_type, data.message_model) == ("g", "CONSUME_ACTIVELY", "CLUSTERING")
    assert data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert [sorted(sub.tags_set) for sub in data.subscription_data_set] == [["a", "b"]]
    pull = PullMessageRequestHeader.from_ext(told[RequestCode.PULL_MESSAGE].ext_fields)
    assert (pull.consumer_group, pull.topic, pull.queue_id, pull.queue_offset) == ("g", "t", 0, 7)
    assert (pull.max_msg_nums, pull.subscription, pull.expression_type) == (10, "b || a", "TAG")
    assert pull.sys_flag == 2 | 4, "held until there is something, with its subscription, without a commit"
    commit = told[RequestCode.UPDATE_CONSUMER_OFFSET].ext_fields
    assert (commit["consumerGroup"], commit["queueId"], commit["commitOffset"]) == ("g", "0", "7")
    assert told[RequestCode.UNREGISTER_CLIENT].ext_fields["consumerGroup"] == "g"


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.poll(),
        lambda consumer: consumer.poll_batches(),
        lambda consumer: next(iter(consumer)),
        lambda consumer: consumer.__aiter__(),
        lambda consumer: consumer.seek(QUEUE, 0),
        lambda consumer: consumer.seek_to_begin(QUEUE),
        lambda consumer: consumer.seek_to_timestamp("t", 0),
        lambda consumer: consumer.pause([QUEUE]),
        lambda consumer: consumer.resume([QUEUE]),
        lambda consumer: consumer.commit(),
        lambda consumer: consumer.commit_offsets({QUEUE: 1}),
        lambda consumer: consumer.committed(QUEUE),
        lambda consumer: consumer.fetch_message_queues("t"),
        lambda consumer: consumer.offset_for_timestamp(QUEUE, 0),
    ],
)
def test_calls_before_the_start_and_after_the_end(call: Callable[[LitePullConsumer], object], nobody: str) -> None:
    consumer = LitePullConsumer("g", name_server=nobody)
    consumer.subscribe("t")
    assert consumer.state is ServiceState.CREATE_JUST
    with pytest.raises(StateError, match="not started"):
        call(consumer)
    consumer.close()
    with pytest.raises(StateError, match="closed"):
        call(consumer)
    with pytest.raises(StateError, match="closed"):
        consumer.start()


def test_a_failed_start_is_final(nobody: str) -> None:
    consumer = LitePullConsumer("g", name_server=nobody)
    consumer.subscribe("t")
    with pytest.raises(NameServerUnreachableError):
        consumer.start()
    assert consumer.state is ServiceState.START_FAILED
    with pytest.raises(StateError):
        consumer.start()
    with pytest.raises(StateError):
        consumer.poll(0)
    consumer.close()
