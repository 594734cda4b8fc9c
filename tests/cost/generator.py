"""Hostile requests for every request code, from the declared types of its header and body.

For each code: every collection with one entry, at its bound, just beyond it, in 1 MB and in a full frame, with new,
known, equal and colliding names; every number at its extremes; every text long, and full of what separates lists.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any

from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.config import TopicConfig, TopicConfigSerializeWrapper
from spark_rocket.protocol.wire.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.wire.codes import CURRENT_VERSION, RequestCode
from spark_rocket.protocol.wire.command import MAX_HEADER_LENGTH, RemotingCommand
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader
from spark_rocket.protocol.wire.request_limits import BROKER_LIMITS, HEADER_SEPARATORS, RawBody, RequestLimit
from tests.cost import values
from tests.cost.servers import Line
from tests.cost.values import Filling, Variant, body_of, header_fields, header_type, header_values, wire_name

MB = 1_000_000
FRAME = MAX_FRAME_LENGTH - 4096  # the rest is for the header
LONG_HEADER = min(MAX_HEADER_LENGTH, MAX_FRAME_LENGTH) - 8192

LETTERS = {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
_SEPARATORS = (";", ",", " ", "||", "@", "\x02", "\n")


def prepared(line: Line) -> None:
    """Create the topic and the group of the plausible values, unless a request has just deleted them."""
    topic = {"attributes": None, "topic_filter_type": "SINGLE_TAG"}
    for code, changed in (
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None),
        (RequestCode.SEND_MESSAGE, None),
    ):
        answer = line.ask(request_of(code, BROKER_LIMITS[code], changed))
        assert answer is not None
        assert answer.code == 0, answer


class Size(Enum):
    """What a request may cost, by its bytes."""

    SMALL = "1 MB or less"
    FRAME = "a full frame"


@dataclass(frozen=True)
class Case:
    """A request. ``is_beyond``: it exceeds a bound of the table, so it must be refused."""

    subject: Any
    """The request code, the method of the proxy or the route of the console."""
    label: str
    make: Callable[[], Any]
    size: Size = Size.SMALL
    is_beyond: bool = False
    is_number: bool = False
    """Cheap to make and usually to answer: several are measured together."""


def cases(code: int, limit: RequestLimit) -> Iterator[Case]:
    """All requests of a code."""
    yield Case(code, "plausible", partial(request_of, code, limit))
    yield from _numbers(code, limit)
    yield from _strings(code, limit)
    yield from _body_sizes(code, limit)
    if isinstance(limit.body, type):
        yield from _collections(code, limit, limit.body)
    elif limit.body is RawBody.REGISTRATION:
        yield from _registrations(code, limit)
    elif limit.body is RawBody.MESSAGE_BATCH:
        yield from _batches(code, limit)


def request_of(
    code: int, limit: RequestLimit, changed: dict[str, object] | None = None, body: bytes | None = None
) -> RemotingCommand:
    ext: dict[str, str] = {}
    if limit.header is not None:
        header = limit.header(**header_values(limit.header, changed))
        if code in LETTERS and isinstance(header, SendMessageRequestHeader):
            ext = header.to_ext_v2()
        else:
            ext = header.to_ext()
    content = default_body(limit) if body is None else body
    return RemotingCommand(code, version=CURRENT_VERSION, ext_fields=ext, body=content)


def default_body(limit: RequestLimit) -> bytes:
    """A plausible body."""
    if isinstance(limit.body, type):
        return encoded(body_of(limit.body, Filling()))
    if limit.body is RawBody.REGISTRATION:
        return registration(1)
    if limit.body is RawBody.MESSAGE_BATCH:
        return bytes(encode_batch_body([(0, b"x", b"")]))
    if limit.body is RawBody.PROPERTIES:
        return b"unknownSetting=1\n"
    return b"x" if limit.body is RawBody.MESSAGE else b""


def encoded(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# --- headers --------------------------------------------------------------------------------------------------------


def _numbers(code: int, limit: RequestLimit) -> Iterator[Case]:
    """Each number at its extremes, then all together."""
    extremes = {"Int": values.INT_EXTREMES, "Long": values.LONG_EXTREMES}
    if limit.header is not None:
        numeric = [(one.name, header_type(one)) for one in header_fields(limit.header) if header_type(one) in extremes]
        for name, kind in numeric:
            for number in extremes[kind]:
                yield Case(code, f"{name}={number}", partial(request_of, code, limit, {name: number}), is_number=True)
        for place in (-2, -1, 1):
            changed: dict[str, object] = {name: extremes[kind][place] for name, kind in numeric}
            yield Case(code, f"all numbers, {place}", partial(request_of, code, limit, changed), is_number=True)
        flags = [one.name for one in header_fields(limit.header) if header_type(one) == "bool"]
        for name in flags:
            yield Case(code, f"{name}=true", partial(request_of, code, limit, {name: True}), is_number=True)
    if isinstance(limit.body, type):
        for path in values.numbers_in(limit.body):
            for number in values.LONG_EXTREMES:
                filling = Filling(changed={path: number})
                make = partial(_with_body, code, limit, limit.body, filling)
                yield Case(code, f"{path}={number}", make, is_number=True)


def _strings(code: int, limit: RequestLimit) -> Iterator[Case]:
    """Each text of the header at the header's bound: one name, and full of separators; the first also beyond it."""
    if limit.header is None:
        return
    bound = limit.max_header_bytes
    names = [field for field in header_fields(limit.header) if header_type(field) == "str"]
    for place, field in enumerate(names):
        name = field.name
        sizes = {min(bound - 2048, MB)}
        if place == 0 or bound >= MB:
            sizes |= {MB, LONG_HEADER}
        for size in sorted(sizes):
            kind = Size.FRAME if size > MB else Size.SMALL
            make = partial(request_of, code, limit, {name: "x" * size})
            yield Case(code, f"{name}: {size:,} characters", make, kind, size > bound)
            if size <= bound:
                make = partial(_late, code, limit, name, partial(_joined, wire_name(field), size))
                yield Case(code, f"{name}: {size:,} characters with separators", make)
        yield from _header_list(code, limit, name, wire_name(field))
        if wire_name(field) == "properties":
            yield from _properties(code, limit, name)


def _late(code: int, limit: RequestLimit, name: str, text: Callable[[], str]) -> RemotingCommand:
    return request_of(code, limit, {name: text()})


def _joined(wire: str, size: int) -> str:
    """Many entries, whatever separates them."""
    base = str(values.PLAUSIBLE.get(wire, "x"))
    pieces, length, index = [base], len(base), 0
    while length < size - 32:
        piece = f"{_SEPARATORS[index % len(_SEPARATORS)]}t{index}"
        pieces.append(piece)
        length += len(json.dumps(piece)) - 2
        index += 1
    return "".join(pieces)


def _header_list(code: int, limit: RequestLimit, name: str, wire: str) -> Iterator[Case]:
    """A list in one field: at its bound, beyond it and in 1 MB, of one known name and of new ones."""
    most = limit.max_entries.get(wire)
    if most is None:
        return
    separator, known = HEADER_SEPARATORS[wire], values.LIST_ENTRIES[wire]
    for count in (most, most + 1, MB // (len(known) + 1)):
        for label, entries in (("known names", [known] * count), ("new names", [f"t{at}" for at in range(count)])):
            text = separator.join(entries)
            is_beyond = count > most or len(text) > limit.max_header_bytes
            make = partial(request_of, code, limit, {name: text})
            yield Case(code, f"{name}: {count:,} entries, {label}", make, is_beyond=is_beyond)


def _properties(code: int, limit: RequestLimit, name: str) -> Iterator[Case]:
    """Message properties of the greatest allowed length: many, and many keys for the index."""
    many = "".join(f"{at}\x01v\x02" for at in range(4_000))[:32_000]
    keys = "KEYS\x01" + " ".join(f"k{at}" for at in range(5_000)) + "\x02"
    same = "KEYS\x01" + " ".join(values.colliding(at) for at in range(1_300)) + "\x02"
    tags = "TAGS\x01" + "t" * 31_000 + "\x02"
    delay = "DELAY\x013\x02TIMER_DELIVER_MS\x01" + "9" * 18 + "\x02"
    for label, text in (
        ("many", many),
        ("keys", keys),
        ("colliding keys", same),
        ("a long tag", tags),
        ("delay", delay),
    ):
        yield Case(code, f"{name}: {label}", partial(request_of, code, limit, {name: text}))


# --- bodies ---------------------------------------------------------------------------------------------------------


def _body_sizes(code: int, limit: RequestLimit) -> Iterator[Case]:
    """Bodies without regard to their type: the bound, beyond it and a frame."""
    bound = min(limit.max_body_bytes, FRAME)
    units = {"spaces": b" ", "brackets": b"[", "lines": b"a=1\n"}
    for size in sorted({bound, min(limit.max_body_bytes + 1, FRAME), FRAME}):
        kind = Size.FRAME if size > MB else Size.SMALL
        is_read = size == bound and limit.body is not RawBody.NONE
        for label, unit in units.items() if is_read else [("spaces", b" ")]:
            make = partial(_late_body, code, limit, partial(_repeated, unit, size))
            yield Case(code, f"body of {size:,} bytes, {label}", make, kind, size > limit.max_body_bytes)


def _late_body(code: int, limit: RequestLimit, body: Callable[[], bytes]) -> RemotingCommand:
    return request_of(code, limit, body=body())


def _repeated(unit: bytes, size: int) -> bytes:
    return (unit * (size // len(unit) + 1))[:size]


def _with_body(code: int, limit: RequestLimit, cls: type[Body], filling: Filling) -> RemotingCommand:
    return request_of(code, limit, body=encoded(body_of(cls, filling)))


def _collections(code: int, limit: RequestLimit, cls: type[Body]) -> Iterator[Case]:
    for path in values.collections_in(cls):
        most = limit.max_entries.get(path)
        if path.endswith("acks.b"):
            yield from _bit_sets(code, limit, cls, path)
            continue
        each = _entry_bytes(cls, path)
        fill = min(limit.max_body_bytes - 2_000, MB) // each  # more bytes are refused before they are decoded
        for variant in Variant:
            counts = {fill} if most is None else {1, min(fill, most), most, most + 1}
            if variant in (Variant.SAME, Variant.COLLIDING):
                counts = {fill if most is None else min(fill, most)}
            for count in sorted(counts):
                filling = Filling({path: count, path.rpartition(".")[2]: count}, variant)
                make = partial(_with_body, code, limit, cls, filling)
                is_beyond = most is not None and count > most
                yield Case(code, f"{path}: {count:,} entries, {variant.value}", make, is_beyond=is_beyond)
    for path in values.strings_in(cls):
        for size, kind in ((MB, Size.SMALL), (FRAME - 65_536, Size.FRAME)):
            make = partial(_with_body, code, limit, cls, Filling(changed={path: "x" * size}))
            yield Case(code, f"{path}: {size:,} characters", make, kind, size > limit.max_body_bytes)


@cache
def _entry_bytes(cls: type[Body], path: str) -> int:
    sizes = []
    for count in (100, 200):
        filling = Filling({path: count, path.rpartition(".")[2]: count}, Variant.UNIQUE, start=100_000)
        sizes.append(len(encoded(body_of(cls, filling))))
    return max((sizes[1] - sizes[0]) // 100 + 1, 2)


def _bit_sets(code: int, limit: RequestLimit, cls: type[Body], path: str) -> Iterator[Case]:
    """Acks with bit sets: one large, and many of the greatest number of bits that a check point has."""
    parent = path.rpartition(".")[0]
    for bits, size in ((65_536, 220_000), (65_536, MB), (1_024, MB), (65_536, FRAME), (8 * 700_000, MB)):
        each = bits // 6 + 120
        count = max(size // each, 1)
        kind = Size.FRAME if size > MB else Size.SMALL
        filling = Filling({parent: count, "bits": bits})
        make = partial(_with_body, code, limit, cls, filling)
        total, most = bits * count, limit.max_entries.get(path)
        is_beyond = size > limit.max_body_bytes or (most is not None and total > most)
        yield Case(code, f"{count:,} acks of {bits:,} bits", make, kind, is_beyond)


def registration(count: int, *, compressed: bool = False, start: int = 0, **changed: Any) -> bytes:
    """The body of a registration with ``count`` topics, numbered from ``start`` on."""
    topics = [TopicConfig(f"hostile-{at}", **changed) for at in range(start, start + count)]
    table = {each.topic_name: each for each in topics}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table)).encode(compressed=compressed)


def _registrations(code: int, limit: RequestLimit) -> Iterator[Case]:
    most = limit.max_entries.get("topicConfigSerializeWrapper.topicConfigTable", 100_000)
    for count, kind in ((4_500, Size.SMALL), (70_000, Size.FRAME)):
        make = partial(_late_body, code, limit, partial(registration, count))
        yield Case(code, f"{count:,} topics", make, kind, count > most)
    for number in (0, -1, (1 << 31) - 1, 1_000_000):
        body = partial(registration, 1, read_queue_nums=number, write_queue_nums=number)
        yield Case(code, f"a topic of {number:,} queues", partial(_late_body, code, limit, body), is_number=True)
    for count in (4_500, most, most + 1):
        make = partial(_compressed, code, limit, count)
        kind = Size.SMALL if count == 4_500 else Size.FRAME
        yield Case(code, f"{count:,} topics, compressed", make, kind, count > most)
    for size in (MB // 1000, 10_000):
        body = partial(_bomb, size)
        yield Case(code, f"compressed, {size:,} bytes of zlib", partial(_compressed_body, code, limit, body))


def _compressed(code: int, limit: RequestLimit, count: int) -> RemotingCommand:
    return _compressed_body(code, limit, partial(registration, count, compressed=True))


def _compressed_body(code: int, limit: RequestLimit, body: Callable[[], bytes]) -> RemotingCommand:
    return request_of(code, limit, {"compressed": True}, body())


def _bomb(size: int) -> bytes:
    return zlib.compress(bytes(size * 1000), 9)


def _batches(code: int, limit: RequestLimit) -> Iterator[Case]:
    keys = b"KEYS\x01" + b" ".join(b"k%d" % at for at in range(5_000)) + b"\x02"
    for size, kind in ((MB, Size.SMALL), (4 * MB, Size.FRAME), (FRAME, Size.FRAME)):
        for label, properties in (("empty messages", b""), ("messages with 5,000 keys", keys)):
            each = 4 + 4 + 4 + 4 + 4 + 2 + len(properties)
            body = partial(_batch, size // each, properties)
            make = partial(_batch_request, code, limit, body)
            yield Case(code, f"{size // each:,} {label}", make, kind)


def _batch(count: int, properties: bytes) -> bytes:
    return bytes(encode_batch_body([(0, b"", properties)] * count))


def _batch_request(code: int, limit: RequestLimit, body: Callable[[], bytes]) -> RemotingCommand:
    return request_of(code, limit, {"batch": True}, body())
