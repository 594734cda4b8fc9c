"""Which servers an Admin sends each request to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_rocket.client import Admin, QueueLag
from spark_rocket.client.admin import BrokerSettings
from spark_rocket.client.admin import topics as admin_module
from spark_rocket.errors import BrokerError, ClientError, NameServerUnreachableError, TopicNotFoundError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.bodies.config import SubscriptionGroupConfig, SubscriptionGroupWrapper, TopicConfig
from spark_rocket.protocol.wire.bodies.consumer import ConsumerRunningInfo
from spark_rocket.protocol.wire.bodies.stats import (
    Connection,
    ConsumerConnection,
    GroupList,
    TopicOffset,
    TopicStatsTable,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from tests.kit.scripted import QUEUE, Fake, FakeCluster, Handler, record, says

pytestmark = pytest.mark.live

CREATE, DELETE = RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER
CREATE_GROUP = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
LIST_GROUPS = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG


def test_the_families_of_methods_are_siblings() -> None:
    """None builds on another, so that each can be read alone; what needs several of them is in Admin itself."""
    families = Admin.__bases__
    assert len(families) > 5
    for family in families:
        assert not any(issubclass(family, other) for other in families if other is not family)
        others = {name for other in families if other is not family for name in vars(other)}
        assert {name for name in vars(family) if not name.startswith("_")}.isdisjoint(others)


@pytest.fixture
def mq(fake: Callable[..., FakeCluster]) -> FakeCluster:
    cluster = fake(2)
    cluster.clusters = {"b0": "c0", "b1": "c1"}
    cluster.name_server.responses |= {
        RequestCode.DELETE_TOPIC_IN_NAMESRV: says(0),
        RequestCode.GET_KV_CONFIG: says(22, "no such key"),
        RequestCode.PUT_KV_CONFIG: says(0),
        RequestCode.DELETE_KV_CONFIG: says(0),
    }
    cluster.everywhere(DELETE, says(0))
    cluster.everywhere(CREATE, says(0))
    return cluster


@pytest.fixture
def admin(mq: FakeCluster, closing: Callable[[Admin], Admin]) -> Admin:
    return closing(Admin(mq.name_server.address))


def asked(cluster: FakeCluster, code: int) -> list[int]:
    return [broker.codes().count(code) for broker in cluster.brokers]


def test_topics_are_created_on_every_master(mq: FakeCluster, admin: Admin) -> None:
    mq.add("t", queues=3)
    admin.create_topic("t", queues=3, attributes="+message.type=FIFO")
    assert asked(mq, CREATE) == [1, 1]
    assert mq.brokers[0].requests[0].ext_fields == {
        "topic": "t",
        "defaultTopic": "TBW102",
        "readQueueNums": "3",
        "writeQueueNums": "3",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "+message.type=FIFO",
        "force": "false",
        "bname": "b0",
    }


def test_a_topic_of_a_type(mq: FakeCluster, admin: Admin) -> None:
    mq.add("t", queues=8)
    admin.create_topic("t", broker="b1", message_type="DELAY")
    admin.create_topic("t", broker="b1", message_type="FIFO", attributes="+reserve.time=60000")
    sent = [request.ext_fields["attributes"] for request in mq.brokers[1].of(CREATE)]
    assert sent == ["+message.type=DELAY", "+reserve.time=60000,+message.type=FIFO"]


def test_topics_are_created_on_the_given_brokers(mq: FakeCluster, admin: Admin) -> None:
    mq.add("t", queues=8)
    admin.create_topic("t", broker="b1")
    assert asked(mq, CREATE) == [0, 1]
    admin.create_topic("t", cluster="c0")
    assert asked(mq, CREATE) == [1, 1]
    admin.create_topic("t", broker=mq.brokers[0].address)
    assert asked(mq, CREATE) == [2, 1]
    with pytest.raises(ClientError, match=r"named 'c9'.*c0, c1"):
        admin.create_topic("t", cluster="c9")
    with pytest.raises(ClientError, match="named 'b9'"):
        admin.create_topic("t", broker="b9")


def test_an_ordered_topic_is_recorded_at_the_name_server(mq: FakeCluster, admin: Admin) -> None:
    mq.add("t", queues=2)
    admin.create_topic("t", queues=2, order=True)
    (put,) = mq.name_server.of(RequestCode.PUT_KV_CONFIG)
    assert put.ext_fields == {"namespace": "ORDER_TOPIC_CONFIG", "key": "t", "value": "b0:2;b1:2"}
    mq.name_server.responses[RequestCode.GET_KV_CONFIG] = says(0, ext={"value": "b0:2;b1:2"})
    admin.delete_topic("t")
    assert RequestCode.DELETE_KV_CONFIG in mq.name_server.codes()


def test_the_order_of_a_topic_on_other_brokers_stays(mq: FakeCluster, admin: Admin) -> None:
    mq.add("t", queues=2)
    mq.name_server.responses[RequestCode.GET_KV_CONFIG] = says(0, ext={"value": "b0:2;b9:4"})
    mq.everywhere(RequestCode.GET_TOPIC_CONFIG, says(0, body=TopicConfig("t", 2, 2, 6, order=True).to_json()))
    admin.create_topic("t", queues=2, order=True, broker="b1")
    admin.create_topic("t", queues=2, order=True, broker=mq.brokers[0].address)  # it has this entry
    admin.create_topic("t", queues=2, order=True, broker=mq.brokers[1].address)
    admin.update_topic("t", perm=6, broker="b1")
    admin.update_topic("t", order=False, broker="b0")
    admin.delete_topic("t", cluster="c0")
    values = [put.ext_fields["value"] for put in mq.name_server.of(RequestCode.PUT_KV_CONFIG)]
    with_b1 = "b0:2;b1:2;b9:4"
    assert values == [with_b1, "b0:2;b9:4", with_b1, with_b1, "b9:4", "b9:4"]
    assert RequestCode.DELETE_KV_CONFIG not in mq.name_server.codes()
    mq.name_server.responses[RequestCode.GET_KV_CONFIG] = says(0, ext={"value": "b0:2"})
    admin.delete_topic("t", cluster="c0")
    assert RequestCode.DELETE_KV_CONFIG in mq.name_server.codes()


def test_the_order_of_a_topic_is_repeated_for_a_name_server_that_lacks_it(
    mq: FakeCluster, closing: Callable[[Admin], Admin]
) -> None:
    mq.add("t", queues=2)
    mq.everywhere(CREATE, says(0))
    mq.name_server.responses[RequestCode.PUT_KV_CONFIG] = says(0)
    mq.name_server.responses[RequestCode.GET_KV_CONFIG] = says(0, ext={"value": "b0:2;b1:2"})
    second = Fake(mq.name_server.responses | {RequestCode.GET_KV_CONFIG: says(ResponseCode.QUERY_NOT_FOUND)})
    try:
        admin = closing(Admin(f"{mq.name_server.address};{second.address}"))
        admin.create_topic("t", queues=2, order=True)
        assert [put.ext_fields["value"] for put in second.of(RequestCode.PUT_KV_CONFIG)] == ["b0:2;b1:2"]
        mq.name_server.responses[RequestCode.GET_KV_CONFIG] = says(ResponseCode.QUERY_NOT_FOUND)  # deleted there
        mq.everywhere(RequestCode.DELETE_TOPIC_IN_BROKER, says(0))
        for fake in (mq.name_server, second):
            fake.responses[RequestCode.DELETE_TOPIC_IN_NAMESRV] = fake.responses[RequestCode.DELETE_KV_CONFIG] = says(0)
        admin.delete_topic("t")
        assert len(second.of(RequestCode.DELETE_KV_CONFIG)) == 1
        mq.everywhere(RequestCode.GET_TOPIC_CONFIG, says(0, body=TopicConfig("t", 2, 2, 6).to_json()))
        admin.update_topic("t", order=False)
        assert len(second.of(RequestCode.DELETE_KV_CONFIG)) == 2
        second.responses[RequestCode.GET_KV_CONFIG] = says(0, ext={"value": "b0:2;b9:4"})
        admin.update_topic("t", order=False)  # b9 has the topic, too
        assert second.of(RequestCode.PUT_KV_CONFIG)[-1].ext_fields["value"] == "b9:4"
        assert len(second.of(RequestCode.DELETE_KV_CONFIG)) == 2
    finally:
        second.close()


def test_a_topic_that_never_reaches_the_name_server(
    mq: FakeCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_module, "ROUTE_WAIT_S", 0.05)
    with pytest.raises(TopicNotFoundError, match="is not registered at the name server"):
        admin.create_topic("t")


def test_a_refused_creation(mq: FakeCluster, admin: Admin) -> None:
    mq.everywhere(CREATE, says(1, "the topic name is illegal"))
    with pytest.raises(BrokerError, match=r"creation of topic t.*illegal"):
        admin.create_topic("t")


def test_groups_are_created_on_the_given_brokers(mq: FakeCluster, admin: Admin) -> None:
    there = SubscriptionGroupConfig("h", consume_message_orderly=True, attributes={"lite": "1"})
    mq.everywhere(LIST_GROUPS, says(0, body=SubscriptionGroupWrapper({"h": there}).to_json()))
    mq.everywhere(CREATE_GROUP, says(0))
    admin.create_group("g", ordered=True, retry_max_times=2)
    admin.create_group("h", cluster="c1", retry_max_times=5)
    assert asked(mq, CREATE_GROUP) == [1, 2]
    assert [SubscriptionGroupConfig.from_json(request.body) for request in mq.brokers[1].of(CREATE_GROUP)] == [
        SubscriptionGroupConfig("g", consume_message_orderly=True, retry_max_times=2),
        SubscriptionGroupConfig("h", consume_message_orderly=True, retry_max_times=5),  # other settings are unchanged
    ]


def test_topics_are_deleted_everywhere(mq: FakeCluster, admin: Admin) -> None:
    mq.add("t")
    admin.delete_topic("t")
    assert asked(mq, DELETE) == [1, 1]
    assert RequestCode.DELETE_TOPIC_IN_NAMESRV in mq.name_server.codes()
    admin.delete_topic("t", cluster="c1")
    assert asked(mq, DELETE) == [1, 2]


def test_every_name_server_is_updated(mq: FakeCluster, nobody: str, closing: Callable[[Any], Any]) -> None:
    wipe = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    mq.name_server.responses[wipe] = says(0, ext={"wipeTopicCount": "3"})
    second = closing(Fake({RequestCode.PUT_KV_CONFIG: says(0), wipe: says(0, ext={"wipeTopicCount": "4"})}))
    both = closing(Admin(f"{mq.name_server.address};{second.address}"))
    both.put_kv_config("n", "k", "v")
    assert [s.codes() for s in (mq.name_server, second)] == [[100], [100]]
    assert both.wipe_write_perm("b0") == 4
    half = closing(Admin(f"{mq.name_server.address};{nobody}"))
    with pytest.raises(NameServerUnreachableError, match=nobody):
        half.put_kv_config("n", "k", "v")
    assert half.get_kv_config("n", "k") is None, "one that responds is enough for a query"


def test_statistics_of_all_brokers_are_merged(mq: FakeCluster, admin: Admin) -> None:
    mq.add("t")
    for i, broker in enumerate(mq.brokers):
        table = TopicStatsTable({MessageQueue("t", f"b{i}", 0): TopicOffset(0, i + 5, 9)}, 1.5)
        broker.responses[RequestCode.GET_TOPIC_STATS_INFO] = says(0, body=table.to_json())
    stats = admin.topic_stats("t")
    assert {queue.broker_name: offset.max_offset for queue, offset in stats.offset_table.items()} == {"b0": 5, "b1": 6}
    assert stats.topic_put_tps == 3.0


def test_groups_and_consumers(mq: FakeCluster, admin: Admin) -> None:
    mq.add("t")
    ask = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    mq.brokers[0].responses[ask] = says(0, body=GroupList(["g2", "g1"]).to_json())
    mq.brokers[1].responses[ask] = says(0, body=GroupList(["g1", "g3"]).to_json())
    assert admin.groups_of("t") == ["g1", "g2", "g3"]
    online = ConsumerConnection([Connection("10.0.0.1@1", "10.0.0.1:5")])
    mq.brokers[0].responses[RequestCode.GET_CONSUMER_CONNECTION_LIST] = says(0, body=online.to_json())
    mq.brokers[1].responses[RequestCode.GET_CONSUMER_CONNECTION_LIST] = says(206, "not online")
    assert admin.consumers("g1", "t") == ["10.0.0.1@1"]
    with pytest.raises(BrokerError, match="online consumers"):
        admin.reset_offsets("g1", "t", -1)
    mq.brokers[0].responses[RequestCode.GET_CONSUMER_CONNECTION_LIST] = says(1, "internal error")
    with pytest.raises(BrokerError, match="internal error"):  # it may have online consumers
        admin.reset_offsets("g1", "t", -1)


@pytest.mark.parametrize(
    ("least", "most", "committed", "lag"),
    [(0, 10, 4, 6), (0, 10, None, 10), (5, 10, 2, 5), (0, 10, 12, 0), (3, 3, None, 0)],
)
def test_lag(least: int, most: int, committed: int | None, lag: int) -> None:
    assert QueueLag(QUEUE, least, most, committed).lag == lag


def test_a_client_is_found_although_another_broker_does_not_respond(mq: FakeCluster, admin: Admin) -> None:
    online = ConsumerConnection([Connection("10.0.0.1@1", "10.0.0.1:5")])
    mq.brokers[1].responses[RequestCode.GET_CONSUMER_CONNECTION_LIST] = says(0, body=online.to_json())
    info = ConsumerRunningInfo(properties={"PROP_CLIENT_VERSION": "V5_3_3"})
    mq.brokers[1].responses[RequestCode.GET_CONSUMER_RUNNING_INFO] = says(0, body=info.to_json())
    mq.brokers[0].responses[RequestCode.GET_CONSUMER_CONNECTION_LIST] = says(14, "stopping")
    assert admin.consumer_running_info("g", "10.0.0.1@1") == info
    with pytest.raises(BrokerError, match="stopping"):  # the other client may be connected to this one
        admin.consumer_running_info("g", "10.0.0.2@1")


def test_settings_are_read_from_text(mq: FakeCluster, admin: Admin) -> None:
    mq.everywhere(
        RequestCode.GET_BROKER_CONFIG, says(0, body=b"# a comment\nbrokerName=b0\n\nflushDiskType = ASYNC_FLUSH\n")
    )
    assert admin.broker_config("b0") == {"brokerName": "b0", "flushDiskType": "ASYNC_FLUSH"}
    assert admin.broker_settings("b0").dynamic is None  # of Apache's brokers
    mq.everywhere(RequestCode.GET_BROKER_CONFIG, says(0, ext={"dynamicSettings": "a,b"}, body=b"a=1\n"))
    assert admin.broker_settings("b0") == BrokerSettings({"a": "1"}, frozenset("ab"))
    mq.everywhere(RequestCode.UPDATE_BROKER_CONFIG, says(0))
    admin.update_broker_config(mq.brokers[1].address, {"a": "1", "b": "2\\\n"})
    assert mq.brokers[1].requests[-1].body == b"a=1\nb=2\\\\\\n\n"


def test_keys_with_equal_hashes_are_distinguished(mq: FakeCluster, admin: Admin) -> None:
    mq.add("t")

    def found(**stored: int) -> Handler:
        keys = {name.replace("_", " "): at for name, at in stored.items()}
        return says(0, body=b"".join(record(0, key.encode(), stored=at, KEYS=key) for key, at in keys.items()))

    mq.brokers[0].responses[RequestCode.QUERY_MESSAGE] = found(b_a=9, collides=1)
    mq.brokers[1].responses[RequestCode.QUERY_MESSAGE] = says(22, "nothing")
    assert [message.body for message in admin.query_messages("t", "a")] == [b"b a"]
    mq.brokers[1].responses[RequestCode.QUERY_MESSAGE] = found(a=5)
    assert [message.store_timestamp for message in admin.query_messages("t", "a")] == [5, 9]
    assert [message.store_timestamp for message in admin.query_messages("t", "a", max_num=1)] == [9]  # the newest


def test_a_search_backward_keeps_only_what_it_returns(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last step may find thousands of messages."""

    class Counted(MessageExt):
        alive = most = 0

        def __del__(self) -> None:
            Counted.alive -= 1

    def between(queue: MessageQueue, start: int, end: int, **_: object) -> Iterator[MessageExt]:
        for offset in range(start, min(end, 15_000)):  # the later ones do not match
            Counted.alive += 1
            Counted.most = max(Counted.most, Counted.alive)
            yield Counted("t", b"", queue_offset=offset)

    monkeypatch.setattr(admin, "offsets", lambda topic, failed: {QUEUE: (0, 20_000)})
    monkeypatch.setattr(admin, "messages_between", between)
    found = admin.messages_by_time("t", limit=10, tags="a")
    assert [message.queue_offset for message in found] == [*range(14_999, 14_989, -1)]
    assert Counted.most <= 2 * 10


def test_an_invalid_message_id(admin: Admin) -> None:
    with pytest.raises(ClientError, match="query_messages"):
        admin.view_message("AC")


def test_without_a_master_the_slave_serves_reads_only(mq: FakeCluster, admin: Admin) -> None:
    slave = mq.brokers[1]
    mq.clusters["b1"], mq.addresses["b1"] = "c0", {1: slave.address}
    mq.add("t", 1)
    mq.everywhere(RequestCode.GET_TOPIC_CONFIG, says(17, "no"))
    assert admin.topic_config("t", broker="b1") is None
    assert asked(mq, RequestCode.GET_TOPIC_CONFIG) == [0, 1]
    assert admin.unavailable_masters() == admin.unavailable_masters("c0") == ["b1"]
    with pytest.raises(ClientError, match="Broker 'b1' has no master at the moment") as caught:
        admin.update_broker_config("b1", {"a": "b"})
    assert slave.address in caught.value.remedy
    with pytest.warns(DeprecationWarning, match="use Admin.unavailable_masters"):
        assert admin.masters_away("c0") == ["b1"]
