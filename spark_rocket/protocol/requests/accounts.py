"""The rows of accounts (ACL 1.0), and of users and policies (ACL 2.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_rocket.protocol.requests.needs import Action, PlainAccess, cluster
from spark_rocket.protocol.requests.request_type import KIB, RequestType, table
from spark_rocket.protocol.requests.state import POLICY_ENTRIES, USERS
from spark_rocket.protocol.wire.bodies.config import AclInfo, UserInfo
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.headers.admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateAclRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
    UserRequestHeader,
)

_LISTS_HEADER = 256 * KIB
_UPDATE = (cluster(Action.UPDATE),)
_GET = (cluster(Action.GET),)
_READ: dict[str, Any] = {"needs": _GET, "plain_exception": PlainAccess.ADMIN}
_POLICIES: dict[str, Any] = {
    "header": UpdateAclRequestHeader,
    "body": AclInfo,
    "max_body_bytes": 256 * KIB,
    "max_entries": {
        "policies": 2,
        "policies.entries": 2_000,
        "policies.entries.actions": 16_000,
        "policies.entries.sourceIps": 4_000,
    },
    "state": (POLICY_ENTRIES,),
    "needs": _UPDATE,
}

ACCOUNTS: Mapping[int, RequestType] = table(
    RequestType(
        code=Code.UPDATE_AND_CREATE_ACL_CONFIG,
        header=CreateAccessConfigRequestHeader,
        max_header_bytes=_LISTS_HEADER,
        max_entries={"whiteRemoteAddress": 1_000, "topicPerms": 2_000, "groupPerms": 2_000},
        needs=_UPDATE,
    ),
    RequestType(code=Code.DELETE_ACL_CONFIG, header=DeleteAccessConfigRequestHeader, needs=_UPDATE),
    RequestType(
        code=Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        header=UpdateGlobalWhiteAddrsConfigRequestHeader,
        max_header_bytes=_LISTS_HEADER,
        max_entries={"globalWhiteAddrs": 2_000},
        needs=_UPDATE,
    ),
    RequestType(code=Code.GET_BROKER_CLUSTER_ACL_INFO, needs=_GET, plain_exception=PlainAccess.ADMIN),
    RequestType(code=Code.GET_BROKER_CLUSTER_ACL_CONFIG, needs=_GET, plain_exception=PlainAccess.ADMIN),
    RequestType(code=Code.AUTH_CREATE_USER, header=UserRequestHeader, body=UserInfo, state=(USERS,), needs=_UPDATE),
    RequestType(code=Code.AUTH_UPDATE_USER, header=UserRequestHeader, body=UserInfo, needs=_UPDATE),
    RequestType(code=Code.AUTH_DELETE_USER, header=UserRequestHeader, needs=_UPDATE),
    RequestType(code=Code.AUTH_GET_USER, header=UserRequestHeader, **_READ),
    RequestType(code=Code.AUTH_LIST_USER, header=ListUsersRequestHeader, **_READ),
    RequestType(code=Code.AUTH_CREATE_ACL, **_POLICIES),
    RequestType(code=Code.AUTH_UPDATE_ACL, **_POLICIES),
    RequestType(code=Code.AUTH_DELETE_ACL, header=DeleteAclRequestHeader, needs=_UPDATE),
    RequestType(code=Code.AUTH_GET_ACL, header=UpdateAclRequestHeader, **_READ),
    RequestType(code=Code.AUTH_LIST_ACL, header=ListAclsRequestHeader, **_READ),
)
"""Request code -> its row."""
