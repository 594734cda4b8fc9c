"""Clients with a namespace, beside clients that see the full names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_rocket.client import LocalTransactionState, Producer, Reader, TransactionProducer
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, MessageExt, is_system_topic
from spark_rocket.testing import LocalCluster

pytestmark = pytest.mark.live

INSTANCE = "MQ_INST_1_a"


class Commits:
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


def test_names_have_the_namespace_on_the_wire_only() -> None:
    with LocalCluster() as cluster:
        server = cluster.name_server
        with Producer("sender", name_server=server, namespace=INSTANCE) as producer:
            sent = producer.send(Message.of("orders", "one"))
            with_full_name = producer.send(Message.of(f"{INSTANCE}%orders", "two"))
        with TransactionProducer("payer", Commits(), name_server=server, namespace=INSTANCE) as payer:
            payer.send_in_transaction(Message.of("paid", "three"))
        assert sent.queue.topic == "orders"
        with Reader(server, namespace=INSTANCE) as reader, Reader(server) as plain:
            (message,) = reader.messages(sent.queue, sent.queue_offset, max_msgs=1)
            assert (message.topic, message.body) == ("orders", b"one")
            full = replace(sent.queue, topic=f"{INSTANCE}%orders")
            (seen,) = plain.messages(full, sent.queue_offset, max_msgs=1)
            assert (seen.topic, seen.body) == (full.topic, b"one")
            (second,) = reader.messages(with_full_name.queue, with_full_name.queue_offset, max_msgs=1)
            assert (second.topic, second.body) == ("orders", b"two")
            assert {"orders", "paid"} <= set(reader.topics())
            assert not any(INSTANCE in topic for topic in reader.topics())
            strangers = [topic for topic in plain.topics() if INSTANCE not in topic and not is_system_topic(topic)]
            assert strangers == [], "names that reached the servers without the namespace"
            with pytest.raises(RocketError) as missing:
                reader.messages(replace(sent.queue, queue_id=99), 0, max_msgs=1)
            assert INSTANCE not in str(missing.value)
