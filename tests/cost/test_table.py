"""Every request code has bounds in one table; a request beyond a bound is refused by name, and the server goes on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest

from spark_rocket.broker.broker import Broker
from spark_rocket.broker.processors.processor import Processor
from spark_rocket.namesrv.kv_config import KVConfigManager
from spark_rocket.namesrv.namesrv_processor import NamesrvProcessor
from spark_rocket.namesrv.route_info import RouteInfoManager
from spark_rocket.protocol.requests import BROKER_REQUESTS, NAMESRV_REQUESTS, STATE_LIMITS, RequestType
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from tests.cost import values
from tests.cost.generator import Case, Size, cases, prepared, request_of
from tests.cost.servers import Line
from tests.cost.values import Variant

_SERVERS = {"broker": BROKER_REQUESTS, "name server": NAMESRV_REQUESTS}
_REPEATED = (Variant.UNIQUE.value, Variant.SAME.value, Variant.COLLIDING.value)
_ALL = [pytest.param(row, id=f"{server}-{row.name}") for server, table in _SERVERS.items() for row in table.values()]


def _families(cls: type[Processor]) -> Iterator[type[Processor]]:
    for each in cls.__subclasses__():
        yield each
        yield from _families(each)


def test_every_code_has_bounds() -> None:
    assert Broker.__module__  # imports all processors
    broker = {int(code) for family in _families(Processor) for member in vars(family).values()
              for code in getattr(member, "request_codes", ())}  # fmt: skip
    assert broker - BROKER_REQUESTS.keys() == set()
    namesrv = {int(code) for code in NamesrvProcessor(RouteInfoManager(float), KVConfigManager()).handlers()}
    assert namesrv - NAMESRV_REQUESTS.keys() == set()


@pytest.mark.parametrize("row", _ALL)
def test_every_collection_and_state_of_a_code_has_a_bound(row: RequestType) -> None:
    if isinstance(row.body, type):
        assert set(values.collections_in(row.body)) <= row.max_entries.keys()
    assert set(row.state) <= STATE_LIMITS.keys()


@pytest.mark.parametrize("row", _ALL)
def test_requests_within_the_bounds_can_be_decoded(row: RequestType) -> None:
    for case in cases(row):
        if case.is_beyond or case.size is Size.FRAME or case.label.startswith("body of"):
            continue
        if case.label.endswith(_REPEATED):
            continue
        request = RemotingCommand.decode(case.make().encode()[4:])
        assert request.code == row.code
        row.header_of(request)
        if isinstance(row.body, type) and issubclass(row.body, Body):
            row.body.from_json(request.body)


# --- against running servers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running:
        yield running


@pytest.mark.live
@pytest.mark.parametrize("server", _SERVERS)
def test_a_request_beyond_a_bound_is_refused_by_name(cluster: LocalCluster, server: str) -> None:
    wrong = []
    address = cluster.broker_address if server == "broker" else cluster.name_server
    with Line(cluster.broker_address) as admin, Line(address) as line:
        prepared(admin)
        for case in chain.from_iterable(cases(row) for row in _SERVERS[server].values()):
            if not case.is_beyond or case.size is Size.FRAME or case.label.endswith(_REPEATED):
                continue
            answer = line.ask(case.make())
            if not _is_refused(answer):
                wrong.append(f"{RequestCode(case.subject).name}: {case.label}: {answer}")
        assert wrong == []
        prepared(admin)


def _is_refused(answer: RemotingCommand | None) -> bool:
    """Whether the error names the bound; a connection without memory for a large header is closed."""
    remark = "" if answer is None or answer.code != 1 else answer.remark or ""
    return "at most" in remark or "limited to" in remark


def test_the_cases_of_a_code_have_different_names() -> None:
    found: list[Case] = list(cases(BROKER_REQUESTS[RequestCode.HEART_BEAT]))
    assert len({case.label for case in found}) == len(found)
    assert request_of(BROKER_REQUESTS[RequestCode.HEART_BEAT]).body
