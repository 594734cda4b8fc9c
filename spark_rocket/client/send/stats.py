"""Send statistics of a producer by topic, and their Prometheus metrics.

Concurrent increments of a counter may lose one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_rocket.remoting.exposition import Exposition, label_text

_BOUNDS_MS = (1, 5, 10, 20, 50, 200, 500)


def _histogram() -> list[int]:
    return [0] * (len(_BOUNDS_MS) + 1)


@dataclass(slots=True)
class SendCounts:
    """The send statistics of a topic. ``ok`` and ``failed`` are histograms of attempts."""

    messages: int = 0
    bytes: int = 0
    retries: int = 0
    ok: list[int] = field(default_factory=_histogram)
    failed: list[int] = field(default_factory=_histogram)
    ok_seconds: float = 0.0
    failed_seconds: float = 0.0


class SendStats:
    """The send statistics of a producer, by topic."""

    def __init__(self) -> None:
        self.topics: dict[str, SendCounts] = {}

    def of(self, topic: str) -> SendCounts:
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = SendCounts()
        return counts

    def sent(self, topic: str, messages: int, size: int, seconds: float) -> None:
        counts = self.topics.get(topic) or self.of(topic)
        counts.messages += messages
        counts.bytes += size
        counts.ok_seconds += seconds
        counts.ok[_bucket(seconds)] += 1

    def failed(self, topic: str, seconds: float) -> None:
        counts = self.of(topic)
        counts.failed_seconds += seconds
        counts.failed[_bucket(seconds)] += 1


def _bucket(seconds: float) -> int:
    if seconds <= 0.001:  # the common case
        return 0
    for place, bound in enumerate(_BOUNDS_MS):
        if seconds * 1000 <= bound:
            return place
    return len(_BOUNDS_MS)


def add_send_stats(exposition: Exposition, stats: SendStats, client_id: str, group: str) -> None:
    who = label_text({"client_id": client_id, "producer_group": group})
    for topic, counts in list(stats.topics.items()):
        labels = f"{who},{label_text({'topic': topic})}"
        exposition.add("rocket_client_messages_sent_total", labels, counts.messages)
        exposition.add("rocket_client_bytes_sent_total", labels, counts.bytes)
        exposition.add("rocket_client_send_retries_total", labels, counts.retries)
        for status, buckets, seconds in (
            ("success", counts.ok, counts.ok_seconds),
            ("failure", counts.failed, counts.failed_seconds),
        ):
            exposition.add_histogram(
                "rocketmq_send_cost_time",
                f'{labels},invocation_status="{status}"',
                _BOUNDS_MS,
                list(buckets),
                seconds * 1000,
            )
