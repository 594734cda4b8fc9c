"""Where every group is in every queue: the next offset to read, as told by its consumers.

Table: ``topic@group`` -> queue id -> offset. As in Apache's broker a commit overwrites, also with a smaller value
(a consumer may go back on purpose); negative values mean "none" and are ignored.

Thread-safety: used on the event loop only; :meth:`ConsumerOffsetManager.snapshot` copies for the writing thread.
After a crash: commits of the last ``flushConsumerOffsetInterval`` may be lost, which repeats messages and loses none.
Corresponds to org.apache.rocketmq.broker.offset.ConsumerOffsetManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from spark_rocket.model import HALF_TOPIC, OP_HALF_TOPIC
from spark_rocket.protocol.wire.bodies import DataVersion

_log = logging.getLogger(__name__)
_SEPARATOR = "@"
_OWN = (HALF_TOPIC, OP_HALF_TOPIC)


class ConsumerOffsetManager:
    """Committed offsets, pulled offsets (for lag displays) and offsets of resets not yet noticed by a consumer."""

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._reset: dict[str, dict[int, int]] = {}
        self.data_version = DataVersion()
        self.dirty = False
        self.saved_at = 0
        """When what was loaded had been saved (ms); 0 if that is not known."""

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        if offset < 0 or queue_id < 0:
            return
        key = topic + _SEPARATOR + group
        queues = self.table.get(key)
        if queues is None:
            queues = self.table[key] = {}
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.dirty = True

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset (that of a pending reset first), or -1."""
        key = topic + _SEPARATOR + group
        pending = self._reset.get(key)
        if pending is not None and queue_id in pending:
            return pending[queue_id]
        queues = self.table.get(key)
        return -1 if queues is None else queues.get(queue_id, -1)

    def query_all(self, group: str, topic: str) -> dict[int, int]:
        return dict(self.table.get(topic + _SEPARATOR + group, {}))

    def pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember how far a group has pulled."""
        key = topic + _SEPARATOR + group
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        queues[queue_id] = offset

    def query_pulled(self, group: str, topic: str, queue_id: int) -> int:
        return self._pulled.get(topic + _SEPARATOR + group, {}).get(queue_id, -1)

    def pulled_of(self, group: str, topic: str) -> dict[int, int]:
        """How far a group has pulled, by queue id; not to be changed."""
        return self._pulled.get(topic + _SEPARATOR + group) or {}

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group: its next pull of the queue is told so, and commits are ignored until then."""
        self._reset.setdefault(topic + _SEPARATOR + group, {})[queue_id] = offset
        self.commit(group, topic, queue_id, offset)

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        return bool(self._reset) and queue_id in self._reset.get(topic + _SEPARATOR + group, {})

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset of a queue, once."""
        if not self._reset:
            return None
        key = topic + _SEPARATOR + group
        pending = self._reset.get(key)
        if pending is None:
            return None
        offset = pending.pop(queue_id, None)
        if not pending:
            del self._reset[key]
        return offset

    def clone(self, source: str, destination: str, topic: str) -> None:
        """Give one group the offsets of another in a topic."""
        offsets = self.table.get(topic + _SEPARATOR + source)
        if offsets:
            self.table[topic + _SEPARATOR + destination] = dict(offsets)
            self.dirty = True

    def correct(self, end_of: Callable[[str, int], int], topics: Collection[str]) -> None:
        """Once, on a master that starts: take offsets that lie behind their queue's end back to it.

        A log that was a slave's, or has lost its end, may have less than groups have read. What comes gets the numbers
        of what it lacks, and would be passed over. Offsets of topics that are not there are left alone, and those of
        transactions, whose reader looks after them by itself.
        """
        moved = 0
        first = ""
        for key, queues in self.table.items():
            topic, _, group = key.rpartition(_SEPARATOR)
            for queue_id, offset in queues.items() if topic in topics and topic not in _OWN else ():
                end = end_of(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    moved += 1
                    first = (
                        first or f"group {group}, topic {topic}, queue {queue_id} was at {offset}, which ends at {end}"
                    )
        if moved:
            self.dirty = True
            _log.warning(
                "Groups have read more than the log has, in %d queues: they go on at the queues' ends, so that nothing "
                "that comes is passed over. The first: %s.",
                moved,
                first,
            )

    def topics_of(self, group: str) -> set[str]:
        return {key.rpartition(_SEPARATOR)[0] for key in self.table if key.rpartition(_SEPARATOR)[2] == group}

    def groups_of(self, topic: str) -> set[str]:
        return {key.rpartition(_SEPARATOR)[2] for key in self.table if key.rpartition(_SEPARATOR)[0] == topic}

    def remove_group(self, group: str) -> None:
        self._remove(lambda key: key.rpartition(_SEPARATOR)[2] == group)

    def remove_topic(self, topic: str) -> None:
        self._remove(lambda key: key.rpartition(_SEPARATOR)[0] == topic)

    def _remove(self, chosen: Any) -> None:
        for table in (self.table, self._pulled, self._reset):
            for key in [key for key in table if chosen(key)]:
                del table[key]
                self.dirty = True

    def file_snapshot(self, now: int) -> dict[str, Any]:
        """What ``consumerOffset.json`` says."""
        return {**self.snapshot(), "savedAt": now}

    def snapshot(self) -> dict[str, Any]:
        """What code 43 says; queue ids stay integers, which fastjson does not quote."""
        return {
            "dataVersion": self.data_version.to_value(),
            "offsetTable": {key: dict(queues) for key, queues in self.table.items()},
        }

    def replace(self, stored: dict[str, Any]) -> None:
        """On a slave: have the offsets of a master. ValueError, TypeError or AttributeError, and nothing changed, when
        it does not fit."""
        table = {
            key: {_long(queue_id): _long(offset) for queue_id, offset in queues.items()}
            for key, queues in (stored.get("offsetTable") or {}).items()
        }
        version = stored.get("dataVersion")
        if version:
            self.data_version = DataVersion.from_value(version)
        if table != self.table:
            self.table = table
            self.dirty = True

    def load(self, stored: dict[str, Any]) -> None:
        """Take over what a file says; ValueError, TypeError or AttributeError when it does not fit."""
        for key, queues in stored.get("offsetTable", {}).items():
            self.table[key] = {_long(queue_id): _long(offset) for queue_id, offset in queues.items()}
        self.saved_at = _long(stored.get("savedAt") or 0)
        version = stored.get("dataVersion")
        if version:
            self.data_version = DataVersion.from_value(version)


def _long(value: str | int | float) -> int:
    """A number as Java would have it in a long. ValueError for one that does not fit."""
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{str(value)[:40]} is no offset")
    return number
