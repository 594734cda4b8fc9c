"""What ``rocket doctor --exactly-once`` tries as the exactly-once sink, up to the ledger's entry.

============================  ==========================================================================================
step                          what remains
============================  ==========================================================================================
settings of the brokers       nothing
entry at the name servers     nothing: it has a key of its own, and is deleted; by the next doctor if this one is
                              killed in between
staging topic                 a message that no ledger names; retention deletes it
ledger topic                  a record with the ledger's own id, which decides nothing; the offset 0 in a queue of
                              ``ledgerGroup`` that no query uses
target topic                  nothing: its ends are queried, and a message is pulled as after a crash
a topic that does not exist   nothing: brokers refuse the topics that they are asked for after a check of the account
============================  ==========================================================================================

With ``ledgerBroker`` there is no entry, no topic is created, and nothing is sent while the ledger was never used: a
record begins a ledger for good, and a used staging topic tells of a ledger.

Each step is a request that the sink sends too, with the same account and the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_rocket.cli.commands.doctor_finding import Finding, guarded
from spark_rocket.cli.commands.doctor_grants import Target, is_missing_permission, remedy_of
from spark_rocket.cli.commands.doctor_pipeline import take, target_of
from spark_rocket.cli.commands.doctor_servers import check_durability
from spark_rocket.cli.connect import Link
from spark_rocket.errors import ProxyUnsupportedError, RocketError, TopicNotFoundError
from spark_rocket.model import SELF_TEST_TOPIC, Message, MessageQueue
from spark_rocket.protocol.requests.pipelines import SentRequest
from spark_rocket.protocol.wire.codes import RequestCode

if TYPE_CHECKING:
    from spark_rocket.client import Admin, Producer, Reader
    from spark_rocket.datasource.exactly_once.replace import Evidence

_UNUSED_QUEUE = 1  # registers of queries begin at 1,024, and the ledger has one queue
_ASK = "Ask its administrator for flushDiskType, brokerRole and fileReservedTime."
_TRIAL_SUFFIX = "_DOCTOR"
_NO_ATTRIBUTE = "rocket"
# Texts of Apache's TopicValidator and AttributeParser; accounts are checked before (CreateTopicRequestHeader: Create).
_CHECKED = re.compile("conflict with system topic|attribute format is wrong")
_SEND_BEFORE = "Grant PUB on the staging topic and the ledger topic: a send would make them unfit for the first query."


@dataclass(frozen=True)
class SinkNames:
    """The names of a sink."""

    staging: str
    ledger: str
    group: str
    place: MessageQueue | None = None
    """The ledger's queue with ledgerBroker; None if entries of the name servers have its place."""


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
            if isinstance(error, ProxyUnsupportedError):
                yield Finding(about, "warning", "is behind a proxy, which does not show its settings", _ASK)
                return
            if not is_missing_permission(error, step):
                raise
            yield Finding(about, "ok", "does not show its settings to this account: check durability and retention")
            return
        yield from check_durability(broker, config)

    def entry(self) -> Finding:
        """Write an entry at the name servers, beside that of the ledger, and delete it."""
        from spark_rocket.datasource.exactly_once.entry import NAMESPACE, LedgerEntry

        key = self._sink.ledger + _TRIAL_SUFFIX

        def write() -> str:
            self._admin.put_kv_config(NAMESPACE, key, LedgerEntry("none").encode())
            self._admin.delete_kv_config(NAMESPACE, key)
            return "can be written"

        return take(
            f"entry {NAMESPACE}/{self._sink.ledger}", SentRequest(RequestCode.PUT_KV_CONFIG), self._target, write
        )

    def staging(self) -> Iterator[Finding]:
        topic = self._sink.staging
        queue = self._first(topic)
        if queue is None:
            yield self._creation(topic) if self._sink.place is None else self._missing(topic)
            return
        step = SentRequest(RequestCode.SEND_MESSAGE_V2, topic)
        if self._sink.place is not None and not self._is_used(self._sink.place):
            yield Finding(f"send to {topic}", "warning", "not tried before the first query", _SEND_BEFORE)
        else:
            yield take(f"send to {topic}", step, self._target, lambda: self._send(queue))
        yield self._pull(queue, 0)

    def ledger(self) -> Iterator[Finding]:
        from spark_rocket.datasource.exactly_once.replace import NO_ENTRY, ledger_evidence

        topic = self._sink.ledger
        if self._sink.place is not None:
            yield from self._given_ledger(self._sink.place)
            return
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

    def _given_ledger(self, queue: MessageQueue) -> Iterator[Finding]:
        """The queue that ledgerBroker and ledgerQueue name. A record would begin a ledger there, so none does."""
        from spark_rocket.datasource.exactly_once.replace import NO_QUEUE, given_evidence, is_clear

        about = f"topic {queue.topic}"
        if self._first(queue.topic) is None:
            yield self._missing(queue.topic)
            return
        evidence = given_evidence(self._admin, self._reader, queue)
        shown = ", ".join(f"{each.source}: {each.broker} {each.ledger}".rstrip() for each in evidence)
        if evidence[-1].broker == NO_QUEUE:
            remedy = "Name one of its queues: ledgerBroker and ledgerQueue (rocket topic route shows them)."
            yield Finding(about, "wrong", f"has no queue {queue.name}", remedy)
            return
        yield self._ends(queue)
        yield self._pull(queue, 0)
        is_unused = not self._is_used(queue)
        if not is_clear(evidence) or (is_unused and (len(evidence) > 1 or self._is_staging_used())):
            why = (
                "was never used, but a ledger exists, or existed, elsewhere" if is_unused else "is not the only ledger"
            )
            remedy = "Give the place that existing queries have, or topics that no sink has used."
            yield Finding(about, "wrong", f"{queue.name} {why} ({shown})", remedy)
        elif is_unused:
            yield Finding(
                about, "warning", f"{queue.name} was never used: the first query begins the ledger", _SEND_BEFORE
            )
        else:
            yield from self._decisions(queue, evidence)
            yield Finding(about, "ok", f"{queue.name} is the ledger")

    def _is_used(self, queue: MessageQueue) -> bool:
        from spark_rocket.datasource.exactly_once.replace import ledger_queues

        return queue in ledger_queues(self._admin, queue.topic) and self._reader.max_offset(queue) > 0

    def _is_staging_used(self) -> bool:
        from spark_rocket.datasource.exactly_once.replace import ledger_queues

        return any(map(self._reader.max_offset, ledger_queues(self._admin, self._sink.staging)))

    def _missing(self, topic: str) -> Finding:
        """With ledgerBroker, the sink creates no topics."""
        missing = TopicNotFoundError("does not exist, and with ledgerBroker the sink does not create it")
        step = SentRequest(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
        return Finding(f"topic {topic}", "wrong", missing.message, remedy_of(missing, step, self._target))

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
        """Ask for topics that brokers refuse after they checked the account: the sink creates the missing one itself.

        That is a system topic. ACL 2.0 grants single names, and its brokers know attributes: they refuse the missing
        topic itself for an attribute that is none. The accounts of ACL 1.0 are refused again.
        """
        about, step = f"topic {topic}", SentRequest(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
        error = self._refusal(SELF_TEST_TOPIC)
        if error is not None and is_missing_permission(error, step):
            error = self._refusal(topic, _NO_ATTRIBUTE)
        if error is None or _CHECKED.search(error.message):
            return Finding(about, "ok", "does not exist: the first query creates it")
        missing = TopicNotFoundError(f"does not exist, and cannot be created: {error.message}")
        remedy = f"{remedy_of(missing, step, self._target)} {remedy_of(error, step, self._target)}".rstrip()
        return Finding(about, "wrong", missing.message, remedy)

    def _refusal(self, topic: str, attributes: str | None = None) -> RocketError | None:
        try:
            self._admin.create_topic(topic, 1, attributes=attributes)
        except RocketError as error:
            return error
        return None


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
        for broker in sorted(_brokers(admin, topic, sink)):
            yield from guarded(f"broker {broker}, exactly once", check.settings(broker))
        if sink.place is None:
            yield check.entry()
        yield from guarded(f"topic {sink.staging}", check.staging())
        if target is not None:
            yield from guarded(f"topic {target}", check.published(target))
        yield from guarded(f"topic {sink.ledger}", check.ledger())


def _brokers(admin: Admin, topic: str | None, sink: SinkNames) -> set[str]:
    """Return the brokers to check; the brokers of the topics where a proxy does not tell all brokers."""
    if topic is None:
        with suppress(ProxyUnsupportedError):
            return {*admin.cluster_info().broker_addr_table}
    topics = filter(None, (topic, sink.staging, sink.ledger))
    return {name for each in topics for name in _brokers_of(admin, each)}


def _brokers_of(admin: Admin, topic: str) -> set[str]:
    """Return the brokers of a topic; none if it does not exist yet: the sink creates its own topics."""
    try:
        return {queue.broker_name for queue in admin.queues(topic)}
    except TopicNotFoundError:
        return set()
