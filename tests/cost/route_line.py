"""An HTTP connection to the console that sends generated requests and collects what they got."""

from __future__ import annotations

import json

import httpx

from tests.cost.calls import Answer, Calls
from tests.cost.routes import HttpRequest

_SECONDS = 60.0
_AT_ONCE = 4
_REFUSALS = ("BAD_REQUEST: Invalid ", "TOO_LARGE: ")
"""Beginnings of errors that name a parameter or the body as too large."""


class RouteLine(Calls):
    """A client of the console."""

    def __init__(self, url: str) -> None:
        super().__init__(_AT_ONCE)
        self._http = httpx.Client(base_url=url, timeout=_SECONDS)
        self._http.headers["x-csrf-token"] = self._http.get("/api/session").json()["csrf"]
        self._http.headers["content-type"] = "application/json"

    def close(self) -> None:
        self._http.close()

    def ask(self, request: HttpRequest, /) -> Answer:
        return answer_of(self._http.request(request.method, request.url, content=request.content))


def answer_of(answer: httpx.Response) -> Answer:
    if answer.status_code < 400:
        return Answer(0)
    try:
        error = answer.json()["error"]
    except json.JSONDecodeError:
        return Answer(answer.status_code, answer.text)
    remark = f"{error['code']}: {error['text']} {error['remedy']}"
    return Answer(answer.status_code, remark, remark.startswith(_REFUSALS))
