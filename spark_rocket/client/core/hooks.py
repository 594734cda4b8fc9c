"""Application hooks of sends and of listener calls.

A :class:`SendHook` is called before and after every attempt; its exceptions are logged and ignored. A *forbidding* hook
is called before the others and may reject the send: its exception ends the send, as SendForbiddenError unless it is a
RocketError.

Corresponds to org.apache.rocketmq.client.hook.{SendMessageHook, SendMessageContext, CheckForbiddenHook,
ConsumeMessageHook, ConsumeMessageContext}.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from spark_rocket.errors import RocketError, SendForbiddenError
from spark_rocket.model import Message, MessageExt, MessageQueue, SendResult

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ConsumeMessageContext:
    """One call of a listener; ``success`` and ``status`` are set after it. ``properties`` are for the hook."""

    consumer_group: str
    messages: Sequence[MessageExt]
    message_queue: MessageQueue
    success: bool = False
    status: str = ""
    properties: dict[str, Any] = field(default_factory=dict)


class ConsumeMessageHook(Protocol):
    """Called around each call of a listener."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None: ...

    def consume_message_after(self, context: ConsumeMessageContext) -> None: ...


@dataclass(slots=True)
class SendContext:
    """One attempt. ``message`` is a list for a batch; ``result`` or ``error`` is set after it, except one-way."""

    group: str
    message: Message | Sequence[Message]
    queue: MessageQueue
    mode: str
    """``sync``, ``async`` or ``oneway``."""
    result: SendResult | None = None
    error: Exception | None = None
    broker_address: str = ""
    """The address of the broker, set after the attempt if a request was sent."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """For the hooks: values to keep between before and after."""


class SendHook:
    """Base class of hooks; override the methods you need."""

    def before(self, context: SendContext) -> None:
        """Called before an attempt."""

    def after(self, context: SendContext) -> None:
        """Called after an attempt: on the waiting thread, or, if none waits (any more), on one of the producer's hooks.

        The send settles, or is retried, when all hooks have returned.
        """


ForbiddingHook: TypeAlias = Callable[[SendContext], None]


class Hooks:
    """The hooks of a producer, in order. They must be added before the first send."""

    def __init__(self, hooks: Sequence[SendHook], forbidding: Sequence[ForbiddingHook]) -> None:
        self._hooks = list(hooks)
        self._forbidding = list(forbidding)

    def __bool__(self) -> bool:
        return bool(self._hooks or self._forbidding)

    def before(self, context: SendContext) -> None:
        """Call the hooks; raise the error of a forbidding hook."""
        for forbid in self._forbidding:
            try:
                forbid(context)
            except RocketError:
                raise
            except Exception as error:
                raise SendForbiddenError(
                    f"A hook rejected the send to {context.queue.topic}: {error}",
                    remedy="Check the forbidding_hooks of the producer.",
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
            logger.exception("send hook failed: topic %s", context.queue.topic)
