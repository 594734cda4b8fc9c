"""Every request code, and the recorded requests replayed with the recorded answers beside them."""

from __future__ import annotations

import contextlib
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError, RefusedError
from spark_rocket.namesrv.kv_config import KVConfigManager
from spark_rocket.namesrv.namesrv_processor import NamesrvProcessor
from spark_rocket.namesrv.route_info import RouteInfoManager
from spark_rocket.protocol.wire.bodies.config import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from spark_rocket.protocol.wire.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.wire.bodies.route import (
    BrokerMemberGroup,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from spark_rocket.protocol.wire.codes import SEE_FAQ, RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.namesrv import RegisterBrokerRequestHeader
from spark_rocket.protocol.wire.json import loads_tolerant
from tests import golden


class NameServer:
    """The processor without a network."""

    def __init__(self) -> None:
        self.now = 0.0
        self.routes = RouteInfoManager(lambda: self.now)
        self.handlers = NamesrvProcessor(self.routes, KVConfigManager()).handlers()

    def handle(self, request: RemotingCommand, channel: object = None) -> RemotingCommand:
        answer = self.handlers[request.code](channel, request)  # type: ignore[arg-type]
        assert answer is not None
        return answer

    def ask(self, code: int, body: bytes = b"", version: int = 479, **ext: str) -> RemotingCommand:
        request = RemotingCommand.request(code, ext, body)
        request.version = version
        # Across the wire and back, as everything will go.
        answer = self.handle(RemotingCommand.decode(request.encode()[4:]))
        return RemotingCommand.decode(answer.encode()[4:])

    def register(self, *topics: TopicConfig, name: str = "broker-a", id_: int = 0, **more: Any) -> RemotingCommand:
        compressed = more.pop("compressed", False)
        version = DataVersion(0, 1, more.pop("version", 1))
        wrapper = TopicConfigSerializeWrapper({topic.topic_name: topic for topic in topics}, version)
        body = RegisterBrokerBody(wrapper, []).encode(compressed=compressed)
        header = RegisterBrokerRequestHeader(
            broker_name=name,
            broker_addr=f"{name}-{id_}:10911",
            cluster_name="DefaultCluster",
            ha_server_addr=f"{name}-{id_}:10912",
            broker_id=id_,
            compressed=compressed,
            body_crc32=more.pop("crc", zlib.crc32(body) & 0x7FFFFFFF),
        )
        return self.ask(RequestCode.REGISTER_BROKER, body, **(header.to_ext() | more))


T, U = TopicConfig("T", 4, 4, 6), TopicConfig("U", 8, 8, 7)
IDENTITY: dict[str, Any] = {
    "brokerName": "broker-a",
    "brokerAddr": "broker-a-0:10911",
    "clusterName": "DefaultCluster",
    "brokerId": "0",
}


@pytest.fixture
def ns() -> NameServer:
    return NameServer()


# --- recorded -----------------------------------------------------------------------------------------------------


def exchanges(series: str) -> list[tuple[golden.GoldenFrame, golden.GoldenFrame | None]]:
    frames = [frame for frame in golden.frames() if frame.index["server"] == "ns" and frame.name.startswith(series)]
    answers = {frame.index["exchange"]: frame for frame in frames if not frame.is_request}
    return [(frame, answers.get(frame.index["exchange"])) for frame in frames if frame.is_request]


def value_of(body: Any) -> Any:
    value = loads_tolerant(bytes(body)) if body else None
    if isinstance(value, dict) and "topicList" in value:
        value["topicList"] = sorted(value["topicList"])
    return value


@pytest.mark.parametrize("series", ["json", "bin"])
def test_recorded_requests_get_the_recorded_answers(series: str) -> None:
    ns = NameServer()
    compared = 0
    for asked, recorded in exchanges(series):
        if asked.request_code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER and recorded is not None:
            # Not every registration was recorded: what the list shows has been registered by then.
            names = value_of(RemotingCommand.decode(recorded.raw[4:]).body)["topicList"]
            for name in names:
                if name not in ns.routes.topics():
                    ns.routes.register_topic(name, [QueueData("broker-a", 1, 1, 6)])
        answer = ns.handle(RemotingCommand.decode(asked.raw[4:]), "channel")
        if recorded is None:
            continue
        compared += 1
        want = RemotingCommand.decode(recorded.raw[4:])
        got = RemotingCommand.decode(answer.encode()[4:])
        assert (got.code, got.opaque, got.flag, got.serialize_type) == (
            want.code,
            want.opaque,
            want.flag,
            want.serialize_type,
        ), asked.name
        assert value_of(got.body) == value_of(want.body), asked.name
        if asked.request_code in (RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER):
            assert [*got.ext_fields] == [*want.ext_fields]
            assert [*got.ext_fields.values()] == [str(len(ns.routes.topics()))]
        else:
            assert got.ext_fields == want.ext_fields, asked.name
        if want.code:
            assert want.remark is not None
            assert (got.remark or "").splitlines()[0] == want.remark.splitlines()[0]
    assert compared >= 6
    assert ns.routes.topics() == []  # the last recorded request unregisters the broker


def test_the_recorded_spellings_of_a_route() -> None:
    """Version 409 gets standard JSON, byte for byte; 106 gets fastjson's."""
    ns = NameServer()
    for asked, recorded in exchanges("json")[:3]:
        answer = ns.handle(RemotingCommand.decode(asked.raw[4:]))
        assert recorded is not None
        assert bytes(answer.body) == bytes(RemotingCommand.decode(recorded.raw[4:]).body)


# --- brokers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_register_and_route(ns: NameServer, compressed: bool) -> None:
    answer = ns.register(T, U, compressed=compressed)
    assert (answer.code, answer.ext_fields, bytes(answer.body)) == (0, {}, b"")
    route = TopicRouteData.from_json(ns.ask(105, topic="T").body)
    assert route.queue_datas == [QueueData("broker-a", 4, 4, 6, 0)]
    assert route.broker_datas[0].broker_addrs == {0: "broker-a-0:10911"}


def test_a_slave_gets_its_master(ns: NameServer) -> None:
    ns.register(T, U)
    assert ns.register(T, U, id_=1).ext_fields == {
        "haServerAddr": "broker-a-0:10912",
        "masterAddr": "broker-a-0:10911",
    }


def test_a_registration_with_a_wrong_crc(ns: NameServer) -> None:
    answer = ns.register(T, U, crc=12345)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "crc32" in str(answer.remark)
    assert ns.routes.topics() == []
    assert ns.register(T, U, crc=0).code == 0  # 0: not given


def test_a_registration_without_a_body(ns: NameServer) -> None:
    answer = ns.ask(103, **IDENTITY, haServerAddr="h:1")
    assert answer.code == 0
    assert ns.routes.member_group("broker-a") == {0: "broker-a-0:10911"}


def test_an_older_state(ns: NameServer) -> None:
    body = b'{"topicConfigSerializeWrapper":{"dataVersion":{"stateVersion":2}}}'
    ns.ask(103, body, **IDENTITY, haServerAddr="h:1")
    with pytest.raises(RefusedError, match="newer state"):
        ns.ask(103, b"{}", **(IDENTITY | {"brokerAddr": "other:1"}), haServerAddr="h:1")


def test_a_zone(ns: NameServer) -> None:
    ns.register(T, U, __ZONE_NAME="zone-1", enableActingMaster="true")
    broker = TopicRouteData.from_json(ns.ask(105, topic="T").body).broker_datas[0]
    assert (broker.zone_name, broker.enable_acting_master) == ("zone-1", True)


def test_order_configuration_goes_to_brokers(ns: NameServer) -> None:
    ns.ask(100, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
    assert loads_tolerant(bytes(ns.register(T, U).body)) == {"table": {"T": "broker-a:4"}}
    # Clients are given it only where the operator wants that, as at Apache's.
    assert "orderTopicConf" not in loads_tolerant(bytes(ns.ask(105, topic="T").body))
    ns.ask(318, b"orderMessageEnable=true\nkvConfigPath=/etc/passwd\nno setting")
    assert loads_tolerant(bytes(ns.ask(105, topic="T").body))["orderTopicConf"] == "broker-a:4"
    assert b"orderMessageEnable=true\n" in bytes(ns.ask(319).body)
    assert b"passwd" not in bytes(ns.ask(319).body)


def test_settings_that_are_not_utf_8(ns: NameServer) -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        ns.ask(318, b"\xff")


def test_unregister(ns: NameServer) -> None:
    ns.register(T, U)
    assert ns.ask(104, **IDENTITY).code == 0
    assert ns.ask(105, topic="T").code == ResponseCode.TOPIC_NOT_EXIST


def test_query_data_version(ns: NameServer) -> None:
    mine = DataVersion(0, 1, 1).to_json()
    answer = ns.ask(322, mine, **IDENTITY)
    assert (answer.ext_fields, bytes(answer.body)) == ({"changed": "true"}, b"")
    ns.register(T, U)
    ns.now += 100
    answer = ns.ask(322, mine, **IDENTITY)
    assert answer.ext_fields == {"changed": "false"}
    assert DataVersion.from_json(answer.body) == DataVersion(0, 1, 1)
    assert ns.ask(322, DataVersion(0, 1, 2).to_json(), **IDENTITY).ext_fields == {"changed": "true"}
    ns.now += 100  # asking was a sign of life
    assert ns.routes.expire() == []


def test_heartbeat(ns: NameServer) -> None:
    ns.register(T, U)
    ns.now += 100
    assert ns.ask(904, **IDENTITY).code == 0
    ns.now += 100
    assert ns.routes.expire() == []


def test_member_group(ns: NameServer) -> None:
    ns.register(T, U)
    ns.register(T, U, id_=2)
    answer = ns.ask(901, clusterName="DefaultCluster", brokerName="broker-a")
    group = GetBrokerMemberGroupResponseBody.from_json(answer.body).broker_member_group
    members = {0: "broker-a-0:10911", 2: "broker-a-2:10911"}
    assert group == BrokerMemberGroup("DefaultCluster", "broker-a", members)


# --- topics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "ext", "standard"),
    [
        (121, {}, False),
        (400, {}, False),
        (401, {}, True),
        (479, {}, True),
        (121, {"acceptStandardJsonOnly": "true"}, True),
        (121, {"acceptStandardJsonOnly": "false"}, False),
    ],
)
def test_both_spellings_of_a_route(ns: NameServer, version: int, ext: dict[str, Any], standard: bool) -> None:
    ns.register(T, U)
    body = bytes(ns.ask(105, version=version, topic="T", **ext).body)
    assert (b'{"0":"broker-a-0:10911"}' in body) is standard
    assert (b'{0:"broker-a-0:10911"}' in body) is not standard
    assert loads_tolerant(body)["queueDatas"][0]["brokerName"] == "broker-a"


def test_a_client_of_a_zone_gets_the_brokers_of_its_zone(ns: NameServer) -> None:
    """Like Java's clients of 5.x that were started with rocketmq.zone and rocketmq.zone.mode."""
    near: dict[str, Any] = {"__ZONE_NAME": "zone-a"}
    far: dict[str, Any] = {"__ZONE_NAME": "zone-b"}
    slave = {"enableActingMaster": "true"}
    ns.register(T, name="near", **near)
    ns.register(T, name="far", **far)
    ns.register(T, name="orphan", id_=1, **far, **slave)  # its master is unavailable

    def told(**ext: Any) -> tuple[set[str], set[str]]:
        route = loads_tolerant(bytes(ns.ask(105, topic="T", **ext).body))
        names = {broker["brokerName"] for broker in route["brokerDatas"]}
        return names, {queues["brokerName"] for queues in route["queueDatas"]}

    everyone = {"near", "far", "orphan"}
    assert told(__ZONE_NAME="Zone-A", __ZONE_MODE="true") == ({"near", "orphan"}, {"near", "orphan"})
    assert told(__ZONE_NAME="zone-a") == told(__ZONE_MODE="true", __ZONE_NAME=" ") == (everyone, everyone)
    assert told(__ZONE_NAME="zone-c", __ZONE_MODE="TRUE") == ({"orphan"}, {"orphan"})
    assert told() == (everyone, everyone)


def test_an_unknown_topic(ns: NameServer) -> None:
    answer = ns.ask(105, topic="Nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == f"No topic route info in name server for the topic: Nowhere{SEE_FAQ}"


def topics_in(answer: RemotingCommand) -> list[str]:
    assert answer.code == 0
    topics = loads_tolerant(bytes(answer.body))["topicList"]
    assert isinstance(topics, list)
    return topics


def test_topic_lists(ns: NameServer) -> None:
    ns.register(T, U, TopicConfig("Unit", topic_sys_flag=1), TopicConfig("Sub", topic_sys_flag=3))
    assert topics_in(ns.ask(206)) == ["Sub", "T", "U", "Unit"]
    assert topics_in(ns.ask(224, cluster="DefaultCluster")) == ["Sub", "T", "U", "Unit"]
    assert topics_in(ns.ask(224, cluster="other")) == []
    assert topics_in(ns.ask(304)) == ["DefaultCluster", "broker-a"]
    assert loads_tolerant(bytes(ns.ask(304).body))["brokerAddr"] == "broker-a-0:10911"
    assert topics_in(ns.ask(311)) == ["Sub", "Unit"]
    assert topics_in(ns.ask(312)) == ["Sub"]
    assert topics_in(ns.ask(313)) == []
    ns.ask(318, b"enableTopicList=false")
    assert ns.ask(206).code == ResponseCode.SYSTEM_ERROR


def test_topics_registered_by_a_tool(ns: NameServer) -> None:
    ns.register(T, U)
    route = TopicRouteData(queue_datas=[QueueData("broker-a", 2, 2, 6)])
    assert ns.ask(217, route.to_json(), topic="N").code == 0
    assert ns.ask(105, topic="N").code == 0
    assert ns.ask(216, topic="N").code == 0
    assert ns.ask(105, topic="N").code == ResponseCode.TOPIC_NOT_EXIST
    ns.ask(216, topic="T", clusterName="other")
    assert ns.ask(105, topic="T").code == 0
    ns.ask(216, topic="T", clusterName="DefaultCluster")
    assert ns.ask(105, topic="T").code == ResponseCode.TOPIC_NOT_EXIST


def test_write_permission(ns: NameServer) -> None:
    ns.register(T, U)
    assert ns.ask(205, brokerName="broker-a").ext_fields == {"wipeTopicCount": "2"}
    assert TopicRouteData.from_json(ns.ask(105, topic="T").body).queue_datas[0].perm == 4
    assert ns.ask(327, brokerName="broker-a").ext_fields == {"addTopicCount": "2"}
    assert TopicRouteData.from_json(ns.ask(105, topic="T").body).queue_datas[0].perm == 6
    assert ns.ask(205, brokerName="unknown").ext_fields == {"wipeTopicCount": "0"}


# --- key-value configuration --------------------------------------------------------------------------------------


def test_key_value_configuration(ns: NameServer) -> None:
    assert ns.ask(101, namespace="n", key="k").code == ResponseCode.QUERY_NOT_FOUND
    assert ns.ask(219, namespace="n").code == ResponseCode.QUERY_NOT_FOUND
    assert ns.ask(100, namespace="n", key="k", value="v").code == 0
    assert ns.ask(101, namespace="n", key="k").ext_fields == {"value": "v"}
    assert loads_tolerant(bytes(ns.ask(219, namespace="n").body)) == {"table": {"k": "v"}}
    assert ns.ask(102, namespace="n", key="k").code == 0
    assert ns.ask(101, namespace="n", key="k").code == ResponseCode.QUERY_NOT_FOUND


# --- bad requests -------------------------------------------------------------------------------------------------

CODES = sorted(NameServer().handlers)


@given(
    st.sampled_from(CODES),
    st.dictionaries(
        st.sampled_from([*IDENTITY, "topic", "namespace", "key", "compressed", "bodyCrc32", "haServerAddr", "cluster"]),
        st.sampled_from(["", "0", "1", "true", "x", "-1", "99999999999999999999"]),
    ),
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from([b"{}", b"[]", b"null", b'{"topicConfigSerializeWrapper":5}', zlib.compress(bytes(40))]),
    ),
)
def test_any_request_is_answered_or_refused(code: int, ext: dict[str, Any], body: bytes) -> None:
    """The server converts ProtocolError to code 1; a handler may raise nothing else."""
    ns = NameServer()
    with contextlib.suppress(ProtocolError):
        assert ns.ask(code, body, **ext).is_response
