"""After a kill: groups that popped shortly before it go on where they were, and not where the offsets on disk are.

``consumerOffset.json`` is some seconds old then, but the check points of those seconds are in the log. One that begins
exactly at a group's offset says that the group has its messages: those that are not acked come back by it. So the
offset moves behind its last message, and on to the next check point. Only check points of pops since the file was
written count (its ``savedAt``, which RocketMQ does not have and ignores): an older one may be from before a reset. Nor
does one whose messages are younger than itself: they are of another topic of the same name.
Whatever is passed here is in a check point, so nothing is left out; where the chain breaks, messages come twice.

Thread-safety: before the broker serves. RocketMQ has nothing like it.
"""

from __future__ import annotations

import logging

from spark_rocket.broker.pop.check_points import TAG_CHECK_POINT, CheckPoint, decode_check_point
from spark_rocket.broker.pop.revive_log import ReviveLog
from spark_rocket.broker.state.offsets import ConsumerOffsetManager
from spark_rocket.errors import ProtocolError, StoreCorruptError
from spark_rocket.model import TIMER_TOPIC
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.protocol.record.record import view_record
from spark_rocket.store.message_store import MessageStore

_log = logging.getLogger(__name__)


def recover_offsets(store: MessageStore, log: ReviveLog, offsets: ConsumerOffsetManager) -> int:
    """Move offsets behind what was popped since they were saved; how many were."""
    since = offsets.saved_at
    if store.recovery is None or store.recovery.clean or not since:
        return 0
    spans: dict[tuple[str, str, int], set[tuple[int, int, int]]] = {}
    for topic, queue_id in ((TIMER_TOPIC, 0), *((log.topic, queue_id) for queue_id in range(log.queues))):
        for point in _check_points(store, log, topic, queue_id, since):
            name, group, queue, start, popped = point.key
            spans.setdefault((group, name, queue), set()).add((start, start + max(point.diffs) + 1, popped))
    moved = 0
    for place, found in spans.items():
        before = offsets.query(*place)
        offset = before if before >= 0 else min(found)[0]
        for start, end, popped in sorted(found, key=lambda span: (span[0], -span[1])):
            if start == offset and _was_there(store, place[1], place[2], end - 1, popped):
                offset = end
        if offset > before:
            offsets.commit(*place, offset)
            moved += 1
    if moved:
        _log.info("Groups go on behind what they popped shortly before the broker was killed, in %d queues.", moved)
    return moved


def _was_there(store: MessageStore, topic: str, queue_id: int, offset: int, popped: int) -> bool:
    """Whether a message was in the queue at that time."""
    try:
        return view_record(store.look_message(topic, queue_id, offset) or b"").store_timestamp <= popped
    except (StoreCorruptError, ProtocolError):
        return False


def _check_points(store: MessageStore, log: ReviveLog, topic: str, queue_id: int, since: int) -> list[CheckPoint]:
    """Those that a queue has got since a time, of pops since then."""
    found = []
    offset = store.get_offset_by_time(topic, queue_id, since)
    while offset < store.get_max_offset(topic, queue_id):
        following, records = log.read(queue_id, offset, topic)
        for record in records:
            if find_property(bytes(record.properties), b"TAGS") != TAG_CHECK_POINT:
                continue
            try:
                point = decode_check_point(record.body, "")
            except ProtocolError:
                continue
            if point.key[4] >= since and point.diffs:
                found.append(point)
        offset = max(following, offset + 1)
    return found
