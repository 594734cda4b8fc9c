"""The proxy's /metrics and /ready, and its counts of calls."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_rocket.namesrv.name_server import NameServer
from spark_rocket.proxy import definitions
from spark_rocket.proxy.metrics import ProxyMetrics
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.proxy.transport.proxy_context import GrpcCode
from spark_rocket.remoting.http.monitor import MONITOR_METRICS, Monitor
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.threads import ProxyThread
from tests.proxy.caller import SECONDS, Caller, resource
from tests.proxy.grpc_world import Peer, World, framed

pytestmark = pytest.mark.live

Samples = dict[tuple[str, str, str], float]
Code = definitions.Code


@contextmanager
def monitored(name_server: str, **settings: object) -> Iterator[tuple[ProxyThread, str]]:
    """A proxy of its own and the address of its metrics."""
    proxy = ProxyThread(ProxyConfig.from_properties({**settings, "namesrvAddr": name_server, "grpcServerPort": 0}), 60)
    monitor = Monitor("127.0.0.1", 0, [ProxyMetrics(proxy.server)])
    try:
        asyncio.run_coroutine_threadsafe(monitor.start(), proxy.loop).result(60)
        yield proxy, monitor.url
        asyncio.run_coroutine_threadsafe(monitor.close(), proxy.loop).result(60)
    finally:
        proxy.stop()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples_of(url: str) -> Samples:
    """By name, method and what else tells samples apart. Every one is in the table, with its labels."""
    table = {metric.name: metric for metric in (*ProxyMetrics.metrics, *MONITOR_METRICS)}
    found: Samples = {}
    for family in text_string_to_metric_families(get(f"{url}/metrics")[1]):
        for sample in family.samples:
            metric = table.get(sample.name) or table[sample.name.rpartition("_")[0]]
            assert set(sample.labels) - {"le"} == set(metric.labels)
            assert sample.labels["node_type"] == "proxy"
            other = sample.labels.get("code") or sample.labels.get("reason") or sample.labels.get("le", "")
            key = (sample.name, sample.labels.get("method", ""), other)
            assert key not in found
            found[key] = sample.value
    return found


def test_calls_are_counted_by_method_and_code(cluster: LocalCluster) -> None:
    cluster.create_topic("Counted")
    settings = {"proxyName": "proxy-1", "proxyClusterName": "c"}
    with monitored(cluster.name_server, **settings) as (proxy, url), Caller(proxy.address, "c") as client:
        for topic in ("Counted", "Counted", "Unknown"):
            client.call("QueryRoute", topic=resource(topic))
        client.metadata.pop("x-mq-client-id")
        client.call("QueryRoute", topic=resource("Counted"))  # refused before it is read
        client.metadata["x-mq-client-id"] = "c"
        pull = client.stream("PullMessage", group=resource("G"), message_queue={"topic": resource("Unknown")})
        assert [answer.status.code for answer in pull] == [Code.TOPIC_NOT_FOUND]
        client.raw("/grpc.health.v1.Health/Check", b"", {})
        with client.publish("Counted"):
            found = samples_of(url)
            assert found["rocket_proxy_calls", "Telemetry", ""] == 1
    counts = {key[1:]: value for key, value in found.items() if key[0] == "rocket_proxy_calls_total"}
    for code in ("INTERNAL_SERVER_ERROR", "PROXY_TIMEOUT"):  # so that Prometheus sees the first one as an increase
        assert counts["QueryRoute", code] == counts["AckMessage", code] == 0
    calls = {key: value for key, value in counts.items() if value}
    assert calls == {
        ("QueryRoute", "OK"): 2,
        ("QueryRoute", "TOPIC_NOT_FOUND"): 1,
        ("QueryRoute", "CLIENT_ID_REQUIRED"): 1,
        ("PullMessage", "TOPIC_NOT_FOUND"): 1,
        ("Check", "OK"): 1,
    }
    assert found["rocketmq_proxy_up", "", ""] == found["rocket_proxy_brokers", "", ""] == 1
    assert found["rocket_unread_bytes", "", ""] == 0
    assert found["rocket_proxy_call_seconds_count", "QueryRoute", ""] == 4
    assert found["rocket_proxy_call_seconds_bucket", "QueryRoute", "+Inf"] == 4


def test_ready_as_long_as_a_broker_is_known(cluster: LocalCluster) -> None:
    with monitored(cluster.name_server) as (proxy, url):
        status, text = get(f"{url}/ready")
        assert (status, proxy.address in text, "broker-a" in text) == (200, True, True)
        assert get(f"{url}/health")[0] == 200


def test_not_ready_without_a_broker(cluster: LocalCluster) -> None:
    empty = NameServer("127.0.0.1", 0)

    async def run() -> None:
        await empty.start()
        try:
            await asyncio.to_thread(look, empty.address)
        finally:
            await empty.close()

    def look(address: str) -> None:
        with monitored(address) as (proxy, url):
            status, text = get(f"{url}/ready")
            assert (status, f"no broker is registered with {address}" in text) == (503, True)
            assert get(f"{url}/health")[0] == 200
            methods = proxy.server.methods
            assert methods is not None
            methods.cluster.name_servers.addresses = (cluster.name_server,)  # one registers there
            while get(f"{url}/ready")[0] != 200:  # each look asks again
                pass

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("ending", ["rpc", "error", "cancel", "gone"])
def test_how_calls_end(ending: str) -> None:
    codes = {"rpc": GrpcCode.NOT_FOUND, "error": GrpcCode.UNKNOWN, "cancel": GrpcCode.CANCELLED}
    with World() as world, Peer(world.server.port) as peer:
        stats = world.server.calls.stats
        if ending == "gone":
            number = peer.request("/t.T/Hold", framed(b""))
            world.wait(lambda: stats["Hold"].running == 1 and bool(world.seen))
            peer.h2.reset_stream(number)
            peer.flush()
            world.wait(lambda: stats["Hold"].codes == {GrpcCode.CANCELLED: 1})
            return
        peer.ended(peer.request("/t.T/Fail", framed(ending.encode())))
        world.wait(lambda: stats["Fail"].codes == {codes[ending]: 1})
        assert stats["Fail"].running == 0
