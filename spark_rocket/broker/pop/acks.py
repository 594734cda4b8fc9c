"""Acks: validation of receipts, and batching of acks for the revive log.

A receipt must be one that this broker may have issued. Apache's broker accepts any well-formed one: forged ones go into
its revive log without a matching check point, or stay in its timer permanently.

Acks of one check point that arrive within 200 ms are written as one record, so the response precedes the write. If a
kill loses acks, their messages are delivered again, like all others consumed since the groups' offsets were last on
disk. Acks are cached until their messages would have become visible, and for at least the last ``_MAX_CACHED_ACKS``
check points: an acked message is not acked again and cannot be made invisible for longer.

Whether a check point exists is not known when its ack arrives, so acks are bounded: ``MAX_POPPED`` messages of a check
point, and in all as ``STATE_LIMITS`` has it.

Corresponds to the acking half of PopBufferMergeService.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.broker.pop.check_points import Key
from spark_rocket.broker.pop.revive_log import ReviveLog
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.ids import ExtraInfo
from spark_rocket.protocol.requests import STATE_LIMITS
from spark_rocket.protocol.requests.state import ACKS
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.server.state_quota import weight_of
from spark_rocket.store.delay.redelivery import RETRY_MS
from spark_rocket.store.results import PutStatus

GATHER_MS = 200
"""How long acks of a check point are collected before they are written."""
MAX_SPAN_OFFSETS = 1 << 16
"""Maximum distance of a message from the start of its check point."""
MAX_POPPED = 32
"""Maximum number of messages of a pop, and so of a check point."""
_MAX_CACHED_ACKS = 50_000
_MAX_CLOCK_SKEW_MS = 24 * 3600 * 1000  # a clock may be set back while messages are in flight


@dataclass(slots=True)
class _Acked:
    """The acked messages of a check point: bit ``i`` for the offset ``start + i``."""

    revive_time: int
    revive_queue_id: int
    acked: int = 0
    written: int = 0
    weight: int = 1


class AckGatherer:
    """The acks of one broker that are not yet in the log, and a cache of recent ones."""

    def __init__(self, log: ReviveLog, broker_name: str) -> None:
        self._log = log
        self._broker_name = broker_name
        self._acked: dict[Key, _Acked] = {}
        self._unwritten: dict[Key, _Acked] = {}
        self._due: int | None = None
        self._weight = 0
        self.count = 0

    def add(self, key: Key, revive_time: int, revive_queue_id: int, bits: int, now: int) -> int | None:
        """Add acks; return when to call :meth:`write`, or None if that is already scheduled or not necessary.

        RefusedError for more messages than a check point has, or if there are too many acks.
        """
        entry = self._acked.get(key)
        if entry is not None:
            bits |= entry.acked
        if bits.bit_count() > MAX_POPPED:
            raise bad_receipt(f"a pop has at most {MAX_POPPED} messages")
        weight = weight_of(key[0], key[1]) + (bits.bit_length() >> 13)
        more = weight if entry is None else weight - entry.weight
        most = STATE_LIMITS[ACKS].total
        if self._weight + more > most:
            raise RefusedError(
                f"too many acks: {most:,} are being written or cached", ResponseCode.SYSTEM_BUSY, retriable=True
            )
        self._weight += more
        if entry is None:
            entry = self._acked[key] = _Acked(revive_time, revive_queue_id)
        entry.weight = weight
        entry.acked = bits
        if entry.acked == entry.written:
            return None
        self._unwritten[key] = entry
        if self._due is not None:
            return None
        self._due = now + GATHER_MS
        return self._due

    def is_acked(self, key: Key, offset: int) -> bool:
        entry = self._acked.get(key)
        return entry is not None and bool(entry.acked >> (offset - key[3]) & 1)

    def write(self, now: int) -> int | None:
        """Write the collected acks into the log if they are due; return when to call again."""
        if self._due is None or now < self._due <= now + RETRY_MS:  # later, if the clock was set back
            return self._due
        return self.write_all(now)

    def write_all(self, now: int) -> int | None:
        """Write all acks into the log; return when to call again if the store is unavailable."""
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
        """The acked offsets of a check point that is due now; also write them into the log."""
        entry = self._acked.get(key)
        if entry is None:
            return []
        if self._unwritten.pop(key, None) is not None:
            self._write(key, entry)
        return offsets_of_bits(key[3], entry.acked)

    def _write(self, key: Key, entry: _Acked) -> bool:
        offsets = offsets_of_bits(key[3], entry.acked & ~entry.written)
        result = self._log.put_ack(key, self._broker_name, offsets, entry.revive_time, entry.revive_queue_id)
        if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
            return False
        self.count += len(offsets)
        entry.written = entry.acked
        return True

    def _forget(self, now: int) -> None:
        """Remove expired entries. The oldest ones are first: acks arrive roughly in the order of the pops."""
        acked = self._acked
        while acked:
            key = next(iter(acked))
            if self._weight <= _MAX_CACHED_ACKS and acked[key].revive_time > now:
                return
            self._weight -= acked.pop(key).weight


def offsets_of_bits(start: int, bits: int) -> list[int]:
    """Return the offsets of an ack: ``start + i`` for each bit ``i``."""
    offsets = []
    while bits:
        low = bits & -bits
        offsets.append(start + low.bit_length() - 1)
        bits ^= low
    return offsets


def check_receipt(receipt: ExtraInfo, offset: int, broker: str, queues: int, now: int, longest_invisible: int) -> None:
    """Raise RefusedError unless this broker, with ``queues`` revive queues, may have issued it for the offset."""
    if receipt.broker_name != broker:
        raise bad_receipt(f"its broker is {receipt.broker_name[:100]!r}, this is {broker!r}")
    if receipt.revive_queue_id >= queues and not receipt.is_order:
        raise bad_receipt(f"there is no revive queue {receipt.revive_queue_id}")
    if receipt.pop_time > now + _MAX_CLOCK_SKEW_MS:
        raise bad_receipt(f"its popTime {receipt.pop_time} is in the future")
    if receipt.invisible_time > longest_invisible and not receipt.is_order:
        raise bad_receipt(f"its invisibleTime {receipt.invisible_time} is greater than {longest_invisible} ms")
    if not 0 <= offset - receipt.start_offset < MAX_SPAN_OFFSETS:
        raise bad_receipt(f"offset {offset} is not in the check point that starts at {receipt.start_offset}")


def bad_receipt(why: str) -> RefusedError:
    """The error (29) for a receipt that this broker has not issued."""
    return RefusedError(
        f"Invalid extraInfo: {why}",
        ResponseCode.INVALID_PARAMETER,
        remedy="Send the extraInfo of the broker's response to the pop unchanged.",
    )


def too_late(why: str) -> RefusedError:
    """The error (208) for a receipt whose message is no longer in flight."""
    return RefusedError(
        why,
        ResponseCode.NO_MESSAGE,
        remedy="It cannot be made invisible for longer; if it was not acked, it is delivered again.",
    )
