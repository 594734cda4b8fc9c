"""A console in a thread for tests over HTTP, and a cluster with data to show."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.console.serve import serve_console
from spark_rocket.console.settings import ConsoleSettings
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.read.bad_records import send_dead_letters
from spark_rocket.model import Message
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.testing import LocalCluster
from tests.console.auth_brokers import AuthCluster
from tests.kit import browser
from tests.kit.accounts import KEYS
from tests.kit.waiting import until

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.console.window import Window

WAIT = 30.0
INTERVAL = 0.2


class Console:
    """``serve_console`` on its own event loop, with free ports and short intervals."""

    def __init__(self, name_server: str, **given: Any) -> None:
        self.settings = ConsoleSettings(name_server, port=0, **{"interval": INTERVAL, **given})
        self._ready = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        self._error: BaseException | None = None
        self.url = ""
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()
        assert self._ready.wait(WAIT)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        await serve_console(self.settings, self._begun, stop.wait())

    def _begun(self, address: str) -> None:
        self.url = address
        self._ready.set()

    def close(self) -> None:
        self._stop()
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


class Page:
    """The requests of a page's scripts: queries and changes, with the session's token."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.http = httpx.Client(base_url=console.url, timeout=WAIT)
        self.csrf = self.http.get("/api/session").json()["csrf"] or ""

    def get(self, path: str, status: int = 200, **query: Any) -> Any:
        return self._value(self.http.get(path, params=query), status)

    def post(self, path: str, body: dict[str, Any] | None = None, status: int = 200) -> Any:
        return self.change("POST", path, body, status)

    def find(self, topic: str, status: int = 200, **asked: Any) -> Any:
        """A search by time: one page."""
        return self.post("/api/messages/search", {"topic": topic, **asked}, status)

    def delete(self, path: str, body: dict[str, Any] | None = None, status: int = 200) -> Any:
        return self.change("DELETE", path, body, status)

    def change(self, method: str, path: str, body: dict[str, Any] | None, status: int) -> Any:
        response = self.http.request(method, path, json=body or {}, headers={"X-CSRF-Token": self.csrf})
        return self._value(response, status)

    @staticmethod
    def _value(response: httpx.Response, status: int) -> Any:
        assert response.status_code == status, response.text
        value = response.json()
        if status >= 400:
            assert set(value["error"]) == {"code", "text", "remedy", "response"}
            assert "Traceback" not in response.text
            return value["error"]
        return value


@contextmanager
def page_of(name_server: str, **given: Any) -> Iterator[Page]:
    """A page of a console of its own."""
    console = Console(name_server, **given)
    try:
        page = Page(console)
        with closing(page.http):
            yield page
    finally:
        console.close()


def eventually(ask: Callable[[], Any], is_right: Callable[[Any], bool]) -> Any:
    """Repeat a request until its response is as expected."""
    return until(lambda: (found,) if is_right(found := ask()) else None)[0]


SCRIPT = "<script>window.harm = 1</script><img src=x onerror='window.harm = 1'>"


def fill(cluster: LocalCluster) -> None:
    """Topics with messages, groups with lag, dead letters."""
    cluster.create_topic("orders", 4)
    cluster.create_topic("payments", 2)
    cluster.create_topic("empty", 1)
    cluster.create_topic("%DLQ%billing", 1)
    cluster.create_topic("%RETRY%billing", 1)
    for group in ("billing", "etl"):
        cluster.create_group(group)
    address = cluster.name_server
    with Producer("seed", name_server=address) as producer, Reader(address) as reader:
        for i in range(40):
            body = json.dumps({"order": i, "customer": f"Ada {i}", "total": 12.50})
            producer.send(Message.of("orders", body, keys=f"order-{i}", tags="new", properties={"source": "web"}))
        producer.send(Message.of("payments", SCRIPT, keys="harm", properties={SCRIPT: SCRIPT}))
        producer.send(Message.of("payments", bytes(range(256)), keys="raw"))
        for i in range(3):
            properties = {"KEYS": f"dead-{i}", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": f"0123456789ABCDEF{i}"}
            producer.send(Message("%DLQ%billing", f"bad order {i}".encode(), properties))
        for queue in reader.queues("orders"):
            reader.commit_offset("billing", queue, 4)
            reader.commit_offset("etl", queue, 1)


REASON = "it is not JSON from character 0 on"


def spark_dead_letters(cluster: LocalCluster, topic: str, target: str, bodies: list[str]) -> None:
    """Messages of a new topic that a query cannot decode, written to ``target`` as ``badRecords=deadLetter`` does."""
    options = parse_read_options({"nameServer": cluster.name_server, "subscribe": topic}, Scope.READ)
    cluster.create_topic(topic, 1)
    cluster.create_topic(target, 1)
    with Producer("sensors", name_server=cluster.name_server) as producer, Reader(cluster.name_server) as reader:
        for number, body in enumerate(bodies):
            properties = {"source": "north"}
            producer.send(Message.of(topic, body, keys=f"{topic}-{number}", tags="t", properties=properties))
        (queue,) = reader.queues(topic)
        batch = decode_records(reader.pull(queue, 0).records, broker_name=queue.broker_name)
    send_dead_letters(batch, dict.fromkeys(range(len(bodies)), REASON), options, target)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as cluster:
        fill(cluster)
        yield cluster


@pytest.fixture(scope="module")
def console(cluster: LocalCluster) -> Iterator[Console]:
    console = Console(cluster.name_server)
    yield console
    console.close()


@pytest.fixture(scope="module")
def page(console: Console) -> Iterator[Page]:
    page = Page(console)
    yield page
    page.http.close()


@pytest.fixture(scope="module")
def guarded() -> Iterator[LocalCluster]:
    """A cluster with access control."""
    with LocalCluster(in_process=True, **KEYS) as cluster:
        yield cluster


@pytest.fixture
def apache() -> Iterator[AuthCluster]:
    """A cluster with ACL 2.0."""
    cluster = AuthCluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    opened = browser.opened(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def driver(chromium: Chrome) -> Chrome:
    """The browser as a new one is: one empty tab without cookies, size, language or time zone of its own."""
    browser.renew(chromium)
    return chromium


@pytest.fixture
def window(driver: Chrome, console: Console) -> Iterator[Window]:
    """The browser with this console. Its log must have no errors except those of refused requests."""
    from tests.console.window import Window

    window = Window(driver, console)
    window.size(1280, 900)
    yield window
    driver.get("about:blank")
    complaints = [text for text in window.complaints() if "401" not in text and "status of 4" not in text]
    assert not complaints
