"""Every request code of a broker, with both kinds of access control: who may send it follows from its row.

Each code is sent unsigned, with a wrong secret, by an unknown account, by an account without permissions, with exactly
the declared need in each of its alternatives, with everything but one need, and by an administrator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from spark_rocket.acl.rules import AclRules
from spark_rocket.broker.acl.access_control import AccessControl
from spark_rocket.broker.acl.plain_access_control import PlainAccessControl
from spark_rocket.broker.acl.user_access_control import UserAccessControl
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.auth import Credentials, RequestSigner
from spark_rocket.protocol.requests import BROKER_REQUESTS
from spark_rocket.protocol.requests.needs import Pair, PlainAccess
from spark_rocket.protocol.requests.request_type import RequestType
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.testing import LocalCluster
from tests.acl.grants import ALICE, FORGED, ROOT, UNKNOWN, Accounts, Grants, Users
from tests.broker.acl.conftest import Connect
from tests.cost.generator import request_of

WITHOUT_POLICY = {RequestCode.CHECK_CLIENT_CONFIG: "it compiles a filter expression, and reads and changes nothing"}
"""Codes that any user of ACL 2.0 may send, and why."""

ROWS = [pytest.param(row, id=row.name) for row in BROKER_REQUESTS.values()]


class Connection:
    """A client's connection."""

    remote_addr = "127.0.0.1:1"

    def __init__(self) -> None:
        self.attributes: dict[str, object] = {}


class Decisions(ABC):
    """The decisions about requests of one connection, which no handler sees."""

    control: AccessControl

    @abstractmethod
    def allow(self, grants: Grants) -> None:
        """Change what Alice may do."""

    @abstractmethod
    def is_for_all(self, row: RequestType) -> bool:
        """Whether an account without permissions may send this code."""

    @abstractmethod
    def exact(self, row: RequestType, pairs: Sequence[Pair]) -> Iterator[Grants]:
        """What is just enough."""

    @abstractmethod
    def too_little(self, row: RequestType, pairs: Sequence[Pair]) -> Iterator[Grants]:
        """Everything but one need."""

    def passes(self, row: RequestType, who: Credentials | None) -> bool:
        request = request_of(row)
        if who is not None:
            RequestSigner(who).sign(request)
        handled: list[RemotingCommand] = []
        handlers = self.control.guarded({row.code: lambda channel, request: handled.append(request)})
        with suppress(RefusedError):
            handlers[row.code](cast(Channel, Connection()), request)
        return bool(handled)


class Version1(Decisions):
    def __init__(self, home: Path) -> None:
        path = home / "plain_acl.yml"
        path.write_text("accounts:\n- {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}\n")
        self._control = PlainAccessControl(path, topic_at=lambda offset: "stored", clock=lambda: 0)
        self.control = self._control

    def allow(self, grants: Grants) -> None:
        self._control.take(AclRules(Accounts.accounts(grants)))

    def is_for_all(self, row: RequestType) -> bool:
        return row.plain_access is PlainAccess.ANY_ACCOUNT

    def exact(self, row: RequestType, pairs: Sequence[Pair]) -> Iterator[Grants]:
        if row.plain_access is PlainAccess.PERMISSIONS:
            yield from Accounts().exact(pairs)

    def too_little(self, row: RequestType, pairs: Sequence[Pair]) -> Iterator[Grants]:
        if row.plain_access is PlainAccess.PERMISSIONS:
            yield from Accounts().too_little(pairs)
        elif row.plain_access is PlainAccess.ADMIN:
            yield {f"{pair.resource.value}:{pair.name}": {"PUB", "SUB"} for pair in pairs if pair.name}


class Version2(Decisions):
    def __init__(self, home: Path) -> None:
        settings = {"storePathRootDir": home, "authenticationEnabled": True, "authorizationEnabled": True}
        first = '{"username": "root-key", "password": "r00t-s3cr3t"}'
        config = BrokerConfig.from_properties({**settings, "initAuthenticationUser": first})
        self._control = UserAccessControl(config, topic_at=lambda offset: "stored")
        self.control = self._control

    def allow(self, grants: Grants) -> None:
        self._control.rules = Users.table(grants)

    def is_for_all(self, row: RequestType) -> bool:
        return row.code in WITHOUT_POLICY

    def exact(self, row: RequestType, pairs: Sequence[Pair]) -> Iterator[Grants]:
        yield from Users().exact(pairs)

    def too_little(self, row: RequestType, pairs: Sequence[Pair]) -> Iterator[Grants]:
        yield from Users().too_little(pairs)


@pytest.fixture(scope="module", params=[Version1, Version2])
def decisions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decisions:
    found = request.param(tmp_path_factory.mktemp("acl"))
    assert isinstance(found, Decisions)
    return found


@pytest.mark.parametrize("row", ROWS)
def test_a_request_passes_with_exactly_what_its_row_declares(decisions: Decisions, row: RequestType) -> None:
    pairs = row.pairs(request_of(row), lambda offset: "stored")
    decisions.allow({})
    for who in (None, FORGED, UNKNOWN):
        assert not decisions.passes(row, who), who
    assert decisions.passes(row, ROOT)
    assert decisions.passes(row, ALICE) is decisions.is_for_all(row)
    for grants in decisions.exact(row, pairs):
        decisions.allow(grants)
        assert decisions.passes(row, ALICE), grants
        for who in (None, FORGED, UNKNOWN):
            assert not decisions.passes(row, who), who
    for grants in decisions.too_little(row, pairs):
        decisions.allow(grants)
        assert not decisions.passes(row, ALICE), grants


def test_only_reads_of_metadata_need_no_permission_of_acl_1() -> None:
    """ACL 1.0 has permissions for content only. With ACL 2.0, these codes need Get or List."""
    changes = {
        row.name
        for row in BROKER_REQUESTS.values()
        if row.plain_access is PlainAccess.ANY_ACCOUNT
        and not all({action.value for action in need.actions} <= {"Get", "List", "Sub"} for need in row.needs)
    }
    assert changes == set()
    assert {code for code, row in BROKER_REQUESTS.items() if not row.needs} == WITHOUT_POLICY.keys()


# --- the codes that a broker serves -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["1.0", "2.0"])
def acl(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(acl: str) -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True, acl=acl, access_key=ROOT.access_key, secret_key=ROOT.secret_key) as one:
        one.set_account(ALICE.access_key, ALICE.secret_key, {})
        yield one


@pytest.mark.live
def test_no_code_that_a_broker_serves_passes_by(acl: str, as_: Connect) -> None:
    nobody, forged, alice = (as_(who) for who in (None, FORGED, ALICE))
    known = {*map(int, RequestCode), *BROKER_REQUESTS}
    served = [code for code in known if nobody.ask(code).code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED]
    assert set(served) == BROKER_REQUESTS.keys() - {RequestCode.POP_ROLLBACK}  # it has no handler
    for code in served:
        row = BROKER_REQUESTS[code]
        request = request_of(row)
        for who in (nobody, forged):
            assert who.ask(code, bytes(request.body), **request.ext_fields).code == ResponseCode.NO_PERMISSION, code
        is_for_all = row.plain_access is PlainAccess.ANY_ACCOUNT if acl == "1.0" else code in WITHOUT_POLICY
        has_names = not any(need.header_fields is None and not isinstance(row.body, type) for need in row.needs)
        if not is_for_all and has_names:
            assert alice.ask(code, bytes(request.body), **request.ext_fields).code == ResponseCode.NO_PERMISSION, code
