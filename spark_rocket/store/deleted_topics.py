"""Which topics were deleted, and when: ``config/deletedTopic.json``.

A deleted topic's records stay in the commit log until that is trimmed, and recovery would make its consume queues
anew from them. So the log's end at the time of deletion is kept for each deleted topic: its records below that offset
have no queue any more, while a topic of the same name made later is another one. The file is ours; RocketMQ has none
and ignores it (and lets deleted topics come back after a kill).

Written to a temporary file, synced and renamed, before a queue's files are removed: after a crash a topic is either
still there or gone. Thread-safety: for the store's one thread.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.mapped_file import sync_directory


class DeletedTopics:
    """Topic to the physical offset below which its records are a deleted topic's."""

    def __init__(self, store_path: Path) -> None:
        self.path = store_path / "config" / "deletedTopic.json"
        self.offsets: dict[str, int] = {}

    def load(self) -> None:
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return
        try:
            table = json.loads(raw)["deletedTopicTable"]
            self.offsets = {str(topic): int(offset) for topic, offset in table.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StoreCorruptError(
                f"{self.path} cannot be read.",
                remedy="Delete it; deleted topics may then come back after a kill, until they are deleted again.",
            ) from None

    def add(self, topic: str, offset: int, min_offset: int) -> None:
        """Note a deletion; those that lie before the log's beginning are forgotten."""
        self.offsets[topic] = offset
        self.offsets = {name: at for name, at in self.offsets.items() if at > min_offset or name == topic}
        self.path.parent.mkdir(exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"deletedTopicTable": self.offsets}, file, indent="\t", ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        sync_directory(self.path.parent)

    def covers(self, topic: str, physical_offset: int) -> bool:
        """Whether a record belongs to a topic that was deleted after it."""
        return physical_offset < self.offsets.get(topic, 0)
