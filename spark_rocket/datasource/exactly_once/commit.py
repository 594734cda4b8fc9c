"""The driver's part of the exactly-once sink: decide an epoch, publish it, and record that it is done.

===================================  ===================================================================================
the ledger has                       then
===================================  ===================================================================================
DONE of this epoch                   nothing is left to do. A batch write with other target topics or another number of
                                     rows: EXACTLY_ONCE.WRITE_ID
a record of a later batch            another driver has this checkpoint, or had: EXACTLY_ONCE.OVERTAKEN
PREPARED of this epoch               it is decided. Append RESUMED, wait for ``gracePeriod``, read back, publish the
                                     rest of *that* manifest: the blocks of the repeated tasks are not used, only
                                     compared as with DONE
no record, but it was prepared       its records have expired: EXACTLY_ONCE.LEDGER_EXPIRED
no record                            append PREPARED. The first one wins
===================================  ===================================================================================

A publisher continues only while the newest record of its epoch is its own. It reads the ledger again before a send if
the last read is older than half of ``gracePeriod``. A send is pending for at most ``requestTimeout``, which is at most
the other half. So a driver that was suspended for minutes stops with a named error when it resumes.

Called once, in a process of its own; all state is in the ledger. An epoch without rows is decided like any other: else
a driver that was stopped before its decision could still publish rows of it.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from spark_rocket.common.units import moment_text
from spark_rocket.datasource.conditions import error as condition
from spark_rocket.datasource.exactly_once.lanes import lanes_of
from spark_rocket.datasource.exactly_once.ledger import INLINE_BYTES, Ledger
from spark_rocket.datasource.exactly_once.manifest import Epoch, Manifest, StagedBlock
from spark_rocket.datasource.exactly_once.publish import Publisher
from spark_rocket.datasource.exactly_once.records import DONE, PREPARED, RESUMED, Record
from spark_rocket.datasource.exactly_once.sink_brokers import Brokers, Timing
from spark_rocket.datasource.write.row_encoder import choose_queue
from spark_rocket.errors import DataLossError
from spark_rocket.model import SendResult, SendStatus

log = logging.getLogger("spark_rocket.datasource")


@dataclass(frozen=True, slots=True)
class Content:
    """What a write stores: the rows of each target topic, and a digest of what its tasks staged; empty if unknown.

    A decision records it, so that another write under the same name is noticed. The digest covers each partition's rows
    for each topic with their ids. A repeated write has the same digest if it computes the same rows in the same
    partitions; queues do not matter. It is only reported: a query may compute other rows when it is repeated.
    """

    topics: dict[str, int]
    digest: str = ""

    @classmethod
    def of(cls, blocks: Iterable[StagedBlock]) -> Content:
        """The content of what tasks have staged."""
        topics: dict[str, int] = {}
        sums: dict[tuple[str, int, bool], int] = {}
        for block in blocks:
            topic = block.target.topic
            topics[topic] = topics.get(topic, 0) + block.rows
            part = (topic, block.partition, block.is_delayed)
            sums[part] = sums.get(part, 0) + block.crc
        return cls(topics, hashlib.blake2b(repr(sorted(sums.items())).encode(), digest_size=16).hexdigest())

    @classmethod
    def of_record(cls, record: Record) -> Content | None:
        """The content that a decision or a DONE names; None for records of older versions."""
        topics = record.more.get("topics")
        return cls(topics, record.more.get("digest", "")) if isinstance(topics, dict) else None

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> Content:
        return cls(cls.of(manifest.blocks).topics)

    def members(self) -> dict[str, Any]:
        """The members of a record."""
        return {"topics": self.topics, "digest": self.digest}

    def __str__(self) -> str:
        parts = [f"{rows} rows for {topic}" for topic, rows in sorted(self.topics.items())]
        return ", ".join(parts) or "no rows"


class Commit:
    """One call of ``commit``."""

    def __init__(self, brokers: Brokers, ledger: Ledger, epoch: Epoch, staging: str, timing: Timing) -> None:
        self._brokers = brokers
        self._ledger = ledger
        self._epoch = epoch
        self._staging = staging
        self._timing = timing
        self._seen = 0.0  # when the ledger last showed this publisher as the owner
        self.is_new_run = False

    def run(self, blocks: Sequence[StagedBlock]) -> Manifest | None:
        """Commit the epoch. Returns the published manifest, or None if the epoch was done before."""
        begun = time.monotonic()
        ledger, batch, content = self._ledger, self._epoch.batch, Content.of(blocks)
        ledger.read()
        self.is_new_run = not ledger.records or ledger.records[-1].run != self._epoch.run
        if ledger.is_done(batch):
            log.info("batch %d of %s was published before", batch, self._epoch.query)
            self._compare(content)
            return None
        self._check_overtaken(max(ledger.last_batch(), ledger.last_prepared or 0))
        decision = ledger.decision(batch)
        if decision is None and batch == ledger.last_prepared:
            raise condition(
                "EXACTLY_ONCE.LEDGER_EXPIRED", batch=batch, query=self._epoch.query, topic=ledger.queue.topic
            )
        decision = decision or self._decide(blocks, content)
        own = decision.publisher == ledger.publisher
        manifest = ledger.manifest(decision)
        publisher = Publisher(self._brokers, self._epoch, manifest, self._staging, self._timing, self._fence)
        ledger.remember(decision)
        reading = 0.0 if own else self._resume(publisher)
        if ledger.is_done(batch):
            self._compare(content)
            return None
        publisher.publish()
        publisher.check(publisher.recovered if own else publisher.lanes)
        self._done(publisher, manifest, own, reading, time.monotonic() - begun)
        if not own:
            self._compare(content)
        return manifest

    def _compare(self, content: Content) -> None:
        """Compare what this call was to write with the decided epoch, which is published now.

        A repeated micro-batch may have other rows. A batch write with other topics or another number of rows is another
        write, which must not be dropped.
        """
        epoch, ledger = self._epoch, self._ledger
        records = [record for record in ledger.records if record.batch == epoch.batch]
        decision = ledger.decision(epoch.batch) or records[-1]
        before = Content.of_record(decision) or Content.of_record(records[-1])
        if before is None and decision.kind == PREPARED:  # of an older version
            with suppress(DataLossError):  # a part of the manifest has expired
                before = Content.of_manifest(ledger.manifest(decision))
        if before is None:
            before = Content({"unknown topics": int(records[-1].more.get("rows", 0))})
            content = Content({"unknown topics": sum(content.topics.values())})
        at = moment_text(decision.more.get("time", 0), "seconds", UTC)
        if ledger.is_stream:
            if before.topics.keys() != content.topics.keys() and before.topics and content.topics:
                log.warning("batch %d of %s was decided at %s with %s, and is published there; this run has %s",
                            epoch.batch, epoch.query, at, before, content)  # fmt: skip
            return
        if before.topics != content.topics:
            raise condition("EXACTLY_ONCE.WRITE_ID", write_id=epoch.query, time=at, before=before, now=content)
        if decision.publisher != ledger.publisher:
            same = {"": "an unknown digest", content.digest: "the same digest"}.get(
                before.digest, "another digest: other rows or partitions"
            )
            log.warning("writeId %s was used at %s for %s, with %s: this write is not published again",
                        epoch.query, at, before, same)  # fmt: skip

    def _check_overtaken(self, newest: int) -> None:
        if newest > self._epoch.batch:
            raise condition(
                "EXACTLY_ONCE.OVERTAKEN", batch=self._epoch.batch, query=self._epoch.query, by=f"batch {newest}"
            )

    def _decide(self, blocks: Sequence[StagedBlock], content: Content) -> Record:
        """Decide the epoch with these blocks. Returns its decision, which may be that of another driver."""
        sources = dict.fromkeys(queue for lane in lanes_of(blocks, self._epoch) for queue in lane.sources)
        deadline = self._timing.deadline()
        ends = deadline.call(lambda: self._brokers.ends(sources), "to ask where the target queues end")
        data = Manifest(list(blocks), ends).encode()
        self._seen = self._timing.clock()
        more = content.members() | self._name()
        if len(data) <= INLINE_BYTES:
            self._ledger.append(PREPARED, self._epoch, manifest=base64.b64encode(data).decode(), **more)
        else:
            self._ledger.append(PREPARED, self._epoch, parts=self._stage_parts(data), **more)
        self._check_overtaken(self._ledger.last_batch())
        decision = self._ledger.decision(self._epoch.batch)
        if decision is None:
            problem = "a record that it had stored in the ledger is gone"
            raise condition("EXACTLY_ONCE.NOT_DURABLE", broker=self._ledger.queue.broker_name, problem=problem)
        return decision

    def _name(self) -> dict[str, str]:
        return {"name": self._epoch.name} if self._epoch.name else {}

    def _stage_parts(self, data: bytes) -> list[tuple[str, str, int, int]]:
        """Stage a manifest that is too large for a record of the ledger."""
        parts, unconfirmed = [], set()
        deadline = self._timing.deadline()
        for number, start in enumerate(range(0, len(data), INLINE_BYTES)):
            part = data[start : start + INLINE_BYTES]

            def stage(number: int = number, part: bytes = part) -> SendResult:
                queues = self._brokers.queues(self._staging)
                return self._brokers.append(choose_queue(number, queues, self._epoch.query.encode()[:64]), part)

            result = deadline.call(stage, "to stage the manifest")
            queue = result.queue
            parts.append((queue.topic, queue.broker_name, queue.queue_id, result.queue_offset))
            if result.status is not SendStatus.SEND_OK:
                unconfirmed.add(queue.broker_name)
        for broker in unconfirmed:
            self._brokers.confirm(broker, self._staging, self._timing)
        return parts

    def _resume(self, publisher: Publisher) -> float:
        """Take the epoch over and read it back. Returns the seconds that reading back took."""
        self._seen = self._timing.clock()
        self._ledger.append(RESUMED, self._epoch)
        if self._ledger.is_done(self._epoch.batch):
            return 0.0
        publisher.settle(publisher.lanes)
        begun = time.monotonic()
        publisher.read_back(publisher.lanes)
        publisher.check_staged()
        return time.monotonic() - begun

    def _fence(self) -> None:
        """Raise EXACTLY_ONCE.OVERTAKEN if another publisher owns the epoch."""
        now = self._timing.clock()
        if now - self._seen < self._timing.grace / 2:
            return
        self._ledger.read()
        self._check_overtaken(self._ledger.last_batch())
        owner = self._ledger.owner(self._epoch.batch)
        if owner != self._ledger.publisher or self._ledger.is_done(self._epoch.batch):
            raise condition(
                "EXACTLY_ONCE.OVERTAKEN", batch=self._epoch.batch, query=self._epoch.query, by=f"publisher {owner}"
            )
        self._seen = now

    def _done(self, publisher: Publisher, manifest: Manifest, own: bool, reading: float, seconds: float) -> None:
        figures = {
            "blocks": len(manifest.blocks), "rows": manifest.rows, "bytes": manifest.size,
            "published": publisher.published, "duplicates": publisher.duplicates, "ms": round(seconds * 1000),
        }  # fmt: skip
        topics = Content.of_manifest(manifest).topics
        self._ledger.append(DONE, self._epoch, **figures, topics=topics, **self._name())
        self._ledger.show_progress()
        log.info(
            "batch %d of %s is published %s resumed=%s readBackMs=%d",
            self._epoch.batch, self._epoch.query, " ".join(f"{key}={value}" for key, value in figures.items()),
            str(not own).lower(), reading * 1000,
        )  # fmt: skip
        if publisher.duplicates:
            where = ", ".join(sorted({lane.queue.topic for lane in publisher.lanes if lane.duplicates}))
            count, batch = publisher.duplicates, self._epoch.batch
            log.error("%s", condition("EXACTLY_ONCE.DUPLICATES", count=count, batch=batch, where=where))
