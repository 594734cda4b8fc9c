"""A new request code takes two places: its row, and the method of a processor. Everything else follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from spark_rocket.broker.processors.group_admin import GroupAdminProcessor
from spark_rocket.broker.processors.processor import handles
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.requests import BROKER_REQUESTS, REQUESTS, RequestType, body_of
from spark_rocket.protocol.requests.needs import Action, topic
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.base import Header, Int
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire

pytestmark = pytest.mark.live

GREET = 9_100
ADMIN = Credentials("root-key", "r00t-s3cr3t")


@dataclass(slots=True)
class GreetRequestHeader(Header):
    topic: str
    times: Int = 1


@dataclass(slots=True)
class GreetRequestBody(Body):
    names: list[str] = field(default_factory=list)


ROW = RequestType(
    code=GREET,
    header=GreetRequestHeader,
    body=GreetRequestBody,
    max_entries={"names": 2},
    needs=(topic(Action.PUB),),
)


@handles(GREET)
def greet(self: GroupAdminProcessor, channel: Channel, request: RemotingCommand) -> RemotingCommand:
    header = GreetRequestHeader.from_ext(request.ext_fields)
    names = body_of(request, GreetRequestBody).names
    return RemotingCommand.response(request, 0, " ".join([*names * header.times, header.topic]))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    for table in (BROKER_REQUESTS, REQUESTS):  # the tables of families are merged into these at import
        monkeypatch.setitem(table, GREET, ROW)
    monkeypatch.setattr(GroupAdminProcessor, "greet", greet, raising=False)
    with LocalCluster(
        in_process=True,
        access_key=ADMIN.access_key,
        secret_key=ADMIN.secret_key,
        config={"grpcServerPort": -1},
    ) as running:
        yield running


def test_a_row_and_a_method_are_a_request(cluster: LocalCluster) -> None:
    with RemotingClient(credentials=ADMIN) as client:
        wire = Wire(client, cluster.broker_address)
        answer = wire.ask(GREET, GreetRequestBody(["a", "b"]).to_json(), topic="orders", times=2)
        assert (answer.code, answer.remark) == (0, "a b a b orders")
        assert "missing the required field 'topic'" in str(wire.ask(GREET, b"{}").remark)
        too_many = wire.ask(GREET, GreetRequestBody(["a"] * 3).to_json(), topic="orders")
        assert "9100 (9100) has 3 entries in names, at most 2 are allowed" in str(too_many.remark)
        assert "a body of 5,000 bytes, at most 4,096" in str(wire.ask(GREET, bytes(5_000)).remark)
    with RemotingClient() as client:
        assert "names no accessKey" in str(Wire(client, cluster.broker_address).ask(GREET, b"{}", topic="t").remark)
