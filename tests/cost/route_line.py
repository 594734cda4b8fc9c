"""An HTTP connection to the console that sends generated requests and collects what they got."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from tests.cost.routes import HttpRequest

_SECONDS = 60.0
_AT_ONCE = 4


@dataclass(frozen=True)
class HttpAnswer:
    """``code`` is 0 for success, else the HTTP status. ``remark``: code and text of the error, and its remedy."""

    code: int
    remark: str

    @property
    def is_refusal(self) -> bool:
        """Whether it names a parameter or the body as too large."""
        return self.remark.startswith(("BAD_REQUEST: Invalid ", "TOO_LARGE: "))


class RouteLine:
    """A client of the console, with the interface of :class:`tests.cost.servers.Line`."""

    def __init__(self, url: str) -> None:
        self.is_closed = False
        self.answers: dict[int, HttpAnswer] = {}
        self._http = httpx.Client(base_url=url, timeout=_SECONDS)
        self._http.headers["x-csrf-token"] = self._http.get("/api/session").json()["csrf"]
        self._http.headers["content-type"] = "application/json"
        self._threads = ThreadPoolExecutor(_AT_ONCE)
        self._pending: dict[int, Future[HttpAnswer]] = {}
        self._sent = 0

    def __enter__(self) -> RouteLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        self._http.close()

    def send(self, request: HttpRequest) -> int:
        self._sent += 1
        self._pending[self._sent] = self._threads.submit(self.ask, request)
        return self._sent

    def pass_through(self) -> None:
        """Wait for all responses."""
        for number, pending in self._pending.items():
            self.answers[number] = pending.result()
        self._pending.clear()

    def ask(self, request: HttpRequest) -> HttpAnswer:
        answer = self._http.request(request.method, request.url, content=request.content)
        return answer_of(answer)


def answer_of(answer: httpx.Response) -> HttpAnswer:
    if answer.status_code < 400:
        return HttpAnswer(0, "")
    try:
        error = answer.json()["error"]
    except json.JSONDecodeError:
        return HttpAnswer(answer.status_code, answer.text)
    return HttpAnswer(answer.status_code, f"{error['code']}: {error['text']} {error['remedy']}")
