"""The ledger: the decisions of all sinks that share it, in a topic with one queue.

One queue is a total order, so the first PREPARED of an epoch is its decision, and all drivers read the same one: a
compare-and-set on an unmodified broker. A record is one message (``records.py``).

A query remembers two numbers, which outlive the ledger's messages (``registers.py``): the position of its last
PREPARED, where reading begins, and that batch's number, which tells an epoch that never began from one whose records
have expired. The position is trusted if the record there is a PREPARED of the query. Otherwise the ledger is read
from its start. Batch writes remember nothing, because each has a name of its own. Their records are found by tag, for
as long as the broker keeps them.

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
from spark_rocket.datasource.exactly_once.registers import Registers
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers, Timing
from spark_rocket.errors import DataSourceError, ProtocolError, QueueNotFoundError, RocketError
from spark_rocket.model import MessageExt, MessageQueue, SendStatus
from spark_rocket.protocol.wire.json import dumps

INLINE_BYTES = 512 << 10
_WAIT_MS = 500

log = logging.getLogger("spark_rocket.datasource")


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
        self._registers = Registers(brokers, queue, query)
        self._position: int | None = None
        self._remembered: int | None = None
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
            if position == self._remembered and following != position:
                self._remembered = None
                if messages and not self._is_decision(messages[0], position):
                    log.warning("offset %d of %s is remembered for %s and has another record: reading the ledger from "
                                "its start", position, self.queue.name, self._query)  # fmt: skip
                    self._position = deadline.call(self._start, f"to ask for the start of {self.queue.name}")
                    continue
            self.records += filter(None, map(self._record, messages))
            self._position = following

    def _start(self) -> int:
        return self._brokers.start(self.queue)

    def _first(self, end: int) -> int:
        start = self._start()
        if not self.is_stream:
            return start
        memory = self._registers.read()
        self.last_prepared = memory.batch
        if memory.position is None or not start <= memory.position < end:
            return start
        self._remembered = memory.position
        return memory.position

    def _is_decision(self, message: MessageExt, position: int) -> bool:
        record = parse_record(message, self.queue)
        return (record.query, record.kind, record.offset) == (self._query, PREPARED, position)

    def _record(self, message: MessageExt) -> Record | None:
        """Return the record of a message; None if it is of another query."""
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
        if not self.is_stream:
            return
        try:
            self._registers.write(decision.offset, decision.batch)
        except RocketError as error:
            log.warning(
                "batch %d of %s is not remembered as an offset of group %s, so a restart after the ledger's messages "
                "have expired is not noticed: %s", decision.batch, self._query, self._brokers.group, error,
            )  # fmt: skip

    def show_progress(self) -> None:
        """Let tools that show lags know that the ledger is read."""
        try:
            self._registers.show_progress(self._position or 0)
        except RocketError as error:
            log.info("the progress of group %s in %s is not shown: %s", self._brokers.group, self.queue.name, error)
