"""What ``rocket doctor`` tries as a pipeline: read a topic as the reader's group, and send to a topic.

Each step is a request that the pipeline sends too, with the same names and the same account. So every missing
permission, topic or group is found, not only the first one. Reading leaves nothing behind; a message is sent only to a
topic that was given for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from spark_rocket.cli.commands.doctor_finding import Finding
from spark_rocket.cli.commands.doctor_grants import Target, remedy_of
from spark_rocket.cli.connect import Link
from spark_rocket.errors import ProxyUnsupportedError, RocketError, TopicNotFoundError
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.requests.pipelines import SentRequest
from spark_rocket.protocol.wire.codes import RequestCode

if TYPE_CHECKING:
    from spark_rocket.client import Reader

_MAX_CLOCK_DIFFERENCE_MS = 5_000
_SENT_BODY = b"rocket doctor"


def check_read(link: Link, topic: str, group: str) -> Iterator[Finding]:
    """Take the steps of a reader: the route, both ends of each queue, the group's offset, and one pull."""
    about, target = f"topic {topic}", target_of(link)
    with link.reader(group) as reader:
        try:
            queues = reader.refresh(topic)
        except RocketError as error:
            remedy = remedy_of(error, SentRequest(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic), target)
            if isinstance(error, TopicNotFoundError) and (other := _in_namespace(reader, topic)):
                remedy = f"There is {other}: set namespace {other.partition('%')[0]}, or use the full name."
            yield Finding(about, "wrong", error.message, remedy)
            return
        if not queues:
            remedy = "Set its permission to 6 or 4: rocket topic update, mqadmin updateTopicPerm."
            yield Finding(about, "wrong", "no queue of it is readable", remedy)
            return
        ends: dict[MessageQueue, tuple[int, int]] = {}

        def ask_ends() -> str:
            later = [(queue, reader.min_offset_later(queue), reader.max_offset_later(queue)) for queue in queues]
            ends.update({queue: (low.result(), high.result()) for queue, low, high in later})
            return f"{len(queues)} queues, {sum(high - low for low, high in ends.values()):,} messages"

        yield take(about, SentRequest(RequestCode.GET_MAX_OFFSET, topic), target, ask_ends)
        firsts = {queue.broker_name: queue for queue in reversed(queues)}
        yield take(
            f"offsets of group {group}",
            SentRequest(RequestCode.QUERY_CONSUMER_OFFSET, topic, group),
            target,
            lambda: _offsets(reader, group, firsts),
        )
        for broker, queue in sorted(firsts.items()):
            yield take(
                f"pull from {broker} as group {group}",
                SentRequest(RequestCode.PULL_MESSAGE, topic, group),
                target,
                lambda queue=queue: _pulled(reader, queue, ends.get(queue, (0, 0))[0]),  # type: ignore[misc]
            )


def check_write(link: Link, topic: str, group: str) -> Iterator[Finding]:
    """Send one message to a topic, and compare the broker's clock with this machine's."""
    from spark_rocket.client import Producer

    about = f"send to {topic}"
    stored: dict[MessageQueue, int] = {}

    def send() -> str:
        with Producer("rocket_doctor", **link.options(), send_timeout=link.timeout) as producer:
            sent = producer.send(Message.of(topic, _SENT_BODY))
        stored[sent.queue] = sent.queue_offset
        return f"stored at {sent.queue.name} offset {sent.queue_offset} ({sent.status.name})"

    target = target_of(link)
    with link.reader(group) as reader:
        begun = time.time_ns() // 1_000_000
        yield take(about, SentRequest(RequestCode.SEND_MESSAGE_V2, topic), target, send)
        ended = time.time_ns() // 1_000_000
        for queue, offset in stored.items():
            try:
                at = reader.store_time(queue, offset)
            except RocketError:  # an account that may only write
                return
            if at is not None:
                yield clock_finding(queue.broker_name, max(begun - at, at - ended, 0))


def clock_finding(broker: str, difference_ms: int) -> Finding:
    """Judge the difference between a clock of a broker and this machine's."""
    about = f"clock of {broker}"
    if difference_ms <= _MAX_CLOCK_DIFFERENCE_MS:
        return Finding(about, "ok", "agrees with this machine's")
    remedy = "Synchronise the clocks (NTP): start times, delays and retention use the broker's."
    return Finding(about, "warning", f"differs from this machine's by {difference_ms / 1000:.0f} s", remedy)


def take(about: str, step: SentRequest, target: Target, call: Callable[[], str]) -> Finding:
    """Take a step of a pipeline; its error becomes a problem with its remedy."""
    try:
        return Finding(about, "ok", call())
    except RocketError as error:
        return Finding(about, "wrong", error.message, remedy_of(error, step, target))


def _offsets(reader: Reader, group: str, queues: Mapping[str, MessageQueue]) -> str:
    found = [reader.committed_offset(group, queue) for queue in queues.values()]
    return "none yet" if all(offset is None for offset in found) else "found"


def _pulled(reader: Reader, queue: MessageQueue, offset: int) -> str:
    result = reader.pull(queue, offset, max_msgs=1)
    return f"{queue.name} at offset {offset}: {result.status.name}"


def target_of(link: Link) -> Target:
    """Return the cluster and the account of the connection options. RocketError without a name server."""
    from spark_rocket.client.core.client_config import find_credentials

    calling = link.options()
    keys = find_credentials(calling["access_key"], calling["secret_key"], calling.get("security_token"))
    with link.admin() as admin:
        try:
            clusters = sorted(admin.cluster_info().cluster_addr_table)
        except ProxyUnsupportedError:
            clusters = []
        servers = ";".join(admin.name_servers)
    return Target(servers, clusters[0] if clusters else "CLUSTER", keys.access_key if keys is not None else "ACCOUNT")


def _in_namespace(reader: Reader, topic: str) -> str:
    """Return a topic of this name in a namespace; empty if there is none, or if the topics cannot be listed."""
    try:
        return next((name for name in reader.topics() if name.endswith(f"%{topic}") and name[0] != "%"), "")
    except RocketError:
        return ""
