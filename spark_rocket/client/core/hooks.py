"""Hooks of an application into sending and into the calls of a consumer's listener.

A :class:`SendHook` sees every attempt before and after; what it raises is logged and changes nothing. A *forbidding*
hook is called before the others and may refuse: what it raises ends the send, as SendForbiddenError unless it is an
error of this package already.

Corresponds to org.apache.rocketmq.client.hook.{SendMessageHook, SendMessageContext, CheckForbiddenHook,
ConsumeMessageHook, ConsumeMessageContext}.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from spark_rocket.errors import ConfigError, RocketError, SendForbiddenError
from spark_rocket.model import Message, MessageExt, MessageQueue, SendResult

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ConsumeMessageContext:
    """One call of a listener; ``success`` and ``status`` are known after it. ``properties`` are the hook's own."""

    consumer_group: str
    messages: Sequence[MessageExt]
    message_queue: MessageQueue
    success: bool = False
    status: str = ""
    properties: dict[str, Any] = field(default_factory=dict)


class ConsumeMessageHook(Protocol):
    """Around each call of a listener."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None: ...

    def consume_message_after(self, context: ConsumeMessageContext) -> None: ...


@dataclass(slots=True)
class SendContext:
    """One attempt. ``message`` is a list for a batch; ``result`` or ``error`` is there afterwards, neither one-way."""

    group: str
    message: Message | Sequence[Message]
    queue: MessageQueue
    mode: str
    """``sync``, ``async`` or ``oneway``."""
    result: SendResult | None = None
    error: Exception | None = None
    broker_address: str = ""
    """Where it went; known afterwards, if it went anywhere."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """The hooks' own: from before to after."""


class SendHook:
    """Override what you need."""

    def before(self, context: SendContext) -> None:
        """An attempt begins."""

    def after(self, context: SendContext) -> None:
        """It is over. Of an async send: on the thread that reads the connection, so be short."""


ForbiddingHook: TypeAlias = Callable[[SendContext], None]


def no_open_telemetry() -> ConfigError:
    """For a client that is to trace, where that is not installed."""
    return ConfigError(
        "open_telemetry was given, and opentelemetry-api is not installed.",
        remedy="Install it (pip install 'spark-rocket[otel]'), or leave open_telemetry out.",
    )


class Hooks:
    """A producer's hooks, in their order. To be filled before the first send."""

    def __init__(self, hooks: Sequence[SendHook], forbidding: Sequence[ForbiddingHook]) -> None:
        self._hooks = list(hooks)
        self._forbidding = list(forbidding)

    def __bool__(self) -> bool:
        return bool(self._hooks or self._forbidding)

    def before(self, context: SendContext) -> None:
        """Raises what a forbidding hook does."""
        for forbid in self._forbidding:
            try:
                forbid(context)
            except RocketError:
                raise
            except Exception as error:
                raise SendForbiddenError(
                    f"A hook forbids the send to {context.queue.topic}: {error}",
                    remedy="Ask whoever put it there (forbidding_hooks of the producer).",
                ) from error
        for hook in self._hooks:
            self._call(hook.before, context)

    def after(self, context: SendContext) -> None:
        for hook in self._hooks:
            self._call(hook.after, context)

    @staticmethod
    def _call(method: Callable[[SendContext], None], context: SendContext) -> None:
        try:
            method(context)
        except Exception:
            logger.exception("a hook of a send to %s failed", context.queue.topic)
