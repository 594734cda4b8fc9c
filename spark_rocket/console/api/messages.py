"""Endpoints of messages: search by time, key or id; show, send and resend.

A message is identified by its position (``topic``, ``broker``, ``queue``, ``offset``), which unlike its ids always
exists and is unique.
Corresponds to MessageController and MessageTraceController of RocketMQ's dashboard.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from spark_rocket.client.admin import origin_of
from spark_rocket.common.attributes import pick
from spark_rocket.console import bodies
from spark_rocket.console.api.context import ApiContext, ApiRequest, attachment, place
from spark_rocket.console.avro import can_avro
from spark_rocket.console.responses import Refused, RequestProblem, describe, failures_json
from spark_rocket.console.search import Search, SearchFilter, first_spans, parse_cursor
from spark_rocket.errors import ClientError, RocketError, TopicNotFoundError
from spark_rocket.model import DLQ_PREFIX, KEYS, SHARDING_KEY, TAGS, Message, MessageExt, MessageQueue

_NEVER = 2**63 - 1


class MessageApi:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    # --- finding ----------------------------------------------------------------------------------------------

    def search(self, request: ApiRequest) -> dict[str, Any]:
        admin, topic, by = self._context.admin, request.text("topic").strip(), request.text("by")
        limit = request.number("limit", 64)
        failed: dict[str, RocketError] = {}
        if by == "id":
            wanted = request.text("id").strip()
            message = admin.message(topic, wanted)
            found = [] if message is None else [message]
        elif by == "key":
            found = admin.query_messages(topic, request.text("key").strip(), max_num=limit, failed=failed)[::-1]
        else:
            raise Refused(f"Invalid search by {by[:40]!r}.", remedy="Search by key or id.")
        return {"rows": [self._row(message) for message in found], "limit": limit, "failed": failures_json(failed)}

    def find(self, request: ApiRequest) -> dict[str, Any]:
        """Search by time, with filters: the first page, or the one that begins at ``cursor``."""
        links, topic = self._context.links, request.text("topic").strip()
        begin = request.number("begin", 0)
        end = request.number("end", 0, least=0) or None
        wanted = SearchFilter.of(begin, end or _NEVER, request.text("tags", "").strip(), request.text("text", ""))
        limit = request.number("limit", 50)
        failed: dict[str, RocketError] = {}
        gone: dict[str, RequestProblem] = {}
        if request.body.get("cursor") is None:
            gone = self._context.sampler.gone_masters()
            try:
                spans, failed = first_spans(links.admin, links.reader, topic, begin, end)
            except TopicNotFoundError:
                if not topic.startswith(DLQ_PREFIX):
                    raise
                spans = []  # the group never had a dead letter
        else:
            spans = parse_cursor(topic, request.body["cursor"])
        search = Search(links.reader, spans, wanted, self._row)
        before = search.left
        rows = search.page(limit)
        return {
            "rows": rows,
            "limit": limit,
            "next": search.cursor() or None,
            "searched": search.messages,
            "left": search.left,
            "total": before,
            "failed": failures_json(gone | search.unreadable | failed | search.failed),
        }

    def show(self, request: ApiRequest) -> dict[str, Any]:
        message = self._message(request)
        shown = details(message) | self._mark(message)
        return {"message": shown, "body": bodies.show(message.body), "avro": can_avro()}

    def decode(self, request: ApiRequest) -> dict[str, Any]:
        return {"body": bodies.show(self._message(request).body, request.text("schema"))}

    def body(self, request: ApiRequest) -> Response:
        message = self._message(request)
        return attachment(message.body, f"{message.topic}-{message.queue_id}-{message.queue_offset}.bin")

    def track(self, request: ApiRequest) -> dict[str, Any]:
        message = self._message(request)
        try:
            tracks = self._context.admin.message_track(message)
        except RocketError as error:
            return {"rows": [], "trouble": describe(error).to_json()}
        rows = [pick(track, "group status=status.value committed=committed_offset") for track in tracks]
        return {"rows": rows, "trouble": None}

    def trace(self, request: ApiRequest) -> dict[str, Any]:
        names = "kind time=time_ms group client outcome cost=cost_ms retries=retry_times"
        events = self._context.admin.message_trace(request.text("id")).events
        return {"rows": [{"key": f"{number}"} | pick(event, names) for number, event in enumerate(events)]}

    def _row(self, message: MessageExt, at: int = 0) -> dict[str, Any]:
        return _summary(message, at) | self._mark(message)

    def _mark(self, message: MessageExt) -> dict[str, Any]:
        return {"resent": self._context.resent.when(message)}

    def _message(self, request: ApiRequest) -> MessageExt:
        queue, offset = request.queue()
        return message_at(self._context.admin.messages_at(queue, offset, 1), queue, offset)

    # --- sending ----------------------------------------------------------------------------------------------

    def send(self, request: ApiRequest) -> dict[str, Any]:
        message = _message_of(request)
        result = self._context.admin.send(message)
        return {
            "done": f"Sent to queue {result.queue.queue_id} of {result.queue.topic} on {result.queue.broker_name},"
            f" offset {result.queue_offset}.",
            **pick(result, "status=status.value msg_id offset=queue_offset"),
            **place(result.queue),
        }

    def resend(self, request: ApiRequest) -> dict[str, Any]:
        """Send a copy of a message to its topic for all groups, or to one group only."""
        group = request.text("group", "") or None
        message = self._message(request)
        result = self._context.admin.resend(message, group=group)
        self._context.resent.add(message)
        to = f"group {group}" if group else f"topic {result.queue.topic}"
        return {"done": f"Resent to {to} with id {result.msg_id}.", "msgId": result.msg_id}


def message_at(messages: Iterable[MessageExt], queue: MessageQueue, offset: int) -> MessageExt:
    """Return the message at an offset. ``messages``: those pulled there; other ones if it is deleted."""
    for message in messages:
        if message.queue_offset == offset:
            return message
    raise ClientError(
        f"Queue {queue.queue_id} of {queue.topic} on {queue.broker_name} has no message at offset {offset}.",
        remedy="It may have expired.",
        code="NO_SUCH_MESSAGE",
    )


def _message_of(request: ApiRequest) -> Message:
    text = request.text("body", "")
    if request.text("encoding", "text") == "base64":
        try:
            body = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise Refused("Invalid base64 body.", remedy="Send it as text or as base64.") from None
    else:
        body = text.encode()
    properties = request.body.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise Refused("Invalid properties: values must be strings.", remedy="Write each as name=value.")
    clash = sorted(properties.keys() & {KEYS, TAGS, SHARDING_KEY})
    if clash:
        raise Refused(f"{clash[0]} cannot be set as a property.", remedy="Use the field of that name.")
    delay = request.number("delay", 0)
    return Message.of(
        request.text("topic").strip(),
        body,
        tags=request.text("tags", "").strip() or None,
        keys=request.text("keys", "").strip() or None,
        sharding_key=request.text("shardingKey", "").strip() or None,
        delay_ms=delay or None,
        properties=properties,
    )


_SUMMARY = (
    "topic broker=broker_name queue=queue_id offset=queue_offset msg_id keys tags stored=store_timestamp"
    " retries=reconsume_times"
)


def _summary(message: MessageExt, at: int = 0) -> dict[str, Any]:
    """``at``: the position in the body that the preview should show."""
    return {
        **pick(message, _SUMMARY),
        "size": len(message.body),
        "preview": bodies.preview(message.body, at),
        "origin": _origin(message),
    }


def _origin(message: MessageExt) -> dict[str, Any] | None:
    origin = origin_of(message)
    if origin is None:
        return None
    queue = pick(origin.queue, "broker=broker_name queue=queue_id")
    return pick(origin, "topic offset msg_id attempts reason missing") | queue


def details(message: MessageExt) -> dict[str, Any]:
    return {
        **_summary(message),
        **pick(message, "offset_msg_id born=born_timestamp physical_offset store_size sys_flag flag"),
        "bornHost": f"{message.born_host[0]}:{message.born_host[1]}",
        "storeHost": f"{message.store_host[0]}:{message.store_host[1]}",
        "properties": dict(sorted(message.properties.items())),
    }
