"""The settings of a push consumer, and the consume service and pull settings derived from them.

Thread-safety: immutable. Corresponds to the fields of DefaultMQPushConsumer and to the checks of
DefaultMQPushConsumerImpl at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from spark_rocket.client.consume.concurrently import ConsumeConcurrently
from spark_rocket.client.consume.group_consumer import GroupOptions
from spark_rocket.client.consume.listeners import BatchListener, ConcurrentListener, OrderlyListener
from spark_rocket.client.consume.orderly import ConsumeBatches, ConsumeOrderly
from spark_rocket.client.consume.pull import DEFAULT_MAX_MSGS
from spark_rocket.client.consume.puller import PullSettings
from spark_rocket.client.consume.services import DEFAULT_MAX_RECONSUME_TIMES, FlowControl, ServiceParts
from spark_rocket.client.core.validators import check_range
from spark_rocket.common.arguments import check
from spark_rocket.errors import ClientError

BACKLOG_MSGS = 512
BATCH_MSGS = 32_768
BATCH_BYTES = 1 << 20
MAX_INT = 2**31 - 1


class PushOptions(GroupOptions, total=False):
    """The settings of a ``PushConsumer`` except its group and listener; ``PushSettings`` has the defaults."""

    consume_threads: int
    consume_message_batch_max_size: int
    pull_batch_size: int | None
    pull_batch_size_in_bytes: int | None
    pull_interval: float
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue_mib: int
    pull_threshold_for_topic: int
    pull_threshold_size_for_topic_mib: int
    consume_concurrently_max_span: int
    max_reconsume_times: int
    suspend_current_queue_time_millis: int
    consume_timeout: float
    shutdown_timeout: float


@dataclass(frozen=True, slots=True)
class PushSettings:
    """The settings documented for ``PushConsumer``. ClientError if a value is out of range."""

    listener: ConcurrentListener | None
    orderly: OrderlyListener | None
    batches: BatchListener | None
    is_clustering: bool
    consume_threads: int = 20
    consume_message_batch_max_size: int = 1
    pull_batch_size: int | None = None
    pull_batch_size_in_bytes: int | None = None
    pull_interval: float = 0.0
    pull_threshold_for_queue: int = 1_000
    pull_threshold_size_for_queue_mib: int = 100
    pull_threshold_for_topic: int = -1
    pull_threshold_size_for_topic_mib: int = -1
    consume_concurrently_max_span: int = 2_000
    max_reconsume_times: int = -1
    suspend_current_queue_time_millis: int = 1_000
    consume_timeout: float = 900.0
    shutdown_timeout: float = 30.0

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.listener, self.orderly, self.batches)) != 1:
            raise ClientError(
                "A push consumer needs exactly one listener.", remedy="Pass one of: a listener, orderly=, batches=."
            )
        for name in ("listener", "orderly", "batches"):
            if (value := getattr(self, name)) is not None:
                check(name, value, Callable[[object, object], object])
        for name, low, high, unless in (
            ("consume_threads", 1, 1_000, ()),
            ("consume_message_batch_max_size", 1, 1_024, ()),
            ("pull_batch_size", 1, 1_024, (None,)),
            ("pull_batch_size_in_bytes", 1, 16 << 20, (None,)),
            ("pull_interval", 0, 65.535, ()),
            ("pull_threshold_for_queue", 1, 65_535, ()),
            ("pull_threshold_size_for_queue_mib", 1, 1_024, ()),
            ("pull_threshold_for_topic", 1, 6_553_500, (-1,)),
            ("pull_threshold_size_for_topic_mib", 1, 102_400, (-1,)),
            ("consume_concurrently_max_span", 1, 65_535, ()),
            ("shutdown_timeout", 0, 86_400, ()),
        ):
            value = getattr(self, name)
            if value not in unless:
                check_range(name, value, low, high)

    @property
    def needs_locks(self) -> bool:
        return self.is_clustering and self.orderly is not None

    @property
    def pull_settings(self) -> PullSettings:
        is_batches = self.batches is not None
        usual = BATCH_MSGS if is_batches else self.pull_batch_size or DEFAULT_MAX_MSGS
        at_once = usual if is_batches or self.pull_batch_size else min(BACKLOG_MSGS, self.pull_threshold_for_queue)
        return PullSettings(
            max_msgs=usual,
            max_bytes=BATCH_BYTES if is_batches else self.pull_batch_size_in_bytes,
            backlog_msgs=at_once,
            must_lock=self.needs_locks,
            interval=self.pull_interval,
        )

    @property
    def reconsume_limit(self) -> int:
        """The number of retries before a message becomes a dead letter, except in ordered consumption."""
        return self.max_reconsume_times if self.max_reconsume_times >= 0 else DEFAULT_MAX_RECONSUME_TIMES

    def make_service(
        self, parts: ServiceParts, queues_of: Callable[[str], int]
    ) -> ConsumeConcurrently | ConsumeOrderly | ConsumeBatches:
        """Create the service that calls the listener. ``queues_of``: the consumer's number of queues of a topic."""
        if self.listener is not None:
            return ConsumeConcurrently(
                self.listener,
                parts,
                threads=self.consume_threads,
                batch_size=self.consume_message_batch_max_size,
                flow=self._flow(queues_of, self.consume_concurrently_max_span),
            )
        if self.orderly is not None:
            return ConsumeOrderly(
                self.orderly,
                parts,
                threads=self.consume_threads,
                batch_size=self.consume_message_batch_max_size,
                flow=self._flow(queues_of, None),
                max_reconsume_times=self.max_reconsume_times if self.max_reconsume_times >= 0 else MAX_INT,
                pause_ms=self.suspend_current_queue_time_millis,
                needs_locks=self.needs_locks,
            )
        assert self.batches is not None
        return ConsumeBatches(
            self.batches,
            parts,
            threads=self.consume_threads,
            max_reconsume_times=self.reconsume_limit,
            pause_ms=self.suspend_current_queue_time_millis,
        )

    def _flow(self, queues_of: Callable[[str], int], span: int | None) -> FlowControl:
        of_topic, size_of_topic = self.pull_threshold_for_topic, self.pull_threshold_size_for_topic_mib
        return FlowControl(
            self.pull_threshold_for_queue,
            self.pull_threshold_size_for_queue_mib << 20,
            span,
            None if of_topic < 0 else of_topic,
            None if size_of_topic < 0 else size_of_topic << 20,
            queues_of,
        )


def split_options(options: PushOptions) -> tuple[dict[str, Any], GroupOptions]:
    """Split options into settings of the push consumer and settings of the group."""
    of_group = GroupOptions.__annotations__
    settings = {name: value for name, value in options.items() if name not in of_group}
    return settings, cast(GroupOptions, {name: value for name, value in options.items() if name in of_group})
