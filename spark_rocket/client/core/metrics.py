"""Prometheus metrics of the clients of this process.

::

    from spark_rocket.client import client_metrics, serve_client_metrics

    client_metrics()                         # the text
    with serve_client_metrics(port=9400):    # or /metrics on a port, and /health
        ...

Counters are always on and cost 0.3 µs per send; the text is rendered on request. It covers all producers and consumers
that are started and not closed.

Names: ``rocketmq_send_cost_time`` and the cached messages are named as in RocketMQ 5's own clients,
``rocketmq_client_…`` as in rocketmq-exporter. The lag is as of the last pull response; for the lag of a Spark stream
see ``datasource.views.lag_listener``.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from spark_rocket.client.core.lifecycle import living_clients
from spark_rocket.common.arguments import checked
from spark_rocket.errors import ConfigError
from spark_rocket.remoting.exposition import (
    CONTENT_TYPE,
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Exposition,
    Metric,
    add_process,
    label_text,
)
from spark_rocket.remoting.exposition import PROCESS_METRICS as _PROCESS
from spark_rocket.remoting.http.http_server import HttpResponse, HttpServer

_SEND = ("client_id", "producer_group", "topic")
_CONSUME = ("client_id", "consumer_group", "topic")
_EXPORTER = ("clientAddr", "clientId", "group", "topic")

CLIENT_METRICS: tuple[Metric, ...] = (
    Metric(
        "rocketmq_send_cost_time",
        HISTOGRAM,
        "Milliseconds per send attempt.",
        "client",
        (*_SEND, "invocation_status"),
    ),
    Metric("rocketmq_consumer_cached_messages", GAUGE, "Messages pulled and not consumed.", "client", _CONSUME),
    Metric("rocketmq_consumer_cached_bytes", GAUGE, "Body bytes of these messages.", "client", _CONSUME),
    Metric("rocketmq_client_consume_ok_msg_tps", GAUGE, "Messages consumed per second.", "exporter", _EXPORTER),
    Metric("rocketmq_client_consume_fail_msg_tps", GAUGE, "Messages failed per second.", "exporter", _EXPORTER),
    Metric("rocketmq_client_consume_fail_msg_count", GAUGE, "Messages failed in the last hour.", "exporter", _EXPORTER),
    Metric("rocketmq_client_consume_rt", GAUGE, "Milliseconds per listener call.", "exporter", _EXPORTER),
    Metric("rocketmq_client_consumer_pull_tps", GAUGE, "Messages pulled per second.", "exporter", _EXPORTER),
    Metric(
        "rocketmq_client_consumer_pull_rt", GAUGE, "Milliseconds per pull that found messages.", "exporter", _EXPORTER
    ),
    Metric("rocket_client_messages_sent_total", COUNTER, "Messages sent successfully.", "own", _SEND),
    Metric("rocket_client_bytes_sent_total", COUNTER, "Bytes of the requests that sent them.", "own", _SEND),
    Metric("rocket_client_send_retries_total", COUNTER, "Send attempts after the first.", "own", _SEND),
    Metric("rocket_client_trace_dropped_total", COUNTER, "Trace events dropped.", "own", ("client_id", "group")),
    Metric("rocket_client_queues", GAUGE, "Queues assigned to this consumer.", "own", _CONSUME),
    Metric("rocket_client_lag_messages", GAUGE, "Messages not consumed yet.", "own", _CONSUME),
    Metric("rocket_client_rebalances_total", COUNTER, "Rebalance rounds.", "own", ("client_id", "consumer_group")),
)


def client_metrics() -> bytes:
    """Return the metrics of all clients of this process in the Prometheus text format."""
    exposition = Exposition([*CLIENT_METRICS, *_PROCESS])
    add_process(exposition, label_text({"cluster": "", "node_type": "client", "node_id": ""}))
    for client in living_clients():
        client.add_metrics(exposition)
    return exposition.render()


@checked
def serve_client_metrics(port: int = 0, host: str = "127.0.0.1") -> ClientMetricsServer:
    """Serve ``client_metrics()`` over HTTP; port 0 selects a free port. ConfigError if the port is in use."""
    return ClientMetricsServer(port, host)


class ClientMetricsServer:
    """An HTTP server for ``/metrics`` and ``/health`` of this process; it runs on its own thread until closed."""

    def __init__(self, port: int, host: str) -> None:
        self.url = ""
        self._server = HttpServer(
            host, port, {"/metrics": self._metrics, "/health": self._health}, name="client's metrics endpoint"
        )
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._error: ConfigError | None = None
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="rocket-client-metrics", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving. May be called more than once."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        try:
            await self._server.start()
            self.url = self._server.url
        except ConfigError as error:
            self._error = error
            return
        finally:
            self._started.set()
        await self._stop.wait()
        await self._server.close()

    async def _metrics(self) -> HttpResponse:
        return HttpResponse(client_metrics(), CONTENT_TYPE)

    async def _health(self) -> HttpResponse:
        return HttpResponse.of_json({"status": "UP"})
