"""The lag listener, called with Spark's events; brokers are futures."""

from __future__ import annotations

import json
import logging
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from operator import itemgetter
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryTerminatedEvent,
    SourceProgress,
)

from spark_rocket.client.admin.catch_up import WINDOW_SECONDS, CatchUp
from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.datasource import RocketLagListener
from spark_rocket.datasource.stream_offsets import StreamOffset, initial_offset
from spark_rocket.datasource.views.lag_listener import lags
from spark_rocket.errors import BrokerError, ClientError, ConfigError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.record.record import encode_record
from tests.datasource.fakes import q

pytestmark = pytest.mark.live

RUN = uuid.uuid4()
NOW = 1_700_000_000.0


def offset(**ends: int) -> str:
    return json.dumps(StreamOffset({q(int(name[1:])): end for name, end in ends.items()}).to_json())


def source(end: str, latest: str) -> SourceProgress:
    return SourceProgress("ours", "null", end, latest, 1, 1.0, 1.0, {})


def progress(*sources: SourceProgress, name: str | None = "copy", run: uuid.UUID = RUN) -> QueryProgressEvent:
    told = SimpleNamespace(id=run, runId=run, name=name, sources=list(sources))
    return QueryProgressEvent(told)  # type: ignore[arg-type]


class Brokers:
    """Answers pulls: ages by queue; a queue that is missing is never answered."""

    def __init__(self) -> None:
        self.ages: dict[MessageQueue, float | Exception] = {}
        self.asked = threading.Event()

    def pull_async(self, queue: MessageQueue, offset: int, **_: Any) -> Future[PullResult]:
        answer: Future[PullResult] = Future()
        age = self.ages.get(queue)
        if isinstance(age, Exception):
            answer.set_exception(age)
        elif age is not None:
            record = encode_record(
                queue.topic.encode(),
                queue.queue_id,
                b"x",
                b"",
                queue_offset=offset,
                physical_offset=0,
                born_timestamp=0,
                born_host=bytes(8),
                store_timestamp=int((NOW - age) * 1000),
                store_host=bytes(8),
            )
            answer.set_result(PullResult(PullStatus.FOUND, offset + 1, 2, 99, memoryview(record)))
        self.asked.set()
        return answer

    def close(self) -> None:
        pass


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def listener(brokers: Brokers) -> Iterator[RocketLagListener]:
    one = RocketLagListener(0, request_timeout=0.2, clock=lambda: NOW)
    one._reader = brokers  # type: ignore[assignment]
    yield one
    one.close()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    said = threading.Semaphore(0)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())
            said.release()

    texts: list[str] = []
    handler = Handler(logging.INFO)
    logger = logging.getLogger("spark_rocket.datasource")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def next_line() -> str:
        assert said.acquire(timeout=20)
        return texts.pop(0)

    yield next_line
    logger.removeHandler(handler)
    logger.setLevel(before)


def metrics(listener: RocketLagListener) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{listener.port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_lag_from_a_progress() -> None:
    both = lags([source(offset(q0=10, q1=5), offset(q0=30, q1=5, q2=7))])
    assert both == ({q(0): 20, q(1): 0, q(2): 7}, {q(0): 10, q(1): 5, q(2): 0})
    # Two sources that read one queue: the one with the larger lag counts.
    twice = [source(offset(q0=10), offset(q0=30)), source(offset(q0=20), offset(q0=30))]
    assert lags(twice) == lags(twice[::-1]) == ({q(0): 20}, {q(0): 10})
    others = [source('{"logOffset": 4}', "None"), source("7", "9"), source("null", "null"), source("{}", "[]")]
    assert lags(others) is None
    assert lags([source(json.dumps(initial_offset()), offset(q0=1)), source(offset(q0=1), "None")]) is None


def test_log_and_metrics(listener: RocketLagListener, brokers: Brokers, lines: Callable[[], str]) -> None:
    brokers.ages = {q(0): 4.5, q(1): BrokerError("no")}
    listener.onQueryProgress(progress(source(offset(q0=10, q1=0, q2=3), offset(q0=30, q1=1, q2=3))))
    assert (
        lines() == "query copy has a lag of 21 messages, 4.5 s in 2 queues, largest in orders/broker-a/0 (20 messages)"
    )
    seen = metrics(listener)
    by_queue = {name: value for name, value in seen.items() if "queue=" in name}
    retained = {name: value for name, value in by_queue.items() if "retained" in name}
    assert list(retained.values()) == [8.0], "of the first queue, of which offsets before 2 were deleted"
    assert sorted(by_queue.items() - retained.items(), key=itemgetter(1))[2:] == [
        ('rocket_stream_lag_messages{broker="broker-a",query="copy",queue="1",topic="orders"}', 1.0),
        ('rocket_stream_lag_seconds{broker="broker-a",query="copy",queue="0",topic="orders"}', 4.5),
        ('rocket_stream_lag_messages{broker="broker-a",query="copy",queue="0",topic="orders"}', 20.0),
    ]
    assert seen['rocket_stream_lag_messages_all{query="copy"}'] == 21.0
    assert seen['rocket_stream_lag_seconds_max{query="copy"}'] == 4.5
    assert seen['rocket_stream_progress_timestamp_seconds{query="copy"}'] == NOW
    listener.onQueryProgress(progress(source(offset(q0=30, q1=1, q2=3), offset(q0=30, q1=1, q2=3))))
    assert lines() == "query copy has no lag"
    assert metrics(listener)['rocket_stream_lag_seconds_max{query="copy"}'] == 0.0
    listener._clock = lambda: NOW + 60
    listener.onQueryIdle(QueryIdleEvent(RUN, RUN, ""))
    listener.onQueryIdle(QueryIdleEvent(uuid.uuid4(), uuid.uuid4(), ""))
    assert metrics(listener)['rocket_stream_progress_timestamp_seconds{query="copy"}'] == NOW + 60
    listener.onQueryTerminated(QueryTerminatedEvent(RUN, RUN, None, None))
    assert metrics(listener) == {}


def test_an_unresponsive_broker_delays_only_the_lag_in_seconds(
    listener: RocketLagListener, brokers: Brokers, lines: Callable[[], str]
) -> None:
    brokers.ages = {q(1): 2.0}
    listener.onQueryProgress(progress(source(offset(q0=0, q1=0), offset(q0=5, q1=6)), name=None))
    [known] = listener.queries()
    assert (known.query, known.messages) == (str(RUN), {q(0): 5, q(1): 6})
    assert brokers.asked.wait(20)
    for end in range(5):  # only the newest is requested, without waiting for the previous one
        listener.onQueryProgress(progress(source(offset(q0=end, q1=0), offset(q0=5, q1=6)), name=None))
    assert lines().startswith(f"query {RUN} has a lag of 7 messages, 2.0 s")
    lines()
    [known] = listener.queries()
    assert known.seconds == {q(1): 2.0}


def test_a_query_that_ends_during_a_request_stays_removed(
    listener: RocketLagListener, brokers: Brokers, lines: Callable[[], str]
) -> None:
    listener.onQueryProgress(progress(source(offset(q0=0), offset(q0=5))))
    assert brokers.asked.wait(20)
    listener.onQueryTerminated(QueryTerminatedEvent(RUN, RUN, None, None))
    other = uuid.uuid4()
    brokers.ages = {q(0): 1.0}
    listener.onQueryProgress(progress(source(offset(q0=0), offset(q0=5)), name="other", run=other))
    assert lines().startswith("query other has a lag of 5 messages, 1.0 s")
    assert [one.query for one in listener.queries()] == ["other"]


def test_when_a_query_will_have_caught_up(
    listener: RocketLagListener, brokers: Brokers, lines: Callable[[], str]
) -> None:
    brokers.ages = {q(0): 1.0}

    def report(after: float, lag: int) -> tuple[float | None, str]:
        listener._clock = lambda: NOW + after
        listener.onQueryProgress(progress(source(offset(q0=0), offset(q0=lag))))
        return listener.queries()[0].catch_up, lines()

    catch_up, line = report(0, 2_000_000)
    assert (catch_up, "caught up" in line) == (None, False), "one observation"
    catch_up, line = report(10, 1_900_000)
    assert catch_up == 190
    assert line.endswith("caught up in about 3 min 10 s")
    assert metrics(listener)['rocket_stream_catch_up_seconds{query="copy"}'] == 190
    assert report(20, 2_100_000)[0] is None, "the lag grows"
    assert report(30, 0)[0] == 0
    assert report(31, 5)[0] is None, "what was before counts no more"


def test_old_observations_do_not_count() -> None:
    estimate = CatchUp()
    assert estimate.add(0, 10_000) is None
    assert estimate.add(WINDOW_SECONDS, 9_000) == WINDOW_SECONDS * 9
    assert estimate.add(WINDOW_SECONDS + 10, 8_000) == 80


def test_the_estimate_starts_over_when_the_clock_is_set_back() -> None:
    estimate = CatchUp()
    for moment, lag in ((NOW, 10_000), (NOW + 10, 9_000), (NOW - 3600, 8_000)):
        estimate.add(moment, lag)
    assert estimate.add(NOW - 3590, 7_000) == 70


def test_a_failed_query_is_one_line_of_the_log(listener: RocketLagListener, caplog: pytest.LogCaptureFixture) -> None:
    """The text of Spark 4.3, with the traces of Python and Java."""
    ours = (
        '[BAD_RECORD] message orders/broker-a/0 at 1 cannot be decoded as json: the column id: "x" is not an integer.'
    )
    text = (
        "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from "
        "the Python worker: Traceback (most recent call last):\n"
        '  File "/venv/spark_rocket/datasource/processes.py", line 57, in hide_traceback_while\n'
        "    raise _shown(error, namespace) from None\n"
        f"spark_rocket.errors.RecordError: {ours}\n SQLSTATE: 38000\n\tat org.apache.spark.api.python.X(Y.scala:1)"
    )
    listener.onQueryProgress(progress(source(offset(q0=1), offset(q0=1))))
    caplog.clear()
    listener.onQueryTerminated(QueryTerminatedEvent(RUN, RUN, text, None))
    other = uuid.uuid4()
    listener.onQueryTerminated(QueryTerminatedEvent(other, other, "java.lang.OutOfMemoryError: [HEAP] full", None))
    listener.onQueryTerminated(QueryTerminatedEvent(other, other, None, None))
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == [f"query copy failed: {ours}"]


@pytest.mark.parametrize(("name", "value"), [("request_timeout", 0), ("port", "9100"), ("consumer_group", 1)])
def test_an_invalid_argument_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ClientError, match=f"Invalid argument {name}: "):
        RocketLagListener(**{name: value})


def test_without_prometheus_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"spark-rocket\[metrics\]"):
        RocketLagListener(port=0)
    RocketLagListener().close()
