"""Helpers for tests of push consumers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.client.consume.listeners import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
)
from spark_rocket.client.consume.push_consumer import PushConsumer
from spark_rocket.model import Message, MessageExt
from spark_rocket.testing import LocalCluster
from tests.client.consuming import SECONDS

Consume = Callable[..., PushConsumer]
SUCCESS, AGAIN = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class RecordingListener:
    """A listener of any kind that records its messages."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.messages: list[MessageExt] = []
        self.changed = threading.Condition()
        self.result: Callable[[MessageExt], Any] = lambda _: SUCCESS

    def __call__(self, messages: list[MessageExt], _: ConsumeConcurrentlyContext) -> Any:
        result = [self.result(message) for message in messages][-1]
        self.add([message.body for message in messages], messages)
        return result

    def orderly(self, messages: list[MessageExt], _: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        self.add([message.body for message in messages], messages)
        return ConsumeOrderlyStatus.SUCCESS

    def batches(self, batch: pa.RecordBatch, _: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        self.add(batch.column("body").to_pylist(), [])
        return ConsumeOrderlyStatus.SUCCESS

    def add(self, bodies: list[bytes], messages: list[MessageExt]) -> None:
        with self.changed:
            self.bodies += bodies
            self.messages += messages
            self.changed.notify_all()

    def until(self, condition: Callable[[], object], seconds: float = 3 * SECONDS) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, seconds), f"{len(self.bodies)} bodies"

    def until_has(self, count: int) -> None:
        self.until(lambda: len(set(self.bodies)) >= count)


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def send(producer: Producer, topic: str, count: int, start: int = 0, **more: Any) -> list[bytes]:
    every = bodies(count, start)
    for body in every:
        producer.send(Message.of(topic, body, **more))
    return every


@contextmanager
def running_consumer(
    name_server: str, group: str, topic: str, listener: Any = lambda *_: SUCCESS, tags: str = "*", **settings: Any
) -> Iterator[PushConsumer]:
    """A started push consumer, from the first message. Without a listener it accepts all messages."""
    usual: dict[str, Any] = {"consume_from_where": FIRST, "name_server": name_server}
    with PushConsumer(group, listener, **usual | settings) as consumer:
        consumer.subscribe(topic, tags)
        consumer.start()
        yield consumer


def committed(cluster: LocalCluster, group: str, topic: str) -> int:
    with Reader(cluster.name_server, instance_name="look") as reader:
        return sum(reader.committed_offset(group, queue) or 0 for queue in reader.queues(topic))


def wait_for_shares(members: list[PushConsumer], topic: str, queues: int, seconds: float = 25.0) -> None:
    """Wait until every queue has exactly one owner and all members have their share, without triggering a rebalance."""
    settled = threading.Event()
    fair = {queues // len(members), -(-queues // len(members))}
    for _ in range(int(seconds / 0.05)):
        shares = [{one.queue for one in member.process_queues() if not one.dropped} for member in members]
        shares = [{queue for queue in share if queue.topic == topic} for share in shares]
        owned = Counter(queue for share in shares for queue in share)
        if len(owned) == queues and set(owned.values()) == {1} and {len(share) for share in shares} <= fair:
            return
        settled.wait(0.05)
    pytest.fail(f"no rest: {[len(share) for share in shares]}")
