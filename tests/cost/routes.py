"""Hostile requests for every route of the console, from the declared parameters of its bounds.

For each route: every text at its bound, beyond it and in 1 MB; every number at its extremes; every collection with one
entry, at its bound, beyond it and in 1 MB; bodies at the bound and beyond without regard to their parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote, urlencode

from spark_rocket.console.request_limits import (
    ROUTE_LIMITS,
    CollectionLimit,
    NumberLimit,
    Parameter,
    RouteLimit,
    TextLimit,
)
from spark_rocket.console.serve import MAX_HEADER_BYTES
from tests.cost.generator import MB, Case, Size
from tests.cost.values import BROKER, GROUP, LONG_EXTREMES, TOPIC

Route = tuple[str, str]

#: Plausible values by the name of a parameter. Other strings are ``x``, other numbers 1.
PLAUSIBLE: dict[str, object] = {
    "topic": TOPIC, "group": GROUP, "broker": BROKER, "queue": 0, "offset": 0, "by": "key", "key": "key", "id": "x",
    "kind": "all", "sort": "name", "search": "", "own": True, "to": "earliest", "timestamp": 1, "begin": 0,
    "end": 0, "tags": "", "text": "", "encoding": "text", "type": "NORMAL", "delay": 0, "size": 50, "page": 0,
    "perm": 6, "name": "traceOn", "decision": "Allow", "resource": f"Topic:{TOPIC}", "policyType": "Custom",
    "otherTopics": "DENY", "otherGroups": "DENY", "known": False, "online": False, "shardingKey": "", "keys": "",
}  # fmt: skip
_UNSET = {"cursor", "from"}
_TEXTS = ("x", "a||b,", '"')


@dataclass(frozen=True)
class HttpRequest:
    method: str
    url: str
    content: bytes


def route_cases(route: Route, broker: str) -> Iterator[Case]:
    """All requests of a route. ``broker``: the address of one."""
    limit = ROUTE_LIMITS[route]
    yield Case(route, "plausible", partial(_request, route, broker, {}))
    for name, parameter in limit.parameters.items():
        yield from _of_parameter(route, limit, broker, name, parameter)
    if limit.max_body_bytes:
        yield from _bodies(route, limit)


def _of_parameter(route: Route, limit: RouteLimit, broker: str, name: str, parameter: Parameter) -> Iterator[Case]:
    in_body = bool(limit.max_body_bytes) and f"{{{name}}}" not in route[1]
    longest = limit.max_body_bytes - limit.max_body_bytes // 8 if in_body else MAX_HEADER_BYTES - 4_096
    if isinstance(parameter, NumberLimit):
        for number in LONG_EXTREMES:
            is_beyond = not parameter.least <= number <= parameter.most
            request = partial(_request, route, broker, {name: number})
            yield Case(route, f"{name}={number}", request, is_beyond=is_beyond, is_number=True)
    elif isinstance(parameter, TextLimit):
        for size in sorted({min(parameter.most, longest), parameter.most + 1, *([MB] if in_body else [])}):
            for unit in _TEXTS if size <= parameter.most else _TEXTS[:1]:
                request = partial(_request, route, broker, {name: (unit * size)[:size]})
                made = request()
                is_beyond = size > parameter.most or len(made.content) > limit.max_body_bytes
                kind = Size.FRAME if size > MB else Size.SMALL
                yield Case(route, f"{name}: {size:,} characters of {unit!r}", request, kind, is_beyond)
    else:
        yield from _collection(route, limit, broker, name, parameter)


def _collection(route: Route, limit: RouteLimit, broker: str, name: str, parameter: CollectionLimit) -> Iterator[Case]:
    fill = MB // len(json.dumps(_entry(route, name, 100_000)))
    for count in sorted({1, min(parameter.most, fill), parameter.most + 1, fill}):
        request = partial(_with_entries, route, broker, name, count)
        raw = len(request().content)
        is_beyond = count > parameter.most or raw > limit.max_body_bytes
        kind = Size.SMALL if raw <= 1.1 * MB else Size.FRAME
        yield Case(route, f"{name}: {count:,} entries", request, kind, is_beyond)
    deep: dict[str, object] = {name: [[[1] * 10] * 100] * (parameter.most * parameter.each // 1_000 + 2)}
    if parameter.most * parameter.each < 50_000:
        yield Case(route, f"{name}: lists of lists", partial(_request, route, broker, deep), is_beyond=True)


def _with_entries(route: Route, broker: str, name: str, count: int) -> HttpRequest:
    entries = [_entry(route, name, at) for at in range(count)]
    value = {f"k{at}": "v" for at in range(count)} if name == "properties" else entries
    return _request(route, broker, {name: value})


def _entry(route: Route, name: str, at: int) -> object:
    if name == "messages":
        return {"topic": TOPIC, "broker": BROKER, "queue": 0, "offset": at}
    if name == "cursor":
        return [BROKER, at, 0, 5, None]
    if route[1] == "/api/account" and name in ("topics", "groups"):
        return f"t{at}=PUB"
    return f"10.0.{at >> 8 & 255}.{at & 255}"


def _bodies(route: Route, limit: RouteLimit) -> Iterator[Case]:
    most = limit.max_body_bytes
    units = {"spaces": b" ", "brackets": b"[", "lists": b"[],"}
    for size in sorted({most, most + 1, MB}):
        kind = Size.FRAME if size > 1.1 * MB else Size.SMALL
        for label, unit in units.items() if size <= most else [("spaces", b" ")]:
            raw = b"[" + (unit * (size // len(unit) + 1))[: size - 2] + b"]"
            request = partial(_request, route, "x", {}, raw)
            yield Case(route, f"body of {size:,} bytes, {label}", request, kind, size > most)


def _request(route: Route, broker: str, changed: dict[str, object], content: bytes | None = None) -> HttpRequest:
    method, path = route
    limit = ROUTE_LIMITS[route]
    values = {name: _plausible(name, one, broker) for name, one in limit.parameters.items() if name not in _UNSET}
    values |= changed
    for name in [name for name in values if f"{{{name}}}" in path]:
        path = path.replace(f"{{{name}}}", quote(str(values.pop(name)), safe=""))
    if not limit.max_body_bytes:
        return HttpRequest(method, f"{path}?{urlencode(values)}", b"")
    return HttpRequest(method, path, json.dumps(values).encode() if content is None else content)


def _plausible(name: str, parameter: Parameter, broker: str) -> object:
    if name == "address":
        return broker
    if name == "brokers":
        return [broker]
    if isinstance(parameter, CollectionLimit):
        return {} if name == "properties" else []
    return PLAUSIBLE.get(name, 1 if isinstance(parameter, NumberLimit) else "x")
