"""The proxy with ACL 2.0: users and policies of the brokers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from spark_rocket.client import Admin
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.auth import Credentials, authorization_of, inner_credentials_text
from spark_rocket.proxy import definitions
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.threads import ProxyThread
from tests.kit.waiting import until
from tests.proxy.caller import Caller, consumer_settings, producer_settings

pytestmark = pytest.mark.live

ROOT = Credentials("root", "r00t-s3cr3t")
_numbers = itertools.count(1)
OK, UNAUTHORIZED, FORBIDDEN = definitions.Code.OK, definitions.Code.UNAUTHORIZED, definitions.Code.FORBIDDEN
NO_EFFECT = "the change has no effect"
NO_POLICY = "has no permission to access {} from 127.0.0.1, no matched policies."

AsCaller = Callable[..., Caller]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {"userCacheRefreshSeconds": 1}
    with LocalCluster(in_process=True, acl="2.0", access_key="root", secret_key="r00t-s3cr3t", config=config) as one:
        for topic in ("orders", "bills"):
            one.create_topic(topic, 1)
        one.create_group("readers")
        yield one


@pytest.fixture
def alice() -> Credentials:
    """A name that the proxy has not cached."""
    return Credentials(f"alice-{next(_numbers)}", "al1ce-s3cr3t")


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.name_server, access_key=ROOT.access_key, secret_key=ROOT.secret_key) as found:
        yield found


@pytest.fixture
def as_(cluster: LocalCluster) -> Iterator[AsCaller]:
    """A caller with the metadata of a user."""
    callers: list[Caller] = []

    def caller(credentials: Credentials | None, endpoint: str = "") -> Caller:
        callers.append(Caller(endpoint or cluster.grpc_endpoint, f"client-{len(callers)}"))
        if credentials is not None:
            now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            callers[-1].metadata |= {"authorization": authorization_of(credentials, now), "x-mq-date-time": now}
        return callers[-1]

    yield caller
    for one in callers:
        one.close()


def send(caller: Caller, *topics: str) -> Any:
    messages = [
        definitions.Message(
            topic=definitions.Resource(name=topic),
            body=b"x",
            system_properties=definitions.SystemProperties(message_id=f"{topic}-1"),
        )
        for topic in topics
    ]
    return caller.call("SendMessage", messages=messages).status


def refused(status: Any, code: int, text: str) -> None:
    assert status.code == code, status
    assert text in status.message
    assert "s3cr3t" not in status.message


def test_calls_need_a_signature_and_a_policy(cluster: LocalCluster, as_: AsCaller, alice: Credentials) -> None:
    cluster.set_account(alice.access_key, alice.secret_key, {"Topic:orders": ["Pub"]})
    refused(send(as_(None), "orders"), UNAUTHORIZED, "username cannot be null.")
    refused(send(as_(Credentials("eve", "eves-s3cr3t")), "orders"), UNAUTHORIZED, "User:eve is not found.")
    refused(send(as_(Credentials("e" * 300, "eves-s3cr3t")), "orders"), UNAUTHORIZED, "is not found.")
    refused(send(as_(Credentials(alice.access_key, "wr0ng-s3cr3t")), "orders"), UNAUTHORIZED, "check signature failed.")
    assert send(as_(alice), "orders").code == OK
    refused(send(as_(alice), "orders", "bills"), FORBIDDEN, NO_POLICY.format("Topic:bills"))
    assert send(as_(ROOT), "bills").code == OK


def test_what_is_added_is_effective_at_once(
    cluster: LocalCluster, as_: AsCaller, admin: Admin, alice: Credentials
) -> None:
    cluster.set_account(alice.access_key, alice.secret_key, {})
    caller = as_(alice)
    refused(send(caller, "orders"), FORBIDDEN, NO_POLICY.format("Topic:orders"))
    admin.put_permission(alice.access_key, "Topic:orders", ["Pub"])

    until(lambda: send(caller, "orders").code == OK, NO_EFFECT)


def test_what_is_taken_away_is_refused_after_the_next_refresh(
    cluster: LocalCluster, as_: AsCaller, admin: Admin, alice: Credentials
) -> None:
    cluster.set_account(alice.access_key, alice.secret_key, {"Topic:orders": ["Pub"]})
    caller = as_(alice)
    until(lambda: send(caller, "orders").code == OK, NO_EFFECT)
    admin.put_permission(alice.access_key, "Topic:orders", ["Pub"], decision="Deny")
    until(lambda: send(caller, "orders").code == FORBIDDEN, NO_EFFECT)
    refused(send(caller, "orders"), FORBIDDEN, "the decision is deny.")
    admin.update_user(alice.access_key, user_status="disable")
    until(lambda: send(caller, "orders").code == UNAUTHORIZED, NO_EFFECT)
    refused(send(caller, "orders"), UNAUTHORIZED, f"User:{alice.access_key} is disabled.")
    admin.update_user(alice.access_key, user_status="enable", password="n3w-s3cr3t")
    until(lambda: "check signature failed." in send(caller, "orders").message, NO_EFFECT)
    admin.delete_user(alice.access_key)
    until(lambda: f"User:{alice.access_key} is not found." in send(caller, "orders").message, NO_EFFECT)


def test_each_message_of_a_stream_is_checked(cluster: LocalCluster, as_: AsCaller, alice: Credentials) -> None:
    cluster.set_account(alice.access_key, alice.secret_key, {"Topic:orders": ["Pub", "Sub"], "Group:readers": ["Sub"]})
    for settings in (
        producer_settings("bills"),
        consumer_settings("others", "orders"),
        consumer_settings("readers", "bills"),
    ):
        with as_(alice).telemetry() as stream:
            stream.say_settings(consumer_settings("readers", "orders"))
            stream.say(settings=settings)
            with pytest.raises(grpc.RpcError) as ended:
                stream.hear()
            assert ended.value.code() is grpc.StatusCode.PERMISSION_DENIED


def proxy_with(cluster: LocalCluster, **settings: object) -> ProxyThread:
    own = inner_credentials_text(ROOT)
    given = {"grpcServerPort": 0, "namesrvAddr": cluster.name_server, "innerClientAuthenticationCredentials": own}
    return ProxyThread(ProxyConfig.from_properties({**given, "authenticationEnabled": True, **settings}), 60.0)


def test_white_lists_name_messages(cluster: LocalCluster, as_: AsCaller, alice: Credentials) -> None:
    """A message of the first list alone needs a signature: without one, it could name any user."""
    cluster.set_account(alice.access_key, alice.secret_key, {})
    send_message, route = "apache.rocketmq.v2.SendMessageRequest", "apache.rocketmq.v2.QueryRouteRequest"
    proxy = proxy_with(
        cluster,
        authorizationEnabled=True,
        authenticationWhitelist=f"{send_message},{route}",
        authorizationWhitelist=send_message,
    )
    try:
        nobody, caller = as_(None, proxy.address), as_(alice, proxy.address)
        assert send(nobody, "orders").code == OK
        assert send(caller, "orders").code == OK
        orders = {"topic": definitions.Resource(name="orders"), "endpoints": definitions.Endpoints()}
        refused(nobody.call("QueryRoute", **orders).status, UNAUTHORIZED, "username cannot be null.")
        refused(caller.call("QueryRoute", **orders).status, FORBIDDEN, NO_POLICY.format("Topic:orders"))
    finally:
        proxy.stop()


def test_signatures_without_policies(cluster: LocalCluster, as_: AsCaller, alice: Credentials) -> None:
    cluster.set_account(alice.access_key, alice.secret_key, {})
    proxy = proxy_with(cluster)
    try:
        assert send(as_(alice, proxy.address), "orders").code == OK
        refused(send(as_(None, proxy.address), "orders"), UNAUTHORIZED, "username cannot be null.")
    finally:
        proxy.stop()


def test_the_proxys_account_must_be_a_super_user(cluster: LocalCluster, as_: AsCaller, alice: Credentials) -> None:
    """It fails closed: no call passes unchecked."""
    cluster.set_account(alice.access_key, alice.secret_key, {"*": ["All"]})
    own = inner_credentials_text(alice)
    proxy = proxy_with(cluster, innerClientAuthenticationCredentials=own, authorizationEnabled=True)
    try:
        status = send(as_(ROOT, proxy.address), "orders")
        assert status.code != OK
        assert "Users cannot be checked: broker" in status.message
        assert "Set innerClientAuthenticationCredentials of the proxy to a Super user" in status.message
    finally:
        proxy.stop()


def test_brokers_without_users(as_: AsCaller) -> None:
    with LocalCluster(in_process=True) as open_cluster:
        proxy = proxy_with(open_cluster, authorizationEnabled=True)
        try:
            status = send(as_(ROOT, proxy.address), "orders")
            assert status.code != OK
            assert "Users cannot be checked" in status.message
        finally:
            proxy.stop()


def test_settings_of_apaches_proxy() -> None:
    auth = "org.apache.rocketmq.auth"
    given = {
        "authenticationEnabled": True,
        "authenticationProvider": f"{auth}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider",
        "authenticationStrategy": f"{auth}.authentication.strategy.StatefulAuthenticationStrategy",
        "authorizationEnabled": True,
        "authorizationProvider": f"{auth}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthorizationMetadataProvider",
        "migrateAuthFromV1Enabled": True,
        "aclCacheRefreshSeconds": 7,
    }
    config = ProxyConfig.from_properties(given)
    assert config.is_guarded
    assert config.user_refresh_seconds == 7
    for name, text in (
        ("authenticationProvider", "my.Provider"),
        ("enableACL", "true"),
        ("authorizationWhitelist", "x"),
    ):
        with pytest.raises(ConfigError, match=name):
            ProxyConfig.from_properties({name: text})
