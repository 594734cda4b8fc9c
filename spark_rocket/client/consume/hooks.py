"""Hooks into consuming: something to do before and after each call of a listener, and a say in what it is given.

What a hook raises is logged, and consuming goes on.

Thread-safety: hooks are called on the consumer's threads, several at once; lists of hooks do not change once it runs.
Corresponds to org.apache.rocketmq.client.hook.{ConsumeMessageHook, FilterMessageHook}.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spark_rocket.client.consume.stats import ConsumerStats
from spark_rocket.model import MessageExt, MessageQueue

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


FilterMessageHook = Callable[[MessageQueue, list[MessageExt]], Iterable[MessageExt]]
"""Given what a pull brought of a queue, and its tags let through; those that come back are consumed, others are not."""


class Hooks:
    """The hooks of one consumer; ``stats`` are told of every call as well."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.stats = ConsumerStats()
        self.consume: list[ConsumeMessageHook] = []
        self.filter: list[FilterMessageHook] = []

    def before(self, messages: Sequence[MessageExt], queue: MessageQueue) -> ConsumeMessageContext:
        """Run the first halves; ``after`` wants what comes back."""
        context = ConsumeMessageContext(self._group, tuple(messages), queue)
        for hook in self.consume:
            self._run(hook, hook.consume_message_before, context)
        return context

    def after(self, context: ConsumeMessageContext, *, success: bool, status: str) -> None:
        context.success, context.status = success, status
        for hook in self.consume:
            self._run(hook, hook.consume_message_after, context)

    def _run(self, hook: object, half: Callable[[ConsumeMessageContext], None], context: ConsumeMessageContext) -> None:
        try:
            half(context)
        except BaseException:  # SystemExit too: the thread is the consumer's
            logger.exception("consume hook %r of group %s failed", hook, self._group)

    def choose(self, queue: MessageQueue, messages: list[MessageExt]) -> list[MessageExt]:
        """Those messages that every filter hook lets through."""
        for hook in self.filter:
            try:
                messages = list(hook(queue, messages[:]))  # it may empty its list, and fail then
            except Exception:
                logger.exception("filter hook %r of group %s failed", hook, self._group)
        return messages
