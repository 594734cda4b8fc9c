from __future__ import annotations

import pickle
import re
from dataclasses import replace
from string import Formatter

import pytest

from spark_rocket.datasource import conditions
from spark_rocket.datasource.options import parse
from spark_rocket.datasource.options.checks import check_conflicts, check_needs
from spark_rocket.datasource.options.parse import parse_given, parse_read_options, parse_write_options
from spark_rocket.datasource.options.parsers import LookUp, Position, Start, Values, can_be_written
from spark_rocket.datasource.options.table import OPTIONS, Option, Scope
from spark_rocket.errors import OptionError
from spark_rocket.model import MessageQueue

STREAM, BATCH, WRITE = Scope.READ_STREAM, Scope.READ, Scope.WRITE


def read(scope: Scope = STREAM, **options: str) -> object:
    return parse_read_options({"subscribe": "orders"} | options, scope)


def bad(scope: Scope = STREAM, **options: str) -> str:
    with pytest.raises(OptionError) as caught:
        read(scope, **options)
    assert caught.value.remedy
    return str(caught.value)


def test_defaults_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    options = parse_read_options({"subscribe": "orders, payments,orders"}, STREAM)
    assert options.topics == ("orders", "payments")
    assert options.name_server == "127.0.0.1:9876"
    assert options.starting == Position(Start.LATEST)
    assert options.fail_on_data_loss
    assert options.max_offsets_per_trigger is None
    assert pickle.loads(pickle.dumps(options)) == options


def test_defaults_of_a_batch_read() -> None:
    options = parse_read_options({"subscribe": "orders"}, BATCH)
    assert (options.starting, options.ending) == (Position(Start.EARLIEST), Position(Start.LATEST))


def test_the_name_server_option_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "ns1:9876; ns2:9877")
    assert parse_read_options({"subscribe": "t"}, STREAM).name_server == "ns1:9876;ns2:9877"
    assert parse_read_options({"subscribe": "t", "nameserver": "h:1"}, STREAM).name_server == "h:1"
    monkeypatch.setenv("NAMESRV_ADDR", "malformed")
    with pytest.raises(OptionError, match="NAMESRV_ADDR"):
        parse_read_options({"subscribe": "t"}, STREAM)


@pytest.mark.parametrize("key", ["maxOffsetsPerTrigger", "maxoffsetspertrigger", "MAXOFFSETSPERTRIGGER"])
def test_names_are_case_insensitive(key: str) -> None:
    assert parse_read_options({"Subscribe": "t", key: "7"}, STREAM).max_offsets_per_trigger == 7


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("maxoffsetpertrigger", "maxOffsetsPerTrigger"),
        ("startingoffset", "startingOffsets"),
        ("nameservers", "nameServer"),
        ("subcribe", "subscribe"),
        ("kafka.bootstrap.servers", "nameServer"),
        ("group.id", "consumerGroup"),
        ("kafka.auto.offset.reset", "startingOffsets"),
        ("kafka.security.protocol", "tls"),
        ("sep", "csvDelimiter"),
        ("delimiter", "csvDelimiter"),
        ("escape", "csvEscape"),
        ("mode", "badRecords"),
    ],
)
def test_an_unknown_option_gets_a_suggestion(typed: str, meant: str) -> None:
    text = bad(STREAM, **{typed: "x"})
    assert typed in text
    assert f"Did you mean {meant}?" in text


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        ("header", "without a header line"),
        ("includeHeaders", "column properties"),
        ("acks", "when its broker has stored it"),
        ("kafka.isolation.level", "rolled back transactions are never read"),
        ("kafka.sasl.mechanism", "this source has no Kafka client"),
        ("kafka.session.timeout.ms", "this source has no Kafka client"),
        ("kafka.batch.size", "this source has no Kafka client"),
    ],
)
def test_an_unneeded_option_names_its_replacement(typed: str, instead: str) -> None:
    assert instead in bad(STREAM, **{typed.lower(): "x"})


@pytest.mark.parametrize(
    ("key", "scopes", "hint"),
    [
        ("path", {Scope.READ, Scope.READ_STREAM}, r'option\("subscribe", …\)'),
        ("path", {Scope.WRITE, Scope.WRITE_STREAM}, r'option\("topic", …\)'),
    ],
)
def test_options_of_other_connectors_get_a_hint(key: str, scopes: set[Scope], hint: str) -> None:
    with pytest.raises(OptionError, match=hint):
        parse_given({key: "orders"}, frozenset(scopes))


@pytest.mark.parametrize(
    ("key", "scope", "remedy"),
    [
        ("topic", STREAM, 'To read, name topics with "subscribe".'),
        ("subscribe", WRITE, 'To write, name the topic with "topic".'),
        ("endingOffsets", STREAM, "Remove it."),
        ("zzzzzz", STREAM, "Valid options here: nameServer, "),
    ],
)
def test_the_remedy_for_an_option_that_does_not_belong_here(key: str, scope: Scope, remedy: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_given({key: "latest"}, frozenset({scope}))
    assert remedy in caught.value.remedy
    assert "producerGroup" not in caught.value.remedy, "a write's option"


def test_options_added_by_spark_are_accepted() -> None:
    parse_write_options({"checkpointlocation": "/tmp/x", "topic": "t"}, Scope.WRITE_STREAM)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 22:13:20", 1_700_000_000_000),
        ("2023-11-15T00:13:20.000001+02:00", 1_700_000_000_001),
        ("2023-11-14", 1_699_920_000_000),
        ("1960-01-01", 0),
    ],
)
def test_time_stamps(text: str, ms: int) -> None:
    expected = Position(Start.TIMESTAMP, timestamp_ms=ms)
    assert parse_read_options({"subscribe": "t", "startingTimestamp": text}, STREAM).starting == expected
    both = {"subscribe": "t", "startingOffsets": "timestamp", "startingTimestamp": text}
    assert parse_read_options(both, STREAM).starting == expected
    ends = {"subscribe": "t", "endingTimestamp": text}
    assert parse_read_options(ends, BATCH).ending == expected


def test_a_date_without_dashes_gets_a_hint_and_the_largest_time_passes() -> None:
    assert "for a date write 2026-01-31" in bad(startingTimestamp="20260131")
    largest = {"subscribe": "t", "startingTimestamp": str(2**63 - 1)}
    with pytest.raises(OptionError, match=r"FUTURE_TIME.*9223372036854775807"):
        parse_read_options(largest, BATCH)
    ends = {"subscribe": "t", "endingTimestamp": str(2**63 - 1)}
    assert parse_read_options(ends, BATCH).ending.timestamp_ms == 2**63 - 1


NOT_WRITABLE = [
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "rmq_sys_x",
    "%RETRY%g",
    "a b",
    "",
    "x" * 128,
]


@pytest.mark.parametrize("topic", NOT_WRITABLE)
def test_unwritable_topics(topic: str) -> None:
    assert not can_be_written(topic)
    with pytest.raises(OptionError, match="option topic is"):
        parse_write_options({"topic": topic}, WRITE)


@pytest.mark.parametrize("topic", ["orders", "TBW1020", "x" * 127, "%DLQ%g", "RMQ_SYSTEM", "BenchmarkTest"])
def test_writable_topics(topic: str) -> None:
    assert parse_write_options({"topic": topic}, WRITE).topic == topic


def test_offsets_as_json() -> None:
    options = parse_read_options({"subscribe": "t", "startingOffsets": ' {"t": {"b": {"3": -1}}}'}, STREAM)
    assert options.starting == Position(Start.OFFSETS, offsets={MessageQueue("t", "b", 3): -1})
    assert "'{'" not in bad(startingOffsets="{")
    assert "topic payments, which the query does not read" in bad(startingOffsets='{"payments": {"b": {"0": 1}}}')


def test_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    options = parse_write_options({"topic": "t", "maxMessageSize": "65536"}, WRITE)
    assert options.send_batch_bytes == 65536
    assert options.max_message_size == 65536
    assert options.write_id is None
    with pytest.raises(OptionError, match="writeId is for batch writes"):
        parse_write_options({"writeId": "x"}, Scope.WRITE_STREAM)


def test_exactly_once() -> None:
    given = {"topic": "t", "deliveryGuarantee": "exactlyonce"}
    options = parse_write_options(given | {"gracePeriod": "2s", "requestTimeout": "1s"}, Scope.WRITE_STREAM)
    assert (options.exactly_once, options.grace_period_ms) == (True, 2000)
    assert (options.staging_topic, options.ledger_topic) == ("ROCKET_SINK_STAGING", "ROCKET_SINK_LEDGER")
    assert not parse_write_options({"topic": "t", "requestTimeout": "1m"}, Scope.WRITE_STREAM).exactly_once
    assert parse_write_options(given | {"writeId": "w"}, WRITE).write_id == "w"
    with pytest.raises(OptionError, match=r"deliveryGuarantee is exactlyOnce, which requires writeId"):
        parse_write_options(given, WRITE)
    with pytest.raises(OptionError, match=r"gracePeriod has no effect without deliveryGuarantee=exactlyOnce"):
        parse_write_options({"topic": "t", "gracePeriod": "2s"}, WRITE)
    for short, text in (
        ({"gracePeriod": "19999"}, r"gracePeriod is 19.999s and requestTimeout is 10s.*at least 20s"),
        ({"requestTimeout": "10001"}, r"gracePeriod is 20s and requestTimeout is 10.001s.*at least 20.002s"),
    ):
        with pytest.raises(OptionError, match=text) as caught:
            parse_write_options(given | short, Scope.WRITE_STREAM)
        assert caught.value.code == "BAD_OPTION.GRACE_PERIOD"
    for topic in ("stagingTopic", "ledgerTopic"):
        with pytest.raises(OptionError, match=r"staging, ledger and target must be different topics"):
            parse_write_options(given | {topic: "t"}, Scope.WRITE_STREAM)


def test_the_documented_limits_of_options_are_those_of_their_parsers() -> None:
    checked = 0
    for option in OPTIONS:
        if limits := re.fullmatch(r"(?:integer|size|duration) (?:≥ )?(\d+)(\w*)(?:–(\d+)(\w*))?", option.type):
            lowest, unit, highest, largest_unit = limits.groups()
            option.parse(option.name, lowest + unit)
            for far in [str(int(lowest) - 1) + unit, *([str(int(highest) + 1) + largest_unit] if highest else ())]:
                with pytest.raises(OptionError):
                    option.parse(option.name, far)
            if highest:
                option.parse(option.name, highest + largest_unit)
            checked += 1
    assert checked == sum(option.type.split()[0] in ("integer", "size", "duration") for option in OPTIONS) > 20


def test_lookups() -> None:
    assert parse_read_options({"subscribe": "t"}, BATCH).look_up is None
    for text, keys in (("a", ("a",)), ("b, a,b", ("b", "a")), ('["a,b", "["]', ("a,b", "["))):
        found = parse_read_options({"subscribe": "t", "lookupKeys": text}, BATCH).look_up
        assert found == LookUp("lookupKeys", "keys", keys)
    found = parse_read_options({"subscribe": "t", "lookupMsgIds": "7F01,7F02"}, BATCH).look_up
    assert found == LookUp("lookupMsgIds", "msgId", ("7F01", "7F02"))
    assert "lookupKeys is 'a b'. Use comma-separated values" in bad(BATCH, lookupKeys="a b")
    assert "lookupKeys is for batch reads, not for streaming reads" in bad(STREAM, lookupKeys="a")
    assert "lookupKeys cannot be combined with lookupMsgIds" in bad(BATCH, lookupKeys="a", lookupMsgIds="b")
    with pytest.raises(OptionError, match="lookupKeys cannot be combined with storePath"):
        parse_read_options({"storePath": "/x", "lookupKeys": "a"}, BATCH)


@pytest.mark.parametrize("value", ["true", "index", "false"])
def test_filter_pushdown_is_refused_with_the_reason(value: str) -> None:
    assert re.search(r"\[BAD_OPTION.UNKNOWN\].*Spark 4.1 to 4.3 .*use lookupKeys", bad(BATCH, filterPushdown=value))


def test_filters_at_the_broker() -> None:
    options = parse_read_options({"subscribe": "t", "tags": " b ||a|| b"}, STREAM)
    assert (options.tags, options.sql_filter) == (("a", "b"), None)
    assert parse_read_options({"subscribe": "t"}, BATCH).tags is None
    assert parse_read_options({"subscribe": "t", "tags": "*", "sqlFilter": "a = 1"}, BATCH).sql_filter == "a = 1"
    assert "option sqlFilter cannot be combined with tags" in bad(tags="a", sqlFilter="a = 1")
    text = bad(BATCH, storePath="/tmp", sqlFilter="a = 1")
    assert "option sqlFilter cannot be combined with storePath" in text


@pytest.mark.parametrize(("name", "former"), conditions.FORMER_NAMES.items())
def test_former_names_of_conditions_are_accepted(name: str, former: str) -> None:
    """In ``code``, in the text that Spark shows, and after pickling, because Spark passes errors between processes."""
    condition = next(each for each in conditions.CONDITIONS if each.name == name)
    fields = {field for _, field, _, _ in Formatter().parse(condition.text + condition.remedy) if field}
    problem = conditions.error(name, **dict.fromkeys(fields, "x"))
    for each in (problem, pickle.loads(pickle.dumps(problem))):
        assert each.code == name
        assert each.code != "BAD_OPTION"
        assert str(each).startswith(f"[{name}] ")
        assert str(each).endswith(f" [{former}]")
        assert former not in each.text
        with pytest.warns(DeprecationWarning, match=f"{former} is now {name}"):
            assert each.code == former


def test_an_option_that_no_field_holds_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "OPTIONS", (*OPTIONS, replace(OPTIONS[0], name="pullBatchSizes", has_field=True)))
    with pytest.raises(TypeError, match="pull_batch_sizes"):
        read()


def test_a_field_that_no_option_fills_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "OPTIONS", tuple(option for option in OPTIONS if option.name != "dedupeWindow"))
    with pytest.raises(TypeError, match="dedupe_window"):
        read()


def test_a_batch_has_the_defaults_of_the_options_of_streams() -> None:
    options = parse_read_options({"subscribe": "orders"}, BATCH)
    assert (options.wait_for_topic, options.max_trigger_delay_ms) == (False, 900_000)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_what_an_option_needs_and_excludes_is_checked(option: Option) -> None:
    """Every name in the table is that of an option of the same operation, and every conflict has a text."""
    scopes = {known.name: known.scopes for known in OPTIONS}
    for excluded in option.excludes:
        other, _, value = excluded.other.partition("=")
        assert scopes[other] & option.scopes
        found = {option.name: excluded.value or "given", other: value or "given"}
        with pytest.raises(OptionError, match=f"option {option.name}.* cannot be combined with .*") as caught:
            check_conflicts(Values(found, frozenset(found)))
        assert caught.value.code == "BAD_OPTION.CONFLICT"
        assert other in caught.value.text
        check_conflicts(Values({option.name: excluded.value or "given"}, frozenset({option.name})))
    pairs = [needed.split("|")[0].partition("=") for needed in option.needs]
    needs = {name: value or "given" for name, _, value in pairs}
    for missing in needs:
        assert scopes[missing] & option.scopes
        others = {name: value for name, value in needs.items() if name != missing}
        with pytest.raises(OptionError, match=f"option {option.name} has no effect without {missing}"):
            check_needs(Values({option.name: "given", **others}, frozenset({option.name})))
    check_needs(Values({option.name: "given", **needs}, frozenset({option.name})))
