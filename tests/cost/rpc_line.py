"""A gRPC connection that sends generated requests and collects what they got."""

from __future__ import annotations

from typing import Any

import grpc

from spark_rocket.proxy import definitions
from tests.cost.calls import Answer, Calls
from tests.cost.rpcs import RpcRequest
from tests.proxy.caller import METHODS, Caller

_SECONDS = 60.0
_HELD_SECONDS = 2.0
_HELD = {"ReceiveMessage", "PullMessage"}
_AT_ONCE = 8


class RpcLine(Calls):
    """A client of the proxy."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(_AT_ONCE)
        self._caller = Caller(endpoint, "cost-client")

    def close(self) -> None:
        self._caller.close()

    def ask(self, request: RpcRequest, /) -> Answer:
        timeout = _HELD_SECONDS if request.method in _HELD else _SECONDS
        try:
            answers = self._caller.raw(request.method, request.raw, timeout=timeout)
        except grpc.RpcError as error:
            failed: Any = error
            return _answer(failed.code().name, str(failed.details()))
        answer_class = getattr(definitions, METHODS[request.method].output_type.name)
        for status in (answer_class.FromString(raw).status for raw in answers):
            if status.code not in (definitions.Code.CODE_UNSPECIFIED, definitions.Code.OK):
                return _answer(status.code, status.message)
        return Answer(0)


def _answer(code: object, remark: str) -> Answer:
    return Answer(code, remark, code == "UNIMPLEMENTED" or "at most" in remark or "more than" in remark)
