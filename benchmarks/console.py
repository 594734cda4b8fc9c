"""Time to open the console's pages on a large cluster, each for the first time, while another client shows the lists.

1,000 topics of 8 queues with a message each; 200 groups, each with a lag in the 40 queues of five topics. The console
is a separate process, as started by `rocket console`. Opening a page means a browser's requests for the page itself and
its first figures, which the console has cached; `whole` also waits for the brokers' responses.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import count
from urllib.parse import urlsplit

from benchmarks.lab import Lab, beside
from benchmarks.registry import Pair, benchmark
from spark_rocket.client import Producer, Reader
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.wire.bodies.config import (
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.processes import ServerProcess

TOPICS, QUEUES = 1_000, 8
GROUPS, READ = 200, 5  # topics per group
OPENED = 12  # pages per run
LOOK_SECONDS = 2.0
PATIENCE = 30.0
STATIC = "/static/parts.js"

topic_name = "topic-{:04d}".format
group_name = "group-{:03d}".format


def fill(cluster: LocalCluster) -> None:
    topics = [TopicConfig(topic_name(i), QUEUES, QUEUES) for i in range(TOPICS)]
    groups = [SubscriptionGroupConfig(group_name(i)) for i in range(GROUPS)]
    with Reader(cluster.name_server) as reader, Producer(name_server=cluster.name_server) as producer:
        for code, body in (
            (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, CreateTopicListRequestBody(topics).to_json()),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, SubscriptionGroupList(groups).to_json()),
        ):
            response = reader.remoting.invoke(cluster.broker_address, RemotingCommand.request(code, None, body), 60)
            assert response.code == ResponseCode.SUCCESS, response
        broker = reader.queues(topic_name(0))[0].broker_name
        places = [MessageQueue(topic_name(i), broker, i % QUEUES) for i in range(TOPICS)]
        sent = [producer.send_async(Message(place.topic, b"x" * 200), queue=place) for place in places]
        for future in sent:
            future.result()
        for group in range(GROUPS):
            for topic in range(group * READ, (group + 1) * READ):
                queues = [MessageQueue(topic_name(topic % TOPICS), broker, i) for i in range(QUEUES)]
                for committed in [reader.commit_offset_async(group_name(group), queue, 0, 30.0) for queue in queues]:
                    assert committed.result()


class Browser:
    """One persistent connection, like a browser's."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._http = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)

    def get(self, path: str) -> bytes:
        self._http.request("GET", path)
        response = self._http.getresponse()
        body = response.read()
        assert response.status == 200, (path, body[:200])
        return body

    def close(self) -> None:
        self._http.close()


@cache
def console(lab: Lab) -> str:
    """Start a console and return its address once it has requested all data."""
    cluster = lab.keep(LocalCluster(data_dir=lab.folder / "console-cluster"))
    fill(cluster)
    arguments = ["console", "-n", cluster.name_server, "--port", "0"]
    process = ServerProcess(arguments, lab.folder / "console.log", PATIENCE)
    lab.keep(_stopping(process))
    url: str = process.facts["console"]
    browser, until = Browser(url), time.monotonic() + PATIENCE
    while not all(json.loads(browser.get(f"/api/{name}"))["known"] for name in ("topics", "groups")):
        assert time.monotonic() < until, "the console has not requested all data yet"
        time.sleep(0.2)
    browser.close()
    return url


@contextmanager
def _stopping(process: ServerProcess) -> Iterator[None]:
    yield
    process.stop()


def looked_at(url: str) -> AbstractContextManager[None]:
    """Another client shows the lists, so the console keeps requesting all data from the cluster."""

    def look(stop: threading.Event) -> None:
        browser = Browser(url)
        while not stop.is_set():
            browser.get("/api/topics")
            browser.get("/api/groups")
            stop.wait(LOOK_SECONDS)
        browser.close()

    return beside(look)


def slowest(url: str, pages: Callable[[], tuple[str, ...]]) -> float:
    """Return the milliseconds until the last of several pages was loaded, each by its own browser."""
    took = []
    with looked_at(url):
        for _ in range(OPENED):
            paths = pages()
            browser = Browser(url)
            begun = time.perf_counter()
            for path in paths:
                browser.get(path)
            took.append((time.perf_counter() - begun) * 1000)
            browser.close()
    return max(took)


def first_pages(what: str) -> Callable[[], tuple[str, ...]]:
    """Return a browser's requests, for another topic or group each time."""
    numbers = count()

    def pages() -> tuple[str, ...]:
        number = next(numbers)
        if what == "list":
            return (f"/topics?page={number}", f"/api/topics?page={number}&sort=messages&desc=1")
        kind, _, whole = what.partition("-")
        name = topic_name(number % TOPICS) if kind == "topic" else group_name(number % GROUPS)
        known = f"/api/{kind}s/{name}?known=1"
        return (f"/{kind}s/{name}", known, f"/api/{kind}s/{name}") if whole else (f"/{kind}s/{name}", known)

    return pages


@benchmark(
    "console.list",
    "console.topic",
    "console.topic-whole",
    "console.group",
    "console.group-whole",
    unit="ms",
    ceiling="the page and a file from the same server",
    lower_is_better=True,
)
def opening(lab: Lab, what: str) -> Pair:
    """The slowest of a dozen pages that were not opened before."""
    url = console(lab)
    pages = first_pages(what)
    return Pair(lambda: slowest(url, pages), lambda: slowest(url, lambda: ("/", STATIC)))
