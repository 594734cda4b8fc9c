"""What one peer may register or store at a name server, and that nothing takes away the routes of others."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from spark_rocket.errors import ConfigError, RefusedError
from spark_rocket.namesrv import kv_config
from spark_rocket.namesrv.kv_config import ORDER_TOPIC_CONFIG, KVConfigManager
from spark_rocket.namesrv.route_info import RouteInfoManager
from spark_rocket.namesrv.topic_table import TopicLimits
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import BROKERS
from spark_rocket.protocol.wire.bodies.config import DataVersion, TopicConfig
from spark_rocket.protocol.wire.bodies.route import MAX_QUEUES, QueueData, TopicRouteData
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from tests.namesrv.test_processor import NameServer, T, U


def register(tables: RouteInfoManager, name: str, topics: int, channel: str, version: int = 1, **more: object) -> None:
    tables.register_broker(
        cluster="c",
        broker_name=name,
        broker_id=0,
        address=f"{name}:1",
        ha_address="",
        topics={f"t{i}": TopicConfig(f"t{i}") for i in range(topics)},
        data_version=DataVersion(0, 0, version),
        channel=channel,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture
def tables() -> RouteInfoManager:
    return RouteInfoManager(lambda: 0.0)


def test_the_brokers_of_one_connection_are_bounded(tables: RouteInfoManager) -> None:
    for i in range(STATE_LIMITS[BROKERS].per_connection or 0):
        register(tables, f"b{i}", 2, "many")
    with pytest.raises(RefusedError, match="128 brokers are registered over this connection"):
        register(tables, "one-more", 2, "many")
    register(tables, "b0", 2, "many")  # known brokers register again
    register(tables, "one-more", 2, "other")


def test_a_broker_is_removed_in_steps_of_limited_size(tables: RouteInfoManager) -> None:
    removals = 0

    def removed() -> None:
        nonlocal removals
        removals += 1

    tables.on_removal = removed
    register(tables, "large", 5_000, "x")
    register(tables, "other", 5_000, "y")
    tables.channel_closed("x")
    assert removals == 1
    assert {each.broker_name for each in tables.route("t4999").queue_datas} == {"other"}  # type: ignore[union-attr]
    steps = 1
    while tables.sweep():
        steps += 1
        assert len(tables.topics()) == 5_000
    assert steps == 3
    tables.channel_closed("y")
    assert tables.topics() == []
    register(tables, "other", 3, "y")  # before the removed one is swept
    while tables.sweep():
        pass
    assert tables.topics() == ["t0", "t1", "t2"]
    assert tables.route("t0") is not None


def test_names_are_bounded(tables: RouteInfoManager) -> None:
    with pytest.raises(RefusedError, match="more than 255 characters"):
        register(tables, "x" * 256, 1, "x")
    with pytest.raises(RefusedError, match="more than 255 characters"):
        register(tables, "b", 1, "x", filter_servers=["f" * 256])
    assert tables.topics() == []


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (TopicLimits(topics_of_broker=3), "more than 3 topics of one broker"),
        (TopicLimits(entries=3), "more than 3 topics of all brokers"),
        (TopicLimits(name_bytes=15), "names of more than 15 bytes in all"),
    ],
)
def test_a_registration_beyond_a_bound_keeps_the_routes_that_exist(limits: TopicLimits, reason: str) -> None:
    now = 0.0
    tables = RouteInfoManager(lambda: now, limits)
    register(tables, "a", 3, "x")
    for version in (2, 3):
        now += 90
        with pytest.raises(RefusedError, match=reason):
            register(tables, "a", 5, "x", version)
        assert tables.expire() == []
        assert tables.topics() == ["t0", "t1", "t2"]
        assert tables.data_version_of("c", "a:1") is None  # so that the broker sends its topics again
    register(tables, "a", 3, "x", 4)
    assert tables.data_version_of("c", "a:1") == DataVersion(0, 0, 4)


def test_queue_numbers_are_bounded() -> None:
    server = NameServer()
    with pytest.raises(RefusedError, match="'Many' with more than 65,536 queues"):
        server.register(T, TopicConfig("Many", 1_000_000, 1_000_000, 6), U)
    assert server.routes.topics() == ["T", "U"]
    route = TopicRouteData(queue_datas=[QueueData("broker-a", 1, MAX_QUEUES + 1, 6)])
    with pytest.raises(RefusedError, match="'N' is not registered"):
        server.ask(217, route.to_json(), topic="N")
    with pytest.raises(RefusedError, match="a negative number of queues"):
        server.ask(217, TopicRouteData(queue_datas=[QueueData("broker-a", -1, 1, 6)]).to_json(), topic="N")
    assert server.ask(105, topic="N").code == 17


# --- key-value configuration --------------------------------------------------------------------------------------


def test_an_answer_to_a_registration_always_fits_into_a_frame() -> None:
    server = NameServer()
    for i in range(17):
        server.ask(100, namespace=ORDER_TOPIC_CONFIG, key=f"k{i}", value="ü" * 10_000)
    with pytest.raises(RefusedError, match="namespace 'ORDER_TOPIC_CONFIG' has"):
        server.ask(100, namespace=ORDER_TOPIC_CONFIG, key="k17", value="ü" * 10_000)
    answer = server.register(T)
    assert len(answer.encode()) < MAX_FRAME_LENGTH // 10
    with pytest.raises(RefusedError, match="the value of 'k' in namespace 'ORDER_TOPIC_CONFIG' has 10,000,002 bytes"):
        server.ask(100, namespace=ORDER_TOPIC_CONFIG, key="k", value="v" * 10_000_000)
    assert server.ask(100, namespace=ORDER_TOPIC_CONFIG, key="k0", value="v").code == 0
    assert server.ask(100, namespace=ORDER_TOPIC_CONFIG, key="k", value="v").code == 0


def test_all_namespaces_are_bounded_and_empty_ones_are_removed() -> None:
    kv = KVConfigManager()
    for _ in range(2):
        for i in range(34):
            kv.put(f"n{i}", "k", "v" * 60_000)
        with pytest.raises(RefusedError, match="all namespaces have"):
            kv.put("one-more", "k", "v" * 60_000)
        for i in range(34):
            kv.delete(f"n{i}", "k")
    assert kv.namespace("n0") is None
    for i in range(16_384):
        kv.put("n", f"k{i}", "v")
    kv.put("n", "k0", "w")
    with pytest.raises(RefusedError, match="16,385 entries"):
        kv.put("n", "one-more", "v")
    with pytest.raises(RefusedError, match="has 256 characters"):
        kv.put("n", "k" * 256, "v")


def test_a_file_with_a_value_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(json.dumps({"configTable": {"n": {"k": "v", "large": "v" * kv_config.MAX_VALUE_BYTES}}}))
    with pytest.raises(ConfigError, match="the value of 'large' in namespace 'n' has"):
        KVConfigManager(path).load()


def test_what_a_peer_can_log_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    """Registrations, refusals, moves, removals and expiry: one line of each kind in ten seconds."""
    caplog.set_level(logging.INFO, "spark_rocket.namesrv.route_info")
    now = 1000.0
    tables = RouteInfoManager(lambda: now)

    def register(address: str, cluster: str = "c") -> None:
        tables.register_broker(
            cluster=cluster,
            broker_name="a",
            broker_id=0,
            address=address,
            ha_address="",
            topics={},
            data_version=DataVersion(),
            timeout_ms=5_000,
            channel="10.0.0.7:5000",
        )

    for number in range(50):
        register("first:1")
        for cluster in ("c", "d"):
            with pytest.raises(RefusedError):
                register(f"second:{number}", cluster)
        tables.unregister_broker("c", "a", 0, "first:1")
    assert len(caplog.records) == 3, caplog.messages
    caplog.clear()
    register("first:1")
    for number in range(50):
        now += 6
        register(f"moved:{number}")
    assert len(caplog.records) < 60, caplog.messages
    caplog.clear()
    now += 20
    tables.expire()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "suppressed" in caplog.messages[1]
