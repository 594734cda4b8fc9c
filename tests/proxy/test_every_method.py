"""Every gRPC method, with both kinds of access control: who may call it follows from its row.

Each method is called unsigned, with a wrong secret, by an unknown account, by an account without permissions, with
exactly the declared need in each of its alternatives, with everything but one need, and by an administrator.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from spark_rocket.acl.rules import AclRules
from spark_rocket.acl.user_table import User
from spark_rocket.common.system import now_ms
from spark_rocket.protocol.auth import Credentials, authorization_of
from spark_rocket.protocol.requests.needs import Pair
from spark_rocket.proxy import definitions
from spark_rocket.proxy.acl.access_control import GrpcAccessControl
from spark_rocket.proxy.acl.plain_access_control import GrpcPlainAccessControl
from spark_rocket.proxy.acl.user_access_control import GrpcUserAccessControl
from spark_rocket.proxy.cluster.proxy_cluster import ProxyCluster
from spark_rocket.proxy.messages.statuses import StatusError
from spark_rocket.proxy.method_types import METHODS
from spark_rocket.proxy.proxy_config import ProxyConfig
from spark_rocket.proxy.transport.message_bytes import Batch
from spark_rocket.testing import LocalCluster
from tests.acl.grants import ALICE, FORGED, ROOT, UNKNOWN, Accounts, Grants, Users
from tests.cost.rpcs import plausible
from tests.proxy.caller import METHODS as METHOD_TYPES
from tests.proxy.caller import Caller, consumer_settings

UNAUTHORIZED, FORBIDDEN = definitions.Code.UNAUTHORIZED, definitions.Code.FORBIDDEN
FOR_ALL_1 = {"QueryOffset": "a read of metadata: ACL 1.0 has no permission for it, as for the Remoting request 30"}
"""Methods that any account of ACL 1.0 may call, and why. ACL 2.0 has no such method."""


class Context:
    """A call's metadata."""

    peer = "10.0.0.7:4711"
    deadline: float | None = None
    status_code = 0

    def __init__(self, who: Credentials | None) -> None:
        date_time = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        signed = {} if who is None else {"authorization": authorization_of(who, date_time)}
        self.metadata: Mapping[str, str] = {"x-mq-client-id": "c", "x-mq-date-time": date_time} | signed

    def batch(self) -> Batch:
        raise NotImplementedError


class Decisions(ABC):
    control: GrpcAccessControl[Any]
    for_all: Mapping[str, str]

    @abstractmethod
    def allow(self, grants: Grants) -> None: ...

    @abstractmethod
    def exact(self, pairs: Sequence[Pair]) -> Iterator[Grants]: ...

    @abstractmethod
    def too_little(self, pairs: Sequence[Pair]) -> Iterator[Grants]: ...

    def code_of(self, method: str, request: Any, who: Credentials | None) -> int:
        """The code of the refusal; 0 if the call passes."""
        context, rpc = Context(who), request.DESCRIPTOR.full_name

        async def call() -> None:
            await self.control.authenticate(context, rpc)
            await self.control.authorize(context, rpc, METHODS[method], request)

        try:
            asyncio.run(call())
        except StatusError as error:
            return error.code
        return 0


class Version1(Decisions):
    for_all = FOR_ALL_1

    def __init__(self, home: Path) -> None:
        path = home / "plain_acl.yml"
        path.write_text("accounts:\n- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}\n")
        self.plain = self.control = GrpcPlainAccessControl(path, clock=now_ms)

    def allow(self, grants: Grants) -> None:
        self.plain.take(AclRules(Accounts.accounts(grants)))

    def exact(self, pairs: Sequence[Pair]) -> Iterator[Grants]:
        yield from Accounts().exact(pairs)

    def too_little(self, pairs: Sequence[Pair]) -> Iterator[Grants]:
        yield from Accounts().too_little(pairs)


class BrokersUsers:
    """The users of a broker."""

    def __init__(self, grants: Grants) -> None:
        self._users = Users.table(grants).users

    async def get(self, username: str) -> User | None:
        return self._users.get(username)

    async def reload(self, username: str) -> bool:
        return False


class Version2(Decisions):
    for_all: Mapping[str, str] = {}

    def __init__(self, home: Path) -> None:
        config = ProxyConfig.from_properties({"authenticationEnabled": True, "authorizationEnabled": True})
        self.users = self.control = GrpcUserAccessControl(config, ProxyCluster("127.0.0.1:9876"))

    def allow(self, grants: Grants) -> None:
        self.users.users = BrokersUsers(grants)  # type: ignore[assignment]

    def exact(self, pairs: Sequence[Pair]) -> Iterator[Grants]:
        yield from Users().exact(pairs)

    def too_little(self, pairs: Sequence[Pair]) -> Iterator[Grants]:
        yield from Users().too_little(pairs)


@pytest.fixture(scope="module", params=[Version1, Version2])
def decisions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decisions:
    found = request.param(tmp_path_factory.mktemp("acl"))
    assert isinstance(found, Decisions)
    return found


def requests() -> Iterator[tuple[str, str, Any]]:
    for method in METHODS:
        yield method, method, plausible(method)
    command = definitions.TelemetryCommand(settings=consumer_settings("readers", "orders", "bills"))
    yield "Telemetry of a consumer", "Telemetry", command


@pytest.mark.parametrize(("method", "request_"), [pytest.param(*rest, id=label) for label, *rest in requests()])
def test_a_call_passes_with_exactly_what_its_row_declares(decisions: Decisions, method: str, request_: Any) -> None:
    pairs = METHODS[method].pairs(request_)
    assert pairs
    decisions.allow({})
    for who in (None, FORGED, UNKNOWN):
        assert decisions.code_of(method, request_, who) == UNAUTHORIZED, who
    assert decisions.code_of(method, request_, ROOT) == 0
    assert decisions.code_of(method, request_, ALICE) == (0 if method in decisions.for_all else FORBIDDEN)
    for grants in decisions.exact(pairs):
        decisions.allow(grants)
        assert decisions.code_of(method, request_, ALICE) == 0, grants
        for who in (None, FORGED, UNKNOWN):
            assert decisions.code_of(method, request_, who) == UNAUTHORIZED, who
    for grants in decisions.too_little(pairs):
        decisions.allow(grants)
        assert decisions.code_of(method, request_, ALICE) == FORBIDDEN, grants


# --- the methods that a proxy serves ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["1.0", "2.0"])
def guarded(request: pytest.FixtureRequest) -> Iterator[tuple[str, LocalCluster]]:
    with LocalCluster(
        in_process=True, acl=request.param, access_key=ROOT.access_key, secret_key=ROOT.secret_key
    ) as one:
        one.set_account(ALICE.access_key, ALICE.secret_key, {})
        yield request.param, one


def _status(caller: Caller, method: str) -> int:
    """The code of the only response. Telemetry ends with a gRPC status instead."""
    try:
        (raw,) = caller.raw(method, plausible(method).SerializeToString())
    except grpc.RpcError as error:
        of_status = {grpc.StatusCode.UNAUTHENTICATED: UNAUTHORIZED, grpc.StatusCode.PERMISSION_DENIED: FORBIDDEN}
        return int(of_status[error.code()])
    return int(getattr(definitions, METHOD_TYPES[method].output_type.name).FromString(raw).status.code)


@pytest.mark.live
def test_no_method_that_a_proxy_serves_passes_by(guarded: tuple[str, LocalCluster]) -> None:
    acl, cluster = guarded
    for method in METHODS:
        for who, code in ((None, UNAUTHORIZED), (FORGED, UNAUTHORIZED), (ALICE, FORBIDDEN)):
            if who is ALICE and acl == "1.0" and method in FOR_ALL_1:
                continue
            with Caller(cluster.grpc_endpoint, "c") as caller:
                caller.metadata |= Context(who).metadata
                found = _status(caller, method)
            assert found == code, (method, who)
