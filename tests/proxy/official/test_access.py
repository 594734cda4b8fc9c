"""RocketMQ's own clients with credentials, against an endpoint with access control."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_rocket.proxy.definitions import Code
from spark_rocket.testing import LocalCluster
from tests.proxy.official.clients import Official, OfficialClientError

ACCOUNTS = """
accounts:
- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}
- {accessKey: seller-key, secretKey: se11er-s3cr3t, topicPerms: [orders=PUB]}
- {accessKey: billing, secretKey: b1lling-s3cr3t, topicPerms: [orders=SUB], groupPerms: [readers=SUB]}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home: Path = tmp_path_factory.mktemp("acl")
    (home / "plain_acl.yml").write_text(ACCOUNTS)
    with LocalCluster(access_key="root-key", secret_key="r00t-s3cr3t", data_dir=home) as running:
        running.create_topic("orders", 1)
        running.create_group("readers")
        yield running
        assert "s3cr3t" not in running.log


@pytest.fixture(params=["python", "node"])
def as_(
    request: pytest.FixtureRequest, guarded: LocalCluster, tmp_path: Path
) -> Iterator[Callable[[str, str], Official]]:
    clients: list[Official] = []

    def client(access_key: str, secret_key: str) -> Official:
        home = tmp_path / f"home-{len(clients)}"
        home.mkdir()
        clients.append(
            Official(request.param, guarded.grpc_endpoint, home, access_key=access_key, secret_key=secret_key)
        )
        return clients[-1]

    yield client
    for one in clients:
        one.close()


def test_permissions_to_send_and_to_receive(as_: Callable[[str, str], Official]) -> None:
    seller = as_("seller-key", "se11er-s3cr3t")
    seller.do("producer", "p", topics=["orders"])
    assert seller.do("send", "p", message={"topic": "orders", "body": "tea"})["messageId"]
    billing = as_("billing", "b1lling-s3cr3t")
    billing.do("simple", "c", group="readers", topics={"orders": ["*", "TAG"]})
    (message,) = billing.receive("c", 1)
    assert message["body"] == "tea"


def refused(client: Official, code: int) -> None:
    """Some of these clients report a refusal at the start, some at a send."""

    def start_and_send() -> None:
        client.do("producer", "p", topics=["orders"])
        client.do("send", "p", message={"topic": "orders", "body": "coffee"})

    with pytest.raises(OfficialClientError) as error:
        start_and_send()
    said = str(error.value)
    assert error.value.code in (code, None), said
    assert "s3cr3t" not in said


def test_invalid_signatures(as_: Callable[[str, str], Official]) -> None:
    refused(as_("seller-key", "wr0ng-s3cr3t"), Code.UNAUTHORIZED)


@pytest.mark.parametrize("as_", ["python"], indirect=True)  # the other waits for ever for its settings to be taken
def test_read_permission_only(as_: Callable[[str, str], Official]) -> None:
    refused(as_("billing", "b1lling-s3cr3t"), Code.FORBIDDEN)
