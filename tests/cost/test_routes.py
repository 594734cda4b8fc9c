"""Every route of the console has bounds in one table; a request beyond one is refused by name before its handler."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.routing import Route

from spark_rocket.console.app import make_app
from spark_rocket.console.request_limits import ROUTE_LIMITS
from spark_rocket.console.settings import ConsoleSettings
from tests.cost import routes
from tests.cost.generator import MB, Case, Size
from tests.cost.route_line import answer_of
from tests.cost.routes import route_cases

_NOWHERE = "127.0.0.1:1"
_ALL = [pytest.param(route, id=" ".join(route)) for route in ROUTE_LIMITS]
_FIXED = {("GET", "/{rest:path}")}
"""The page, which is the same for all paths."""
_ANY = "/api/{rest:path}"
"""404 for unknown paths."""


def test_every_route_has_bounds() -> None:
    app = make_app(ConsoleSettings(_NOWHERE))
    found = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route) and route.path != _ANY
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert found - _FIXED == ROUTE_LIMITS.keys()


@pytest.mark.parametrize("route", _ALL)
def test_the_path_of_a_route_has_bounds(route: routes.Route) -> None:
    names = {part[1:-1] for part in route[1].split("/") if part.startswith("{")}
    assert names <= ROUTE_LIMITS[route].parameters.keys()
    labels = [case.label for case in route_cases(route, _NOWHERE)]
    assert len(set(labels)) == len(labels)


def test_a_request_beyond_a_bound_is_refused_before_its_handler() -> None:
    """No server is at the address: a handler would answer with a failed connection."""
    cases = [
        case
        for route in ROUTE_LIMITS
        for case in route_cases(route, _NOWHERE)
        if case.is_beyond and case.size is Size.SMALL and f"{MB:,}" not in case.label
    ]
    assert {case.subject for case in cases} == {route for route, limit in ROUTE_LIMITS.items() if limit.parameters}
    assert asyncio.run(_not_refused(cases)) == []


async def _not_refused(cases: list[Case]) -> list[str]:
    transport = httpx.ASGITransport(make_app(ConsoleSettings(_NOWHERE)))
    wrong = []
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        csrf = (await client.get("/api/session")).json()["csrf"]
        headers = {"x-csrf-token": csrf, "content-type": "application/json"}
        for case in cases:
            made = case.make()
            answer = answer_of(await client.request(made.method, made.url, headers=headers, content=made.content))
            if not answer.is_refusal:
                wrong.append(f"{case.subject}: {case.label}: {answer}")
    return wrong
