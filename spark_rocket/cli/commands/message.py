"""``rocket message …``: send, find, trace and resend messages. ``message_tail`` has ``tail``.

Exit status: 0 success, 1 failure or not found, 2 invalid command line.
Corresponds to mqadmin's sendMessage, queryMsgById, queryMsgByUniqueKey, queryMsgByKey, queryMsgTraceById and
consumeMessage.
"""

from __future__ import annotations

import shutil
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from spark_rocket.cli import show
from spark_rocket.cli.arguments import (
    PATH,
    delivery_time,
    duration,
    exclusive,
    json_option,
    moment,
    past,
    settings,
    whole,
    yes_option,
)
from spark_rocket.cli.commands import message_show
from spark_rocket.cli.commands.message_show import body_option
from spark_rocket.cli.connect import Link, complete_groups, complete_topics, connection
from spark_rocket.cli.show import Column
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.attributes import pick
from spark_rocket.common.files import read_file
from spark_rocket.common.units import count_text, moment_text
from spark_rocket.errors import ClientError, RocketError
from spark_rocket.model import TOOLS_PRODUCER_GROUP, TRACE_TOPIC

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Producer
    from spark_rocket.model import Message, MessageExt, MessageQueue, SendResult

topic_argument = click.argument("topic", shell_complete=complete_topics)
_MAX_IN_FLIGHT = 1_000


@click.group(
    cls=VerbGroup,
    sections={
        "Commands": {
            "tail": ("spark_rocket.cli.commands.message_tail:tail", "follow a topic, like tail -f"),
            "export": (
                "spark_rocket.cli.commands.message_export:export",
                "write topics to a Parquet or other file",
            ),
        },
    },
)
def message() -> None:
    """Send messages, follow a topic, find messages, show who consumed them, and resend them."""


# --- sending ---------------------------------------------------------------------------------------------------------


@message.command("send", short_help="send messages from arguments, lines or a file")
@topic_argument
@click.argument("body", required=False)
@click.option("--file", "file", type=PATH, metavar="FILE", help="send the file's bytes as the body (- for stdin)")
@click.option("--lines", type=PATH, metavar="FILE", help="send each line of a file as a message (- for stdin)")
@click.option("--hex", "is_hex", is_flag=True, help="decode BODY, or each line, from hex")
@click.option("--tags", metavar="TAG", help="tag, for the consumers' tag filter")
@click.option("--key", "--keys", "keys", multiple=True, metavar="KEY", help="key to find the message by; repeatable")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="user property; repeatable")
@click.option("--delay", type=duration, metavar="DURATION", help="delivery delay: 500ms, 10s, 5m, 2h, 1d")
@click.option("--deliver-at", type=delivery_time, metavar="TIME", help="delivery time, or milliseconds since 1970")
@click.option(
    "--delay-level", type=whole(1, 18, "delay level"), metavar="N", help="delay level 1 to 18, for brokers before 5.0"
)
@click.option("--queue", metavar="BROKER/ID", help="send to this queue; the id alone if one broker has the topic")
@click.option("--sharding-key", metavar="KEY", help="choose the queue by this key, for ordered messages")
@click.option("--group", default=TOOLS_PRODUCER_GROUP, help=f"producer group ({TOOLS_PRODUCER_GROUP})")
@connection
@json_option
def send(
    link: Link,
    topic: str,
    body: str | None,
    file: Path | None,
    lines: Path | None,
    is_hex: bool,
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    delay: int | None,
    deliver_at: int | None,
    delay_level: int | None,
    queue: str | None,
    sharding_key: str | None,
    group: str,
    as_json: bool,
) -> None:
    """Send a message: BODY as UTF-8 text, the bytes of a file, or one message per line of a file or of stdin.

    \b
    rocket message send orders '{"id": 7}' --tags paid --key 7
    seq 1000 | rocket message send orders --lines -
    rocket message send pictures --file cat.png --property type=image/png
    """
    exclusive({"BODY": body, "--file": file, "--lines": lines}, required=True)
    exclusive({"--delay": delay, "--deliver-at": deliver_at, "--delay-level": delay_level})
    exclusive({"--queue": queue, "--sharding-key": sharding_key})
    from spark_rocket.client import Producer, select_by_sharding_key
    from spark_rocket.model import Message

    def build(text: bytes) -> Message:
        return Message.of(
            topic,
            _from_hex(text) if is_hex else text,
            tags=tags,
            keys=keys or None,
            sharding_key=sharding_key,
            delay_ms=delay,
            deliver_at_ms=deliver_at,
            delay_level=delay_level,
            properties=settings(properties),
        )

    with (
        _bodies(body, file, lines) as bodies,
        link.admin() as admin,
        Producer(group, member=group != TOOLS_PRODUCER_GROUP, **link.options()) as producer,
    ):
        target = None if queue is None else find_queue(admin, topic, queue)
        chosen: dict[str, Any] = {} if target is None else {"queue": target}
        if sharding_key is not None:
            chosen = {"selector": select_by_sharding_key, "selector_arg": sharding_key}
        messages = map(build, bodies)
        if lines is None:
            _print_result(producer.send(next(messages), **chosen), as_json)
        else:
            _print_results(topic, _send_all(producer, messages, chosen), as_json)


def _send_all(
    producer: Producer, messages: Iterable[Message], chosen: dict[str, Any]
) -> Iterator[tuple[SendResult, int]]:
    """Send messages and yield the results in their order, each with the size of the body.

    Messages to a chosen queue are sent one at a time to keep their order, others asynchronously.
    """
    in_flight: deque[tuple[Future[SendResult], int]] = deque()
    for message in messages:
        size = len(message.body)
        if chosen:
            yield producer.send(message, **chosen), size
            continue
        in_flight.append((producer.send_async(message), size))
        while len(in_flight) > _MAX_IN_FLIGHT or (in_flight and in_flight[0][0].done()):
            future, size = in_flight.popleft()
            yield future.result(), size
    for future, size in in_flight:
        yield future.result(), size


def _print_results(topic: str, sent: Iterator[tuple[SendResult, int]], as_json: bool) -> None:
    from spark_rocket.cli.commands.bench import Rates

    count = size = 0
    rates = Rates("sent")
    try:
        for result, bytes_ in sent:
            count, size = count + 1, size + bytes_
            if as_json:
                show.line(_result_json(result))
            rates.tick(count, size)
    except (RocketError, click.ClickException, KeyboardInterrupt):
        rates.end()
        if count:
            print(f"Before the failure, at least {count_text(count)} messages were sent to {topic}.", file=sys.stderr)
        raise
    rates.end()
    if not as_json:
        print(f"Sent {count_text(count)} message{'s' if count != 1 else ''} to {topic}.")


def _print_result(result: SendResult, as_json: bool) -> None:
    if as_json:
        show.document(_result_json(result))
    else:
        show.record(_result_record(result))


def _result_json(result: SendResult) -> dict[str, Any]:
    value = pick(result, "status=status.value msg_id offset_msg_id") | show.place(result.queue)
    value |= pick(result, "queue_offset recall_handle")
    return value if result.recall_handle is not None else {k: v for k, v in value.items() if k != "recallHandle"}


def _result_record(result: SendResult) -> dict[str, object]:
    value: dict[str, object] = {
        "Sent": result.status.value,
        "Queue": f"{result.queue.broker_name}/{result.queue.queue_id}, offset {count_text(result.queue_offset)}",
        "Message id": result.msg_id,
        "Offset id": result.offset_msg_id,
    }
    return value if result.recall_handle is None else value | {"Recall handle": result.recall_handle}


@contextmanager
def _bodies(body: str | None, file: Path | None, lines: Path | None) -> Iterator[Iterable[bytes]]:
    if body is not None:
        yield [body.encode("utf-8", "surrogateescape")]  # the same bytes as in the shell
    elif file is not None:
        yield [sys.stdin.buffer.read() if str(file) == "-" else read_file(file)]
    elif str(lines) == "-":
        yield _lines_of(sys.stdin.buffer)
    else:
        assert lines is not None
        with lines.open("rb") as opened:
            yield _lines_of(opened)


def _lines_of(opened: IO[bytes]) -> Iterator[bytes]:
    """Yield non-empty lines without their line ends, as soon as they arrive."""
    for line in iter(opened.readline, b""):
        text = line.rstrip(b"\r\n")
        if text:
            yield text


def _from_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        shown = text[:40].decode("utf-8", "backslashreplace")
        raise click.UsageError(f"invalid hex {shown!r}: use 00ff or 00 ff") from None


def find_queue(admin: Admin, topic: str, text: str) -> MessageQueue:
    """Find a queue by ``BROKER/ID`` (or ``BROKER:ID``), or by ``ID`` if only one broker has the topic."""
    broker, slash, number = text.replace(":", "/").rpartition("/")
    if not number.isdecimal() or not number.isascii() or (slash and not broker):
        raise click.UsageError(f"invalid queue {text!r}: use BROKER/ID, as broker-a/3")
    queues = admin.queues(topic)
    found = [one for one in queues if one.queue_id == int(number) and broker in ("", one.broker_name)]
    if len(found) == 1:
        return found[0]
    names = sorted({one.broker_name for one in queues})
    if found:
        raise ClientError(
            f"Topic {topic!r} has a queue {number} on {len(found)} brokers.",
            remedy=f"Specify one: {', '.join(f'{name}/{number}' for name in names)}.",
        )
    most = max((one.queue_id for one in queues), default=-1)
    raise ClientError(
        f"Topic {topic!r} has no queue {text}.",
        remedy=f"It has queues 0 to {most} on {', '.join(names)}." if names else "It has no queues.",
    )


# --- finding ---------------------------------------------------------------------------------------------------------


@message.command("get", short_help="show a message by its offset id")
@click.argument("offset_id", metavar="ID")
@connection
@body_option
@json_option
def get(link: Link, offset_id: str, form: str, as_json: bool) -> None:
    """Show a message by its offset id, which the broker assigned and which contains its position.

    For the id assigned by the producer, use rocket message query-id.
    """
    with link.admin() as admin:
        found = admin.view_message(offset_id)
    if as_json:
        show.document(message_show.json_of(found, form))
    else:
        message_show.record(found, form)


@message.command("query-id", short_help="show a message by either id, and which groups consumed it")
@topic_argument
@click.argument("msg_id", metavar="ID")
@connection
@body_option
@json_option
def query_id(link: Link, topic: str, msg_id: str, form: str, as_json: bool) -> None:
    """Show a message of a topic by the producer's id or by its offset id, and the status of each consumer group."""
    with link.admin() as admin:
        found = wanted(admin, topic, msg_id)
        tracks = admin.message_track(found)
    rows = [pick(track, "group status=status.value detail") for track in tracks]
    if as_json:
        show.document(message_show.json_of(found, form) | {"track": rows})
        return
    message_show.record(found, form)
    print()
    columns = [Column("group"), Column("status"), Column("detail", spare=True)]
    show.table(rows, columns, empty="No groups consume this topic.")


def wanted(admin: Admin, topic: str, msg_id: str) -> MessageExt:
    """Return the message. ClientError if it is not found."""
    found = admin.message(topic, msg_id)
    if found is None:
        raise ClientError(
            f"Topic {topic!r} has no message {msg_id!r}.",
            remedy="Check topic and id. The message may have expired, or its transaction may not be committed.",
        )
    return found


@message.command("query-key", short_help="list messages with a key")
@topic_argument
@click.argument("key")
@click.option("--from", "begin", type=past, metavar="TIME", default=None, help="stored at or after this time")
@click.option("--to", "end", type=moment, metavar="TIME", default=None, help="stored at or before this time")
@click.option(
    "--limit", type=whole(1, 10_000, "number of messages"), default="32", metavar="N", help="maximum number (32)"
)
@connection
@body_option
@json_option
def query_key(
    link: Link, topic: str, key: str, begin: int | None, end: int | None, limit: int, form: str, as_json: bool
) -> None:
    """List messages of a topic by key, oldest first."""
    with link.partial() as (admin, failed):
        found = admin.query_messages(topic, key, max_num=limit, begin_ms=begin or 0, end_ms=end, failed=failed)
        table(found, form, as_json, empty=show.nothing_text(f"No messages with key {key} in topic {topic}", failed))


_MESSAGES = (
    Column("storeTimestamp", "STORED", form=moment_text, right=False),
    Column("msgId", "MESSAGE ID"),
    Column("queue", "QUEUE@OFFSET", spare=True),
    Column("tags", spare=True),
    Column("keys", spare=True),
)
_MIN_BODY_WIDTH = 19  # 80 columns minus the other columns
_OTHER_COLUMNS_WIDTH = 61


def table(found: Iterable[MessageExt], form: str, as_json: bool, empty: str, foot: str = "") -> None:
    """List messages, one per row, with as much of the body as fits on the terminal."""
    messages = list(found)
    if as_json:
        show.document([message_show.json_of(one, form) for one in messages])
        return
    width = None
    if sys.stdout.isatty():
        width = max(_MIN_BODY_WIDTH, (shutil.get_terminal_size().columns - _OTHER_COLUMNS_WIDTH) // 2)
    rows = [
        {
            "storeTimestamp": one.store_timestamp,
            "msgId": one.msg_id,
            "queue": f"{one.broker_name}/{one.queue_id}@{one.queue_offset}",
            "tags": one.tags,
            "keys": one.keys,
            "body": message_show.cut(message_show.body_line(one.body, form), width),
        }
        for one in messages
    ]
    columns = list(_MESSAGES)
    if form != "none":
        columns.append(Column("body"))
    show.table(rows, columns, empty=empty, foot=foot)


@message.command("trace", short_help="show the trace events of a message")
@click.argument("msg_id", metavar="ID")
@click.option("--trace-topic", default=TRACE_TOPIC, metavar="TOPIC", help="topic of the trace events")
@connection
@json_option
def trace(link: Link, msg_id: str, trace_topic: str, as_json: bool) -> None:
    """Show the events that clients with message trace recorded for a message, by the producer's id."""
    with link.admin() as admin:
        found = admin.message_trace(msg_id, trace_topic=trace_topic)
    names = "kind time=time_ms group client outcome cost_ms retry_times topic? tags keys store_host? body_bytes"
    rows = [pick(event, names) for event in found.events]
    if as_json:
        show.document({"msgId": msg_id, "events": rows})
        return
    columns = [
        Column("time", form=moment_text, right=False),
        Column("kind", "WHAT"),
        Column("group"),
        Column("outcome"),
        Column("costMs", "MS"),
        Column("client", spare=True),
        Column("retryTimes", "RETRY", spare=True),
        Column("storeHost", "STORED AT", spare=True),
    ]
    empty = (
        f"No trace events of {msg_id} in topic {trace_topic}. Producers and consumers record them if message trace is "
        "enabled (enable_msg_trace, enableMsgTrace). They expire like other messages."
    )
    show.table([row | {"outcome": row["outcome"] or "pending"} for row in rows], columns, empty=empty)


# --- resending -------------------------------------------------------------------------------------------------------


@message.command("resend", short_help="resend a message to its topic or to one group")
@topic_argument
@click.argument("msg_id", metavar="ID")
@click.option("--group", shell_complete=complete_groups, help="only to this group, by its retry topic")
@click.option("--client", metavar="CLIENT", help="let this consumer of --group consume it directly")
@connection
@yes_option
@json_option
def resend(link: Link, topic: str, msg_id: str, group: str | None, client: str | None, yes: bool, as_json: bool) -> int:
    """Send a copy of a message to its topic, and so to every group, or to one group.

    With --client, an online consumer consumes the message itself once and reports the result.
    """
    if client is not None and group is None:
        raise click.UsageError("--client needs --group.")
    with link.admin() as admin:
        found = wanted(admin, topic, msg_id)
        if client is not None:
            assert group is not None
            return _consume(admin, found, group, client, yes, as_json)
        origin = admin.origin_topic(found)
        target = f"group {group}" if group is not None else f"topic {origin}, for all of its groups"
        show.confirm(f"Resend message {found.msg_id} to {target}?", yes)
        result = admin.resend(found, group=group)
    _print_result(result, as_json)
    return 0


def _consume(admin: Admin, found: MessageExt, group: str, client: str, yes: bool, as_json: bool) -> int:
    show.confirm(f"Let {client} of group {group} consume message {found.msg_id} now?", yes)
    result = admin.consume_directly(group, client, found)
    if as_json:
        show.document(result.to_value())
    else:
        taken = {"Result": result.consume_result, "Took": f"{result.spent_time_mills} ms", "Remark": result.remark}
        show.record(taken)
    return 0 if result.consume_result in ("CR_SUCCESS", "CR_COMMIT") else 1
