"""What every request costs a server in its own process: CPU time and memory, as Linux reports them (make cost).

At most 100 ms and 32 MB for a request of 1 MB, 1 s for a full frame. State that is released with its connection: the
memory is back within a tenth a minute after the connections closed, and others do not pay for it meanwhile. The page
is written from what was measured, whatever has failed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.client import Admin, Producer
from spark_rocket.console.request_limits import ROUTE_LIMITS, CollectionLimit
from spark_rocket.model import BAD_RECORD_REASON, BAD_RECORD_TOPIC, RETRY_PREFIX, Message, MessageQueue
from spark_rocket.protocol.requests import BROKER_REQUESTS, NAMESRV_REQUESTS, RequestType
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from tests.cost import page, products, proxy_state, state
from tests.cost.generator import cases, prepared, request_of
from tests.cost.measuring import Run, send_all
from tests.cost.route_line import RouteLine
from tests.cost.routes import Route, route_cases
from tests.cost.rpc_line import RpcLine
from tests.cost.rpcs import RpcRequest, plausible, rpc_cases
from tests.cost.servers import Line, Measured, Servers
from tests.cost.values import BROKER, GROUP, TOPIC
from tests.kit.waiting import until
from tests.proxy.caller import METHODS

pytestmark = [
    pytest.mark.cost,
    pytest.mark.live,
    pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for CPU time and memory of a process"),
]

_TABLES = {"broker": BROKER_REQUESTS, "name server": NAMESRV_REQUESTS}
_ALL = [
    pytest.param(server, row, id=f"{server}-{row.name}") for server, table in _TABLES.items() for row in table.values()
]


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


@pytest.mark.parametrize(("server", "row"), _ALL)
def test_requests(servers: Servers, report: page.Report, server: str, row: RequestType) -> None:
    measured, address = _of(servers, server)
    _prepare(servers)
    with Line(address) as line:
        found = Run(measured, line).cases(f"{row.name} ({row.code})", cases(row))
    report.requests.append((server, found))
    _prepare(servers)
    assert found.too_much == []


@pytest.fixture(scope="module")
def proxy(servers: Servers) -> tuple[Measured, str]:
    _prepare(servers)
    return servers.proxy()


@pytest.mark.parametrize("method", METHODS)
def test_rpcs(proxy: tuple[Measured, str], report: page.Report, method: str) -> None:
    measured, endpoint = proxy
    with RpcLine(endpoint) as line:
        found = Run(measured, line).cases(f"`{method}`", rpc_cases(method))
        report.requests.append(("proxy", found))
        assert line.ask(RpcRequest("QueryRoute", plausible("QueryRoute").SerializeToString())).code == 0
    assert found.too_much == []


@pytest.fixture(scope="module")
def console(servers: Servers) -> tuple[Measured, str]:
    _prepare(servers)
    return servers.console()


@pytest.mark.parametrize("route", ROUTE_LIMITS, ids=" ".join)
def test_routes(console: tuple[Measured, str], servers: Servers, report: page.Report, route: Route) -> None:
    measured, url = console
    _prepare(servers)
    selected = ROUTE_LIMITS[route].parameters.get("messages")
    if isinstance(selected, CollectionLimit):
        _dead_letters(servers, selected.most)
    before = _stored(servers)
    with RouteLine(url) as line:
        found = Run(measured, line).cases(f"`{' '.join(route)}`", route_cases(route, servers.broker_address))
    if isinstance(selected, CollectionLimit):
        assert _stored(servers) >= before + selected.most + 1  # all are sent again, and one
    report.requests.append(("console", found))
    assert found.too_much == []


def _dead_letters(servers: Servers, count: int) -> None:
    """Fill the topic of the requests with dead letters of a Spark query only; give the group a retry topic."""
    properties = {BAD_RECORD_TOPIC: TOPIC, BAD_RECORD_REASON: "invalid JSON"}
    with Admin(servers.name_server) as admin, Producer("cost", name_server=servers.name_server) as producer:
        admin.delete_topic(TOPIC)
        for topic in (TOPIC, f"{RETRY_PREFIX}{GROUP}"):
            admin.create_topic(topic, queues=1)
        queue = MessageQueue(TOPIC, BROKER, 0)
        for sent in [producer.send_async(Message(TOPIC, b"x", properties), queue=queue) for _ in range(count)]:
            sent.result()


def _stored(servers: Servers) -> int:
    """The number of messages that the broker has ever stored."""
    with Admin(servers.name_server) as admin:
        runtime = admin.broker_runtime(servers.broker_address)
    return runtime.put_total


# --- state in bulk ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("server", "row"), [each for each in _ALL if each.values[1].state])  # type: ignore[union-attr]
def test_state(tmp_path: Path, report: page.Report, server: str, row: RequestType) -> None:
    """On servers of its own, because all state of one kind shares a limit."""
    name = f"{row.name} ({row.code})"
    with Servers(tmp_path) as servers:
        measured, address = _of(servers, server)
        _prepare(servers)
        measured.settle()
        before = measured.memory()
        cost = _bulk(measured, address, row)
        wrong = cost.too_much(name)
        if state.is_released(row):
            cost.kept = measured.memory_back(before)
            if not measured.is_back(before):
                wrong.append(f"{name}: {cost.kept:.0f} MB are not released")
        report.state.append(page.StateRow(name, row, cost))
        report.wrong += wrong
        _prepare(servers)
    assert wrong == []


def _bulk(server: Measured, address: str, row: RequestType) -> state.BulkCost:
    before, began = server.memory(), server.settle()
    small, large = Line(address), Line(address)
    sent = send_all(small, state.small_requests(row)) + send_all(large, state.large_requests(row))
    creating, held = server.settle() - began, server.memory() - before
    others = min(_ten_others(server, address) for _ in range(3))  # a write of the state may come between
    began = server.cpu()
    small.close()
    large.close()
    closing = server.settle() - began
    return state.BulkCost(sent, creating, held, others, closing, server.memory() - before)


def _ten_others(server: Measured, address: str) -> float:
    """CPU time for ten connections that open and close."""
    began = server.cpu()
    for _ in range(10):
        with Line(address) as other:
            other.pass_through()
    return server.settle() - began


def test_products_of_names(tmp_path: Path, report: page.Report) -> None:
    """What is kept for each pair of a group and a topic is bounded, and reading it is as cheap as any request."""
    with Servers(tmp_path) as servers, Line(servers.broker_address) as line:
        _prepare(servers)
        products.prepare(line)
        for row in products.crossed():
            cost = products.pairs_of(servers.broker, line, row)
            report.pairs.append(cost)
            print(cost)
        report.pairs.append(products.visible_again(servers.broker, line, servers.topics_file))
        print(report.pairs[-1])
        report.afterwards = afterwards = products.afterwards(servers.broker, line, servers.metrics_url)
        print(report.afterwards)
    wrong = [line for each in report.pairs for line in each.too_much()] + afterwards.too_much()
    report.wrong += wrong
    assert wrong == []


def test_state_of_the_proxy(tmp_path: Path, report: page.Report) -> None:
    with Servers(tmp_path) as servers:
        _prepare(servers)
        measured, endpoint = servers.proxy()
        kept = asyncio.run(_bulk_of_proxy_twice(servers, measured, endpoint, report))
    assert kept == []


async def _bulk_of_proxy_twice(servers: Servers, server: Measured, endpoint: str, report: page.Report) -> list[str]:
    async def bulk(into: page.Report) -> state.BulkCost:
        total = await _bulk_of_proxy(server, endpoint, into)
        until(lambda: _is_gone(servers, proxy_state.LAST_GROUP), "the removal of the clients")
        await asyncio.sleep(proxy_state.SCAN_S)  # the proxy returns the memory at its next scan
        return total

    await bulk(page.Report())
    before = server.memory()  # with the caches and buffers of as many clients
    total = await bulk(report)
    total.kept = server.memory_back(before)
    report.proxy_state.append(("all connections closed", total))
    wrong = [] if server.is_back(before) else [f"proxy: {total.kept:.0f} MB are not released"]
    report.wrong += wrong
    return wrong


async def _bulk_of_proxy(server: Measured, endpoint: str, report: page.Report) -> state.BulkCost:
    """Create all kinds of state, then close their connections."""
    connections = []
    total = state.BulkCost(held=-server.memory())
    for name, create in proxy_state.STATES.items():
        connection = proxy_state.Connection(endpoint)
        connections.append(connection)
        memory, began = server.memory(), server.settle()
        sent = await create(connection)
        cost = state.BulkCost(sent, server.settle() - began, server.memory() - memory)
        total.sent += cost.sent
        total.creating += cost.creating
        report.proxy_state.append((name, cost))
    total.held += server.memory()
    began = server.cpu()
    for connection in connections:
        await connection.close()
    total.closing = server.settle() - began
    return total


def _is_gone(servers: Servers, group: str) -> bool:
    """Whether the proxy has unregistered the members of a group."""
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    with Line(servers.broker_address) as line:
        answer = line.ask(request_of(BROKER_REQUESTS[code], {"consumer_group": group}))
        return answer is not None and answer.code == ResponseCode.CONSUMER_NOT_ONLINE


def _prepare(servers: Servers) -> None:
    """Create topic and group of the requests again; the name server has the route of the topic."""
    with Line(servers.broker_address) as admin:
        prepared(admin)
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    with Line(servers.name_server) as line:

        def is_found() -> bool:
            answer = line.ask(request_of(NAMESRV_REQUESTS[code]))
            return answer is not None and answer.code == 0

        until(is_found, "the route of the broker's topic")
