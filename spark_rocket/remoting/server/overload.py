"""What a server bears: limits, counters, and the answers to requests that it does not take on.

Requests are of kinds, as Apache's broker has a queue for each kind of work. A request that has to wait belongs to the
queue of its kind, which has room for ``capacity`` and keeps nobody longer than ``patience`` seconds; whoever finds no
room or has waited too long is answered SYSTEM_BUSY with Apache's remarks, which costs a tenth of serving him:

=====================================  ===============================================================================
remark begins with                     because
=====================================  ===============================================================================
``[OVERLOAD]``                         so many of its kind wait already, or so many bytes of requests
``[TIMEOUT_CLEAN_QUEUE]``              it has waited too long
``[PCBUSY_CLEAN_QUEUE]``               the disk does not keep up (broker/overload.py)
``[REJECTREQUEST]``                    memory is short (likewise)
=====================================  ===============================================================================

Thread-safety: event loop only; counters may be read from anywhere. Nothing is kept on disk.
Corresponds to NettyServerConfig, BrokerFastFailure and the rejections of NettyRemotingAbstract.processRequestCommand.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.protocol.wire.command import Buffer, RemotingCommand, SerializeType

MIB = 1024 * 1024
OTHER = "admin"
"""The kind of what no kind is named for."""
OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
_TOO_OLD = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: %dms, size of queue: %d"

# As they stand in a header. In a JSON text a quotation mark is written with a backslash, so no value has one of these.
_CODE = re.compile(rb'"code":\s*(-?\d{1,10})\b')
_OPAQUE = re.compile(rb'"opaque":\s*(-?\d{1,10})\b')
_FLAG = re.compile(rb'"flag":\s*(\d{1,10})\b')
# In the order of this package's, Go's and C++'s clients, from the begin; in that of Java's, to the end.
_BEGIN = re.compile(
    rb'\{"code":(-?\d{1,10}),"language":[^,]{1,16},"version":\d{1,10},"opaque":(-?\d{1,10}),"flag":(\d{1,10})\b'
)
_END = re.compile(
    rb'"flag":(\d{1,10}),"language":[^,]{1,16},"opaque":(-?\d{1,10}),"serializeTypeCurrentRPC":"JSON","version":\d{1,10}\}\Z'
)
_LONGEST_END = 160
_JSON = int(SerializeType.JSON)
_NEAR = 64  # bytes at whose begin the code is usually found
_PREFIX = struct.Struct(">II")
_WORD = struct.Struct(">I")
_SHORT = struct.Struct(">h")
_NUMBERS = struct.Struct(">hBhii")


@dataclass(frozen=True, slots=True)
class Queue:
    """Room for requests of one kind, and how many seconds of the server's work one may wait there; 0: any time."""

    capacity: int = 10_000
    patience: float = 0.0


@dataclass(slots=True)
class Limits:
    """What peers may do to a server. Times are seconds; a limit of 0 for connections of an address is none."""

    max_connections: int = 20_000
    max_connections_per_address: int = 0
    first_request: float = 30.0
    """Until a new connection has sent its first byte."""
    slow_writer: float = 30.0
    """For a whole frame, and a second more for each 16 KiB that has come of it."""
    slow_reader: float = 30.0
    """Without taking a byte, while more answers wait for it than ``high_water``."""
    max_request_bytes: int = 256 * MIB
    """Requests that wait and frames that are not whole, of all connections together."""
    max_answer_bytes: int = 256 * MIB
    """Answers that nobody reads, of all connections together."""
    max_oneway: int = 256
    """One-way requests from here to peers that are behind with reading."""
    max_async: int = 64
    """Requests from here that wait for a peer's answer, for each connection."""
    queues: dict[str, Queue] = field(default_factory=lambda: {OTHER: Queue()})
    """In the order in which they are served when there is too much to do."""
    kinds: Mapping[int, str] = field(default_factory=dict)
    """Which request codes belong to which queue; the others are ``OTHER``."""

    def kind_of(self, code: int) -> str:
        return self.kinds.get(code, OTHER)


class OverloadStats:
    """What became too much so far: plain numbers."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        """Requests that wait now, by kind."""
        self.waiting_bytes = 0
        self.unfinished_bytes = 0
        """Of frames that are not whole, as far as they are larger than what is read at once."""
        self.unread_bytes = 0
        """Answers that wait for peers that are behind with reading, when it was last looked."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """Requests answered SYSTEM_BUSY, or dropped if one-way, by kind and reason: ``overload`` (no room), ``timeout``
        (waited too long), ``page_cache``, ``memory``, ``put`` (too many wait for disk or slaves)."""
        self.connections_refused: Counter[str] = Counter()
        """By reason: ``total``, ``address``."""
        self.slow_readers = 0
        self.slow_writers = 0
        self.silent = 0
        """Connections closed because they never sent a byte."""
        self.oneway_dropped = 0
        self.async_refused = 0
        self.page_cache_busy = 0
        """How often an append took too long."""
        self.memory_high = 0
        """How often memory rose above its limit."""

    @property
    def busy_answers(self) -> int:
        return sum(self.refused.values())


def peek_code(frame: memoryview) -> int:
    """A frame's code without decoding it; -1 when it is not where it usually is."""
    if frame[0] == _JSON:
        found = _CODE.search(frame, 4, 4 + _NEAR)
        return int(found[1]) if found is not None else -1
    return int(_SHORT.unpack_from(frame, 4)[0]) if len(frame) >= 6 else -1


def peek(frame: memoryview) -> tuple[int, int, int]:
    """Code, opaque and flag of a frame whose header is whole, in a tenth of the time of decoding it.

    ProtocolError when it has none.
    """
    word = _WORD.unpack_from(frame)[0]
    end = 4 + (word & 0xFFFFFF)
    if end > len(frame):
        pass
    elif word >> 24 == _JSON:
        begin = _BEGIN.match(frame, 4, end)
        if begin is not None:
            return int(begin[1]), int(begin[2]), int(begin[3])
        tail = _END.search(frame[max(end - _LONGEST_END, 4) : end])
        if tail is not None and (start := _CODE.search(frame, 4, 4 + _NEAR)) is not None:
            return int(start[1]), int(tail[2]), int(tail[1])
        code, opaque, flag = (pattern.search(frame, 4, end) for pattern in (_CODE, _OPAQUE, _FLAG))
        if code is not None and opaque is not None and flag is not None:
            return int(code[1]), int(opaque[1]), int(flag[1])
    elif end - 4 >= _NUMBERS.size <= len(frame) - 4:
        number, _, _, opaque_number, flags = _NUMBERS.unpack_from(frame, 4)
        return number, opaque_number, flags
    command = RemotingCommand.decode(frame[:end])
    return command.code, command.opaque, command.flag


class BusyAnswer:
    """SYSTEM_BUSY with one remark, made once and numbered for each who gets it."""

    def __init__(self, remark: str) -> None:
        request = RemotingCommand.request(0)
        request.opaque = 0
        self.remark = remark
        header = RemotingCommand.response(request, ResponseCode.SYSTEM_BUSY, remark).encode()[8:]
        self._before, self._after = header.split(b'"opaque":0', 1)

    def encode(self, kind: int, opaque: int) -> bytes:
        """The whole frame, for a request whose header was spelt so."""
        if kind == _JSON:
            header = b'%b"opaque":%d%b' % (self._before, opaque, self._after)
            return _PREFIX.pack(4 + len(header), len(header)) + header
        request = RemotingCommand.request(0, serialize_type=SerializeType.ROCKETMQ)
        request.opaque = opaque
        return RemotingCommand.response(request, ResponseCode.SYSTEM_BUSY, self.remark).encode()


def too_old(waited: float, size: int) -> str:
    """The remark for who has waited so many seconds in a queue of so many."""
    return _TOO_OLD % (waited * 1000, size)


def refuse(request: RemotingCommand, remark: str) -> RemotingCommand:
    """The answer to a request that was decoded already."""
    return RemotingCommand.response(request, ResponseCode.SYSTEM_BUSY, remark)


def header_is_whole(start: Buffer, filled: int) -> bool:
    """Whether the header of a frame is in its first ``filled`` bytes."""
    return filled >= 4 and filled >= 4 + (_WORD.unpack_from(start)[0] & 0xFFFFFF)
