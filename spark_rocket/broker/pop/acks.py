"""Acks: which receipts are accepted, and how acks get into the revive log.

A receipt must be one that this broker may have given. Apache's broker accepts any that it can read: forged ones go into
its revive log, where they find no check point, or stay in its timer for ever.

Acks of one check point that arrive within a fifth of a second are written as one record. An ack is accepted, answered,
and written a moment later. Acks lost by a kill are delivered again, as is everything else that was done since the
groups' offsets were last on disk. An ack is remembered until its message would have become visible, for the last
``_REMEMBERED`` check points: an acked message is not acked again and cannot be made invisible for longer.

Thread-safety: for the event loop. Corresponds to the acking half of PopBufferMergeService.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.broker.pop.check_points import Key
from spark_rocket.broker.pop.revive_log import ReviveLog
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.ids import ExtraInfo
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.store.delay.redelivery import RETRY_MS
from spark_rocket.store.results import PutStatus

GATHER_MS = 200
"""How long an ack waits for others of its check point."""
MAX_SPAN = 1 << 16
"""How far a message may be behind its check point's start."""
_REMEMBERED = 50_000
_MOST_UNWRITTEN = 200_000
_CLOCKS_APART_MS = 24 * 3600 * 1000  # a clock may be set back while messages are out


@dataclass(slots=True)
class _Acked:
    """What was acked of a check point: bit ``i`` for the offset ``start + i``."""

    revive_time: int
    revive_queue_id: int
    acked: int = 0
    written: int = 0


class AckGatherer:
    """The acks of one broker that are not in the log yet, and those that came lately."""

    def __init__(self, log: ReviveLog, broker_name: str) -> None:
        self._log = log
        self._broker_name = broker_name
        self._acked: dict[Key, _Acked] = {}
        self._unwritten: dict[Key, _Acked] = {}
        self._due: int | None = None
        self.count = 0

    def add(self, key: Key, revive_time: int, revive_queue_id: int, bits: int, now: int) -> int | None:
        """Take acks; when :meth:`write` is to be called, if that is news."""
        entry = self._acked.get(key)
        if entry is None:
            if len(self._unwritten) >= _MOST_UNWRITTEN:
                raise RefusedError("the store takes no acks now", ResponseCode.SYSTEM_ERROR, retriable=True)
            entry = self._acked[key] = _Acked(revive_time, revive_queue_id)
        entry.acked |= bits
        if entry.acked == entry.written:
            return None
        self._unwritten[key] = entry
        if self._due is not None:
            return None
        self._due = now + GATHER_MS
        return self._due

    def is_acked(self, key: Key, offset: int) -> bool:
        """Whether a message was acked, as far as that is remembered."""
        entry = self._acked.get(key)
        return entry is not None and bool(entry.acked >> (offset - key[3]) & 1)

    def write(self, now: int) -> int | None:
        """Put what has gathered into the log; when to call again."""
        if self._due is None or self._due > now:
            return self._due
        return self.write_all(now)

    def write_all(self, now: int) -> int | None:
        """Put all into the log; when to call again, if the store does not take it."""
        unwritten = self._unwritten
        while unwritten:
            key = next(iter(unwritten))
            if not self._write(key, unwritten[key]):
                self._due = now + RETRY_MS
                return self._due
            del unwritten[key]
        self._due = None
        self._forget(now)
        return None

    def late(self, key: Key) -> list[int]:
        """What was acked of a check point that is due now; it goes into the log as well."""
        entry = self._acked.get(key)
        if entry is None:
            return []
        if self._unwritten.pop(key, None) is not None:
            self._write(key, entry)
        return _offsets(key[3], entry.acked)

    def _write(self, key: Key, entry: _Acked) -> bool:
        offsets = _offsets(key[3], entry.acked & ~entry.written)
        result = self._log.put_ack(key, self._broker_name, offsets, entry.revive_time, entry.revive_queue_id)
        if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
            return False
        self.count += len(offsets)
        entry.written = entry.acked
        return True

    def _forget(self, now: int) -> None:
        """The oldest in front: acks come about in the order of the pops."""
        acked = self._acked
        while acked:
            key = next(iter(acked))
            if len(acked) <= _REMEMBERED and acked[key].revive_time > now:
                return
            del acked[key]


def _offsets(start: int, bits: int) -> list[int]:
    offsets = []
    while bits:
        low = bits & -bits
        offsets.append(start + low.bit_length() - 1)
        bits ^= low
    return offsets


def check_receipt(receipt: ExtraInfo, offset: int, broker: str, queues: int, now: int, longest_invisible: int) -> None:
    """RefusedError unless this broker, which has so many revive queues, may have given it for that offset."""
    if receipt.broker_name != broker:
        raise bad_receipt(f"it is of the broker {receipt.broker_name[:100]}, this is {broker}")
    if receipt.revive_queue_id >= queues and not receipt.is_order:
        raise bad_receipt(f"there is no revive queue {receipt.revive_queue_id}")
    if receipt.pop_time > now + _CLOCKS_APART_MS:
        raise bad_receipt("it is from the future")
    if receipt.invisible_time > longest_invisible and not receipt.is_order:
        raise bad_receipt(f"nothing is invisible for {receipt.invisible_time} ms")
    if not 0 <= offset - receipt.start_offset < MAX_SPAN:
        raise bad_receipt(f"{offset} is no offset of a check point that begins at {receipt.start_offset}")


def bad_receipt(why: str) -> RefusedError:
    """29: it was not given by this broker."""
    return RefusedError(
        f"extraInfo is no receipt of this broker: {why}",
        ResponseCode.INVALID_PARAMETER,
        remedy="Send back what the broker gave with the message.",
    )


def too_late(why: str) -> RefusedError:
    """208: what it stands for is not out any more."""
    return RefusedError(
        why,
        ResponseCode.NO_MESSAGE,
        remedy="It cannot be made invisible for longer; if it was not acked, it comes again.",
    )
