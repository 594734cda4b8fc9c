"""Which topics were deleted, and when: ``config/deletedTopic.json``.

A deleted topic's records stay in the commit log until that is trimmed, and recovery would make its consume queues
anew from them. So the log's end at the time of deletion is kept for each deleted topic: its records below that offset
have no queue any more, while a topic of the same name made later is another one. The file is ours; RocketMQ has none
and ignores it (and lets deleted topics come back after a kill).

Written twice, to ``.bak`` and to the file itself, each to a temporary file, synced and renamed, before a queue's files
are removed: after a crash a topic is either still there or gone, and one damaged file does not bring it back.
Thread-safety: for the store's one thread.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.log.mapped_file import make_directory, sync_directory

_log = logging.getLogger(__name__)


class DeletedTopics:
    """Topic to the physical offset below which its records are a deleted topic's."""

    def __init__(self, store_path: Path) -> None:
        self.path = store_path / "config" / "deletedTopic.json"
        self.backup = self.path.with_name("deletedTopic.json.bak")
        self.offsets: dict[str, int] = {}

    def load(self) -> None:
        """Read the file, or its copy; StoreCorruptError when what there is cannot be read."""
        broken = None
        for path in (self.path, self.backup):
            try:
                self.offsets = self._read(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                broken = broken or error
                continue
            if path == self.backup:
                _log.warning("%s is missing or cannot be read; %s is used", self.path, self.backup.name)
            return
        if isinstance(broken, PermissionError):
            raise StoreCorruptError(
                f"{self.path} cannot be read: {broken.strerror}.",
                remedy=f"Give the user that runs this the right to read {self.path.parent} and what is in it.",
            )
        if broken is not None:
            raise StoreCorruptError(
                f"{self.path} cannot be read: {broken}.",
                remedy="Delete it and its .bak; `rocket store check` then lists the topics whose queues are missing: "
                "those that were deleted may come back after a kill, until they are deleted again.",
            )

    @staticmethod
    def _read(path: Path) -> dict[str, int]:
        table = json.loads(path.read_bytes())["deletedTopicTable"]
        return {str(topic): int(offset) for topic, offset in table.items()}

    def add(self, topic: str, offset: int, min_offset: int) -> None:
        """Note a deletion; those that lie before the log's beginning are forgotten. OSError: nothing is noted."""
        self._save({name: at for name, at in self.offsets.items() if at > min_offset} | {topic: offset})

    def forget_before(self, min_offset: int) -> None:
        """The log begins there now: records of topics that were deleted before are gone."""
        left = {name: at for name, at in self.offsets.items() if at > min_offset}
        if left != self.offsets:
            self._save(left)

    def cut(self, max_offset: int) -> None:
        """The log ends there now: what comes behind is of no deleted topic."""
        kept = {name: min(at, max_offset) for name, at in self.offsets.items()}
        if kept != self.offsets:
            self._save(kept)

    def _save(self, offsets: dict[str, int]) -> None:
        make_directory(self.path.parent)
        text = json.dumps({"deletedTopicTable": offsets}, indent="\t", ensure_ascii=False)
        for path in (self.backup, self.path):
            temporary = self.path.with_suffix(".tmp")
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        sync_directory(self.path.parent)
        self.offsets = offsets

    def covers(self, topic: str, physical_offset: int) -> bool:
        """Whether a record belongs to a topic that was deleted after it."""
        return physical_offset < self.offsets.get(topic, 0)
