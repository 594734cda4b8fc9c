"""Push consumers against the local broker: consumption, and sharing of queues."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.client import Producer
from spark_rocket.client.consume.listeners import (
    ConsumeConcurrentlyContext,
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageModel,
)
from spark_rocket.client.core.lifecycle import ServiceState
from spark_rocket.errors import StateError
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.testing import LocalCluster
from tests.client.consuming import SECONDS
from tests.client.pushing import AGAIN, SUCCESS, Consume, RecordingListener, bodies, committed, send

pytestmark = pytest.mark.live

# --- consumed messages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["listener", "orderly", "batches"])
def test_all_messages_are_consumed_and_committed(
    kind: str, cluster: LocalCluster, producer: Producer, group: str, topic: str, consumer: Consume
) -> None:
    every = send(producer, topic, 50)
    seen = RecordingListener()
    one = consumer(**{kind: seen if kind == "listener" else getattr(seen, kind)})
    one.subscribe(topic)
    assert one.state is ServiceState.CREATE_JUST
    one.start()
    assert one.state is ServiceState.RUNNING
    seen.until_has(50)
    every += send(producer, topic, 10, 50)  # these arrive by long poll
    seen.until_has(60)
    one.close()
    assert one.state is ServiceState.SHUTDOWN_ALREADY
    assert Counter(seen.bodies) == Counter(every)
    assert committed(cluster, group, topic) == 60
    with pytest.raises(StateError):
        one.start()


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
def test_start_offset_of_a_group(where: ConsumeFromWhere, producer: Producer, topic: str, consume: Consume) -> None:
    send(producer, topic, 8)
    seen = RecordingListener()
    consume(topic, seen, consume_from_where=where, consume_timestamp_ms=1)
    late = send(producer, topic, 8, 8)
    old = [] if where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET else bodies(8)
    # a broker that still has a queue's first message returns 0 for one without an offset, as Apache's does
    seen.until(lambda: set(seen.bodies) >= {*late, *old})


def test_tags_with_equal_hashes_are_filtered_by_the_client(producer: Producer, topic: str, consume: Consume) -> None:
    seen = RecordingListener()
    consume(topic, seen, tags="AaAa || b")
    for tag in ("AaAa", "BBBB", "AaBB", "b", "c"):  # the first three have the same hash
        producer.send(Message.of(topic, tag, tags=tag))
    producer.send(Message.of(topic, "none"))
    producer.send(Message.of(topic, "b", tags="b"))
    seen.until(lambda: len(seen.bodies) == 3)
    assert sorted(seen.bodies) == [b"AaAa", b"b", b"b"]


def test_subscriptions_change_while_running(
    cluster: LocalCluster, producer: Producer, topic: str, consume: Consume, group: str
) -> None:
    other = cluster.create_topic("other" + group, 2)
    seen = RecordingListener()
    one = consume(topic, seen, tags="a")
    one.subscribe(other)
    producer.send(Message.of(other, "of other"))
    seen.until(lambda: b"of other" in seen.bodies)
    one.unsubscribe(other)
    producer.send(Message.of(other, "not seen"))
    assert not one.offsets(other)
    producer.send(Message.of(topic, "x", tags="a"))
    seen.until(lambda: b"x" in seen.bodies)
    assert b"not seen" not in seen.bodies


def test_a_changed_subscription_does_not_wait_for_a_long_poll(
    cluster: LocalCluster,
    producer: Producer,
    topic: str,
    consume: Consume,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spark_rocket.client.consume.puller.SUSPEND_MS", 3_600_000)
    seen = RecordingListener()
    one = consume(topic, seen, tags="a")
    send(producer, topic, 4, tags="a")
    seen.until_has(4)
    send(producer, topic, 4, 4, tags="b")
    one.subscribe(topic, "a || b")
    send(producer, topic, 4, 8, tags="b")
    seen.until(lambda: {b"8", b"9", b"10", b"11"} <= set(seen.bodies))


def test_a_missing_topic_is_awaited(cluster: LocalCluster, producer: Producer, group: str, consume: Consume) -> None:
    seen = RecordingListener()
    one = consume("soon" + group, seen, consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    topic = cluster.create_topic("soon" + group, 1)
    producer.send(Message.of(topic, "here"))
    one.instance().members.rebalance_soon()  # 20 s sooner
    seen.until_has(1)
    cluster.create_topic(topic, 2)  # two queues now
    producer.send(Message.of(topic, "there"), queue=MessageQueue(topic, "broker-a", 1))
    one.instance().routes.refresh(topic)
    one.instance().members.rebalance_soon()
    seen.until_has(2)


def test_filter_hooks_select_messages(producer: Producer, topic: str, consumer: Consume) -> None:
    seen = RecordingListener()
    one = consumer(seen)
    one.hooks.filter.append(lambda _, messages: [message for message in messages if message.body != b"3"])
    one.subscribe(topic)
    one.start()
    send(producer, topic, 6)
    seen.until_has(5)
    assert b"3" not in seen.bodies


def test_a_suspended_consumer_pulls_nothing(
    producer: Producer, topic: str, consumer: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_rocket.client.consume.puller.PAUSED_DELAY_S", 0.05)
    seen = RecordingListener()
    one = consumer(seen)
    one.subscribe(topic)
    one.suspend()
    one.start()
    send(producer, topic, 4)
    assert seen.bodies == []
    one.resume()
    seen.until_has(4)


def test_an_sql_expression_selects_messages(group: str, consumer: Consume) -> None:
    with LocalCluster(in_process=True, config={"enablePropertyFilter": True}) as cluster:
        topic, seen = cluster.create_topic("t", 2), RecordingListener()
        one = consumer(seen, name_server=cluster.name_server)
        one.subscribe(topic, sql="size > 3 AND colour IN ('red', 'blue')")
        one.start()
        with Producer("p", name_server=cluster.name_server) as producer:
            for size in range(6):
                for colour in ("red", "green", "blue"):
                    properties = {"size": str(size), "colour": colour}
                    producer.send(Message.of(topic, f"{size}{colour}", properties=properties))
        seen.until_has(4)
        assert sorted(seen.bodies) == [b"4blue", b"4red", b"5blue", b"5red"]
        one.close()


# --- unconsumed messages --------------------------------------------------------------------------------------------


def test_a_failed_message_is_redelivered_from_the_retry_topic(
    producer: Producer, topic: str, consume: Consume, group: str
) -> None:
    seen = RecordingListener()

    def result(message: MessageExt) -> Any:
        return SUCCESS if message.reconsume_times else AGAIN

    def listener(messages: list[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
        context.delay_level_when_next_consume = 1
        return seen(messages, context)

    seen.result = result
    consume(topic, listener)
    producer.send(Message.of(topic, "once more", tags="t", keys="k"))
    seen.until(lambda: len(seen.bodies) == 2)
    again = seen.messages[1]
    assert (again.topic, again.reconsume_times, again.tags, again.keys) == (topic, 1, "t", "k")
    assert again.properties["RETRY_TOPIC"] == topic
    assert again.msg_id == seen.messages[0].msg_id


def test_broadcasting_delivers_to_each_member_with_local_offsets(
    producer: Producer,
    topic: str,
    consume: Consume,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR", str(tmp_path))
    every = send(producer, topic, 10)
    both = [RecordingListener(), RecordingListener()]
    for number, seen in enumerate(both):
        one = consume(topic, seen, message_model=MessageModel.BROADCASTING, instance_name=f"i{number}")
    for seen in both:
        seen.until_has(10)
        assert sorted(seen.bodies) == sorted(every)
    one.close()
    send(producer, topic, 3, 10)
    seen = RecordingListener()
    consume(topic, seen, message_model=MessageModel.BROADCASTING, instance_name="i1")
    seen.until_has(3)
    assert sorted(seen.bodies) == bodies(3, 10)


# --- members --------------------------------------------------------------------------------------------------------


def test_a_listener_receives_the_assigned_queues(
    cluster: LocalCluster, topic: str, consume: Consume, group: str
) -> None:
    changes: list[tuple[str, int, list[int]]] = []
    changed = threading.Condition()

    def note(topic: str, every: list[MessageQueue], mine: list[MessageQueue]) -> None:
        with changed:
            changes.append((topic, len(every), [queue.queue_id for queue in mine]))
            changed.notify_all()
        raise ValueError("a listener's mistake is its own")

    consume(topic, RecordingListener(), message_queue_listener=note, instance_name="a")
    two = consume(topic, RecordingListener(), instance_name="b")
    with changed:
        half = (topic, 4, [0, 1]), (topic, 4, [2, 3])
        assert changed.wait_for(lambda: half[0] in changes or half[1] in changes, 3 * SECONDS)
    two.close()
    with changed:
        assert changed.wait_for(lambda: changes.count((topic, 4, [0, 1, 2, 3])) == 2, 3 * SECONDS)
    assert {name for name, *_ in changes} <= {topic, f"%RETRY%{group}"}


def test_order_is_kept_when_a_queue_moves(
    cluster: LocalCluster, producer: Producer, group: str, consume: Consume
) -> None:
    topic = cluster.create_topic("one" + group, 1)
    send(producer, topic, 20)
    every, inside, lock = list[bytes](), list[str](), threading.Lock()
    began, go = threading.Event(), threading.Event()
    ended = threading.Semaphore(0)

    def listener(name: str) -> Callable[..., ConsumeOrderlyStatus]:
        def consume(messages: list[MessageExt], _: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
            with lock:
                assert not inside, "two owners at once"
                inside.append(name)
            if messages[0].body == b"5" and not go.is_set():
                began.set()
                assert go.wait(3 * SECONDS)
            with lock:
                every.append(messages[0].body)
                inside.clear()
            ended.release()
            return ConsumeOrderlyStatus.SUCCESS

        return consume

    # of one queue, the member that sorts first has all
    last = consume(topic, orderly=listener("z"), instance_name="z")
    assert began.wait(SECONDS)
    first = consume(topic, orderly=listener("a"), instance_name="a")
    for _ in range(200):  # the old owner has released the queue, its call continues
        if not last.offsets(topic):
            break
        last.instance().members.rebalance()
    first.rebalance()
    assert len(every) == 5
    go.set()
    for _ in range(20):
        assert ended.acquire(timeout=3 * SECONDS)
    assert every == bodies(20)
    assert inside == []
