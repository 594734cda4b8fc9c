"""The console as a web application: routes, login, and the single page.

``/api/…`` serves JSON, ``/static/…`` files of this package. Every other path serves the same page, whose scripts
evaluate the path. Corresponds to the controllers of RocketMQ's dashboard.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

import spark_rocket
from spark_rocket.console.api.accounts import AccountApi
from spark_rocket.console.api.brokers import BrokerApi
from spark_rocket.console.api.clients import ClientApi
from spark_rocket.console.api.cluster import ClusterApi
from spark_rocket.console.api.context import ApiContext, log
from spark_rocket.console.api.dead import DeadApi
from spark_rocket.console.api.groups import GroupApi
from spark_rocket.console.api.messages import MessageApi
from spark_rocket.console.api.times import read_time
from spark_rocket.console.api.topics import TopicApi
from spark_rocket.console.guard import Guard, cookie_name
from spark_rocket.console.links import Links
from spark_rocket.console.passwords import LoginSession, Sessions
from spark_rocket.console.request_limits import ROUTE_LIMITS
from spark_rocket.console.responses import Refused, describe, failure, json_response
from spark_rocket.console.sampler import Sampler
from spark_rocket.console.settings import ConsoleSettings

STATIC = Path(__file__).parent / "static"
MAX_PENDING_LOGINS = 16


class _Static(StaticFiles):
    """The package's files: cached permanently under a versioned path, revalidated under the plain path."""

    def __init__(self, cache: str) -> None:
        super().__init__(directory=STATIC)
        self._cache = cache

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["cache-control"] = self._cache
        return response


def _version() -> str:
    digest = hashlib.sha256()
    for path in sorted(STATIC.rglob("*.*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class _Login:
    def __init__(self, settings: ConsoleSettings, sessions: Sessions) -> None:
        self._settings = settings
        self._sessions = sessions
        self._pool = ThreadPoolExecutor(2, "console-login")  # hashing is slow on purpose
        self._waiting = 0

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def session(self, request: Request) -> Response:
        session: LoginSession | None = request.state.session
        return json_response(
            {
                "login": self._settings.needs_login,
                "user": session.user if session else None,
                "csrf": session.csrf if session else None,
                "version": spark_rocket.__version__ if session else None,
                "nameServer": self._settings.name_server if session else None,
                "readOnly": self._settings.read_only,
            }
        )

    async def login(self, request: Request) -> Response:
        peer = request.client.host if request.client else "?"
        try:
            self._sessions.check_pause(peer)
            _, value = await ROUTE_LIMITS["POST", "/api/login"].read(request)
            user, password = value.get("user"), value.get("password")
            if not isinstance(user, str) or not isinstance(password, str) or not self._settings.needs_login:
                raise Refused("Missing user or password.", remedy="Give user and password.")
            if not await self._is_user(user, password, peer):
                log.warning("login as %r from %s failed", user[:80], peer)
                raise Refused("Invalid user or password.", remedy="Check both.", code="LOGIN_FAILED")
        except Refused as error:
            return failure(describe(error))
        token, session = self._sessions.begin(user, peer)
        log.info("%r logged in from %s", user, peer)
        response = json_response({"user": session.user, "csrf": session.csrf})
        response.set_cookie(
            cookie_name(self._settings), token, httponly=True, samesite="strict", secure=self._settings.is_tls, path="/"
        )
        return response

    async def _is_user(self, user: str, password: str, peer: str) -> bool:
        if self._waiting >= MAX_PENDING_LOGINS:
            raise Refused("Too many concurrent logins.", remedy="Retry later.", code="TOO_MANY_ATTEMPTS")
        self._sessions.attempt(peer)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._sessions.is_user, user, password)
        finally:
            self._waiting -= 1

    async def logout(self, request: Request) -> Response:
        self._sessions.end(request.cookies.get(cookie_name(self._settings)))
        response = json_response({"done": "You are logged out."})
        response.delete_cookie(
            cookie_name(self._settings), path="/", secure=self._settings.is_tls, httponly=True, samesite="strict"
        )
        return response


async def _alive(request: Request) -> Response:
    return json_response({"status": "UP"})


async def _nothing(request: Request) -> Response:
    return failure(describe(Refused("Unknown path.", remedy="See `rocket help console`.", code="NOT_FOUND")))


def _cluster_routes(context: ApiContext) -> list[Route]:
    cluster, brokers, clients, accounts = (
        ClusterApi(context),
        BrokerApi(context),
        ClientApi(context),
        AccountApi(context),
    )
    return [
        context.get("/api/time", read_time),
        context.get("/api/overview", cluster.overview),
        context.get("/api/broker", brokers.show),
        context.change("POST", "/api/broker/settings", brokers.put, "change setting of broker"),
        context.get("/api/health", cluster.health),
        context.get("/api/accounts", accounts.show),
        context.change("POST", "/api/account", accounts.put, "create or change account"),
        context.change("DELETE", "/api/account", accounts.delete, "delete account"),
        context.change("POST", "/api/account/white-list", accounts.put_white, "change white list"),
        context.change("POST", "/api/user", accounts.put_user, "create or change user"),
        context.change("DELETE", "/api/user", accounts.delete_user, "delete user"),
        context.change("POST", "/api/permission", accounts.put_permission, "change permission"),
        context.change("DELETE", "/api/permission", accounts.delete_permission, "delete permission"),
        context.get("/api/groups/{group}/member", clients.member),
        context.get("/api/producers", clients.producers),
    ]


def _data_routes(context: ApiContext) -> list[Route]:
    topics, groups, messages, dead = TopicApi(context), GroupApi(context), MessageApi(context), DeadApi(context)
    return [
        context.get("/api/topics", topics.list),
        context.get("/api/topic-names", topics.names),
        context.change("POST", "/api/topics", topics.put, "create or change topic"),
        context.get("/api/topics/{topic}", topics.show),
        context.change("DELETE", "/api/topics/{topic}", topics.delete, "delete topic"),
        context.get("/api/groups", groups.list),
        context.get("/api/group-names", groups.names),
        context.change("POST", "/api/groups", groups.put, "create or change group"),
        context.get("/api/groups/{group}", groups.show),
        context.change("DELETE", "/api/groups/{group}", groups.delete, "delete group"),
        context.read("/api/groups/{group}/plan", groups.plan),
        context.change("POST", "/api/groups/{group}/reset", groups.reset, "reset offsets of group"),
        context.get("/api/messages", messages.search),
        context.read("/api/messages/search", messages.find, is_search=True),
        context.change("POST", "/api/messages", messages.send, "send message"),
        context.get("/api/message", messages.show),
        context.get("/api/message/body", messages.body),
        context.get("/api/message/track", messages.track),
        context.get("/api/message/trace", messages.trace),
        context.read("/api/message/decode", messages.decode),
        context.change("POST", "/api/message/resend", messages.resend, "resend message"),
        context.get("/api/dead-letters", dead.list),
        context.change("POST", "/api/dead-letters/{group}/resend", dead.resend_to_group, "resend dead letters"),
        context.change("POST", "/api/dead-letter-topics/{topic}/resend", dead.resend_to_origin, "resend dead letters"),
    ]


def _routes(context: ApiContext, login: _Login) -> list[BaseRoute]:
    version = _version()
    page = (STATIC / "index.html").read_text(encoding="utf-8").replace('"/static/', f'"/static/{version}/')

    async def show_page(request: Request) -> Response:
        return HTMLResponse(page, headers={"cache-control": "no-cache"})

    return [
        Route("/api/alive", _alive, methods=["GET"]),
        Route("/api/session", login.session, methods=["GET"]),
        Route("/api/login", login.login, methods=["POST"]),
        Route("/api/logout", login.logout, methods=["POST"]),
        *_cluster_routes(context),
        *_data_routes(context),
        Route("/api/{rest:path}", _nothing),
        Mount(f"/static/{version}", _Static("public, max-age=31536000, immutable")),
        Mount("/static", _Static("no-cache")),
        Route("/{rest:path}", show_page, methods=["GET"]),
    ]


def make_app(settings: ConsoleSettings) -> Starlette:
    """Create the application. It samples the cluster from its start to its end."""
    links = Links(settings.name_server, settings.connecting)
    sampler = Sampler(links, fast=settings.interval)
    context = ApiContext(settings, links, sampler)
    sessions = Sessions(settings.users)
    login = _Login(settings, sessions)

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        sampler.start()
        try:
            yield
        finally:
            login.close()
            await run_in_threadpool(sampler.close)
            await run_in_threadpool(links.close)

    open_session = LoginSession("", secrets.token_urlsafe(32), 0.0, 0.0)
    guard = Middleware(Guard, settings=settings, sessions=sessions, open_session=open_session)
    app = Starlette(routes=_routes(context, login), middleware=[guard], lifespan=life)
    app.state.sampler = sampler
    return app
