"""The rows of accounts (ACL 1.0)."""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.requests.needs import Action, PlainAccess, cluster
from spark_rocket.protocol.requests.request_type import KIB, RequestType, table
from spark_rocket.protocol.wire.codes import RequestCode as Code
from spark_rocket.protocol.wire.headers.admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)

_LISTS_HEADER = 256 * KIB
_UPDATE = (cluster(Action.UPDATE),)
_GET = (cluster(Action.GET),)

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
)
"""Request code -> its row."""
