"""Invalid values of every option. A new option without an invalid value here fails a test."""

from __future__ import annotations

import pytest

from spark_rocket.datasource.conditions import CONDITIONS, error
from spark_rocket.datasource.options.parse import parse_given, parse_read_options, parse_write_options
from spark_rocket.datasource.options.table import OPTIONS, WRITES, Option, Scope
from spark_rocket.errors import OptionError, RocketError

NAMES = ["", "no spaces", "a,,b", "x" * 128, "ä"]
TIME = ["", "yesterday", "2026", "20260131", "9" * 19, "9" * 5000, "-2", "-h", "-2w", "-30m2h", "2026-13-01", "1.5"]
TIME += ["1700000000", "99999999999", "100000000"]
JSON_OF_QUEUES = ["", "{", "[]", "{}", "1", '{"orders": 1}', '{"orders": {"b": 1}}', '{"orders": {"b": {"x": 1}}}']
JSON_OF_QUEUES += ['{"orders": {"b": {"0": 1, "0": 2}}}', "[" * 100_000]
COUNT = ["", "0", "-1", "1.5", "many", "1e3", "0x10", "١٢x", "٣", "1_000", "9" * 30, "9" * 19]
DURATION = ["", "-1", "-1s", "1.5", "1.5h", "long", "15 minutes", "1w", "1k", "1\u017f", "9" * 30]
SIZE = ["", "0", "-1", "-1k", "1.5", "many", "10 megabytes", "1h", "1bb", "1e3", "٣k", "9" * 30]
WRONG: dict[str, list[str]] = {
    "nameServer": ["", ";", "localhost", "a:1,b", "a:99999", ":9876", "a:0", "a:b", "https://a:1"],
    "subscribe": NAMES,
    "subscribePattern": ["", " ", "(", "a{2,1}", "[z-a]", "(?<x>a)\\k<y>"],
    "assign": [
        *JSON_OF_QUEUES[:6],
        '{"orders": {"b": []}}',
        '{"orders": {"b": [-1]}}',
        '{"orders": {"b": [0, 0]}}',
        '{"orders": {"b": ["0"]}}',
        '{"orders": {"b": [true]}}',
        '{"a b": {"b": [0]}}',
        '{"orders": {}}',
    ],
    "expectedBrokers": ["", " ", "broker-a,", ",broker-a"],
    "waitForTopic": ["", "yes", "1", "30s"],
    "storePath": ["", " ", "hdfs://x/y", "s3:/x", "file://host/x"],
    "brokerName": [""],
    "startingOffsets": ["", "newest", "-1", *JSON_OF_QUEUES[1:2], '{"orders": {"b": {"0": -3}}}', "{}"],
    "startingTimestamp": TIME,
    "startingOffsetsByTimestamp": [*JSON_OF_QUEUES, '{"orders": {"b": {"0": -1}}}', '{"orders": {"b": {"0": "soon"}}}'],
    "startingOffsetsByTimestampStrategy": ["", "earliest", "fail"],
    "groupOffsetsFallback": ["", "newest", "{}"],
    "endingOffsets": ["", "earliest", "newest", '{"orders": {"b": {"0": 1.5}}}'],
    "endingTimestamp": TIME,
    "endingOffsetsByTimestamp": JSON_OF_QUEUES,
    "maxOffsetsPerTrigger": COUNT,
    "maxBytesPerTrigger": SIZE,
    "trigger": ["", "once", "1 second"],
    "minOffsetsPerTrigger": COUNT,
    "maxTriggerDelay": [*DURATION, "0", "31d"],
    "failOnDataLoss": ["", "maybe", "0"],
    "consumerGroup": ["", "a b", "x" * 121],
    "minPartitions": [*COUNT, "100001"],
    "maxRecordsPerPartition": COUNT,
    "combineSmallRanges": ["", "maybe", "0"],
    "lookupKeys": ["", " ", "a,,b", "a b", "[]", '["a b"]', "[1]", '["a"', "[" * 100_000],
    "lookupMsgIds": ["", "7F01 7F02", "[null]"],
    "tags": ["", " ", "|| ||", "a,b", "a|b", "a || b,c"],
    "sqlFilter": ["", " ", "a >", "(a = 1"],
    "pullBatchSize": [*COUNT, "1000001"],
    "pullBatchBytes": [*SIZE, "1023", "12582913", "13m"],
    "maxPullsInFlight": [*COUNT, "257"],
    "arrowBatchRows": [*COUNT, "1000001"],
    "arrowBatchBytes": [*SIZE, "1023", "268435457", "1g"],
    "topic": [*NAMES, "TBW102", "rmq_sys_x", "%RETRY%g"],
    "producerGroup": ["", "a b", "x" * 121],
    "writeId": [""],
    "deliveryGuarantee": ["", "exactly_once", "atMostOnce"],
    "stagingTopic": NAMES,
    "ledgerTopic": [*NAMES, "TBW102"],
    "ledgerGroup": ["", "a b", "x" * 121],
    "ledgerBroker": [""],
    "ledgerQueue": ["", "-1", "1.5", "x", "65536"],
    "gracePeriod": [*DURATION, "0", "999", "11m"],
    "stagingRetention": [*DURATION, "59s", "366d"],
    "maxMessageSize": [*SIZE, "1023", "12582913"],
    "sendBatchSize": [*COUNT, "100001"],
    "sendBatchBytes": [*SIZE, "1023", "4194305", "5m"],
    "maxRequestsInFlight": [*COUNT, "1025"],
    "namespace": ["a b", "MQ_INST_1_a%", "ü"],
    "namespaceV2": ["a b", "a%b"],
    "accessKey": ["", "1\n"],
    "secretKey": ["", "1\0", " "],
    "securityToken": ["", "1\t"],
    "credentialsFile": ["", "/no/such/file", "/dev/null", "/"],
    "tls": ["", "maybe"],
    "tlsCaFile": ["", " ", "a\0"],
    "tlsCertFile": ["", "a\0"],
    "tlsKeyFile": ["", "a\0"],
    "addressMap": ["a:1", "a:1=b", "a:*=b:1", "a:1=b:1,a:1=c:1"],
    "tlsVerify": ["", "some"],
    "requestTimeout": [*DURATION, "0", "99", "600001", "11m", "5ms"],
    "dedupeWindow": COUNT,
    "maxDelayedInFlight": COUNT,
    "compression": ["", "gzip", "zip"],
    "compressAbove": ["", "-1", "1.5", "4 kilobytes", "13m"],
    "view": ["", "tables", "topic"],
    "key": [""],
    "msgId": [""],
    "bodyFormat": ["", "xml"],
    "metadataColumns": ["", "queueOffset as"],
    "timeZone": ["", "Asia/Peking", "+19:00"],
    "jsonQuotedValues": ["", "maybe"],
    "jsonEpochUnits": ["", "minutes", "ms, us"],
    "badRecords": ["", "ignore"],
    "badRecordColumn": [""],
    "deadLetterTopic": ["", "a b", "TBW102"],
    "avroSchema": ["", "/no/such/file.avsc"],
    "avroEncoding": ["", "json"],
    "protobufDescriptor": ["", "/no/such/file.desc"],
    "protobufMessage": [""],
    "csvDelimiter": ["", "ab"],
    "csvEscape": ["", "ab", "é"],
    "arrowRowsPerMessage": COUNT,
    "retryTimeout": [*DURATION, "86400001", "2d"],
}
CASES = [(option, text) for option in OPTIONS for text in WRONG.get(option.name, ())]


def test_every_option_has_invalid_values_here() -> None:
    assert [option.name for option in OPTIONS if not WRONG.get(option.name)] == []
    assert WRONG.keys() <= {option.name for option in OPTIONS}


@pytest.mark.parametrize(("option", "text"), CASES, ids=[f"{option.name}={text[:20]}" for option, text in CASES])
def test_an_invalid_value_is_refused_with_name_value_and_remedy(option: Option, text: str) -> None:
    for scope in sorted(option.scopes, key=lambda scope: scope.name):
        with pytest.raises(OptionError) as caught:
            parse_given({option.name.lower(): text}, frozenset({scope}))
        assert caught.value.message.startswith((f"option {option.name} is ", f"option {option.name}: ")), "its spelling"
        if not text.startswith(("{", "[", "1")):
            assert repr(text[:20])[:-1] in caught.value.message or text in caught.value.message
        assert caught.value.remedy
        assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_options_of_another_scope_and_mistyped_options(option: Option) -> None:
    for scope in set(Scope) - option.scopes:
        is_column = scope in WRITES and option.name == "tags"
        code = "COLUMN" if is_column else "SCOPE"
        with pytest.raises(OptionError, match=rf"\[BAD_OPTION.{code}\] option {option.name} is "):
            parse_given({option.name.lower(): "x"}, frozenset({scope}))
    typed = option.name[:-1] + "zq"
    with pytest.raises(OptionError) as caught:
        parse_given({typed.lower(): "x"}, option.scopes)
    assert caught.value.code == "BAD_OPTION.UNKNOWN"
    assert typed.lower() in caught.value.message
    assert "Did you mean" in caught.value.remedy


OFFSETS, QUEUES = '{"orders": {"b": {"0": 1}}}', '{"orders": {"b": [0, 1]}}'
CONTRADICTIONS: list[tuple[Scope, dict[str, str], str]] = [
    (Scope.READ, {"subscribe": "a", "assign": QUEUES}, "CONFLICT.*option assign cannot be combined with subscribe"),
    (Scope.READ, {"subscribe": "a", "subscribePattern": "b"}, "CONFLICT.*subscribePattern .*with subscribe"),
    (Scope.READ, {"subscribePattern": "a", "assign": QUEUES}, "CONFLICT.*assign .*with subscribePattern"),
    (Scope.READ, {"startingTimestamp": "1", "startingOffsetsByTimestamp": OFFSETS}, "CONFLICT.*startingTimestamp"),
    (Scope.READ, {"startingOffsets": "earliest", "startingOffsetsByTimestamp": OFFSETS}, "=earliest.*=timestamp"),
    (Scope.READ, {"startingOffsets": OFFSETS, "startingTimestamp": "1"}, "startingTimestamp cannot be combined.*JSON"),
    (Scope.READ, {"startingOffsets": "group", "consumerGroup": "g", "startingTimestamp": "1"}, "=group"),
    (Scope.READ, {"endingTimestamp": "1", "endingOffsetsByTimestamp": OFFSETS}, "CONFLICT.*endingTimestamp"),
    (Scope.READ, {"endingOffsets": "latest", "endingTimestamp": "1"}, "endingOffsets=latest"),
    (Scope.READ, {"startingOffsets": "timestamp"}, "REQUIRES.*requires startingTimestamp"),
    (Scope.READ, {"endingOffsets": "timestamp"}, "REQUIRES.*requires endingTimestamp"),
    (Scope.READ, {"startingOffsets": "group"}, "REQUIRES.*startingOffsets is 'group', which requires consumerGroup"),
    (Scope.READ, {"endingOffsets": "group"}, "REQUIRES.*endingOffsets is 'group', which requires consumerGroup"),
    (
        Scope.READ,
        {"startingOffsets": "group", "consumerGroup": "g", "groupOffsetsFallback": "timestamp"},
        "REQUIRES.*requires startingTimestamp",
    ),
    (Scope.READ, {"groupOffsetsFallback": "latest"}, "NO_EFFECT.*without startingOffsets=group"),
    (Scope.READ, {"startingOffsetsByTimestampStrategy": "error"}, "NO_EFFECT.*without startingTimestamp"),
    (Scope.READ, {"startingTimestamp": "1700000000"}, r"VALUE.*1970 \(did you mean 1700000000000\?\)\.$"),
    (
        Scope.READ,
        {"startingOffsetsByTimestamp": OFFSETS.replace("1", "1700000000")},
        "JSON.*milliseconds.*did you mean 1700000000000",
    ),
    (
        Scope.READ,
        {"startingTimestamp": "2026-01-31", "endingTimestamp": "2026-01-30"},
        "LESS.*endingTimestamp is 2026-01-30T.*, which is less than startingTimestamp, 2026-01-31T",
    ),
    (Scope.READ, {"startingTimestamp": "-1h", "endingTimestamp": "-2h"}, "LESS.*endingTimestamp"),
    (
        Scope.READ,
        {"startingTimestamp": "2999-01-01"},
        "FUTURE_TIME.*startingTimestamp is 2999.*a batch read cannot wait",
    ),
    (Scope.READ, {"startingOffsets": "latest"}, "READS_NOTHING"),
    (
        Scope.READ,
        {"startingOffsets": '{"payments": {"b": {"0": 1}}}'},
        "NOT_READ.*topic payments.*subscribe \\(orders\\)",
    ),
    (
        Scope.READ,
        {"assign": QUEUES, "startingOffsets": '{"orders": {"b": {"2": 1}}}'},
        "names orders/b/2.*b/0, orders/b/1",
    ),
    (
        Scope.READ,
        {"subscribePattern": "o", "startingOffsetsByTimestamp": OFFSETS},
        "ByTimestamp names the topic orders",
    ),
    (Scope.READ_STREAM, {"maxTriggerDelay": "1m"}, "NO_EFFECT.*without minOffsetsPerTrigger"),
    (
        Scope.READ_STREAM,
        {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
        "LESS.*maxOffsetsPerTrigger is 4, which is less than minOffsetsPerTrigger, 5",
    ),
    (Scope.READ_STREAM, {"waitForTopic": "true", "startingOffsets": OFFSETS}, "waitForTopic cannot be combined with"),
    (Scope.READ, {"storePath": "/x", "assign": QUEUES}, "CONFLICT.*assign cannot be combined with storePath"),
    (Scope.READ, {"storePath": "/x", "subscribePattern": "b"}, "CONFLICT.*subscribePattern .*storePath"),
    (Scope.READ, {"storePath": "/x", "startingOffsetsByTimestamp": OFFSETS}, "CONFLICT.*storePath"),
]


@pytest.mark.parametrize(("scope", "options", "wrong"), CONTRADICTIONS)
def test_conflicting_options(scope: Scope, options: dict[str, str], wrong: str) -> None:
    given = (
        options if {"assign", "subscribePattern", "storePath"} & options.keys() else {"subscribe": "orders"} | options
    )
    with pytest.raises(OptionError, match=wrong) as caught:
        parse_read_options(given, scope)
    assert caught.value.remedy
    assert caught.value.code.startswith("BAD_OPTION.")


@pytest.mark.parametrize("scope", [scope for scope in Scope if scope in WRITES])
@pytest.mark.parametrize(
    "name", ["body", "tags", "keys", "properties", "shardingKey", "queueId", "delayLevel", "deliverAt"]
)
def test_a_column_given_as_an_option_of_a_write(scope: Scope, name: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_write_options({"topic": "orders", name.lower(): "1"}, scope)
    assert caught.value.code == "BAD_OPTION.COLUMN"
    assert f"{name} is a column of written rows" in caught.value.message
    assert f'.withColumn("{name}", ' in caught.value.remedy


def test_conditions_have_unique_names_and_complete_texts() -> None:
    names = [(condition.name, condition.case) for condition in CONDITIONS]
    assert len(set(names)) == len(names)
    for condition in CONDITIONS:
        assert condition.text.endswith((".", "}"))
        assert condition.remedy.endswith((".", "}", "?"))


def test_a_pickled_error_keeps_its_condition() -> None:
    import pickle

    raised = error("DATA_LOSS.QUEUE_DELETED", queue="t/b/0", at=7, go_on="Go on")
    again = pickle.loads(pickle.dumps(raised))
    assert isinstance(again, RocketError)
    assert str(again) == str(raised)
    assert str(again).startswith("[DATA_LOSS.QUEUE_DELETED] t/b/0 no longer exists on its broker")
