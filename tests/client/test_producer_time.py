"""The timeout of a send, messages refused before sending, hooks, and groups."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from spark_rocket.client import Producer, ServiceState, select_by_random
from spark_rocket.client.core.hooks import SendContext, SendHook
from spark_rocket.client.core.validators import check_topic_to_send
from spark_rocket.client.send.pipeline import InFlight
from spark_rocket.errors import (
    BrokerError,
    ClientError,
    GroupInUseError,
    IllegalMessageError,
    IllegalNameError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    RocketError,
    SendForbiddenError,
    StateError,
)
from spark_rocket.model import Message, MessageQueue, SendResult, SendStatus
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.compression import decompress_body
from spark_rocket.protocol.record.properties import decode_properties
from spark_rocket.protocol.wire.bodies.client import HeartbeatData
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.event_loop import loop_thread
from tests.client.producing import HOWS, Produce, done
from tests.kit.scripted import STORED, FakeCluster, says
from tests.kit.waiting import until

pytestmark = pytest.mark.live

QUEUES = 2
SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
MESSAGE = Message.of("t", "b")


@pytest.mark.parametrize("how", HOWS)
def test_the_timeout_covers_all_attempts(mq: FakeCluster, produce: Produce, how: str) -> None:
    produce().send(MESSAGE)  # opens the connection that all producers use
    mq.everywhere(SEND, lambda request: None)
    producer = produce(send_timeout=0.3)
    with pytest.raises(RemotingTimeoutError) as caught:
        done(producer, how)
    assert caught.value.retriable
    assert len(mq.sends()) == 1 + 1, "the first attempt had all of it"
    producer = produce(send_timeout=3.0, send_msg_max_timeout_per_request=0.3)
    with pytest.raises(RemotingTimeoutError):
        done(producer, how)
    assert len(mq.sends()) == 1 + 1 + 3


@pytest.mark.parametrize("how", HOWS)
def test_the_timeout_covers_the_route_query(mq: FakeCluster, produce: Produce, how: str) -> None:
    mq.name_server.responses[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request: None
    with pytest.raises(RocketError) as caught:
        done(produce(send_timeout=0.2), how)
    assert caught.value.code == "NAME_SERVER_UNREACHABLE"
    assert caught.value.retriable


def test_a_queued_retry_ends_at_its_timeout(mq: FakeCluster, produce: Produce) -> None:
    mq.everywhere(SEND, says(ResponseCode.SYSTEM_BUSY, "busy"))
    producer = produce(send_timeout=0.3)
    producer.queues("t")
    release = threading.Event()
    producer.running().later(lambda: release.wait(30) and None)
    try:
        with pytest.raises(RemotingTimeoutError):
            producer.send_async(MESSAGE).result(20)
    finally:
        release.set()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("again", "brokers"), [(False, 1), (True, 2)])
def test_stored_but_not_replicated_or_flushed(
    mq: FakeCluster, produce: Produce, how: str, again: bool, brokers: int
) -> None:
    mq.everywhere(SEND, says(ResponseCode.FLUSH_DISK_TIMEOUT, ext=STORED))
    producer = produce(retry_another_broker_when_not_store_ok=again, retry_times_when_send_failed=1,
                       retry_times_when_send_async_failed=1)  # fmt: skip
    assert done(producer, how).status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len([broker for broker in mq.brokers if SEND in broker.codes()]) == brokers


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("failure", [ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL])
def test_a_stored_message_is_a_success_although_the_next_attempt_fails(
    mq: FakeCluster, produce: Produce, how: str, failure: ResponseCode
) -> None:
    answers = iter([says(ResponseCode.FLUSH_DISK_TIMEOUT, ext=STORED), says(failure, "no")])
    mq.everywhere(SEND, lambda request: next(answers)(request))
    producer = produce(retry_another_broker_when_not_store_ok=True, retry_times_when_send_failed=1,
                       retry_times_when_send_async_failed=1)  # fmt: skip
    assert done(producer, how).status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(mq.sends()) == 2


@pytest.mark.parametrize("how", HOWS)
def test_a_busy_broker_is_skipped(mq: FakeCluster, produce: Produce, how: str) -> None:
    """A rejected message goes to another broker; if all are busy, the error reports it and is retriable."""
    busy = says(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")
    mq.brokers[0].responses[SEND] = busy
    producer = produce()
    for _ in range(4):
        assert done(producer, how).queue.broker_name == "b1"
    mq.everywhere(SEND, busy)
    before = len(mq.sends())
    with pytest.raises(BrokerError, match="SYSTEM_BUSY") as caught:
        done(producer, how)
    assert caught.value.retriable
    assert len(mq.sends()) - before == 3


@pytest.mark.parametrize("how", HOWS)
def test_retried_response_codes_can_be_configured(mq: FakeCluster, produce: Produce, how: str) -> None:
    mq.everywhere(SEND, says(ResponseCode.SYSTEM_BUSY, "busy"))
    with pytest.raises(BrokerError):
        done(produce(retry_response_codes=[ResponseCode.SYSTEM_ERROR]), how)
    assert len(mq.sends()) == 1


def test_concurrent_failures_refresh_the_route_once(mq: FakeCluster, produce: Produce) -> None:
    producer = produce(send_timeout=20.0)
    producer.queues("t")
    mq.brokers[0].close()
    before = len(mq.name_server.requests)
    futures = [producer.send_async(MESSAGE) for _ in range(300)]
    assert {future.result(30).queue.broker_name for future in futures} == {"b1"}
    assert len(mq.name_server.requests) - before < 50


def test_slow_brokers_are_skipped(mq: FakeCluster, produce: Produce) -> None:
    mq.brokers[0].close()
    producer = produce(send_latency_fault_enable=True)
    for how in HOWS * 4:
        assert done(producer, how).queue.broker_name == "b1"
    assert not producer.faults.is_available("b0") or producer.faults.is_available("b1")


# --- which queue --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [*HOWS, "send_oneway"])
@pytest.mark.parametrize("options", [{}, {"auto_batch": True}])
def test_a_sharding_key_keeps_its_queue(mq: FakeCluster, produce: Produce, how: str, options: dict[str, bool]) -> None:
    producer = produce(**options)
    queues = producer.queues("t")
    wanted = queues[abs(java_hash("order-1")) % len(queues)]
    for _ in range(3):
        sent = getattr(producer, how)(Message.of("t", "b", sharding_key="order-1"))
        if isinstance(sent, Future):
            sent.result(20)
    index = int(wanted.broker_name[1:])
    for _ in range(3):
        assert mq.brokers[index].arrived.acquire(timeout=10)
    assert {request.ext_fields["e"] for request in mq.sends()} == {str(wanted.queue_id)}
    assert not [code for code in mq.brokers[1 - index].codes() if code in (SEND, BATCH)]


@pytest.mark.parametrize("how", HOWS)
def test_ordered_messages_are_not_moved(mq: FakeCluster, produce: Produce, how: str) -> None:
    mq.everywhere(SEND, says(ResponseCode.SYSTEM_BUSY, "busy"))
    with pytest.raises(BrokerError):
        done(produce(), how, Message.of("t", "b", sharding_key="k"))
    assert len(mq.sends()) == 1


def test_any_queue_at_random(mq: FakeCluster, produce: Produce) -> None:
    producer = produce()
    assert {select_by_random(producer.queues("t"), MESSAGE) for _ in range(200)} == set(producer.queues("t"))
    assert producer.send(MESSAGE, selector=select_by_random).queue.topic == "t"


# --- invalid messages and settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [*HOWS, "send_oneway"])
@pytest.mark.parametrize(
    ("message", "kind", "code"),
    [
        (Message("t", b""), IllegalMessageError, "ILLEGAL_MESSAGE"),
        (Message("t", None), IllegalMessageError, "ILLEGAL_MESSAGE"),  # type: ignore[arg-type]
        (Message("t", "text"), IllegalMessageError, "ILLEGAL_MESSAGE"),  # type: ignore[arg-type]
        (Message("", b"b"), IllegalNameError, "ILLEGAL_NAME"),
        (Message("a topic", b"b"), IllegalNameError, "ILLEGAL_NAME"),
        (Message("t" * 128, b"b"), IllegalNameError, "ILLEGAL_NAME"),
        (Message("RMQ_SYS_TRANS_HALF_TOPIC", b"b"), IllegalNameError, "ILLEGAL_NAME"),
    ],
)
def test_invalid_messages(
    mq: FakeCluster, produce: Produce, how: str, message: Message, kind: type[ClientError], code: str
) -> None:
    with pytest.raises(kind) as caught:
        done(produce(), how, message)
    assert (caught.value.code, caught.value.retriable) == (code, False)
    assert caught.value.remedy
    assert not mq.name_server.requests


@pytest.mark.parametrize("group", ["", " ", "a b", "g" * 256])
def test_invalid_groups(group: str) -> None:
    with pytest.raises(IllegalNameError):
        Producer(group)


def test_compression_types(mq: FakeCluster, produce: Produce) -> None:
    with pytest.raises(ClientError, match="lz4, zstd, zlib"):
        produce(compress_type="rar")
    body = b"abc" * 5000
    for kind, bits in (("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)):
        produce(compress_type=kind).send(Message("t", body))
        request = mq.sends()[-1] if len(mq.sends()) == 1 else next(
            one for one in mq.sends() if int(one.ext_fields["f"]) == bits
        )  # fmt: skip
        assert int(request.ext_fields["f"]) == bits
        assert decompress_body(request.body, bits) == body


@pytest.mark.parametrize(
    ("delay", "properties"),
    [
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({"delay_seconds": 4}, {"TIMER_DELAY_SEC": "4"}),
        ({"delay_ms": 5}, {"TIMER_DELAY_MS": "5"}),
        ({"deliver_at_ms": 6}, {"TIMER_DELIVER_MS": "6"}),
        ({"wait_store_ok": False}, {"WAIT": "false"}),
    ],
)
def test_delays_are_properties(
    mq: FakeCluster, produce: Produce, delay: dict[str, Any], properties: dict[str, str]
) -> None:
    produce().send(Message.of("t", "b", **delay))
    assert properties.items() <= decode_properties(mq.sends()[0].ext_fields["i"]).items()


def test_conflicting_delays() -> None:
    with pytest.raises(IllegalMessageError, match="'DELAY': '3'"):
        Message.of("t", "b", delay_level=3, delay_ms=1)
    with pytest.raises(IllegalMessageError):
        Message.of("t", "b", delay_ms=-1)
    with pytest.raises(IllegalMessageError, match=r"delay level 19.*from 1 to 18"):
        Message.of("t", "b", delay_level=19)


def test_valid_topic_names() -> None:
    assert check_topic_to_send("%RETRY%g") == "%RETRY%g"


# --- requests in flight -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [True, False])
def test_permits_in_flight(mq: FakeCluster, produce: Produce, block: bool) -> None:
    mq.everywhere(SEND, lambda request: None)
    producer = produce(max_in_flight=2, block_when_full=block, send_timeout=10.0)
    under_way = [producer.send_async(MESSAGE, timeout=0.5) for _ in range(2)]
    with pytest.raises(RemotingTooMuchRequestError) as caught:
        producer.send_async(MESSAGE, timeout=0.05)
    assert caught.value.retriable
    for one in under_way:
        with pytest.raises(RemotingTimeoutError):
            one.result(20)
    mq.everywhere(SEND, says(0, ext=STORED))
    assert producer.send_async(MESSAGE).result(20), "the places are free again"


def test_permits_released_one_by_one() -> None:
    """Waiting threads are woken for many permits at once, but do not miss few free ones."""
    places = InFlight(16, block=True)
    places.taken += 16
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(places.await_place, time.monotonic() + 20, lambda: True)
        loop_thread().post(lambda: places.release(1))
        waiting.result(20)
    places.taken += 1
    with pytest.raises(RemotingTooMuchRequestError, match="16"):
        places.await_place(time.monotonic() + 0.03, lambda: True)
    loop_thread().post(lambda: places.release(16))
    assert places.wait(lambda: not places.count, time.monotonic() + 20)


def test_a_send_from_a_callback(mq: FakeCluster, produce: Produce) -> None:
    producer = produce(max_in_flight=1)
    second: Future[Future[SendResult]] = Future()
    producer.send_async(MESSAGE).add_done_callback(lambda _: second.set_result(producer.send_async(MESSAGE)))
    assert second.result(20).result(20).queue_offset == 7


def test_a_callback_may_wait_for_a_send(mq: FakeCluster, produce: Produce) -> None:
    """Over the connection of its own response."""
    producer = produce()
    where = MessageQueue("t", "b0", 0)
    waited: Future[SendResult] = Future()
    sent = producer.send_async(MESSAGE, queue=where)
    sent.add_done_callback(lambda _: waited.set_result(producer.send(MESSAGE, queue=where)))
    assert waited.result(20).queue_offset == 7


def test_a_send_in_flight_cannot_be_cancelled(mq: FakeCluster, produce: Produce) -> None:
    mq.everywhere(SEND, lambda request: None)
    producer = produce(send_timeout=0.2)
    producer.queues("t")
    sent = producer.send_async(MESSAGE)
    assert not sent.cancel()
    with pytest.raises(RemotingTimeoutError):
        sent.result(20)


@pytest.mark.parametrize("auto_batch", [False, True])
def test_close_leaves_no_pending_future(mq: FakeCluster, produce: Produce, auto_batch: bool) -> None:
    producer = produce(auto_batch=auto_batch)
    futures = [producer.send_async(MESSAGE) for _ in range(50)]
    producer.close()
    assert all(future.done() for future in futures)
    assert {future.result().status for future in futures} == {SendStatus.SEND_OK}
    mq.everywhere(SEND, lambda request: None)
    mq.everywhere(BATCH, lambda request: None)
    producer = produce(auto_batch=auto_batch, send_timeout=0.2)
    futures = [producer.send_async(MESSAGE, timeout=10) for _ in range(5)]
    producer.close()
    for future in futures:
        with pytest.raises((StateError, RemotingError)):
            future.result(0)
    for how in HOWS:
        with pytest.raises(StateError, match="is closed"):
            done(producer, how)


# --- hooks ----------------------------------------------------------------------------------------------------------


class RecordingHook(SendHook):
    def __init__(self) -> None:
        self.seen: list[tuple[str, SendContext]] = []

    def before(self, context: SendContext) -> None:
        context.attributes["noted"] = True
        self.seen.append(("before", context))
        raise ValueError("a hook's own trouble")

    def after(self, context: SendContext) -> None:
        assert context.attributes["noted"]
        self.seen.append(("after", context))
        raise ValueError("a hook's own trouble")


@pytest.mark.parametrize("how", HOWS)
def test_hooks_see_every_attempt(mq: FakeCluster, produce: Produce, how: str) -> None:
    hook = RecordingHook()
    for broker in mq.brokers:
        responses = iter([says(2, "busy"), *[says(0, ext=STORED)] * 9])
        broker.responses[SEND] = lambda request, responses=responses: next(responses)(request)  # type: ignore[misc]
    result = done(produce(send_hooks=[hook]), how, MESSAGE)
    assert [when for when, _ in hook.seen] == ["before", "after"] * 3
    contexts = [context for when, context in hook.seen if when == "after"]
    assert [type(context.error) for context in contexts] == [BrokerError, BrokerError, type(None)]
    assert contexts[-1].result == result
    assert contexts[-1].queue.broker_name == result.queue.broker_name
    assert contexts[0].message is MESSAGE
    assert contexts[0].mode == ("sync" if how == "send" else "async")


@pytest.mark.parametrize("how", [*HOWS, "send_oneway"])
def test_a_hook_can_reject_a_send(mq: FakeCluster, produce: Produce, how: str) -> None:
    def forbid(context: SendContext) -> None:
        raise PermissionError(f"not to {context.queue.topic}")

    with pytest.raises(SendForbiddenError, match="not to t"):
        done(produce(forbidding_hooks=[forbid]), how)
    assert not mq.sends()


# --- groups ---------------------------------------------------------------------------------------------------------


def heartbeats(mq: FakeCluster) -> list[HeartbeatData]:
    return [
        HeartbeatData.from_json(request.body)
        for request in mq.brokers[0].requests
        if request.code == RequestCode.HEART_BEAT
    ]


def test_a_group_is_registered_at_brokers(mq: FakeCluster, produce: Produce) -> None:
    producer = produce("GID_named", member=True)
    assert producer.state is ServiceState.CREATE_JUST
    producer.send(MESSAGE)
    assert producer.state is ServiceState.RUNNING
    assert [one.group_name for one in until(lambda: heartbeats(mq))[0].producer_data_set] == ["GID_named"]
    producer.close()
    assert producer.state is ServiceState.SHUTDOWN_ALREADY
    (goodbye,) = until(lambda: [one for one in mq.brokers[0].requests if one.code == RequestCode.UNREGISTER_CLIENT])
    assert goodbye.ext_fields["producerGroup"] == "GID_named"


def test_one_producer_of_a_group_in_an_instance(mq: FakeCluster, produce: Produce) -> None:
    first = produce("GID_one", member=True)
    first.start()
    second = produce("GID_one", member=True)
    with pytest.raises(GroupInUseError, match="GID_one") as caught:
        second.send(MESSAGE)
    assert (caught.value.code, caught.value.retriable) == ("GROUP_IN_USE", False)
    assert second.state is ServiceState.START_FAILED
    with pytest.raises(StateError, match="failed to start"):
        second.send(MESSAGE)
    elsewhere = produce("GID_one", member=True, instance_name="two")
    elsewhere.start()
    first.close()
    produce("GID_one", member=True).start()


def test_the_default_group_is_not_registered(mq: FakeCluster, produce: Produce) -> None:
    producers = [produce("spark_rocket_producer", member=True) for _ in range(2)]
    for producer in producers:
        producer.send(MESSAGE)
        assert producer.running().members.producers == {}
    assert not heartbeats(mq)


def test_the_first_message_of_a_queue(mq: FakeCluster, produce: Produce) -> None:
    result = produce().send([MESSAGE], queue=MessageQueue("t", "b1", 1))
    assert result.queue == MessageQueue("t", "b1", 0), "as in the response"
