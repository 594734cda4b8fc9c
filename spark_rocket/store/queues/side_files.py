"""Two small files about queues in ``config``, specific to this project; RocketMQ ignores them.

``deletedTopic.json``: deleted topics, and the log's end at the time of deletion. A deleted topic's records stay in the
commit log until it is trimmed, and recovery would rebuild its consume queues from them (as RocketMQ does after a kill).
Records below the stored offset therefore have no queue. A topic recreated later under the same name has records above
it. The file is written twice, to ``.bak`` and to the file itself, before a queue's files are removed. After a crash a
topic is either still there or gone, and one damaged file does not bring it back.

``queueEnd.json``: the end of each queue at the last clean stop. A start does not read the entire log. For a queue whose
last message is old, it could not detect that the queue's last file was emptied or its directory lost. The queue would
be short, and its next message would get a duplicate offset. Ends only grow, so the stored end remains a lower bound. A
deleted topic is removed from the file; a recreated topic starts at 0. A shorter queue makes recovery read the entire
log. Without the file, recovery skips this check. ``logBegin`` is the log's beginning: retention advances it before it
deletes files, so a log that begins later has lost files in another way (recovery/lost_begin.py).

Both are written to a temporary file, synced and renamed.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.descriptors import replace_file, sync_directory
from spark_rocket.store.queues.queue_table import ConsumeQueueTable

_log = logging.getLogger(__name__)


class DeletedTopics:
    """Deleted topics, each with the physical offset below which its records are deleted."""

    def __init__(self, store_path: Path) -> None:
        self.path = store_path / "config" / "deletedTopic.json"
        self.backup = self.path.with_name("deletedTopic.json.bak")
        self.offsets: dict[str, int] = {}

    def load(self) -> None:
        """Read the file, or its copy; StoreCorruptError if both are unreadable."""
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
                _log.warning("%s is missing or cannot be read; using %s", self.path, self.backup.name)
            return
        if isinstance(broken, PermissionError):
            raise StoreCorruptError(
                f"{self.path} cannot be read: {broken.strerror}.",
                remedy=f"Give the user of this process read permission for {self.path.parent} and its files.",
            )
        if broken is not None:
            raise StoreCorruptError(
                f"{self.path} cannot be read: {broken}.",
                remedy="Delete it and its .bak; `rocket store check` then lists the topics whose queues are missing. "
                "Deleted topics may come back after a kill, until you delete them again.",
            )

    @staticmethod
    def _read(path: Path) -> dict[str, int]:
        table = json.loads(path.read_bytes())["deletedTopicTable"]
        return {str(topic): int(offset) for topic, offset in table.items()}

    def add(self, topic: str, offset: int, min_offset: int) -> None:
        """Record a deletion; remove deletions before the log's beginning. OSError: nothing was changed."""
        self._save({name: at for name, at in self.offsets.items() if at > min_offset} | {topic: offset})

    def forget_before(self, min_offset: int) -> None:
        """Remove deletions before the log's new beginning: their records are gone."""
        left = {name: at for name, at in self.offsets.items() if at > min_offset}
        if left != self.offsets:
            self._save(left)

    def cut(self, max_offset: int) -> None:
        """Lower the offsets to the log's new end: later records belong to existing topics."""
        lowered = {name: min(at, max_offset) for name, at in self.offsets.items()}
        if lowered != self.offsets:
            self._save(lowered)

    def _save(self, offsets: dict[str, int]) -> None:
        text = json.dumps({"deletedTopicTable": offsets}, indent="\t", ensure_ascii=False)
        for path in (self.backup, self.path):
            replace_file(path, text)
        self.offsets = offsets

    def covers(self, topic: str, physical_offset: int) -> bool:
        """Return whether a record belongs to a topic that was deleted after it."""
        return physical_offset < self.offsets.get(topic, 0)


class QueueEnds:
    """End of each queue (the next message's offset), by topic and queue id."""

    def __init__(self, store_path: Path) -> None:
        self.path = store_path / "config" / "queueEnd.json"
        self.table: dict[tuple[str, int], int] = {}
        self.log_begin = -1
        """Beginning of the log; −1 if unknown."""
        self._is_written = True
        self.existed = False
        """Whether the file existed at start: the store was stopped cleanly before."""

    def load(self) -> None:
        """Read the file. An unreadable file is ignored: it only helps to find other damage."""
        self.existed = self.path.exists()
        try:
            stored = json.loads(self.path.read_bytes())
            self.table = {
                (topic, int(queue_id)): int(end)
                for topic, ends in stored["queueEndTable"].items()
                for queue_id, end in ends.items()
            }
            self.log_begin = int(stored.get("logBegin", -1))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("ignored unreadable %s (%s): it is rewritten at the next stop", self.path, error)

    def save(self, queues: ConsumeQueueTable, log_begin: int) -> None:
        """Write the ends of all queues; for unopened queues, the ends read before. And the log's beginning.

        A loss of the log's first files stays on record. If the write fails, the old file stays: it is valid too.
        """
        self.log_begin = log_begin if self.log_begin < 0 else min(self.log_begin, log_begin)
        known, self.table = self.table, {}
        for key, queue in sorted(queues.table.items()):
            end = queue.max_offset if queue.loaded else known.get(key, 0)
            if end:
                self.table[key] = end
        self._write()

    def begin_at(self, log_begin: int) -> None:
        """Write the log's new beginning, before files are deleted. Nothing to do before the first clean stop.

        Where a full disk prevents that, the file is removed: the former beginning would make the deletion a loss.
        """
        if self.log_begin >= 0:
            self.log_begin = log_begin
            self._write()
            if not self._is_written:
                self._remove()

    def retry(self) -> None:
        """Repeat a failed write."""
        if not self._is_written:
            self._write()

    def forget(self, topic: str) -> None:
        """Remove a deleted topic."""
        left = {key: end for key, end in self.table.items() if key[0] != topic}
        if len(left) < len(self.table):
            self.table = left
            self._write()

    def forget_all(self) -> None:
        """Remove all ends, before queues become shorter."""
        if self.table:
            self.table = {}
            self._write()

    def _write(self) -> None:
        stored: dict[str, dict[str, int]] = {}
        for (topic, queue_id), end in self.table.items():
            stored.setdefault(topic, {})[str(queue_id)] = end
        content = {"logBegin": self.log_begin, "queueEndTable": stored}
        self._is_written = False
        try:
            replace_file(self.path, json.dumps(content, ensure_ascii=False))
            self._is_written = True
        except OSError as error:
            _log.warning("cannot write %s: %s", self.path, error)

    def _remove(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
            sync_directory(self.path.parent)
        except OSError as error:
            _log.warning("cannot remove %s: %s", self.path, error)

    def short(self, queues: ConsumeQueueTable, deleted: DeletedTopics) -> dict[tuple[str, int], int]:
        """Return queues that are shorter than at the last clean stop, with their ends then. Skips deleted topics."""
        found = {}
        for key, end in self.table.items():
            if key[0] not in deleted.offsets:
                queue = queues.find(*key)
                if queue is None or queue.max_offset < end:
                    found[key] = end
        return found
