"""A gRPC connection that sends generated requests and collects what they got."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from spark_rocket.proxy import definitions
from tests.cost.rpcs import RpcRequest
from tests.proxy.caller import METHODS, Caller

_SECONDS = 60.0
_HELD_SECONDS = 2.0
_HELD = {"ReceiveMessage", "PullMessage"}
_AT_ONCE = 8


@dataclass(frozen=True)
class RpcAnswer:
    """``code`` is 0 for success, else that of the response's status or of gRPC."""

    code: object
    remark: str

    @property
    def is_refusal(self) -> bool:
        """Whether it names a bound, or the proxy does not have the method."""
        return self.code == "UNIMPLEMENTED" or "at most" in self.remark or "more than" in self.remark


class RpcLine:
    """A client of the proxy, with the interface of :class:`tests.cost.servers.Line`."""

    def __init__(self, endpoint: str) -> None:
        self.is_closed = False
        self.answers: dict[int, RpcAnswer] = {}
        self._caller = Caller(endpoint, "cost-client")
        self._threads = ThreadPoolExecutor(_AT_ONCE)
        self._pending: dict[int, Future[RpcAnswer]] = {}
        self._sent = 0

    def __enter__(self) -> RpcLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        self._caller.close()

    def send(self, request: RpcRequest) -> int:
        self._sent += 1
        self._pending[self._sent] = self._threads.submit(self.ask, request)
        return self._sent

    def pass_through(self) -> None:
        """Wait for all responses."""
        for number, pending in self._pending.items():
            self.answers[number] = pending.result()
        self._pending.clear()

    def ask(self, request: RpcRequest) -> RpcAnswer:
        timeout = _HELD_SECONDS if request.method in _HELD else _SECONDS
        try:
            answers = self._caller.raw(request.method, request.raw, timeout=timeout)
        except grpc.RpcError as error:
            failed: Any = error
            return RpcAnswer(failed.code().name, str(failed.details()))
        answer_class = getattr(definitions, METHODS[request.method].output_type.name)
        for status in (answer_class.FromString(raw).status for raw in answers):
            if status.code not in (definitions.Code.CODE_UNSPECIFIED, definitions.Code.OK):
                return RpcAnswer(status.code, status.message)
        return RpcAnswer(0, "")
