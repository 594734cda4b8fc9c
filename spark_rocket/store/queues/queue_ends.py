"""Where each queue ended at the last clean stop: ``config/queueEnd.json``.

A start does not read the whole log, so it cannot know of a queue whose last message is old that its last file was
emptied, or its directory lost: the queue would be short, and its next message would get a number that was given before.
Ends only grow, so what was written at the last clean stop is a lower bound ever after. A deleted topic is taken out
when it is deleted: one of the same name that is made later counts from 0. A queue that is shorter makes recovery read
the whole log; without the file, recovery does without. The file is ours; RocketMQ has none and ignores it.

Written to a temporary file, synced and renamed. Thread-safety: for the store's one thread.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from spark_rocket.store.log.mapped_file import make_directory, sync_directory
from spark_rocket.store.queues.deleted_topics import DeletedTopics
from spark_rocket.store.queues.queue_table import ConsumeQueueTable

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
        temporary = self.path.with_suffix(".tmp")
        try:
            make_directory(self.path.parent)
            with temporary.open("w", encoding="utf-8") as file:
                json.dump({"queueEndTable": stored}, file, ensure_ascii=False)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
            sync_directory(self.path.parent)
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
