"""Names with namespaces, and those that are refused."""

from __future__ import annotations

import pytest

from spark_rocket.proxy.definitions import Code, Resource
from spark_rocket.proxy.names import group_of, join_namespace, split_namespace, topic_of
from spark_rocket.proxy.statuses import StatusError


@pytest.mark.parametrize(
    ("namespace", "name", "full"),
    [
        ("", "orders", "orders"),
        ("shop", "orders", "shop%orders"),
        ("shop", "%RETRY%billing", "%RETRY%shop%billing"),
        ("shop", "%DLQ%billing", "%DLQ%shop%billing"),
        ("", "%DLQ%billing", "%DLQ%billing"),
        ("", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC"),
    ],
)
def test_a_namespace_goes_between_prefix_and_name(namespace: str, name: str, full: str) -> None:
    assert join_namespace(namespace, name) == full
    assert split_namespace(full) == (namespace, name)


def test_a_namespace_is_not_put_twice_nor_before_what_is_the_systems() -> None:
    assert join_namespace("shop", "shop%orders") == "shop%orders"
    assert join_namespace("shop", "rmq_sys_REVIVE_LOG_x") == "rmq_sys_REVIVE_LOG_x"
    assert join_namespace("shop", "") == ""


def test_resources_are_what_the_broker_calls_them() -> None:
    assert topic_of(Resource(resource_namespace="shop", name="orders")) == "shop%orders"
    assert group_of(Resource(name="billing")) == "billing"


@pytest.mark.parametrize("name", ["", " ", "a b", "täglich", "x" * 128, "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
def test_an_illegal_topic_is_refused(name: str) -> None:
    with pytest.raises(StatusError) as failure:
        topic_of(Resource(name=name))
    assert failure.value.code == Code.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 121, "CID_RMQ_SYS_TRANS"])
def test_an_illegal_group_is_refused(name: str) -> None:
    with pytest.raises(StatusError) as failure:
        group_of(Resource(name=name))
    assert failure.value.code == Code.ILLEGAL_CONSUMER_GROUP
