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
from functools import partial
from typing import Any

from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.requests import BROKER_REQUESTS, HEADER_SEPARATORS, RawBody, RequestType
from spark_rocket.protocol.wire.bodies.base import Body
from spark_rocket.protocol.wire.bodies.config import TopicConfig, TopicConfigSerializeWrapper
from spark_rocket.protocol.wire.bodies.register import RegisterBrokerBody
from spark_rocket.protocol.wire.codes import CURRENT_VERSION, RequestCode
from spark_rocket.protocol.wire.command import MAX_HEADER_LENGTH, RemotingCommand
from spark_rocket.protocol.wire.frame import MAX_FRAME_LENGTH
from spark_rocket.protocol.wire.headers.producer import SendMessageRequestHeader
from tests.cost import values
from tests.cost.servers import Line
from tests.cost.values import Filling, Variant, body_of, header_fields, header_type, header_values, wire_name

MB = 1_000_000
FRAME = MAX_FRAME_LENGTH - 4096  # the rest is for the header
LONG_HEADER = min(MAX_HEADER_LENGTH, MAX_FRAME_LENGTH) - 8192

_SEPARATORS = (";", ",", " ", "||", "@", "\x02", "\n")


def prepared(line: Line) -> None:
    """Create the topic and the group of the plausible values, unless a request has just deleted them."""
    topic: dict[str, object] = {"attributes": None, "topic_filter_type": "SINGLE_TAG"}
    for code, changed in (
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None),
        (RequestCode.SEND_MESSAGE, None),
    ):
        answer = line.ask(request_of(BROKER_REQUESTS[code], changed))
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


def cases(row: RequestType) -> Iterator[Case]:
    """All requests of a code."""
    yield Case(row.code, "plausible", partial(request_of, row))
    yield from _numbers(row)
    yield from _strings(row)
    yield from _body_sizes(row)
    if isinstance(row.body, type):
        yield from _collections(row, row.body)
    elif row.body is RawBody.REGISTRATION:
        yield from _registrations(row)
    elif row.body is RawBody.MESSAGE_BATCH:
        yield from _batches(row)


def request_of(
    row: RequestType, changed: dict[str, object] | None = None, body: bytes | None = None
) -> RemotingCommand:
    ext: dict[str, str] = {}
    if row.header is not None:
        header = row.header(**header_values(row.header, changed))
        ext = header.to_ext_v2() if isinstance(header, SendMessageRequestHeader) and row.one_letter else header.to_ext()
    content = default_body(row) if body is None else body
    return RemotingCommand(row.code, version=CURRENT_VERSION, ext_fields=ext, body=content)


def default_body(row: RequestType) -> bytes:
    """A plausible body."""
    if isinstance(row.body, type):
        return encoded(body_of(row.body, Filling()))
    if row.body is RawBody.REGISTRATION:
        return registration(1)
    if row.body is RawBody.MESSAGE_BATCH:
        return bytes(encode_batch_body([(0, b"x", b"")]))
    if row.body is RawBody.PROPERTIES:
        return b"unknownSetting=1\n"
    return b"x" if row.body is RawBody.MESSAGE else b""


def encoded(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# --- headers --------------------------------------------------------------------------------------------------------


def _numbers(row: RequestType) -> Iterator[Case]:
    """Each number at its extremes, then all together."""
    extremes = {"Int": values.INT_EXTREMES, "Long": values.LONG_EXTREMES}
    if row.header is not None:
        numeric = [(one.name, header_type(one)) for one in header_fields(row.header) if header_type(one) in extremes]
        for name, kind in numeric:
            for number in extremes[kind]:
                yield Case(row.code, f"{name}={number}", partial(request_of, row, {name: number}), is_number=True)
        for place in (-2, -1, 1):
            changed: dict[str, object] = {name: extremes[kind][place] for name, kind in numeric}
            yield Case(row.code, f"all numbers, {place}", partial(request_of, row, changed), is_number=True)
        flags = [one.name for one in header_fields(row.header) if header_type(one) == "bool"]
        for name in flags:
            yield Case(row.code, f"{name}=true", partial(request_of, row, {name: True}), is_number=True)
    if isinstance(row.body, type):
        for path in values.numbers_in(row.body):
            for number in values.LONG_EXTREMES:
                filling = Filling(changed={path: number})
                make = partial(_with_body, row, row.body, filling)
                yield Case(row.code, f"{path}={number}", make, is_number=True)


def _strings(row: RequestType) -> Iterator[Case]:
    """Each text of the header at the header's bound: one name, and full of separators; the first also beyond it."""
    if row.header is None:
        return
    bound = row.max_header_bytes
    names = [field for field in header_fields(row.header) if header_type(field) == "str"]
    for place, field in enumerate(names):
        name = field.name
        sizes = {min(bound - 2048, MB)}
        if place == 0 or bound >= MB:
            sizes |= {MB, LONG_HEADER}
        for size in sorted(sizes):
            kind = Size.FRAME if size > MB else Size.SMALL
            make = partial(request_of, row, {name: "x" * size})
            yield Case(row.code, f"{name}: {size:,} characters", make, kind, size > bound)
            if size <= bound:
                make = partial(_late, row, name, partial(_joined, wire_name(field), size))
                yield Case(row.code, f"{name}: {size:,} characters with separators", make)
        yield from _header_list(row, name, wire_name(field))
        if wire_name(field) == "properties":
            yield from _properties(row, name)


def _late(row: RequestType, name: str, text: Callable[[], str]) -> RemotingCommand:
    return request_of(row, {name: text()})


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


def _header_list(row: RequestType, name: str, wire: str) -> Iterator[Case]:
    """A list in one field: at its bound, beyond it and in 1 MB, of one known name and of new ones."""
    most = row.max_entries.get(wire)
    if most is None:
        return
    separator, known = HEADER_SEPARATORS[wire], values.LIST_ENTRIES[wire]
    for count in (most, most + 1, MB // (len(known) + 1)):
        for label, entries in (("known names", [known] * count), ("new names", [f"t{at}" for at in range(count)])):
            text = separator.join(entries)
            is_beyond = count > most or len(text) > row.max_header_bytes
            make = partial(request_of, row, {name: text})
            yield Case(row.code, f"{name}: {count:,} entries, {label}", make, is_beyond=is_beyond)


def _properties(row: RequestType, name: str) -> Iterator[Case]:
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
        yield Case(row.code, f"{name}: {label}", partial(request_of, row, {name: text}))


# --- bodies ---------------------------------------------------------------------------------------------------------


def _body_sizes(row: RequestType) -> Iterator[Case]:
    """Bodies without regard to their type: the bound, beyond it and a frame."""
    bound = min(row.max_body_bytes, FRAME)
    units = {"spaces": b" ", "brackets": b"[", "lines": b"a=1\n"}
    for size in sorted({bound, min(row.max_body_bytes + 1, FRAME), FRAME}):
        kind = Size.FRAME if size > MB else Size.SMALL
        is_read = size == bound and row.body is not RawBody.NONE
        for label, unit in units.items() if is_read else [("spaces", b" ")]:
            make = partial(_late_body, row, partial(_repeated, unit, size))
            yield Case(row.code, f"body of {size:,} bytes, {label}", make, kind, size > row.max_body_bytes)


def _late_body(row: RequestType, body: Callable[[], bytes]) -> RemotingCommand:
    return request_of(row, body=body())


def _repeated(unit: bytes, size: int) -> bytes:
    return (unit * (size // len(unit) + 1))[:size]


def _with_body(row: RequestType, cls: type[Body], filling: Filling) -> RemotingCommand:
    return request_of(row, body=encoded(body_of(cls, filling)))


def _collections(row: RequestType, cls: type[Body]) -> Iterator[Case]:
    for path in values.collections_in(cls):
        most = row.max_entries.get(path)
        if path.endswith("acks.b"):
            yield from _bit_sets(row, cls, path)
            continue
        each = _entry_bytes(cls, path)
        fill = min(row.max_body_bytes - 2_000, MB) // each  # more bytes are refused before they are decoded
        for variant in Variant:
            counts = {fill} if most is None else {1, min(fill, most), most, most + 1}
            if variant in (Variant.SAME, Variant.COLLIDING):
                counts = {fill if most is None else min(fill, most)}
            for count in sorted(counts):
                filling = Filling({path: count, path.rpartition(".")[2]: count}, variant)
                make = partial(_with_body, row, cls, filling)
                is_beyond = most is not None and count > most
                yield Case(row.code, f"{path}: {count:,} entries, {variant.value}", make, is_beyond=is_beyond)
    for path in values.strings_in(cls):
        for size, kind in ((MB, Size.SMALL), (FRAME - 65_536, Size.FRAME)):
            make = partial(_with_body, row, cls, Filling(changed={path: "x" * size}))
            yield Case(row.code, f"{path}: {size:,} characters", make, kind, size > row.max_body_bytes)


def _entry_bytes(cls: type[Body], path: str) -> int:
    sizes = []
    for count in (100, 200):
        filling = Filling({path: count, path.rpartition(".")[2]: count}, Variant.UNIQUE, start=100_000)
        sizes.append(len(encoded(body_of(cls, filling))))
    return max((sizes[1] - sizes[0]) // 100 + 1, 2)


def _bit_sets(row: RequestType, cls: type[Body], path: str) -> Iterator[Case]:
    """Acks with bit sets: one large, and many of the greatest number of bits that a check point has."""
    parent = path.rpartition(".")[0]
    for bits, size in ((65_536, 220_000), (65_536, MB), (1_024, MB), (65_536, FRAME), (8 * 700_000, MB)):
        each = bits // 6 + 120
        count = max(size // each, 1)
        kind = Size.FRAME if size > MB else Size.SMALL
        filling = Filling({parent: count, "bits": bits})
        make = partial(_with_body, row, cls, filling)
        total, most = bits * count, row.max_entries.get(path)
        is_beyond = size > row.max_body_bytes or (most is not None and total > most)
        yield Case(row.code, f"{count:,} acks of {bits:,} bits", make, kind, is_beyond)


def registration(count: int, *, compressed: bool = False, start: int = 0, **changed: Any) -> bytes:
    """The body of a registration with ``count`` topics, numbered from ``start`` on."""
    topics = [TopicConfig(f"hostile-{at}", **changed) for at in range(start, start + count)]
    table = {each.topic_name: each for each in topics}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table)).encode(compressed=compressed)


def _registrations(row: RequestType) -> Iterator[Case]:
    most = row.max_entries.get("topicConfigSerializeWrapper.topicConfigTable", 100_000)
    for count, kind in ((4_500, Size.SMALL), (70_000, Size.FRAME)):
        make = partial(_late_body, row, partial(registration, count))
        yield Case(row.code, f"{count:,} topics", make, kind, count > most)
    for number in (0, -1, (1 << 31) - 1, 1_000_000):
        body = partial(registration, 1, read_queue_nums=number, write_queue_nums=number)
        yield Case(row.code, f"a topic of {number:,} queues", partial(_late_body, row, body), is_number=True)
    for count in (4_500, most, most + 1):
        make = partial(_compressed, row, count)
        kind = Size.SMALL if count == 4_500 else Size.FRAME
        yield Case(row.code, f"{count:,} topics, compressed", make, kind, count > most)
    for size in (MB // 1000, 10_000):
        body = partial(_bomb, size)
        yield Case(row.code, f"compressed, {size:,} bytes of zlib", partial(_compressed_body, row, body))


def _compressed(row: RequestType, count: int) -> RemotingCommand:
    return _compressed_body(row, partial(registration, count, compressed=True))


def _compressed_body(row: RequestType, body: Callable[[], bytes]) -> RemotingCommand:
    return request_of(row, {"compressed": True}, body())


def _bomb(size: int) -> bytes:
    return zlib.compress(bytes(size * 1000), 9)


def _batches(row: RequestType) -> Iterator[Case]:
    keys = b"KEYS\x01" + b" ".join(b"k%d" % at for at in range(5_000)) + b"\x02"
    for size, kind in ((MB, Size.SMALL), (4 * MB, Size.FRAME), (FRAME, Size.FRAME)):
        for label, properties in (("empty messages", b""), ("messages with 5,000 keys", keys)):
            each = 4 + 4 + 4 + 4 + 4 + 2 + len(properties)
            body = partial(_batch, size // each, properties)
            make = partial(_batch_request, row, body)
            yield Case(row.code, f"{size // each:,} {label}", make, kind)


def _batch(count: int, properties: bytes) -> bytes:
    return bytes(encode_batch_body([(0, b"", properties)] * count))


def _batch_request(row: RequestType, body: Callable[[], bytes]) -> RemotingCommand:
    return request_of(row, {"batch": True}, body())
