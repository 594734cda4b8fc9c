"""What every request costs a server in its own process: CPU time and memory, as Linux reports them (make cost).

At most 100 ms and 32 MB for a request of 1 MB, 1 s for a full frame. State that is released with its connection: the
memory is back within a tenth a minute after the connections closed, and others do not pay for it meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.request_limits import BROKER_LIMITS, NAMESRV_LIMITS, RequestLimit
from tests.cost import page, state
from tests.cost.generator import cases, prepared, request_of
from tests.cost.measuring import Run, send_all
from tests.cost.rpc_line import RpcLine
from tests.cost.rpcs import RpcRequest, plausible, rpc_cases
from tests.cost.servers import Line, Measured, Servers
from tests.kit.waiting import until
from tests.proxy.caller import METHODS

pytestmark = [
    pytest.mark.cost,
    pytest.mark.live,
    pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for CPU time and memory of a process"),
]

_TABLES = {"broker": BROKER_LIMITS, "name server": NAMESRV_LIMITS}
_ALL = [
    pytest.param(server, code, limit, id=f"{server}-{RequestCode(code).name}")
    for server, table in _TABLES.items()
    for code, limit in table.items()
]
_OF_STATE = [each for each in _ALL if each.values[2].state]  # type: ignore[union-attr]
_MAX_OTHERS_S = 0.1
"""CPU time for ten connections of others, which open and close beside the state."""
_MAX_CLOSING_S = 0.1
"""CPU time of the close for each MB that created the state."""


@pytest.fixture(scope="module")
def report() -> Iterator[page.Report]:
    found = page.Report()
    yield found
    if path := os.environ.get("COST_PAGE"):
        Path(path).write_text(found.text(), encoding="utf-8")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("servers")) as running:
        yield running


def _of(servers: Servers, server: str) -> tuple[Measured, str]:
    if server == "broker":
        return servers.broker, servers.broker_address
    return servers.namesrv, servers.name_server


@pytest.mark.parametrize(("server", "code", "limit"), _ALL)
def test_requests(servers: Servers, report: page.Report, server: str, code: int, limit: RequestLimit) -> None:
    measured, address = _of(servers, server)
    with Line(servers.broker_address) as admin, Line(address) as line:
        prepared(admin)
        found = Run(measured, line).cases(f"{RequestCode(code).name} ({code})", cases(code, limit))
        prepared(admin)
    _has_route(servers)
    report.requests.append((server, found))
    assert found.too_much == []


@pytest.fixture(scope="module")
def proxy(servers: Servers) -> tuple[Measured, str]:
    with Line(servers.broker_address) as admin:
        prepared(admin)
    return servers.proxy()


@pytest.mark.parametrize("method", METHODS)
def test_rpcs(proxy: tuple[Measured, str], report: page.Report, method: str) -> None:
    measured, endpoint = proxy
    with RpcLine(endpoint) as line:
        found = Run(measured, line).cases(f"`{method}`", rpc_cases(method))
        assert line.ask(RpcRequest("QueryRoute", plausible("QueryRoute").SerializeToString())).code == 0
    report.requests.append(("proxy", found))
    assert found.too_much == []


@pytest.mark.parametrize(("server", "code", "limit"), _OF_STATE)
def test_state(tmp_path: Path, report: page.Report, server: str, code: int, limit: RequestLimit) -> None:
    with Servers(tmp_path) as servers:
        measured, address = _of(servers, server)
        with Line(servers.broker_address) as admin:
            prepared(admin)
        cost = _bulk(measured, address, code, limit)
        report.state.append((server, f"{RequestCode(code).name} ({code})", limit, cost))
        with Line(servers.broker_address) as admin:
            prepared(admin)
        _has_route(servers)
    assert cost.others <= _MAX_OTHERS_S
    assert cost.closing <= _MAX_CLOSING_S * max(cost.sent, 1.0)
    if state.is_released(limit):
        assert cost.kept <= 0.1 * cost.before + 3.0


def _bulk(server: Measured, address: str, code: int, limit: RequestLimit) -> state.BulkCost:
    before, began = server.memory(), server.settle()
    small, large = Line(address), Line(address)
    sent = send_all(small, state.small_requests(code, limit)) + send_all(large, state.large_requests(code, limit))
    creating, held = server.settle() - began, server.memory() - before
    began = server.cpu()
    for _ in range(10):
        with Line(address) as other:
            other.pass_through()
    others = server.settle() - began
    began = server.cpu()
    small.close()
    large.close()
    closing = server.settle() - began
    kept = 0.0
    if state.is_released(limit):
        try:
            until(lambda: server.memory() <= 1.1 * before + 3.0)
        except AssertionError:
            kept = server.memory() - before
    else:
        kept = server.memory() - before
    return state.BulkCost(sent, before, creating, held, others, closing, kept)


def _has_route(servers: Servers) -> None:
    """The broker's topics still have their routes."""
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    with Line(servers.name_server) as line:

        def is_found() -> bool:
            answer = line.ask(request_of(code, NAMESRV_LIMITS[code]))
            return answer is not None and answer.code == 0

        until(is_found, "the route of the broker's topic")
