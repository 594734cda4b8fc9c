"""Endpoints of dead letters: those of consumer groups, and those of Spark queries (``badRecords=deadLetter``).

Their messages are searched like those of any topic: see ``MessageApi.find``.
Corresponds to DlqMessageController of RocketMQ's dashboard, which has only those of groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_rocket.attributes import pick
from spark_rocket.client.admin import DeadLetterTopic, TopicKind, origin_of
from spark_rocket.console.api.context import ApiContext, ApiRequest
from spark_rocket.console.api.messages import message_at
from spark_rocket.console.dead_topics import DeadTopics
from spark_rocket.console.responses import Refused, describe
from spark_rocket.console.sampler import TOPICS, Sampler
from spark_rocket.errors import RemotingError, RocketError
from spark_rocket.model import MessageExt, MessageQueue

_FIRST_REFRESH_MS = 500


class DeadApi:
    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._topics = DeadTopics(context.links.reader, context.sampler)

    def list(self, request: ApiRequest) -> dict[str, Any]:
        """Return the groups and the topics with dead letters, as sampled; None before the first sample."""
        sampler = self._context.sampler
        sampler.note_view(TOPICS)
        topics, unknown = self._topics.check()
        known = sampler.is_known(TOPICS)
        return {
            "known": known,
            "refresh": self._context.refresh_ms() if known and not unknown else _FIRST_REFRESH_MS,
            "rows": _groups(sampler) if known else None,
            "topics": topics if known else None,
            "unknown": unknown,
            **sampler.problems(),
        }

    def resend_to_group(self, request: ApiRequest) -> dict[str, Any]:
        """Send copies to a group, through its retry topic."""
        group, admin = request.path["group"], self._context.admin
        return self._resend(request, f"group {group}", lambda message: admin.resend(message, group=group))

    def resend_to_origin(self, request: ApiRequest) -> dict[str, Any]:
        """Send copies of a Spark query's dead letters to the topics that the query read."""
        topic = request.path["topic"]

        def resend(message: MessageExt) -> None:
            origin = origin_of(message)
            if message.topic != topic or origin is None or not origin.is_bad_record:
                raise Refused(
                    f"Message {message.msg_id} of {message.topic} is not a dead letter of a Spark query.",
                    remedy=f"Select messages of {topic} that have an origin.",
                )
            self._context.admin.resend(message)

        return self._resend(request, "the origin", resend)

    def _resend(self, request: ApiRequest, to: str, resend: Callable[[MessageExt], object]) -> dict[str, Any]:
        """Resend each message; a failure is reported and does not stop the others."""
        places = request.body.get("messages")
        if not isinstance(places, list) or not places or not all(isinstance(place, dict) for place in places):
            raise Refused("No messages selected.", remedy="Select at least one.")
        sent, failures = 0, []
        unavailable: dict[str, RemotingError] = {}
        for place in places:
            try:
                resend(self._message(*ApiRequest({}, {}, place).queue(), unavailable))
                sent += 1
            except RocketError as error:
                at = {name: place.get(name) for name in ("topic", "broker", "queue", "offset")}
                failures.append({**at, "error": describe(error).to_json()})
        return {"done": f"Resent {sent} of {len(places)} to {to}.", "sent": sent, "failures": failures}

    def _message(self, queue: MessageQueue, offset: int, unavailable: dict[str, RemotingError]) -> MessageExt:
        """Return a message. ``unavailable``: the errors of brokers that do not respond; they are not queried again."""
        if queue.broker_name in unavailable:
            raise unavailable[queue.broker_name]
        try:
            return message_at(self._context.admin, queue, offset)
        except RemotingError as error:
            unavailable[queue.broker_name] = error
            raise


def _groups(sampler: Sampler) -> list[dict[str, Any]]:
    with sampler.lock:
        dead = [
            DeadLetterTopic.of(record.info.name, record.state)
            for record in sampler.topics.values()
            if record.info.kind is TopicKind.DLQ and record.state is not None
        ]
    dead.sort(key=lambda each: (-each.messages, each.topic))
    return [pick(each, "name=group topic messages lastUpdate=last_update_ms?") for each in dead]
