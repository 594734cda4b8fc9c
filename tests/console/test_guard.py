"""Access to the console: hosts, origins, tokens, sessions, and the headers of every response."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.datastructures import URL
from starlette.requests import Request

from spark_rocket.console.api.context import ApiRequest
from spark_rocket.console.app import make_app
from spark_rocket.console.passwords import FREE_FAILURES, IDLE_SECONDS, LIFE_SECONDS, PAUSE_SECONDS, Sessions, hashed
from spark_rocket.console.request_limits import ROUTE_LIMITS
from spark_rocket.console.responses import Refused
from spark_rocket.console.settings import ConsoleSettings, read_users
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.tls.settings import TlsSettings

NOWHERE = "127.0.0.1:1"
PASSWORD = "correct horse"
USERS = {"ada": hashed(PASSWORD)}

Ask = Callable[..., httpx.Response]


class Browser:
    """Requests directly to the application, which is not started: no test here needs a cluster."""

    def __init__(
        self, base: str = "http://127.0.0.1:8080", *, peer: str = "127.0.0.1", app: Any = None, **given: Any
    ) -> None:
        self.app = app or make_app(ConsoleSettings(NOWHERE, **given))
        self._base = base
        self._peer = peer
        self.cookies: dict[str, str] = {}
        self.last_cookie = ""

    def __call__(self, method: str, path: str, *, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=(self._peer, 1234))
            async with httpx.AsyncClient(transport=transport, base_url=self._base, cookies=self.cookies) as client:
                response = await client.request(method, path, headers=headers, **more)
                self.cookies = dict(client.cookies)
                self.last_cookie = response.headers.get("set-cookie", "")
                return response

        return asyncio.run(ask())

    def login(self, user: str = "ada", password: str = PASSWORD) -> httpx.Response:
        return self("POST", "/api/login", json={"user": user, "password": password})


def code(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


# --- hosts and origins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:9", "LOCALHOST", "[::1]:8080", "127.0.0.1"])
def test_a_loopback_console_accepts_names_of_the_machine(host: str) -> None:
    assert Browser()("GET", "/api/session", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example:8080", "127.0.0.1.evil.example", "", "localhost.evil", "[::2]:8080", "0"]
)
def test_a_foreign_name_that_resolves_to_loopback_is_refused(host: str) -> None:
    for path in ("/api/session", "/", "/static/main.js", "/api/overview"):
        response = Browser()("GET", path, headers={"host": host})
        assert (response.status_code, code(response)) == (421, "WRONG_HOST")


def test_a_path_in_the_host_header_hides_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starlette below 1.1 builds URLs from it: a requested path must not be treated as a public one."""
    monkeypatch.setattr(
        Request, "url", property(lambda self: URL(f"http://{self.headers['host']}{self.scope['path']}"))
    )
    asks = [
        Browser(host="192.0.2.1", users=USERS),
        Browser(host="::1", users=USERS, allowed_hosts=("console.example",)),
    ]
    for name in ("192.0.2.1", "[::1]", "console.example"):
        for more in ("/static", "/static/?", "/api/login?", "/api/session?", "/api/alive#", "@x"):
            for method, path in (("GET", "/api/topics"), ("POST", "/api/groups/g/plan")):
                headers = {"host": name + more, "content-type": "application/json"}
                for ask in asks:
                    response = ask(method, path, headers=headers, content=b"{}" if method == "POST" else None)
                    assert response.status_code in (401, 421), (method, headers)


def test_names_can_be_allowed() -> None:
    ask = Browser(allowed_hosts=("console.example",))
    assert ask("GET", "/api/session", headers={"host": "console.example:8080"}).status_code == 200
    elsewhere = Browser(host="192.0.2.1", users=USERS, allowed_hosts=("console.example",))
    assert code(elsewhere("GET", "/api/session", headers={"host": "other.example"})) == "WRONG_HOST"


def test_changes_need_token_origin_and_json() -> None:
    ask = Browser()
    token = ask("GET", "/api/session").json()["csrf"]
    right = {"x-csrf-token": token, "content-type": "application/json", "origin": "http://127.0.0.1:8080"}

    def refused(headers: dict[str, str]) -> str:
        return code(ask("POST", "/api/groups/g/plan", headers=headers, content=b"[]"))

    assert ask("POST", "/api/groups/g/plan", headers=right, content=b"{").status_code == 400

    assert refused(right) == "NOT_JSON"  # and so accepted by the guard: the body is not an object
    assert refused(right | {"origin": "http://evil.example"}) == "WRONG_ORIGIN"
    assert refused(right | {"origin": "null"}) == "WRONG_ORIGIN"
    assert refused(right | {"origin": "https://127.0.0.1:8080"}) == "WRONG_ORIGIN"
    for site in ("cross-site", "same-site", "none"):
        assert refused(right | {"sec-fetch-site": site}) == "WRONG_ORIGIN"
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = ask("POST", "/api/groups/g/plan", headers=right | {"content-type": kind}, content=b"{}")
        assert (response.status_code, code(response)) == (415, "WRONG_CONTENT_TYPE")
    assert refused(right | {"x-csrf-token": token[:-1]}) == "WRONG_TOKEN"
    assert refused(right | {"x-csrf-token": "\x7f"}) == "WRONG_TOKEN"
    assert refused({name: value for name, value in right.items() if name != "x-csrf-token"}) == "WRONG_TOKEN"


def test_requests_of_other_sites_are_refused() -> None:
    ask = Browser()
    for site in ("cross-site", "same-site"):
        assert code(ask("GET", "/api/session", headers={"sec-fetch-site": site})) == "WRONG_ORIGIN"
        assert ask("GET", "/topics", headers={"sec-fetch-site": site}).status_code == 200  # a link to a page
    assert ask("GET", "/api/session", headers={"sec-fetch-site": "none"}).status_code == 200


def test_every_response_has_restrictive_headers() -> None:
    ask = Browser()
    for path in (
        "/",
        "/topics/x",
        "/static/main.js",
        "/api/session",
        "/api/nothing",
        "/static/../app.py",
        "/static/none",
    ):
        headers = ask("GET", path).headers
        policy = headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] in ("no-store", "no-cache")
        assert "access-control-allow-origin" not in headers


def test_files_are_cached_by_browsers_until_they_change() -> None:
    ask = Browser()
    paths = re.findall(r'"(/static/[0-9a-f]{16}/[^"]+)"', ask("GET", "/topics").text)
    assert len(paths) > 5
    for path in paths:
        response = ask("GET", path)
        assert response.status_code == 200
        assert "immutable" in response.headers["cache-control"]
        assert "script-src 'self'" in response.headers["content-security-policy"]


def test_only_files_of_the_package_are_served() -> None:
    ask = Browser()
    for path in ("/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/pages"):
        assert ask("GET", path).status_code in (404, 405)
        assert "Starlette" not in ask("GET", path).text


def test_large_requests_are_not_read() -> None:
    ask = Browser()
    token = ask("GET", "/api/session").json()["csrf"]
    headers = {"x-csrf-token": token, "content-type": "application/json"}
    most = ROUTE_LIMITS["POST", "/api/messages"].max_body_bytes
    response = ask("POST", "/api/messages", headers=headers, content=b" " * (most + 1))
    assert (response.status_code, code(response)) == (413, "TOO_LARGE")


def test_read_only_refuses_changes() -> None:
    ask = Browser(read_only=True)
    token = ask("GET", "/api/session").json()["csrf"]
    for method, path in (("POST", "/api/topics"), ("DELETE", "/api/groups/g"), ("POST", "/api/messages")):
        response = ask(method, path, headers={"x-csrf-token": token}, json={})
        assert (response.status_code, code(response)) == (403, "READ_ONLY")


# --- login ----------------------------------------------------------------------------------------------------------


def test_public_addresses_require_users() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ConfigError, match="requires users to listen on"):
            ConsoleSettings(NOWHERE, host=host)
    assert ConsoleSettings(NOWHERE, host="::1").is_loopback
    assert ConsoleSettings(NOWHERE, host="127.9.9.9").is_loopback


def test_without_a_session_no_data_is_served() -> None:
    ask = Browser(users=USERS)
    session = ask("GET", "/api/session").json()
    assert session == {
        "login": True,
        "user": None,
        "csrf": None,
        "version": None,
        "nameServer": None,
        "readOnly": False,
    }
    for path in ("/api/overview", "/api/topics", "/api/health", "/api/message/body", "/api/nothing"):
        response = ask("GET", path)
        assert (response.status_code, code(response)) == (401, "LOGIN_REQUIRED")
    assert ask("GET", "/api/alive").json() == {"status": "UP"}
    ask.cookies = {"rocket-console": "made up"}
    assert code(ask("GET", "/api/overview")) == "LOGIN_REQUIRED"


def test_a_session_from_login_to_logout() -> None:
    ask = Browser(users=USERS)
    csrf = ask.login().json()["csrf"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert part in ask.last_cookie
    assert "Secure" not in ask.last_cookie
    assert ask("GET", "/api/session").json()["user"] == "ada"
    kept = dict(ask.cookies)
    assert code(ask("POST", "/api/logout", json={})) == "WRONG_TOKEN"
    assert ask("POST", "/api/logout", json={}, headers={"x-csrf-token": csrf}).status_code == 200
    ask.cookies = kept
    assert code(ask("GET", "/api/overview")) == "LOGIN_REQUIRED"


def test_with_tls_the_cookie_is_secure() -> None:
    ask = Browser("https://127.0.0.1:8080", users=USERS, tls=TlsSettings(test_mode=True))
    ask.login()
    assert ask.last_cookie.startswith("__Host-rocket-console=")
    assert "Secure" in ask.last_cookie


def test_a_wrong_password_and_an_unknown_user_get_the_same_error() -> None:
    ask = Browser(users=USERS)
    responses = [ask.login("ada", "wrong"), ask.login("unknown", PASSWORD), ask.login("ada", PASSWORD + "x" * 2000)]
    assert {(response.status_code, response.text) for response in responses} == {(401, responses[0].text)}
    assert not ask.cookies
    assert code(ask("POST", "/api/login", json={"user": ["ada"], "password": None})) == "BAD_REQUEST"


def test_failed_logins_delay_only_their_address() -> None:
    ask = Browser(users=USERS)
    for _ in range(FREE_FAILURES):
        assert ask.login("ada", "wrong").status_code == 401
    refused = ask.login()
    assert (refused.status_code, code(refused)) == (429, "TOO_MANY_ATTEMPTS")
    assert Browser(app=ask.app, peer="192.0.2.7").login().status_code == 200


def test_concurrent_attempts_are_counted_before_hashing() -> None:
    ask = Browser(users=USERS)

    async def guess_at_once() -> list[int]:
        transport = httpx.ASGITransport(ask.app, client=("192.0.2.9", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            wrong = {"user": "ada", "password": "wrong"}
            responses = await asyncio.gather(*(client.post("/api/login", json=wrong) for _ in range(15)))
        return sorted(response.status_code for response in responses)

    assert asyncio.run(guess_at_once()) == [401] * FREE_FAILURES + [429] * (15 - FREE_FAILURES)
    assert ask.login().status_code == 200  # of another address


def test_a_successful_login_resets_the_count() -> None:
    ask = Browser(users=USERS)
    for _ in range(3):
        assert [ask.login("ada", "wrong").status_code for _ in range(FREE_FAILURES - 1)] == [401] * (FREE_FAILURES - 1)
        assert ask.login().status_code == 200
        ask.cookies = {}


@pytest.mark.parametrize("users", [USERS, {}])
def test_login_requests_are_small(users: dict[str, str]) -> None:
    ask = Browser(users=users)
    pieces = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal pieces
        for _ in range(1024):
            pieces += 1
            yield b" " * 1024

    response = ask("POST", "/api/login", content=body(), headers={"content-type": "application/json"})
    assert (response.status_code, code(response)) == (413, "TOO_LARGE")
    assert "4,096 bytes" in response.text
    assert pieces <= 6


def test_requests_of_delayed_addresses_are_not_read() -> None:
    ask = Browser(users=USERS)
    for _ in range(FREE_FAILURES):
        ask.login("ada", "wrong")
    response = ask("POST", "/api/login", content=b"no JSON", headers={"content-type": "application/json"})
    assert (response.status_code, code(response)) == (429, "TOO_MANY_ATTEMPTS")


def test_delays_expire_and_apply_to_networks() -> None:
    now = [1000.0]
    sessions = Sessions(USERS, clock=lambda: now[0])
    for i in range(FREE_FAILURES):
        sessions.attempt(f"2001:db8::{i}")
    with pytest.raises(Refused):
        sessions.check_pause("2001:db8::ffff")
    sessions.check_pause("2001:db8:1::1")
    now[0] += PAUSE_SECONDS
    sessions.check_pause("2001:db8::ffff")


def test_sessions_end() -> None:
    now = [1000.0]
    sessions = Sessions(USERS, clock=lambda: now[0])
    idle, _ = sessions.begin("ada", "a")
    used, _ = sessions.begin("ada", "a")
    now[0] += IDLE_SECONDS
    assert sessions.find(used) is not None
    now[0] += 1
    assert sessions.find(idle) is None
    assert sessions.find(used) is not None
    while now[0] < 1000.0 + LIFE_SECONDS:
        now[0] += IDLE_SECONDS
        sessions.find(used)
    assert sessions.find(used) is None


# --- users ----------------------------------------------------------------------------------------------------------


def test_users_of_a_file_and_of_the_environment(tmp_path: Any) -> None:
    path = tmp_path / "users"
    path.write_text(f"# who\n\nada:{USERS['ada']}\n")
    found = read_users(path, {"ROCKET_CONSOLE_PASSWORD": "long enough", "ROCKET_CONSOLE_USER": "bob"})
    assert set(found) == {"ada", "bob"}
    sessions = Sessions(found)
    assert sessions.is_user("bob", "long enough")
    assert sessions.is_user("ada", PASSWORD)
    assert not sessions.is_user("ada", "long enough")
    assert PASSWORD not in repr(ConsoleSettings(NOWHERE, users=found))


@pytest.mark.parametrize(
    "line",
    [
        "ada:plain",
        "ada",
        ":scrypt$16384$8$1$aa==$aa==",
        "ada:scrypt$3$8$1$YWE=$YWE=",
        "ada:scrypt$1073741824$8$1$YWE=$YWE=",
    ],
)
def test_invalid_lines_of_users(tmp_path: Any, line: str) -> None:
    path = tmp_path / "users"
    path.write_text(line)
    with pytest.raises(ConfigError, match="line 1"):
        read_users(path, {})


def test_short_passwords() -> None:
    with pytest.raises(ConfigError, match="fewer than"):
        read_users(None, {"ROCKET_CONSOLE_PASSWORD": "short"})


# --- contents of requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "9" * 5000, "x", [], {}, True, 1.5, -1, 2**63])
def test_invalid_numbers(value: object) -> None:
    with pytest.raises(Refused, match="Invalid count"):
        ApiRequest({}, {}, {"count": value}).number("count")


@pytest.mark.parametrize("value", [0, "7", 2**63 - 1])
def test_valid_numbers(value: int | str) -> None:
    assert ApiRequest({}, {}, {"count": value}).number("count") == int(value)
