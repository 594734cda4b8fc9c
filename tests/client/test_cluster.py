"""The whole client against the package's own name server and broker."""

from __future__ import annotations

from itertools import count

import pytest

from spark_rocket.client import Admin, Producer, PullStatus, Reader
from spark_rocket.errors import QueueNotFoundError
from spark_rocket.model import Message, MessageQueue, SendStatus

pytestmark = pytest.mark.live

QUEUES = 2
_numbers = count()


def test_sent_messages_are_read(topic: str, producer: Producer, reader: Reader) -> None:
    queue = reader.queues(topic)[1]
    sent = [
        producer.send(Message.of(topic, "grüße", tags="A", keys="k", properties={"x": "y"}, flag=3), queue=queue),
        producer.send_async(Message.of(topic, "z" * 10_000), queue=queue).result(10),
        producer.send([Message.of(topic, f"b{i}", tags="B") for i in range(3)], queue=queue),
    ]
    assert [result.queue_offset for result in sent] == [0, 1, 2]
    assert {result.status for result in sent} == {SendStatus.SEND_OK}
    found = reader.messages(queue, 0)
    assert [message.body for message in found] == ["grüße".encode(), b"z" * 10_000, b"b0", b"b1", b"b2"]
    assert [message.queue_offset for message in found] == [0, 1, 2, 3, 4]
    assert (found[0].tags, found[0].keys, found[0].properties["x"], found[0].flag) == ("A", "k", "y", 3)
    assert [message.msg_id for message in found[:2]] == [sent[0].msg_id, sent[1].msg_id]
    assert ",".join(message.msg_id for message in found[2:]) == sent[2].msg_id
    assert found[1].sys_flag & 1, "it went over the wire compressed"
    assert [message.body for message in reader.messages(queue, 0, tags="A || C")] == ["grüße".encode()]
    assert (reader.min_offset(queue), reader.max_offset(queue)) == (0, 5)
    assert reader.pull(queue, 5).status is PullStatus.NO_NEW_MSG
    assert reader.pull(queue, 9).status is PullStatus.OFFSET_ILLEGAL


def test_a_held_pull_returns_a_new_message(topic: str, producer: Producer, reader: Reader) -> None:
    queue = reader.queues(topic)[0]
    held = reader.pull_async(queue, 0, suspend_ms=20_000)
    assert not held.done()
    producer.send(Message.of(topic, "late"), queue=queue)
    assert held.result(10).status is PullStatus.FOUND
    assert reader.pull(queue, 1, suspend_ms=50).status is PullStatus.NO_NEW_MSG


def test_sending_creates_a_topic(producer: Producer, reader: Reader, admin: Admin) -> None:
    name = f"created-{next(_numbers)}"
    result = producer.send(Message.of(name, "first"))
    admin._wait_for_route(name, {result.queue.broker_name: (4, 4)})
    assert len(reader.queues(name)) == 4
    assert [m.body for m in reader.messages(result.queue, 0)] == [b"first"]


def test_missing_queues(topic: str, producer: Producer, reader: Reader) -> None:
    queue = reader.queues(topic)[0]
    with pytest.raises(QueueNotFoundError, match="queueId"):
        reader.pull(MessageQueue(topic, queue.broker_name, 99), 0)
    with pytest.raises(QueueNotFoundError, match="queueId"):
        producer.send(Message.of(topic, "x"), queue=MessageQueue(topic, queue.broker_name, 99))
    with pytest.raises(QueueNotFoundError, match="no-such-broker"):
        reader.max_offset(MessageQueue(topic, "no-such-broker", 0))


def test_state_and_settings(admin: Admin, producer: Producer, topic: str) -> None:
    (broker,) = admin.cluster_info().broker_addr_table
    assert admin.runtime_info(broker)["msgPutTotalTodayNow"]
    assert admin.broker_config(broker)["brokerName"] == broker
    admin.put_kv_config("space", "key", "value")
    assert admin.kv_configs("space") == {"key": "value"}
    admin.delete_kv_config("space", "key")
    assert admin.get_kv_config("space", "key") is None
    assert admin.wipe_write_perm(broker) > 0
    assert not [queues for queues in admin.topic_route(topic).queue_datas if queues.writable]
    assert admin.add_write_perm(broker) > 0
    assert [queues for queues in admin.topic_route(topic).queue_datas if queues.writable]
