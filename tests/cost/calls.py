"""Calls on threads, with the interface of :class:`tests.cost.servers.Line`, and their outcomes."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Answer:
    """``code`` is 0 for success, else that of the protocol.

    ``is_refusal``: whether it names a bound, or the server does not have the method.
    """

    code: object
    remark: str = ""
    is_refusal: bool = False


class Calls:
    """A client that sends generated requests, some at once, and collects what they got."""

    is_closed = False

    def __init__(self, at_once: int) -> None:
        self.answers: dict[int, Answer] = {}
        self._threads = ThreadPoolExecutor(at_once)
        self._pending: dict[int, Future[Answer]] = {}
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        self.close()

    def close(self) -> None:
        raise NotImplementedError

    def ask(self, request: Any, /) -> Answer:
        raise NotImplementedError

    def send(self, request: Any, /) -> int:
        self._sent += 1
        self._pending[self._sent] = self._threads.submit(self.ask, request)
        return self._sent

    def pass_through(self) -> None:
        """Wait for all responses."""
        for number, pending in self._pending.items():
            self.answers[number] = pending.result()
        self._pending.clear()
