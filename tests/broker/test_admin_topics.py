"""Administration over the wire: topics and groups."""

from __future__ import annotations

import json

import pytest

from spark_rocket.broker.state.topic_config_manager import alter_attributes
from spark_rocket.model import topic_problem
from spark_rocket.protocol.wire.bodies.config import (
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from spark_rocket.protocol.wire.bodies.route import TopicRouteData
from spark_rocket.protocol.wire.bodies.stats import ConsumeStats
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.json import loads_tolerant
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire

pytestmark = pytest.mark.live


def route(namesrv: Wire, topic: str) -> TopicRouteData | None:
    answer = namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    return TopicRouteData.from_json(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else None


# --- topics ----------------------------------------------------------------------------------------------------------


def test_a_topic_has_its_route_as_soon_as_it_is_created(wire: Wire, namesrv: Wire) -> None:
    for number in range(20):
        assert wire.create_topic(f"Created-{number}", readQueueNums=3, writeQueueNums=2, perm=6).code == 0
        found = route(namesrv, f"Created-{number}")
        assert found is not None
        assert [(q.read_queue_nums, q.write_queue_nums, q.perm) for q in found.queue_datas] == [(3, 2, 6)]
        assert [data.broker_addrs for data in found.broker_datas] == [{0: wire.address}]


def test_a_topic_is_changed(wire: Wire, namesrv: Wire) -> None:
    wire.create_topic("Changing", attributes="+message.type=FIFO")
    assert wire.create_topic("Changing", readQueueNums=8, writeQueueNums=8, perm=4).code == 0
    assert wire.topic_config("Changing") == TopicConfig(
        "Changing", 8, 8, 4, attributes={"message.type": "FIFO"}, topic_filter_type="SINGLE_TAG"
    )
    found = route(namesrv, "Changing")
    assert found is not None
    assert found.queue_datas[0].perm == 4


@pytest.mark.parametrize(
    ("topic", "fields", "remark"),
    [
        ("bad name", {}, "illegal characters"),
        ("", {}, "blank"),
        ("TBW102", {}, "conflict with system topic"),
        ("rmq_sys_mine", {}, "conflict with system topic"),
        ("DefaultCluster", {}, "conflict with system topic"),
        ("broker-a", {}, "conflict with system topic"),
        ("DefaultCluster_REPLY_TOPIC", {}, "conflict with system topic"),
        ("Wrong-1", {"readQueueNums": -1}, "Invalid readQueueNums -1 of topic Wrong-1"),
        ("Wrong-2", {"writeQueueNums": 100_000}, "Invalid writeQueueNums 100000 of topic Wrong-2"),
        ("Wrong-3", {"perm": 99}, "Invalid perm 99 of topic Wrong-3"),
        ("Wrong-4", {"attributes": "+queue.type=BatchCQ"}, "queue.type=BatchCQ is not supported"),
        ("Wrong-5", {"attributes": "+unknown=1"}, "unsupported key: unknown"),
        ("Wrong-6", {"attributes": "+message.type=PLAIN"}, "message.type=PLAIN is not supported here, only"),
    ],
)
def test_an_invalid_topic(wire: Wire, topic: str, fields: dict[str, object], remark: str) -> None:
    refused = wire.create_topic(topic, **fields)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert remark in (refused.remark or "")
    assert topic.startswith("Wrong") is False or wire.topic_config(topic) is None


def test_many_topics_at_once(wire: Wire, namesrv: Wire) -> None:
    topics = [TopicConfig(f"Many-{number}", 2, 2, attributes={"+message.type": "NORMAL"}) for number in range(3)]
    body = CreateTopicListRequestBody(topics).to_json()
    assert wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body).code == ResponseCode.SUCCESS
    assert all(route(namesrv, topic.topic_name) for topic in topics)


def test_all_of_many_topics_or_none(wire: Wire) -> None:
    body = CreateTopicListRequestBody([TopicConfig("All-or-none", 2, 2), TopicConfig("bad name", 2, 2)]).to_json()
    assert wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body).code == ResponseCode.INVALID_PARAMETER
    assert wire.ask(RequestCode.GET_TOPIC_CONFIG, topic="All-or-none").code == ResponseCode.TOPIC_NOT_EXIST


def test_a_deleted_topic_can_be_recreated(wire: Wire, topic: str, group: str) -> None:
    wire.send(topic, b"old")
    wire.commit(group, topic, 1)
    assert wire.delete_topic(topic).code == ResponseCode.SUCCESS
    assert wire.pull(topic, 0).code == ResponseCode.TOPIC_NOT_EXIST
    wire.create_topic(topic)
    wire.send(topic, b"new")
    assert wire.bodies(topic) == [b"new"]
    assert wire.read(ConsumeStats, RequestCode.GET_CONSUME_STATS, consumerGroup=group).offset_table == {}


@pytest.mark.parametrize("topic", ["", "TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"])
def test_a_system_topic_is_not_deleted(wire: Wire, topic: str) -> None:
    answer = wire.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_tables_are_sent_in_parts(wire: Wire, topic: str, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As clients and slaves ask for them since 5.3."""
    monkeypatch.setattr("spark_rocket.broker.state.versioned_table.PAGE_ENTRIES", 3)
    wire.pull(topic, 0, consumerGroup=group)
    for code, member, total, position in (
        (RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable", "totalTopicNum", "topicSeq"),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable", "totalGroupNum", "groupSeq"),
    ):
        every = loads_tolerant(wire.ask(code).body)
        found: dict[str, object] = {}
        while True:
            answer = wire.ask(code, **{position: len(found)})
            part = loads_tolerant(answer.body)
            assert part["dataVersion"] == every["dataVersion"]
            assert int(answer.ext_fields[total]) == len(every[member])
            if not part[member]:
                break
            assert len(part[member]) <= 3
            found |= part[member]
        assert found == every[member]


def test_all_topics_with_those_of_the_system(wire: Wire, topic: str) -> None:
    answer = wire.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    table = TopicConfigSerializeWrapper.from_json(bytes(answer.body)).topic_config_table
    assert int(answer.ext_fields["totalTopicNum"]) == len(table)
    assert (table["TBW102"].write_queue_nums, table["TBW102"].perm) == (8, 7)
    assert table["BenchmarkTest"].read_queue_nums == 1024
    assert (table["DefaultCluster"].read_queue_nums, table["DefaultCluster"].perm) == (16, 7)
    assert table["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
    assert {"SELF_TEST_TOPIC", "broker-a", "OFFSET_MOVED_EVENT", "RMQ_SYS_TRANS_HALF_TOPIC", topic} <= set(table)


@pytest.mark.parametrize("kind", ["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"])
def test_a_topic_of_a_message_type(cluster: LocalCluster, wire: Wire, kind: str) -> None:
    topic = cluster.create_topic(f"Of-{kind}", message_type=kind)
    config = wire.topic_config(topic)
    assert config is not None
    assert config.attributes == {"message.type": kind}
    table = loads_tolerant((cluster.store_dir / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert table[topic]["attributes"] == {"message.type": kind}


def test_mixed_messages_are_for_brokers_that_allow_them(wire: Wire) -> None:
    with wire.settings(enableMixedMessageType=False):
        refused = wire.create_topic("Mixed", attributes="+message.type=MIXED")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert (refused.remark or "").startswith("MIXED message type is not supported. Set enableMixedMessageType=true")


def test_attributes_are_altered() -> None:
    added = alter_attributes({}, "+message.type=FIFO, +reserve.time=10", create=True)
    assert added == {"message.type": "FIFO", "reserve.time": "10"}
    assert alter_attributes({"message.type": "FIFO"}, "-message.type", create=False) == {}
    with pytest.raises(ValueError, match="only add attribute is supported"):
        alter_attributes({}, "-message.type", create=True)
    with pytest.raises(ValueError, match="format is wrong"):
        alter_attributes({}, "message.type=FIFO", create=True)


def test_names_of_retry_topics_may_be_longer() -> None:
    assert topic_problem("%RETRY%" + "g" * 200) is None
    assert topic_problem("t" * 200) is not None
    assert topic_problem("%RETRY%" + "g" * 300) is not None
    assert topic_problem("line\n") is not None


# --- groups ----------------------------------------------------------------------------------------------------------


def test_groups_are_created_listed_and_deleted(wire: Wire, topic: str, group: str) -> None:
    config = SubscriptionGroupConfig(group, retry_max_times=3)
    wire.create_group(group, retryMaxTimes=3)
    assert wire.read(SubscriptionGroupConfig, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=group) == config
    every = wire.read(SubscriptionGroupWrapper, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert every.subscription_group_table[group] == config
    assert "TOOLS_CONSUMER" in every.subscription_group_table
    wire.commit(group, topic, 1)
    assert wire.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=group, removeOffset=True).code == 0
    assert wire.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=group).code == 26
    assert wire.committed(group, topic, setZeroIfNotFound=False) is None


def test_settings_of_a_group_for_clients_of_5x(wire: Wire, group: str) -> None:
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 60_000, "multiplier": 2}}

    def put(attributes: dict[str, str]) -> dict[str, str]:
        wire.create_group(group, consumeMessageOrderly=True, groupRetryPolicy=policy, attributes=attributes)
        found = wire.read(SubscriptionGroupConfig, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=group)
        assert (found.consume_message_orderly, found.group_retry_policy) == (True, policy)
        return found.attributes

    assert put({"+a": "1", "+b": "2"}) == {"a": "1", "b": "2"}
    assert put({"+a": "3", "-b": ""}) == {"a": "3"}
    assert put({}) == {"a": "3"}
    assert put({"c": "4"}) == {"c": "4"}  # a copy of a file's


def test_many_groups_at_once(wire: Wire, group: str) -> None:
    configs = [SubscriptionGroupConfig(f"{group}-{number}", retry_max_times=number) for number in range(3)]
    body = json.dumps({"groupConfigList": [config.to_value() for config in configs]}).encode()
    assert wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body).code == 0
    for config in configs:
        assert (
            wire.read(SubscriptionGroupConfig, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=config.group_name)
            == config
        )


def test_all_of_many_groups_or_none(wire: Wire, group: str) -> None:
    body = json.dumps({"groupConfigList": [{"groupName": group}, {"groupName": "bad name"}]}).encode()
    answer = wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert wire.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=group).code != 0


@pytest.mark.parametrize("body", [b"", b"{}", b'{"groupName":"bad name"}', b"[1]", b"\xff"])
def test_an_invalid_group(wire: Wire, body: bytes) -> None:
    assert wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code in (1, 29)
