"""Names with paths outside of the store are refused by every request before a file is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.broker.state.config_files import ConfigFile
from spark_rocket.broker.state.topic_config_manager import TopicConfigManager
from spark_rocket.client.core.validators import check_group, check_topic
from spark_rocket.datasource.options.parsers import can_be_written
from spark_rocket.errors import RocketError
from spark_rocket.model import Message, group_problem, topic_problem
from spark_rocket.protocol.ids import RecallMessageHandle, pack_host
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.store import PutStatus
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.store.helpers import BORN, opened, put, small

NAMES = (
    "..",
    ".",
    "../../x",
    "../consumequeue/x",
    "a/../../x",
    "/etc/x",
    "x/",
    "..\\x",
    "C:\\x",
    "%2e%2e%2fx/..",
    "x\0",
    "x\0/../y",
    "%RETRY%../../x",
    "%DLQ%../x",
    "x\n",
    "～/x",
    "\u2024\u2024/x",
)


_OWN = {"topics", "consumerOffset", "subscriptionGroup", "delayOffset", "consumerOrderInfo", "messageRequestMode"}
_OWN |= {"timercheck", "timermetrics"}


def tree(directory: Path) -> set[str]:
    """All files of the directory, without the tables that a running broker saves."""
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if not (path.parent.name == "config" and path.name.partition(".")[0] in _OWN)
    }


@pytest.mark.live
@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_requests(cluster: LocalCluster, wire: Wire, name: str) -> None:
    """Topics, groups and handles of every request that could create something by a name."""
    around = cluster.store_dir.parent
    before = tree(around)
    handle = RecallMessageHandle(name.replace("\n", "-"), "broker-a", "1795229620131", "7F").encode()
    group = json.dumps({"groupName": name}).encode()
    mode = json.dumps({"topic": name, "consumerGroup": "g", "mode": "PULL"}).encode()
    topics = json.dumps({"topicConfigList": [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1}]}).encode()
    numbers = {"queueId": 0, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    sent = [
        wire.send(name),
        wire.send(name, j=1),
        wire.send_batch(name, [Message(name, b"a"), Message(name, b"b")]),
        wire.ask(Code.UPDATE_AND_CREATE_TOPIC, topic=name, defaultTopic="TBW102", **numbers),
        wire.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, topics),
        wire.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group),
        wire.ask(Code.SET_MESSAGE_REQUEST_MODE, mode),
        wire.ask(Code.RECALL_MESSAGE, producerGroup="g", topic=name, recallHandle=handle),
        wire.ask(Code.CONSUMER_SEND_MSG_BACK, offset=0, group=name, delayLevel=0, originTopic=name),
        wire.pull(name, 0),
        wire.pull("x", 0, consumerGroup=name),
    ]
    assert [answer.code for answer in sent if answer.code == 0] == []
    for code in (Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_SUBSCRIPTIONGROUP):  # what is not there is gone: no error
        wire.ask(code, topic=name, groupName=name, cleanOffset=True)
    wire.commit(name, name, 5)
    assert tree(around) == before


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_names_by_themselves(name: str) -> None:
    """In broker, client and connector, before anything is sent or opened."""
    assert topic_problem(name) is not None
    assert group_problem(name) is not None
    assert not can_be_written(name)
    for check in (check_topic, check_group):
        with pytest.raises(RocketError):
            check(name)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "/" in name or "\0" in name or name in (".", "..")], ids=repr
)
def test_records(tmp_path: Path, name: str) -> None:
    """In a log of a master or of a disk: a slave and a recovery keep the record and create no queue."""
    record = encode_record(
        name.encode(),
        0,
        b"body",
        b"",
        queue_offset=0,
        physical_offset=0,
        born_timestamp=1,
        born_host=pack_host(("127.0.0.1", 1)),
        store_timestamp=1_700_000_000_000,
        store_host=pack_host(("127.0.0.1", 1)),
    )
    slave = tmp_path / "a" / "b" / "slave"
    store = opened(small(slave, is_replica=True))
    assert store.replica is not None
    store.replica.append(0, record)
    assert store.max_physical_offset == len(record)
    store.close()
    again = opened(small(slave))
    assert put(again, "Fine", 0, b"x").physical_offset == len(record)
    again.close()
    assert [path.name for path in (slave / "consumequeue").iterdir()] == ["Fine"]
    assert tree(tmp_path) - {f"a/b/slave/{each}" for each in tree(slave)} == {"a", "a/b", "a/b/slave"}


def test_config_files(tmp_path: Path) -> None:
    """topics.json with such names: the names are retained, and no message is stored for them."""
    table = {name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in NAMES}
    path = tmp_path / "store" / "config" / "topics.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"topicConfigTable": table}), encoding="utf-8")
    topics = TopicConfigManager(BrokerConfig(), lambda: 1)
    assert ConfigFile(path, topics.text, topics.load).load()
    assert set(NAMES) <= set(topics.table)
    store = opened(small(tmp_path / "store"))
    before = tree(tmp_path)
    for name in NAMES:
        if "/" in name or "\0" in name or name in (".", ".."):
            result = store.put_message(name, 0, b"x", b"", born_timestamp=1, born_host=BORN)
            assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert tree(tmp_path) == before
    store.close()
    check_store(tmp_path / "store")
