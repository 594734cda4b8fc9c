"""Names of these tests, and a cluster with a topic and a group of them in a namespace."""

from __future__ import annotations

import re

from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.protocol.namespace import Namespace
from spark_rocket.testing import LocalCluster

INSTANCE = "MQ_INST_1_a"
TOPIC, GROUP = "zorders", "zbilling"
BARE = re.compile(rf"(?<!{INSTANCE}%)\bz(?:orders|billing|shop|late|new)")
"""A name without the namespace."""
full = Namespace(INSTANCE).wrap


def fill(cluster: LocalCluster) -> MessageExt:
    """Create what is missing: the topic with a message of key k, its dead letter, the group with its offset."""
    topic, dead = full(TOPIC), full(f"%DLQ%{GROUP}")
    with (
        Admin(cluster.name_server, namespace="") as admin,
        Producer("plain", name_server=cluster.name_server, namespace="") as producer,
        Reader(cluster.name_server, namespace=INSTANCE) as reader,
    ):
        there = admin.topic_configs("broker-a")
        for name, message in (
            (topic, Message.of(topic, "one", keys="k")),
            (dead, Message.of(dead, "dead", keys="d", properties={"RETRY_TOPIC": topic})),
        ):
            if name not in there:
                cluster.create_topic(name, 1)
                producer.send(message)
        if full(GROUP) not in admin.subscription_groups("broker-a"):
            admin.create_group(full(GROUP))
        queue = MessageQueue(TOPIC, "broker-a", 0)
        reader.commit_offset(GROUP, queue, 0)
        (found,) = reader.messages(queue, 0, max_msgs=1)
        return found
