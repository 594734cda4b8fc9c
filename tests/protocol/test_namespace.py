"""Names with and without a namespace, in commands, records and columns."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_rocket.protocol.wire.headers as all_headers
from spark_rocket.errors import ConfigError
from spark_rocket.model import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUPS, SYSTEM_TOPICS
from spark_rocket.protocol.namespace import Namespace, unwrapped_properties
from spark_rocket.protocol.requests import REQUESTS, SENT_TO_CLIENTS
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.base import Header, camel_case
from spark_rocket.protocol.wire.json import loads_tolerant
from spark_rocket.protocol.wire.names import (
    BODY_NAME_LISTS,
    BODY_NAME_MAPS,
    BODY_NAMES,
    JSON_REQUESTS,
    NAME_FIELDS,
    NAME_LIST_FIELD,
    NameTranslation,
)

INSTANCE = Namespace("MQ_INST_1_a")
NAMES = st.text("abcXYZ019_-", min_size=1, max_size=20)
KINDS = st.sampled_from(["", RETRY_PREFIX, DLQ_PREFIX])


@given(NAMES, KINDS, NAMES.filter(lambda name: "%" not in name))
def test_a_name_comes_back(name: str, kind: str, instance: str) -> None:
    namespace = Namespace(instance)
    wire = namespace.wrap(kind + name)
    assert namespace.unwrap(wire) == kind + name
    assert namespace.wrap(wire) == wire, "a full name stays"
    assert namespace.has(wire)
    assert namespace.unwrap_text(f"topic [{wire}] missing") == f"topic [{kind}{name}] missing" or wire == kind + name


@given(
    st.lists(
        st.sampled_from(["MQ_INST_1_a%", "%RETRY%", "%DLQ%", "x%", "orders", "TBW102", "C_REPLY_TOPIC"]), min_size=1
    )
)
def test_a_name_on_the_wire_comes_back(parts: list[str]) -> None:
    wire = "".join(parts)
    if INSTANCE.has(wire):
        assert INSTANCE.wrap(INSTANCE.unwrap(wire)) == wire


@given(NAMES, KINDS)
def test_the_namespace_stands_after_the_kind(name: str, kind: str) -> None:
    assert INSTANCE.wrap(kind + name) == f"{kind}MQ_INST_1_a%{name}" or name.endswith("_REPLY_TOPIC")


@pytest.mark.parametrize(
    "name", sorted(SYSTEM_TOPICS | SYSTEM_GROUPS | {"rmq_sys_x", "CID_RMQ_SYS_x", "DefaultCluster_REPLY_TOPIC", ""})
)
def test_names_of_the_system_have_none(name: str) -> None:
    assert INSTANCE.wrap(name) == name


def test_without_a_namespace_nothing_changes() -> None:
    assert Namespace().wrap("orders") == "orders" == Namespace().unwrap("orders")
    assert Namespace().unwrap("MQ_INST_1_a%orders") == "MQ_INST_1_a%orders"


@pytest.mark.parametrize("name", ["a%b", "a b", "ü", "a.b"])
def test_an_invalid_namespace_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Invalid namespace"):
        Namespace(name)


def test_other_text_with_the_same_letters_stays() -> None:
    assert Namespace("a").unwrap_text("data%20 a%orders") == "data%20 orders"


def _all_headers(kind: type[Any]) -> list[type[Any]]:
    return [each for one in kind.__subclasses__() for each in (one, *_all_headers(one))]


NO_NAMES = {
    "topic_filter_type",
    "default_topic",
    "default_topic_perm",
    "default_group_perm",
    "topic_perms",
    "group_perms",
}
"""Fields with "topic" or "group" in them that are not names of topics and groups; the default topic is TBW102."""


def test_every_field_with_a_name_is_translated() -> None:
    """A new header whose field has a name under another spelling fails here."""
    for module in pkgutil.iter_modules(all_headers.__path__, f"{all_headers.__name__}."):
        importlib.import_module(module.name)
    headers = _all_headers(Header)
    assert len(headers) > 50
    missing = [
        f"{header.__name__}.{field.name}"
        for header in headers
        for field in dataclasses.fields(header)
        if str(field.type).startswith("str")
        and ("topic" in field.name or "group" in field.name)
        and field.name not in NO_NAMES
        and camel_case(field.name) not in NAME_FIELDS | {NAME_LIST_FIELD}
    ]
    assert missing == []


def _names_in(kind: type[Body]) -> Iterator[tuple[type[Body], str]]:
    """Yield the JSON keys of a body, and of the bodies in it, that are called like names."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # every body is a dataclass
        for inner in _bodies_in(hints[field.name]):
            yield from _names_in(inner)
        key = camel_case(field.name)
        if ("topic" in field.name or "group" in field.name) and key not in NO_NAMES_IN_BODIES:
            yield kind, key


def _bodies_in(hint: Any) -> Iterator[type[Body]]:
    if isinstance(hint, type) and issubclass(hint, Body):
        yield hint
    for part in get_args(hint):
        yield from _bodies_in(part)


NO_NAMES_IN_BODIES = {
    "topicFilterType",
    "topicSysFlag",
    "groupSysFlag",
    "groupRetryPolicy",
    "topicMessageType",
    "topicQueueMappingDetail",
    "topicConfigList",
    "groupConfigList",
}
OF_SERVERS = {RequestCode.BATCH_ACK_MESSAGE, RequestCode.REGISTER_TOPIC_IN_NAMESRV}
"""Requests of proxies and brokers, which have no namespace."""
_TRANSLATED_KEYS = BODY_NAMES | BODY_NAME_LISTS | BODY_NAME_MAPS


def test_every_body_with_a_name_is_translated() -> None:
    """A new request whose body has a name, or has it under another key, fails here."""
    missing = [
        f"{RequestCode(code).name}: {kind.__name__}.{key}"
        for code, row in {**REQUESTS, **SENT_TO_CLIENTS}.items()
        if isinstance(row.body, type) and code not in OF_SERVERS
        for kind, key in _names_in(row.body)
        if code not in JSON_REQUESTS or key not in _TRANSLATED_KEYS
    ]
    assert missing == []


def test_requests_and_responses() -> None:
    names = NameTranslation(INSTANCE)
    send = RemotingCommand.request(
        RequestCode.SEND_MESSAGE_V2,
        {"a": "group", "b": "orders", "c": "TBW102", "i": "KEYS\x01k\x02PGROUP\x01group\x02"},
    )
    for _ in range(2):  # a request that is sent again
        names.sent_request(send)
        assert send.ext_fields == {
            "a": "MQ_INST_1_a%group",
            "b": "MQ_INST_1_a%orders",
            "c": "TBW102",
            "i": "KEYS\x01k\x02PGROUP\x01MQ_INST_1_a%group\x02",
        }
    beat = RemotingCommand.request(
        RequestCode.HEART_BEAT,
        {},
        b'{"clientID":"c","producerDataSet":[{"groupName":"g"}],"consumerDataSet":[{"groupName":"g",'
        b'"subscriptionDataSet":[{"topic":"%RETRY%g","subString":"*"}]}]}',
    )
    names.sent_request(beat)
    sent = loads_tolerant(beat.body)
    assert sent["producerDataSet"] == [{"groupName": "MQ_INST_1_a%g"}]
    assert sent["consumerDataSet"][0]["subscriptionDataSet"][0]["topic"] == "%RETRY%MQ_INST_1_a%g"
    response = RemotingCommand(0, body=b'{"topicList":["MQ_INST_1_a%orders","orders","TBW102","other%orders"]}')
    names.received_response(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, response)
    assert loads_tolerant(response.body) == {"topicList": ["orders", "TBW102"]}
    stats = RemotingCommand(
        0, remark="topic[MQ_INST_1_a%orders] not exist",
        body=b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"MQ_INST_1_a%orders"}:{"maxOffset":1}}}',
    )  # fmt: skip
    names.received_response(RequestCode.GET_TOPIC_STATS_INFO, stats)
    assert dict(next(iter(loads_tolerant(stats.body)["offsetTable"])))["topic"] == "orders"
    assert stats.remark == "topic[orders] not exist"


def test_the_second_kind_of_namespace_is_a_field() -> None:
    request = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, {"topic": "orders"})
    NameTranslation(Namespace(v2="MQ_INST_1_a")).sent_request(request)
    assert request.ext_fields == {"topic": "orders", "nsd": "true", "ns": "MQ_INST_1_a"}


def test_properties_of_records() -> None:
    raw = b"KEYS\x01MQ_INST_1_a%k\x02RETRY_TOPIC\x01MQ_INST_1_a%orders\x02X\x01\xff"
    assert unwrapped_properties(raw, INSTANCE) == b"KEYS\x01MQ_INST_1_a%k\x02RETRY_TOPIC\x01orders\x02X\x01\xff"


def test_columns() -> None:
    pa = pytest.importorskip("pyarrow")
    from spark_rocket.protocol.record.namespaced import unwrapped_batch

    kind = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    batch = pa.record_batch(
        {
            "topic": pa.array(["MQ_INST_1_a%orders", "%RETRY%MQ_INST_1_a%g"]),
            "properties": pa.array([[("RETRY_TOPIC", "MQ_INST_1_a%orders")], [("KEYS", "MQ_INST_1_a%k")]], kind),
        }
    )
    changed = unwrapped_batch(batch, INSTANCE)
    assert changed.schema == batch.schema
    assert changed.to_pydict() == {
        "topic": ["orders", "%RETRY%g"],
        "properties": [[("RETRY_TOPIC", "orders")], [("KEYS", "MQ_INST_1_a%k")]],
    }
    assert unwrapped_batch(batch.slice(1), INSTANCE).to_pydict()["topic"] == ["%RETRY%g"]


def test_the_retry_topic_of_a_pop_consumer_has_the_namespace_before_both_names() -> None:
    assert INSTANCE.wrap("%RETRY%billing+orders") == "%RETRY%MQ_INST_1_a%billing+MQ_INST_1_a%orders"
    assert INSTANCE.unwrap("%RETRY%MQ_INST_1_a%billing+MQ_INST_1_a%orders") == "%RETRY%billing+orders"


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("Topic:orders", "Topic:MQ_INST_1_a%orders"),
        ("group:bill*", "group:MQ_INST_1_a%bill*"),
        ("Topic:MQ_INST_1_a%orders", "Topic:MQ_INST_1_a%orders"),
        ("Topic:*", "Topic:*"),
        ("Cluster:DefaultCluster", "Cluster:DefaultCluster"),
        ("*", "*"),
    ],
)
def test_a_granted_resource_has_the_namespace(given: str, full: str) -> None:
    assert INSTANCE.wrap_resource(given) == full
    assert Namespace().wrap_resource(given) == given


def test_a_permission_of_an_account_has_the_namespace() -> None:
    assert INSTANCE.wrap_permission("orders=PUB|SUB") == "MQ_INST_1_a%orders=PUB|SUB"
