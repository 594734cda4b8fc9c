"""SendMessage: messages as readers of the classic protocol find them, their queues, and refusals."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.broker.broker_parts import BrokerParts
from spark_rocket.client import Producer, Reader
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.protocol.record.compression import compress_body
from spark_rocket.proxy import definitions
from spark_rocket.proxy.method_types import MAX_MESSAGES
from spark_rocket.proxy.methods.sending import SendFamily, queue_of_group
from spark_rocket.proxy.server import ProxyServer
from spark_rocket.store.results import PutResult, PutStatus
from spark_rocket.testing import LocalCluster
from tests.broker.wire import BROKER_PROPERTIES, Wire
from tests.kit.clock import Clock
from tests.kit.waiting import until_async
from tests.proxy.brokers import change_topic
from tests.proxy.caller import Caller, resource
from tests.proxy.direct import endpoint
from tests.proxy.outgoing import Type, message, send, sent

pytestmark = pytest.mark.live

Code, Digest, Encoding = definitions.Code, definitions.DigestType, definitions.Encoding
BORN = 1_795_000_000_000


@pytest.fixture(scope="module")
def reader(cluster: LocalCluster) -> Iterator[Reader]:
    with Reader(cluster.name_server) as reader:
        yield reader


def stored(wire: Wire, topic: str, queues: int = 4) -> list[MessageExt]:
    """All stored messages of a topic, queue by queue."""
    return [found for queue_id in range(queues) for found in wire.messages(topic, queue_id=queue_id)]


# --- what is stored ---------------------------------------------------------------------------------------------


def test_a_message_is_read_by_the_classic_client(client: Caller, reader: Reader, wire: Wire, topic: str) -> None:
    (entry,) = sent(
        client,
        message(
            topic,
            b"caf\xc3\xa9",
            {"kind": "order", "näme": "wért"},
            message_id="01AB",
            tag="paid",
            keys=["k1", "k2"],
            trace_context="00-4bf92f35-01",
            queue_id=3,
            born_ms=BORN + 1,
        ),
    )
    assert (entry.message_id, entry.transaction_id, entry.offset, entry.recall_handle) == ("01AB", "01AB", 0, "")
    (found,) = stored(wire, topic)
    (read,) = reader.messages(MessageQueue(topic, "broker-a", found.queue_id), 0)
    for one in (found, read):
        assert one.body == b"caf\xc3\xa9"
        assert (one.msg_id, one.tags, one.keys) == ("01AB", "paid", "k1 k2")
        assert (one.born_timestamp, one.sys_flag, one.reconsume_times, one.flag) == (BORN + 1, 0, 0, 0)
        assert (
            one.properties.items()
            >= {
                "kind": "order",
                "näme": "wért",
                "__BORNHOST": "app-1",
                "TRACE_CONTEXT": "00-4bf92f35-01",
            }.items()
        )
    assert found.born_host[0] == "127.0.0.1"


def test_a_bare_message_has_nothing_that_it_was_not_given(client: Caller, wire: Wire, topic: str) -> None:
    bare = definitions.Message(topic=resource(topic), body=b"x")
    bare.system_properties.message_id = "bare"
    sent(client, bare)
    (found,) = stored(wire, topic)
    assert found.properties == {"UNIQ_KEY": "bare", **BROKER_PROPERTIES}
    assert found.born_timestamp == found.store_timestamp or abs(found.born_timestamp - found.store_timestamp) < 60_000


def test_a_request_of_many_is_one_batch(client: Caller, wire: Wire, topic: str) -> None:
    messages = [message(topic, b"%d" % i, {"i": str(i)}, tag="t", keys=[f"k{i}"]) for i in range(40)]
    entries = sent(client, *messages)
    assert [entry.offset for entry in entries] == list(range(40))
    assert [entry.message_id for entry in entries] == [one.system_properties.message_id for one in messages]
    found = stored(wire, topic)
    queue_id = found[0].queue_id
    found += wire.messages(topic, 32, queue_id=queue_id)
    assert [(one.queue_id, one.body, one.keys, one.properties["i"]) for one in found] == [
        (queue_id, b"%d" % i, f"k{i}", str(i)) for i in range(40)
    ]
    assert [one.msg_id for one in found] == [entry.message_id for entry in entries]
    assert {one.born_timestamp for one in found} == {BORN}
    assert "BORN_TIMESTAMP" not in found[0].properties


def test_born_times_that_differ_in_a_batch(client: Caller, wire: Wire, topic: str) -> None:
    sent(client, *[message(topic, born_ms=BORN + i) for i in range(3)])
    assert [one.properties["BORN_TIMESTAMP"] for one in stored(wire, topic)] == [str(BORN + i) for i in range(3)]


def test_a_namespace_is_a_part_of_the_topic(cluster: LocalCluster, client: Caller, wire: Wire) -> None:
    topic = cluster.create_topic("shop%Orders", 1)
    sent(client, message("Orders", namespace="shop"))
    assert len(wire.messages(topic)) == 1


def test_messages_of_both_kinds_of_client_are_equal(
    cluster: LocalCluster, client: Caller, reader: Reader, wire: Wire
) -> None:
    topic = cluster.create_topic("Both", 1)
    properties = {"kind": "order"}
    with Producer("GID-both", name_server=cluster.name_server) as producer:
        producer.send(Message(topic, b"body", {"TAGS": "t", "KEYS": "a b", **properties}))
    sent(client, message(topic, b"body", properties, tag="t", keys=["a", "b"]))
    classic, ours = reader.messages(MessageQueue(topic, "broker-a", 0), 0)
    assert (classic.body, classic.tags, classic.keys, classic.sys_flag) == (ours.body, ours.tags, ours.keys, 0)
    # What each client adds by itself.
    assert set(classic.properties) - set(ours.properties) <= {"WAIT"}
    assert set(ours.properties) - set(classic.properties) <= {"__BORNHOST"}


# --- queues -----------------------------------------------------------------------------------------------------


def test_queues_in_turn_whatever_the_client_names(client: Caller, wire: Wire, topic: str) -> None:
    for _ in range(8):
        sent(client, message(topic, queue_id=0))
    assert [one.queue_id for one in stored(wire, topic)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_group_has_its_own_queue(client: Caller, wire: Wire, topic: str) -> None:
    for i in range(6):
        sent(client, message(topic, b"%d" % i, message_group="user-7", message_type=Type.FIFO))
    sent(client, *[message(topic, b"%d" % i, message_group="user-7", message_type=Type.FIFO) for i in (6, 7)])
    found = stored(wire, topic)
    assert [one.body for one in found] == [b"%d" % i for i in range(8)]
    assert {one.queue_id for one in found} == {queue_of_group("user-7", 4)}
    assert {one.properties["__SHARDINGKEY"] for one in found} == {"user-7"}


def test_only_queues_to_write_to(client: Caller, wire: Wire, topic: str, proxy: ProxyServer) -> None:
    assert proxy.methods is not None
    change_topic(wire, topic, reads=4, writes=2)
    for _ in range(4):
        sent(client, message(topic))
    assert [one.queue_id for one in stored(wire, topic)] == [0, 0, 1, 1]
    for more in ({"writes": 0}, {"perm": 4}):
        change_topic(wire, topic, **more)  # type: ignore[arg-type]
        proxy.methods.cluster.topics.forget(topic)  # as if it had been known for half a minute
        assert send(client, message(topic)).status.code == Code.FORBIDDEN


# --- bodies -----------------------------------------------------------------------------------------------------

TEXT = b"to be packed " * 1000


@pytest.mark.parametrize(
    ("packed", "flag"),
    [
        (zlib.compress(TEXT), 1),  # what the Java client calls GZIP
        (gzip.compress(TEXT, mtime=0), 1),
        (gzip.compress(TEXT[:5000], mtime=0) + gzip.compress(TEXT[5000:], mtime=0), 1),
        (compress_body(TEXT, kind="lz4"), 0x101),
        (compress_body(TEXT, kind="zstd"), 0x201),
    ],
    ids=["zlib", "gzip", "gzip twice", "lz4", "zstd"],
)
def test_compressed_bodies_reach_classic_readers_decompressed(
    client: Caller, reader: Reader, wire: Wire, topic: str, packed: bytes, flag: int
) -> None:
    sent(client, message(topic, packed, body_encoding=Encoding.GZIP))
    (found,) = stored(wire, topic)
    (read,) = reader.messages(MessageQueue(topic, "broker-a", found.queue_id), 0)
    assert read.body == TEXT
    assert read.sys_flag & 0x701 == flag


def test_a_batch_of_compressed_bodies(client: Caller, reader: Reader, wire: Wire, topic: str) -> None:
    sent(client, *[message(topic, zlib.compress(b"%d" % i), body_encoding=Encoding.GZIP) for i in range(3)])
    (queue_id,) = {one.queue_id for one in stored(wire, topic)}
    read = reader.messages(MessageQueue(topic, "broker-a", queue_id), 0)
    assert [one.body for one in read] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        ("CRC32", f"{zlib.crc32(b'hello'):X}"),
        ("CRC32", f"{zlib.crc32(b'hello'):08x}"),
        ("MD5", hashlib.md5(b"hello").hexdigest().upper()),
        ("SHA1", hashlib.sha1(b"hello").hexdigest()),
        ("MD5", ""),
        ("DIGEST_TYPE_UNSPECIFIED", "whatever"),
    ],
)
def test_matching_digests(client: Caller, topic: str, kind: str, checksum: str) -> None:
    sent(client, message(topic, body_digest=definitions.Digest(type=Digest.Value(kind), checksum=checksum)))


# --- delays -----------------------------------------------------------------------------------------------------


def test_a_delayed_message_can_be_recalled(client: Caller, wire: Wire, parts: BrokerParts, topic: str) -> None:
    due = parts.clock() + 3_600_000
    (entry,) = sent(client, message(topic, message_type=Type.DELAY, deliver_ms=due))
    assert entry.recall_handle
    assert stored(wire, topic) == []
    answer = client.call("RecallMessage", topic=resource(topic), recall_handle=entry.recall_handle)
    assert (answer.status.code, answer.message_id) == (Code.OK, entry.message_id)


def test_a_past_time_delivers_at_once(client: Caller, wire: Wire, parts: BrokerParts, topic: str) -> None:
    for ago in (1, 10_000, parts.clock(), parts.clock() + 5_000):
        (entry,) = sent(client, message(topic, message_type=Type.DELAY, deliver_ms=parts.clock() - ago))
        assert entry.recall_handle == ""
    assert len(stored(wire, topic)) == 4


@pytest.mark.parametrize("days", [1.01, 40_000])
def test_a_time_too_far_away(client: Caller, wire: Wire, parts: BrokerParts, topic: str, days: float) -> None:
    late = parts.clock() + int(days * 86_400_000)
    answer = send(client, message(topic, message_type=Type.DELAY, deliver_ms=late))
    assert answer.status.code == Code.ILLEGAL_DELIVERY_TIME
    assert "86400000" in answer.status.message


def test_invalid_recalls(
    client: Caller, parts: BrokerParts, topic: str, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = parts.clock() + 3_600_000
    (entry,) = sent(client, message(topic, message_type=Type.DELAY, deliver_ms=due))
    other = cluster.create_topic(f"{topic}-other")

    def recall(of: str = topic, handle: str = entry.recall_handle) -> Any:
        return client.call("RecallMessage", topic=resource(of), recall_handle=handle).status

    assert recall(handle="").code == Code.BAD_REQUEST
    assert recall(handle="bm9uZQ==").code == Code.BAD_REQUEST
    assert recall(of=other).code == Code.BAD_REQUEST
    assert recall(of="Nowhere").code == Code.TOPIC_NOT_FOUND
    assert recall(of="no good").code == Code.ILLEGAL_TOPIC
    monkeypatch.setattr(parts.config, "recall_message_enable", False)
    assert recall().code == Code.FORBIDDEN


# --- types ------------------------------------------------------------------------------------------------------


def of_type(topic: str, kind: str, now: int) -> Any:
    more: dict[str, dict[str, Any]] = {"FIFO": {"message_group": "g"}, "DELAY": {"deliver_ms": now + 60_000}}
    return message(topic, message_type=Type.Value(kind), **more.get(kind, {}))


@pytest.mark.parametrize("wanted", ["", "UNSPECIFIED", "MIXED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"])
def test_message_types_of_a_topic(client: Caller, wire: Wire, parts: BrokerParts, topic: str, wanted: str) -> None:
    change_topic(wire, topic, f"+message.type={wanted}" if wanted else "")
    for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION"):
        answer = send(client, of_type(topic, kind, parts.clock()))
        if wanted in ("", "UNSPECIFIED", "MIXED", kind):
            assert answer.status.code == Code.OK, answer
        else:
            assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
            assert {wanted, kind} <= set(answer.status.message.replace(",", "").split())


@pytest.mark.parametrize(
    "more",
    [
        {"message_type": Type.PRIORITY, "priority": 3},
        {"message_type": Type.PRIORITY, "priority": 0},
        {"priority": 1},
        {"message_type": Type.LITE, "lite_topic": "l"},
        {"lite_topic": "l"},
    ],
)
def test_unsupported_message_features(client: Caller, wire: Wire, topic: str, more: dict[str, Any]) -> None:
    answer = send(client, message(topic, **more))
    assert answer.status.code == Code.NOT_IMPLEMENTED
    assert "not implemented" in answer.status.message
    assert stored(wire, topic) == []


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "Elsewhere"}, Code.MESSAGE_CORRUPTED),
        ({"namespace": "ns"}, Code.MESSAGE_CORRUPTED),
        ({"body": zlib.compress(b"x"), "body_encoding": Encoding.GZIP}, Code.MESSAGE_CORRUPTED),
        ({"message_group": "g"}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_group": "g", "message_type": Type.FIFO}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_type": Type.TRANSACTION}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_type": Type.FIFO}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"deliver_ms": 1}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"body": b""}, Code.MESSAGE_BODY_EMPTY),
    ],
)
def test_messages_of_a_request_are_uniform(
    client: Caller, wire: Wire, topic: str, more: dict[str, Any], code: int
) -> None:
    for position in (0, 1):
        messages = [message(topic), message(topic)]
        messages[position] = message(**{"topic": topic, **more})
        answer = send(client, *messages)
        expected = (code, Code.TOPIC_NOT_FOUND) if position == 0 else (code,)  # the first one's topic counts
        assert answer.status.code in expected, answer
    assert stored(wire, topic) == []


@pytest.mark.parametrize(
    "more",
    [
        {"message_type": Type.TRANSACTION},
        {"message_type": Type.DELAY, "deliver_ms": 1},
        {"message_group": "g", "message_type": Type.NORMAL},
    ],
)
def test_messages_that_are_sent_one_at_a_time(client: Caller, wire: Wire, topic: str, more: dict[str, Any]) -> None:
    answer = send(client, message(topic, **more), message(topic, **more))
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert stored(wire, topic) == []


def test_too_many_messages(client: Caller, wire: Wire, topic: str) -> None:
    answer = send(client, *[message(topic)] * (MAX_MESSAGES + 1))
    assert (answer.status.code, str(MAX_MESSAGES) in answer.status.message) == (Code.MESSAGE_CORRUPTED, True)
    assert stored(wire, topic) == []
    assert [entry.offset for entry in sent(client, *[message(topic)] * MAX_MESSAGES)] == list(range(MAX_MESSAGES))


def test_a_batch_too_large(client: Caller, wire: Wire, topic: str) -> None:
    half = b"x" * (2 << 20)
    answer = send(client, message(topic, half), message(topic, half))
    assert answer.status.code == Code.MESSAGE_BODY_TOO_LARGE
    assert stored(wire, topic) == []


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"body": b""}, Code.MESSAGE_BODY_EMPTY),
        ({"body": b"x" * ((4 << 20) + 1)}, Code.MESSAGE_BODY_TOO_LARGE),
        ({"body": b"plain", "body_encoding": Encoding.GZIP}, Code.MESSAGE_CORRUPTED),
        ({"body": gzip.compress(b"cut", mtime=0)[:-4], "body_encoding": Encoding.GZIP}, Code.MESSAGE_CORRUPTED),
        ({"body": b"\x1f\x8bgarbage", "body_encoding": Encoding.GZIP}, Code.MESSAGE_CORRUPTED),
        ({"body_digest": definitions.Digest(type=Digest.MD5, checksum="00")}, Code.MESSAGE_CORRUPTED),
        ({"body_digest": definitions.Digest(type=Digest.CRC32, checksum="FFFFFFFF")}, Code.MESSAGE_CORRUPTED),
        ({"message_id": ""}, Code.ILLEGAL_MESSAGE_ID),
        ({"message_id": "  "}, Code.ILLEGAL_MESSAGE_ID),
        ({"message_id": "a\x02b"}, Code.ILLEGAL_MESSAGE_ID),
        ({"tag": " "}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a\nb"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a\x85b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"keys": ["ok", " "]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"keys": ["a\x01b"]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"message_group": " "}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "g\x00"}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "g" * 64}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "é" * 32}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"born_host": "a\x02b"}, Code.BAD_REQUEST),
        ({"trace_context": "a\x02b"}, Code.BAD_REQUEST),
        ({"trace_context": "x" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"message_id": "x" * 32_001}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"user": {"": "v"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"UNIQ_KEY": "v"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"DELAY": "3"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"a\x01b": "v"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"a": "v\x02TAGS\x01t"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"a": "\x7f"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"keys": [""] * (16 << 10 | 1)}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"user": {str(i): "v" for i in range(129)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"user": {"a": "v" * (16 << 10)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"user": {"a": "é" * (8 << 10)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"message_type": Type.TRANSACTION, "recovery_seconds": 3601}, Code.BAD_REQUEST),
        ({"message_type": Type.TRANSACTION, "deliver_ms": 5}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_type": Type.TRANSACTION, "recovery_seconds": -1}, Code.BAD_REQUEST),
        ({"topic": "Nowhere"}, Code.TOPIC_NOT_FOUND),
        ({"topic": ""}, Code.ILLEGAL_TOPIC),
        ({"topic": "no good"}, Code.ILLEGAL_TOPIC),
        ({"topic": "x" * 128}, Code.ILLEGAL_TOPIC),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, Code.ILLEGAL_TOPIC),
        ({"topic": "rmq_sys_wheel_timer"}, Code.ILLEGAL_TOPIC),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refusals(client: Caller, wire: Wire, topic: str, more: dict[str, Any], code: int) -> None:
    answer = send(client, message(**{"topic": topic, **more}))
    assert answer.status.code == code, answer.status
    assert answer.status.message
    assert not answer.entries
    assert stored(wire, topic) == []


@pytest.mark.parametrize(
    "more",
    [
        {"body": b"x" * (4 << 20)},
        {"message_group": "g" * 63},
        {"user": {str(i): "v" for i in range(128)}},
        {"user": {"a": "v" * ((16 << 10) - 1)}, "born_host": ""},
        {"user": {"a": "\u2028\u00a0\U0001f680"}, "tag": "é\u0378"},
        {"keys": ["", "a b", ""]},
        {"born_ms": -5},
        {"born_ms": 10**18},
        {"message_type": 99},
    ],
    ids=lambda value: str(value)[:40],
)
def test_limits_are_retained(client: Caller, topic: str, more: dict[str, Any]) -> None:
    sent(client, message(**{"topic": topic, **more}))


def test_a_request_without_messages(client: Caller) -> None:
    assert send(client).status.code == Code.MESSAGE_CORRUPTED


def test_topics_are_not_created(client: Caller, wire: Wire, parts: BrokerParts) -> None:
    assert parts.config.auto_create_topic_enable
    assert send(client, message("%RETRY%Unknown")).status.code == Code.TOPIC_NOT_FOUND
    assert parts.topics.get("%RETRY%Unknown") is None


def test_a_broker_that_refuses_messages(
    client: Caller, parts: BrokerParts, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts.config, "reject_transaction_message", True)
    answer = send(client, message(topic, message_type=Type.TRANSACTION))
    assert answer.status.code == Code.FORBIDDEN
    assert "forbidden" in answer.status.message


# --- the disk ---------------------------------------------------------------------------------------------------


def test_answers_wait_for_the_disk(tmp_path: Path) -> None:
    clock = Clock()
    with endpoint(tmp_path, clock, flushDiskType="SYNC_FLUSH", recallMessageEnable=True) as (here, wire):
        client = here.client()
        here.create_topic("T")
        sent(client, message("T"))
        sent(client, message("T"), message("T"))
        (later,) = sent(client, message("T", message_type=Type.DELAY, deliver_ms=clock.now + 60_000))
        answer = client.call("RecallMessage", topic=resource("T"), recall_handle=later.recall_handle)
        assert (answer.status.code, answer.message_id) == (Code.OK, later.message_id)
        assert len(wire.messages("T")) == 3


def test_a_disk_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(tmp_path, Clock(), flushDiskType="SYNC_FLUSH") as (here, wire):
        client = here.client()
        here.create_topic("T")
        store = here.served.broker.parts.store
        monkeypatch.setattr(store, "when_flushed", lambda offset, deliver: deliver(False))
        for count in (1, 2):
            answer = send(client, *[message("T") for _ in range(count)])
            assert answer.status.code == Code.MASTER_PERSISTENCE_TIMEOUT
            assert [entry.status.code for entry in answer.entries] == [Code.MASTER_PERSISTENCE_TIMEOUT] * count
        assert len(wire.messages("T")) == 3  # stored all the same
        monkeypatch.undo()


def test_a_canceled_call_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Callable[[bool], None]] = []
    with endpoint(tmp_path, Clock(), flushDiskType="SYNC_FLUSH") as (here, wire):
        client = here.client()
        here.create_topic("T")
        family = here.server.run(lambda: SendFamily(here.cluster, here.clients))
        stored = threading.Event()
        request = definitions.SendMessageRequest(messages=[message("T")])

        def when_flushed(offset: int, deliver: Callable[[bool], None]) -> None:
            flushed.append(deliver)
            stored.set()

        monkeypatch.setattr(here.served.broker.parts.store, "when_flushed", when_flushed)

        async def give_up() -> None:
            task = asyncio.ensure_future(family.send_message(client.context, request))
            await until_async(stored.is_set)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        here.server.do(give_up())
        (deliver,) = flushed
        here.server.run(lambda: deliver(True))  # the call of this response has ended
        monkeypatch.undo()
        sent(client, message("T"))
        assert len(wire.messages("T")) == 2


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="the disk is full")
    with endpoint(tmp_path, Clock()) as (here, _):
        client = here.client()
        here.create_topic("T")
        store = here.served.broker.parts.store
        for name, count in (("put_message", 1), ("put_batch", 2)):
            monkeypatch.setattr(store, name, lambda *args, **fields: refusal)
            answer = send(client, *[message("T") for _ in range(count)])
            assert (answer.status.code, answer.status.message) == (Code.INTERNAL_SERVER_ERROR, "the disk is full")
        monkeypatch.undo()
        sent(client, message("T"))
