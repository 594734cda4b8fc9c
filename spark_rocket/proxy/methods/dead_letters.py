"""ForwardMessageToDeadLetterQueue: a consumer gives a message up.

The message is put into the group's dead-letter topic by its broker's CONSUMER_SEND_MSG_BACK (36), and acked then: a
stop in between leaves it in both places, and it is delivered again.

Thread-safety: used on the event loop only. Corresponds to
org.apache.rocketmq.proxy.grpc.v2.producer.ForwardMessageToDLQActivity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.names import group_of, topic_of
from spark_rocket.proxy.messages.statuses import status
from spark_rocket.proxy.messaging import CLIENT_ID, Family
from spark_rocket.proxy.methods.receipts import Receipts
from spark_rocket.proxy.transport.context import Context

_Code = definitions.Code


class DeadLetterFamily(Family):
    """Takes what nobody can consume."""

    def __init__(self, receipts: Receipts) -> None:
        self._receipts = receipts

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"ForwardMessageToDeadLetterQueue": self.forward_message_to_dead_letter_queue}

    async def forward_message_to_dead_letter_queue(self, context: Context, request: Any) -> Any:
        group, topic = group_of(request.group), topic_of(request.topic)
        receipts = self._receipts
        handle = await receipts.read(receipts.take(context.metadata[CLIENT_ID], group, request.receipt_handle))
        await receipts.give_up(group, topic, handle, request.message_id)
        return definitions.ForwardMessageToDeadLetterQueueResponse(status=status(_Code.OK))
