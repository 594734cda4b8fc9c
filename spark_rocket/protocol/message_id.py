"""The two ids that a message goes by in classic clients.

Offset id, given by the broker: upper-case hex of store host (4 or 16 bytes of IP, int32 port) and int64 physical
offset: 32 or 56 characters. It says where the record is.

Unique key (property ``UNIQ_KEY``), given by the sending client: upper-case hex of

===== ==========================================================
size  what
===== ==========================================================
4/16  IP of the client
2     process id, its low 16 bits
4     a number of the generator (class-loader hash in Java)
4     milliseconds since the month began (UTC here), 32 bits
2     counter
===== ==========================================================

Thread-safety: functions are pure; ``UniqKeyGenerator.next`` may be called from any thread.
Corresponds to common.message.{MessageDecoder.createMessageId, MessageClientIDSetter}.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.wire.host import pack_host, unpack_host

_MAX_OFFSET = (1 << 63) - 1


@lru_cache(maxsize=256)
def _host_hex(host: tuple[str, int] | bytes) -> str:
    return (host if isinstance(host, bytes) else pack_host(host)).hex().upper()


def encode_offset_msg_id(host: tuple[str, int] | bytes, physical_offset: int) -> str:
    """The offset id of the record at ``physical_offset`` of the broker that stores at ``host`` (pair, or packed)."""
    if not 0 <= physical_offset <= _MAX_OFFSET:
        raise ProtocolError(
            f"{physical_offset} is not an offset into a commit log.", remedy="Offsets are 0 or more and fit 63 bits."
        )
    return f"{_host_hex(host)}{physical_offset:016X}"


def decode_offset_msg_id(msg_id: str) -> tuple[tuple[str, int], int]:
    """Store host and physical offset of an offset id."""
    try:
        raw = bytes.fromhex(msg_id)
    except ValueError:
        raw = b""
    if len(msg_id) not in (32, 56) or len(raw) * 2 != len(msg_id) or raw[-8] & 0x80:
        raise ProtocolError(
            f"{msg_id[:60]!r} is not an offset message id.", remedy="It has 32 (IPv4) or 56 (IPv6) hex digits."
        )
    return unpack_host(raw[:-8]), int.from_bytes(raw[-8:], "big")


def _month_bounds(now_ms: int) -> tuple[int, int]:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    start = datetime(now.year, now.month, 1, tzinfo=UTC)
    end = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000


class UniqKeyGenerator:
    """Unique keys of one client. Make a new one after a fork: the process id is part of the key."""

    def __init__(self, ip: str, pid: int, clock: Callable[[], int], *, seed: int = 0) -> None:
        """``clock`` gives milliseconds since the epoch; ``seed`` tells generators of one process apart."""
        address = pack_host((ip, 0))[:-4]
        self._prefix = f"{address.hex()}{pid & 0xFFFF:04x}{seed & 0xFFFFFFFF:08x}".upper()
        self._clock = clock
        self._counter = count()  # next() on it is one step of the interpreter, so threads need no lock
        self._month = _month_bounds(clock())
        self._head = -1, ""  # a millisecond, and how its keys begin

    def next(self) -> str:
        """A key that this generator has not given before (in this month, 65,536 a millisecond)."""
        now = self._clock()
        then, head = self._head
        if now != then:
            start, end = self._month
            if not start <= now < end:
                start, end = self._month = _month_bounds(now)
            head = f"{self._prefix}{now - start & 0xFFFFFFFF:08X}"
            self._head = now, head
        return f"{head}{next(self._counter) & 0xFFFF:04X}"
