"""The whole client against the package's own name server and broker."""

from __future__ import annotations

from itertools import count

import pyarrow as pa
import pytest

from spark_rocket.client import Admin, Producer, PullStatus, Reader, split_batch
from spark_rocket.errors import BrokerError, QueueNotFoundError, RocketError, TopicNotFoundError
from spark_rocket.model import Message, MessageQueue, SendStatus
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.encoder import encode_batch, encode_properties_columns
from spark_rocket.testing import LocalCluster

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


def test_columns_round_trip(topic: str, producer: Producer, reader: Reader) -> None:
    queue = reader.queues(topic)[0]
    bodies = pa.array([f"body {i}" for i in range(2000)])
    keys = pa.array([f"k{i}" for i in range(2000)])
    body, positions = encode_batch(bodies, encode_properties_columns(2000, {"KEYS": keys}))
    cut = positions[1200]
    producer.send_batch_body(queue, body[:cut], 1200)
    assert producer.send_batch_body_async(queue, body[cut:], 800).result(10).queue_offset == 1200
    offset, batches = 0, []
    while (found := reader.pull(queue, offset, max_msgs=5000, max_bytes=1 << 22)).status is PullStatus.FOUND:
        batches.append(decode_records(found.records, ["body", "keys", "queueOffset"], broker_name="b", check_crc=True))
        offset = found.next_offset
    table = pa.Table.from_batches(batches)
    assert table.column("queueOffset").to_pylist() == list(range(2000))
    assert table.column("body").combine_chunks().cast(pa.string()).equals(bodies)
    assert table.column("keys").combine_chunks().equals(keys)


def test_many_messages_in_several_batches(topic: str, producer: Producer, reader: Reader) -> None:
    queue = reader.queues(topic)[0]
    messages = [Message.of(topic, bytes(3000)) for _ in range(3000)]
    batches = list(split_batch(messages))
    assert len(batches) == 3
    for batch in batches:
        producer.send(batch, queue=queue)
    assert reader.max_offset(queue) == 3000


def test_time_offsets_and_lag(topic: str, producer: Producer, reader: Reader, admin: Admin) -> None:
    queue = reader.queues(topic)[0]
    for i in range(20):
        producer.send(Message.of(topic, f"{i}"), queue=queue)
    times = [message.store_timestamp for message in reader.messages(queue, 0)]
    for at in {times[0] - 1, *times, times[-1] + 1}:
        wanted = next((i for i, stored in enumerate(times) if stored >= at), 20)
        assert reader.offset_for_time(queue, at) == wanted
    assert reader.earliest_store_time(queue) == times[0]
    assert reader.committed_offset("lagging", queue) is None or reader.committed_offset("lagging", queue) == 0
    reader.commit_offset("lagging", queue, 15)
    assert reader.committed_offset("lagging", queue) == 15
    assert {lag.queue: lag.lag for lag in admin.consumer_lag("lagging", topic)}[queue] == 5
    assert admin.reset_offsets("lagging", topic, times[-1] + 1)[queue] == 20
    assert admin.committed_offsets("lagging", topic)[queue] == 20
    assert admin.offsets(topic)[queue] == (0, 20)


def test_sending_creates_a_topic(producer: Producer, reader: Reader, admin: Admin) -> None:
    name = f"created-{next(_numbers)}"
    result = producer.send(Message.of(name, "first"))
    admin._wait_for_route(name, {result.queue.broker_name: (4, 4)})
    assert len(reader.queues(name)) == 4
    assert [m.body for m in reader.messages(result.queue, 0)] == [b"first"]


def test_topics_are_created_and_deleted(admin: Admin, reader: Reader) -> None:
    name = f"short-lived-{next(_numbers)}"
    with pytest.raises(TopicNotFoundError):
        reader.queues(name)
    admin.create_topic(name, queues=3)
    assert name in admin.topics()
    assert len(reader.queues(name)) == 3
    assert len(admin.topic_stats(name).offset_table) == 3
    admin.create_topic(name, queues=5)
    assert len(reader.queues(name)) == 5
    admin.delete_topic(name)
    assert name not in admin.topics()
    with pytest.raises(TopicNotFoundError):
        reader.queues(name)


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


def test_messages_are_found_by_id_and_key(admin: Admin, producer: Producer, topic: str) -> None:
    result = producer.send(Message.of(topic, "find me", keys="needle hay"))
    assert admin.view_message(result.offset_msg_id).body == b"find me"
    with pytest.raises(BrokerError):
        admin.view_message(result.offset_msg_id[:-16] + "0000FFFFFFFFFFFF")


def test_reads_and_sends_continue_after_a_broker_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    with LocalCluster(data_dir=tmp_path_factory.mktemp("restart")) as cluster:
        topic = cluster.create_topic("survives", 1)
        with Producer(name_server=cluster.name_server) as producer, Reader(cluster.name_server) as reader:
            queue = reader.queues(topic)[0]
            producer.send(Message.of(topic, "before"))
            cluster.kill_broker()
            with pytest.raises(RocketError) as caught:
                reader.max_offset(queue)
            assert caught.value.retriable
            with pytest.raises(RocketError) as caught:
                producer.send(Message.of(topic, "unreachable"), timeout=1.0)
            assert caught.value.retriable
            assert reader.queues(topic) == [queue], "the route is remembered"
            cluster.restart_broker()
            producer.send(Message.of(topic, "after"))
            assert [message.body for message in reader.messages(queue, 0)] == [b"before", b"after"]
