"""Responses decoded like Java: the fields of its header and body classes with their types.

Java refuses an answer that lacks a field or has one that is not a number of its width. What Java's class does not know
is an error here: Java would drop it, so it would not be missed. A question mark after the type marks fields that can be
null, because their users check.

Written down from Apache's sources, not from this package's own headers and bodies, which could err in the same way.
"""

from __future__ import annotations

import re
from typing import Any

from spark_rocket.protocol.wire.json import loads_tolerant

_DECLARATIONS = """
enum LanguageCode { JAVA CPP DOTNET PYTHON DELPHI ERLANG RUBY OTHER HTTP GO PHP OMS RUST NODE_JS }
enum ConsumeType { CONSUME_ACTIVELY CONSUME_PASSIVELY CONSUME_POP }
enum MessageModel { BROADCASTING CLUSTERING }
enum ConsumeFromWhere { CONSUME_FROM_LAST_OFFSET CONSUME_FROM_FIRST_OFFSET CONSUME_FROM_TIMESTAMP }
enum TopicFilterType { SINGLE_TAG MULTI_TAG }
enum MessageRequestMode { PULL POP }

class MessageQueue { String topic; String brokerName; int queueId }
class DataVersion { long stateVersion; long timestamp; long counter }
class SubscriptionData {
    boolean classFilterMode; String topic; String subString; Set<String> tagsSet; Set<int> codeSet; long subVersion;
    String expressionType
}
class Connection { String clientId; String clientAddr; LanguageCode language; int version }
class ConsumerConnection {
    Set<Connection> connectionSet; Map<String, SubscriptionData> subscriptionTable; ConsumeType consumeType;
    MessageModel messageModel; ConsumeFromWhere consumeFromWhere
}
class ProducerConnection { Set<Connection> connectionSet }
class ProducerInfo {
    String clientId; String remoteIP; LanguageCode language; int version; long lastUpdateTimestamp
}
class ProducerTableInfo { Map<String, List<ProducerInfo>> data }
class GetConsumerListByGroupResponseBody { List<String> consumerIdList }
class LockBatchResponseBody { Set<MessageQueue> lockOKMQSet }
class TopicOffset { long minOffset; long maxOffset; long lastUpdateTimestamp }
class TopicStatsTable { Map<MessageQueue, TopicOffset> offsetTable; double? topicPutTps }
class OffsetWrapper { long brokerOffset; long consumerOffset; long pullOffset; long lastTimestamp }
class ConsumeStats { Map<MessageQueue, OffsetWrapper> offsetTable; double consumeTps }
class ConsumeStatsList {
    List<Map<String, List<ConsumeStats>>> consumeStatsList; String brokerAddr; long totalDiff; long totalInflightDiff
}
class GroupList { Set<String> groupList }
class TopicList { Set<String> topicList; String? brokerAddr }
class QuerySubscriptionResponseBody { String group; String topic; SubscriptionData? subscriptionData }
class QueueTimeSpan {
    MessageQueue messageQueue; long minTimeStamp; long maxTimeStamp; long consumeTimeStamp; long delayTime
}
class QueryConsumeTimeSpanBody { List<QueueTimeSpan> consumeTimeSpanSet }
class ConsumeQueueData {
    long physicOffset; int physicSize; long tagsCode; String? extendDataJson; String? bitMap; boolean eval; String? msg
}
class QueryConsumeQueueResponseBody {
    SubscriptionData? subscriptionData; String? filterData; List<ConsumeQueueData> queueData; long maxQueueIndex;
    long minQueueIndex
}
class TopicConfig {
    String topicName; int readQueueNums; int writeQueueNums; int perm; TopicFilterType topicFilterType;
    int topicSysFlag; boolean order; Map<String, String> attributes
}
class TopicConfigSerializeWrapper { Map<String, TopicConfig> topicConfigTable; DataVersion dataVersion }
class SubscriptionGroupConfig {
    String groupName; boolean consumeEnable; boolean consumeFromMinEnable; boolean consumeBroadcastEnable;
    boolean consumeMessageOrderly; int retryQueueNums; int retryMaxTimes; long brokerId;
    long whichBrokerWhenConsumeSlowly; boolean notifyConsumerIdsChangedEnable; int groupSysFlag;
    int consumeTimeoutMinute; Map<String, String> attributes
}
class SubscriptionGroupWrapper {
    Map<String, SubscriptionGroupConfig> subscriptionGroupTable; Map<String, Map<String, int>> forbiddenTable;
    DataVersion dataVersion
}
class ConsumerOffsetSerializeWrapper { Map<String, Map<int, long>> offsetTable; DataVersion dataVersion }
class DelayOffsetSerializeWrapper { Map<int, long> offsetTable; DataVersion? dataVersion }
class KVTable { Map<String, String> table }
class ResetOffsetBody { Map<MessageQueue, long> offsetTable }
class GetConsumerStatusBody {
    Map<MessageQueue, long> messageQueueTable; Map<String, Map<MessageQueue, long>> consumerTable
}
class BrokerStatsItem { long sum; double tps; double avgpt }
class BrokerStatsData { BrokerStatsItem statsMinute; BrokerStatsItem statsHour; BrokerStatsItem statsDay }
class MessageQueueAssignment { MessageQueue messageQueue; MessageRequestMode mode; Map<String, String>? attachments }
class QueryAssignmentResponseBody { Set<MessageQueueAssignment> messageQueueAssignments }
class SetMessageRequestModeRequestBody {
    String topic; String consumerGroup; MessageRequestMode mode; int popShareQueueNum
}
class MessageRequestModeSerializeWrapper {
    Map<String, Map<String, SetMessageRequestModeRequestBody>> messageRequestModeMap
}
class HAConnectionRuntimeInfo {
    String addr; long slaveAckOffset; long diff; boolean inSync; long transferredByteInSecond; long transferFromWhere
}
class HAClientRuntimeInfo {
    String? masterAddr; long transferredByteInSecond; long maxOffset; long lastReadTimestamp; long lastWriteTimestamp;
    long masterFlushOffset; boolean activated
}
class HARuntimeInfo {
    boolean master; long masterCommitLogMaxOffset; int inSyncSlaveNums; List<HAConnectionRuntimeInfo> haConnectionInfo;
    HAClientRuntimeInfo haClientRuntimeInfo
}
class Metric { long count; long timeStamp }
class TimerMetricsSerializeWrapper { Map<String, Metric> timingCount; DataVersion dataVersion }
class BrokerData {
    String cluster; String brokerName; Map<long, String> brokerAddrs; String? zoneName; boolean? enableActingMaster
}
class QueueData { String brokerName; int readQueueNums; int writeQueueNums; int perm; int topicSysFlag }
class TopicRouteData {
    String? orderTopicConf; List<QueueData> queueDatas; List<BrokerData> brokerDatas;
    Map<String, List<String>> filterServerTable
}
class ClusterInfo { Map<String, BrokerData> brokerAddrTable; Map<String, Set<String>> clusterAddrTable }
class BrokerMemberGroup { String cluster; String brokerName; Map<long, String> brokerAddrs }
class GetBrokerMemberGroupResponseBody { BrokerMemberGroup brokerMemberGroup }

class SendMessageResponseHeader { String msgId; int queueId; long queueOffset; String transactionId }
class ReplyMessageResponseHeader { String msgId; int queueId; long queueOffset }
class PullMessageResponseHeader { long suggestWhichBrokerId; long nextBeginOffset; long minOffset; long maxOffset }
class OffsetResponseHeader { long offset }
class GetEarliestMsgStoretimeResponseHeader { long timestamp }
class QueryMessageResponseHeader { long indexLastUpdateTimestamp; long indexLastUpdatePhyoffset }
class PopMessageResponseHeader {
    long popTime; long invisibleTime; int reviveQid; long restNum; String startOffsetInfo; String msgOffsetInfo
}
class PeekMessageResponseHeader { long popTime; long invisibleTime; int reviveQid; long restNum }
class ChangeInvisibleTimeResponseHeader { long popTime; long invisibleTime; int reviveQid }
class NotificationResponseHeader { boolean hasMsg; boolean pollingFull }
class PollingInfoResponseHeader { int pollingNum }
class GetAllTopicConfigResponseHeader { int totalTopicNum }
class GetAllSubscriptionGroupResponseHeader { int totalGroupNum }
class GetKVConfigResponseHeader { String value }
class AddWritePermOfBrokerResponseHeader { int addTopicCount }
class WipeWritePermOfBrokerResponseHeader { int wipeTopicCount }
class HeartbeatResponse { boolean IS_SUB_CHANGE }
class CheckTransactionStateRequestHeader {
    long tranStateTableOffset; long commitLogOffset; String msgId; String transactionId; String offsetMsgId
}
class ResetOffsetRequestHeader { String group; String topic; long timestamp; boolean isForce; int queueId }
class GetConsumerRunningInfoRequestHeader { String consumerGroup; String clientId; boolean jstackEnable }
class ConsumeMessageDirectlyResultRequestHeader {
    String consumerGroup; String clientId; String topic; String msgId; String brokerName; int topicSysFlag;
    int groupSysFlag
}
class ReplyMessageRequestHeader {
    String producerGroup; String topic; String defaultTopic; int defaultTopicQueueNums; int queueId; int sysFlag;
    long bornTimestamp; int flag; String properties; int reconsumeTimes; boolean unitMode; String bornHost;
    String storeHost; long storeTimestamp
}
"""
_ENUMS: dict[str, list[str]] = {}
_CLASSES: dict[str, dict[str, str]] = {}
"""The types of the fields of each class, with their question marks."""
for _kind, _name, _content in re.findall(r"(enum|class) (\w+) \{([^}]*)\}", _DECLARATIONS):
    if _kind == "enum":
        _ENUMS[_name] = _content.split()
    else:
        _fields = (field.strip().rpartition(" ") for field in _content.split(";"))
        _CLASSES[_name] = {field: of for of, _, field in _fields}
_WIDTH = {"int": 1 << 31, "long": 1 << 63}
SEND_BESIDE = frozenset({"MSG_REGION", "TRACE_ON"})


def read_header(ext: dict[str, str], header: str, more: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Decode like RemotingCommand.decodeCommandCustomHeader; ``more``: fields that are read beside the header."""
    fields = _CLASSES[header] if header else {}
    assert ext.keys() - more == fields.keys()
    values: dict[str, Any] = {}
    for name, kind in fields.items():
        text = ext[name]
        assert type(text) is str
        if kind in _WIDTH:
            values[name] = int(text)
            assert -_WIDTH[kind] <= values[name] < _WIDTH[kind], name
        elif kind == "boolean":
            assert text in ("true", "false"), name
            values[name] = text == "true"
        else:
            values[name] = text
    return values


def read_body(body: bytes | bytearray | memoryview, kind: str) -> Any:
    """Decode like RemotingSerializable.decode."""
    value = loads_tolerant(bytes(body))
    _check(value, kind, kind)
    return value


def _check(value: Any, kind: str, where: str) -> None:
    """AssertionError, naming the place, for a value that is not of the kind."""
    outer, _, inner = kind.partition("<")
    if kind in _CLASSES:
        assert isinstance(value, dict), where
        fields = _CLASSES[kind]
        assert value.keys() <= fields.keys(), (where, value.keys() - fields.keys())
        missing = {name for name, of in fields.items() if not of.endswith("?")} - value.keys()
        assert not missing, (where, missing)
        for name, item in value.items():
            _check(item, fields[name].rstrip("?"), f"{where}.{name}")
    elif outer in ("List", "Set"):
        assert isinstance(value, list), where
        for item in value:
            _check(item, inner[:-1], f"{where}[]")
    elif outer == "Map":
        assert isinstance(value, dict), where
        key_kind, _, item_kind = inner[:-1].partition(", ")
        for key, item in value.items():
            if key_kind in _CLASSES:
                _check(dict(key), key_kind, f"{where}{{}}")
            else:
                assert isinstance(key, str), where
                assert key_kind == "String" or key.isdigit(), where
            _check(item, item_kind, f"{where}{{}}")
    elif kind in _ENUMS:
        assert value in _ENUMS[kind], where
    elif kind in _WIDTH:
        assert type(value) is int, where
        assert -_WIDTH[kind] <= value < _WIDTH[kind], where
    else:
        types = {"double": (int, float), "boolean": (bool,), "String": (str,)}[kind]
        assert type(value) in types, where
