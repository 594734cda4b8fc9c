"""What every request passes before anything else, and what every answer carries.

========  ========================================================================================================
Host      on a loopback address only the machine's own names: a page elsewhere whose name was bent to 127.0.0.1
          (DNS rebinding) is refused. ``allowed_hosts`` adds names, and is then held everywhere
changes   are JSON, from a page of this console (Origin, Sec-Fetch-Site), with the session's token in X-CSRF-Token
login     where there are users, /api answers nobody without a session
answers   a Content-Security-Policy without inline script or style, nothing is framed, nothing sniffed
========  ========================================================================================================

Thread-safety: one event loop. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from starlette.requests import Request

from spark_rocket.console.answers import Refused, describe, failure
from spark_rocket.console.passwords import Session, Sessions
from spark_rocket.console.settings import ConsoleSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset(("/api/session", "/api/login", "/api/alive"))
_LOOPBACK_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))
_SAFE = frozenset(("GET", "HEAD"))

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware; see the module. ``scope["state"]["session"]`` is who asks."""

    def __init__(self, app: ASGIApp, *, settings: ConsoleSettings, sessions: Sessions, open_session: Session) -> None:
        self._app = app
        self._settings = settings
        self._sessions = sessions
        self._open = open_session
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *self._headers]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        request = Request(scope)
        try:
            self._check(request, scope)
        except Refused as error:
            await failure(describe(error))(scope, receive, answer)
            return
        await self._app(scope, receive, answer)

    def _check(self, request: Request, scope: Scope) -> None:
        host = request.headers.get("host", "")
        self._check_host(host)
        token = request.cookies.get(cookie_name(self._settings))
        session = self._sessions.find(token) if self._settings.needs_login else self._open
        scope.setdefault("state", {})["session"] = session
        path = scope["path"]  # request.url is made of what the Host header says, too
        if path.startswith("/api/"):
            # Another site's page could not read the answer, but brokers would be asked all the same.
            if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
                raise _from_elsewhere()
            if path not in OPEN_PATHS and session is None:
                raise Refused("You are not logged in.", remedy="Log in.", status=401, code="LOGIN_REQUIRED")
        if request.method not in _SAFE:
            self._check_change(request, host, session)

    def _check_host(self, host: str) -> None:
        name = name_of(host)
        allowed = {name_of(known) for known in self._settings.allowed_hosts}
        if self._settings.is_loopback:
            allowed |= _LOOPBACK_NAMES | {self._settings.host.strip("[]").lower()}
        elif not allowed:
            return
        if name not in allowed:
            raise Refused(
                f"This console is not at {host[:80]!r}.",
                remedy="Open it by the address that it said when it started, or start it with --allowed-host NAME.",
                status=421,
                code="WRONG_HOST",
            )

    def _check_change(self, request: Request, host: str, session: Session | None) -> None:
        headers = request.headers
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "same-origin")
        if site != "same-origin" or (
            origin is not None and origin.lower() != f"{request.scope['scheme']}://{host}".lower()
        ):
            raise _from_elsewhere()
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused("The request is not JSON.", remedy="Send application/json.", status=415, code="NOT_JSON")
        if request.scope["path"] == "/api/login":
            return  # there is no session yet whose token it could have
        given = headers.get("x-csrf-token", "")
        if session is None or not hmac.compare_digest(given.encode(), session.csrf.encode()):
            raise Refused(
                "The page is older than this console's start, or not its own.",
                remedy="Load the page again.",
                status=403,
                code="WRONG_TOKEN",
            )


def _from_elsewhere() -> Refused:
    return Refused(
        "The request comes from another site's page.",
        remedy="Do it on the console's own page.",
        status=403,
        code="WRONG_ORIGIN",
    )


def cookie_name(settings: ConsoleSettings) -> str:
    return "__Host-rocket-console" if settings.is_tls else "rocket-console"


def name_of(host: str) -> str:
    """``[::1]:8080`` -> ``::1``"""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host
