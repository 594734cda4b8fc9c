"""Committed offsets: the next offset to read, per group and queue.

Table: ``topic@group`` -> queue id -> offset. As in Apache's broker, a commit overwrites the offset, also with a smaller
value (a consumer may rewind on purpose). Negative values mean "none" and are ignored.

Offsets and pairs of a topic and group are counted. A reset is pending only where there is an offset, so resets have the
same bounds.

Thread-safety: used on the event loop only; snapshots are copies for the writing thread.
After a crash: commits of the last ``flushConsumerOffsetInterval`` may be lost: messages are delivered again, none lost.
Corresponds to org.apache.rocketmq.broker.offset.ConsumerOffsetManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from spark_rocket.broker.steps import in_steps
from spark_rocket.errors import RefusedError
from spark_rocket.model import HALF_TOPIC, OP_HALF_TOPIC
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import CONSUMER_OFFSETS, GROUP_TOPICS
from spark_rocket.protocol.wire.bodies.config import DataVersion
from spark_rocket.protocol.wire.codes import ResponseCode

_log = logging.getLogger(__name__)
_SEPARATOR = "@"
_OWN = (HALF_TOPIC, OP_HALF_TOPIC)
_NO_OFFSETS: dict[int, int] = {}  # never changed


class ConsumerOffsetManager:
    """Committed offsets, and offsets of resets that are still pending."""

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self._reset: dict[str, dict[int, int]] = {}
        #: Names in the keys of the table, by the other name.
        self._topics: dict[str, set[str]] = {}
        self._groups: dict[str, set[str]] = {}
        self._count = 0  # offsets in the table
        self.data_version = DataVersion()
        self.dirty = False
        self.saved_at = 0
        """Time at which the loaded file was saved (ms); 0 if unknown."""

    def commit(self, group: str, topic: str, queue_id: int, offset: int, *, is_own: bool = False) -> None:
        """Store an offset; RefusedError if it is the first of its queue or pair, and there are too many.

        ``is_own``: a commit of the broker itself, for a topic or pop that is bounded already. It is never refused.
        """
        if offset < 0 or queue_id < 0:
            return
        queues = self.table.get(topic + _SEPARATOR + group, _NO_OFFSETS)
        if queue_id not in queues:
            queues = self._offsets_of(group, topic) if is_own else self._with_room(group, topic, 1)
            self._count += 1
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.dirty = True

    def _with_room(self, group: str, topic: str, more: int) -> dict[int, int]:
        """The offsets of a topic and group, for so many more; RefusedError, and nothing is changed, beyond a bound."""
        key = topic + _SEPARATOR + group
        queues = self.table.get(key)
        for name, count in ((CONSUMER_OFFSETS, self._count + more), (GROUP_TOPICS, len(self.table) + (queues is None))):
            most = STATE_LIMITS[name].total
            if count > most and (name == CONSUMER_OFFSETS or queues is None):
                raise RefusedError(
                    f"too many {name}: at most {most:,} in all",
                    ResponseCode.SYSTEM_ERROR,
                    remedy="Delete unused groups with their offsets, or topics.",
                )
        return self._offsets_of(group, topic)

    def _offsets_of(self, group: str, topic: str) -> dict[int, int]:
        key = topic + _SEPARATOR + group
        queues = self.table.get(key)
        if queues is None:
            queues = self.table[key] = {}
            self._index(group, topic)
        return queues

    def _index(self, group: str, topic: str) -> None:
        self._topics.setdefault(group, set()).add(topic)
        self._groups.setdefault(topic, set()).add(group)

    def _table_replaced(self) -> None:
        self._count = sum(map(len, self.table.values()))
        self._topics.clear()
        self._groups.clear()
        for key in self.table:
            topic, _, group = key.rpartition(_SEPARATOR)
            self._index(group, topic)
        for key in self._reset.keys() - self.table.keys():
            del self._reset[key]

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset of a pending reset, otherwise the committed offset, or -1."""
        key = topic + _SEPARATOR + group
        pending = self._reset.get(key)
        if pending is not None and queue_id in pending:
            return pending[queue_id]
        queues = self.table.get(key)
        return -1 if queues is None else queues.get(queue_id, -1)

    def query_all(self, group: str, topic: str) -> dict[int, int]:
        return dict(self.table.get(topic + _SEPARATOR + group, {}))

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset a group's offset: its next pull of the queue receives it, and commits are ignored until then."""
        self.commit(group, topic, queue_id, offset)
        key = topic + _SEPARATOR + group
        if queue_id in self.table.get(key, _NO_OFFSETS):
            self._reset.setdefault(key, {})[queue_id] = offset

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        return bool(self._reset) and queue_id in self._reset.get(topic + _SEPARATOR + group, {})

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Remove and return the pending reset of a queue."""
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
        offsets = self.table.get(topic + _SEPARATOR + source)
        if offsets:
            self._count += len(offsets) - len(self._with_room(destination, topic, len(offsets)))
            self.table[topic + _SEPARATOR + destination] = dict(offsets)
            self.dirty = True

    def correct(self, end_of: Callable[[str, int], int], queues_of: Mapping[str, int]) -> None:
        """Reset offsets beyond the end of their queue to the end; called once when a master starts.

        A log that was a slave's, or lost its end, may have fewer messages than groups have read. New messages get the
        offsets of the missing ones, and would be skipped. Offsets of queues that a topic does not have (``queues_of``)
        are not changed: applications may keep numbers there. Nor are the offsets of transactions, whose reader corrects
        them itself.
        """
        moved = 0
        first = ""
        for key, queues in self.table.items():
            topic, _, group = key.rpartition(_SEPARATOR)
            count = queues_of.get(topic, 0) if topic not in _OWN else 0
            for queue_id, offset in queues.items():
                if queue_id < count and offset > (end := end_of(topic, queue_id)):
                    queues[queue_id] = end
                    moved += 1
                    first = (
                        first
                        or f"group {group}, topic {topic}, queue {queue_id} was at {offset}, the queue ends at {end}"
                    )
        if moved:
            self.dirty = True
            _log.warning(
                "Offsets of groups in %d queues were beyond the end of the queue: reset to the end, so that new "
                "messages are not skipped. The first: %s.",
                moved,
                first,
            )

    def topics_of(self, group: str) -> set[str]:
        return set(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        return set(self._groups.get(topic, ()))

    def remove_group(self, group: str) -> None:
        for topic in list(self._topics.get(group, ())):
            self._remove(group, topic)

    def remove_topic(self, topic: str) -> None:
        for group in list(self._groups.get(topic, ())):
            self._remove(group, topic)

    def _remove(self, group: str, topic: str) -> None:
        key = topic + _SEPARATOR + group
        self._count -= len(self.table.pop(key, ()))
        self._reset.pop(key, None)
        self.dirty = True
        for index, name, other in ((self._topics, group, topic), (self._groups, topic, group)):
            index[name].discard(other)
            if not index[name]:
                del index[name]

    async def snapshot_in_steps(self) -> dict[str, Any]:
        """Like :meth:`snapshot`; each offset is one that was valid between the call and the return."""
        version = self.data_version.to_value()
        table = {}
        async for key in in_steps(list(self.table)):
            queues = self.table.get(key)
            if queues is not None:
                table[key] = dict(queues)
        return {"dataVersion": version, "offsetTable": table}

    def file_snapshot(self, now: int) -> dict[str, Any]:
        """Content of ``consumerOffset.json``."""
        return {**self.snapshot(), "savedAt": now}

    def snapshot(self) -> dict[str, Any]:
        """Content of the response to code 43; queue ids stay integers, which fastjson does not quote."""
        return {
            "dataVersion": self.data_version.to_value(),
            "offsetTable": {key: dict(queues) for key, queues in self.table.items()},
        }

    def replace(self, stored: dict[str, Any]) -> None:
        """Replace a slave's offsets with its master's.

        ValueError, TypeError or AttributeError if they are invalid; then nothing is changed.
        """
        table = {
            key: {_long(queue_id): _long(offset) for queue_id, offset in queues.items()}
            for key, queues in (stored.get("offsetTable") or {}).items()
        }
        version = stored.get("dataVersion")
        if version:
            self.data_version = DataVersion.from_value(version)
        if table != self.table:
            self.table = table
            self._table_replaced()
            self.dirty = True

    def load(self, stored: dict[str, Any]) -> None:
        """Load the content of a file; ValueError, TypeError or AttributeError if it is invalid."""
        for key, queues in stored.get("offsetTable", {}).items():
            self.table[key] = {_long(queue_id): _long(offset) for queue_id, offset in queues.items()}
        self._table_replaced()
        self.saved_at = _long(stored.get("savedAt") or 0)
        version = stored.get("dataVersion")
        if version:
            self.data_version = DataVersion.from_value(version)


def _long(value: str | int | float) -> int:
    """Convert to an int; ValueError if it does not fit into a Java long."""
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"invalid offset {str(value)[:40]}")
    return number
