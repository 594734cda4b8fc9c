from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError

import pytest

from spark_rocket.client import Reader
from spark_rocket.client.core.client_config import ClientConfig, look_up
from spark_rocket.errors import ConfigError, NameServerUnreachableError, TopicNotFoundError
from spark_rocket.model import MessageQueue
from tests.kit.scripted import FakeCluster


def test_name_server_comes_from_argument_then_variable_then_default() -> None:
    variable = {"NAMESRV_ADDR": "ns:1"}
    assert ClientConfig.of("a:2", variable).name_servers == ("a:2",)
    assert ClientConfig.of(None, variable).name_servers == ("ns:1",)
    assert ClientConfig.of(None, {}).name_servers == ("127.0.0.1:9876",)


@pytest.mark.live
@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a:9876;b:9876", ("a:9876", "b:9876")),
        (" a:9876 ; b:9876; ", ("a:9876", "b:9876")),
        ("a:9876,b:9876;a:9876", ("a:9876", "b:9876")),
        ("http://a:9876/", ("a:9876",)),
        ("[::1]:9876", ("[::1]:9876",)),
    ],
)
def test_several_name_servers(text: str, servers: tuple[str, ...]) -> None:
    assert ClientConfig.of(text, {}).name_servers == servers


@pytest.mark.parametrize(
    ("given", "environment", "name_server", "namespace"),
    [
        (None, {}, "a:9876", ""),
        (None, {}, "http://MQ_INST_12_aBc.mq-internet.example.com:80", "MQ_INST_12_aBc"),
        (None, {}, "a:9876;MQ_INST_12_aBc.example.com:80", "MQ_INST_12_aBc"),
        (None, {}, "http://MQ_INST_12_aBc.example.com:80/rocketmq/nsaddr", "MQ_INST_12_aBc"),
        (None, {}, "MQ_INST_1__a.example.com:80", "MQ_INST_1__a"),
        (None, {}, "MQ_INST_12.example.com:80", ""),
        (None, {}, "MQ_INST_12_.example.com:80", ""),
        (None, {}, "x-MQ_INST_12_aBc.example.com:80", ""),
        (None, {"ROCKETMQ_NAMESPACE": "other"}, "http://MQ_INST_12_aBc.example.com:80", "other"),
        ("given", {"ROCKETMQ_NAMESPACE": "other"}, "http://MQ_INST_12_aBc.example.com:80", "given"),
        ("", {"ROCKETMQ_NAMESPACE": "other"}, "http://MQ_INST_12_aBc.example.com:80", ""),
    ],
)
def test_the_namespace_comes_from_argument_then_variable_then_endpoint(
    given: str | None, environment: dict[str, str], name_server: str, namespace: str
) -> None:
    assert ClientConfig.of(name_server, environment, namespace=given).namespace.name == namespace


@pytest.mark.parametrize("text", ["localhost", "a:9876;b", "a:port", ";", "a:0"])
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9876"):
        ClientConfig.of(text, {})


def test_name_servers_from_an_address_server() -> None:
    config = ClientConfig.of("http://a:8080/rocketmq/nsaddr", {})
    assert (config.name_servers, config.address_server) == ((), "http://a:8080/rocketmq/nsaddr")


class AddressServer:
    """Responds with a configured text body."""

    def __init__(self, text: str) -> None:
        owner = self
        self.text = text

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if owner.text else 503)
                self.end_headers()
                self.wfile.write(owner.text.encode())

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/rocketmq/nsaddr"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.live
def test_a_refused_lookup_leaks_no_socket() -> None:
    server = AddressServer("")
    try:
        with pytest.raises(NameServerUnreachableError, match="503") as caught:
            look_up(server.url, 10.0)
        response = caught.value.__cause__
        assert isinstance(response, HTTPError)
        assert response.fp.closed
    finally:
        server.close()


@pytest.mark.live
def test_name_servers_that_change_their_address(fake: Callable[..., FakeCluster]) -> None:
    first, second = fake(1), fake(1)
    for mq in (first, second):
        mq.add("t", 1)
    second.add("u", 1)
    server = AddressServer(first.name_server.address + "\n")
    try:
        with Reader(server.url) as reader, Reader(server.url) as other:
            assert reader.queues("t") == [MessageQueue("t", "b0", 0)]
            assert reader.name_server == server.url
            instance = reader.instance()
            assert other.instance() is instance
            with pytest.raises(TopicNotFoundError):
                reader.queues("u")
            server.text = second.name_server.address
            instance.name_servers._looked_up.forget(server.url)  # as after two minutes
            assert reader.queues("u") == [MessageQueue("u", "b0", 0)]
        server.text = "malformed"
        with pytest.raises(NameServerUnreachableError, match="returned no name servers"):
            Reader(server.url).start()
    finally:
        server.close()
    with pytest.raises(NameServerUnreachableError):
        Reader(server.url).queues("t")
