"""The search of messages by time: its pages against all messages of a topic, with any budget."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_rocket.client import Admin, Producer
from spark_rocket.client.consume.pull import PullResult, PullStatus
from spark_rocket.console import search
from spark_rocket.console.bodies import preview
from spark_rocket.console.links import SEARCH_THREADS, THREADS
from spark_rocket.errors import ProtocolError, RemotingTimeoutError, RocketError, RunTooLargeError
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.testing import LocalCluster
from tests.console.conftest import WAIT, Page, eventually, page_of
from tests.kit.brokers import Servers

pytestmark = pytest.mark.live

TOPIC = "searched"
COUNT = 300


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Two brokers, and one topic with messages of three tags in queues of unlike length."""
    servers = Servers(tmp_path_factory.mktemp("servers"))
    address = servers.add_name_server()
    try:
        for name in ("broker-a", "broker-b"):
            servers.add_broker(name)
        with Admin(address) as admin, Producer("seed", name_server=address) as producer:
            admin.create_topic(TOPIC, 3)
            admin.create_topic("packed", 1)
            for i in range(COUNT):
                tag = ("red", "blue", "green", None)[min(i % 7, 3)]
                body = json.dumps({"number": i, "word": "needle" if i % 50 == 3 else "hay"})
                producer.send(Message.of(TOPIC, body, tags=tag, keys=f"k{i}"))
            producer.send(Message.of("packed", "a" * 5_000 + "Bärbel" + "b" * 5_000))
        with page_of(address) as page:
            yield page
    finally:
        servers.close()


def place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["broker"], row["queue"], row["offset"]


def every(page: Page, **asked: Any) -> tuple[list[dict[str, Any]], int]:
    """All rows, page by page, and the number of pages."""
    data = page.find(TOPIC, **asked)
    rows, pages = data["rows"], 1
    while data["next"] is not None:
        data = page.find(TOPIC, **asked, cursor=data["next"])
        assert len(data["rows"]) <= asked.get("limit", 50)
        rows += data["rows"]
        pages += 1
        assert pages < 5 * COUNT
    return rows, pages


def number(row: dict[str, Any]) -> int:
    return int(json.loads(row["preview"])["number"])


def test_all_pages_together_have_all_messages_newest_first(page: Page) -> None:
    rows, pages = every(page, limit=37)
    assert pages == -(-COUNT // 37)
    assert sorted(map(number, rows)) == list(range(COUNT))
    assert len(set(map(place, rows))) == COUNT
    stored = [row["stored"] for row in rows]
    assert stored == sorted(stored, reverse=True)
    first = page.find(TOPIC, limit=37)
    assert first["left"] == first["total"] - 37 == COUNT - 37
    assert first["rows"] == rows[:37]


@pytest.mark.parametrize("seed", range(2))
def test_results_do_not_depend_on_budget_and_page_size(page: Page, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    asked: dict[str, Any] = {"tags": chance.choice(["", "red", "blue || green"]), "text": chance.choice(["", "needle"])}
    whole, _ = every(page, **asked, limit=256)
    monkeypatch.setattr(search, "MAX_SCANNED_MESSAGES", chance.randrange(10, 60))
    monkeypatch.setattr(search, "MAX_SCANNED_BYTES", chance.randrange(2_000, 20_000))
    monkeypatch.setattr(search, "WINDOW", chance.randrange(1, 4))
    monkeypatch.setattr(search, "_SHORTEST_FIRST_STEP", chance.randrange(1, 9))
    parts, pages = every(page, **asked, limit=chance.randrange(8, 40))
    assert parts == whole
    assert pages > 1


def test_a_range_of_times_that_ends_before_it_begins(page: Page) -> None:
    assert page.find(TOPIC, 400, begin=2, end=1)["remedy"] == "Give an end that is not before the beginning."


def test_the_filter_by_tag_is_exact_and_accepts_several(page: Page) -> None:
    for tags, wanted in (("red", {"red"}), ("red||blue", {"red", "blue"}), (" green || blue ", {"green", "blue"})):
        rows, _ = every(page, tags=tags)
        assert {row["tags"] for row in rows} == wanted
        assert len(rows) == sum(("red", "blue", "green", None)[min(i % 7, 3)] in wanted for i in range(COUNT))
    assert every(page, tags="re")[0] == []
    assert every(page, tags="RED")[0] == []
    assert page.find(TOPIC, 400, tags="||")["remedy"] == 'Use tags like "A || B", or "*" for all messages.'


def test_the_filter_by_text_reads_decompressed_bodies(page: Page) -> None:
    rows, _ = every(page, text="needle")
    assert [number(row) for row in rows] == [i for i in reversed(range(COUNT)) if i % 50 == 3]
    assert every(page, text="Needle")[0] == []
    assert [number(row) for row in every(page, text="needle", tags="red")[0]] == [
        i for i in reversed(range(COUNT)) if i % 50 == 3 and i % 7 == 0
    ]
    (row,) = page.find("packed", text="Bärbel")["rows"]
    assert re.fullmatch("…a{40}Bärbelb+…", row["preview"])
    assert page.find("packed", 400, text="x" * 1_001)["remedy"] == "Use at most 1,000 characters for text."


def test_a_search_ends_with_its_budget_and_continues(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_SCANNED_MESSAGES", 60)
    data = page.find(TOPIC, text="nowhere at all")
    assert (data["rows"], data["total"]) == ([], COUNT)
    assert 60 <= data["searched"] < COUNT
    assert data["left"] == COUNT - data["searched"]
    rest = page.find(TOPIC, text="nowhere at all", cursor=data["next"])
    assert (rest["total"], rest["left"]) == (data["left"], data["left"] - rest["searched"])
    monkeypatch.setattr(search, "MAX_SCAN_S", -1.0)  # every request has one step at least
    assert page.find(TOPIC, text="nowhere at all")["searched"] > 0


def test_later_messages_do_not_change_pages(page: Page) -> None:
    data = page.find("packed")
    kept = page.find(TOPIC, limit=10)["next"]
    before = page.find(TOPIC, limit=10, cursor=kept)["rows"]
    page.post("/api/messages", {"topic": TOPIC, "body": '{"number": -1}', "tags": "late"})
    assert page.find(TOPIC, limit=10, cursor=kept)["rows"] == before
    assert number(page.find(TOPIC, limit=10)["rows"][0]) == -1
    assert number(page.find(TOPIC, tags="late")["rows"][0]) == -1
    moment = before[0]["stored"]
    between, _ = every(page, begin=before[-1]["stored"], end=moment)
    assert {row["stored"] for row in between} <= set(range(before[-1]["stored"], moment + 1))
    assert set(map(place, before)) <= set(map(place, between))
    assert data["next"] is None


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        [["broker-a", 0, 0]],
        [["broker-a", -1, 0, 5, None]],
        [[1, 0, 0, 5, None]],
        [["broker-a", 0, 0, 2**63, None]],
    ],
)
def test_an_invalid_position(page: Page, cursor: object) -> None:
    assert page.find(TOPIC, 400, cursor=cursor)["text"] == "Invalid position of the search."


def test_a_position_on_an_unavailable_broker_is_returned(page: Page) -> None:
    """The error is shown, and the position is returned to go on from there."""
    lost = ["broker-z", 0, 0, 5, None]
    here = page.find(TOPIC, limit=5)["next"]
    data = page.find(TOPIC, limit=256, cursor=[*here[:1], lost])
    assert data["rows"]
    assert list(data["failed"]) == ["broker-z"]
    assert data["next"] == [lost]


def test_expired_offsets_are_skipped() -> None:
    span = search.Span(MessageQueue(TOPIC, "broker-a", 0), 0, 10)
    span.put(4, [{"offset": 8, "stored": 5}, {"offset": 6, "stored": 4}])
    assert span.to_json() == ["broker-a", 0, 0, 9, 5]
    assert span.take()["offset"] == 8
    assert span.to_json() == ["broker-a", 0, 0, 7, 4]
    assert span.take()["offset"] == 6
    assert span.to_json() == ["broker-a", 0, 0, 4, None]


class FakeReader:
    """One queue with messages from ``low`` on, at a master and at a slave that lags behind."""

    def __init__(self, low: int, high: int, *, slave_end: int = 0, master_at: int = 0) -> None:
        self.low, self.high, self.slave_end, self.master_at = low, high, slave_end, master_at
        self.asked: list[tuple[int, int]] = []

    def pull_async(self, queue: MessageQueue, offset: int, *, max_msgs: int, tags: str) -> Any:
        self.asked.append((offset, max_msgs))
        is_master = len(self.asked) > self.master_at
        high = self.high if is_master else self.slave_end
        if offset >= high:
            result = PullResult(PullStatus.NO_NEW_MSG, offset, self.low, high, memoryview(b""), is_master)
        elif offset < self.low:
            result = PullResult(PullStatus.OFFSET_ILLEGAL, self.low, self.low, high, memoryview(b""), is_master)
        else:
            end = min(offset + max_msgs, offset + 10, high)
            result = PullResult(PullStatus.FOUND, end, self.low, high, memoryview(b"x" * (end - offset)), is_master)
        return SimpleNamespace(result=lambda: result)


def fake_messages(found: PullResult, queue: MessageQueue, start: int, tags: object) -> list[MessageExt]:
    """``len(records)`` messages up to the next offset; a message is stored every millisecond."""
    offsets = range(found.next_offset - len(found.records), found.next_offset)
    return [
        MessageExt(queue.topic, b"x", {}, broker_name="b", queue_offset=offset, store_timestamp=1_000 + offset)
        for offset in offsets
    ]


def searched(reader: FakeReader, low: int, high: int, begin_ms: int = 0) -> search.Search:
    def row(message: MessageExt, at: int) -> dict[str, Any]:
        return {"offset": message.queue_offset, "stored": message.store_timestamp}

    wanted = search.SearchFilter.of(begin_ms, 2**62, "", "")
    return search.Search(reader, [search.Span(MessageQueue("t", "b", 0), low, high)], wanted, row)  # type: ignore[arg-type]


def offsets_of(one: search.Search) -> list[int]:
    return [row["offset"] for row in one.page(1_000)]


def test_expired_offsets_and_old_messages_end_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "messages_of", fake_messages)
    expired = searched(FakeReader(900, 1_000), 0, 1_000)
    assert offsets_of(expired) == [*range(999, 899, -1)]
    assert (expired.left, expired.cursor()) == (0, [])
    reader = FakeReader(0, 1_000)  # a slave's queue: the first offset of the time range is unknown
    late = searched(reader, 0, 1_000, begin_ms=1_950)
    assert offsets_of(late) == [*range(999, 949, -1)]
    assert (late.left, min(at for at, _ in reader.asked) > 800) == (0, True)


def test_a_slave_that_lags_behind_hides_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "messages_of", fake_messages)
    asked_again = searched(FakeReader(0, 100, slave_end=20, master_at=1), 0, 100)
    assert offsets_of(asked_again) == [*range(99, -1, -1)]
    assert not asked_again.failed
    only_slave = searched(FakeReader(0, 100, slave_end=20, master_at=1_000), 0, 100)
    assert offsets_of(only_slave) == []
    assert "does not have offset" in only_slave.failed["b"].message
    assert only_slave.cursor() == [["b", 0, 0, 100, None]]


def test_bodies_that_are_too_large_together_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(found: PullResult, *given: Any) -> list[MessageExt]:
        if len(found.records) > 1:
            raise RunTooLargeError("Too large.")
        return fake_messages(found, *given)

    monkeypatch.setattr(search, "messages_of", decoded)
    one = searched(FakeReader(0, 30), 0, 30)
    assert offsets_of(one) == [*range(29, -1, -1)]
    assert (one.messages, one.failed) == (30, {})


def test_a_message_that_cannot_be_decoded_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(found: PullResult, *given: Any) -> list[MessageExt]:
        messages = fake_messages(found, *given)
        if any(message.queue_offset == 17 for message in messages):
            raise ProtocolError("A zlib body is truncated.", remedy="Read it without decompressing.")
        return messages

    monkeypatch.setattr(search, "messages_of", decoded)
    reader = FakeReader(0, 30)
    one = searched(reader, 0, 30)
    assert offsets_of(one) == [*range(29, 17, -1), *range(16, -1, -1)]
    assert (one.messages, one.left, one.failed) == (30, 0, {})
    assert one.unreadable["b"].message == "The message at offset 17 of queue 0 is unreadable: A zlib body is truncated."
    assert reader.asked[-1][1] > 1  # after it, many at a time again


class SlowBroker:
    """An admin and a reader of a topic with 20 queues on broker ``b``, which does not respond, nor does its slave."""

    def __init__(self, *, fails_at_once: bool) -> None:
        self.fails_at_once = fails_at_once
        self.queues = [MessageQueue("t", name, number) for name in ("a", "b") for number in range(20)]
        self.asked: list[str] = []

    def offsets(self, _: str, *, failed: dict[str, RocketError]) -> dict[MessageQueue, tuple[int, int]]:
        if self.fails_at_once:
            failed["b"] = RemotingTimeoutError("No response.")
        return {queue: (0, 10) for queue in self.queues if queue.broker_name not in failed}

    def offset_for_time(self, queue: MessageQueue, _: int) -> int:
        if queue.broker_name == "b":
            self.asked.append("master")
            raise RemotingTimeoutError("No response.")
        return 5

    def refresh(self, _: str) -> list[MessageQueue]:
        return self.queues

    def slave_max_offset(self, queue: MessageQueue) -> int | None:
        self.asked.append("slave")
        return None


@pytest.mark.parametrize("fails_at_once", [True, False])
def test_a_broker_that_does_not_respond_is_asked_once_and_not_for_every_queue(
    monkeypatch: pytest.MonkeyPatch, fails_at_once: bool
) -> None:
    monkeypatch.setattr(search, "WINDOW", 1)
    broker: Any = SlowBroker(fails_at_once=fails_at_once)
    spans, failed = search.first_spans(broker, broker, "t", 7, None)
    assert [(span.queue.broker_name, span.low, span.high) for span in spans] == [("a", 5, 10)] * 20
    assert list(failed) == ["b"]
    assert broker.asked == (["slave"] if fails_at_once else ["master", "slave"])


def test_a_broker_that_the_name_servers_forget_is_reported() -> None:
    with LocalCluster(brokers=2) as cluster:
        cluster.create_topic("halves", 1)
        with Producer("seed", name_server=cluster.name_server) as producer:
            for _ in range(4):
                producer.send(Message.of("halves", "x"))
        with page_of(cluster.name_server) as page:
            eventually(lambda: page.get("/api/overview"), lambda data: len(data["brokers"]) == 2)
            assert page.find("halves")["failed"] == {}
            first, second = cluster.brokers
            second.stop()

            def trouble(data: Any) -> Any:
                return data["failed"].get(second.broker_name, {}).get("code") == "BROKER_GONE"

            data = eventually(lambda: page.find("halves"), trouble)
            assert {row["broker"] for row in data["rows"]} == {first.broker_name}


def test_a_search_by_key_has_the_messages_of_the_brokers_that_respond(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Admin.query_messages

    def query(self: Admin, *given: Any, failed: dict[str, RocketError], **more: Any) -> list[MessageExt]:
        failed["broker-z"] = RemotingTimeoutError("No response.")
        return real(self, *given, **more)

    monkeypatch.setattr(Admin, "query_messages", query)
    data = page.get("/api/messages", topic=TOPIC, by="key", key="k7")
    assert [row["keys"] for row in data["rows"]] == ["k7"]
    assert data["failed"]["broker-z"]["text"] == "No response."


def test_searches_do_not_occupy_the_threads_of_other_pages(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Semaphore(0), threading.Event()

    def slow(*_: object) -> list[object]:
        begun.release()
        ended.wait(WAIT)
        return []

    monkeypatch.setattr(search.Search, "page", slow)
    pages = [Page(page.console) for _ in range(THREADS + 1)]
    threads = [threading.Thread(target=one.find, args=(TOPIC,)) for one in pages]
    try:
        for thread in threads:
            thread.start()
        for _ in range(SEARCH_THREADS):
            assert begun.acquire(timeout=WAIT)
        eventually(lambda: page.get("/api/health")["waiting"], lambda waiting: waiting > THREADS)
        assert page.get(f"/api/topics/{TOPIC}")["topic"]["name"] == TOPIC
        assert not ended.is_set()
    finally:
        ended.set()
        for thread in threads:
            thread.join(WAIT)
        for one in pages:
            one.http.close()


class CountedReads(bytes):
    """Counts the bytes that are read one by one."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        CountedReads.reads += isinstance(place, int)
        return super().__getitem__(place)


def test_a_preview_looks_for_the_start_of_a_character_in_few_bytes() -> None:
    assert preview(CountedReads(b"\x80" * 5_000 + b"here"), 5_000).startswith("5,004 bytes: ")
    assert CountedReads.reads <= 4


def test_a_preview_around_a_place() -> None:
    body = ("ä" * 200 + "here" + "ö" * 20).encode()
    assert preview(body, body.find(b"here")) == "…" + "ä" * 20 + "here" + "ö" * 20
    assert preview(body).startswith("ää")
