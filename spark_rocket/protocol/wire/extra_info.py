"""The texts that POP requests and answers carry beside the messages.

=================  =====================================================================================================
text               form
=================  =====================================================================================================
extraInfo, POP_CK  ``start popTime invisibleTime reviveQid flag brokerName queueId [offset]``, a message's receipt
startOffsetInfo    ``flag queueId start``, joined with ``;``: the first offset that a pop looked at, per queue
msgOffsetInfo      ``flag queueId o1,o2,…``, joined with ``;``: the offsets of the messages given, per queue
orderCountInfo     ``flag queueId count`` and ``flag qo<queueId>%<offset> count``, joined with ``;``: earlier deliveries
=================  =====================================================================================================

The flag says which topic a queue is of: 0 the one asked for, 1 the group's retry topic for it, ``%RETRY%group_topic``,
2 its second form, ``%RETRY%group+topic``. The revive queue 999 says that the pop was an ordered one.

Thread-safety: pure functions. Corresponds to remoting.protocol.header.ExtraInfoUtil and common.KeyBuilder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_rocket.errors import ProtocolError
from spark_rocket.model import RETRY_PREFIX

ORDER_REVIVE_QUEUE = 999
FLAG_NORMAL = "0"
FLAG_RETRY = "1"
FLAG_RETRY_V2 = "2"
_LONG = 1 << 63


class ExtraInfo(NamedTuple):
    """A receipt. ``offset`` is −1 when it was made without one."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    flag: str
    broker_name: str
    queue_id: int
    offset: int = -1

    @property
    def is_order(self) -> bool:
        """Whether it is of an ordered pop."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    def text(self) -> str:
        """As it travels."""
        parts = self if self.offset >= 0 else self[:-1]
        return " ".join([str(part) for part in parts])


def parse_extra_info(text: str) -> ExtraInfo:
    """The receipt that a text says; more parts than eight are left alone. ProtocolError when it is none."""
    parts = text.split(" ")
    try:
        start, popped, invisible, revive, queue_id = (int(parts[at]) for at in (0, 1, 2, 3, 6))
        offset = int(parts[7]) if len(parts) > 7 else -1
    except (ValueError, IndexError):
        raise _no_receipt(text) from None
    if not all(0 <= number < _LONG for number in (start, popped, invisible, revive, queue_id)):
        raise _no_receipt(text)
    if popped + invisible >= _LONG or not -1 <= offset < _LONG or parts[4] not in ("0", "1", "2"):
        raise _no_receipt(text)
    return ExtraInfo(start, popped, invisible, revive, parts[4], parts[5], queue_id, offset)


def _no_receipt(text: str) -> ProtocolError:
    return ProtocolError(
        f"{text[:100]!r} is no extraInfo of a popped message.",
        remedy="Send back what the broker gave with the message (POP_CK, or what its answer's offset infos say).",
    )


def retry_topic(topic: str, group: str, *, v2: bool) -> str:
    """Where the messages of a topic go that a group has popped and not acked."""
    return f"{RETRY_PREFIX}{group}+{topic}" if v2 else f"{RETRY_PREFIX}{group}_{topic}"


def retry_flag(topic: str, group: str) -> str:
    """Which topic of a group this is, as the texts above say it."""
    if not topic.startswith(RETRY_PREFIX):
        return FLAG_NORMAL
    return FLAG_RETRY_V2 if topic.startswith(f"{RETRY_PREFIX}{group}+") else FLAG_RETRY


def real_topic(topic: str, group: str, flag: str) -> str:
    """The topic that a flag means, of a group and the topic that it asked for."""
    if flag == FLAG_RETRY:
        return retry_topic(topic, group, v2=False)
    if flag == FLAG_RETRY_V2:
        return retry_topic(topic, group, v2=True)
    return topic


def normal_topic(topic: str, group: str) -> str:
    """The topic that a group asked for, of that or of a retry topic of it."""
    if not topic.startswith(RETRY_PREFIX):
        return topic
    start = len(RETRY_PREFIX) + len(group) + 1
    return topic[start:] if topic[:start] in (f"{RETRY_PREFIX}{group}_", f"{RETRY_PREFIX}{group}+") else topic


def start_offset_info(flag: str, queue_id: int, offset: int) -> str:
    """One queue's part of startOffsetInfo."""
    return f"{flag} {queue_id} {offset}"


def msg_offset_info(flag: str, queue_id: int, offsets: Sequence[int]) -> str:
    """One queue's part of msgOffsetInfo."""
    return f"{flag} {queue_id} {','.join(map(str, offsets))}"


def queue_order_count(flag: str, queue_id: int, count: int) -> str:
    """A queue's part of orderCountInfo."""
    return f"{flag} {queue_id} {count}"


def message_order_count(flag: str, queue_id: int, offset: int, count: int) -> str:
    """A message's part of orderCountInfo."""
    return f"{flag} qo{queue_id}%{offset} {count}"
