"""The consumer lag of streaming queries: in the log, and for Prometheus.

``RocketLagListener`` receives the progress of all queries of a session and evaluates the rocket sources, which it
identifies by their offsets. The lag in messages is ``latestOffset`` minus ``endOffset`` of the progress. The lag in
seconds is the age of the first message that is not processed yet, which a broker reports.

=============================================  ==================================================================
``rocket_stream_lag_messages``                 by ``query``, ``topic``, ``broker``, ``queue``
``rocket_stream_lag_seconds``                  the same; omits queues whose age no broker reported
``rocket_stream_retained_messages``            the same: messages before the next one that the broker still stores
``rocket_stream_lag_messages_all``             by ``query``: the sum
``rocket_stream_lag_seconds_max``              by ``query``: the queue with the largest lag
``rocket_stream_catch_up_seconds``             by ``query``: when it will have no lag, if it continues as it is
``rocket_stream_progress_timestamp_seconds``   by ``query``: the time of the last progress
=============================================  ==================================================================

``query`` is the query's name, or its id if it has none. The series of a query end with the query. If it failed because
of this source, the log has its error in one line (``query_errors.py``).

Threads: Spark's listener thread only stores the numbers of the progress. A thread of this module sends the requests to
brokers: only for the newest progress of a query, for all queues at once and within ``request_timeout``. A broker that
hangs delays only the seconds. The HTTP server of prometheus_client has its own threads.

Corresponds to ConsumerLagCalculator of RocketMQ's brokers, for readers whose position is in a checkpoint.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Unpack

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
)

from spark_rocket.client.admin.catch_up import CatchUp
from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.client.consume.reader import Reader
from spark_rocket.client.core.client_config import ClientConfig, Connecting
from spark_rocket.common.arguments import checked
from spark_rocket.common.extras import requires
from spark_rocket.common.units import duration_text
from spark_rocket.datasource.query_errors import error_line
from spark_rocket.datasource.stream_offsets import Positions, StreamOffset, parse_stream_offset
from spark_rocket.errors import OffsetsError, RocketError
from spark_rocket.model import READER_GROUP, MessageQueue
from spark_rocket.protocol.namespace import NO_NAMESPACE, Namespace
from spark_rocket.protocol.record.record import view_record

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

log = logging.getLogger("spark_rocket.datasource")

_MAX_QUERIES = 64  # queues per progress: the queues with the largest lag


@dataclass(slots=True)
class QueryLag:
    """A query's lag as of its last progress."""

    query: str
    heard: float = 0.0
    messages: dict[MessageQueue, int] = field(default_factory=dict)
    seconds: dict[MessageQueue, float] = field(default_factory=dict)
    retained: dict[MessageQueue, int] = field(default_factory=dict)
    """How many messages before the next one the broker still stores: at 0, retention overtakes the query."""
    catch_up: float | None = None
    """The estimated seconds until there is no lag."""


def lags(
    sources: Sequence[SourceProgress], namespace: Namespace = NO_NAMESPACE
) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]] | None:
    """Return the lag and the next offset of each queue of the rocket sources; None if the progress has none.

    Topics are those on the wire; the results have them without the namespace.
    """
    behind: dict[MessageQueue, int] = {}
    following: dict[MessageQueue, int] = {}
    is_known = False
    for source in sources:
        end, latest = _positions(source.endOffset, namespace), _latest(source.latestOffset, namespace)
        if end is None or latest is None:
            continue
        is_known = True
        for queue, last in latest.items():
            at = end.get(queue, 0)
            lag = max(0, last - at)
            if lag >= behind.get(queue, 0):  # two sources of a query may read the same queue
                behind[queue], following[queue] = lag, at
    return (behind, following) if is_known else None


def _offset(text: str) -> StreamOffset | None:
    try:
        return parse_stream_offset(json.loads(text))
    except (ValueError, OffsetsError):
        return None  # not a rocket source, or no offset


def _positions(text: str, namespace: Namespace) -> Positions | None:
    offset = _offset(text)
    return None if offset is None else _unwrapped(offset.ends, namespace)


def _latest(text: str, namespace: Namespace) -> Positions | None:
    offset = _offset(text)
    return None if offset is None else _unwrapped({**offset.ends, **offset.latest}, namespace)


def _unwrapped(positions: Positions, namespace: Namespace) -> Positions:
    return {replace(queue, topic=namespace.unwrap(queue.topic)): end for queue, end in positions.items()}


class RocketLagListener(StreamingQueryListener):
    """``spark.streams.addListener(RocketLagListener(port=9404))``

    ``port`` (0 selects a free one) serves Prometheus at ``http://host:port/metrics``; without it, the lag is only
    logged. ``name_server`` is that of the streams; the default is ``NAMESRV_ADDR``, as for the option. With
    ``seconds=False`` no broker receives requests; otherwise they name ``consumer_group``, which is that of the streams
    or ``spark_rocket_reader``. ``access_key``, ``secret_key`` and
    ``namespace`` are those of a client. Call ``close`` after
    ``spark.streams.removeListener``.
    """

    @checked
    def __init__(
        self,
        port: int | None = None,
        *,
        host: str = "127.0.0.1",
        name_server: str | None = None,
        seconds: bool = True,
        consumer_group: str | None = None,
        request_timeout: float = 3.0,
        clock: Callable[[], float] = time.time,
        **connecting: Unpack[Connecting],
    ) -> None:
        self._name_server = name_server
        self._connecting = connecting
        self._namespace = ClientConfig.of(name_server, **connecting).namespace
        self._seconds = seconds
        self._group = consumer_group or READER_GROUP
        self._timeout = request_timeout
        self._clock = clock
        self._queries: dict[str, QueryLag] = {}  # by run
        self._catch_up: dict[str, CatchUp] = {}  # by run
        self._pending: dict[str, dict[MessageQueue, int]] = {}  # next offsets by run, of the newest progress only
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._reader: Reader | None = None
        self._server: Any = None
        self.port: int | None = None
        if port is not None:
            self._server = _serve(self, port, host)
            self.port = self._server.server_port

    # --- called by Spark --------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Ignored: a started query has no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        found = lags(progress.sources, self._namespace)
        if found is None:
            return
        behind, following = found
        run = str(progress.runId)
        with self._changed:
            if self._closed:
                return
            known = self._queries.setdefault(run, QueryLag(progress.name or str(progress.id)))
            known.heard = self._clock()
            known.messages = behind
            known.catch_up = self._catch_up.setdefault(run, CatchUp()).add(known.heard, sum(behind.values()))
            known.retained = {queue: count for queue, count in known.retained.items() if behind.get(queue)}
            known.seconds = {queue: seconds for queue, seconds in known.seconds.items() if behind.get(queue)}
            known.seconds |= {queue: 0.0 for queue, lag in behind.items() if not lag}
            self._pending[run] = {queue: following[queue] for queue, lag in behind.items() if lag}
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="rocket-lag", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Keep the last lag: an idle query has no new messages."""
        with self._changed:
            known = self._queries.get(str(event.runId))
            if known is not None:
                known.heard = self._clock()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._changed:
            known = self._queries.pop(str(event.runId), None)
            self._catch_up.pop(str(event.runId), None)
            self._pending.pop(str(event.runId), None)
        line = error_line(event.exception)
        if line is not None:
            log.error("query %s failed: %s", known.query if known is not None else event.id, line)

    # --- public -----------------------------------------------------------------------------------------------

    def queries(self) -> list[QueryLag]:
        """Return a copy of the current lags."""
        with self._changed:
            return [
                replace(one, messages=dict(one.messages), seconds=dict(one.seconds), retained=dict(one.retained))
                for one in self._queries.values()
            ]

    def close(self) -> None:
        """Stop the thread and the HTTP server."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._timeout + 1)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._reader is not None:
            self._reader.close()

    # --- the worker thread ------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                run = next(iter(self._pending))
                following = self._pending.pop(run)
                lag = self._queries[run]
                most = sorted(following, key=lambda queue: -lag.messages.get(queue, 0))[:_MAX_QUERIES]
            seconds: dict[MessageQueue, float] = {}
            retained: dict[MessageQueue, int] = {}
            try:
                if self._seconds:
                    seconds, retained = self._ages({queue: following[queue] for queue in most})
            except Exception:
                log.exception("cannot determine the lag in seconds")
            with self._changed:
                current = self._queries.get(run)
                if current is None:
                    continue
                current.seconds = {queue: 0.0 for queue, behind in current.messages.items() if not behind} | seconds
                current.retained = retained
                line = _line(current)
            log.info("%s", line)

    def _ages(self, following: Mapping[MessageQueue, int]) -> tuple[dict[MessageQueue, float], dict[MessageQueue, int]]:
        """Return the ages of the next messages, and how many messages before them are stored.

        Omits queues whose broker does not respond in time.
        """
        if self._reader is None:
            self._reader = Reader(
                self._name_server, group=self._group, request_timeout=self._timeout, **self._connecting
            )
        reader, until = self._reader, time.monotonic() + self._timeout
        asked: dict[MessageQueue, Future[PullResult]] = {
            queue: reader.pull_async(queue, offset, max_msgs=1, timeout=self._timeout)
            for queue, offset in following.items()
        }
        ages, retained = {}, {}
        for queue, pulled in asked.items():
            try:
                response = pulled.result(max(0.0, until - time.monotonic()))
            except (RocketError, TimeoutError) as error:
                log.debug("cannot determine the lag in seconds of %s: %s", queue.name, error)
                continue
            retained[queue] = max(0, following[queue] - response.min_offset)
            if response.status is PullStatus.FOUND:
                stored = view_record(response.records, check_crc=False).store_timestamp
                ages[queue] = max(0.0, self._clock() - stored / 1000)
        return ages, retained


def _line(lag: QueryLag) -> str:
    total = sum(lag.messages.values())
    if not total:
        return f"query {lag.query} has no lag"
    worst = max(lag.messages, key=lambda queue: (lag.seconds.get(queue, 0.0), lag.messages[queue]))
    age = f", {max(lag.seconds.values()):.1f} s" if any(lag.seconds.values()) else ""
    behind = sum(1 for count in lag.messages.values() if count)
    return (
        f"query {lag.query} has a lag of {total:,} messages{age} in {behind} queues, largest in {worst.name} "
        f"({lag.messages[worst]:,} messages)"
        + (f", caught up in about {duration_text(round(lag.catch_up * 1000))}" if lag.catch_up else "")
    )


# --- Prometheus -------------------------------------------------------------------------------------------------


def _serve(listener: RocketLagListener, port: int, host: str) -> Any:
    with requires("RocketLagListener with a port"):
        from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(_Collector(listener))
    server, _ = start_http_server(port, host, registry)
    return server


class _Collector:
    """Creates the series from the current lags on each scrape."""

    def __init__(self, listener: RocketLagListener) -> None:
        self._listener = listener

    def collect(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        by_queue = ["query", "topic", "broker", "queue"]
        messages = GaugeMetricFamily("rocket_stream_lag_messages", "Messages not processed yet", labels=by_queue)
        seconds = GaugeMetricFamily("rocket_stream_lag_seconds", "Age of the next message", labels=by_queue)
        total = GaugeMetricFamily(
            "rocket_stream_lag_messages_all", "Unprocessed messages in all queues", labels=["query"]
        )
        most = GaugeMetricFamily("rocket_stream_lag_seconds_max", "Largest lag of a queue in seconds", labels=["query"])
        retained = GaugeMetricFamily(
            "rocket_stream_retained_messages", "Stored messages before the next one", labels=by_queue
        )
        catch_up = GaugeMetricFamily(
            "rocket_stream_catch_up_seconds", "Estimated time until there is no lag", labels=["query"]
        )
        heard = GaugeMetricFamily(
            "rocket_stream_progress_timestamp_seconds", "Time of the last progress", labels=["query"]
        )
        for one in self._listener.queries():
            for queue, count in one.messages.items():
                messages.add_metric([one.query, queue.topic, queue.broker_name, str(queue.queue_id)], count)
            for queue, age in one.seconds.items():
                seconds.add_metric([one.query, queue.topic, queue.broker_name, str(queue.queue_id)], age)
            for queue, count in one.retained.items():
                retained.add_metric([one.query, queue.topic, queue.broker_name, str(queue.queue_id)], count)
            if one.catch_up is not None:
                catch_up.add_metric([one.query], one.catch_up)
            total.add_metric([one.query], sum(one.messages.values()))
            if one.seconds:
                most.add_metric([one.query], max(one.seconds.values()))
            heard.add_metric([one.query], one.heard)
        yield from (messages, seconds, retained, total, most, catch_up, heard)
