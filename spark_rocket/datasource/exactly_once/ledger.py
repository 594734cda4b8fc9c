"""The ledger: the decisions of all sinks that share it, in a topic with one queue.

One queue is a total order, so the first PREPARED of an epoch is its decision, and all drivers read the same one: a
compare-and-set on an unmodified broker. A record is one message (``records.py``).

A query remembers two numbers as offsets of the group ``group_of``, which outlive the ledger's messages: for queue 0 the
position of its last PREPARED, where reading begins, and for queue 1 (which the topic does not have) one more than that
batch's number, which tells an epoch that never began from one whose records have expired. Batch writes do not: there
would be a group for each. Their records are found by tag, for as long as the broker keeps them.

A ``Ledger`` belongs to one ``commit``. Its methods may be called from several threads, one at a time. After a crash:
records are found as they are; a record that was sent twice counts once.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
from dataclasses import replace

from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.manifest import Epoch, Manifest
from spark_rocket.datasource.exactly_once.records import (
    DONE,
    LEDGER,
    PREPARED,
    RESUMED,
    VERSION,
    Record,
    parse_record,
    tag_of,
)
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers, Timing, is_refused
from spark_rocket.errors import DataSourceError, ProtocolError, QueueNotFoundError, RocketError
from spark_rocket.model import MessageExt, MessageQueue, SendStatus, group_problem
from spark_rocket.protocol.wire.json import dumps

INLINE_BYTES = 512 << 10
_WAIT_MS = 500

log = logging.getLogger("spark_rocket.datasource")


def group_of(ledger_topic: str, query: str) -> str:
    """The group whose offsets a streaming query remembers."""
    group = f"{ledger_topic}-{query}"
    return group if group_problem(group) is None else f"ROCKET_SINK-{tag_of(group)}"


class Ledger:
    """The records of one query that have been read."""

    def __init__(
        self,
        brokers: Brokers,
        queue: MessageQueue,
        staging: str,
        query: str,
        timing: Timing,
        *,
        is_stream: bool,
        ledger: str = "",
    ) -> None:
        """``ledger``: the id that its records must have, or empty."""
        self._brokers = brokers
        self.queue = queue
        self._staging = staging
        self._query = query
        self._ledger = ledger
        self._timing = timing
        self.is_stream = is_stream
        self._tags = "*" if is_stream else tag_of(query)
        self._group = group_of(queue.topic, query) if is_stream else None
        self._position: int | None = None
        self.records: list[Record] = []
        self.last_prepared: int | None = None
        """The last batch that the query remembers; None if it does not know."""
        self.publisher = uuid.uuid4().hex

    # --- reading ----------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the new records."""
        deadline = self._timing.deadline()
        end = deadline.call(lambda: self._brokers.end(self.queue), f"to ask for the end of {self.queue.name}")
        if end == 0 and self._ledger:
            raise self._replaced("it has never had a record")
        self._read_to(end)

    def _read_to(self, end: int) -> None:
        deadline, unseen = self._timing.deadline(), self._timing.deadline()
        if self._position is None:
            self._position = deadline.call(lambda: self._first(end), f"to ask for the start of {self.queue.name}")
        while self._position < end:
            position = self._position
            messages, following = deadline.call(
                lambda position=position: self._brokers.messages(  # type: ignore[misc]
                    self.queue, position, tags=self._tags, wait_ms=_WAIT_MS
                ),
                f"to read {self.queue.name}",
            )
            if following == position:
                problem = QueueNotFoundError(f"{self.queue.name} does not show its messages from {position} on yet.")
                problem.retriable = True
                unseen.wait(problem, f"to read {self.queue.name}")
            else:
                unseen.reset()
            self.records += filter(None, map(self._record, messages))
            self._position = following

    def _first(self, end: int) -> int:
        start = self._brokers.start(self.queue)
        if self._group is None:
            return start
        try:
            remembered, batch = (self._brokers.committed(self._group, queue) for queue in (self.queue, self._second))
        except RocketError as error:
            if not is_refused(error):
                raise
            log.warning("the sink reads all of %s: no permission for the offsets of group %s: %s", self.queue.topic,
                        self._group, error)  # fmt: skip
            return start
        self.last_prepared = batch - 1 if batch else None
        return remembered if remembered is not None and start <= remembered <= end else start

    @property
    def _second(self) -> MessageQueue:
        return MessageQueue(self.queue.topic, self.queue.broker_name, 1)

    def _record(self, message: MessageExt) -> Record | None:
        """None for another query's."""
        record = parse_record(message, self.queue)
        ledger = record.more.get("ledger")
        if self._ledger and ledger not in (None, self._ledger) and record.kind != LEDGER:
            raise self._replaced(f"record {record.offset} is of the ledger {ledger}, not of {self._ledger}")
        if record.query != self._query:
            return None
        if record.version != VERSION:
            raise self._other_version(record)
        return record

    def _replaced(self, problem: str) -> DataSourceError:
        return condition(
            "EXACTLY_ONCE.LEDGER_REPLACED", queue=self.queue.name, problem=problem, topic=self.queue.topic,
            name_server=self._brokers.name_server,
        )  # fmt: skip

    def _other_version(self, record: Record) -> DataSourceError:
        queue, offset, version = self.queue.name, record.offset, record.version
        return condition("EXACTLY_ONCE.LEDGER_VERSION", queue=queue, offset=offset, version=version, ours=VERSION)

    # --- decisions --------------------------------------------------------------------------------------------

    def decision(self, batch: int) -> Record | None:
        """The first PREPARED of a batch."""
        return next((record for record in self.records if (record.batch, record.kind) == (batch, PREPARED)), None)

    def owner(self, batch: int) -> str | None:
        """The publisher that decided a batch or resumed it last. A duplicate record does not count."""
        decision = self.decision(batch)
        resumed = [record.publisher for record in self.records if (record.batch, record.kind) == (batch, RESUMED)]
        return [*dict.fromkeys(resumed)][-1] if resumed else decision.publisher if decision else None

    def is_done(self, batch: int) -> bool:
        return any((record.batch, record.kind) == (batch, DONE) for record in self.records)

    def last_batch(self) -> int:
        """The newest batch of the query that has a record, or -1."""
        return max((record.batch for record in self.records), default=-1)

    def manifest(self, decision: Record) -> Manifest:
        """The manifest of a decision."""
        try:
            if "manifest" in decision.more:
                data = base64.b64decode(decision.more["manifest"])
            else:
                places = [(MessageQueue(*queue), at) for *queue, at in decision.more["parts"]]
                bodies = [self._brokers.staged_later(*place) for place in places]
                deadline = self._timing.deadline()
                data = b"".join(bytes(deadline.call(body, "to read the manifest")) for body in bodies)
            return Manifest.decode(data)
        except (ProtocolError, ValueError, KeyError, TypeError):
            raise self._other_version(replace(decision, version="unknown")) from None

    # --- writing ----------------------------------------------------------------------------------------------

    def append(self, kind: str, epoch: Epoch, **more: object) -> None:
        """Append a record and read up to it. One that is stored twice, because a response was lost, counts once."""
        own = {"ledger": self._ledger} if self._ledger else {}
        body = dumps(
            {
                "rocketSink": VERSION, "kind": kind, "query": epoch.query, "batch": epoch.batch, "run": epoch.run,
                "publisher": self.publisher, "time": time.time_ns() // 1_000_000, **own, **more,
            }
        )  # fmt: skip
        deadline = self._timing.deadline()
        while True:
            try:
                result = self._brokers.append(self.queue, body, tags=tag_of(epoch.query), keys=epoch.query)
                break
            except RocketError as error:
                deadline.wait(error, f"to append to {self.queue.name}")
        if result.status is not SendStatus.SEND_OK:
            self._brokers.confirm(self.queue.broker_name, self._staging, self._timing)
        self._read_to(result.queue_offset + 1)

    def remember(self, decision: Record) -> None:
        """Remember the query's last decision beyond the life of the ledger's messages."""
        if self._group is None:
            return
        try:
            self._brokers.commit(self._group, self.queue, decision.offset)
            self._brokers.commit(self._group, self._second, decision.batch + 1)
        except RocketError as error:
            log.warning(
                "batch %d of %s is not remembered as an offset of group %s, so a restart after the ledger's messages "
                "have expired is not noticed: %s", decision.batch, self._query, self._group, error,
            )  # fmt: skip
