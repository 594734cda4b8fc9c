"""``rocket message``, ``dlq``, ``queue`` and ``bench`` against two live brokers."""

from __future__ import annotations

import base64
import io
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.cli.commands import message_show, message_tail
from spark_rocket.client import (
    Admin,
    ConsumeFromWhere,
    Producer,
)
from spark_rocket.errors import ProtocolError
from spark_rocket.model import Message, MessageExt
from spark_rocket.protocol.message_trace import TraceBean, TraceContext, TraceType, encode_trace_data
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster
from tests.broker.wire import Wire
from tests.cli.conftest import Run, unavailable_broker
from tests.client.pushing import AGAIN, RecordingListener, running_consumer
from tests.kit.scripted import POSITION, FakeCluster, record, says, says_offset
from tests.kit.waiting import until

pytestmark = pytest.mark.live

CLUSTER = {"brokers": 2, "config": {"grpcServerPort": -1, "enablePropertyFilter": True}}
TEXT = '{"näme": "你好", "id": 7}'
BINARY = bytes(range(256))


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.name_server) as opened:
        yield opened


@pytest.fixture
def topic(request: pytest.FixtureRequest, admin: Admin) -> str:
    name = f"cli-{request.node.name.partition('[')[0][:60]}"
    admin.create_topic(name, queues=2)
    return name


# --- send, get, query -------------------------------------------------------------------------------------------


def test_a_message_is_sent_and_found_by_key_and_ids(rocket: Run, topic: str) -> None:
    said = rocket("message", "send", topic, TEXT, "--tags", "paid", "--key", "k1", "--key", "k2", "--property", "ä=ö=1")
    assert said.status == 0, said.err
    assert said.out.startswith("Sent        SEND_OK\nQueue       broker-")
    sent = rocket("message", "query-key", topic, "k2", "--json").json[0]
    for verb in (
        ("get", sent["offsetMsgId"]),
        ("query-id", topic, sent["msgId"]),
        ("query-id", topic, sent["offsetMsgId"]),
    ):
        found = rocket("message", *verb, "--json").json
        assert (found["body"], found["tags"], found["keys"], found["properties"]["ä"]) == (TEXT, "paid", "k1 k2", "ö=1")
        assert found["topic"] == topic
        assert found["brokerName"].startswith("broker-")
    assert rocket("message", "get", sent["offsetMsgId"], "--body", "json", "--json").json["body"]["id"] == 7
    shown = rocket("message", "query-id", topic, sent["msgId"], "--body", "json")
    assert '  "näme": "你好",\n' in shown.out
    assert shown.out.endswith("No groups consume this topic.\n")
    table = rocket("message", "query-key", topic, "k1").out.splitlines()
    assert table[0].split() == ["STORED", "MESSAGE", "ID", "QUEUE@OFFSET", "TAGS", "KEYS", "BODY"]
    assert table[1].endswith(TEXT)
    assert rocket("message", "query-key", topic, "k3").out == f"No messages with key k3 in topic {topic}.\n"
    assert rocket("message", "query-key", topic, "k1", "--to", "2020-01-01", "--json").json == []


@pytest.mark.parametrize(
    ("body", "text", "in_hex"),
    [
        (BINARY, None, "00000000  00 01 02 03 04 05 06 07  08 09 0a 0b 0c 0d 0e 0f  |................|"),
        (b"\xff", None, "00000000  ff                                                |.|"),
        (b"two\nlines\t", "two\nlines\t", None),
        ("😀".encode(), "😀", None),
    ],
)
def test_bodies_of_files(
    rocket: Run, topic: str, tmp_path: Path, body: bytes, text: str | None, in_hex: str | None
) -> None:
    (tmp_path / "body").write_bytes(body)
    sent = rocket("message", "send", topic, "--file", tmp_path / "body", "--json").json
    found = rocket("message", "get", sent["offsetMsgId"], "--json").json
    assert found.get("body") == text
    assert base64.b64decode(found.get("bodyBase64", "")) == (body if text is None else b"")
    shown = rocket("message", "get", sent["offsetMsgId"]).out
    assert (in_hex or text or "?") in shown
    assert rocket("message", "get", sent["offsetMsgId"], "--body", "none").out.splitlines()[-1].split()[0] == "WAIT"


def test_lines_of_stdin_and_of_files(rocket: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("eins\r\n\nzwei ✓\ndrei".encode())))
    said = rocket("message", "send", topic, "--lines", "-", "--json")
    assert [one["status"] for one in said.json_lines] == ["SEND_OK"] * 3
    (tmp_path / "hex").write_text("00ff\n61 62\n")
    said = rocket("message", "send", topic, "--lines", tmp_path / "hex", "--hex")
    assert said.out == f"Sent 2 messages to {topic}.\n"
    said = rocket("message", "tail", topic, "--from", "earliest", "--no-follow", "--json")
    shown = sorted(one.get("body") or one["bodyBase64"] for one in said.json_lines)
    assert shown == ["AP8=", "ab", "drei", "eins", "zwei ✓"]
    (tmp_path / "one").write_text("only\n")
    said = rocket("message", "send", topic, "--lines", tmp_path / "one", "--keys", "a", "--key", "b")
    assert said.out == f"Sent 1 message to {topic}.\n"
    (found,) = rocket("message", "query-key", topic, "b", "--json").json
    assert found["keys"] == "a b"
    (tmp_path / "hex").write_text("00ff\nnohex\n")
    assert rocket("message", "send", topic, "--lines", tmp_path / "hex", "--hex").failed(
        "invalid hex 'nohex'", status=2
    )
    assert rocket("message", "send", topic, "--lines", tmp_path / "nothing").failed("nothing")


def test_queue_sharding_key_and_delay_of_a_message(rocket: Run, admin: Admin, topic: str) -> None:
    sent = rocket("message", "send", topic, "x", "--queue", "broker-b:1", "--json").json
    assert (sent["brokerName"], sent["queueId"]) == ("broker-b", 1)
    keyed = [rocket("message", "send", topic, "x", "--sharding-key", "user-1", "--json").json for _ in range(3)]
    assert len({(one["brokerName"], one["queueId"]) for one in keyed}) == 1
    assert "recallHandle" in rocket("message", "send", topic, "later", "--delay", "1h", "--json").json
    said = rocket("message", "send", topic, "later", "--deliver-at", str(int(time.time() * 1000) + 60_000))
    assert "\nRecall handle" in said.out
    assert rocket("message", "send", topic, "later", "--delay-level", "18").status == 0
    assert sum(high for _, high in admin.offsets(topic).values()) == 4, "those that wait are not there"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("send", "TOPIC"), 2, "Give one of BODY, --file, --lines"),
        (("send", "TOPIC", "x", "--file", "y"), 2, "BODY and --file cannot be given together"),
        (("send", "TOPIC", "x", "--delay", "1"), 2, "invalid duration '1': use a duration such as 500ms"),
        (("send", "TOPIC", "x", "--property", "novalue"), 2, "use NAME=VALUE"),
        (("send", "TOPIC", "x", "--queue", "broker-a"), 2, "invalid queue 'broker-a': use BROKER/ID"),
        (
            ("send", "TOPIC", "x", "--queue", "broker-a:9"),
            1,
            "has no queue broker-a:9. It has queues 0 to 1 on broker-a",
        ),
        (("send", "TOPIC", "x", "--queue", "0"), 1, "Specify one: broker-a/0, broker-b/0"),
        (("send", "TOPIC", ""), 1, "has no body"),
        (("get", "malformed"), 1, "rocket message query-id"),
        (("query-id", "TOPIC", "malformed"), 1, "has no message 'malformed'"),
        (("query-id", "unknown", "x"), 1, "rocket topic create unknown"),
        (("query-key", "unknown", "x"), 1, "'unknown' does not exist"),
        (("tail", "unknown"), 1, "'unknown' does not exist"),
        (("tail", "TOPIC", "--from", "1h", "--last", "3"), 2, "cannot be given together"),
        (("tail", "TOPIC", "--sql", "a = "), 1, "a = "),
        (("resend", "TOPIC", "x", "--client", "c"), 2, "--client needs --group"),
        (("resend", "TOPIC", "x"), 1, "has no message 'x'"),
    ],
)
def test_invalid_arguments(rocket: Run, topic: str, arguments: tuple[str, ...], status: int, text: str) -> None:
    said = rocket("message", *(topic if argument == "TOPIC" else argument for argument in arguments))
    assert said.failed(text, status=status)
    assert (said.out, "Traceback" in said.err) == ("", False)


# --- tail -------------------------------------------------------------------------------------------------------


@contextmanager
def sending(cluster: LocalCluster, topic: str, **fields: str) -> Iterator[None]:
    """Send until the end: `tail` gets messages whenever it starts."""
    over = threading.Event()

    def send() -> None:
        with Producer("cli_test", name_server=cluster.name_server) as producer:
            number = 0
            while not over.wait(0.01):
                number += 1
                producer.send(Message.of(topic, f"live {number}", **fields))  # type: ignore[arg-type]

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def fill(admin: Admin, topic: str, count: int) -> None:
    """Messages m0, m1 … in turn to the four queues; in each of them every other one is tagged odd."""
    queues = sorted(admin.offsets(topic))
    for number in range(count):
        tags = "odd" if number // len(queues) % 2 else "even"
        message = Message.of(topic, f"m{number}", tags=tags, properties={"n": str(number)})
        admin.send(message, queue=queues[number % len(queues)])


def test_tail_follows_a_topic(rocket: Run, cluster: LocalCluster, admin: Admin, topic: str) -> None:
    fill(admin, topic, 3)
    with sending(cluster, topic, tags="a"):
        said = rocket("message", "tail", topic, "--max", 5)
    assert (said.status, said.err) == (0, "")
    shown = said.out.splitlines()
    assert len(shown) == 5
    when = r"\d{4}-\d\d-\d\dT[\d:.]{12}(?:Z|[+-]\d\d:\d\d)"
    assert all(re.match(rf"{when}  broker-[ab]/[01]@\d+  #a  live \d+$", line) for line in shown)
    with sending(cluster, topic, tags="a"):
        said = rocket("message", "tail", topic, "--max", 4, "--json", "--last", 2, "--tags", "odd || a")
    assert len(said.json_lines) == 4


def test_messages_that_cannot_be_decoded_do_not_hide_others(
    rocket: Run, cluster: LocalCluster, admin: Admin, topic: str
) -> None:
    """Their producer marked them as compressed, and did not compress them."""
    group = f"{topic}-group"
    admin.create_group(group)
    dead = f"%DLQ%{group}"
    with RemotingClient() as client:
        wire = Wire(client, cluster.broker_address)
        for body, sys_flag in ((b"one", 0), (b"damaged", 1), (b"two", 0), (b"damaged", 1)):
            for where in (topic, dead):
                assert wire.send(where, body, {"KEYS": "k", "RETRY_TOPIC": topic}, f=sys_flag).code == 0
    until(lambda: len(admin.query_messages(topic, "k", failed={})) == 2)

    def names_the_damaged(said: Any, where: str) -> bool:
        places = re.findall(
            r"^rocket: (\S+)/broker-\w/0@(\d): .*The message at offset \2: Invalid zlib", said.err, re.M
        )
        return places == [(where, "1"), (where, "3")]

    for arguments, where in (
        (("message", "query-key", topic, "k", "--json"), topic),
        (("queue", "dump", topic, "broker-a/0", "--json"), topic),
        (("dlq", "list", group, "--json"), dead),
    ):
        said = rocket(*arguments)
        shown = [one["body"] for one in (said.json_lines if "dump" in arguments else said.json)]
        assert (said.status, sorted(shown)) == (1, ["one", "two"])
        assert names_the_damaged(said, where), said.err
    said = rocket("message", "tail", topic, "--last", 4, "--no-follow", "--json")
    assert (said.status, [one["body"] for one in said.json_lines]) == (0, ["one", "two"])
    assert names_the_damaged(said, topic), said.err
    said = rocket("dlq", "resend", group, "--all", "--to-topic", "--yes")
    assert (said.status, said.out) == (1, "Resent 2 dead letters to their topics, for all groups.\n")
    assert names_the_damaged(said, dead), said.err
    with pytest.raises(ProtocolError, match="The message at offset 1"):
        admin.query_messages(topic, "k")


def test_tail_skips_messages_that_cannot_be_decoded(rocket: Run, cluster: LocalCluster, topic: str) -> None:
    """Their producer marked them as compressed, and did not compress them."""
    with RemotingClient() as client:
        wire = Wire(client, cluster.broker_address)
        for body, sys_flag in ((b"one", 0), (b"damaged", 1), (b"two", 0)):
            assert wire.send(topic, body, f=sys_flag).code == 0
        said = rocket("message", "tail", topic, "--from", "earliest", "--no-follow", "--json")
        assert [one["body"] for one in said.json_lines] == ["one", "two"]
        assert re.fullmatch(rf"rocket: {topic}/broker-\w/0: The message at offset 1: Invalid zlib body: .*\n", said.err)
        over = threading.Event()

        def send() -> None:
            while not over.wait(0.01):
                wire.send(topic, b"damaged", f=1)

        thread = threading.Thread(target=send)
        thread.start()
        with sending(cluster, topic):
            said = rocket("message", "tail", topic, "--max", 8)
        over.set()
        thread.join(30)
    assert (said.status, said.out.count("  live ")) == (0, 8)
    assert "The message at offset" in said.err


def test_stored_messages_are_shown_in_time_order(rocket: Run, admin: Admin, topic: str) -> None:
    said = rocket("message", "tail", topic, "--from", "earliest", "--no-follow")
    assert (said.status, said.out) == (0, ""), "an empty topic"
    fill(admin, topic, 100)

    def bodies(*options: object) -> list[str]:
        said = rocket("message", "tail", topic, "--no-follow", "--json", *options)
        assert said.status == 0, said.err
        return [one["body"] for one in said.json_lines]

    every = bodies("--from", "earliest")
    assert sorted(every, key=lambda body: int(body[1:])) == [f"m{i}" for i in range(100)]
    assert bodies("--from", "1h") == every
    stored = [
        one["storeTimestamp"]
        for one in rocket("message", "tail", topic, "--no-follow", "--json", "--last", 99).json_lines
    ]
    assert stored == sorted(stored)
    first = ("--queue", "broker-a/0")  # m0, m4, m8 … m96
    assert bodies("--from", "earliest", *first) == [f"m{i}" for i in range(0, 100, 4)]
    assert bodies("--last", 3, *first) == ["m88", "m92", "m96"]
    assert bodies("--last", 3, "--tags", "odd", *first) == ["m76", "m84", "m92"]
    assert bodies("--last", 2, "--sql", "n < 10", *first) == ["m4", "m8"]
    assert set(bodies("--from", "earliest", "--sql", "n between 3 and 4")) == {"m3", "m4"}
    assert bodies("--last", 0) == []
    assert bodies("--from", "latest") == []
    assert bodies("--from", "earliest", "--max", 7) == every[:7]
    text = rocket("message", "tail", topic, "--no-follow", "--last", 1, "--long", *first).out
    assert "Body, 3 bytes\nm96\n" in text
    text = rocket("message", "tail", topic, "--no-follow", "--last", 1, "--body", "hex", *first).out
    assert text.endswith("00000000  6d 39 36                                          |m96|\n")


def test_tail_follows_new_queues(
    rocket: Run, cluster: LocalCluster, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_tail, "REFRESH_INTERVAL_S", 0.05)
    put = message_show.put
    seen: set[int] = set()

    def watch(message: MessageExt, *rest: Any) -> None:
        if not seen:
            admin.update_topic(topic, read_queues=4, write_queues=4)
        seen.add(message.queue_id)
        put(message, *rest)
        if message.queue_id > 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(message_show, "put", watch)
    with sending(cluster, topic, tags="a"):
        said = rocket("message", "tail", topic, "--max", 10_000, "--json")
    assert (said.status, said.err) == (0, "")
    assert max(seen) > 1
    assert len(said.json_lines) < 10_000


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Brokers b0 and b1 with a message each of topic "t" and of dead letters."""
    monkeypatch.setattr(message_tail, "RETRY_DELAY_S", 0.01)
    monkeypatch.setattr(message_tail, "REFRESH_INTERVAL_S", 0.01)
    fakes = FakeCluster(2)
    for name in ("t", "%DLQ%g"):
        fakes.add(name, 1)
    for number, broker in enumerate(fakes.brokers):
        stored = record(0, f"of b{number}".encode(), stored=int(time.time() * 1000))

        def pull(request: RemotingCommand, stored: bytes = stored) -> RemotingCommand:
            is_first = request.ext_fields["queueOffset"] == "0"
            return RemotingCommand.response(request, 0 if is_first else 19, None, POSITION, stored if is_first else b"")

        broker.responses |= {
            RequestCode.GET_MIN_OFFSET: says_offset(0),
            RequestCode.GET_MAX_OFFSET: says_offset(1),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: says_offset(0),
            RequestCode.PULL_MESSAGE: pull,
        }
    yield fakes
    fakes.close()


@pytest.fixture
def come_back(fakes: FakeCluster) -> Callable[[], None]:
    """Broker b1 is unavailable until this is called."""
    available = fakes.brokers[1].responses
    fakes.brokers[1].responses = dict.fromkeys(available, says(2, "not now"))

    def come_back() -> None:
        fakes.brokers[1].responses = available

    return come_back


def assert_interruption(err: str, broker: str) -> None:
    """It was reported once when it began, and once when it ended."""
    first, last = err.splitlines()
    assert first.startswith(f"rocket: {broker}: ")
    assert first.endswith(" Retrying.")
    assert last == f"rocket: {broker} is available again."


def test_a_busy_broker_is_retried(run: Run, fakes: FakeCluster) -> None:
    (broker, _) = fakes.brokers
    pull, busy = broker.responses[RequestCode.PULL_MESSAGE], iter([says(2, "busy")] * 3)
    broker.responses[RequestCode.PULL_MESSAGE] = lambda request: next(busy, pull)(request)
    broker.responses[RequestCode.GET_MAX_OFFSET] = says_offset(0)
    said = run("message", "tail", "t", "--queue", "b0/0", "--max", 1, "-n", fakes.name_server.address)
    assert (said.status, said.out.endswith("b0/0@0  of b0\n")) == (0, True)
    assert_interruption(said.err, "b0")


def test_tail_while_a_broker_is_unavailable(
    run: Run, fakes: FakeCluster, come_back: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("message", "tail", "t", "-n", fakes.name_server.address)
    said = run(*arguments, "--last", 5, "--no-follow")
    assert (said.status, said.out.splitlines()[0].endswith("b0/0@0  of b0")) == (1, True)
    assert said.err.startswith("rocket: b1: ")
    assert "not now" in said.err
    said = run(*arguments, "--last", 5, "--no-follow", "--queue", "b0/0")
    assert (said.status, said.err) == (0, "")  # even if the other broker is unavailable
    put = message_show.put

    def put_and_come_back(*message: Any) -> None:
        put(*message)
        come_back()

    monkeypatch.setattr(message_show, "put", put_and_come_back)
    said = run(*arguments, "--last", 1, "--max", 2)
    assert (said.status, [line.split()[-1] for line in said.out.splitlines()]) == (0, ["b0", "b1"])
    assert_interruption(said.err, "b1")


@pytest.mark.usefixtures("come_back")
def test_dead_letters_while_a_broker_is_unavailable(run: Run, fakes: FakeCluster) -> None:
    said = run("dlq", "list", "g", "-n", fakes.name_server.address)
    assert (said.status, "of b0" in said.out) == (1, True)
    assert said.err.startswith("rocket: b1: ")


def test_ctrl_c_ends_tail_cleanly(cluster: LocalCluster, topic: str) -> None:
    command = [sys.executable, "-m", "spark_rocket.cli", "message", "tail", topic, "-n", cluster.name_server, "--json"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        sending(cluster, topic),
    ):
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["topic"] == topic
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


# --- trace, resend, dead letters --------------------------------------------------------------------------------


def test_the_trace_of_a_message(rocket: Run, cluster: LocalCluster, admin: Admin, topic: str) -> None:
    msg_id = "7F0000010F9C6466E7626C101B610099"
    said = rocket("message", "trace", msg_id, "--trace-topic", topic)
    assert said.out.startswith(f"No trace events of {msg_id} in topic {topic}.")
    bean = TraceBean(topic="t", msg_id=msg_id, client_host="c1", store_host="1.2.3.4:5")
    text = encode_trace_data(TraceContext(TraceType.Pub, 10, group_name="p", cost_time=3, trace_beans=[bean]))
    text += encode_trace_data(TraceContext(TraceType.SubBefore, 20, group_name="g", request_id="R", trace_beans=[bean]))
    admin.send(Message.of(topic, text, keys=msg_id))
    said = rocket("message", "trace", msg_id, "--trace-topic", topic)
    shown = said.out.splitlines()
    assert [word for word in shown[0].split() if word != "AT"][:5] == ["TIME", "WHAT", "GROUP", "OUTCOME", "MS"]
    assert ("SEND" in shown[1], "SUCCESS" in shown[1], "CONSUME" in shown[2], "pending" in shown[2]) == (True,) * 4
    events = rocket("message", "trace", msg_id, "--trace-topic", topic, "--json").json["events"]
    assert [(one["kind"], one["outcome"], one["costMs"]) for one in events] == [
        ("SEND", "SUCCESS", 3),
        ("CONSUME", None, None),
    ]


@pytest.fixture
def failing(cluster: LocalCluster, admin: Admin, topic: str) -> str:
    """A group whose consumer always fails, with one binary dead letter."""
    group = f"{topic}-failing"
    admin.create_group(group, retry_max_times=0)
    admin.send(Message.of(topic, BINARY, keys="k", tags="t"))
    with running_consumer(cluster.name_server, group, topic, lambda *_: AGAIN, max_reconsume_times=0):
        until(lambda: admin.dead_letters(group))
    return group


def test_dead_letters_are_listed_and_resent(rocket: Run, admin: Admin, topic: str, failing: str) -> None:
    (group,) = (one for one in rocket("dlq", "list", "--json").json if one["group"] == failing)
    assert (group["messages"], group["topic"]) == (1, f"%DLQ%{failing}")
    assert failing in rocket("dlq", "list").out
    (dead,) = rocket("dlq", "list", failing, "--json").json
    assert base64.b64decode(dead["bodyBase64"]) == BINARY
    assert dead["msgId"] in rocket("dlq", "list", failing).out
    refused = rocket("dlq", "resend", failing, "--all")
    assert (refused.status, "Use --yes" in refused.err) == (1, True)
    declined = rocket("dlq", "resend", failing, "--all", answer="n")
    assert (declined.status, declined.out) == (1, "Nothing was changed.\n")
    before = sum(high for _, high in admin.offsets(f"%RETRY%{failing}").values())
    said = rocket("dlq", "resend", failing, dead["msgId"], "--yes")
    assert (said.status, said.out) == (0, f"Resent 1 dead letter to group {failing}.\n")
    assert sum(high for _, high in admin.offsets(f"%RETRY%{failing}").values()) == before + 1
    (sent,) = rocket("dlq", "resend", failing, "--all", "--to-topic", "--json", answer="y").json_lines
    assert sent["topic"] == topic
    copy = admin.message(topic, sent["sentAs"])
    assert copy is not None
    assert (copy.body, copy.tags, copy.keys) == (BINARY, "t", "k")
    for arguments, status, text in (
        ((failing, "malformed"), 1, f"rocket dlq list {failing}` shows"),
        (("missing", "malformed"), 1, "has no dead letter"),
        ((failing,), 2, "Give one of ID, --all"),
        ((failing, "x", "--from", "1h"), 2, "need --all"),
        (("missing", "--all"), 1, "Unknown group 'missing'"),
    ):
        assert rocket("dlq", "resend", *arguments, "--yes").failed(text, status=status)


def test_a_dead_letter_that_cannot_be_resent_does_not_stop_the_others(
    rocket: Run, admin: Admin, topic: str, failing: str
) -> None:
    bad = admin.send(Message.of(f"%DLQ%{failing}", TEXT))  # without its original topic
    sent = admin.send(Message.of(f"%DLQ%{failing}", BINARY, properties={"RETRY_TOPIC": topic}))
    until(lambda: len(admin.dead_letters(failing)) == 3)
    said = rocket("dlq", "resend", failing, "--all", "--to-topic", "--yes")
    assert (said.status, said.out) == (1, "Resent 2 dead letters to their topics, for all groups.\n")
    assert f"{bad.msg_id}: Message {bad.msg_id} of topic '%DLQ%{failing}' has no record of its original" in said.err
    said = rocket("dlq", "resend", failing, bad.msg_id, sent.msg_id, "--to-topic", "--yes", "--json")
    assert (said.status, [row["msgId"] for row in said.json_lines]) == (1, [sent.msg_id])


def test_groups_without_dead_letters(rocket: Run, admin: Admin) -> None:
    for arguments in (("dlq", "resend", "missing", "--all"), ("dlq", "list", "missing")):
        said = rocket(*arguments)
        assert (said.status, said.out) == (1, "")
        assert said.err == "rocket: Unknown group 'missing'. `rocket group list` shows the groups.\n"
    admin.create_group("healthy")
    said = rocket("dlq", "resend", "healthy", "--all")
    assert (said.status, said.err) == (0, "Group healthy has no dead letters.\n")


def test_a_dead_letter_is_resent_while_another_broker_is_unavailable(
    rocket: Run, admin: Admin, cluster: LocalCluster, failing: str
) -> None:
    (dead,) = rocket("dlq", "list", failing, "--json").json
    with unavailable_broker(cluster.name_server) as name:
        all_of_them = rocket("dlq", "resend", failing, "--all", "--yes")
        said = rocket("dlq", "resend", failing, dead["msgId"], "--yes")
    until(lambda: name not in admin.cluster_info().broker_addr_table)
    assert (said.status, said.out) == (0, f"Resent 1 dead letter to group {failing}.\n"), said.err
    assert (all_of_them.status, all_of_them.out) == (1, "")  # there can be others on that broker


def test_a_message_is_resent(rocket: Run, admin: Admin, cluster: LocalCluster, topic: str) -> None:
    sent = admin.send(Message.of(topic, TEXT, keys="k"))
    said = rocket("message", "resend", topic, sent.msg_id, answer="n")
    assert (said.status, said.out) == (1, "Nothing was changed.\n")
    said = rocket("message", "resend", topic, sent.msg_id, "--yes", "--json")
    assert said.status == 0, said.err
    assert said.json["topic"] == topic
    assert [one["body"] for one in rocket("message", "query-key", topic, "k", "--json").json] == [TEXT, TEXT]
    assert rocket("message", "resend", topic, sent.msg_id, "--group", "never-there", "--yes").failed(
        "never been online"
    )
    seen, group = RecordingListener(), f"{topic}-group"
    where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    with running_consumer(cluster.name_server, group, topic, seen, consume_from_where=where):
        (member,) = admin.group_state(group).members
        said = rocket("message", "resend", topic, sent.msg_id, "--group", group, "--client", member.client_id, "--yes")
        assert (said.status, said.err) == (0, "")
        assert said.out.startswith("Result  CR_SUCCESS\n")
        assert [one.msg_id for one in seen.messages] == [sent.msg_id]
        assert rocket("message", "resend", topic, sent.msg_id, "--group", group, "--yes").out.startswith("Sent  ")
        assert rocket("message", "resend", topic, sent.msg_id, "--group", group, "--client", "missing", "--yes").failed(
            "not online"
        )


# --- queue dump, bench ------------------------------------------------------------------------------------------


def test_a_queue_is_dumped(rocket: Run, admin: Admin, topic: str) -> None:
    queue = sorted(admin.offsets(topic))[0]
    name = f"{queue.broker_name}/{queue.queue_id}"
    said = rocket("queue", "dump", topic, name)
    assert (said.status, said.out) == (0, "Offsets 0 to 0 (exclusive) of 0 to 0.\n")
    assert "No entries." in rocket("queue", "dump", topic, name, "--entries").out
    for number in range(120):
        admin.send(Message.of(topic, f"m{number}", tags="a"), queue=queue)
    said = rocket("queue", "dump", topic, name)
    assert len(said.out.splitlines()) == 101
    assert said.out.endswith("Offsets 0 to 100 (exclusive) of 0 to 120.\n")
    dumped = rocket("queue", "dump", topic, name, "--json").json_lines
    assert [one["queueOffset"] for one in dumped] == [*range(120)]
    dumped = rocket("queue", "dump", topic, name, "--json", "--from", 5, "--to", 7).json_lines
    assert [one["body"] for one in dumped] == ["m5", "m6"]
    entries = rocket("queue", "dump", topic, name, "--json", "--entries", "--from", 118).json_lines
    assert [one["queueOffset"] for one in entries] == [118, 119]
    assert {one["tagsCode"] for one in entries} == {97}
    shown = rocket("queue", "dump", topic, name, "--entries", "--from", 118, "--group", "g").out.splitlines()
    assert shown[0].split() == ["OFFSET", "IN", "LOG", "AT", "SIZE", "TAGS", "CODE", "FOR", "g"]
    assert rocket("queue", "dump", topic, name, "--from", 5, "--to", 6, "--long").out.count("Body, 2 bytes") == 1
    for arguments, status, text in (
        ((topic, name, "--from", 999), 1, "Use an offset from 0 to 120"),
        ((topic, "malformed"), 2, "use BROKER/ID"),
        (("unknown", name), 1, "does not exist"),
        ((topic, name, "--group", "g"), 2, "--group needs --entries"),
    ):
        assert rocket("queue", "dump", *arguments).failed(text, status=status)


def test_bench_measures_sends_and_consumption(rocket: Run, admin: Admin, topic: str) -> None:
    said = rocket("bench", "send", topic, "--count", 50, "--threads", 2, "--size", 10)
    assert said.status == 0, said.err
    assert said.out.startswith("50 messages sent in ")
    assert said.out.splitlines()[2].split() == ["mean", "p50", "p90", "p95", "p99", "p99.9", "max"]
    result = rocket("bench", "send", topic, "--count", 105, "--batch", 10, "--keys", "--tags", "a", "--json").json
    assert (result["messages"], result["failures"], result["batch"]) == (105, 0, 10)
    assert result["latencyMs"]["p50"] <= result["latencyMs"]["p99"] <= result["latencyMs"]["max"]
    assert sum(high for _, high in admin.offsets(topic).values()) == 155
    result = rocket("bench", "consume", topic, "--count", 155, "--batch", 8, "--json").json
    assert result["messages"] == 155
    assert result["group"] not in {one.name for one in admin.groups()}
    assert f"%RETRY%{result['group']}" not in admin.topics()
    result = rocket(
        "bench", "consume", topic, "--count", 105, "--tags", "a", "--group", f"{topic}-group", "--json"
    ).json
    assert result["messages"] == 105
    assert f"{topic}-group" in {one.name for one in admin.groups()}
    assert rocket("bench", "consume", "unknown").failed("does not exist")
    said = rocket("bench", "send", "%bad topic", "--count", 1)
    assert (said.status, said.out.startswith("0 messages sent")) == (1, True)
