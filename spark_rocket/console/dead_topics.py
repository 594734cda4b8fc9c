"""Finds the dead-letter topics of Spark queries: topics whose last message has the properties of a bad record.

Nothing else marks them, and their names are the users'. The last message of each topic is read while the page of dead
letters is open: at most ``MAX_READ_TOPICS`` per request, topics that were never read first, and of these the ones with
a typical name. A topic that was recognized is read again when it has new messages, any other after ``AGAIN_S``. If a
broker does not respond, its topics stay unread until the next request.

Thread-safety: all methods.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from typing import Any

from spark_rocket.client import Reader
from spark_rocket.client.admin import Origin, QueueState, TopicKind, origin_of
from spark_rocket.client.consume.pull import PullResult, PullStatus, messages_of
from spark_rocket.common.attributes import pick
from spark_rocket.console.sampler import Sampler
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.filter.tags import parse_tags
from spark_rocket.remoting.client.promise import Promise

MAX_READ_TOPICS = 64  # per request
WINDOW = 16  # messages in memory
AGAIN_S = 600.0
_LIKELY = re.compile("dead|dlq|bad|invalid|error|fail|reject", re.IGNORECASE)
_ALL = parse_tags(None)


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic with messages, as sampled, and its queue with the newest message."""

    name: str
    messages: int
    newest: QueueState

    @property
    def queue(self) -> MessageQueue:
        return self.newest.queue

    @property
    def offset(self) -> int:
        """The offset of the newest message."""
        return self.newest.max_offset - 1


@dataclass(frozen=True, slots=True)
class _Finding:
    """The result of reading a topic's last message: its origin if it is a bad record."""

    moment: float
    last_update: int
    origin: Origin | None


class DeadTopics:
    def __init__(self, reader: Reader, sampler: Sampler) -> None:
        self._reader = reader
        self._sampler = sampler
        self._lock = threading.Lock()
        self._findings: dict[str, _Finding] = {}

    def check(self) -> tuple[list[dict[str, Any]], int]:
        """Read the last messages of some topics; return the rows found so far and the number of unread topics."""
        topics = self._sampled()
        if self._lock.acquire(blocking=False):  # else another request is reading
            try:
                self._read(topics)
            finally:
                self._lock.release()
        findings = dict(self._findings)
        rows = []
        for topic in sorted(topics, key=lambda topic: (-topic.messages, topic.name)):
            origin = findings[topic.name].origin if topic.name in findings else None
            if origin is not None:
                row = pick(topic, "name messages lastUpdate=newest.last_stored_ms?")
                rows.append(row | pick(origin, "origin=topic reason"))
        return rows, sum(topic.name not in findings for topic in topics)

    def _sampled(self) -> list[_Topic]:
        """Return the users' topics with messages on brokers that respond."""
        topics = []
        with self._sampler.lock:
            for name, record in self._sampler.topics.items():
                if record.info.kind is TopicKind.USER and record.state is not None:
                    newest = record.state.newest
                    if newest is not None and newest.queue.broker_name not in self._sampler.failed:
                        topics.append(_Topic(name, record.state.messages, newest))
        return topics

    def _read(self, topics: list[_Topic]) -> None:
        names = {topic.name for topic in topics}
        self._findings = {name: finding for name, finding in self._findings.items() if name in names}
        now = time.monotonic()
        due = sorted((topic for topic in topics if self._is_due(topic, now)), key=self._order)[:MAX_READ_TOPICS]
        unavailable: set[str] = set()
        for first in range(0, len(due), WINDOW):
            part = [topic for topic in due[first : first + WINDOW] if topic.queue.broker_name not in unavailable]
            for topic, promise in [(t, self._reader.pull_async(t.queue, t.offset, max_msgs=1)) for t in part]:
                try:
                    origin = _origin(topic, promise)
                except RocketError as error:
                    if error.retriable:
                        unavailable.add(topic.queue.broker_name)
                        continue
                    origin = None
                self._findings[topic.name] = _Finding(now, topic.newest.last_stored_ms, origin)

    def _is_due(self, topic: _Topic, now: float) -> bool:
        finding = self._findings.get(topic.name)
        if finding is None:
            return True
        is_new = topic.newest.last_stored_ms != finding.last_update
        return is_new and (finding.origin is not None or now - finding.moment > AGAIN_S)

    def _order(self, topic: _Topic) -> tuple[float, bool]:
        finding = self._findings.get(topic.name)
        return 0.0 if finding is None else finding.moment, _LIKELY.search(topic.name) is None


def _origin(topic: _Topic, promise: Promise[PullResult]) -> Origin | None:
    found = promise.result()
    messages = messages_of(found, topic.queue, topic.offset, _ALL) if found.status is PullStatus.FOUND else []
    origin = origin_of(messages[0]) if messages else None
    return origin if origin is not None and origin.is_bad_record else None
