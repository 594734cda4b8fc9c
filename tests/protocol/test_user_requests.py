"""Users and policies of ACL 2.0 on the wire, as mqadmin of RocketMQ 5.3.3 sends and reads them.

Field names are those of Apache's sources, read on GitHub (apache/rocketmq, folder remoting/src/main/java/org/apache/
rocketmq/remoting/protocol): RequestCode (3001 to 3010), header/{CreateUser, ListUsers, CreateAcl, DeleteAcl,
ListAcls}RequestHeader, body/{UserInfo, AclInfo}. Null fields are not written. Nothing here was recorded from mqadmin.
"""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.protocol.requests import BROKER_REQUESTS
from spark_rocket.protocol.wire.bodies.config import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.admin import (
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateAclRequestHeader,
    UserRequestHeader,
)

ALICE = UserInfo("alice", "s3cr3t", "Normal")
ALICE_JSON = b'{"password":"s3cr3t","userType":"Normal","username":"alice"}'
DISABLED = UserInfo("alice", user_status="disable")
DISABLED_JSON = b'{"userStatus":"disable","username":"alice"}'
ENTRY = PolicyEntryInfo("Topic:orders*", ["Pub", "Sub"], ["10.0.0.0/8"], "Allow")
ACL = AclInfo("User:alice", [PolicyInfo(None, [ENTRY])])
ACL_JSON = (
    b'{"policies":[{"entries":[{"actions":["Pub","Sub"],"decision":"Allow","resource":"Topic:orders*",'
    b'"sourceIps":["10.0.0.0/8"]}]}],"subject":"User:alice"}'
)
CUSTOM = AclInfo("User:alice", [PolicyInfo("Custom", [PolicyEntryInfo("*", ["All"], None, "Deny")])])
CUSTOM_JSON = (
    b'{"policies":[{"entries":[{"actions":["All"],"decision":"Deny","resource":"*"}],"policyType":"Custom"}],'
    b'"subject":"User:alice"}'
)

REQUESTS: list[tuple[int, bytes, Any, bytes, Any]] = [
    (3001, b'"username":"alice"', UserRequestHeader("alice"), ALICE_JSON, ALICE),
    (3002, b'"username":"alice"', UserRequestHeader("alice"), DISABLED_JSON, DISABLED),
    (3003, b'"username":"alice"', UserRequestHeader("alice"), b"", None),
    (3004, b'"username":"alice"', UserRequestHeader("alice"), b"", None),
    (3005, b'"filter":"al"', ListUsersRequestHeader("al"), b"", None),
    (3005, b"", ListUsersRequestHeader(), b"", None),
    (3006, b'"subject":"User:alice"', UpdateAclRequestHeader("User:alice"), ACL_JSON, ACL),
    (3007, b'"subject":"User:alice"', UpdateAclRequestHeader("User:alice"), CUSTOM_JSON, CUSTOM),
    (3008, b'"resource":"*","subject":"User:alice"', DeleteAclRequestHeader("User:alice", None, "*"), b"", None),
    (
        3008,
        b'"policyType":"Default","subject":"User:alice"',
        DeleteAclRequestHeader("User:alice", "Default"),
        b"",
        None,
    ),
    (3009, b'"subject":"User:alice"', UpdateAclRequestHeader("User:alice"), b"", None),
    (
        3010,
        b'"resourceFilter":"Topic:","subjectFilter":"User:al"',
        ListAclsRequestHeader("User:al", "Topic:"),
        b"",
        None,
    ),
]


@pytest.mark.parametrize(("code", "fields", "header", "body", "value"), REQUESTS)
def test_requests_of_mqadmin(code: int, fields: bytes, header: Any, body: bytes, value: Any) -> None:
    """The broker reads them, and our client writes the same fields."""
    text = b'{"code":%d,"extFields":{%b},"flag":0,"language":"JAVA","opaque":1,"version":479}' % (code, fields)
    request = RemotingCommand.decode(len(text).to_bytes(4, "big") + text + body)
    row = BROKER_REQUESTS[code]
    assert RequestCode(code).name.startswith("AUTH_")
    assert row.header_of(request) == header
    assert header.to_ext() == request.ext_fields
    if value is None:
        assert not isinstance(row.body, type)
    else:
        assert row.body_of(request) == value


@pytest.mark.parametrize(
    ("value", "text"), [(ALICE, ALICE_JSON), (DISABLED, DISABLED_JSON), (ACL, ACL_JSON), (CUSTOM, CUSTOM_JSON)]
)
def test_bodies_are_those_of_java(value: UserInfo | AclInfo, text: bytes) -> None:
    assert value.to_json() == text
    assert type(value).from_json(text) == value
