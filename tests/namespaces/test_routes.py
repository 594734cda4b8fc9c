"""Every route of the console in a namespace: requests have full names, and responses have short ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from spark_rocket.console.request_limits import ROUTE_LIMITS
from spark_rocket.model import MessageExt
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.console.conftest import Page, page_of
from tests.kit.recording import recording, text_of
from tests.namespaces.world import BARE, GROUP, INSTANCE, TOPIC, fill, full

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
    """With short names, and with full ones: it does the same."""
    statuses = []
    for named in (str, full):
        message = fill(cluster)
        response = asked(route, page, cluster, message, named, requests)
        assert [text_of(each) for each in requests if BARE.search(text_of(each))] == []
        assert route in FULL_NAMES or named is full or INSTANCE not in response.text
        statuses.append(response.status_code)
    assert statuses[0] == statuses[1]


def asked(
    route: tuple[str, str], page: Page, cluster: LocalCluster, message: MessageExt, named: Callable[[str], str],
    requests: list[RemotingCommand],
) -> httpx.Response:  # fmt: skip
    method, path = route
    given = {
        name: value(name, route, cluster.broker_address, message)
        for name in ROUTE_LIMITS[route].parameters
        if name not in WITHOUT_NAMES and route[1] not in ("/api/time", "/api/login")
    }
    text = re.sub(rf"{TOPIC}|{GROUP}|znew", lambda name: named(name[0]), json.dumps(given))
    given = json.loads(text)
    for name in ("topic", "group"):
        path = path.replace(f"{{{name}}}", str(given.get(name)).replace("%", "%25"))
    requests.clear()
    sent: dict[str, Any] = {"params": given}
    if method != "GET":
        sent = {"json": given, "headers": {"X-CSRF-Token": page.csrf}}
    return page.http.request(method, path, **sent)
