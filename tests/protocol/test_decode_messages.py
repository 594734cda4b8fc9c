"""Decoding runs of records: the fast path for usual records returns exactly what the general path returns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.model import MessageExt
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.record.properties import encode_properties
from spark_rocket.protocol.record.record import encode_record, iter_records


def record(topic: str, body: bytes, properties: dict[str, str], host: tuple[str, int], offset: int) -> bytes:
    return encode_record(
        topic.encode(),
        3,
        body,
        encode_properties(properties),
        flag=-1,
        queue_offset=offset,
        physical_offset=offset * 100,
        born_timestamp=1,
        born_host=pack_host(host),
        store_timestamp=2,
        store_host=pack_host(("127.0.0.1", 10911)),
        reconsume_times=1,
        prepared_transaction_offset=7,
    )


RUN = b"".join(
    [
        record("t", b"", {}, ("10.0.0.1", 5), 0),
        record("orders", b"x" * 130, {"TAGS": "a", "KEYS": "k1 k2"}, ("10.0.0.1", 5), 1),
        record("ü" * 30, b"\0\1\2", {"a": "ü"}, ("::1", 5), 2),
        record("l" * 200, b"long topic", {"a": "b"}, ("10.0.0.2", 5), 3),
        record("t", b"last", {"a": "b"}, ("10.0.0.2", 5), 4),
    ]
)


def carefully(raw: bytes) -> list[MessageExt] | str:
    try:
        return [view.to_message("b") for view in iter_records(raw, check_crc=True)]
    except ProtocolError as error:
        return error.message


def quickly(raw: bytes) -> list[MessageExt] | str:
    try:
        return decode_messages(raw, "b")
    except ProtocolError as error:
        return error.message


def test_a_run_of_all_kinds() -> None:
    found = decode_messages(memoryview(RUN), "b")
    assert found == carefully(RUN)
    assert [message.topic for message in found] == ["t", "orders", "ü" * 30, "l" * 200, "t"]
    assert found[1].offset_msg_id == "7F00000100002A9F0000000000000064"


@given(st.lists(st.tuples(st.integers(0, len(RUN) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(RUN)))
def test_damage_is_found_alike(changes: list[tuple[int, int]], length: int) -> None:
    raw = bytearray(RUN)
    for at, value in changes:
        raw[at] = value
    damaged = bytes(raw[: max(length, len(RUN) - length)])
    careful = carefully(damaged)
    if isinstance(careful, str) or not any(message.sys_flag & 0xC1 for message in careful):
        assert quickly(damaged) == careful
