"""Endpoints of messages: search by time, key or id; show, send and resend.

A message is identified by its position (``topic``, ``broker``, ``queue``, ``offset``), which unlike its ids always
exists and is unique.
Corresponds to MessageController and MessageTraceController of RocketMQ's dashboard.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import Response

from spark_rocket.client.admin import Admin, origin_of
from spark_rocket.console import bodies
from spark_rocket.console.answers import Refused, Trouble, describe
from spark_rocket.console.api.context import Asked, Context, attachment
from spark_rocket.console.avro import can_avro
from spark_rocket.console.search import Filter, Search, first_spans, parse_cursor
from spark_rocket.errors import ClientError, RocketError, TopicNotFoundError
from spark_rocket.model import DLQ_PREFIX, KEYS, SHARDING_KEY, TAGS, Message, MessageExt, MessageQueue

_NEVER = 2**63 - 1


class MessageApi:
    """Messages and dead letters."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # --- finding ----------------------------------------------------------------------------------------------

    def search(self, asked: Asked) -> dict[str, Any]:
        admin, topic, by = self._context.admin, asked.text("topic").strip(), asked.text("by")
        limit = asked.number("limit", 64)
        failed: dict[str, RocketError] = {}
        if by == "id":
            wanted = asked.text("id").strip()
            message = admin.message(topic, wanted)
            found = [] if message is None else [message]
        elif by == "key":
            found = admin.query_messages(topic, asked.text("key").strip(), max_num=limit, failed=failed)[::-1]
        else:
            raise Refused(f"Invalid search by {by[:40]!r}.", remedy="Search by key or id.")
        return {"rows": summaries(found), "limit": limit, "failed": _troubles(failed)}

    def find(self, asked: Asked) -> dict[str, Any]:
        """Search by time, with filters: the first page, or the one that begins at ``cursor``."""
        links, topic = self._context.links, asked.text("topic").strip()
        begin = asked.number("begin", 0)
        end = asked.number("end", 0, least=0) or None
        wanted = Filter.of(begin, end or _NEVER, asked.text("tags", "").strip(), asked.text("text", ""))
        limit = asked.number("limit", 50)
        failed: dict[str, RocketError] = {}
        gone: dict[str, Trouble] = {}
        if asked.body.get("cursor") is None:
            gone = self._context.sampler.gone_masters()
            try:
                spans, failed = first_spans(links.admin, links.reader, topic, begin, end)
            except TopicNotFoundError:
                if not topic.startswith(DLQ_PREFIX):
                    raise
                spans = []  # the group never had a dead letter
        else:
            spans = parse_cursor(topic, asked.body["cursor"])
        search = Search(links.reader, spans, wanted, _summary)
        before = search.left
        rows = search.page(limit)
        return {
            "rows": rows,
            "limit": limit,
            "next": search.cursor() or None,
            "searched": search.messages,
            "left": search.left,
            "total": before,
            "failed": _troubles(gone | search.unreadable | failed | search.failed),
        }

    def show(self, asked: Asked) -> dict[str, Any]:
        message = self._message(asked)
        return {"message": details(message), "body": bodies.show(message.body), "avro": can_avro()}

    def decode(self, asked: Asked) -> dict[str, Any]:
        """Decode the body with an Avro schema."""
        return {"body": bodies.show(self._message(asked).body, asked.text("schema"))}

    def body(self, asked: Asked) -> Response:
        message = self._message(asked)
        return attachment(message.body, f"{message.topic}-{message.queue_id}-{message.queue_offset}.bin")

    def track(self, asked: Asked) -> dict[str, Any]:
        """Return the groups that consumed the message."""
        message = self._message(asked)
        try:
            tracks = self._context.admin.message_track(message)
        except RocketError as error:
            return {"rows": [], "trouble": describe(error).to_json()}
        rows = [{"group": t.group, "status": t.status.value, "detail": t.detail} for t in tracks]
        return {"rows": rows, "trouble": None}

    def trace(self, asked: Asked) -> dict[str, Any]:
        """Return the trace events of the message."""
        events = self._context.admin.message_trace(asked.text("id")).events
        return {
            "rows": [
                {
                    "key": f"{number}",
                    "kind": event.kind,
                    "time": event.time_ms,
                    "group": event.group,
                    "client": event.client,
                    "outcome": event.outcome,
                    "cost": event.cost_ms,
                    "retries": event.retry_times,
                }
                for number, event in enumerate(events)
            ]
        }

    def _message(self, asked: Asked) -> MessageExt:
        return message_at(self._context.admin, *asked.queue())

    # --- sending ----------------------------------------------------------------------------------------------

    def send(self, asked: Asked) -> dict[str, Any]:
        message = _message_of(asked)
        result = self._context.admin.send(message)
        return {
            "done": f"Sent to queue {result.queue.queue_id} of {result.queue.topic} on {result.queue.broker_name},"
            f" offset {result.queue_offset}.",
            "status": result.status.value,
            "msgId": result.msg_id,
            "topic": result.queue.topic,
            "broker": result.queue.broker_name,
            "queue": result.queue.queue_id,
            "offset": result.queue_offset,
        }

    def resend(self, asked: Asked) -> dict[str, Any]:
        """Send a copy of a message to its topic for all groups, or to one group only."""
        group = asked.text("group", "") or None
        result = self._context.admin.resend(self._message(asked), group=group)
        to = f"group {group}" if group else f"topic {result.queue.topic}"
        return {"done": f"Resent to {to} with id {result.msg_id}.", "msgId": result.msg_id}


def _troubles(failed: Mapping[str, RocketError | Trouble]) -> dict[str, Any]:
    """Return errors by broker."""
    return {
        name: (error if isinstance(error, Trouble) else describe(error)).to_json() for name, error in failed.items()
    }


def message_at(admin: Admin, queue: MessageQueue, offset: int) -> MessageExt:
    for message in admin.messages_at(queue, offset, 1):
        if message.queue_offset == offset:
            return message
    raise ClientError(
        f"Queue {queue.queue_id} of {queue.topic} on {queue.broker_name} has no message at offset {offset}.",
        remedy="It may have expired.",
        code="NO_SUCH_MESSAGE",
    )


def _message_of(asked: Asked) -> Message:
    """Build the message of the form."""
    text = asked.text("body", "")
    if asked.text("encoding", "text") == "base64":
        try:
            body = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise Refused("Invalid base64 body.", remedy="Send it as text or as base64.") from None
    else:
        body = text.encode()
    properties = asked.body.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise Refused("Invalid properties: values must be strings.", remedy="Write each as name=value.")
    clash = sorted(properties.keys() & {KEYS, TAGS, SHARDING_KEY})
    if clash:
        raise Refused(f"{clash[0]} cannot be set as a property.", remedy="Use the field of that name.")
    delay = asked.number("delay", 0)
    return Message.of(
        asked.text("topic").strip(),
        body,
        tags=asked.text("tags", "").strip() or None,
        keys=asked.text("keys", "").strip() or None,
        sharding_key=asked.text("shardingKey", "").strip() or None,
        delay_ms=delay or None,
        properties=properties,
    )


def summaries(messages: Iterable[MessageExt]) -> list[dict[str, Any]]:
    return [_summary(message) for message in messages]


def _summary(message: MessageExt, at: int = 0) -> dict[str, Any]:
    """``at``: the position in the body that the preview should show."""
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "msgId": message.msg_id,
        "keys": message.keys,
        "tags": message.tags,
        "stored": message.store_timestamp,
        "size": len(message.body),
        "preview": bodies.preview(message.body, at),
        "retries": message.reconsume_times,
        "origin": _origin(message),
    }


def _origin(message: MessageExt) -> dict[str, Any] | None:
    """Return where a dead letter or a retried message comes from."""
    origin = origin_of(message)
    if origin is None:
        return None
    return {
        "topic": origin.topic,
        "broker": origin.queue.broker_name if origin.queue else None,
        "queue": origin.queue.queue_id if origin.queue else None,
        "offset": origin.offset,
        "msgId": origin.msg_id,
        "attempts": origin.attempts,
        "reason": origin.reason,
        "missing": origin.missing,
    }


def details(message: MessageExt) -> dict[str, Any]:
    return {
        **_summary(message),
        "offsetMsgId": message.offset_msg_id,
        "born": message.born_timestamp,
        "bornHost": f"{message.born_host[0]}:{message.born_host[1]}",
        "storeHost": f"{message.store_host[0]}:{message.store_host[1]}",
        "physicalOffset": message.physical_offset,
        "storeSize": message.store_size,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "properties": dict(sorted(message.properties.items())),
    }
