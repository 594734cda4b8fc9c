"""Offsets over the wire: of groups and of queues, by time, and resets."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.broker.state.consumer_offset_manager import ConsumerOffsetManager
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.wire.bodies.config import ConsumerOffsetSerializeWrapper
from spark_rocket.protocol.wire.bodies.consumer import ResetOffsetBody
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.popping import Popper
from tests.broker.wire import SUBSCRIPTION, Wire

pytestmark = pytest.mark.live


@pytest.fixture
def group(wire: Wire, group: str) -> str:
    wire.create_group(group)
    return group


def fill(wire: Wire, topic: str, count: int = 10) -> None:
    wire.send_batch(topic, [Message.of(topic, b"x") for _ in range(count)])


def test_a_new_group_starts_at_0_if_all_is_in_memory(wire: Wire, topic: str, group: str) -> None:
    assert wire.committed(group, topic) == 0
    assert wire.committed(group, topic, setZeroIfNotFound=False) is None


def test_a_new_group_decides_itself_if_messages_are_not_in_memory(
    wire: Wire, topic: str, group: str, parts: BrokerParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumeFromWhere then selects the start: after 22, a client requests the end, or a time."""
    fill(wire, topic)
    assert wire.committed(group, topic) == 0
    with wire.settings(accessMessageInMemoryMaxRatio=0):  # more in the log than fits into memory
        assert wire.committed(group, topic) is None
        wire.commit(group, topic, 0)
        assert wire.committed(group, topic) == 0
    with monkeypatch.context() as patch:  # the first messages have expired
        patch.setattr(parts.store, "get_min_offset", lambda topic, queue_id: 5)
        assert wire.committed(f"{group}-b", topic) is None
    assert wire.committed(f"{group}-b", topic) == 0


def test_committed_offsets_are_found(wire: Wire, topic: str, group: str) -> None:
    assert wire.commit(group, topic, 7).code == 0
    assert wire.committed(group, topic) == 7
    assert wire.committed(group, topic, 1, setZeroIfNotFound=False) is None
    # Apache's broker overwrites, also backwards; "never backwards" is for a client to keep.
    wire.commit(group, topic, 3)
    assert wire.committed(group, topic) == 3


def test_numbers_are_kept_beyond_the_queues_of_a_topic(wire: Wire, topic: str, group: str) -> None:
    """As with Apache's brokers: the exactly-once sink keeps what a query remembers there."""
    assert wire.commit(group, topic, 1 << 62, queue_id=(1 << 31) - 1).code == 0
    assert wire.committed(group, topic, (1 << 31) - 1) == 1 << 62
    assert wire.commit(group, topic, 7, queue_id=-1).code == ResponseCode.SYSTEM_ERROR


def test_a_negative_commit_means_none(wire: Wire, topic: str, group: str) -> None:
    wire.commit(group, topic, 7)
    assert wire.commit(group, topic, -1).code == 0
    assert wire.committed(group, topic) == 7


def test_a_oneway_commit(wire: Wire, topic: str, group: str) -> None:
    wire.tell(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=0, commitOffset=4)
    assert wire.committed(group, topic) == 4  # same connection, hence in order


def test_a_commit_to_a_missing_topic(wire: Wire, topic: str, group: str) -> None:
    assert wire.commit(group, "NoSuchTopic", 1).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_commit_creates_no_group(wire: Wire, topic: str) -> None:
    """As in 5.3.3, so that ``mqadmin cloneGroupOffset`` to a missing group fails."""
    for _ in range(2):
        answer = wire.commit("NoSuchGroup", topic, 1)
        refusal = (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group NoSuchGroup not exist!")
        assert (answer.code, answer.remark) == refusal
    wire.pull(topic, 0, consumerGroup="NoSuchGroup")  # which creates it, with autoCreateSubscriptionGroup
    assert wire.commit("NoSuchGroup", topic, 1).code == 0


@pytest.mark.parametrize("code", [14, 15, 29, 30, 31, 32])
def test_a_missing_field_is_named(wire: Wire, code: int) -> None:
    answer = wire.ask(code, queueId=0)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is missing the required field" in (answer.remark or "")


def test_the_ends_of_a_queue(wire: Wire, topic: str) -> None:
    fill(wire, topic)
    assert (wire.end(topic), wire.end(topic, 1)) == (10, 0)
    assert wire.ask(RequestCode.GET_MIN_OFFSET, topic=topic, queueId=0).ext_fields == {"offset": "0"}


def test_offsets_by_time(wire: Wire, topic: str) -> None:
    fill(wire, topic)
    stored = wire.messages(topic)[0].store_timestamp

    def search(timestamp: int, **more: object) -> str:
        answer = wire.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic=topic, queueId=0, timestamp=timestamp, **more)
        return answer.ext_fields["offset"]

    assert (search(stored), search(stored - 1), search(stored + 1)) == ("0", "0", "10")
    assert search(stored, boundaryType="UPPER") == "9"
    earliest = wire.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic=topic, queueId=0)
    assert earliest.ext_fields == {"timestamp": str(stored)}
    assert wire.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic=topic, queueId=1).ext_fields == {"timestamp": "-1"}


def reset(wire: Wire, group: str, topic: str, **fields: object) -> tuple[int, dict[int, int]]:
    answer = wire.reset(group, topic, **fields)
    if answer.code != ResponseCode.SUCCESS:
        return answer.code, {}
    table = ResetOffsetBody.from_json(bytes(answer.body)).offset_table
    return answer.code, {queue.queue_id: offset for queue, offset in table.items()}


def test_a_reset_moves_a_group_that_is_offline(wire: Wire, topic: str, group: str) -> None:
    fill(wire, topic)
    stored = wire.messages(topic)[0].store_timestamp
    wire.commit(group, topic, 5)
    assert reset(wire, group, topic, timestamp=stored) == (0, {0: 0, 1: 0, 2: 0, 3: 0})
    assert wire.committed(group, topic) == 0
    # Until the group's next pull has the reset in its response, a consumer must not undo it with an old offset.
    assert wire.commit(group, topic, 9).remark == "Offset has been previously reset"
    answer = wire.pull(topic, 5, consumerGroup=group, sysFlag=SUBSCRIPTION)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert answer.ext_fields["nextBeginOffset"] == "0"
    assert wire.commit(group, topic, 9).code == 0
    assert wire.committed(group, topic) == 9


def test_a_reset_of_one_queue(wire: Wire, topic: str, group: str) -> None:
    fill(wire, topic)
    assert reset(wire, group, topic, timestamp=-1, queueId=0) == (0, {0: 10})
    assert reset(wire, group, topic, timestamp=0, queueId=0, offset=4) == (0, {0: 4})
    assert reset(wire, group, topic, timestamp=0, queueId=0, offset=11)[0] == ResponseCode.SYSTEM_ERROR
    assert reset(wire, group, topic, timestamp=0, queueId=9)[0] == ResponseCode.INVALID_PARAMETER
    assert reset(wire, group, "NoSuchTopic", timestamp=0)[0] == ResponseCode.TOPIC_NOT_EXIST


def test_a_held_pull_gets_a_reset_at_once(wire: Wire, topic: str, group: str) -> None:
    fill(wire, topic)
    later = wire.hold(topic, 10, consumerGroup=group)
    reset(wire, group, topic, timestamp=0, queueId=0, offset=4)
    answer = later.result(20)
    assert (answer.remark, answer.ext_fields["nextBeginOffset"]) == ("OFFSET_RESET", "4")


def test_offsets_are_cloned(wire: Wire, topic: str, group: str) -> None:
    wire.commit(group, topic, 7)
    wire.commit(group, topic, 8, 3)
    clone = RequestCode.CLONE_GROUP_OFFSET
    assert wire.ask(clone, srcGroup=group, destGroup=f"{group}-b", topic=topic, offline=True).code == 0
    assert wire.committed(f"{group}-b", topic, 3) == 8


def test_all_offsets_as_requested_by_a_slave(wire: Wire, topic: str, group: str) -> None:
    wire.commit(group, topic, 7, 2)
    body = bytes(wire.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body)
    assert ConsumerOffsetSerializeWrapper.from_json(body).offset_table[f"{topic}@{group}"] == {2: 7}
    assert b"{2:7}" in body  # integer keys stand unquoted


def test_the_table_by_topic_and_group() -> None:
    offsets = ConsumerOffsetManager()
    offsets.commit("g", "T@odd", 0, 1)
    offsets.commit("g", "U", 0, 1)
    offsets.commit("h", "U", 0, 1)
    assert offsets.topics_of("g") == {"T@odd", "U"}
    assert offsets.groups_of("U") == {"g", "h"}
    offsets.remove_topic("U")
    assert offsets.groups_of("U") == set()
    offsets.remove_group("g")
    assert offsets.table == {}
    assert MessageQueue("T", "b", 0) == MessageQueue("T", "b", 0)


def test_a_new_group_of_a_new_topic_starts_at_0_however_much_the_broker_has_written(tmp_path: Path) -> None:
    """It depends on the distance of the queue's first message from the log's end."""
    first_file = tmp_path / "store" / "commitlog" / f"{1 << 50:020d}"  # a petabyte has been written, and deleted
    first_file.parent.mkdir(parents=True)
    size = 1 << 20
    with first_file.open("wb") as file:
        file.truncate(size)
    settings = {"mappedFileSizeCommitLog": size}
    with LocalCluster(data_dir=tmp_path, config=settings, in_process=True) as cluster, RemotingClient() as client:
        wire = Wire(client, cluster.broker_address)
        cluster.create_topic("T")
        for body in (b"first", b"second"):
            wire.send("T", body)
        assert wire.messages("T")[0].physical_offset >= 1 << 50
        assert wire.committed("g", "T") == 0
        assert wire.committed("g", "T", 1) == 0  # nothing in it could be passed over
        assert Popper(wire, "popping", "T").take_bodies(initMode=1) == [b"first", b"second"]
        wire.configure(accessMessageInMemoryMaxRatio=0)
        assert wire.committed("g", "T") is None  # now it is far from the end
