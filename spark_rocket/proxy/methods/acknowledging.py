"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

They accept the handle of the message or of its last change. A duplicate ack is not an error. A dead letter is stored in
the group's dead-letter topic by the broker's CONSUMER_SEND_MSG_BACK (36), and then acked: a crash in between leaves the
message in both places.

Corresponds to org.apache.rocketmq.proxy.grpc.v2.consumer.{AckMessageActivity, ChangeInvisibleDurationActivity} and
v2.producer.ForwardMessageToDLQActivity.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from spark_rocket.proxy import definitions
from spark_rocket.proxy.messages.message_out import milliseconds_of
from spark_rocket.proxy.messages.names import group_of, topic_of
from spark_rocket.proxy.messages.statuses import StatusError, status
from spark_rocket.proxy.messaging import CLIENT_ID, Family
from spark_rocket.proxy.methods.handles import Handle
from spark_rocket.proxy.methods.receipts import Receipts
from spark_rocket.proxy.methods.renewals import Renewals, Taken
from spark_rocket.proxy.transport.proxy_context import ProxyContext

MAX_INVISIBLE_MS = 12 * 3_600_000

_Code = definitions.Code
_OK_CODE = int(_Code.OK)
_OK = status(_OK_CODE)
_ENDED = StatusError(_Code.INTERNAL_SERVER_ERROR, "the request ended without a response")


class AckFamily(Family):
    """Acks, changes and dead letters."""

    def __init__(self, receipts: Receipts, renewals: Renewals) -> None:
        self._receipts = receipts
        self._renewals = renewals

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {
            "AckMessage": self.ack_message,
            "ChangeInvisibleDuration": self.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": self.forward_message_to_dead_letter_queue,
        }

    async def ack_message(self, context: ProxyContext, request: Any) -> Any:
        topic, group = topic_of(request.topic), group_of(request.group)
        entries = request.entries
        if not entries:
            raise StatusError(_Code.BAD_REQUEST, "the request has no messages to ack")
        results: list[StatusError | None] = [_ENDED] * len(entries)
        client_id = context.metadata[CLIENT_ID]
        taken = [self._renewals.take(client_id, group, entry.receipt_handle) for entry in entries]
        handles: list[Handle] = []
        places: list[int] = []
        try:
            for at, one in enumerate(taken):
                try:
                    handles.append(await self._receipts.read(await one.handle()))
                    places.append(at)
                except StatusError as error:
                    results[at] = error
            if handles:
                for at, result in zip(places, await self._receipts.ack(group, topic, handles), strict=True):
                    results[at] = result
        finally:
            for one, result in zip(taken, results, strict=True):
                self._settle(one, result)
        response = definitions.AckMessageResponse()
        add = response.entries.add
        codes = set()
        for entry, result in zip(entries, results, strict=True):
            one = add()
            one.message_id = entry.message_id
            one.receipt_handle = entry.receipt_handle
            its = one.status
            code, its.message = (_OK_CODE, "OK") if result is None else (result.code, result.message)
            its.code = code
            codes.add(code)
        if len(codes) > 1:
            response.status.CopyFrom(status(_Code.MULTIPLE_RESULTS, "see the entries"))
        else:
            response.status.CopyFrom(response.entries[0].status)
        return response

    async def change_invisible_duration(self, context: ProxyContext, request: Any) -> Any:
        topic, group = topic_of(request.topic), group_of(request.group)
        milliseconds = milliseconds_of(request.invisible_duration)
        check_invisible_time(milliseconds, 0)
        async with self._taken(context, group, request.receipt_handle) as handle:
            changed = await self._receipts.change_invisible(group, topic, handle, milliseconds, suspend=request.suspend)
        return definitions.ChangeInvisibleDurationResponse(status=_OK, receipt_handle=changed)

    async def forward_message_to_dead_letter_queue(self, context: ProxyContext, request: Any) -> Any:
        group, topic = group_of(request.group), topic_of(request.topic)
        async with self._taken(context, group, request.receipt_handle) as handle:
            await self._receipts.give_up(group, topic, handle, request.message_id, request.receipt_handle)
        return definitions.ForwardMessageToDeadLetterQueueResponse(status=_OK)

    @asynccontextmanager
    async def _taken(self, context: ProxyContext, group: str, handle: str) -> AsyncGenerator[Handle, None]:
        """The valid handle of a message, which is not renewed any more unless the request fails."""
        taken = self._renewals.take(context.metadata[CLIENT_ID], group, handle)
        result: StatusError | None = _ENDED
        try:
            yield await self._receipts.read(await taken.handle())
            result = None
        except StatusError as error:
            result = error
            raise
        finally:
            self._settle(taken, result)

    def _settle(self, taken: Taken, result: StatusError | None) -> None:
        """Renew a message again after a failed request, unless its handle is invalid."""
        self._renewals.settle(taken, failed=result is not None and result.code != _Code.INVALID_RECEIPT_HANDLE)


def check_invisible_time(milliseconds: int, least: int) -> None:
    """Raise StatusError with ILLEGAL_INVISIBLE_TIME if the time is too short or too long."""
    if not least <= milliseconds <= MAX_INVISIBLE_MS:
        raise StatusError(
            _Code.ILLEGAL_INVISIBLE_TIME,
            f"invalid invisible time {milliseconds} ms: use {least} ms to {MAX_INVISIBLE_MS} ms (12 h)",
        )
