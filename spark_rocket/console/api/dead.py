"""Endpoints of dead letters: of consumer groups, and of Spark queries (``badRecords=deadLetter``).

Their messages are searched like those of any topic: see ``MessageApi.find``.
Corresponds to DlqMessageController of RocketMQ's dashboard, which has only the dead letters of groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spark_rocket.client.admin import DeadLetterTopic, TopicKind, origin_of
from spark_rocket.client.consume.pull import PullResult, PullStatus, messages_of
from spark_rocket.common.attributes import pick
from spark_rocket.console.api.context import ApiContext, ApiRequest, place
from spark_rocket.console.api.messages import message_at
from spark_rocket.console.dead_topics import DeadTopics
from spark_rocket.console.resent import Place, place_of
from spark_rocket.console.responses import Refused, describe
from spark_rocket.console.sampler import TOPICS, Sampler
from spark_rocket.errors import RemotingError, RocketError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.filter.tags import parse_tags
from spark_rocket.remoting.client.promise import Promise

MAX_READING = 16
_ALL = parse_tags(None)
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
        group = request.path["group"]
        return self._resend(request, f"group {group}", lambda _: None, group)

    def resend_to_origin(self, request: ApiRequest) -> dict[str, Any]:
        """Send copies of a Spark query's dead letters to the topics that the query read."""
        topic = request.path["topic"]

        def check(message: MessageExt) -> None:
            origin = origin_of(message)
            if message.topic != topic or origin is None or not origin.is_bad_record:
                raise Refused(
                    f"Message {message.msg_id} of {message.topic} is not a dead letter of a Spark query.",
                    remedy=f"Select messages of {topic} that have an origin.",
                )

        return self._resend(request, "the origin", check, None)

    def _resend(
        self, request: ApiRequest, to: str, check: Callable[[MessageExt], None], group: str | None
    ) -> dict[str, Any]:
        """Resend each message once; a failure is reported and does not stop the others."""
        places = request.body.get("messages")
        if not isinstance(places, list) or not places or not all(isinstance(each, dict) for each in places):
            raise Refused("No messages selected.", remedy="Select at least one.")
        selected = list(dict.fromkeys(ApiRequest({}, {}, each).queue() for each in places))
        failed: dict[Place, RocketError] = {}
        found = self._found(selected, check, failed)
        for message, result in self._context.admin.resend_each(found, group=group):
            if isinstance(result, RocketError):
                failed[place_of(message)] = result
            else:
                self._context.resent.add(message)
        sent = len(selected) - len(failed)
        failures = [
            {**place(queue), "offset": offset, "error": describe(failed[queue, offset]).to_json()}
            for queue, offset in selected
            if (queue, offset) in failed
        ]
        return {"done": f"Resent {sent} of {len(selected)} to {to}.", "sent": sent, "failures": failures}

    def _found(
        self, selected: Sequence[Place], check: Callable[[MessageExt], None], failed: dict[Place, RocketError]
    ) -> Iterator[MessageExt]:
        """Read messages, several at a time; record the errors. A broker that does not respond is not queried again."""
        reader = self._context.links.reader
        unavailable: dict[str, RemotingError] = {}
        in_flight: deque[tuple[Place, Promise[PullResult]]] = deque()

        def take() -> Iterator[MessageExt]:
            at, promise = in_flight.popleft()
            try:
                message = _message(promise.result(), *at)
                check(message)
            except RocketError as error:
                failed[at] = error
                if isinstance(error, RemotingError):
                    unavailable[at[0].broker_name] = error
            else:
                yield message

        for queue, offset in selected:
            if len(in_flight) == MAX_READING:
                yield from take()
            if (error := unavailable.get(queue.broker_name)) is not None:
                failed[queue, offset] = error
            else:
                in_flight.append(((queue, offset), reader.pull_async(queue, offset, max_msgs=1)))
        while in_flight:
            yield from take()


def _message(found: PullResult, queue: MessageQueue, offset: int) -> MessageExt:
    messages = messages_of(found, queue, offset, _ALL) if found.status is PullStatus.FOUND else []
    return message_at(messages, queue, offset)


def _groups(sampler: Sampler) -> list[dict[str, Any]]:
    with sampler.lock:
        dead = [
            DeadLetterTopic.of(record.info.name, record.state)
            for record in sampler.topics.values()
            if record.info.kind is TopicKind.DLQ and record.state is not None
        ]
    dead.sort(key=lambda each: (-each.messages, each.topic))
    return [pick(each, "name=group topic messages lastUpdate=last_update_ms?") for each in dead]
