"""Every route of the console in a namespace: requests have full names, and responses have short ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_rocket.console.request_limits import ROUTE_LIMITS
from spark_rocket.model import MessageExt
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.console.conftest import Page, page_of
from tests.kit.recording import recording, text_of
from tests.namespaces.world import BARE, GROUP, INSTANCE, TOPIC, fill

pytestmark = pytest.mark.live

WITHOUT_NAMES = {
    "encoding", "desc", "page", "size", "sort", "search", "limit", "cursor", "begin", "end", "text", "tags", "keys",
    "shardingKey", "delay", "properties", "white", "otherTopics", "otherGroups", "sourceIps", "policyType", "decision",
    "known", "own", "online", "stacks", "zone", "kind", "type", "broker_", "order", "perm", "ordered", "retries",
    "status", "from", "timestamp", "writeQueues",
}  # fmt: skip
"""Parameters that are left out."""


FULL_NAMES = {("POST", "/api/permission"), ("DELETE", "/api/permission")}
"""Accounts have the names on the wire, which administrators of the cluster use."""


def value(name: str, route: tuple[str, str], address: str, message: MessageExt) -> Any:
    path = route[1]
    place = {"topic": TOPIC, "broker": "broker-a", "queue": 0, "offset": 0}
    if name == "topic":
        if "dead-letter-topics" in path:
            return f"%DLQ%{GROUP}"
        return "znew" if route == ("POST", "/api/topics") else TOPIC
    if name == "confirm":
        return TOPIC if "topics" in path else GROUP if "groups" in path else "alice"
    if name == "messages":
        return [{**place, "topic": f"%DLQ%{GROUP}"}]
    if name == "name":
        return "brokerPermission"
    return {
        "group": GROUP, "address": address, "account": "alice", "user": "alice", "secret": "s3cr3t-s3cr3t",
        "password": "p4ssw0rd", "create": True, "admin": False, "topics": [f"{TOPIC}=PUB"], "groups": [f"{GROUP}=SUB"],
        "brokers": [address], "addresses": [], "resource": f"Topic:{TOPIC}", "actions": ["Pub"], "client": "none",
        "queues": 1, "to": "earliest", "by": "key", "key": "k", "id": message.msg_id, "body": "x", "schema": "{}",
        "value": "6", **{key: each for key, each in place.items() if key != "topic"},
    }[name]  # fmt: skip


@pytest.fixture(scope="module")
def requests() -> Iterator[list[RemotingCommand]]:
    found: list[RemotingCommand] = []
    with recording(lambda request, _: found.append(request)):
        yield found


@pytest.fixture(scope="module")
def cluster(requests: list[RemotingCommand]) -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running:
        fill(running)
        yield running


@pytest.fixture(scope="module")
def page(cluster: LocalCluster) -> Iterator[Page]:
    with page_of(cluster.name_server, connecting={"namespace": INSTANCE}) as page:
        yield page


@pytest.mark.parametrize("route", ROUTE_LIMITS, ids=" ".join)
def test_a_route(route: tuple[str, str], page: Page, cluster: LocalCluster, requests: list[RemotingCommand]) -> None:
    message = fill(cluster)
    method, path = route
    given = {
        name: value(name, route, cluster.broker_address, message)
        for name in ROUTE_LIMITS[route].parameters
        if name not in WITHOUT_NAMES and route[1] not in ("/api/time", "/api/login")
    }
    for name in ("topic", "group"):
        path = path.replace(f"{{{name}}}", str(given.get(name)).replace("%", "%25"))
    requests.clear()
    sent: dict[str, Any] = (
        {"params": given} if method == "GET" else {"json": given, "headers": {"X-CSRF-Token": page.csrf}}
    )
    response = page.http.request(method, path, **sent)
    print(route, response.status_code, response.text)
    assert route in FULL_NAMES or INSTANCE not in response.text
    assert [text_of(each) for each in requests if BARE.search(text_of(each))] == []
