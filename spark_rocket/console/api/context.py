"""Common parts of the JSON API: parsing requests, running endpoints.

An endpoint is a blocking function from a request to a JSON value. It runs on the thread pool. Its exceptions become
``{"error": {"code", "text", "remedy"}}``.

RocketMQ has no counterpart.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spark_rocket.client import Admin
from spark_rocket.common.attributes import pick
from spark_rocket.console.links import Links
from spark_rocket.console.passwords import LoginSession
from spark_rocket.console.request_limits import MAX_INT, ROUTE_LIMITS, RouteLimit, integer
from spark_rocket.console.resent import Resent
from spark_rocket.console.responses import Refused, describe, failure, json_response
from spark_rocket.console.sampler import Sampler
from spark_rocket.console.settings import ConsoleSettings
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue

log = logging.getLogger("spark_rocket.console")

MAX_REFRESH_S = 15.0
_LOGGED = ("topic", "group", "to", "key", "address", "name", "account", "user", "resource", "brokers")
"""Parameters of changes that are logged: never bodies, values or secrets."""


@dataclass(slots=True)
class ApiRequest:
    """A parsed request: path, query and body parameters."""

    path: dict[str, str]
    query: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)
    user: str = ""

    def text(self, name: str, default: str | None = None) -> str:
        """Return a parameter of the body or the query. Refused if it is missing and there is no default."""
        value = self.body.get(name, self.query.get(name, default))
        if value is None:
            value = default
        if not isinstance(value, str):
            raise Refused(f"Missing {name}.", remedy=f"Fill in {name}.")
        return value

    def number(self, name: str, default: int | None = None, *, least: int = 0, most: int = MAX_INT) -> int:
        value = self.body.get(name, self.query.get(name))
        return integer(name, default if value is None or value == "" else value, least, most)

    def flag(self, name: str) -> bool:
        return self.body.get(name, self.query.get(name)) in (True, "true", "1")

    def queue(self) -> tuple[MessageQueue, int]:
        """Return a message's position: ``topic``, ``broker``, ``queue``, ``offset``."""
        return MessageQueue(self.text("topic"), self.text("broker"), self.number("queue")), self.number("offset")


@dataclass(slots=True)
class ApiContext:
    settings: ConsoleSettings
    links: Links
    sampler: Sampler
    resent: Resent = field(default_factory=Resent)

    @property
    def admin(self) -> Admin:
        return self.links.admin

    @property
    def changing(self) -> Admin:
        """The admin for changes, with a longer timeout."""
        return self.links.changing

    def get(self, path: str, handler: Callable[[ApiRequest], Any]) -> Route:
        return Route(path, self.endpoint(handler, ROUTE_LIMITS["GET", path]), methods=["GET"])

    def read(self, path: str, handler: Callable[[ApiRequest], Any], *, is_search: bool = False) -> Route:
        """The route of a read request with a body: its parameters do not fit into a URL."""
        return Route(path, self.endpoint(handler, ROUTE_LIMITS["POST", path], is_search=is_search), methods=["POST"])

    def change(self, method: str, path: str, handler: Callable[[ApiRequest], Any], what: str) -> Route:
        """The route of a change; ``what`` names it in the log."""
        return Route(path, self.endpoint(handler, ROUTE_LIMITS[method, path], changes=what), methods=[method])

    def endpoint(
        self,
        handler: Callable[[ApiRequest], Any],
        limit: RouteLimit,
        *,
        changes: str | None = None,
        is_search: bool = False,
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap an endpoint for Starlette. ``changes``: its change, for the log; --read-only refuses changes."""

        async def handle(request: Request) -> Response:
            try:
                session: LoginSession | None = request.state.session
                query, body = await limit.read(request)
                path, query, body = map(self._short_names, (request.path_params, query, body))
                parsed = ApiRequest(path, query, body, session.user if session else "")
                if changes is not None:
                    self._note(changes, parsed, request)
                value = await self.links.run(lambda: handler(parsed), is_search=is_search)
            except Exception as error:
                if changes is not None and isinstance(error, RocketError):
                    log.warning("%s failed: %s", changes, error)
                return failure(describe(error))
            return value if isinstance(value, Response) else json_response(value)

        return handle

    def _short_names(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Remove the namespace from the names of topics and groups: tables have them without it."""
        unwrap = self.admin.namespace.unwrap
        short = {
            name: unwrap(value)
            for name in ("topic", "group", "confirm")
            if isinstance(value := parameters.get(name), str)
        }
        return {**parameters, **short}

    def _note(self, changes: str, parsed: ApiRequest, request: Request) -> None:
        if self.settings.read_only:
            raise Refused(
                "This console is read-only.", remedy="Start it without --read-only to make changes.", code="READ_ONLY"
            )
        what = {name: parsed.body[name] for name in _LOGGED if name in parsed.body}
        peer = request.client.host if request.client else "?"
        log.info("%s: %s by %s from %s", changes, parsed.path | what, parsed.user or "the user", peer)

    def broker_address(self, address: str) -> str:
        """Return the address if it is that of a broker: a forged link must not direct signed requests elsewhere."""
        if not self._is_broker(address):
            raise Refused(
                f"No broker of this cluster is at {address[:80]!r}.",
                remedy="Open it from the overview.",
                code="NO_SUCH_BROKER",
            )
        return address

    def _is_broker(self, address: str) -> bool:
        with self.sampler.lock:
            if any(record.status.address == address for record in self.sampler.brokers.values()):
                return True
        every = self.admin.cluster_info().broker_addr_table.values()
        return any(address in data.broker_addrs.values() for data in every)

    def fresh_ms(self) -> int:
        """The refresh interval of a page of one topic or group."""
        return round(self.settings.interval * 1000)

    def refresh_ms(self) -> int:
        return round(min(self.sampler.pace, MAX_REFRESH_S) * 1000)


def page_of(
    rows: Sequence[dict[str, Any]],
    request: ApiRequest,
    *,
    names: Iterable[str],
    searched: Sequence[str] = ("name",),
) -> dict[str, Any]:
    """Apply ``search`` (in the columns ``searched``), ``sort``, ``desc``, ``page`` and ``size`` to a list."""
    wanted = request.text("search", "").strip().lower()
    found = [row for row in rows if any(wanted in row[name].lower() for name in searched)] if wanted else list(rows)
    order = request.text("sort", "name")
    if order not in names:
        raise Refused(f"Unknown column {order[:40]!r}.", remedy="Sort by a column of the table.")
    found.sort(key=lambda row: row["name"])
    found.sort(key=lambda row: _place(row.get(order)), reverse=request.flag("desc"))
    size = request.number("size", 50)
    pages = max(1, math.ceil(len(found) / size))
    page = min(request.number("page", 0), pages - 1)
    return {"rows": found[page * size : (page + 1) * size], "found": len(found), "page": page, "pages": pages}


def _place(value: Any) -> tuple[int, float, str]:
    """The sort key of a value: unknown values come first."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, str):
        return 2, 0.0, value.lower()
    return 1, float(len(value)) if isinstance(value, list) else float(value), ""


def attachment(body: bytes, name: str) -> Response:
    """Return a download, which the browser never displays."""
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return Response(body, media_type="application/octet-stream", headers=headers)


def place(queue: MessageQueue) -> dict[str, Any]:
    return pick(queue, "topic broker=broker_name queue=queue_id")


def confirmed(request: ApiRequest, name: str) -> None:
    """Check that the user entered the name to confirm a deletion."""
    if request.text("confirm", "") != name:
        raise Refused("The entered name does not match.", remedy=f"Enter {name} to confirm.", code="NOT_CONFIRMED")
