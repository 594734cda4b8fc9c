"""Every call with a namespace returns what the call with full names returns without one, but for the namespace.

One scenario with all kinds of clients runs twice, on clusters of their own. A public method of Admin that it does not
call fails, unless ``NO_NAMES`` has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from spark_rocket.client import (
    Admin,
    LocalTransactionState,
    Producer,
    Reader,
    TransactionProducer,
)
from spark_rocket.model import Message, MessageExt
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until

pytestmark = pytest.mark.live

INSTANCE = "MQ_INST_1_a"
NO_NAMES = {
    "acl", "broker_users", "user",
    "access_modes", "acl_config", "acl_versions", "acls", "add_metrics", "add_write_perm", "after_fork",
    "broker_accounts", "broker_config", "broker_runtime", "broker_settings", "broker_stats", "brokers",
    "clean_expired_queues", "clean_unused_topics", "close", "cluster_info", "cluster_info_of_each", "create_user",
    "delete_account", "delete_account_of", "delete_expired_commit_log", "delete_kv_config", "delete_permission",
    "delete_user", "get_kv_config", "ha_status", "instance", "kv_config_of_each", "kv_configs", "masters_away",
    "name_server_configs", "put_kv_config", "put_permission", "runtime_info", "start", "timer_metrics",
    "unavailable_masters", "update_account", "update_broker_config", "update_global_white_addrs",
    "update_name_server_config", "update_user", "users", "wipe_write_perm",
    "consumers", "producers", "producer_groups", "consumer_running_info", "queue_holders", "consume_directly", "resend",
    "view_message", "origin_topic", "topic_route_of_each", "topic_states", "messages_at",
}  # fmt: skip
"""Methods without names of topics and groups, and those that other ones of the scenario call."""


LISTS = {"Admin.topic_configs", "Admin.topic_list", "Admin.topics"}
"""Lists that omit the topics named after clusters and brokers, which are not in the namespace."""


class Results:
    """The results of calls, as text without numbers and without the namespace."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.called: set[str] = set()

    def note(self, name: str, value: Any) -> None:
        self.found[name] = self._text(value)

    def of(self, client: Any, method: str, *arguments: Any, **options: Any) -> Any:
        self.called.add(method)
        value = getattr(client, method)(*arguments, **options)
        self.note(f"{type(client).__name__}.{method}", value)
        return value

    def _text(self, value: Any) -> str:
        text = repr(self._plain(value)).replace(f"{INSTANCE}%", "")
        return re.sub(r"[0-9A-F]{16,}|\d+|#\w+", "0", text)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(f"{INSTANCE}%", "")
        if is_dataclass(value) and not isinstance(value, type):
            value = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, dict):
            return sorted((repr(self._plain(key)), self._plain(each)) for key, each in value.items())
        if isinstance(value, list | tuple | set | frozenset):
            return sorted(repr(self._plain(each)) for each in value)
        return value


class Commits:
    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


def produce_and_consume(results: Results, full: Callable[[str], str], connecting: dict[str, Any]) -> None:
    """Send, in a transaction too, and poll."""
    with Producer(full("shop"), **connecting) as producer, Reader(**connecting) as reader:
        sent = producer.send(Message.of(full("orders"), "one", keys="k1", tags="good"))
        results.note("send", sent.queue.topic)
        reader.commit_offset(full("billing"), sent.queue, 0)
    with TransactionProducer(full("payer"), Commits(), **connecting) as payer:
        payer.send_in_transaction(Message.of(full("paid"), "two", keys="k3"))
        with Admin(**connecting) as admin:
            until(lambda: admin.query_messages(full("paid"), "k3"), 60)


def administrate(results: Results, full: Callable[[str], str], connecting: dict[str, Any]) -> None:
    topic, group = full("orders"), full("billing")
    with Admin(**connecting) as admin, Reader(**connecting) as reader:
        for call, *arguments in (
            ("topics",), ("topic_list",), ("topic_route", topic), ("queues", topic), ("offsets", topic), ("groups",),
            ("topic_state", topic), ("topic_stats", topic), ("topics_stats", [topic]), ("topic_configs", "broker-a"),
            ("groups_of", topic), ("group_state", group), ("group_states", [group]), ("consumer_lag", group, topic),
            ("committed_offsets", group, topic), ("subscription_groups", "broker-a"), ("message_trace", "none"),
            ("query_messages", topic, "k1"), ("messages_by_time", topic), ("plan_reset", group, topic, 0),
            ("dead_letter_topics",), ("dead_letters", group),
        ):  # fmt: skip
            results.of(admin, call, *arguments)
        (message,) = admin.query_messages(topic, "k1")
        results.of(admin, "message", topic, message.msg_id)
        results.of(admin, "message_track", message)
        results.of(admin, "topic_config", topic, broker="broker-a")
        results.of(admin, "consume_stats", group, broker="broker-a")
        queue = admin.queues(topic)[0]
        results.of(admin, "consume_queue", queue, 0, 8)
        results.called.add("messages_between")
        results.note(
            "between", [[each.topic for each in admin.messages_between(one, 0, 9)] for one in admin.queues(topic)]
        )
        results.of(admin, "create_group", full("late"))
        results.of(admin, "clone_offsets", group, full("late"), topic)
        results.of(admin, "reset_offsets", full("late"), topic, 0)
        results.of(admin, "reset_offsets_to", full("late"), {queue: 0})
        results.of(admin, "send", Message.of(topic, "by hand"))
        results.found.pop("Admin.send")
        results.of(admin, "update_topic", topic, perm=6)
        results.of(admin, "create_topic", full("new"), 2)
        results.of(admin, "delete_topic", full("new"))
        results.of(admin, "delete_group", full("late"), topics=True)
        results.of(reader, "topics")
        results.of(reader, "queues", topic)
        results.note(
            "stored",
            [
                (one.topic, one.body)
                for one in reader.messages(message_queue(message), message.queue_offset, max_msgs=1)
            ],
        )
    missing = {name for name in dir(Admin) if name[0] != "_" and callable(getattr(Admin, name))}
    assert missing - results.called - NO_NAMES == set(), "public methods that are not compared"


def message_queue(message: MessageExt) -> Any:
    from spark_rocket.model import MessageQueue

    return MessageQueue(message.topic, message.broker_name, message.queue_id)


def scenario(namespace: str) -> dict[str, str]:
    results = Results()
    settings = {"transactionTimeOut": 500, "transactionCheckInterval": 500, "traceTopicEnable": True}
    with LocalCluster(config=settings) as cluster:
        for topic in ("orders", "paid"):
            cluster.create_topic(f"{INSTANCE}%{topic}", 1)  # so queues are not chosen
        connecting: dict[str, Any] = {"name_server": cluster.name_server, "namespace": namespace}

        def name(short: str) -> str:
            return short if namespace else f"{INSTANCE}%{short}"

        produce_and_consume(results, name, connecting)
        administrate(results, name, connecting)
        with Reader(cluster.name_server) as plain:
            assert "orders" not in plain.topics(), "a name reached the servers without the namespace"
    return results.found


def test_calls_with_a_namespace_are_those_with_full_names() -> None:
    short, full = scenario(INSTANCE), scenario("")
    assert short.keys() == full.keys()
    assert {name for name in short if short[name] != full[name]} <= LISTS
    for name in LISTS:
        assert "orders" in short[name]
