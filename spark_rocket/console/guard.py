"""Security checks of every request, and security headers of every response.

=========  =======================================================================================================
Host       on a loopback address, only names of this machine are allowed, against DNS rebinding. ``allowed_hosts``
           adds names and enables the check on every address
changes    must be JSON from a page of this console (Origin, Sec-Fetch-Site), with the session's X-CSRF-Token
login      if there are users, /api requires a session
responses  a Content-Security-Policy without inline scripts and styles; no framing, no content sniffing
=========  =======================================================================================================

Thread-safety: one event loop.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from starlette.requests import Request

from spark_rocket.console.passwords import LoginSession, Sessions
from spark_rocket.console.responses import Refused, describe, failure
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
    """ASGI middleware with the checks of this module. Sets ``scope["state"]["session"]``."""

    def __init__(
        self, app: ASGIApp, *, settings: ConsoleSettings, sessions: Sessions, open_session: LoginSession
    ) -> None:
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

        async def respond(message: Message) -> None:
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
            await failure(describe(error))(scope, receive, respond)
            return
        await self._app(scope, receive, respond)

    def _check(self, request: Request, scope: Scope) -> None:
        host = request.headers.get("host", "")
        self._check_host(host)
        token = request.cookies.get(cookie_name(self._settings))
        session = self._sessions.find(token) if self._settings.needs_login else self._open
        scope.setdefault("state", {})["session"] = session
        path = scope["path"]  # request.url also depends on the Host header
        if path.startswith("/api/"):
            # A page of another site cannot read the response, but the request would still reach the brokers.
            if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
                raise _from_elsewhere()
            if path not in OPEN_PATHS and session is None:
                raise Refused("You are not logged in.", remedy="Log in.", code="LOGIN_REQUIRED")
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
                f"Host {host[:80]!r} is not allowed.",
                remedy="Use the address printed at its start, or start it with --allowed-host NAME.",
                code="WRONG_HOST",
            )

    def _check_change(self, request: Request, host: str, session: LoginSession | None) -> None:
        headers = request.headers
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "same-origin")
        if site != "same-origin" or (
            origin is not None and origin.lower() != f"{request.scope['scheme']}://{host}".lower()
        ):
            raise _from_elsewhere()
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(
                "The content type of the request is not JSON.",
                remedy="Send application/json.",
                code="WRONG_CONTENT_TYPE",
            )
        if request.scope["path"] == "/api/login":
            return  # no session exists yet, thus no token
        given = headers.get("x-csrf-token", "")
        if session is None or not hmac.compare_digest(given.encode(), session.csrf.encode()):
            raise Refused(
                "Invalid CSRF token: the console was restarted, or the page is not its own.",
                remedy="Reload the page.",
                code="WRONG_TOKEN",
            )


def _from_elsewhere() -> Refused:
    return Refused(
        "The request comes from a page of another site.", remedy="Use the console's own page.", code="WRONG_ORIGIN"
    )


def cookie_name(settings: ConsoleSettings) -> str:
    return "__Host-rocket-console" if settings.is_tls else "rocket-console"


def name_of(host: str) -> str:
    """``[::1]:8080`` -> ``::1``"""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host
