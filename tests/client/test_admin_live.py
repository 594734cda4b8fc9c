"""Admin queries to two live brokers, with and without results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from spark_rocket.client import (
    Admin,
    MessageModel,
    Producer,
)
from spark_rocket.client.admin import Failures, TopicKind, TrackStatus, base
from spark_rocket.errors import BrokerError, ClientError, RemotingConnectError, StateError, TopicNotFoundError
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.message_trace import TraceBean, TraceContext, TraceType, encode_trace_data
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.client.pushing import AGAIN, Consume, RecordingListener
from tests.kit.scripted import QUEUE, FakeCluster, Handler, says, says_offset
from tests.kit.waiting import until

pytestmark = pytest.mark.live

CLUSTER = {"in_process": False, "brokers": 2, "config": {"grpcServerPort": -1}}
BODY = "héllo ✓ 你好".encode()
BINARY = bytes(range(256))
LIST_TOPICS = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


@pytest.fixture(scope="module")
def names(admin: Admin) -> list[str]:
    """The two brokers."""
    return sorted(admin.cluster_info().broker_addr_table)


@pytest.fixture
def topic(request: pytest.FixtureRequest, admin: Admin) -> str:
    name = f"live-{request.node.name[:60]}"
    admin.create_topic(name, queues=2)
    return name


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return f"g-{request.node.name[:60]}"


def fill(producer: Producer, admin: Admin, topic: str, each: int = 3, **fields: str) -> list[MessageQueue]:
    """Store the given number of messages in each queue."""
    queues = sorted(admin.offsets(topic))
    for number in range(each):
        for queue in queues:
            producer.send(Message.of(topic, BODY, **fields, properties={"n": str(number)}), queue=queue)  # type: ignore[arg-type]
    return queues


# --- brokers ----------------------------------------------------------------------------------------------------


def test_brokers_report_their_state(admin: Admin, names: list[str], producer: Producer, topic: str) -> None:
    fill(producer, admin, topic, 1)
    brokers = admin.brokers()
    assert [(broker.name, broker.broker_id, broker.is_master, broker.error) for broker in brokers] == [
        (name, 0, True, None) for name in names
    ]
    for broker in brokers:
        runtime = broker.runtime
        assert runtime is not None
        assert runtime.version == "5.3.3"
        assert runtime.commit_log_bytes > 0
        assert 0 <= (runtime.disk_ratio or 0.0) <= 1
        assert abs(runtime.started_ms - time.time() * 1000) < 3_600_000
        assert runtime.raw.keys() == admin.broker_runtime(broker.address).raw.keys()
    assert sum(broker.runtime.put_today for broker in brokers if broker.runtime) >= 4
    assert [broker.name for broker in admin.brokers(cluster=brokers[0].cluster)] == names
    with pytest.raises(ClientError, match="No cluster is named 'nowhere'"):
        admin.brokers(cluster="nowhere")


def test_an_unavailable_broker_does_not_hide_others(fake: Callable[..., FakeCluster], nobody: str) -> None:
    fakes = fake(1)
    (broker,) = fakes.brokers
    fakes.addresses["b1"] = {0: nobody}
    topics = b'{"topicConfigTable":{"t":{"topicName":"t","readQueueNums":3,"writeQueueNums":2,"perm":4}}}'
    fakes.name_server.responses[LIST_TOPICS] = says(0, body=b'{"topicList":["alone"]}')
    broker.responses |= {
        RequestCode.GET_BROKER_RUNTIME_INFO: says(
            0,
            body=b'{"table":{"brokerVersionDesc":"V4_9_8","putTps":"1.5 2 x","getTransferedTps":"3.0",'
            b'"commitLogDiskRatio":"0.25"}}',
        ),
        RequestCode.GET_ALL_TOPIC_CONFIG: says(0, body=topics),
    }
    with Admin(fakes.name_server.address) as admin:
        there, away = admin.brokers()
        assert there.runtime is not None
        assert (there.runtime.version, there.runtime.put_tps, there.runtime.put_tps_10m) == ("4.9.8", 1.5, 0.0)
        assert (there.runtime.get_tps, there.runtime.disk_ratio) == (3.0, 0.25)
        assert away.runtime is None
        assert nobody in (away.error or "")
        failed: Failures = {}
        found = {info.name: info for info in admin.topic_list(failed=failed)}
        assert list(failed) == ["b1"]
        assert (found["t"].read_queues, found["t"].write_queues, found["t"].perm) == (3, 2, "R-")
        assert found["alone"].configs == {}
        with pytest.raises(RemotingConnectError, match=nobody.rpartition(":")[2]):
            admin.topic_list()
        fakes.addresses["b1"] = {2: nobody, 1: broker.address}
        found = {info.name: info for info in admin.topic_list()}
        assert sorted(found["t"].configs) == ["b0", "b1"], "for want of its master a slave is asked"


def test_paged_lists_are_merged(fake: Callable[..., FakeCluster]) -> None:
    """Late 5.x brokers return some thousand topics or groups per response."""
    fakes = fake(1)
    topics, groups = ([f"{kind}{number:02}" for number in range(25)] for kind in "tg")

    def part(names: list[str], seq: str, table: str, name: str, total: str) -> Handler:
        def respond(request: RemotingCommand) -> RemotingCommand:
            first = int(request.ext_fields[seq])
            assert ("dataVersion" in request.ext_fields) == (first > 0)
            body = json.dumps({table: {one: {name: one} for one in names[first : first + 10]}}).encode()
            return RemotingCommand.response(request, 0, None, {total: str(len(names))}, body)

        return respond

    of_topics = part(topics, "topicSeq", "topicConfigTable", "topicName", "totalTopicNum")
    of_groups = part(groups, "groupSeq", "subscriptionGroupTable", "groupName", "totalGroupNum")
    fakes.name_server.responses[LIST_TOPICS] = says(0, body=b'{"topicList":[]}')
    fakes.everywhere(RequestCode.GET_ALL_TOPIC_CONFIG, of_topics)
    fakes.everywhere(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, of_groups)
    with Admin(fakes.name_server.address) as admin:
        assert [info.name for info in admin.topic_list()] == topics
        assert [info.name for info in admin.groups()] == groups
        assert sorted(admin.topic_configs("b0")) == topics
        assert sorted(admin.subscription_groups("b0")) == groups
        fakes.everywhere(RequestCode.GET_ALL_TOPIC_CONFIG, says(0, ext={"totalTopicNum": "9"}, body=b"{}"))
        assert admin.topic_configs("b0") == {}, "one that counts wrongly"


def test_many_queries_are_sent_in_batches(admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_IN_FLIGHT", 2)
    names = [f"nobody-{number}" for number in range(9)]
    assert list(admin.group_states(names)) == names
    assert list(admin.topics_stats([topic, *names])) == [topic]


def test_settings_of_brokers_and_name_servers(admin: Admin, cluster: LocalCluster, names: list[str]) -> None:
    admin.update_broker_config(names[0], {"deleteWhen": "05"})
    assert admin.broker_config(names[0])["deleteWhen"] == "05"
    assert admin.name_server_configs()[cluster.name_server]["enableTopicList"] == "true"
    admin.update_name_server_config({"enableTopicList": "false"})
    assert admin.name_server_configs()[cluster.name_server]["enableTopicList"] == "false"
    admin.update_name_server_config({"enableTopicList": "true"})
    for broker in names:
        admin.delete_expired_commit_log(broker)
        admin.clean_expired_queues(broker)


# --- topics -----------------------------------------------------------------------------------------------------


def test_topics_with_their_settings(admin: Admin, names: list[str], topic: str) -> None:
    admin.create_topic(topic + "-one", queues=3, broker=names[1], message_type="FIFO")
    found = {info.name: info for info in admin.topic_list()}
    info = found[topic]
    assert (info.kind, sorted(info.configs), info.read_queues, info.write_queues) == (TopicKind.USER, names, 4, 4)
    assert (info.perm, info.order, info.message_type) == ("RW", False, "UNSPECIFIED")
    one = found[topic + "-one"]
    assert (list(one.configs), one.message_type, one.attributes) == ([names[1]], "FIFO", {"message.type": "FIFO"})
    assert {name for name, info in found.items() if info.kind is TopicKind.SYSTEM} >= {*names, "TBW102"}
    assert admin.topic_config(topic + "-one", broker=names[0]) is None
    config = admin.topic_config(topic, broker=names[0])
    assert config is not None
    assert config.read_queue_nums == 2
    with pytest.raises(TopicNotFoundError):
        admin.groups_of("live-unknown")


def test_a_topic_is_changed_in_part(admin: Admin, names: list[str], topic: str) -> None:
    admin.create_topic(topic, queues=4, broker=names[0], message_type="NORMAL")
    changed = admin.update_topic(topic, write_queues=1)
    assert {name: (config.read_queue_nums, config.write_queue_nums) for name, config in changed.items()} == {
        names[0]: (4, 1),
        names[1]: (2, 1),
    }
    assert admin.update_topic(topic, perm=4, message_type="DELAY", broker=names[1])[names[1]].write_queue_nums == 1
    found = next(info for info in admin.topic_list() if info.name == topic)
    assert [found.configs[name].perm for name in names] == [6, 4]
    assert found.configs[names[1]].attributes == {"message.type": "DELAY"}
    assert found.configs[names[0]].attributes == {"message.type": "NORMAL"}
    with pytest.raises(TopicNotFoundError, match="does not exist on any of the brokers"):
        admin.update_topic("live-unknown", perm=6)


def test_statistics_of_many_topics(admin: Admin, producer: Producer, topic: str) -> None:
    fill(producer, admin, topic, 3)
    stats = admin.topics_stats([topic, "live-unknown"])
    assert list(stats) == [topic]
    assert [(offset.min_offset, offset.max_offset) for offset in stats[topic].offset_table.values()] == [(0, 3)] * 4
    assert stats[topic].offset_table == admin.topic_stats(topic).offset_table
    infos = [info for info in admin.topic_list() if info.name == topic]
    admin.delete_topic(topic)
    assert admin.topics_stats(infos) == {}


# --- groups -----------------------------------------------------------------------------------------------------


def test_groups_and_unknown_groups(admin: Admin, names: list[str], group: str) -> None:
    admin.create_group(group, ordered=True, retry_max_times=3)
    found = {info.name: info for info in admin.groups()}
    assert (sorted(found[group].configs), found[group].ordered, found[group].retry_max_times) == (names, True, 3)
    assert not found[group].is_system
    assert found["TOOLS_CONSUMER"].is_system
    state = admin.group_state("nobody-knows")
    assert (state.members, state.queues, state.lag, state.topics, state.consume_type) == ([], [], 0, [], None)
    assert admin.producers("nobody-knows") == []
    assert admin.delete_group(group, topics=True) == []
    assert group not in {info.name for info in admin.groups()}
    with pytest.raises(BrokerError, match="Online consumers: none"):
        admin.consumer_running_info(group, "1.2.3.4@5")


def test_an_active_group(
    admin: Admin, names: list[str], producer: Producer, topic: str, group: str, consume: Consume
) -> None:
    queues = fill(producer, admin, topic, 3, tags="a")
    listener = RecordingListener()
    seen = listener.messages

    def past(queue: MessageQueue) -> int | None:
        consumer.persist_offsets()
        return admin.committed_offsets(group, topic)[queue]

    with consume(topic, listener, tags="a") as consumer:
        until(lambda: len(seen) == 12)
        consumer.persist_offsets()
        until(lambda: admin.group_state(group).lag == 0)
        state = admin.group_state(group)
        (member,) = state.members
        assert (member.language, member.version, sorted(member.brokers)) == ("PYTHON", "5.3.3", names)
        assert set(state.topics) == {topic, f"%RETRY%{group}"}
        assert state.subscriptions[topic].sub_string == "a"
        assert (state.consume_type, state.message_model, state.online) == ("CONSUME_PASSIVELY", "CLUSTERING", True)
        assert [(q.queue, q.broker_offset, q.consumer_offset) for q in state.queues if q.queue.topic == topic] == [
            (queue, 3, 3) for queue in queues
        ]
        info = admin.consumer_running_info(group, member.client_id)
        assert topic in {subscription.topic for subscription in info.subscription_set}
        assert "Thread" in (admin.consumer_running_info(group, member.client_id, stacks=True).jstack or "")
        result = admin.consume_directly(group, member.client_id, seen[0])
        assert result.consume_result == "CR_SUCCESS"
        assert len(seen) == 13
        assert admin.groups_of(topic) == [group]
        assert {track.group: track.status for track in admin.message_track(seen[0])} == {group: TrackStatus.CONSUMED}
        other = producer.send(Message.of(topic, b"x", tags="b"), queue=queues[0])
        producer.send(Message.of(topic, b"y", tags="a"), queue=queues[0])  # completes pulls that wait for messages
        until(lambda: past(queues[0]) == 5)
        unseen = admin.message(topic, other.msg_id)
        assert unseen is not None
        assert [track.status for track in admin.message_track(unseen)] == [TrackStatus.CONSUMED_BUT_FILTERED]
        with pytest.raises(BrokerError, match=r"online consumers: .*online=True"):
            admin.reset_offsets(group, topic, 0)
        assert set(admin.reset_offsets(group, topic, 0, online=True).values()) == {0}
        assert set(admin.committed_offsets(group, topic).values()) == {0}, "though its members are online"
        resent = admin.resend(seen[0], group=group)
        until(lambda: any(m.msg_id == resent.msg_id for m in seen))
        assert {m.topic for m in seen} == {topic}, "as a message of the topic that it was sent to"
        assert admin.producers("p")[0].language == "PYTHON"
        assert "p" in admin.producer_groups()
    assert admin.delete_group(group, topics=True) == [f"%RETRY%{group}"]


def test_delay_of_a_groups_oldest_message(admin: Admin, producer: Producer, topic: str, group: str) -> None:
    queues = fill(producer, admin, topic, 2)
    admin.create_group(group)
    admin.reset_offsets_to(group, {queues[0]: 1, queues[1]: 2})
    state = admin.group_state(group)
    by_queue = {progress.queue: progress for progress in state.queues}
    assert (by_queue[queues[0]].lag, by_queue[queues[1]].lag) == (1, 0)
    assert by_queue[queues[0]].delay_ms > 0
    assert by_queue[queues[1]].delay_ms == 0
    assert state.delay_ms >= by_queue[queues[0]].delay_ms
    assert state.lag_of(topic) == state.lag
    assert state.lag_of("another") == 0
    states = admin.group_states([group, "nobody-knows"])
    assert states[group].lag == state.lag
    assert states["nobody-knows"].lag == 0
    assert admin.group_states([group], delays=False)[group].delay_ms == 0


# --- offsets ----------------------------------------------------------------------------------------------------


def test_offsets_of_a_group_are_reset(admin: Admin, producer: Producer, topic: str, group: str) -> None:
    queues = fill(producer, admin, topic, 3)
    between = max(m.store_timestamp for m in admin.messages_by_time(topic)) + 1
    until(lambda: time.time() * 1000 > between)
    fill(producer, admin, topic, 2)
    admin.create_group(group)
    assert [(plan.committed, plan.target) for plan in admin.plan_reset(group, topic, between)] == [(None, 3)] * 4
    assert admin.reset_offsets(group, topic, between) == dict.fromkeys(queues, 3)
    assert admin.reset_offsets(group, topic, -1) == dict.fromkeys(queues, 5)
    assert admin.reset_offsets(group, topic, 0) == dict.fromkeys(queues, 0)
    assert admin.reset_offsets_to(group, {queues[1]: 4}) == {queues[1]: 4}
    assert [lag.lag for lag in admin.consumer_lag(group, topic)] == [5, 1, 5, 5]
    assert [plan.committed for plan in admin.plan_reset(group, topic, -1)] == [0, 4, 0, 0]
    admin.create_group(group + "-2")
    admin.clone_offsets(group, group + "-2", topic)
    assert admin.committed_offsets(group + "-2", topic) == admin.committed_offsets(group, topic)
    assert admin.reset_offsets_to(group, {}) == {}
    with pytest.raises(ClientError, match="offsets are 0 to 5"):
        admin.reset_offsets_to(group, {queues[0]: 6})
    with pytest.raises(ClientError, match="the queue does not exist"):
        admin.reset_offsets_to(group, {MessageQueue(topic, queues[0].broker_name, 9): 0})
    with pytest.raises(ClientError, match="2 topics"):
        admin.reset_offsets_to(group, {queues[0]: 0, MessageQueue("another", "b", 0): 0})


def test_a_pending_reset_does_not_block_another_reset(admin: Admin, producer: Producer, topic: str, group: str) -> None:
    queues = fill(producer, admin, topic, 3)
    admin.create_group(group)
    admin._invoke_reset(group, topic, queues[0].broker_name, -1)  # mqadmin does so for a group that is offline
    assert admin.reset_offsets(group, topic, 0) == dict.fromkeys(queues, 0)
    assert admin.committed_offsets(group, topic) == dict.fromkeys(queues, 0)


def test_a_broker_of_4x_moves_members_to_times_only(fake: Callable[..., FakeCluster]) -> None:
    fakes = fake(1)
    fakes.add("t", 1)
    (broker,) = fakes.brokers
    broker.responses |= {
        RequestCode.GET_MIN_OFFSET: says_offset(0),
        RequestCode.GET_MAX_OFFSET: says_offset(9),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: says(0, body=b'{"connectionSet":[{"clientId":"c@1"}]}'),
        RequestCode.GET_BROKER_CONFIG: says(0, body=b"brokerName=b0\n"),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: says(
            0, body=b'{"offsetTable":{{"brokerName":"b0","queueId":0,"topic":"t"}:9}}'
        ),
    }
    with Admin(fakes.name_server.address) as old:
        assert old.reset_offsets("g", "t", -1, online=True) == {QUEUE: 9}
        sent = broker.requests[-1].ext_fields
        assert [sent.get(name) for name in ("timestamp", "offset", "queueId", "isForce")] == ["-1", None, "-1", "true"]
        with pytest.raises(BrokerError, match="only to a time"):
            old.reset_offsets_to("g", {QUEUE: 3}, online=True)


# --- messages ---------------------------------------------------------------------------------------------------


def test_messages_by_either_id(admin: Admin, producer: Producer, topic: str) -> None:
    sent = [producer.send(Message.of(topic, body, keys="k")) for body in (BODY, BINARY, b"\0")]
    for result, body in zip(sent, (BODY, BINARY, b"\0"), strict=True):
        for msg_id in (result.msg_id, result.offset_msg_id):
            found = admin.message(topic, msg_id)
            assert found is not None
            assert (found.body, found.topic, found.broker_name) == (body, topic, result.queue.broker_name)
    assert admin.view_message(sent[0].offset_msg_id).broker_name == sent[0].queue.broker_name
    assert admin.message(topic, "0" * 32) is None
    assert admin.message(topic, "no id") is None
    assert admin.message("TBW102", sent[0].offset_msg_id) is None, "a message of another topic"
    broken = sent[0].offset_msg_id[:-16] + "7FFFFFFFFFFFFF00"
    assert admin.message(topic, broken) is None
    assert len(admin.query_messages(topic, "k")) == 3
    with pytest.raises(TopicNotFoundError):
        admin.message("live-unknown", sent[0].msg_id)


def test_messages_by_time(admin: Admin, producer: Producer, topic: str) -> None:
    assert admin.messages_by_time(topic) == []
    queues = fill(producer, admin, topic, 40, tags="a")
    producer.send(Message.of(topic, b"last", tags="b"), queue=queues[3])
    every = admin.messages_by_time(topic, limit=1000)
    assert len(every) == 161
    assert every[0].body == b"last"
    assert [m.store_timestamp for m in every] == sorted((m.store_timestamp for m in every), reverse=True)
    assert len(admin.messages_by_time(topic, limit=5)) == 5
    oldest = admin.messages_by_time(topic, limit=5, newest=False)
    assert [m.store_timestamp for m in oldest] == sorted(m.store_timestamp for m in every)[:5]
    one = admin.messages_by_time(topic, queue=queues[3], limit=2, tags="a")
    assert [m.queue_offset for m in one] == [39, 38]
    assert [m.body for m in admin.messages_by_time(topic, tags="b || c", limit=7)] == [b"last"]
    middle = every[80].store_timestamp
    within = admin.messages_by_time(topic, middle, middle, limit=1000)
    assert {m.msg_id for m in within} == {m.msg_id for m in every if m.store_timestamp == middle}
    assert admin.messages_by_time(topic, int(time.time() * 1000) + 60_000) == []


def test_messages_of_a_queue_from_an_offset(admin: Admin, producer: Producer, topic: str) -> None:
    queues = fill(producer, admin, topic, 50, tags="a")
    assert [m.queue_offset for m in admin.messages_at(queues[0], 3, 40)] == [*range(3, 43)]
    assert [m.queue_offset for m in admin.messages_at(queues[0], 48, 40)] == [48, 49]
    assert admin.messages_at(queues[0], 50, 10) == []
    page = admin.consume_queue(queues[0], 48, 10)
    assert (page.min_offset, page.max_offset) == (0, 50)
    # Of no group, none matches.
    assert [(entry.queue_offset, entry.matches) for entry in page.entries] == [(48, False), (49, False)]
    last = admin.messages_at(queues[0], 49, 1)[0]
    assert (page.entries[1].physical_offset, page.entries[1].size) == (last.physical_offset, last.store_size)
    assert admin.consume_queue(queues[0], 50, 10).entries == []
    with pytest.raises(TopicNotFoundError):
        admin.consume_queue(MessageQueue("live-unknown", queues[0].broker_name, 0), 0, 1)


def test_groups_that_consumed_a_message(
    admin: Admin, producer: Producer, topic: str, group: str, consume: Consume
) -> None:
    queues = fill(producer, admin, topic, 2)
    (message,) = admin.messages_at(queues[0], 1, 1)
    assert admin.message_track(message) == []
    for name, offset in ((f"{group}-behind", 1), (f"{group}-past", 2)):
        admin.create_group(name)
        admin.reset_offsets_to(name, {queues[0]: offset})
    with consume(topic, group=f"{group}-all", message_model=MessageModel.BROADCASTING):
        until(lambda: f"{group}-all" in admin.groups_of(topic))
        tracks = {track.group.removeprefix(group): track for track in admin.message_track(message)}
    assert {name: track.status for name, track in tracks.items()} == {
        "-all": TrackStatus.CONSUME_BROADCASTING,
        "-behind": TrackStatus.NOT_ONLINE,
        "-past": TrackStatus.CONSUMED,
    }
    assert tracks["-behind"].detail == "committed offset 1, message offset 1"


def test_dead_letters(admin: Admin, producer: Producer, topic: str, group: str, consume: Consume) -> None:
    assert admin.dead_letters(group) == []
    admin.create_group(group, retry_max_times=0)
    sent = producer.send(Message.of(topic, BINARY, keys="k1 k2", tags="a", properties={"näme": "wért"}))
    with consume(topic, lambda *_: AGAIN, max_reconsume_times=0):
        until(lambda: admin.dead_letters(group))
    (dead,) = admin.dead_letters(group)
    assert (dead.topic, dead.body, admin.origin_topic(dead)) == (f"%DLQ%{group}", BINARY, topic)
    (found,) = (one for one in admin.dead_letter_topics() if one.group == group)
    assert (found.topic, found.messages, found.last_update_ms) == (f"%DLQ%{group}", 1, dead.store_timestamp)
    again = admin.resend(dead)
    assert (again.queue.topic, again.msg_id != sent.msg_id) == (topic, True)
    copy = admin.message(topic, again.msg_id)
    assert copy is not None
    assert (copy.body, copy.keys, copy.tags, copy.properties["näme"]) == (BINARY, "k1 k2", "a", "wért")
    assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", "REAL_TOPIC"} & copy.properties.keys()
    for_group = admin.resend(dead, group=group)
    assert for_group.queue.topic == f"%RETRY%{group}"
    with pytest.raises(TopicNotFoundError, match="no retry topic"):
        admin.resend(dead, group="never-there")
    del dead.properties["RETRY_TOPIC"]
    with pytest.raises(ClientError, match="has no record of its original topic"):
        admin.resend(dead)


def test_a_message_is_resent_to_a_popping_group(admin: Admin, names: list[str], topic: str, group: str) -> None:
    """Pop consumption has one retry topic for each topic, created at the first retry."""
    admin.create_group(group)
    retries = f"%RETRY%{group}_{topic}"
    admin.create_topic(retries, queues=1, broker=names[0])
    admin.create_topic(f"%RETRY%{group}", queues=1, broker=names[0])
    sent = admin.send(Message.of(topic, BINARY, keys="k"))
    message = admin.message(topic, sent.msg_id)
    assert message is not None
    copy = admin.resend(message, group=group)
    assert copy.queue.topic == retries
    (stored,) = admin.messages_by_time(retries)
    assert (stored.body, stored.keys, stored.properties["RETRY_TOPIC"]) == (BINARY, "k", topic)
    assert f"{group}_{topic}" not in {info.name for info in admin.groups()}


def test_a_closed_admin(cluster: LocalCluster) -> None:
    admin = Admin(cluster.name_server)
    admin.close()
    admin.close()
    with pytest.raises(StateError):
        admin.send(Message("t", b""))


def test_the_trace_of_a_message(admin: Admin, producer: Producer, names: list[str], topic: str) -> None:
    assert admin.message_trace("0" * 32).events == []
    traces = f"{topic}-traces"
    admin.create_topic(traces, queues=1)
    msg_id = "7F0000010F9C6466E7626C101B61000C"

    def event(kind: TraceType, at: int, **fields: object) -> str:
        of_bean = {name: fields.pop(name) for name in ("tags", "transaction_state") if name in fields}
        bean = TraceBean(topic=topic, msg_id=msg_id, client_host="c1", **of_bean)  # type: ignore[arg-type]
        return encode_trace_data(TraceContext(kind, at, trace_beans=[bean], **fields))  # type: ignore[arg-type]

    sub = {"group_name": "g", "request_id": "R1"}
    texts = [
        event(TraceType.SubAfter, 30, cost_time=7, success=False, context_code=2, **sub),
        event(TraceType.Pub, 10, group_name="p", cost_time=3, tags="a") + event(TraceType.SubBefore, 20, **sub),
        event(TraceType.SubBefore, 40, group_name="g", request_id="R2"),
        event(TraceType.EndTransaction, 50, group_name="p", transaction_state="COMMIT_MESSAGE"),
    ]
    for text in texts:
        producer.send(Message.of(traces, text, keys=msg_id))
    events = admin.message_trace(msg_id, trace_topic=traces).events
    assert [(e.kind, e.time_ms, e.group, e.outcome, e.cost_ms) for e in events] == [
        ("SEND", 10, "p", "SUCCESS", 3),
        ("CONSUME", 20, "g", "EXCEPTION", 7),
        ("CONSUME", 40, "g", None, None),
        ("END_TRANSACTION", 50, "p", "COMMIT_MESSAGE", 0),
    ]
    assert events[0].tags == "a"
    assert admin.message_trace(msg_id, trace_topic="live-unknown").events == []


def test_the_trace_of_a_producer(admin: Admin, cluster: LocalCluster, topic: str) -> None:
    traces = f"{topic}-traces"
    admin.create_topic(traces, queues=1)
    with Producer(
        "traced", name_server=cluster.name_server, enable_msg_trace=True, customized_trace_topic=traces
    ) as traced:
        sent = traced.send(Message.of(topic, b"x", keys="k"))
    until(lambda: admin.message_trace(sent.msg_id, trace_topic=traces).events)
    (event,) = admin.message_trace(sent.msg_id, trace_topic=traces).events
    assert (event.kind, event.group, event.outcome, event.keys) == ("SEND", "traced", "SUCCESS", "k")
