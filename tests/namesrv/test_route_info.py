"""Registrations and routes, one rule at a time; sequences of all events are in test_route_model.py."""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.errors import RefusedError
from spark_rocket.namesrv.route_info import FLAG_UNIT, FLAG_UNIT_SUB, RegistrationResponse, RouteInfoManager
from spark_rocket.protocol.wire.bodies.config import DataVersion, TopicConfig
from spark_rocket.protocol.wire.bodies.route import QueueData
from spark_rocket.protocol.wire.codes import ResponseCode


class Tables(RouteInfoManager):
    """Route tables with a manual clock, and a short call to register."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(lambda: self.now)

    def register(
        self, *topics: TopicConfig, name: str = "a", id_: int = 0, at: str = "", version: int = 1, **more: Any
    ) -> RegistrationResponse:
        address = at or f"{name}{id_}:1"
        more.setdefault("cluster", "c")
        more.setdefault("data_version", DataVersion(0, 5, version))
        return self.register_broker(
            broker_name=name,
            broker_id=id_,
            address=address,
            ha_address=f"ha-{address}",
            topics={topic.topic_name: topic for topic in topics},
            **more,
        )

    def perm(self, topic: str, name: str = "a") -> int | None:
        route = self.route(topic)
        return next((queue.perm for queue in route.queue_datas if queue.broker_name == name), None) if route else None


T = TopicConfig("T", 4, 4, 6)
U = TopicConfig("U", 8, 2, 7)


@pytest.fixture
def tables() -> Tables:
    return Tables()


def test_a_route(tables: Tables) -> None:
    assert tables.register(T, U) == RegistrationResponse()
    route = tables.route("U")
    assert route is not None
    assert route.queue_datas == [QueueData("a", 8, 2, 7, 0)]
    assert [(broker.cluster, broker.broker_name, broker.broker_addrs) for broker in route.broker_datas] == [
        ("c", "a", {0: "a0:1"})
    ]
    assert route.filter_server_table == {}
    assert tables.route("V") is None
    assert tables.topics() == ["T", "U"]


def test_several_brokers_and_clusters(tables: Tables) -> None:
    tables.register(T, U, name="a")
    tables.register(T, U, name="b")
    tables.register(T, TopicConfig("V"), name="x", cluster="d")
    route = tables.route("T")
    assert route is not None
    assert {queue.broker_name for queue in route.queue_datas} == {"a", "b", "x"}
    assert {broker.cluster for broker in route.broker_datas} == {"c", "d"}
    info = tables.cluster_info()
    assert info.cluster_addr_table == {"c": ["a", "b"], "d": ["x"]}
    assert info.broker_addr_table["b"].broker_addrs == {0: "b0:1"}
    assert tables.topics_of_cluster("c") == ["T", "U"]
    assert tables.topics_of_cluster("d") == ["T", "V"]
    assert tables.topics_of_cluster("e") == []
    assert tables.system_topics() == (["c", "a", "b", "d", "x"], "a0:1")
    assert Tables().system_topics() == ([], None)
    tables.unregister_broker("c", "b", 0, "b0:1")
    assert tables.perm("T", "b") is None
    assert tables.cluster_info().cluster_addr_table == {"c": ["a"], "d": ["x"]}
    tables.unregister_broker("d", "x", 0, "x0:1")
    assert "d" not in tables.cluster_info().cluster_addr_table
    assert tables.topics() == ["T", "U"]


# --- accepted registrations --------------------------------------------------------------------------------------


def test_an_unchanged_version_changes_nothing(tables: Tables) -> None:
    tables.register(T, U)
    tables.register(TopicConfig("T", 16, 16, 4), U)
    assert tables.route("T").queue_datas[0].read_queue_nums == 4  # type: ignore[union-attr]
    tables.register(TopicConfig("T", 16, 16, 4), U, version=2)
    assert tables.route("T").queue_datas[0].read_queue_nums == 16  # type: ignore[union-attr]


def test_a_registration_of_one_topic_does_not_hide_the_whole_table(tables: Tables) -> None:
    """The name server was restarted, and the broker's next registration is an increment."""
    tables.register(T, version=9)
    assert tables.perm("T") == 6
    assert tables.data_version_of("c", "a0:1") is None
    tables.register(TopicConfig("T", perm=4), U, version=9)
    assert tables.perm("T") == 4
    assert tables.data_version_of("c", "a0:1") == DataVersion(0, 5, 9)


# --- write permission ---------------------------------------------------------------------------------------------


def test_a_wiped_permission_stays_wiped_until_the_broker_changes(tables: Tables) -> None:
    tables.register(T, U)
    tables.register(T, name="b")
    assert tables.set_write_permission("a", allowed=False) == 2
    assert (tables.perm("T"), tables.perm("U"), tables.perm("T", "b")) == (4, 5, 6)
    tables.register(T, U)
    assert tables.perm("T") == 4
    assert tables.set_write_permission("a", allowed=True) == 2
    assert (tables.perm("T"), tables.perm("U")) == (6, 7)
    tables.set_write_permission("a", allowed=False)
    tables.register(T, U, version=2)
    assert tables.perm("T") == 6
    assert tables.set_write_permission("unknown", allowed=False) == 0


# --- masters and slaves -------------------------------------------------------------------------------------------


def test_a_slave_gets_its_master_and_registers_no_topics(tables: Tables) -> None:
    assert tables.register(T, U, id_=1) == RegistrationResponse()
    assert tables.route("T") is None
    tables.register(T, U, id_=0)
    assert tables.register(TopicConfig("T", perm=2), TopicConfig("V"), id_=1, version=7) == RegistrationResponse(
        "ha-a0:1", "a0:1"
    )
    assert tables.perm("T") == 6
    assert tables.route("V") is None
    assert tables.member_group("a") == {0: "a0:1", 1: "a1:1"}
    assert tables.member_group("b") == {}


def test_slaves_bring_topics_while_there_is_no_master(tables: Tables) -> None:
    """The name server was restarted, and the master is unavailable."""
    tables.register(T, id_=2, enable_acting_master=False)
    assert tables.perm("T") == 6
    tables.register(T, TopicConfig("V"), id_=1, enable_acting_master=False)
    assert tables.topics() == ["T", "V"]
    tables.register(T, TopicConfig("W"), id_=2, version=3, enable_acting_master=False)  # not the first of the slaves
    tables.register(T, id_=0)
    tables.register(T, TopicConfig("X"), id_=1, version=3, enable_acting_master=False)
    assert tables.topics() == ["T", "V"]


def test_a_slave_that_becomes_master_is_listed_once(tables: Tables) -> None:
    tables.register(T, U, id_=0)
    tables.register(T, U, id_=1)
    tables.unregister_broker("c", "a", 0, "a0:1")
    assert tables.perm("T") == 6  # the slave still serves reads
    tables.register(T, U, id_=0, at="a1:1")
    assert tables.member_group("a") == {0: "a1:1"}


def test_a_silent_brokers_place_is_taken_by_a_new_address(tables: Tables) -> None:
    tables.register(T, U, at="old:1")
    tables.now += 60.5
    tables.register(T, U, at="new:1")
    assert tables.member_group("a") == {0: "new:1"}
    assert tables.data_version_of("c", "old:1") is None
    tables.unregister_broker("c", "a", 0, "old:1")  # the old one's late farewell
    assert tables.member_group("a") == {0: "new:1"}
    assert tables.perm("T") == 6


@pytest.mark.parametrize(("id_", "cluster"), [(0, "c"), (1, "c"), (0, "other")])
def test_two_brokers_of_one_name(tables: Tables, id_: int, cluster: str) -> None:
    tables.register(T, U, id_=id_, at="first:1")
    tables.now += 30
    tables.register(T, U, id_=id_, at="first:1")
    for _ in range(2):
        tables.now += 15
        with pytest.raises(
            RefusedError, match=rf"second:1 \(cluster {cluster}\).*id {id_} of broker a: first:1"
        ) as refused:
            tables.register(T, U, id_=id_, at="second:1", cluster=cluster)
        assert refused.value.response_code == ResponseCode.SYSTEM_ERROR
    assert tables.member_group("a") == {id_: "first:1"}
    tables.register(T, U, id_=id_, at="first:1")  # and does not lose its place by it
    tables.unregister_broker("c", "a", id_, "first:1")
    tables.register(T, U, id_=id_, at="second:1", cluster=cluster)
    assert tables.member_group("a") == {id_: "second:1"}


def test_a_slave_of_another_cluster_has_no_master_here(tables: Tables) -> None:
    tables.register(T, U)
    for id_ in (1, 2):
        with pytest.raises(
            RefusedError, match=rf"s:{id_} is broker a of cluster d, but a0:1 \(id 0\) is .* of cluster c"
        ):
            tables.register(T, id_=id_, at=f"s:{id_}", cluster="d")
    assert tables.member_group("a") == {0: "a0:1"}
    assert tables.register(T, id_=1).master_addr == "a0:1"
    tables.now += 61  # all of that cluster are dead, and this is not detected yet
    tables.register(T, id_=2, at="s:2", cluster="d")


def test_a_broker_with_a_short_time_loses_its_place_after_that(tables: Tables) -> None:
    tables.register(T, at="old:1", timeout_ms=10_000)
    tables.now += 11
    tables.register(T, at="new:1")
    assert tables.member_group("a") == {0: "new:1"}


def test_states_of_a_controllers_brokers(tables: Tables) -> None:
    tables.register(T, U, at="new:1", data_version=DataVersion(2, 0, 0))
    with pytest.raises(RefusedError, match=r"old:1 .* new:1 .* newer state"):
        tables.register(T, U, at="old:1", data_version=DataVersion(1, 9, 9))
    assert tables.member_group("a") == {0: "new:1"}
    tables.register(T, U, at="elected:1", data_version=DataVersion(3, 0, 0))
    assert tables.member_group("a") == {0: "elected:1"}


# --- life ---------------------------------------------------------------------------------------------------------


def test_expiry(tables: Tables) -> None:
    tables.register(T, U, name="a", channel="ca")
    tables.register(T, name="b", timeout_ms=10_000, channel="cb")
    tables.now += 10
    assert tables.expire() == []
    tables.now += 0.5
    assert [live.channel for live in tables.expire()] == ["cb"]
    assert tables.perm("T", "b") is None
    tables.heartbeat("c", "a0:1")
    tables.heartbeat("c", "unknown:1")
    tables.now += 120
    assert tables.expire() == []
    tables.register(T, U)
    tables.now += 120.5
    assert [live.broker_name for live in tables.expire()] == ["a"]
    assert tables.route("T") is None
    assert tables.topics() == []
    assert tables.cluster_info().cluster_addr_table == {}


@pytest.mark.parametrize(
    ("cluster", "name", "id_", "address"),
    [("c", "a", 0, "b0:1"), ("c", "a", 1, "a0:1"), ("c", "other", 0, "a0:1"), ("d", "a", 0, "a0:1")],
)
def test_unregistering_with_a_part_of_another_brokers_identity(
    tables: Tables, cluster: str, name: str, id_: int, address: str
) -> None:
    """It changes nothing: each broker has its route as long as it is alive, and no longer."""
    tables.register(T, U, name="a", channel="ca")
    tables.register(T, name="b", channel="cb")
    tables.unregister_broker(cluster, name, id_, address)
    assert (tables.perm("T", "a"), tables.perm("T", "b")) == (6, 6)
    assert {live.address for live, _ in tables.silences()} == {"a0:1", "b0:1"}
    tables.channel_closed("cb")
    tables.now += 121
    assert [live.broker_name for live in tables.expire()] == ["a"]
    assert tables.route("T") is None


def test_a_broker_that_registers_under_another_name(tables: Tables) -> None:
    tables.register(T, name="a", at="same:1")
    tables.register(U, name="b", at="same:1")
    assert tables.route("T") is None
    assert tables.perm("U", "b") == 7
    tables.now += 121
    assert [live.broker_name for live in tables.expire()] == ["b"]
    assert tables.cluster_info().cluster_addr_table == {}


def test_a_broker_that_registers_in_another_cluster(tables: Tables, caplog: pytest.LogCaptureFixture) -> None:
    tables.register(T, cluster="c")
    tables.now += 61  # a restart that its name server did not notice
    tables.register(T, cluster="d")
    assert "broker a, id 0, moved to a0:1 (cluster d) from a0:1 (cluster c)" in caplog.text
    route = tables.route("T")
    assert route is not None
    assert [broker.cluster for broker in route.broker_datas] == ["d"]
    assert tables.cluster_info().cluster_addr_table == {"d": ["a"]}
    assert (tables.topics_of_cluster("c"), tables.topics_of_cluster("d")) == ([], ["T"])
    with pytest.raises(RefusedError, match=r"a0:1 .* is registered with it"):
        tables.register(T, cluster="d", at="second:1")
    tables.unregister_broker("d", "a", 0, "a0:1")
    assert tables.system_topics() == ([], None)


# --- topics by hand -----------------------------------------------------------------------------------------------


def test_unit_topics(tables: Tables) -> None:
    flags = {"plain": 0, "unit": FLAG_UNIT, "sub": FLAG_UNIT_SUB, "both": FLAG_UNIT | FLAG_UNIT_SUB}
    tables.register(*(TopicConfig(name, topic_sys_flag=flag) for name, flag in flags.items()))
    assert tables.unit_topics(FLAG_UNIT) == ["both", "unit"]
    assert tables.unit_topics(FLAG_UNIT_SUB) == ["both", "sub"]
    assert tables.unit_topics(FLAG_UNIT_SUB, forbidden=FLAG_UNIT) == ["sub"]


def test_filter_servers(tables: Tables) -> None:
    tables.register(T, U, filter_servers=["f:1", "f:2"])
    assert tables.route("T").filter_server_table == {"a0:1": ["f:1", "f:2"]}  # type: ignore[union-attr]
    tables.register(T, U)
    assert tables.route("T").filter_server_table == {}  # type: ignore[union-attr]
