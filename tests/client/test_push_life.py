"""Push consumers: failed starts, invalid calls, and closing."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import Any

import pytest

from spark_rocket.client import Producer
from spark_rocket.client.consume.listeners import (
    ConsumeOrderlyStatus,
)
from spark_rocket.client.consume.push_consumer import PushConsumer
from spark_rocket.client.core.lifecycle import ServiceState
from spark_rocket.errors import ClientError, GroupInUseError, RocketError, StateError, SubscriptionRefusedError
from spark_rocket.model import MessageExt
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.testing import LocalCluster
from tests.client.consuming import SECONDS
from tests.client.pushing import SUCCESS, Consume, RecordingListener, committed, send
from tests.kit.waiting import until

pytestmark = pytest.mark.live


def test_a_group_is_consumed_once_per_instance(topic: str, consumer: Consume) -> None:
    first, second = consumer(RecordingListener()), consumer(RecordingListener())
    first.subscribe(topic)
    first.start()
    second.subscribe(topic)
    before = threading.active_count()
    with pytest.raises(GroupInUseError):
        second.start()
    assert second.state is ServiceState.START_FAILED
    until(lambda: threading.active_count() <= before)
    with pytest.raises(StateError, match="started"):
        second.start()
    assert first.state is ServiceState.RUNNING
    with pytest.raises(StateError, match="already started"):
        first.start()


def test_without_a_name_server_starting_fails_with_the_reason(nobody: str, consumer: Consume) -> None:
    one = consumer(RecordingListener(), name_server=nobody)
    one.subscribe("t")
    with pytest.raises(RocketError, match=nobody):
        one.start()
    assert one.state is ServiceState.START_FAILED


def test_a_consumer_without_a_subscription_logs_a_warning(consumer: Consume, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        consumer(RecordingListener()).start()
    assert "started without a subscription" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": "not a group!"},
        {"group": ""},
        {"group": 5},
        {"consume_threads": 0},
        {"consume_message_batch_max_size": 1025},
        {"pull_batch_size": 0},
        {"pull_batch_size": 1025},
        {"pull_batch_size_in_bytes": 0},
        {"pull_interval": -1},
        {"pull_threshold_for_topic": 0},
        {"pull_threshold_size_for_topic_mib": -2},
        {"pull_threshold_for_queue": 0},
        {"pull_threshold_size_for_queue_mib": 1025},
        {"consume_concurrently_max_span": 0},
        {"orderly": lambda *_: None},
        {"listener": None},
    ],
)
def test_invalid_settings(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"group": "g", "listener": RecordingListener(), "name_server": "127.0.0.1:1"}
    with pytest.raises(ClientError):
        PushConsumer(**right | wrong)


@pytest.mark.parametrize("topic", ["", "no topic!", "x" * 200, 5, b"t"])
def test_invalid_topics(topic: Any, consumer: Consume) -> None:
    with pytest.raises(ClientError):
        consumer(RecordingListener()).subscribe(topic)


def test_an_invalid_expression(consumer: Consume) -> None:
    one = consumer(RecordingListener())
    with pytest.raises(SubscriptionRefusedError, match="Invalid SQL92 expression 'a >'") as caught:
        one.subscribe("t", sql="a >")
    assert caught.value.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "t" not in one.topics()


def test_close_waits_for_the_listener_and_commits(
    cluster: LocalCluster, producer: Producer, topic: str, group: str, consume: Consume
) -> None:
    began, go, seen = threading.Event(), threading.Event(), RecordingListener()

    def result(_: MessageExt) -> Any:
        began.set()
        assert go.wait(SECONDS)
        return SUCCESS

    seen.result = result
    one = consume(topic, seen, consume_threads=1)
    send(producer, topic, 2)
    assert began.wait(SECONDS)
    closer = threading.Thread(target=one.close)
    closer.start()
    assert one._stop.wait(SECONDS)
    one.close()  # a second call from another thread does not affect the first
    assert one.state is ServiceState.RUNNING
    go.set()
    closer.join(SECONDS)
    assert not closer.is_alive()
    assert one.state is ServiceState.SHUTDOWN_ALREADY
    assert committed(cluster, group, topic) == len(seen.bodies)


def test_an_interrupted_close_still_leaves_the_group(
    producer: Producer, topic: str, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = consume(topic, RecordingListener())
    members, service = one.instance().members, one._service
    assert service is not None
    close = service.close

    def interrupted(_: float) -> None:
        close(SECONDS)
        raise KeyboardInterrupt

    monkeypatch.setattr(service, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.close()
    assert one.group not in members.consumers
    assert not one.process_queues()
    assert one.state is ServiceState.SHUTDOWN_ALREADY


@pytest.mark.parametrize("kind", ["listener", "orderly", "batches"])
def test_a_listener_may_close_its_consumer(
    kind: str, cluster: LocalCluster, producer: Producer, topic: str, consumer: Consume, group: str
) -> None:
    """The result of the listener counts, no thread waits for a lock, and a second close waits for the end."""
    calls: list[object] = []
    closed, go_on = threading.Event(), threading.Event()

    def listener(*_: object) -> object:
        calls.append(one.close())
        one.close()
        closed.set()
        assert go_on.wait(SECONDS)
        return SUCCESS if kind == "listener" else ConsumeOrderlyStatus.SUCCESS

    one = consumer(**{kind: listener}, consume_threads=1)
    one.subscribe(topic)
    first = send(producer, topic, 1)
    one.start()
    assert closed.wait(SECONDS)
    every = send(producer, topic, 8, 1) + first
    go_on.set()
    one.close()
    assert one.state is ServiceState.SHUTDOWN_ALREADY
    assert (len(calls), committed(cluster, group, topic)) == (1, 1)
    seen = RecordingListener()
    another = consumer(orderly=seen.orderly)
    another.subscribe(topic)
    another.start()  # no lock of the first is left, which would live for a minute
    seen.until_has(8)
    assert sorted(seen.bodies) == sorted(set(every) - set(first))


def test_a_process_exits_with_a_stuck_listener(cluster: LocalCluster, producer: Producer, topic: str) -> None:
    send(producer, topic, 1)
    code = """
import sys, threading
from spark_rocket.client import ConsumeFromWhere, PushConsumer
began = threading.Event()
def listener(messages, context):
    began.set()
    threading.Event().wait()
consumer = PushConsumer("endless", listener, name_server=sys.argv[1],
                        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
consumer.subscribe(sys.argv[2])
consumer.start()
assert began.wait(10)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, cluster.name_server, topic], timeout=6 * SECONDS, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
