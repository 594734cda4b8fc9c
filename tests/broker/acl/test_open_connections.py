"""Permissions that are taken back while a client is connected: its held requests get no messages any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.broker.acl.conftest import Connect
from tests.broker.popping import Popper
from tests.broker.wire import HELD, Wire
from tests.kit.brokers import parts_of
from tests.kit.waiting import until

pytestmark = pytest.mark.live

ROOT = Credentials("root-key", "r00t-s3cr3t")
BOB = Credentials("bob-key", "b0bs-s3cr3t")


@pytest.fixture(scope="module", params=["1.0", "2.0"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(
        in_process=True, acl=request.param, access_key=ROOT.access_key, secret_key=ROOT.secret_key
    ) as running:
        for kind in REQUESTS:
            running.create_topic(topic_of(kind), 1)
        running.create_group("readers")
        yield running


def _pull(code: int) -> Callable[[Wire, str], Future[RemotingCommand]]:
    def ask(wire: Wire, topic: str) -> Future[RemotingCommand]:
        more: dict[str, Any] = HELD
        return wire.ask_later(code, **wire.pull_fields(topic, 0, **more))

    return ask


def _pop(wire: Wire, topic: str) -> Future[RemotingCommand]:
    return Popper(wire, "readers", topic).pop_later(queueId=0)


def _notification(wire: Wire, topic: str) -> Future[RemotingCommand]:
    return Popper(wire, "readers", topic).notification_later(queueId=0)


REQUESTS = {
    "pull": (_pull(RequestCode.PULL_MESSAGE), ResponseCode.PULL_RETRY_IMMEDIATELY),
    "lite pull": (_pull(RequestCode.LITE_PULL_MESSAGE), ResponseCode.PULL_RETRY_IMMEDIATELY),
    "pop": (_pop, ResponseCode.POLLING_TIMEOUT),
    "notification": (_notification, ResponseCode.SUCCESS),
}


def topic_of(kind: str) -> str:
    return kind.replace(" ", "-")


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_held_request_gets_nothing_after_a_change(kind: str, cluster: LocalCluster, as_: Connect) -> None:
    """Its client asks again, and is checked by the new rules. Requests held since then get what arrives."""
    ask, without_messages = REQUESTS[kind]
    topic = topic_of(kind)
    parts, root = parts_of(cluster), as_(ROOT)
    mallory = Credentials(f"mallory-{topic}", "mall0ry-s3cr3t")
    reading = {f"Topic:{topic}": ["Sub"], "Group:readers": ["Sub"]}
    for account in (mallory, BOB):
        cluster.set_account(account.access_key, account.secret_key, reading)

    def held(number: int) -> bool:
        return parts.held_requests.pulls.count + parts.held_requests.pops.count == number

    evil = as_(mallory)
    first = ask(evil, topic)
    assert until(lambda: held(1))
    cluster.set_account(mallory.access_key, mallory.secret_key, {"Group:readers": ["Sub"]})
    fresh = ask(as_(BOB), topic)
    assert until(lambda: held(2))
    root.send(topic, b"secret")
    response = first.result(30)
    assert (response.code, bytes(response.body)) == (without_messages, b""), response.remark
    assert response.ext_fields.get("hasMsg", "false") == "false"
    assert ask(evil, topic).result(30).code == ResponseCode.NO_PERMISSION
    found = fresh.result(30)
    assert found.code == ResponseCode.SUCCESS
    assert b"secret" in bytes(found.body) or found.ext_fields["hasMsg"] == "true"
