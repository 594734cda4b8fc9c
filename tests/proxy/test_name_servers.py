"""The proxy's name servers: its setting, and a server that is none."""

from __future__ import annotations

import pytest

from spark_rocket.errors import BrokerError, ConfigError
from spark_rocket.proxy import definitions
from spark_rocket.proxy.proxy_config import ProxyConfig
from tests.kit.scripted import Fake
from tests.proxy.caller import resource
from tests.proxy.direct import proxy_of

pytestmark = pytest.mark.live


def test_urls_and_addresses_are_settings() -> None:
    url = "http://a:8080/rocketmq/nsaddr"
    assert ProxyConfig.from_properties({"namesrvAddr": url}).name_server == url
    with pytest.raises(ConfigError, match="http://a:8080"):  # without a path it is not an address server
        ProxyConfig.from_properties({"namesrvAddr": "http://a:8080/;nowhere"})


def test_a_name_server_without_request_106() -> None:
    """A broker's address is a common mistake: it answers so too."""
    wrong = Fake()
    try:
        with proxy_of(wrong.address) as proxy:
            with pytest.raises(BrokerError) as caught:
                proxy.server.do(proxy.cluster.masters())
            status = proxy.client().call("QueryRoute", topic=resource("T")).status
    finally:
        wrong.close()
    assert f"Name server {wrong.address} rejected the list of brokers with 3" in caught.value.message
    assert "9876" in caught.value.remedy
    assert status.code == definitions.Code.NOT_IMPLEMENTED
    assert f"Name server {wrong.address} rejected the query of the route of topic T" in status.message
    assert "9876" in status.message
