"""Every message can become a dead letter, for any bytes and any limits of brokers."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_rocket.datasource.bodies.decoding import reason
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_read_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.read.bad_records import COPIED_COLUMNS, POSITION_COLUMNS, send_dead_letters
from spark_rocket.datasource.write import task
from spark_rocket.datasource.write.row_encoder import Block
from spark_rocket.errors import BrokerError, RowError
from spark_rocket.model import (
    BAD_RECORD_BODY_LENGTH,
    BAD_RECORD_BROKER,
    BAD_RECORD_LEFT_OUT,
    BAD_RECORD_MSG_ID,
    BAD_RECORD_OFFSET,
    BAD_RECORD_QUEUE,
    BAD_RECORD_REASON,
    BAD_RECORD_TOPIC,
    MessageQueue,
    SendResult,
    SendStatus,
)
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.columns import decode_records
from spark_rocket.protocol.record.properties import PROPERTIES_LIMIT, decode_properties
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.remoting.client.promise import Promise, failed, resolved

OPTIONS = parse_read_options({"nameServer": "x:1", "subscribe": "orders", "retryTimeout": "0"}, Scope.READ)
HOST: Any = pack_host(("10.0.0.1", 5000))


def message(body: bytes, properties: bytes, offset: int = 5) -> bytes:
    return encode_record(
        b"orders",
        3,
        body,
        properties,
        queue_offset=offset,
        physical_offset=0,
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=1,
        store_host=HOST,
    )


class Broker:
    """Stores messages up to its limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, largest: int = 1 << 30) -> None:
        self.largest = largest
        self.stored: list[tuple[bytes, dict[str, str]]] = []
        monkeypatch.setattr(task, "sink_for", self._sink)

    def _sink(self, options: WriteOptions) -> Broker:
        return self

    def queues(self, topic: str, *, ordered: bool = False) -> list[MessageQueue]:
        return [MessageQueue(topic, "b", 0)]

    def submit(self, block: Block, queue: MessageQueue) -> Promise[SendResult]:
        parts = list(decode_batch_body(block.body))
        if any(len(body) + len(properties) > self.largest for _, body, properties in parts):
            return failed(BrokerError("the message is illegal: maybe msg body length", response_code=13))
        for _, body, properties in parts:
            assert len(properties) <= PROPERTIES_LIMIT
            raw = zlib.decompress(body) if block.sys_flag else bytes(body)
            self.stored.append((raw, decode_properties(bytes(properties))))
        return resolved(SendResult(SendStatus.SEND_OK, "", "", queue, 0))

    def letters(self, records: bytes, *reasons: str) -> list[tuple[bytes, dict[str, str]]]:
        self.stored.clear()
        batch = decode_records(records, ["body", *POSITION_COLUMNS, *COPIED_COLUMNS], broker_name="b")
        send_dead_letters(batch, dict(enumerate(reasons)), OPTIONS, "bad")
        return self.stored


ORIGIN = {BAD_RECORD_TOPIC: "orders", BAD_RECORD_BROKER: "b", BAD_RECORD_QUEUE: "3", BAD_RECORD_OFFSET: "5"}


@settings(max_examples=60)
@given(
    body=st.binary(max_size=50),
    properties=st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"TAGS", b"KEYS", b"UNIQ_KEY", b"\xff", b"\x00"]))
    | st.lists(st.binary(max_size=20)),
    times=st.sampled_from([1, 1, 1, 300, 2000]),
    why=st.text(max_size=300) | st.characters(categories=["Cs", "Cc"]),
)
@example(b"", [b"TAGS\x01" + b"\xff" * 32_000], 1, "")
@example(b"", [b"UNIQ_KEY\x01" + b"\x01" * 32_000], 1, "\ud800\x01\x02")
@example(b"", [b"p\x01" + b"x" * 32_700], 1, "€" * 300)
def test_any_message_has_a_dead_letter(body: bytes, properties: list[bytes], times: int, why: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        ((found, got),) = Broker(monkeypatch).letters(
            message(body, (b"".join(properties) * times)[:32_767]), reason(ValueError(why))
        )
    assert found == body
    assert got.items() >= ORIGIN.items()
    assert got[BAD_RECORD_REASON].isprintable()
    assert got[BAD_RECORD_REASON]


def test_invalid_properties_are_replaced_and_large_ones_omitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(monkeypatch)
    pairs = [("small", b"1"), ("large", b"x" * 20_000), ("KEYS", b"k" * 12_000), ("odd", b"a\x01b"), ("", b"unnamed")]
    pairs.append(("TAGS", b" a||b"))  # no consumer can select it
    records = message(b"b", b"".join(key.encode() + b"\x01" + value + b"\x02" for key, value in pairs))
    ((_, got),) = broker.letters(records, "not \x01 a\x02number")
    got.pop("UNIQ_KEY")
    assert got.pop(BAD_RECORD_MSG_ID)
    assert got == ORIGIN | {
        "small": "1",
        "odd": "a\ufffdb",
        "KEYS": "k" * 12_000,
        "TAGS": " a||b",
        BAD_RECORD_REASON: "not \ufffd a\ufffdnumber",
        BAD_RECORD_LEFT_OUT: ", large",
    }


def test_only_rejected_bodies_are_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch, largest=100_000)
    large = b"".join(number.to_bytes(4, "big") for number in range(30_000))
    records = b"".join(message(body, b"", 5 + at) for at, body in enumerate((b"a", large, b"c" * 90_000)))
    found = broker.letters(records, "why", "why", "why")[-3:]
    assert [body for body, _ in found] == [b"a", large[: 64 * 1024], b"c" * 90_000]
    assert [got.get(BAD_RECORD_BODY_LENGTH) for _, got in found] == [None, "120000", None]
    assert len({got["UNIQ_KEY"] for _, got in found}) == 3
    broker.largest = 1000
    assert broker.letters(records, "why", "why", "why")[-1][0] == b""
    broker.largest = 10
    with pytest.raises(RowError, match="cannot be sent"):
        broker.letters(records, "why", "why", "why")


def test_compressed_bodies_stay_compressed_and_large_ones_are_truncated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(monkeypatch, largest=4 << 20)
    sizes = (5 << 20, 13 << 20)
    found = broker.letters(b"".join(message(bytes(size), b"", 5 + at) for at, size in enumerate(sizes)), "a", "b")
    assert [(len(body), got.get(BAD_RECORD_BODY_LENGTH)) for body, got in found] == [
        (5 << 20, None),
        ((12 << 20) - 65_536, str(13 << 20)),
    ]
