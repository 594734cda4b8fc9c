"""What ``rocket doctor --exactly-once`` tries as the exactly-once sink, up to the ledger's entry.

============================  ==========================================================================================
step                          what remains
============================  ==========================================================================================
settings of the brokers       nothing
entry at the name servers     nothing: it has a key of its own, and is deleted
staging topic                 a message that no ledger names; retention deletes it
ledger topic                  a record with the ledger's own id, which decides nothing; the offset 0 in a queue of
                              ``ledgerGroup`` that no query uses
target topic                  nothing: its ends are queried, and a message is pulled as after a crash
a topic that does not exist   nothing: a topic with another name is created as the sink would, and deleted
============================  ==========================================================================================

Each step is a request that the sink sends too, with the same account and the same names. RocketMQ has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_rocket.cli.commands.doctor_finding import Finding, guarded
from spark_rocket.cli.commands.doctor_grants import Target, is_missing_permission, remedy_of
from spark_rocket.cli.commands.doctor_pipeline import take, target_of
from spark_rocket.cli.commands.doctor_servers import check_durability
from spark_rocket.cli.connect import Link
from spark_rocket.errors import RocketError, TopicNotFoundError
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.requests.pipelines import SentRequest
from spark_rocket.protocol.wire.codes import RequestCode

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Producer, Reader
    from spark_rocket.datasource.exactly_once.replace import Evidence

_UNUSED_QUEUE = 1  # registers of queries begin at 1,024, and the ledger has one queue
_TRIAL_SUFFIX = "_DOCTOR"


@dataclass(frozen=True)
class SinkNames:
    """The names of a sink."""

    staging: str
    ledger: str
    group: str


class SinkCheck:
    """The steps of one sink."""

    def __init__(self, sink: SinkNames, target: Target, admin: Admin, reader: Reader, producer: Producer) -> None:
        self._sink = sink
        self._target = target
        self._admin = admin
        self._reader = reader
        self._producer = producer

    def settings(self, broker: str) -> Iterator[Finding]:
        step, about = SentRequest(RequestCode.GET_BROKER_CONFIG), f"broker {broker}, exactly once"
        try:
            config = self._admin.broker_config(broker)
        except RocketError as error:
            if not is_missing_permission(error, step):
                raise
            yield Finding(about, "ok", "does not show its settings to this account: check durability and retention")
            return
        yield from check_durability(broker, config)

    def entry(self) -> Finding:
        """Write an entry at the name servers, beside that of the ledger, and delete it."""
        from spark_rocket.datasource.exactly_once.entry import NAMESPACE, Entry

        key = self._sink.ledger + _TRIAL_SUFFIX

        def write() -> str:
            self._admin.put_kv_config(NAMESPACE, key, Entry("none").encode())
            self._admin.delete_kv_config(NAMESPACE, key)
            return "can be written"

        return take(
            f"entry {NAMESPACE}/{self._sink.ledger}", SentRequest(RequestCode.PUT_KV_CONFIG), self._target, write
        )

    def staging(self) -> Iterator[Finding]:
        topic = self._sink.staging
        queue = self._first(topic)
        if queue is None:
            yield self._creation(topic)
            return
        step = SentRequest(RequestCode.SEND_MESSAGE_V2, topic)
        yield take(f"send to {topic}", step, self._target, lambda: self._send(queue))
        yield self._pull(queue, 0)

    def ledger(self) -> Iterator[Finding]:
        from spark_rocket.datasource.exactly_once.replace import NO_ENTRY, ledger_evidence

        topic = self._sink.ledger
        queue = self._first(topic)
        if queue is not None:
            yield self._ends(queue)
            yield self._pull(queue, 0)
        evidence = ledger_evidence(self._admin, self._reader, topic)  # reads the ledger
        if queue is None and all(each.broker == NO_ENTRY for each in evidence):
            yield self._creation(topic)
            return
        place = _place_finding(topic, evidence)
        if queue is not None and place.grade != "wrong":
            yield from self._decisions(queue, evidence)
        yield place

    def _decisions(self, queue: MessageQueue, evidence: Sequence[Evidence]) -> Iterator[Finding]:
        topic, group = self._sink.ledger, self._sink.group
        record = SentRequest(RequestCode.SEND_MESSAGE_V2, topic)
        yield take(f"send to {topic}", record, self._target, lambda: self._append(queue, evidence))
        offsets = SentRequest(RequestCode.UPDATE_CONSUMER_OFFSET, topic, group)
        yield take(f"offsets of group {group}", offsets, self._target, lambda: self._commit(queue))

    def published(self, topic: str) -> Iterator[Finding]:
        """What the sink asks of a target topic beside sends."""
        queue = self._first(topic)
        if queue is not None:
            yield self._ends(queue)
            yield self._pull(queue, 0)

    # --- steps ----------------------------------------------------------------------------------------------------

    def _first(self, topic: str) -> MessageQueue | None:
        """The first queue that name servers know now; a client may cache others."""
        from spark_rocket.datasource.exactly_once.replace import ledger_queues

        return next(iter(ledger_queues(self._admin, topic)), None)

    def _ends(self, queue: MessageQueue) -> Finding:
        def ask() -> str:
            low, high = self._reader.min_offset(queue), self._reader.max_offset(queue)
            return f"{queue.name} has the offsets {low} to {high}"

        return take(f"ends of {queue.topic}", SentRequest(RequestCode.GET_MAX_OFFSET, queue.topic), self._target, ask)

    def _pull(self, queue: MessageQueue, offset: int) -> Finding:
        group = self._sink.group
        step = SentRequest(RequestCode.PULL_MESSAGE, queue.topic, group)

        def pull() -> str:
            return f"{queue.name}: {self._reader.pull(queue, offset, max_msgs=1).status.name}"

        return take(f"pull from {queue.topic} as group {group}", step, self._target, pull)

    def _send(self, queue: MessageQueue) -> str:
        sent = self._producer.send(Message.of(queue.topic, b"rocket doctor"), queue=queue)
        return f"stored at {queue.name} offset {sent.queue_offset} ({sent.status.name})"

    def _append(self, queue: MessageQueue, evidence: Sequence[Evidence]) -> str:
        from spark_rocket.datasource.exactly_once.records import id_record

        body, tag = id_record(next((each.ledger for each in evidence if each.source == queue.name), ""))
        sent = self._producer.send(Message.of(queue.topic, body, tags=tag), queue=queue)
        return f"stored at {queue.name} offset {sent.queue_offset} ({sent.status.name})"

    def _commit(self, queue: MessageQueue) -> str:
        unused = MessageQueue(queue.topic, queue.broker_name, _UNUSED_QUEUE)
        self._reader.commit_offset(self._sink.group, unused, 0)
        return "can be committed"

    def _creation(self, topic: str) -> Finding:
        """Create a topic beside a missing one, and delete it: the sink creates the missing one itself."""
        trial, about = topic + _TRIAL_SUFFIX, f"topic {topic}"
        step = SentRequest(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
        try:
            self._admin.create_topic(trial, 1)
        except RocketError as error:
            missing = TopicNotFoundError(f"does not exist, and cannot be created: {error.message}")
            remedy = f"{remedy_of(missing, step, self._target)} {remedy_of(error, step, self._target)}".rstrip()
            return Finding(about, "wrong", missing.message, remedy)
        with suppress(RocketError):
            self._admin.delete_topic(trial)
        return Finding(about, "ok", "does not exist: the first query creates it")


def _place_finding(ledger: str, evidence: Sequence[Evidence]) -> Finding:
    from spark_rocket.datasource.exactly_once.replace import NO_ENTRY, is_clear

    about = f"topic {ledger}"
    queues = [each for each in evidence if each.source.startswith(f"{ledger}/")]
    brokers = {each.broker for each in evidence}
    if len(queues) == 1 and is_clear(evidence):
        return Finding(about, "ok", f"has 1 queue on {queues[0].broker}, as all name servers have recorded")
    shown = ", ".join(f"{each.source}: {each.broker} {each.ledger}".rstrip() for each in evidence)
    if len(queues) == 1 and brokers == {NO_ENTRY, queues[0].broker}:
        text = f"has 1 queue, and its place is not recorded at all name servers yet ({shown})"
        return Finding(about, "warning", text, "The next query records it.")
    remedy = "Start the broker of the ledger. rocket offsets ledger shows its place; it must have one queue in all."
    return Finding(about, "wrong", f"has {len(queues)} queues ({shown})", remedy)


def check_exactly_once(link: Link, topic: str | None, target: str | None, sink: SinkNames) -> Iterator[Finding]:
    """Take the steps of the sink. ``topic`` limits the brokers whose settings are checked to its own and the sink's.

    ``target``: the topic to which ``--write`` sends a message.
    """
    from spark_rocket.client import Producer

    of_cluster = target_of(link)
    with (
        link.admin() as admin,
        link.reader(sink.group) as reader,
        Producer("rocket_doctor", **link.options(), send_timeout=link.timeout, member=False) as producer,
    ):
        check = SinkCheck(sink, of_cluster, admin, reader, producer)
        brokers = {*admin.cluster_info().broker_addr_table}
        if topic is not None:
            brokers = {name for each in (topic, sink.staging, sink.ledger) for name in _brokers_of(admin, each)}
        for broker in sorted(brokers):
            yield from guarded(f"broker {broker}, exactly once", check.settings(broker))
        yield check.entry()
        yield from guarded(f"topic {sink.staging}", check.staging())
        if target is not None:
            yield from guarded(f"topic {target}", check.published(target))
        yield from guarded(f"topic {sink.ledger}", check.ledger())


def _brokers_of(admin: Admin, topic: str) -> set[str]:
    """Return the brokers of a topic; none if it does not exist yet: the sink creates its own topics."""
    try:
        return {queue.broker_name for queue in admin.queues(topic)}
    except TopicNotFoundError:
        return set()
