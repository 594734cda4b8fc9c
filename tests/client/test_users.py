"""Users and permissions of ACL 2.0: the bodies of Apache's requests and responses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from spark_rocket.client import Admin
from spark_rocket.client.admin import AccessMode, Failures
from spark_rocket.errors import BrokerError, ProtocolError, RocketError
from spark_rocket.protocol.wire.bodies.config import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from spark_rocket.protocol.wire.codes import DELETE_ACL_CONFIG_FAILED, RequestCode, ResponseCode
from tests.kit.scripted import FakeCluster, says

pytestmark = pytest.mark.live

ACL = {
    "subject": "User:ada",
    "policies": [
        {
            "policyType": "Custom",
            "entries": [
                {
                    "resource": "Topic:orders*",
                    "actions": ["Pub", "Sub"],
                    "sourceIps": ["10.0.0.0/8"],
                    "decision": "Allow",
                }
            ],
        }
    ],
}


@pytest.fixture
def admin(mq: FakeCluster) -> Iterator[Admin]:
    with Admin(mq.name_server.address, access_key="root", secret_key="of-many-letters") as admin:
        yield admin


_ADDED = ("AccessKey", "Signature", "bname")


def sent(mq: FakeCluster) -> list[object]:
    """The last request of each broker: fields without those of every request, and the body."""
    found = []
    for broker in mq.brokers:
        request = broker.requests[-1]
        ext = {name: value for name, value in request.ext_fields.items() if name not in _ADDED}
        found.append((request.code, ext, json.loads(bytes(request.body)) if request.body else None))
    assert found[0] == found[1]
    return list(found[0])


def test_lists_of_users_and_permissions(mq: FakeCluster, admin: Admin) -> None:
    users = [{"username": "ada", "password": "secret", "userType": "Super", "userStatus": "enable"}]
    mq.everywhere(RequestCode.AUTH_LIST_USER, says(0, body=json.dumps(users).encode()))
    mq.everywhere(RequestCode.AUTH_LIST_ACL, says(0, body=json.dumps([ACL]).encode()))
    (user,) = admin.users("b0")
    assert user == UserInfo("ada", "secret", "Super", "enable")
    assert "secret" not in repr(user)
    entry = PolicyEntryInfo("Topic:orders*", ["Pub", "Sub"], ["10.0.0.0/8"], "Allow")
    assert admin.acls("b0") == [AclInfo("User:ada", [PolicyInfo("Custom", [entry])])]
    mq.everywhere(RequestCode.AUTH_LIST_USER, says(0))  # without a body if there are none
    assert admin.users("b0") == []
    mq.everywhere(RequestCode.AUTH_LIST_USER, says(0, body=b"{}"))
    with pytest.raises(ProtocolError, match="Invalid list of UserInfo"):
        admin.users("b0")


def test_changes_of_users_and_permissions(mq: FakeCluster, admin: Admin) -> None:
    for code in range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1):
        mq.everywhere(code, says(0))
    assert admin.create_user("ada", "secret", user_type="Super") == ["b0", "b1"]
    body = {"username": "ada", "password": "secret", "userType": "Super", "userStatus": "enable"}
    assert sent(mq) == [RequestCode.AUTH_CREATE_USER, {"username": "ada"}, body]
    admin.update_user("ada", user_status="disable")
    body = {"username": "ada", "userStatus": "disable"}
    assert sent(mq) == [RequestCode.AUTH_UPDATE_USER, {"username": "ada"}, body]
    admin.delete_user("ada")
    assert sent(mq) == [RequestCode.AUTH_DELETE_USER, {"username": "ada"}, None]
    admin.put_permission("ada", "Topic:orders*", ["Pub", "Sub"], source_ips=["10.0.0.0/8"])
    assert sent(mq) == [RequestCode.AUTH_UPDATE_ACL, {"subject": "User:ada"}, ACL]
    admin.delete_permission("ada", "Topic:orders*")
    fields = {"subject": "User:ada", "policyType": "Custom", "resource": "Topic:orders*"}
    assert sent(mq) == [RequestCode.AUTH_DELETE_ACL, fields, None]


def test_a_failure_at_one_broker_does_not_stop_the_others(mq: FakeCluster, admin: Admin) -> None:
    mq.brokers[0].responses[RequestCode.AUTH_DELETE_USER] = says(ResponseCode.USER_NOT_EXIST, "unknown user")
    mq.brokers[1].responses[RequestCode.AUTH_DELETE_USER] = says(0)
    failed: Failures = {}
    assert admin.delete_user("ada", failed=failed) == ["b1"]
    assert "unknown user" in failed["b0"].message
    with pytest.raises(BrokerError, match="the deletion of user ada"):
        admin.delete_user("ada")


def test_the_kind_of_access_control(mq: FakeCluster, admin: Admin) -> None:
    modes = {
        b"aclEnable=false\n": AccessMode.OFF,
        b"": AccessMode.OFF,
        b"aclEnable=true\n": AccessMode.PLAIN,
        b"aclEnable=false\nauthenticationEnabled=true\n": AccessMode.AUTH,
        b"authorizationEnabled=true\n": AccessMode.AUTH,
    }
    for body, mode in modes.items():
        mq.everywhere(RequestCode.GET_BROKER_CONFIG, says(0, body=body))
        assert [(one.name, one.mode) for one in admin.access_modes()] == [("b0", mode), ("b1", mode)]
    assert admin.access_key == "root"


def test_a_deletion_that_is_refused_by_a_broker_that_does_not_report_its_accounts(
    mq: FakeCluster, admin: Admin
) -> None:
    """Brokers of 5.0 to 5.3."""
    mq.brokers[0].responses[RequestCode.DELETE_ACL_CONFIG] = says(DELETE_ACL_CONFIG_FAILED, "does not exist")
    mq.brokers[1].responses[RequestCode.DELETE_ACL_CONFIG] = says(0)
    failed: dict[str, RocketError] = {}
    addresses = [broker.address for broker in mq.brokers]
    assert admin.delete_account_of("ada-key", addresses, failed=failed) == addresses[1:]
    assert "does not exist" in failed[addresses[0]].message


def test_a_set_in_the_white_list_is_sent_as_addresses(mq: FakeCluster, admin: Admin) -> None:
    """Apache's brokers split the list at every comma."""
    mq.everywhere(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, says(0))
    admin.update_global_white_addrs(["10.0.0.{7, 9}", "fe80::{1}", "10.0.1.5-20", "10.0.{7"])
    expected = "10.0.0.7,10.0.0.9,fe80::1,10.0.1.5-20,10.0.{7"
    assert [broker.requests[-1].ext_fields["globalWhiteAddrs"] for broker in mq.brokers] == [expected] * 2
