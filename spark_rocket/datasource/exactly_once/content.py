"""The content of a write: its target topics, the rows of each, and a digest of what its tasks staged.

A decision records it, so that another write under the same name is noticed. The digest covers each partition's rows for
each topic with their ids. A repeated write has the same digest if it computes the same rows in the same partitions;
queues do not matter. It is only reported: a query may compute other rows when it is repeated.

Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from spark_rocket.datasource.exactly_once.manifest import Manifest, StagedBlock
from spark_rocket.datasource.exactly_once.records import Record


@dataclass(frozen=True, slots=True)
class Content:
    """``topics``: the rows of each target topic. ``digest`` is empty if it is unknown."""

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
