"""Files lost from the beginning of the commit log, which look as if retention had deleted them.

``config/queueEnd.json`` has the log's beginning at the last clean stop. Retention advances it before it deletes files.
A log that begins later has therefore lost files. The consume queues still have entries for their messages, until
they are trimmed. The loss is reported at each start and by the store check, until retention advances the beginning or
the file is deleted. It does not prevent the start: Apache's retention does not know the file, and if it ran on the
directory in between, nothing is wrong.

Thread-safety: pure but for reading the files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_rocket.store.log.mapped_file_queue import MappedFileQueue
from spark_rocket.store.queues.consume_queue import ConsumeQueue

REMEDY = (
    "Restore the files from a backup. If the retention of another broker has deleted them, or to accept the loss, "
    "delete config/queueEnd.json while the broker is stopped."
)
_MAX_QUEUES = 20


@dataclass(frozen=True, slots=True)
class LostBegin:
    """The range of the log without files, and the number of lost messages by topic and queue id."""

    start: int
    end: int
    queues: dict[tuple[str, int], int]

    def __str__(self) -> str:
        places = [f"{topic} queue {queue_id} ({count})" for (topic, queue_id), count in self.queues.items()]
        more = f" and {len(places) - _MAX_QUEUES} more" if len(places) > _MAX_QUEUES else ""
        text = (
            f"the log begins at offset {self.end}, but began at {self.start}: {self.end - self.start} bytes are lost "
            "that retention has not deleted"
        )
        if not places:
            return text
        return f"{text}, with {sum(self.queues.values())} messages of {', '.join(places[:_MAX_QUEUES])}{more}"


def find_lost_begin(recorded: int, log: MappedFileQueue, queues: Iterable[ConsumeQueue]) -> LostBegin | None:
    """Return what is lost before the log's beginning; None if nothing is. ``recorded``: the beginning, or -1."""
    if not log.files or not 0 <= recorded < log.min_offset:
        return None
    counts = {(queue.topic, queue.queue_id): queue.count_between(recorded, log.min_offset) for queue in queues}
    return LostBegin(recorded, log.min_offset, {key: count for key, count in sorted(counts.items()) if count})
