"""The proxy's name servers: an address server that names them, and answers with an error code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from spark_rocket.errors import BrokerError, ConfigError, NameServerUnreachableError, RocketError
from spark_rocket.protocol.wire.bodies.route import BrokerData, ClusterInfo
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.proxy import definitions
from spark_rocket.proxy.cluster.cluster import Cluster
from spark_rocket.proxy.config import ProxyConfig
from tests.client.fakes import Fake, says
from tests.client.test_config import AddressServer
from tests.kit.clock import Clock
from tests.proxy.caller import resource
from tests.proxy.direct import proxy_of

pytestmark = pytest.mark.live

T = TypeVar("T")
Fakes = Callable[..., Fake]


@pytest.fixture
def fakes() -> Iterator[Fakes]:
    """Name servers, each of which knows one broker, or gives no answer that helps."""
    made: list[Fake] = []

    def make(broker: str = "") -> Fake:
        info = ClusterInfo(broker_addr_table={broker: BrokerData("c", broker, {0: "127.0.0.1:1"})})
        made.append(Fake({RequestCode.GET_BROKER_CLUSTER_INFO: says(0, body=info.to_json())} if broker else {}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def address_server() -> Iterator[AddressServer]:
    server = AddressServer("")
    yield server
    server.close()


def with_cluster(name_server: str, use: Callable[[Cluster], Awaitable[T]], clock: Clock | None = None) -> T:
    async def main() -> T:
        cluster = Cluster(name_server, fresh_seconds=0.0, monotonic=clock or Clock(1_000.0))
        try:
            return await use(cluster)
        finally:
            await cluster.close()

    return asyncio.run(main())


def test_an_address_server_is_requested_again(fakes: Fakes, address_server: AddressServer) -> None:
    first, second, clock = fakes("first"), fakes("second"), Clock(1_000.0)

    async def use(cluster: Cluster) -> None:
        with pytest.raises(NameServerUnreachableError, match="returned no name servers") as caught:
            await cluster.masters()
        assert address_server.url in caught.value.message
        address_server.text = first.address + "\n"
        assert list(await cluster.masters()) == ["first"]
        assert str(cluster.name_servers) == address_server.url
        address_server.text = second.address
        clock.now += 60
        assert list(await cluster.masters()) == ["first"]
        clock.now += 600
        assert list(await cluster.masters()) == ["second"]
        address_server.text = ""  # out of order: nothing changes
        clock.now += 600
        assert list(await cluster.masters()) == ["second"]

    with_cluster(address_server.url, use, clock)


def test_urls_and_addresses_are_settings() -> None:
    url = "http://a:8080/rocketmq/nsaddr"
    assert ProxyConfig.from_properties({"namesrvAddr": url}).name_server == url
    with pytest.raises(ConfigError, match="http://a:8080"):  # without a path it is not an address server
        ProxyConfig.from_properties({"namesrvAddr": "http://a:8080/;nowhere"})


def test_a_name_server_without_request_106(fakes: Fakes) -> None:
    """A broker's address is a common mistake: it answers so too."""
    wrong = fakes()

    async def use(cluster: Cluster) -> RocketError:
        with pytest.raises(BrokerError) as caught:
            await cluster.masters()
        return caught.value

    error = with_cluster(wrong.address, use)
    assert f"Name server {wrong.address} rejected request 106 (GET_BROKER_CLUSTER_INFO) with 3" in error.message
    assert "9876" in error.remedy
    with proxy_of(wrong.address) as proxy:
        status = proxy.client().call("QueryRoute", topic=resource("T")).status
        assert status.code == definitions.Code.NOT_IMPLEMENTED
        assert f"Name server {wrong.address} rejected request 105" in status.message
        assert "9876" in status.message


def test_another_name_server_has_it(fakes: Fakes) -> None:
    wrong, right = fakes(), fakes("b")

    async def use(cluster: Cluster) -> list[str]:
        return list(await cluster.masters())

    assert with_cluster(f"{wrong.address};{right.address}", use) == ["b"]
    silent = "127.0.0.1:1"
    with pytest.raises(BrokerError, match="rejected request 106"):
        with_cluster(f"{wrong.address};{silent}", use)
