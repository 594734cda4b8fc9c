"""Producers for tests: how they send, and a listener of transactions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from spark_rocket.client import LocalTransactionState, Producer
from spark_rocket.model import Message, SendResult

Produce = Callable[..., Producer]
HOWS = ["send", "send_async"]


def done(producer: Producer, how: str, message: Any = None, **options: Any) -> SendResult:
    """Send synchronously or asynchronously, and wait longer than any timeout of a test: nothing may hang."""
    sent = getattr(producer, how)(Message.of("t", "b") if message is None else message, **options)
    result: SendResult = sent.result(20) if isinstance(sent, Future) else sent
    return result


class Decides:
    """A listener of transactions that decides by the argument of the send, which may be a state's name, or commits."""

    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState:
        return LocalTransactionState(arg or "COMMIT_MESSAGE")

    def check_local_transaction(self, message: Any) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE
