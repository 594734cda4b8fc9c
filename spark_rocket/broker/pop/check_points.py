"""Records of the revive log: which messages were popped, and which of them were acked.

Each is a message of the topic ``rmq_sys_REVIVE_LOG_<cluster>`` with a JSON body and a tag for its type. Times in ms.

=======  ==========  ==================================================================================================
tag      key         meaning
=======  ==========  ==================================================================================================
all      c, t, q     group, topic (a retry topic's own name) and queue of the pop
         so          first offset of the pop
         pt          time of the pop; c, t, q, so, pt and bn together identify the check point
         bn          name of the broker
ck       it          invisible time; the messages become visible at pt + it
         d           offset of each message, relative to so; missing in old records: consecutive messages
         n           number of messages
         bm          bit map of acked messages; 0 when it is written
         ro          0; Apache's reader stores the offset of the check point here
         rp          number of rewrites after failed revivals; a string, often missing
         sp          true if the redelivery does not count as an attempt; usually missing
ack      ao          the offset that was acked
bAck     aol         the offsets that were acked (and ao, -1)
=======  ==========  ==================================================================================================

Corresponds to store.pop.{PopCheckPoint, AckMsg, BatchAckMsg} and common.PopAckConstants.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol import Buffer
from spark_rocket.protocol.wire.json import REQUEST_LIMITS, loads_tolerant

TAG_CHECK_POINT = b"ck"
TAG_ACK = b"ack"
TAG_BATCH_ACK = b"bAck"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
ACK_INTERVAL = 1_000
"""A check point enters the revive log this long (ms) before its messages become visible; its acks follow it."""

Key: TypeAlias = tuple[str, str, int, int, int]
"""Topic, group, queue id, start offset and pop time of a check point; the broker is this one."""

_LONG = 1 << 63
_MAX_MESSAGES = 1 << 16  # of one check point; limits records that this broker has not written

_text = lru_cache(maxsize=4096)(json.dumps)


@dataclass(slots=True)
class CheckPoint:
    """Messages of one queue that were popped together. ``acked``: bit ``i`` for the message at ``diffs[i]``."""

    key: Key
    invisible_time: int
    diffs: Sequence[int]
    broker_name: str
    acked: int = 0
    revive_queue_id: int = 0
    revive_offset: int = -1
    suspend: bool = False

    @property
    def revive_time(self) -> int:
        """When unacked messages become visible again."""
        return self.key[4] + self.invisible_time

    @property
    def is_done(self) -> bool:
        return self.acked == (1 << len(self.diffs)) - 1

    def ack(self, offsets: Iterable[int]) -> None:
        """Mark messages as acked; offsets of other messages are ignored."""
        start, diffs = self.key[3], self.diffs
        for offset in offsets:
            diff = offset - start
            if 0 <= diff < len(diffs) and diffs[diff] == diff:  # no message before it was filtered out
                self.acked |= 1 << diff
            elif diff in diffs:
                self.acked |= 1 << diffs.index(diff)

    def open_offsets(self) -> list[int]:
        start = self.key[3]
        return [start + diff for at, diff in enumerate(self.diffs) if not self.acked >> at & 1]


class Ack(NamedTuple):
    """Messages of a check point that were acked."""

    key: Key
    broker_name: str
    offsets: list[int]


def encode_check_point(point: CheckPoint) -> bytes:
    topic, group, queue_id, start, popped = point.key
    suspend = '"sp":true,' if point.suspend else ""
    return (
        f'{{"bm":{point.acked},"bn":{_text(point.broker_name)},"c":{_text(group)},'
        f'"d":[{",".join(map(str, point.diffs))}],"it":{point.invisible_time},"n":{len(point.diffs)},'
        f'"pt":{popped},"q":{queue_id},"ro":0,"so":{start},{suspend}"t":{_text(topic)}}}'
    ).encode()


def encode_ack(key: Key, broker_name: str, offsets: Sequence[int]) -> tuple[bytes, bytes]:
    """Encode tag and body of an ack of one message or several."""
    topic, group, queue_id, start, popped = key
    rest = (
        f'"bn":{_text(broker_name)},"c":{_text(group)},"pt":{popped},"q":{queue_id},"so":{start},"t":{_text(topic)}}}'
    )
    if len(offsets) == 1:
        return TAG_ACK, f'{{"ao":{offsets[0]},{rest}'.encode()
    return TAG_BATCH_ACK, f'{{"ao":-1,"aol":[{",".join(map(str, offsets))}],{rest}'.encode()


def decode_check_point(body: Buffer, broker_name: str) -> CheckPoint:
    """Decode a check point; ProtocolError if it is invalid. ``broker_name`` is the default of ``bn``."""
    value = _loads(body)
    key = _key_of(value)
    count, diffs = _number(value, "n", _MAX_MESSAGES), value.get("d") or []
    if not isinstance(diffs, list) or len(diffs) > _MAX_MESSAGES or not all(type(diff) is int for diff in diffs):
        raise _wrong("d")
    offsets = diffs or range(count)
    if any(not 0 <= diff < 1 << 31 for diff in offsets):
        raise _wrong("d")
    acked = value.get("bm", 0)  # Java's int: negative when the 32nd message is acked
    if type(acked) is not int:
        raise _wrong("bm")
    acked &= (1 << len(offsets)) - 1
    name, suspend = str(value.get("bn") or broker_name), value.get("sp") is True
    return CheckPoint(key, _number(value, "it"), offsets, name, acked, suspend=suspend)


def decode_ack(body: Buffer, broker_name: str) -> Ack:
    """Decode an ack of one message or several; ProtocolError if it is invalid."""
    value = _loads(body)
    offsets = value.get("aol", value.get("ackOffsetList"))
    if offsets is None:
        offsets = [value.get("ao")]
    if not isinstance(offsets, list) or not all(type(offset) is int for offset in offsets):
        raise _wrong("aol" if "aol" in value else "ao")
    return Ack(_key_of(value), str(value.get("bn") or broker_name), offsets)


def _loads(body: Buffer) -> dict[str, Any]:
    value = loads_tolerant(body, REQUEST_LIMITS)
    if not isinstance(value, dict):
        raise _wrong("{")
    return value


def _key_of(value: dict[str, Any]) -> Key:
    topic, group = value.get("t"), value.get("c")
    if not (isinstance(topic, str) and isinstance(group, str) and topic and group):
        raise _wrong("t" if group else "c")
    return topic, group, _number(value, "q", 1 << 31), _number(value, "so"), _number(value, "pt")


def _number(value: dict[str, Any], name: str, limit: int = _LONG) -> int:
    number = value.get(name, 0)
    if type(number) is not int or not 0 <= number < limit:
        raise _wrong(name)
    return number


def _wrong(name: str) -> ProtocolError:
    return ProtocolError(f"Missing or invalid {name!r} in a message of the revive log.", remedy="It is skipped.")
