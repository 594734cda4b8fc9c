"""Hosts, message ids, recall handles and POP receipts: identifiers of messages and of their storage positions.

Host in a record or id: 4 or 16 bytes of IP, int32 port, big endian.

Offset id, given by the broker: upper-case hex of store host and int64 physical offset: 32 or 56 characters.

Unique key (property ``UNIQ_KEY``), given by the sending client: upper-case hex of

===== ==========================================================
size  content
===== ==========================================================
4/16  IP of the client
2     process id, its low 16 bits
4     a number of the generator (class-loader hash in Java)
4     milliseconds since the start of the month (UTC here), 32 bits
2     counter
===== ==========================================================

Recall handle: ``v1 topic brokerName timestamp messageId``, separated by blanks, as URL-safe Base64. The timestamp is
the message's TIMER_OUT_MS plus 1, so that a message sent with it as TIMER_DELIVER_MS falls into the same second of the
timer; the message id is its UNIQ_KEY. Further words are ignored, as Apache's broker does.

Strings of POP requests and responses:

=================  =====================================================================================================
text               form
=================  =====================================================================================================
extraInfo, POP_CK  ``start popTime invisibleTime reviveQid flag brokerName queueId [offset]``, a message's receipt
startOffsetInfo    ``flag queueId start``, joined with ``;``: the first offset examined by a pop, per queue
msgOffsetInfo      ``flag queueId o1,o2,…``, joined with ``;``: the offsets of the returned messages, per queue
orderCountInfo     ``flag queueId count`` and ``flag qo<queueId>%<offset> count``, joined with ``;``: earlier deliveries
=================  =====================================================================================================

The flag names the topic of a queue: 0 the requested topic, 1 the group's retry topic for it, ``%RETRY%group_topic``,
2 its second form, ``%RETRY%group+topic``. The revive queue 999 marks an ordered pop.

Thread-safety: functions are pure; ``UniqKeyGenerator.next`` may be called from any thread.
Corresponds to common.message.{MessageDecoder.createMessageId, MessageClientIDSetter}, common.KeyBuilder,
common.producer.RecallMessageHandle and remoting.protocol.header.ExtraInfoUtil.
"""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from itertools import count
from typing import NamedTuple

from spark_rocket.common.values import FrozenValue
from spark_rocket.errors import ProtocolError
from spark_rocket.model import RETRY_PREFIX

#: Bytes of an address and a port.
IPV4_HOST_SIZE = 8
IPV6_HOST_SIZE = 20
_PORT = struct.Struct(">i")
_IPV4_HOST = struct.Struct(">BBBBi")


@lru_cache(maxsize=4096)
def pack_host(host: tuple[str, int]) -> bytes:
    """Encode ``("127.0.0.1", 10911)`` as 8 bytes, an IPv6 address as 20. Names are not resolved."""
    address, port = host
    try:
        return ip_address(address.partition("%")[0]).packed + _PORT.pack(port)  # a scope ("%eth0") is local knowledge
    except (ValueError, AttributeError, struct.error):
        raise ProtocolError(
            f"Invalid host {host!r}.", remedy="Use a numeric IPv4 or IPv6 address with a port."
        ) from None


@lru_cache(maxsize=4096)
def unpack_host(raw: bytes) -> tuple[str, int]:
    """Decode ``pack_host``; the length determines the kind."""
    if len(raw) == IPV4_HOST_SIZE:
        a, b, c, d, port = _IPV4_HOST.unpack(raw)
        return f"{a}.{b}.{c}.{d}", port
    if len(raw) == IPV6_HOST_SIZE:
        return IPv6Address(raw[:16]).compressed, _PORT.unpack_from(raw, 16)[0]
    raise ProtocolError(
        f"Invalid host of {len(raw)} bytes: IPv4 has 8, IPv6 has 20.",
        remedy="The record or id is damaged: read it again.",
    )


# --- message ids ------------------------------------------------------------------------------------------------------

_MAX_OFFSET = (1 << 63) - 1


@lru_cache(maxsize=256)
def _host_hex(host: tuple[str, int] | bytes) -> str:
    return (host if isinstance(host, bytes) else pack_host(host)).hex().upper()


def encode_offset_msg_id(host: tuple[str, int] | bytes, physical_offset: int) -> str:
    """Return the offset id of the record at ``physical_offset`` of the broker at ``host`` (pair, or packed)."""
    if not 0 <= physical_offset <= _MAX_OFFSET:
        raise ProtocolError(f"Invalid commit log offset {physical_offset}.", remedy="Use 0 to 2^63 - 1.")
    return f"{_host_hex(host)}{physical_offset:016X}"


def offset_id_text(store_host: bytes, physical_offset: int) -> str:
    """Return the offset id of a stored record, independent of its offset field."""
    return f"{_host_hex(store_host)}{physical_offset & 0xFFFFFFFFFFFFFFFF:016X}"


def decode_offset_msg_id(msg_id: str) -> tuple[tuple[str, int], int]:
    """Return store host and physical offset of an offset id."""
    try:
        raw = bytes.fromhex(msg_id)
    except ValueError:
        raw = b""
    if len(msg_id) not in (32, 56) or len(raw) * 2 != len(msg_id) or raw[-8] & 0x80:
        raise ProtocolError(
            f"Invalid offset message id {msg_id[:60]!r}.", remedy="Use 32 (IPv4) or 56 (IPv6) hex digits."
        )
    return unpack_host(raw[:-8]), int.from_bytes(raw[-8:], "big")


def _month_bounds(now_ms: int) -> tuple[int, int]:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    start = datetime(now.year, now.month, 1, tzinfo=UTC)
    end = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000


class UniqKeyGenerator:
    """Generates unique keys of one client. Create a new one after a fork: the process id is part of the key."""

    def __init__(self, ip: str, pid: int, clock: Callable[[], int], *, seed: int = 0) -> None:
        """``clock`` returns milliseconds since the epoch; ``seed`` distinguishes generators of one process."""
        address = pack_host((ip, 0))[:-4]
        self._prefix = f"{address.hex()}{pid & 0xFFFF:04x}{seed & 0xFFFFFFFF:08x}".upper()
        self._clock = clock
        self._counter = count()  # next() is atomic in the interpreter, so threads need no lock
        self._month = _month_bounds(clock())
        self._head = -1, ""  # a millisecond, and how its keys begin

    def next(self) -> str:
        """Return a key that is unique for this generator (in this month, 65,536 per millisecond)."""
        now = self._clock()
        then, head = self._head
        if now != then:
            start, end = self._month
            if not start <= now < end:
                start, end = self._month = _month_bounds(now)
            head = f"{self._prefix}{now - start & 0xFFFFFFFF:08X}"
            self._head = now, head
        return f"{head}{next(self._counter) & 0xFFFF:04X}"


# --- recall handles ---------------------------------------------------------------------------------------------------

_RECALL_VERSION = "v1"
_RECALL_WORDS = 5
_BASE64_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RecallMessageHandle(FrozenValue):
    """A message, its broker, and its delivery time."""

    topic: str
    broker_name: str
    timestamp: str
    message_id: str

    def encode(self) -> str:
        """Encode the handle. ProtocolError if a part is not one word."""
        words = (_RECALL_VERSION, self.topic, self.broker_name, self.timestamp, self.message_id)
        text = " ".join(words)
        if not all(words) or text.count(" ") != _RECALL_WORDS - 1:
            raise ProtocolError(f"Invalid part {text!r} of a recall handle: it must be one word without blanks.")
        try:
            return urlsafe_b64encode(text.encode()).decode()
        except UnicodeEncodeError as error:
            raise ProtocolError(f"Invalid part {text!r} of a recall handle: {error.reason}.") from None

    @classmethod
    def decode(cls, handle: str | None) -> RecallMessageHandle:
        """Decode a handle. ProtocolError for an invalid one."""
        if handle is None:  # the value of SendResult for a message without one
            raise ProtocolError(
                "The recall handle is None.",
                remedy="Only a message with a future delivery time has one, unless the broker's "
                "timerWheelEnable is false. A message with a delay level has none.",
            )
        bare = handle.rstrip("=")  # Java accepts it with and without padding
        refusal = ProtocolError(
            f"Invalid recall handle {handle[:40]!r}.", remedy="Pass SendResult.recall_handle unchanged."
        )
        if not bare or len(handle) - len(bare) > 2 or not _BASE64_ALPHABET.issuperset(bare):
            raise refusal
        try:
            words = urlsafe_b64decode(bare + "=" * (-len(bare) % 4)).decode().split(" ")
        except (binascii.Error, UnicodeDecodeError):
            raise refusal from None
        if words[0] != _RECALL_VERSION or len(words) < _RECALL_WORDS or not all(words[1:_RECALL_WORDS]):
            raise refusal
        return cls(*words[1:_RECALL_WORDS])


# --- POP receipts -----------------------------------------------------------------------------------------------------

ORDER_REVIVE_QUEUE = 999
FLAG_NORMAL = "0"
FLAG_RETRY = "1"
FLAG_RETRY_V2 = "2"
_LONG_LIMIT = 1 << 63


class ExtraInfo(NamedTuple):
    """A receipt. ``offset`` is −1 if it has none."""

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
        """Whether it belongs to an ordered pop."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    def text(self) -> str:
        """Encode the receipt."""
        parts = self if self.offset >= 0 else self[:-1]
        return " ".join([str(part) for part in parts])


def parse_extra_info(text: str) -> ExtraInfo:
    """Decode a receipt; parts after the eighth are ignored. ProtocolError for an invalid one."""
    parts = text.split(" ")
    try:
        start, popped, invisible, revive, queue_id = (int(parts[at]) for at in (0, 1, 2, 3, 6))
        offset = int(parts[7]) if len(parts) > 7 else -1
    except (ValueError, IndexError):
        raise _no_receipt(text) from None
    if not all(0 <= number < _LONG_LIMIT for number in (start, popped, invisible, revive, queue_id)):
        raise _no_receipt(text)
    if popped + invisible >= _LONG_LIMIT or not -1 <= offset < _LONG_LIMIT or parts[4] not in ("0", "1", "2"):
        raise _no_receipt(text)
    return ExtraInfo(start, popped, invisible, revive, parts[4], parts[5], queue_id, offset)


def _no_receipt(text: str) -> ProtocolError:
    return ProtocolError(
        f"Invalid extraInfo {text[:100]!r} of a popped message.",
        remedy="Use the value of the message (POP_CK) or of the response's offset infos.",
    )


def retry_topic(topic: str, group: str, *, v2: bool) -> str:
    """Return the retry topic for messages of a topic that a group has popped and not acked."""
    return f"{RETRY_PREFIX}{group}+{topic}" if v2 else f"{RETRY_PREFIX}{group}_{topic}"


def retry_flag(topic: str, group: str) -> str:
    """Return the flag of a topic of a group, as in the table above."""
    if not topic.startswith(RETRY_PREFIX):
        return FLAG_NORMAL
    return FLAG_RETRY_V2 if topic.startswith(f"{RETRY_PREFIX}{group}+") else FLAG_RETRY


def real_topic(topic: str, group: str, flag: str) -> str:
    """Return the topic of a flag, given the group and the requested topic."""
    if flag == FLAG_RETRY:
        return retry_topic(topic, group, v2=False)
    if flag == FLAG_RETRY_V2:
        return retry_topic(topic, group, v2=True)
    return topic


def normal_topic(topic: str, group: str) -> str:
    """Return the requested topic of a group, given that topic or its retry topic."""
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
