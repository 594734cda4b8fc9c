"""A slave's copy of its master's state, its responses to clients, and its refusals."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.broker import Broker
from spark_rocket.broker.metrics.exporter import BrokerMetrics
from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.client.consume.pull import PullStatus
from spark_rocket.errors import RemotingConnectError, RocketError
from spark_rocket.model import Message
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.exposition import Exposition
from spark_rocket.store.tools.check import check_store
from tests.broker.wire import Wire
from tests.kit.brokers import Pair
from tests.kit.scripted import Fake, says
from tests.kit.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    stores = {broker.config.store.store_path for broker in pair.brokers}
    pair.close()
    for path in stores:
        assert check_store(path) == []


def ask(address: str, code: int, body: bytes = b"", **ext: str) -> RemotingCommand:
    with RemotingClient() as client:
        return client.invoke(address, RemotingCommand.request(code, ext, body), 30)


def table_of(broker: Broker, file: str) -> Any:
    return broker.parts.files[file].snapshot()


def test_a_slave_copies_its_masters_state(pair: Pair) -> None:
    master, slave = pair.master.parts, pair.slave.parts
    with Admin(pair.addresses) as admin, Producer("p", name_server=pair.addresses) as producer:
        admin.create_topic("t", 2)
        admin.create_topic("gone", 1)
        admin.create_group("g", ordered=True, retry_max_times=3)
        producer.send(Message("t", b"x"))
        queue = producer.queues("t")[0]
        with Reader(pair.addresses) as reader:
            reader.commit_offset("g", queue, 1)
        mode = {"topic": "t", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2}
        assert ask(pair.master.address, RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps(mode).encode()).code == 0
        producer.send(Message("t", b"later", {"DELAY": "1"}))
        names = ("topics", "groups", "delays", "modes")
        until(lambda: all(table_of(pair.slave, name) == table_of(pair.master, name) for name in names))
        until(lambda: slave.offsets.table == master.offsets.table)
        assert slave.offsets.query("g", "t", queue.queue_id) == 1
        found = slave.groups.get("g")
        assert found is not None
        assert (found.consume_message_orderly, found.retry_max_times) == (True, 3)
        admin.delete_topic("gone")
        until(lambda: "gone" not in slave.topics.table)
    pair.caught_up()


@pytest.mark.parametrize("notified", [True, False])
def test_a_topic_that_is_deleted_and_recreated(pair: Pair, notified: bool) -> None:
    """With and without a notification of the deletion: the log alone is enough."""
    assert pair.slave.parts.synchronize is not None
    if not notified:
        pair.do(pair.slave.parts.synchronize.close())
    with Admin(pair.addresses) as admin, Producer("p", name_server=pair.addresses) as producer:
        for rest in (40, 30, 20):
            admin.create_topic("t", 1)
            for number in range(rest):
                producer.send(Message("t", b"%d of %d" % (number, rest)))
            if rest > 20:
                admin.delete_topic("t")
        pair.caught_up()
        slave = pair.slave.parts
        until(lambda: not notified or slave.topics.data_version == pair.master.parts.topics.data_version)
        assert slave.store.get_max_offset("t", 0) == 20
        pull = slave.store.get_message("t", 0, 0, 100, 1 << 20)
        assert (pull.count, pull.next_begin_offset) == (20, 20)
        admin.delete_topic("t")
        until(lambda: not notified or slave.store.queues("t") == [])
        admin.create_topic("t", 1)
        producer.send(Message("t", b"x"))
        pair.caught_up()
        assert (slave.store.get_min_offset("t", 0), slave.store.get_max_offset("t", 0)) == (0, 1)


def test_a_master_that_has_lost_its_list_of_topics_has_deleted_none(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    master, slave = pair.master.parts, pair.slave.parts
    with Admin(pair.addresses) as admin, Producer("p", name_server=pair.addresses) as producer:
        for topic in ("t", "u"):
            admin.create_topic(topic, 1)
            producer.send(Message(topic, b"x"))
        pair.caught_up()
        until(lambda: {"t", "u"} <= slave.topics.table.keys())
        pair.loop.call_soon_threadsafe(master.topics.delete, "t")
        until(lambda: "t" not in slave.topics.table and f"master at {pair.master.address} has messages" in caplog.text)
        admin.delete_topic("u")
        until(lambda: slave.store.queues("u") == [])
        assert slave.store.get_max_offset("t", 0) == 1
        assert sum("has messages of topic t, but does not list" in line for line in caplog.messages) == 1
        admin.create_topic("t", 1)
        until(lambda: "t" in slave.topics.table)
        assert slave.store.get_max_offset("t", 0) == 1
        admin.delete_topic("t")
        until(lambda: slave.store.queues("t") == [])


def test_requests_that_a_slave_serves(pair: Pair) -> None:
    queue = pair.filled("t", *[b"%d" % number for number in range(10)])
    with Reader(pair.addresses, group="g") as reader:
        assert reader.pull(queue, 0).from_master
        held = reader.pull_async(queue, 10, suspend_ms=30_000)
        pair.stop(pair.master)
        with pytest.raises(RemotingConnectError):
            held.result(30)
        found = reader.pull(queue, 0)
        assert (found.status, found.from_master) == (PullStatus.FOUND, False)
        assert [message.body for message in reader.messages(queue, 0)] == [b"%d" % number for number in range(10)]
        assert reader.slave_max_offset(queue) == 10
        assert reader.commit_to_slave("g", queue, 7)
        assert reader.committed_offset("g", queue) == 7
    with RemotingClient() as client:
        wire = Wire(client, pair.slave.address)
        beyond = wire.pull("t", 50)
        assert (beyond.code, beyond.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "50")
        assert wire.configure(offsetCheckInSlave=True).code == 0
        beyond = wire.pull("t", 50)
        assert (beyond.code, beyond.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "10")


def test_a_slave_of_another_cluster_keeps_its_own(tmp_path: Path) -> None:
    """Its log differs from its master's: neither the log nor its state is replaced."""
    pair = Pair(tmp_path)
    pair.stop(pair.slave)
    other = pair.add("b", 0)
    for broker, topic in ((pair.master, "ours"), (other, "theirs")):
        store, topics = broker.parts.store, broker.parts.topics
        pair.loop.call_soon_threadsafe(topics.ensure, topic)
        pair.loop.call_soon_threadsafe(
            lambda store=store, topic=topic: store.put_message(  # type: ignore[misc]
                topic, 0, topic.encode(), b"", born_timestamp=1, born_host=("127.0.0.1", 5)
            )
        )
        until(lambda store=store: store.max_physical_offset > 0)  # type: ignore[misc]
    pair.stop(other)
    slave = pair.add("a", 1, store="b0")
    until(lambda: slave.parts.slave and slave.parts.slave.problem)
    assert slave.parts.synchronize is not None
    assert slave.parts.synchronize.master_address == pair.master.address
    assert slave.parts.synchronize.rounds == 0
    assert "theirs" in slave.parts.topics.table
    assert "ours" not in slave.parts.topics.table
    pair.close()


def test_messages_of_a_topic_that_is_only_in_the_log(pair: Pair) -> None:
    """Acknowledged just before the master was killed."""
    assert pair.slave.parts.synchronize is not None
    pair.do(pair.slave.parts.synchronize.close())
    with Admin(pair.addresses) as admin, Producer("p", name_server=pair.addresses) as producer:
        admin.create_topic("late", 2)
        queue = producer.queues("late")[1]
        producer.send(Message("late", b"x"), queue=queue)
        pair.caught_up()
    known = pair.slave.parts.topics.get("late")
    assert known is not None
    assert known.read_queue_nums == 2, "so many are known of"
    with RemotingClient() as client:
        wire = Wire(client, pair.slave.address)
        assert wire.pull("late", 0, queue_id=1).code == ResponseCode.SUCCESS
        assert wire.pull("never", 0).code == ResponseCode.TOPIC_NOT_EXIST
    pair.stop(pair.master)
    pair.stop(pair.slave)
    pair.add("a", 0, store="a1")
    with Reader(pair.addresses) as reader:

        def is_read() -> bool:
            try:
                return [message.body for message in reader.messages(queue, 0)] == [b"x"]
            except RocketError:  # the name server does not know of the new master yet
                return False

        until(is_read)


def test_a_topic_found_in_the_log_is_requested_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair.slave.parts.synchronize, "period", 3600)
    pair.filled("new", b"x")


def test_requests_that_a_slave_refuses(pair: Pair) -> None:
    address = pair.slave.address
    with RemotingClient() as client:
        sent = Wire(client, address).send("new")
    assert sent.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "slave" in str(sent.remark)
    for code in (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_SUBSCRIPTIONGROUP):
        refused = ask(address, code)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "on its master" in str(refused.remark)
    assert ask(address, RequestCode.POP_MESSAGE).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert ask(address, RequestCode.END_TRANSACTION).code == ResponseCode.SLAVE_NOT_AVAILABLE
    tables = [dict(pair.slave.parts.topics.table), dict(pair.slave.parts.groups.table)]
    body = {
        "clientID": "c",
        "producerDataSet": [],
        "consumerDataSet": [{"groupName": "new", "subscriptionDataSet": []}],
    }
    assert ask(address, RequestCode.HEART_BEAT, json.dumps(body).encode()).code == 0
    assert "new" not in pair.slave.parts.groups.table, "a slave has what its master has, and no more"
    assert tables == [pair.slave.parts.topics.table, pair.slave.parts.groups.table]


def test_topics_are_deleted_as_mqadmin_does(pair: Pair) -> None:
    """At all brokers of the cluster, possibly slaves first, up to the first refusal."""
    pair.filled("t", b"x")
    for code in (RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER):
        left = ask(pair.slave.address, code, topic="t")
        assert left.code == ResponseCode.SUCCESS
        assert "when its master does" in str(left.remark)
    assert "t" in pair.slave.parts.topics.table
    assert ask(pair.master.address, RequestCode.DELETE_TOPIC_IN_BROKER, topic="t").code == ResponseCode.SUCCESS
    until(lambda: "t" not in pair.slave.parts.topics.table)


def test_a_group_far_behind_reads_from_the_slave(pair: Pair) -> None:
    settings = b"slaveReadEnable=true\naccessMessageInMemoryMaxRatio=0"
    queue = pair.filled("t", b"x")
    with Reader(pair.addresses, group="g") as reader:
        assert reader.pull(queue, 0).suggested_broker == 0
        assert ask(pair.master.address, RequestCode.UPDATE_BROKER_CONFIG, settings).code == 0
        assert reader.pull(queue, 0).suggested_broker == 1
        assert not reader.pull(queue, 0).from_master
        assert reader.pull(queue, 0).from_master, "the slave does not know of the setting"
        assert reader.pull(queue, 1).status is PullStatus.NO_NEW_MSG
        assert reader.pull(queue, 1).suggested_broker == 0


def test_delivered_messages_are_not_delivered_by_another_master(pair: Pair) -> None:
    master = pair.master.parts
    due = pair.clock_of("a0") + 300
    with Admin(pair.addresses) as admin, Producer("p", name_server=pair.addresses) as producer:
        admin.create_topic("t", 1)
        for number in range(5):
            producer.send(Message("t", b"timed %d" % number, {"TIMER_DELIVER_MS": str(due)}))
            producer.send(Message("t", b"delayed %d" % number, {"DELAY": "1"}))
        until(lambda: master.store.get_max_offset("t", 0) == 10)
        pair.ahead = 30_000  # what is due within 10 s of what the timer remembers is delivered again
        producer.send(Message("t", b"next", {"TIMER_DELIVER_MS": str(pair.clock_of("a0") + 300)}))
        producer.send(Message("t", b"last", {"TIMER_DELIVER_MS": str(pair.clock_of("a0") + 60_000)}))
    until(lambda: master.store.get_max_offset("t", 0) >= 11)
    # Nothing counts as delivered before it is on the disk, which little data waits 10 s for.
    pair.loop.call_soon_threadsafe(master.store.flush)
    checkpoint = pair.slave.config.store.store_path / "config" / "timercheck"
    until(lambda: checkpoint.exists() and int.from_bytes(checkpoint.read_bytes()[:8], "big") > due + 20_000)
    pair.loop.call_soon_threadsafe(pair.master.parts.saver.save_delay_offsets)
    until(lambda: table_of(pair.slave, "delays")["offsetTable"] == {1: 5})
    pair.caught_up()
    pair.stop(pair.master)
    pair.stop(pair.slave)
    pair.ahead += 60_000
    store = pair.add("a", 0, store="a1").parts.store

    def bodies() -> list[bytes]:
        found = store.get_message("t", 0, 0, 100, 1 << 20)
        return [message.body for message in decode_messages(found.records, "a")]

    until(lambda: b"last" in bodies())
    assert sorted(body for body in bodies() if b" " in body) == sorted(
        kind + b" %d" % number for kind in (b"timed", b"delayed") for number in range(5)
    )


# --- invalid responses ----------------------------------------------------------------------------------------------


def slave_of_fake(responses: dict[int, Callable[..., Any]], directory: Path) -> tuple[Pair, Fake]:
    pair = Pair(directory, start=False)
    pair.slave = pair.add("a", 1)
    return pair, Fake(responses)


def test_a_master_with_invalid_responses_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    version = {"stateVersion": 0, "timestamp": 5, "counter": 7}

    def topics(**table: object) -> bytes:
        return json.dumps({"dataVersion": version, "topicConfigTable": table}).encode()

    t = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    bad = [b"", b"[]", b"{", b'{"topicConfigTable":{}}', topics(t=5), topics(t={"perm": "x"})]
    pair, fake = slave_of_fake({}, tmp_path)
    fake.responses[RequestCode.GET_ALL_TOPIC_CONFIG] = says(ResponseCode.SYSTEM_ERROR, "no")
    slave, sync = pair.slave.parts, pair.slave.parts.synchronize
    assert sync is not None
    before = dict(slave.topics.table)
    with caplog.at_level(logging.WARNING):
        fake.responses[RequestCode.GET_ALL_TOPIC_CONFIG] = says(0, body=b"")
        pair.loop.call_soon_threadsafe(sync.set_master, fake.address)
        assert pair.slave.parts.slave is not None
        pair.slave.parts.slave.is_following = True
        for body in bad:
            fake.responses[RequestCode.GET_ALL_TOPIC_CONFIG] = says(0, body=body)
            seen = len(fake.requests)
            until(lambda seen=seen: len(fake.requests) > seen + 2)  # type: ignore[misc]
            assert slave.topics.table == before
            assert sync.rounds == 0
        assert sum(f"with the master at {fake.address} failed" in line for line in caplog.messages) == 1

        fake.responses[RequestCode.GET_ALL_TOPIC_CONFIG] = says(0, ext={"totalTopicNum": "2"}, body=topics(t=t))
        seen = len(fake.requests)
        until(lambda: len(fake.requests) > seen + 4)
        assert slave.topics.table == before, "a part of the topics is not all of them"

        # In two parts, as newer masters give large tables.
        def part(request: RemotingCommand) -> RemotingCommand:
            first = request.ext_fields.get("topicSeq") == "0"
            body = topics(t=t) if first else topics(u=t)
            return RemotingCommand.response(request, 0, None, {"totalTopicNum": "2"}, body)

        fake.responses[RequestCode.GET_ALL_TOPIC_CONFIG] = part
        fake.responses[RequestCode.GET_ALL_CONSUMER_OFFSET] = says(0, body=b'{"offsetTable":{"t@g":{0:5}}}')
        fake.responses[RequestCode.GET_ALL_DELAY_OFFSET] = says(0, body=b'{"offsetTable":{1:3}}')
        end = [100]

        def state(request: RemotingCommand) -> RemotingCommand:
            body = json.dumps({"table": {"commitLogMaxOffset": str(end[0])}}).encode()
            return RemotingCommand.response(request, 0, None, None, body)

        fake.responses[RequestCode.GET_BROKER_RUNTIME_INFO] = state
        groups = {"dataVersion": version, "subscriptionGroupTable": {"g": {}}}
        fake.responses[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = says(0, body=json.dumps(groups).encode())
        until(lambda: sync.rounds > 1)
        fake.responses[RequestCode.GET_ALL_CONSUMER_OFFSET] = says(0, body=b'{"offsetTable":{"t@g":{0:7}}}')
        rounds = sync.rounds
        until(lambda: sync.rounds > rounds + 1)
        assert set(slave.topics.table) == {"t", "u"}
        assert set(slave.groups.table) == {"g"}
        assert slave.offsets.query("g", "t", 0) == 5, "the first, but none that may be of what the log does not have"
        delays = slave.schedule_message_service
        assert delays.snapshot()["offsetTable"] == {}, "the log does not have what was delivered"
        end[0] = 0
        until(lambda: delays.snapshot()["offsetTable"] == {1: 3})
        assert slave.offsets.query("g", "t", 0) == 7
        assert any("works again" in line for line in caplog.messages)
    fake.close()
    pair.close()
    assert check_store(pair.slave.config.store.store_path) == []


# --- metrics ----------------------------------------------------------------------------------------------------


def test_metrics_of_both_servers(pair: Pair) -> None:
    with Producer("p", name_server=pair.addresses) as producer:
        producer.send(Message("t", b"x"))
    pair.caught_up()

    async def figures(broker: Broker) -> tuple[str, list[str]]:
        metrics, exposition = BrokerMetrics(broker), Exposition(BrokerMetrics.metrics)
        list(metrics.collect(exposition))
        return exposition.render().decode(), metrics.problems()

    slave = pair.master.parts.replication.slaves[0]
    until(lambda: slave.acked == pair.master.parts.store.max_physical_offset)
    text, problems = pair.do(figures(pair.master))
    assert f'slave="{slave.address}"}} 0' in text
    assert problems == []
    text, problems = pair.do(figures(pair.slave))
    assert re.search(r"^rocket_slave_following\{.*\} 1$", text, re.M)
    assert problems == []
