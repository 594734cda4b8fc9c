"""Responses decoded like Java: fields by the types of its header classes, JSON by those of its body classes.

A header is ``{name: type}``; Java refuses an answer that lacks a field or has one that is not a number of its width. A
body is a nest of ``Class``, ``Listed``, ``Mapped`` and simple types. What Java's class does not know is an error here:
Java would drop it, so it would not be missed.

Written down from Apache's sources, not from this package's own headers and bodies, which could err in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_rocket.protocol.wire.json import loads_tolerant

INT, LONG, DOUBLE, BOOL, STR = "int", "long", "double", "boolean", "String"
_WIDTH = {INT: 1 << 31, LONG: 1 << 63}


@dataclass(frozen=True)
class Enum:
    """One of these words."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Class:
    """Fields by name. A question mark after the name marks fields that can be null, because their users check."""

    fields: dict[str, Any]


@dataclass(frozen=True)
class Listed:
    """A List or Set."""

    of: Any


@dataclass(frozen=True)
class Mapped:
    """A Map; ``key`` is a simple type or a Class."""

    key: Any
    of: Any


def read_header(ext: dict[str, str], header: dict[str, str], more: frozenset[str] = frozenset()) -> dict[str, Any]:
    """As RemotingCommand.decodeCommandCustomHeader; ``more``: fields that are read beside the header."""
    assert ext.keys() - more == header.keys()
    values: dict[str, Any] = {}
    for name, kind in header.items():
        text = ext[name]
        assert type(text) is str
        if kind in _WIDTH:
            values[name] = int(text)
            assert -_WIDTH[kind] <= values[name] < _WIDTH[kind], name
        elif kind == BOOL:
            assert text in ("true", "false"), name
            values[name] = text == "true"
        else:
            values[name] = text
    return values


def read_body(body: bytes | bytearray | memoryview, kind: Any) -> Any:
    """As RemotingSerializable.decode."""
    value = loads_tolerant(bytes(body))
    check(value, kind, "")
    return value


def check(value: Any, kind: Any, where: str) -> None:
    """AssertionError, naming the place, for a value that is not of the kind."""
    if isinstance(kind, Class):
        assert isinstance(value, dict), where
        known = {name.rstrip("?"): of for name, of in kind.fields.items()}
        assert value.keys() <= known.keys(), (where, value.keys() - known.keys())
        missing = {name for name in kind.fields if not name.endswith("?")} - value.keys()
        assert not missing, (where, missing)
        for name, item in value.items():
            check(item, known[name], f"{where}.{name}")
    elif isinstance(kind, Listed):
        assert isinstance(value, list), where
        for item in value:
            check(item, kind.of, f"{where}[]")
    elif isinstance(kind, Mapped):
        assert isinstance(value, dict), where
        for key, item in value.items():
            if isinstance(kind.key, Class):
                check(dict(key), kind.key, f"{where}{{}}")
            else:
                assert isinstance(key, str), where
                assert kind.key == STR or key.isdigit(), where
            check(item, kind.of, f"{where}{{}}")
    elif isinstance(kind, Enum):
        assert value in kind.words, where
    elif kind in _WIDTH:
        assert type(value) is int, where
        assert -_WIDTH[kind] <= value < _WIDTH[kind], where
    elif kind == DOUBLE:
        assert type(value) in (int, float), where
    elif kind == BOOL:
        assert type(value) is bool, where
    else:
        assert type(value) is str, where


LANGUAGE = Enum(
    (
        *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY"),
        *("OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
    )
)
MESSAGE_QUEUE = Class({"topic": STR, "brokerName": STR, "queueId": INT})
DATA_VERSION = Class({"stateVersion": LONG, "timestamp": LONG, "counter": LONG})
SUBSCRIPTION_DATA = Class(
    {
        "classFilterMode": BOOL,
        "topic": STR,
        "subString": STR,
        "tagsSet": Listed(STR),
        "codeSet": Listed(INT),
        "subVersion": LONG,
        "expressionType": STR,
    }
)
CONNECTION = Class({"clientId": STR, "clientAddr": STR, "language": LANGUAGE, "version": INT})
CONSUMER_CONNECTION = Class(
    {
        "connectionSet": Listed(CONNECTION),
        "subscriptionTable": Mapped(STR, SUBSCRIPTION_DATA),
        "consumeType": Enum(("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")),
        "messageModel": Enum(("BROADCASTING", "CLUSTERING")),
        "consumeFromWhere": Enum(
            ("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"),
        ),
    }
)
PRODUCER_CONNECTION = Class({"connectionSet": Listed(CONNECTION)})
PRODUCER_INFO = Class(
    {"clientId": STR, "remoteIP": STR, "language": LANGUAGE, "version": INT, "lastUpdateTimestamp": LONG}
)
PRODUCER_TABLE_INFO = Class({"data": Mapped(STR, Listed(PRODUCER_INFO))})
CONSUMER_LIST = Class({"consumerIdList": Listed(STR)})
LOCK_BATCH = Class({"lockOKMQSet": Listed(MESSAGE_QUEUE)})
TOPIC_OFFSET = Class({"minOffset": LONG, "maxOffset": LONG, "lastUpdateTimestamp": LONG})
TOPIC_STATS_TABLE = Class({"offsetTable": Mapped(MESSAGE_QUEUE, TOPIC_OFFSET), "topicPutTps?": DOUBLE})
OFFSET_WRAPPER = Class({"brokerOffset": LONG, "consumerOffset": LONG, "pullOffset": LONG, "lastTimestamp": LONG})
CONSUME_STATS = Class({"offsetTable": Mapped(MESSAGE_QUEUE, OFFSET_WRAPPER), "consumeTps": DOUBLE})
CONSUME_STATS_LIST = Class(
    {
        "consumeStatsList": Listed(Mapped(STR, Listed(CONSUME_STATS))),
        "brokerAddr": STR,
        "totalDiff": LONG,
        "totalInflightDiff": LONG,
    }
)
GROUP_LIST = Class({"groupList": Listed(STR)})
TOPIC_LIST = Class({"topicList": Listed(STR), "brokerAddr?": STR})
QUERY_SUBSCRIPTION = Class({"group": STR, "topic": STR, "subscriptionData?": SUBSCRIPTION_DATA})
TIME_SPAN = Class(
    {
        "consumeTimeSpanSet": Listed(
            Class(
                {
                    "messageQueue": MESSAGE_QUEUE,
                    "minTimeStamp": LONG,
                    "maxTimeStamp": LONG,
                    "consumeTimeStamp": LONG,
                    "delayTime": LONG,
                }
            )
        )
    }
)
CONSUME_QUEUE = Class(
    {
        "subscriptionData?": SUBSCRIPTION_DATA,
        "filterData?": STR,
        "queueData": Listed(
            Class(
                {
                    "physicOffset": LONG,
                    "physicSize": INT,
                    "tagsCode": LONG,
                    "extendDataJson?": STR,
                    "bitMap?": STR,
                    "eval": BOOL,
                    "msg?": STR,
                }
            )
        ),
        "maxQueueIndex": LONG,
        "minQueueIndex": LONG,
    }
)
TOPIC_CONFIG = Class(
    {
        "topicName": STR,
        "readQueueNums": INT,
        "writeQueueNums": INT,
        "perm": INT,
        "topicFilterType": Enum(("SINGLE_TAG", "MULTI_TAG")),
        "topicSysFlag": INT,
        "order": BOOL,
        "attributes": Mapped(STR, STR),
    }
)
TOPIC_CONFIGS = Class({"topicConfigTable": Mapped(STR, TOPIC_CONFIG), "dataVersion": DATA_VERSION})
GROUP_CONFIG = Class(
    {
        "groupName": STR,
        "consumeEnable": BOOL,
        "consumeFromMinEnable": BOOL,
        "consumeBroadcastEnable": BOOL,
        "consumeMessageOrderly": BOOL,
        "retryQueueNums": INT,
        "retryMaxTimes": INT,
        "brokerId": LONG,
        "whichBrokerWhenConsumeSlowly": LONG,
        "notifyConsumerIdsChangedEnable": BOOL,
        "groupSysFlag": INT,
        "consumeTimeoutMinute": INT,
        "attributes": Mapped(STR, STR),
    }
)
GROUP_CONFIGS = Class(
    {
        "subscriptionGroupTable": Mapped(STR, GROUP_CONFIG),
        "forbiddenTable": Mapped(STR, Mapped(STR, INT)),
        "dataVersion": DATA_VERSION,
    }
)
OFFSETS = Class({"offsetTable": Mapped(STR, Mapped(INT, LONG)), "dataVersion": DATA_VERSION})
DELAY_OFFSETS = Class({"offsetTable": Mapped(INT, LONG), "dataVersion?": DATA_VERSION})
KV_TABLE = Class({"table": Mapped(STR, STR)})
RESET_OFFSET = Class({"offsetTable": Mapped(MESSAGE_QUEUE, LONG)})
CONSUMER_STATUS = Class(
    {
        "messageQueueTable": Mapped(MESSAGE_QUEUE, LONG),
        "consumerTable": Mapped(STR, Mapped(MESSAGE_QUEUE, LONG)),
    }
)
STATS_ITEM = Class({"sum": LONG, "tps": DOUBLE, "avgpt": DOUBLE})
STATS_DATA = Class({"statsMinute": STATS_ITEM, "statsHour": STATS_ITEM, "statsDay": STATS_ITEM})
ASSIGNMENTS = Class(
    {
        "messageQueueAssignments": Listed(
            Class({"messageQueue": MESSAGE_QUEUE, "mode": Enum(("PULL", "POP")), "attachments?": Mapped(STR, STR)})
        )
    }
)
REQUEST_MODES = Class(
    {
        "messageRequestModeMap": Mapped(
            STR,
            Mapped(
                STR,
                Class({"topic": STR, "consumerGroup": STR, "mode": Enum(("PULL", "POP")), "popShareQueueNum": INT}),
            ),
        )
    }
)
HA_STATUS = Class(
    {
        "master": BOOL,
        "masterCommitLogMaxOffset": LONG,
        "inSyncSlaveNums": INT,
        "haConnectionInfo": Listed(
            Class(
                {
                    "addr": STR,
                    "slaveAckOffset": LONG,
                    "diff": LONG,
                    "inSync": BOOL,
                    "transferredByteInSecond": LONG,
                    "transferFromWhere": LONG,
                }
            )
        ),
        "haClientRuntimeInfo": Class(
            {
                "masterAddr?": STR,
                "transferredByteInSecond": LONG,
                "maxOffset": LONG,
                "lastReadTimestamp": LONG,
                "lastWriteTimestamp": LONG,
                "masterFlushOffset": LONG,
                "activated": BOOL,
            }
        ),
    }
)
TIMER_METRICS = Class(
    {"timingCount": Mapped(STR, Class({"count": LONG, "timeStamp": LONG})), "dataVersion": DATA_VERSION}
)
BROKER_DATA = Class(
    {
        "cluster": STR,
        "brokerName": STR,
        "brokerAddrs": Mapped(LONG, STR),
        "zoneName?": STR,
        "enableActingMaster?": BOOL,
    }
)
ROUTE = Class(
    {
        "orderTopicConf?": STR,
        "queueDatas": Listed(
            Class({"brokerName": STR, "readQueueNums": INT, "writeQueueNums": INT, "perm": INT, "topicSysFlag": INT})
        ),
        "brokerDatas": Listed(BROKER_DATA),
        "filterServerTable": Mapped(STR, Listed(STR)),
    }
)
CLUSTER_INFO = Class({"brokerAddrTable": Mapped(STR, BROKER_DATA), "clusterAddrTable": Mapped(STR, Listed(STR))})
MEMBER_GROUP = Class(
    {"brokerMemberGroup": Class({"cluster": STR, "brokerName": STR, "brokerAddrs": Mapped(LONG, STR)})}
)

# --- headers --------------------------------------------------------------------------------------------------------

SEND = {"msgId": STR, "queueId": INT, "queueOffset": LONG, "transactionId": STR}
SEND_BESIDE = frozenset({"MSG_REGION", "TRACE_ON"})
PULL = {"suggestWhichBrokerId": LONG, "nextBeginOffset": LONG, "minOffset": LONG, "maxOffset": LONG}
OFFSET = {"offset": LONG}
TIMESTAMP = {"timestamp": LONG}
QUERY_MESSAGE = {"indexLastUpdateTimestamp": LONG, "indexLastUpdatePhyoffset": LONG}
POP = {
    "popTime": LONG,
    "invisibleTime": LONG,
    "reviveQid": INT,
    "restNum": LONG,
    "startOffsetInfo": STR,
    "msgOffsetInfo": STR,
}
PEEK = {"popTime": LONG, "invisibleTime": LONG, "reviveQid": INT, "restNum": LONG}
CHANGED = {"popTime": LONG, "invisibleTime": LONG, "reviveQid": INT}
NOTIFICATION = {"hasMsg": BOOL, "pollingFull": BOOL}
CHECK_TRANSACTION = {
    "tranStateTableOffset": LONG,
    "commitLogOffset": LONG,
    "msgId": STR,
    "transactionId": STR,
    "offsetMsgId": STR,
}
RESET_IN_CONSUMER = {"group": STR, "topic": STR, "timestamp": LONG, "isForce": BOOL, "queueId": INT}
PUSH_REPLY = {
    "producerGroup": STR,
    "topic": STR,
    "defaultTopic": STR,
    "defaultTopicQueueNums": INT,
    "queueId": INT,
    "sysFlag": INT,
    "bornTimestamp": LONG,
    "flag": INT,
    "properties": STR,
    "reconsumeTimes": INT,
    "unitMode": BOOL,
    "bornHost": STR,
    "storeHost": STR,
    "storeTimestamp": LONG,
}
