"""A broker on a directory of RocketMQ 5: its configuration is retained, unsupported requests are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from spark_rocket.errors import StoreError
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.json import loads_tolerant
from tests.broker.test_golden_store import served
from tests.kit.clock import START, Clock

pytestmark = pytest.mark.live

VERSION = {"counter": 3, "stateVersion": 0, "timestamp": 1_795_229_599_408}
TOPIC = {
    "attributes": {"message.type": "FIFO"},
    "order": False,
    "perm": 6,
    "readQueueNums": 8,
    "topicFilterType": "SINGLE_TAG",
    "topicName": "T",
    "topicSysFlag": 1,
    "writeQueueNums": 4,
}
BATCHES = {**TOPIC, "topicName": "Batches", "attributes": {"queue.type": "BatchCQ"}}
GROUP = {
    "attributes": {"key": "value"},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": True,
    "consumeTimeoutMinute": 20,
    "groupName": "g",
    "groupRetryPolicy": {"exponentialRetryPolicy": {"initial": 5000, "max": 7_200_000, "multiplier": 2}, "type": "E"},
    "groupSysFlag": 1,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 3,
    "retryQueueNums": 1,
    "subscriptionDataSet": [{"topic": "T", "subString": "*"}],
    "whichBrokerWhenConsumeSlowly": 1,
}
ORDER = {
    "a": "attempt",
    "cm": 1,
    "i": 60_000,
    "l": START,
    "o": [12, 1],
    "oc": {"13": 2},
    "ot": {"13": START + 90_000},
    "popTime": START,
}
MODE = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2, "topic": "T"}
FILES: dict[str, dict[str, Any]] = {
    "topics.json": {"dataVersion": VERSION, "topicConfigTable": {"T": TOPIC, "Batches": BATCHES}},
    "subscriptionGroup.json": {
        "dataVersion": VERSION,
        "forbiddenTable": {"g": {"T": 3}},
        "subscriptionGroupTable": {"g": GROUP},
    },
    "consumerOffset.json": {"dataVersion": VERSION, "offsetTable": {"Elsewhere@g": {"0": 12, "3": 0}}},
    "delayOffset.json": {"dataVersion": VERSION, "offsetTable": {"1": 0, "2": 0}},
    "consumerOrderInfo.json": {"table": {"T@g": {"0": ORDER}}},
    "messageRequestMode.json": {"messageRequestModeMap": {"T": {"g": MODE}}},
}
UNKNOWN = {
    "topicQueueMapping.json": {"dataVersion": VERSION, "topicQueueMappingInfoMap": {}},
    "tieredStoreMetadata.json": {"queueMetadataTable": {}},
    "lmqConsumerOffset.json": {"offsetTable": {}},
    "transactionMetrics": {"transactionCount": {}},
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    for name, content in {**FILES, **UNKNOWN}.items():
        (config / name).write_bytes(orjson.dumps(content))
    return tmp_path / "store"


def test_configuration_is_kept_to_the_last_field(directory: Path) -> None:
    """Saved in fastjson's spelling: tabs, names in order, numbers as keys without quotes."""
    with served(directory, Clock()) as wire:
        assert wire.send("T", properties={"TAGS": "a"}).code == 0
    for name, content in FILES.items():
        text = (directory / "config" / name).read_text()
        saved = loads_tolerant(text)
        for table, entries in content.items():
            assert entries.items() <= saved[table].items(), f"{name}: {table}"
    offsets = (directory / "config" / "consumerOffset.json").read_text()
    assert '\t"offsetTable":{\n\t\t"Elsewhere@g":{0:12,3:0\n\t\t}\n\t}' in offsets
    for name, unknown in UNKNOWN.items():
        assert (directory / "config" / name).read_bytes() == orjson.dumps(unknown)


def test_a_topic_with_batch_queues_accepts_no_messages(directory: Path) -> None:
    """RocketMQ would not find them, because it reads queues of another kind."""
    with served(directory, Clock()) as wire:
        answer = wire.send("Batches")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "queue.type=BatchCQ" in (answer.remark or "")


def test_a_broker_does_not_start_on_an_unsupported_store(directory: Path) -> None:
    (directory / "batchconsumequeue" / "Batches" / "0").mkdir(parents=True)
    (directory / "batchconsumequeue" / "Batches" / "0" / f"{0:020d}").write_bytes(bytes(46_000))
    with pytest.raises(StoreError, match="BatchCQ"), served(directory, Clock()):
        pass
