"""Permissions of gRPC calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest

from spark_rocket.acl.rules import AclRules
from spark_rocket.protocol.auth import Credentials, authorization_of
from spark_rocket.proxy import definitions
from spark_rocket.proxy.acl.plain_access_control import GrpcPlainAccessControl
from spark_rocket.proxy.method_types import METHODS
from spark_rocket.testing import LocalCluster
from tests.proxy.caller import Caller

pytestmark = pytest.mark.live

ALICE = Credentials("alice-key", "al1ce-s3cr3t")
MALLORY = Credentials("mallory-key", "mall0ry-s3cr3t")
ACCOUNTS = b"""
accounts:
- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}
- {accessKey: alice-key, secretKey: al1ce-s3cr3t, topicPerms: [orders=PUB, bills=SUB], groupPerms: [readers=SUB]}
- {accessKey: mallory-key, secretKey: mall0ry-s3cr3t, defaultTopicPerm: DENY}
- {accessKey: white-key, secretKey: wh1te-s3cr3t, whiteRemoteAddress: 127.0.0.1}
"""
OK, UNAUTHORIZED, FORBIDDEN = (
    definitions.Code.OK,
    definitions.Code.UNAUTHORIZED,
    definitions.Code.FORBIDDEN,
)
_of = definitions.Resource


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home: Path = tmp_path_factory.mktemp("acl")
    with LocalCluster(in_process=True, access_key="root-key", secret_key="r00t-s3cr3t", data_dir=home) as running:
        for topic in ("orders", "bills"):
            running.create_topic(topic, 1)
        running.create_group("readers")
        control_of(running).take(AclRules.from_bytes(ACCOUNTS, "plain_acl.yml"))
        yield running


def control_of(cluster: LocalCluster) -> GrpcPlainAccessControl:
    """The proxy's accounts. The broker has the proxy's own account only."""
    methods = cluster.proxy.server.methods
    assert methods is not None
    assert isinstance(methods.access_control, GrpcPlainAccessControl)
    return methods.access_control


def now(shift: float = 0.0) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + shift))


def headers(credentials: Credentials, date_time: str | None = None) -> dict[str, str]:
    date_time = date_time or now()
    return {"authorization": authorization_of(credentials, date_time), "x-mq-date-time": date_time}


@pytest.fixture
def as_(guarded: LocalCluster) -> Iterator[Callable[..., Caller]]:
    """A caller with metadata of its own."""
    callers: list[Caller] = []

    def caller(credentials: Credentials | None = None, **metadata: str) -> Caller:
        callers.append(Caller(guarded.grpc_endpoint, f"client-{len(callers)}"))
        callers[-1].metadata |= headers(credentials) if credentials is not None else {}
        callers[-1].metadata |= {name.replace("_", "-"): value for name, value in metadata.items()}
        return callers[-1]

    yield caller
    for one in callers:
        one.close()


def send(caller: Caller, *topics: str) -> Any:
    messages = [
        definitions.Message(
            topic=_of(name=topic), body=b"x", system_properties=definitions.SystemProperties(message_id=f"{topic}-1")
        )
        for topic in topics
    ]
    return caller.call("SendMessage", messages=messages)


def test_clients_with_and_without_a_certificate(as_: Callable[..., Caller]) -> None:
    assert send(as_(ALICE), "orders").status.code == OK
    for caller, said in (
        (as_(), "names no accessKey"),
        (as_(Credentials("unknown", "n0body-s3cr3t")), "no account with the accessKey unknown"),
        (as_(Credentials("alice-key", "wr0ng-s3cr3t")), "a signature that its secret key did not make"),
        (as_(ALICE, x_mq_date_time=now(1.0)), "did not make"),
        (as_(ALICE, x_mq_date_time=""), "did not make"),
        (as_(ALICE, authorization="MQv2-HMAC-SHA1 Credential=alice-key, Signature=zz"), "no Signature in hexadecimal"),
        (as_(ALICE, authorization="Bearer s3cr3t"), "part without '='"),
    ):
        status = send(caller, "orders").status
        assert status.code == UNAUTHORIZED
        assert said in status.message
        assert "s3cr3t" not in status.message
    assert send(as_(authorization="MQv2-HMAC-SHA1 Credential=white-key, Signature=00"), "orders").status.code == OK


def test_a_distant_time(as_: Callable[..., Caller], guarded: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients send local time labeled as UTC: by default a difference of a day is accepted."""
    for shift in (-15 * 3600, 15 * 3600):
        caller = as_(ALICE)
        caller.metadata |= headers(ALICE, now(shift))
        assert send(caller, "orders").status.code == OK
    control = control_of(guarded)
    for shift in (-25 * 3600, 25 * 3600):
        caller = as_(ALICE)
        caller.metadata |= headers(ALICE, now(shift))
        status = send(caller, "orders").status
        assert status.code == UNAUTHORIZED
        assert "aclMaxClockSkew" in status.message
        with monkeypatch.context() as any_time:
            any_time.setattr(control, "clock_skew_ms", 0)
            assert send(caller, "orders").status.code == OK
    caller = as_(ALICE)
    caller.metadata |= headers(ALICE, datetime.now(timezone(timedelta(hours=2))).isoformat())  # as Rust's client
    assert send(caller, "orders").status.code == OK
    caller = as_(ALICE)  # as Go's and C++'s
    caller.metadata["authorization"] = caller.metadata["authorization"].replace("-key,", "-key//RocketMQ,")
    assert "//" in caller.metadata["authorization"]
    assert send(caller, "orders").status.code == OK
    caller = as_(ALICE)
    caller.metadata |= headers(ALICE, "yesterday")
    assert send(caller, "orders").status.code == UNAUTHORIZED


def test_each_method_needs_its_permission(as_: Callable[..., Caller]) -> None:
    alice = as_(ALICE)
    status = send(alice, "bills").status
    assert (status.code, status.message) == (
        FORBIDDEN,
        "accessKey alice-key has no permission PUB for the topic bills",
    )
    assert send(alice, "orders", "bills").status.code == FORBIDDEN
    queue = definitions.MessageQueue(topic=_of(name="bills"))
    others = definitions.MessageQueue(topic=_of(name="orders"))
    readers, strangers = _of(name="readers"), _of(name="strangers")
    by_group = [
        ("AckMessage", {}),
        ("ChangeInvisibleDuration", {}),
        ("ForwardMessageToDeadLetterQueue", {}),
        ("QueryAssignment", {"endpoints": definitions.Endpoints()}),
    ]
    for method, more in by_group:
        for topic, group in (("orders", readers), ("bills", strangers)):
            assert alice.call(method, topic=_of(name=topic), group=group, **more).status.code == FORBIDDEN, method
        assert alice.call(method, topic=_of(name="bills"), group=readers, **more).status.code != FORBIDDEN, method
    for method in ("UpdateOffset", "GetOffset"):
        for where, group in ((others, readers), (queue, strangers)):
            assert alice.call(method, message_queue=where, group=group).status.code == FORBIDDEN, method
    for method in ("ReceiveMessage", "PullMessage"):
        for where, group in ((others, readers), (queue, strangers)):
            answers = list(alice.stream(method, message_queue=where, group=group))
            assert [answer.status.code for answer in answers] == [FORBIDDEN], method
    for method in ("Heartbeat", "NotifyClientTermination"):
        assert alice.call(method, group=strangers).status.code == FORBIDDEN
        assert alice.call(method, group=readers).status.code != FORBIDDEN
    for method in ("EndTransaction", "RecallMessage"):
        assert alice.call(method, topic=_of(name="bills")).status.code == FORBIDDEN
        assert alice.call(method, topic=_of(name="orders")).status.code != FORBIDDEN
    assert alice.call("QueryRoute", topic=_of(name="orders")).status.code != FORBIDDEN
    assert alice.call("QueryRoute", topic=_of(name="other")).status.code == FORBIDDEN
    assert alice.call("QueryOffset", message_queue=others).status.code not in (FORBIDDEN, UNAUTHORIZED)
    assert send(as_(Credentials("root-key", "r00t-s3cr3t")), "bills").status.code == OK


def test_every_method_is_in_the_list() -> None:
    service = definitions.messaging().descriptor.services_by_name["MessagingService"]
    assert {method.name for method in service.methods} == METHODS.keys()


def settings(*, group: str = "", topic: str = "orders") -> Any:
    kind = definitions.ClientType.SIMPLE_CONSUMER if group else definitions.ClientType.PRODUCER
    command = definitions.Settings(client_type=kind)
    if group:
        command.subscription.group.name = group
        command.subscription.subscriptions.add().topic.name = topic
    else:
        command.publishing.topics.add().name = topic
    return definitions.TelemetryCommand(settings=command)


@pytest.mark.parametrize(
    ("who", "command", "code"),
    [
        (ALICE, settings(), None),
        (ALICE, settings(group="readers", topic="bills"), None),
        (ALICE, settings(topic="bills"), grpc.StatusCode.PERMISSION_DENIED),
        (ALICE, settings(group="strangers", topic="bills"), grpc.StatusCode.PERMISSION_DENIED),
        (ALICE, settings(group="readers", topic="orders"), grpc.StatusCode.PERMISSION_DENIED),
        (None, settings(), grpc.StatusCode.UNAUTHENTICATED),
    ],
)
def test_telemetry(
    as_: Callable[..., Caller], who: Credentials | None, command: Any, code: grpc.StatusCode | None
) -> None:
    with as_(who).telemetry() as stream:
        stream.say(command)
        if code is None:
            assert stream.hear().settings.client_type == command.settings.client_type
            stream.say(settings(topic="bills"))  # the later ones are looked at as well
            code = grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError) as ended:
            stream.hear()
        assert ended.value.code() is code


def test_no_account_acts_for_a_client_of_another(as_: Callable[..., Caller]) -> None:
    """Its id is not secret. Another account with this id could decide its transactions, or end it."""
    alice = as_(ALICE)
    with alice.telemetry() as stream:
        stream.say(settings())
        assert stream.hear().HasField("settings")
        mallory = as_(MALLORY, x_mq_client_id=alice.client_id)
        for method in ("NotifyClientTermination", "Heartbeat"):
            status = mallory.call(method).status
            assert status.code == FORBIDDEN
            assert "another account" in status.message
        command = definitions.TelemetryCommand(
            settings=definitions.Settings(client_type=definitions.ClientType.PRODUCER)
        )
        command.settings.publishing.SetInParent()  # no topics: nothing that he would need a permission for
        with mallory.telemetry() as other:
            other.say(command)
            with pytest.raises(grpc.RpcError) as ended:
                other.hear()
            assert ended.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert alice.call("Heartbeat").status.code == OK
