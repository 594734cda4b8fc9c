"""What works with the Remoting port of Apache's proxy as ``nameServer``, what falls back and what is a named error.

``MATRIX`` is the table of the guide: a test compares both.
"""

from __future__ import annotations

import queue
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_rocket import read_arrow
from spark_rocket.cli import main
from spark_rocket.client import Admin, LitePullConsumer, Producer, PushConsumer, Reader, TransactionProducer
from spark_rocket.client.consume.listeners import ConsumeConcurrentlyStatus, ConsumeFromWhere, ConsumeOrderlyStatus
from spark_rocket.client.send.request_reply import create_reply_message
from spark_rocket.client.send.transaction import LocalTransactionState, TransactionListener
from spark_rocket.datasource.exactly_once.driver import check_topics, commit_epoch
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.sink_brokers import brokers_for
from spark_rocket.datasource.exactly_once.staging import stage_rows
from spark_rocket.datasource.options.parse import parse_read_options, parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.plan.cluster import Cluster
from spark_rocket.datasource.plan.planner import StreamPlanner
from spark_rocket.datasource.views.views import VIEWS, ViewReader, checked_view_options
from spark_rocket.errors import ExactlyOnceError, NameServerUnreachableError, ProxyUnsupportedError, RocketError
from spark_rocket.model import Message, MessageExt
from spark_rocket.testing import LocalCluster
from tests.kit.remoting_proxy import CODES, RemotingProxy
from tests.kit.waiting import until

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
ROWS = {f"row {number}" for number in range(40)}
WORKS, FALLBACK, ERROR = "works", "fallback", "error"


@dataclass(frozen=True)
class Place:
    """A proxy, and the name server behind it."""

    proxy: RemotingProxy
    cluster: LocalCluster

    def options(self, **more: str) -> dict[str, Any]:
        return {"nameServer": self.proxy.address, "retryTimeout": "0", **more}


def _colour(row: str) -> str:
    return "red" if row.endswith("1") else "blue"


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with LocalCluster(brokers=2, config={"transactionTimeOut": 500, "transactionCheckInterval": 500}) as cluster:
        names = ("orders", "paid", "once", "ledger", "staging", "refused", "questions", "delayed", "invalid", "checked")
        for topic in (*names, "%RETRY%again"):  # else its queue of the second broker may be found after 40 s only
            cluster.create_topic(topic, 1)
        with Admin(cluster.name_server) as admin:
            admin.create_topic("committed", 1, broker="broker-b")
        with Producer("shop", name_server=cluster.name_server) as producer:
            queues = producer.queues("orders")
            for number, row in enumerate(sorted(ROWS)):
                message = Message.of("orders", row, keys=row.replace(" ", "-"), properties={"colour": _colour(row)})
                producer.send(message, queue=queues[number % len(queues)])
        with RemotingProxy(cluster) as proxy:
            yield Place(proxy, cluster)


def read(place: Place, **more: str) -> set[str]:
    batches = read_arrow("orders", **place.options(**more))
    return {body.decode() for batch in batches for body in batch.column("body").to_pylist()}


def batch_read(place: Place) -> None:
    assert read(place) == ROWS


def start_at_a_time(place: Place) -> None:
    assert read(place, startingTimestamp="2020-01-01T00:00:00Z") == ROWS


def look_up(place: Place) -> None:
    assert read(place, lookupKeys="row-7") == {"row 7"}


def planned(place: Place, **more: str) -> int:
    options = parse_read_options(
        place.options(subscribe="orders", startingOffsets="earliest", **more), Scope.READ_STREAM
    )
    end = StreamPlanner(Cluster(options), options).next_end(None, None)
    assert end is not None
    return sum(end.ends.values())


def stream_read(place: Place) -> None:
    assert planned(place) == len(ROWS)


def limit_by_bytes(place: Place) -> None:
    """16 messages of each queue, whatever their size."""
    assert planned(place, maxBytesPerTrigger="1") == 32


def group_offsets(place: Place) -> None:
    options = parse_read_options(place.options(subscribe="orders", consumerGroup="pipeline"), Scope.READ_STREAM)
    cluster = Cluster(options)
    queues = cluster.route("orders").readable
    ends = cluster.max_offsets(queues)
    assert cluster.commit_offsets("pipeline", ends) == {}
    with Reader(place.proxy.address) as reader:
        assert {queue: reader.committed_offset("pipeline", queue) for queue in queues} == ends


def write(place: Place) -> None:
    with Producer("shop", name_server=place.proxy.address) as producer:
        for queue in producer.queues("paid"):
            producer.send(Message.of("paid", "1"), queue=queue)
    with Admin(place.cluster.name_server) as admin:
        assert [high for _, high in admin.offsets("paid").values()] == [1, 1]


def once(place: Place, **more: str) -> None:
    given = place.options(
        topic="once", deliveryGuarantee="exactlyOnce", gracePeriod="2s", requestTimeout="1s", ledgerTopic="ledger",
        stagingTopic="staging", **more,
    )  # fmt: skip
    options = parse_write_options(given, Scope.WRITE_STREAM)
    check_topics(options)
    frame = pa.record_batch({"body": ["1", "2", "3"]})
    staged = stage_rows(iter([frame]), brokers_for(options), options, Epoch("query", 0))
    for _ in range(2):
        commit_epoch(options, [staged], is_stream=True)


def once_with_a_place(place: Place) -> None:
    once(place, ledgerBroker="broker-a")
    with Admin(place.cluster.name_server) as admin:
        assert sum(high for _, high in admin.offsets("once").values()) == 3


def once_without_a_place(place: Place) -> None:
    with pytest.raises(ExactlyOnceError, match=r"NO_ENTRIES.*ledgerBroker") as refused:
        once(place)
    assert "updateKvConfig" not in str(refused.value)
    assert "kv set" not in str(refused.value)
    raise refused.value


FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
_WAIT_S = 60.0


def pushed(place: Place) -> None:
    """In turn and in order of each queue: the latter locks its queues."""
    for number, kind in enumerate(("listener", "orderly")):
        found: queue.SimpleQueue[str] = queue.SimpleQueue()

        def listen(messages: list[MessageExt], _: object, *, kind: str = kind, found: Any = found) -> Any:
            for message in messages:
                found.put(message.body.decode())
            status = ConsumeConcurrentlyStatus if kind == "listener" else ConsumeOrderlyStatus
            return status["CONSUME_SUCCESS" if kind == "listener" else "SUCCESS"]

        group: dict[str, Any] = {"name_server": place.proxy.address, "consume_from_where": FIRST, kind: listen}
        with PushConsumer(f"push-{number}", **group) as consumer:
            consumer.subscribe("orders")
            consumer.start()
            assert {found.get(timeout=_WAIT_S) for _ in ROWS} == ROWS


def pulled_by_a_group(place: Place) -> None:
    found: set[str] = set()

    def all_rows() -> bool:
        found.update(message.body.decode() for message in consumer.poll())
        return found == ROWS

    with LitePullConsumer("lite", name_server=place.proxy.address, consume_from_where=FIRST) as consumer:
        consumer.subscribe("orders")
        consumer.start()
        assert until(all_rows)
        consumer.commit()
    with Reader(place.cluster.name_server) as reader:
        ends = {one: reader.max_offset(one) for one in reader.queues("orders")}
        assert {one: reader.committed_offset("lite", one) for one in ends} == ends


def asked_for_a_reply(place: Place) -> None:
    """A reply is a request of its own, which the proxy lacks: its sender is told."""
    asked: queue.SimpleQueue[MessageExt] = queue.SimpleQueue()

    def listen(messages: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        asked.put(messages[0])
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with (
        PushConsumer("replies", listen, name_server=place.proxy.address, consume_from_where=FIRST) as consumer,
        Producer("shop", name_server=place.proxy.address) as producer,
    ):
        consumer.subscribe("questions")
        consumer.start()
        reply = producer.request_async(Message.of("questions", "1"), timeout=_WAIT_S)
        try:
            producer.send(create_reply_message(asked.get(timeout=_WAIT_S), b"2"))
        finally:
            reply.cancel()


def sent_back(place: Place) -> None:
    """A message that the listener refuses is delivered again."""
    found: queue.SimpleQueue[int] = queue.SimpleQueue()

    def listen(messages: list[MessageExt], context: Any) -> ConsumeConcurrentlyStatus:
        context.delay_level_when_next_consume = 1
        for message in messages:
            found.put(message.reconsume_times)
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    with PushConsumer("again", listen, name_server=place.proxy.address, consume_from_where=FIRST) as consumer:
        consumer.subscribe("refused")
        consumer.start()
        with Producer("shop", name_server=place.proxy.address) as producer:
            producer.send(Message.of("refused", "1"))
        assert [found.get(timeout=_WAIT_S) for _ in range(2)] == [0, 1]


class Commits(TransactionListener):
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW


def arrived(place: Place, topic: str) -> list[bytes]:
    with Reader(place.cluster.name_server) as reader:
        queues = reader.queues(topic)
        return until(lambda: [message.body for one in queues for message in reader.messages(one, 0)])


def transaction(place: Place) -> None:
    with TransactionProducer("transact", Commits(), name_server=place.proxy.address) as producer:
        producer.send_in_transaction(Message.of("committed", "1"))
    assert arrived(place, "committed") == [b"1"]


class CommitsLater(Commits):
    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


def checked_transaction(place: Place) -> None:
    """The proxy's check names no broker; the decision must reach the one that asked."""
    with TransactionProducer("checks", CommitsLater(), name_server=place.proxy.address) as producer:
        brokers = {
            producer.send_in_transaction(Message.of("checked", str(number))).queue.broker_name for number in "12"
        }
        assert brokers == {"broker-a", "broker-b"}
        assert until(lambda: len(found := arrived(place, "checked")) == 2 and sorted(found) == [b"1", b"2"])


def delayed(place: Place) -> None:
    with Producer("shop", name_server=place.proxy.address) as producer:
        producer.send(Message.of("delayed", "1", delay_ms=1))
        kept = producer.send(Message.of("delayed", "2", delay_seconds=3_600))
        assert kept.recall_handle is not None
        producer.recall_message("delayed", kept.recall_handle)
    assert arrived(place, "delayed") == [b"1"]


def filtered(place: Place) -> None:
    assert read(place, sqlFilter="colour = 'red'") == {row for row in ROWS if row.endswith("1")}


def dead_letters(place: Place) -> None:
    """``orders`` has no body that is a number."""
    typed = {"bodyFormat": "json", "badRecords": "deadLetter", "deadLetterTopic": "invalid"}
    schema = pa.schema([("n", pa.int32())])
    assert read_arrow("orders", schema=schema, **place.options(**typed)).read_all().num_rows == 0
    with Admin(place.cluster.name_server) as admin:
        assert sum(high for _, high in admin.offsets("invalid").values()) == len(ROWS)


def view(name: str, **more: str) -> Callable[[Place], None]:
    def rows(place: Place) -> None:
        shared = {"view": name, "nameServer": place.proxy.address, **more}
        reader = ViewReader(checked_view_options(shared), VIEWS[name].schema)
        for partition in reader.partitions():
            list(reader.read(partition))

    return rows


def pattern(place: Place) -> None:
    list(read_arrow(None, **place.options(subscribePattern="ord.*")))


@dataclass(frozen=True)
class Row:
    """A row of the guide."""

    feature: str
    outcome: str
    run: Callable[[Place], None]


MATRIX = (
    Row("`subscribe`, batch read", WORKS, batch_read),
    Row("`subscribe`, stream", WORKS, stream_read),
    Row("`startingTimestamp`", WORKS, start_at_a_time),
    Row("`consumerGroup`", WORKS, group_offsets),
    Row("write", WORKS, write),
    Row("`deliveryGuarantee=exactlyOnce` with `ledgerBroker`", WORKS, once_with_a_place),
    Row("`PushConsumer`", WORKS, pushed),
    Row("`PushConsumer`, retries", WORKS, sent_back),
    Row("`LitePullConsumer`", WORKS, pulled_by_a_group),
    Row("`TransactionProducer`", WORKS, transaction),
    Row("`TransactionProducer`, checks", WORKS, checked_transaction),
    Row("`delay_ms`, `recall_message`", WORKS, delayed),
    Row("`sqlFilter`", WORKS, filtered),
    Row("`badRecords=deadLetter`", WORKS, dead_letters),
    Row("`view=dlq`", WORKS, view("dlq", consumerGroup="again")),
    Row("`lookupKeys`", FALLBACK, look_up),
    Row("`maxBytesPerTrigger`", FALLBACK, limit_by_bytes),
    Row("`deliveryGuarantee=exactlyOnce` without `ledgerBroker`", ERROR, once_without_a_place),
    Row("`request`", ERROR, asked_for_a_reply),
    Row("`subscribePattern`", ERROR, pattern),
    Row("`view=messages`", ERROR, view("messages", subscribe="orders", key="row-7")),
    Row("`view=topics`", ERROR, view("topics")),
    Row("`view=brokers`", ERROR, view("brokers")),
    Row("`view=lag`", ERROR, view("lag", consumerGroup="pipeline")),
)


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.feature)
def test_the_matrix(place: Place, row: Row) -> None:
    if row.outcome != ERROR:
        row.run(place)
        return
    with pytest.raises(RocketError, match="proxy") as refused:
        row.run(place)
    assert isinstance(refused.value, ProxyUnsupportedError | ExactlyOnceError)
    assert "address" in refused.value.remedy, "it names what to do"


def test_every_request_names_its_broker(place: Place) -> None:
    """Of all tests before: what is refused is refused by its code."""
    batch_read(place)
    refused = {request.code for request in place.proxy.refused}
    assert not refused & set(CODES)


@pytest.mark.parametrize("verb", [["topic", "list"], ["group", "lag", "pipeline"], ["cluster", "list"]])
def test_commands_name_the_proxy(place: Place, verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb, "-n", place.proxy.address]) != 0
    shown = capsys.readouterr().err
    assert re.search(r"is a proxy, which does not forward .*address of a name server", shown, re.S), shown


@pytest.mark.parametrize("page", ["docs/guides/apache-cluster.md", "docs/guides/apache-cluster.zh.md"])
def test_the_guide_has_the_matrix(page: str) -> None:
    words = {"works": WORKS, "可用": WORKS, "fallback": FALLBACK, "降级": FALLBACK, "error": ERROR, "报错": ERROR}
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = re.findall(rf"^\| (.+?) \| ({'|'.join(words)}) \| (?:.+ )?\|$", text, re.M)
    found = [(sorted(re.findall(r"`[^`]+`", feature)), words[outcome]) for feature, outcome in rows]
    assert found == [(sorted(re.findall(r"`[^`]+`", row.feature)), row.outcome) for row in MATRIX]


@pytest.mark.parametrize(
    ("answer", "protocol", "place"),
    [
        (b"\0\0\x06\4\0\0\0\0\0" + b"\0\3\x7f\xff\xff\xff", "speaks HTTP/2", "gRPC port"),
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "speaks HTTP,", "web server, such as a console"),
    ],
)
def test_ports_of_other_protocols_are_recognised(answer: bytes, protocol: str, place: str) -> None:
    """They answer any connection, with an HTTP/2 frame (SETTINGS) or an error of HTTP, and close it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                peer.sendall(answer)
                peer.recv(1)
                peer.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with Reader(address) as reader, pytest.raises(NameServerUnreachableError) as refused:
            reader.queues("orders")
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert protocol in refused.value.message
    assert place in refused.value.remedy
    assert "tls=true" not in refused.value.remedy


def test_the_real_grpc_port_is_recognised(place: Place) -> None:
    with Reader(place.cluster.grpc_endpoint) as reader, pytest.raises(NameServerUnreachableError, match="HTTP/2"):
        reader.queues("orders")
