"""Names with namespaces, and those that are refused."""

from __future__ import annotations

import pytest

from spark_rocket.proxy.definitions import Code, Resource
from spark_rocket.proxy.messages.names import group_of, resource_of, topic_of
from spark_rocket.proxy.messages.statuses import StatusError


@pytest.mark.parametrize(
    ("namespace", "name", "full"),
    [
        ("", "orders", "orders"),
        ("shop", "orders", "shop%orders"),
        ("shop", "%RETRY%billing", "%RETRY%shop%billing"),
        ("shop", "%DLQ%billing", "%DLQ%shop%billing"),
        ("", "%DLQ%billing", "%DLQ%billing"),
    ],
)
def test_a_namespace_goes_between_prefix_and_name(namespace: str, name: str, full: str) -> None:
    assert topic_of(Resource(resource_namespace=namespace, name=name)) == full
    assert resource_of(full) == Resource(resource_namespace=namespace, name=name)


def test_a_namespace_is_not_put_twice() -> None:
    assert topic_of(Resource(resource_namespace="shop", name="shop%orders")) == "shop%orders"


def test_resources_have_the_brokers_names() -> None:
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
