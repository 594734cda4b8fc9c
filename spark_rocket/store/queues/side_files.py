"""Two small files of ours about queues, in ``config``; RocketMQ has neither and ignores them.

``deletedTopic.json``: which topics were deleted, and when. A deleted topic's records stay in the commit log until that
is trimmed, and recovery would make its consume queues anew from them (as RocketMQ does after a kill). So the log's end
at the time of deletion is kept for each deleted topic: its records below that offset have no queue any more, while a
topic of the same name made later is another one. Written twice, to ``.bak`` and to the file itself, before a queue's
files are removed: after a crash a topic is either still there or gone, and one damaged file does not bring it back.

``queueEnd.json``: where each queue ended at the last clean stop. A start does not read the whole log, so it cannot know
of a queue whose last message is old that its last file was emptied, or its directory lost: the queue would be short,
and its next message would get a number that was given before. Ends only grow, so what was written at the last clean
stop is a lower bound ever after. A deleted topic is taken out when it is deleted: one of the same name that is made
later counts from 0. A queue that is shorter makes recovery read the whole log; without the file, recovery does without.

Both are written to a temporary file, synced and renamed. Thread-safety: for the store's one thread.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.descriptors import replace_file
from spark_rocket.store.queues.queue_table import ConsumeQueueTable

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
        text = json.dumps({"deletedTopicTable": offsets}, indent="\t", ensure_ascii=False)
        for path in (self.backup, self.path):
            replace_file(path, text)
        self.offsets = offsets

    def covers(self, topic: str, physical_offset: int) -> bool:
        """Whether a record belongs to a topic that was deleted after it."""
        return physical_offset < self.offsets.get(topic, 0)


_log = logging.getLogger(__name__)


class QueueEnds:
    """Topic and queue id to the number of the message that comes next."""

    def __init__(self, store_path: Path) -> None:
        self.path = store_path / "config" / "queueEnd.json"
        self.table: dict[tuple[str, int], int] = {}

    def load(self) -> None:
        """Read the file. One that cannot be read is as good as none: it only helps to find other damage."""
        try:
            stored = json.loads(self.path.read_bytes())["queueEndTable"]
            self.table = {
                (topic, int(queue_id)): int(end) for topic, ends in stored.items() for queue_id, end in ends.items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("%s cannot be read (%s): it is written anew at the next stop", self.path, error)

    def save(self, queues: ConsumeQueueTable) -> None:
        """Write the ends of all queues; of those that were not opened, what was known before.

        Should that fail, what was written before stays: it is true as well.
        """
        known, self.table = self.table, {}
        for key, queue in sorted(queues.table.items()):
            end = queue.max_offset if queue.loaded else known.get(key, 0)
            if end:
                self.table[key] = end
        self._write()

    def forget(self, topic: str) -> None:
        """A topic is deleted."""
        left = {key: end for key, end in self.table.items() if key[0] != topic}
        if len(left) < len(self.table):
            self.table = left
            self._write()

    def forget_all(self) -> None:
        """Queues are about to become shorter."""
        if self.table:
            self.table = {}
            self._write()

    def _write(self) -> None:
        stored: dict[str, dict[str, int]] = {}
        for (topic, queue_id), end in self.table.items():
            stored.setdefault(topic, {})[str(queue_id)] = end
        try:
            replace_file(self.path, json.dumps({"queueEndTable": stored}, ensure_ascii=False))
        except OSError as error:
            _log.warning("%s could not be written: %s", self.path, error)

    def short(self, queues: ConsumeQueueTable, deleted: DeletedTopics) -> dict[tuple[str, int], int]:
        """The queues that end before they ended then, with the end they had. A deleted topic may have begun anew."""
        found = {}
        for key, end in self.table.items():
            if key[0] not in deleted.offsets:
                queue = queues.find(*key)
                if queue is None or queue.max_offset < end:
                    found[key] = end
        return found
