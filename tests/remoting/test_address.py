import pytest

from spark_rocket.errors import RemotingConnectError
from spark_rocket.remoting.address import format_address, format_peer, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        ("[::1]:9876", "::1", 9876),
        ("broker-a.example:1", "broker-a.example", 1),
        ("localhost:65535", "localhost", 65535),
    ],
)
def test_an_address_round_trips(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)
    assert format_address(host, port) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":9876", "host:port", "host:0", "host:65536", "host:-1", "h:²"])
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(RemotingConnectError, match="host:port") as caught:
        parse_address(text)
    assert not caught.value.retriable


def test_peers() -> None:
    assert format_peer(("127.0.0.1", 5)) == "127.0.0.1:5"
    assert format_peer(("::1", 5, 0, 0)) == "[::1]:5"
    assert format_peer(None) == "unknown:0"
