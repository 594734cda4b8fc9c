"""Rows to blocks, checked by decoding the batch bodies with the plain one-by-one decoder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.datasource.retry_deadline import RetryDeadline
from spark_rocket.datasource.write import row_encoder
from spark_rocket.datasource.write.row_encoder import (
    Block,
    RowEncoder,
    TaskQueues,
    choose_queue,
    unique_keys,
    write_key,
)
from spark_rocket.errors import RowError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.batch_body import decode_batch_body
from spark_rocket.protocol.record.compression import COMPRESSION_BITS, decompress_body
from spark_rocket.protocol.record.properties import decode_properties

KEY = write_key("query", "7", 3)


def queues_of(topic: str, *, ordered: bool = False) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for broker in ("broker-b", "broker-a") for number in range(3)]


def options(**given: str) -> WriteOptions:
    return parse_write_options({"nameServer": "x:1"} | given, Scope.WRITE)


def encoder(**given: str) -> RowEncoder:
    queues = TaskQueues(queues_of, KEY, lambda: RetryDeadline(0))
    return RowEncoder(options(**given), queues, KEY, "partition 3")


def messages(blocks: Sequence[Block]) -> list[tuple[MessageQueue | None, bytes, dict[str, str]]]:
    """The queue that each row names, if any, its body and properties."""
    return [
        (None if block.is_free else block.queue, bytes(body), decode_properties(bytes(properties)))
        for block in blocks
        for _, body, properties in decode_batch_body(block.body)
    ]


def test_the_unique_key_is_a_pure_function_and_has_the_classic_shape() -> None:
    assert write_key("query", "7", 3) == KEY
    assert len({KEY, write_key("query", "8", 3), write_key("query", "7", 4), write_key("other", "7", 3)}) == 4
    keys = unique_keys(KEY, np.array([0, 1, 65_536, 2**40])).to_pylist()
    assert keys == [
        KEY.hex().upper() + text for text in ("000000000000", "000000000001", "000000010000", "010000000000")
    ]


def test_a_batch_of_all_columns() -> None:
    batch = pa.record_batch(
        {
            "Body": pa.array(["a", "b", ""]),
            "tags": pa.array(["T", None, "U"]),
            "keys": pa.array([None, "k1 k2", ""]),
            "properties": pa.array([[("p", "1")], None, [("q", "ü"), ("r", None)]], pa.map_(pa.string(), pa.string())),
        }
    )
    blocks = list(encoder(topic="orders").blocks(batch))
    queue = choose_queue(0, queues_of("orders"), KEY)
    assert [(block.topic, block.queue, block.count, block.first_row) for block in blocks] == [("orders", queue, 3, 0)]
    ids = unique_keys(KEY, np.arange(3)).to_pylist()
    assert messages(blocks) == [
        (None, b"a", {"p": "1", "TAGS": "T", "UNIQ_KEY": ids[0]}),
        (None, b"b", {"KEYS": "k1 k2", "UNIQ_KEY": ids[1]}),
        (None, b"", {"q": "ü", "TAGS": "U", "KEYS": "", "UNIQ_KEY": ids[2]}),
    ]


def test_rows_are_numbered_through_the_whole_task() -> None:
    target = encoder(topic="orders")
    batch = pa.record_batch({"body": pa.array([b"x", b"y"])})
    ids = [m[2]["UNIQ_KEY"] for _ in range(3) for m in messages(list(target.blocks(batch)))]
    assert ids == unique_keys(KEY, np.arange(6)).to_pylist()
    with pytest.raises(RowError, match="row 7 of partition 3: body is null"):
        list(target.blocks(pa.record_batch({"body": pa.array([b"x", None])})))


def test_a_sharding_key_selects_the_queue_of_a_java_producer() -> None:
    keys = ["order-17", "order-18", None, "Ünicode", "order-17", ""]
    batch = pa.record_batch({"body": pa.array([str(i) for i in range(6)]), "shardingKey": pa.array(keys)})
    found = messages(list(encoder(topic="t").blocks(batch)))
    places = sorted(queues_of("t"))
    for queue, body, properties in found:
        key = keys[int(body)]
        assert properties.get("__SHARDINGKEY") == key
        assert queue == (None if key is None else places[abs(java_hash(key)) % 6])
    assert len(found) == 6


@given(
    st.lists(st.tuples(st.none() | st.text(max_size=40) | st.text("aü订🚀", max_size=300), st.booleans()), max_size=50),
    st.integers(0, 5),
)
def test_the_queues_of_any_sharding_keys(rows: list[tuple[str | None, bool]], first: int) -> None:
    """Of batches that are parts of others, too, and of topics in turn: what Java's hash of each key says."""
    batch = pa.record_batch(
        {
            "body": [str(number) for number in range(len(rows))],
            "shardingKey": pa.array([key for key, _ in rows], pa.string()),
            "topic": pa.array(["x" if is_first else "y" for _, is_first in rows], pa.string()),
        }
    ).slice(first)
    separators = {"\x01", "\x02"}
    if any(separators & set(key or "") for key, _ in rows[first:]):
        with pytest.raises(RowError, match="separator"):
            list(encoder().blocks(batch))
        return
    blocks = list(encoder().blocks(batch))
    found = {body: (block.topic, queue) for block in blocks for queue, body, _ in messages([block])}
    wanted = {}
    for number, (key, is_first) in enumerate(rows[first:], first):
        topic = "x" if is_first else "y"
        queue = None if key is None else sorted(queues_of(topic))[abs(java_hash(key)) % 6]
        wanted[str(number).encode()] = (topic, queue)
    assert found == wanted


def test_a_copied_message_keeps_the_queue_of_its_sharding_key() -> None:
    """As Java's producer resends it: the key is among the properties, as in a read message."""
    keys = ["order-17", None, "order-18", "Ünicode", None, "order-17", "k"]
    marks: list[list[tuple[str, str | None]] | None] = [
        [("__SHARDINGKEY", key), ("p", "1")] if key else [("p", "1")] for key in keys
    ]
    marks[1], marks[4] = None, [("__SHARDINGKEY", None)]
    columns = {
        "body": pa.array([str(number) for number in range(7)]),
        "properties": pa.array(marks, pa.map_(pa.string(), pa.string())),
    }
    places = sorted(queues_of("t"))

    def check(batch: pa.RecordBatch, wanted: dict[bytes, str | None]) -> None:
        found = messages(list(encoder(topic="t").blocks(batch)))
        assert {body: properties.get("__SHARDINGKEY") for _, body, properties in found} == wanted
        for queue, body, _ in found:
            key = wanted[body]
            assert queue == (None if key is None else places[abs(java_hash(key)) % 6])

    every = {str(number).encode(): key for number, key in enumerate(keys)}
    batch = pa.record_batch(columns)
    check(batch, every)
    check(batch.slice(2, 3), {body: every[body] for body in (b"2", b"3", b"4")})
    # A column overrides the property of the read message.
    given = ["mine", "mine", *([None] * 5)]
    check(pa.record_batch(columns | {"shardingKey": pa.array(given)}), every | {b"0": "mine", b"1": "mine"})
    queue_id = pa.record_batch(columns | {"queueId": pa.array([2] * 7, pa.int32())})
    assert {queue for queue, _, _ in messages(list(encoder(topic="t").blocks(queue_id)))} == {
        MessageQueue("t", "broker-a", 2)
    }
    delayed_rows = pa.record_batch(columns | {"delayLevel": pa.array([3] * 7, pa.int32())})
    assert {block.first_row: block.order for block in encoder(topic="t").blocks(delayed_rows)} == dict(enumerate(keys))


def test_a_queue_id_takes_precedence_and_is_stable() -> None:
    ids = [2, 0, None, 1, 2, 0]
    batch = pa.record_batch(
        {"body": pa.array([str(i) for i in range(6)]), "queueId": pa.array(ids, pa.int64()), "shardingkey": ["k"] * 6}
    )
    found = messages(list(encoder(topic="t").blocks(batch)))
    hashed = sorted(queues_of("t"))[abs(java_hash("k")) % 6]
    expected = {
        0: MessageQueue("t", "broker-a", 0),
        1: MessageQueue("t", "broker-b", 1),
        2: MessageQueue("t", "broker-a", 2),
        None: hashed,
    }
    assert all(queue == expected[ids[int(body)]] for queue, body, _ in found)
    assert [body for queue, body, _ in found if queue == expected[2]] == [b"0", b"4"], "order within a queue is kept"


def test_a_topic_column() -> None:
    batch = pa.record_batch({"body": pa.array(["0", "1", "2"]), "topic": pa.array(["a", "b", "a"])})
    found = [(block.topic, block.count) for block in encoder().blocks(batch)]
    assert found == [("a", 2), ("b", 1)]
    assert [block.topic for block in encoder(topic="c").blocks(batch)] == ["c"], "the option overrides the column"


def test_blocks_are_cut_by_bytes_and_by_rows() -> None:
    bodies = pa.array([b"x" * size for size in (400, 400, 400, 3000, 10, 10, 10)])
    blocks = list(
        encoder(topic="t", sendBatchBytes="1024", sendBatchSize="2").blocks(pa.record_batch({"body": bodies}))
    )
    assert [block.count for block in blocks] == [2, 1, 1, 2, 1]
    assert [block.first_row for block in blocks] == [0, 2, 3, 4, 6]
    assert [body for _, body, _ in messages(blocks)] == bodies.to_pylist()


def test_a_message_above_the_limit_fails_before_the_first_block() -> None:
    target = encoder(topic="t", maxMessageSize="2000", sendBatchBytes="1024")
    bodies = pa.array([b"x" * 2000, b"y" * 2001])
    with pytest.raises(RowError) as caught:
        next(target.blocks(pa.record_batch({"body": bodies})))
    assert "row 1 of partition 3: the body has 2001 bytes, above the limit of 2000" in str(caught.value)
    assert list(encoder(topic="t", maxMessageSize="2000").blocks(pa.record_batch({"body": bodies.slice(0, 1)})))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"queueId": pa.array([0, 9], pa.int32())}, "row 1 of partition 3: queueId is 9.*Valid queue ids: 0, 1, 2"),
        ({"queueId": pa.array([-1, 0], pa.int32())}, "row 0 of partition 3: queueId is -1"),
        ({"tags": pa.array(["a", "b\x02"])}, "row 1 of partition 3: .*separator"),
        ({"keys": pa.array(["x" * 40_000, "b"])}, "row 0 of partition 3: .*32767"),
        ({"delayLevel": pa.array([18, 19], pa.int8())}, "row 1 of partition 3: delayLevel is 19.*1 to 18; 0 or null"),
        ({"delayLevel": pa.array([-1, None], pa.int64())}, "row 0 of partition 3: delayLevel is -1"),
        ({"deliverAt": pa.array([None, -1], pa.timestamp("us", "UTC"))}, "row 1 of partition 3: deliverAt is before"),
        (
            {"delayLevel": pa.array([0, 1]), "deliverAt": pa.array([1, 1], pa.timestamp("us", "UTC"))},
            "row 1 of partition 3: both delayLevel and deliverAt are set",
        ),
    ],
)
def test_a_bad_row_is_named(columns: dict[str, pa.Array], text: str) -> None:
    batch = pa.record_batch({"body": pa.array(["a", "b"])} | columns)
    with pytest.raises(RowError, match=text):
        list(encoder(topic="t").blocks(batch))


@pytest.mark.parametrize("limit", ["4194304", "1024"])
def test_properties_leave_room_for_those_of_brokers(limit: str) -> None:
    def keys(total: int) -> pa.Array:
        return pa.array(["", "x" * (total - len("KEYS\1\2UNIQ_KEY\1\2") - 32), ""])

    body = {"body": pa.array(["x" * 1000] * 3)}
    target = encoder(topic="t", maxMessageSize=limit)
    assert len(messages(list(target.blocks(pa.record_batch(body | {"keys": keys(32_767 - 512)}))))) == 3
    with pytest.raises(
        RowError, match=r"row 4 of partition 3: the properties have 32256 bytes.*the limit of 32255"
    ) as e:
        list(target.blocks(pa.record_batch(body | {"keys": keys(32_767 - 511)})))
    assert "maxMessageSize" not in str(e.value)


def test_a_slice_of_a_batch_has_only_its_rows() -> None:
    entries = [[("mine", "0")], [("mine", "1"), ("CLUSTER", "c")], None, [("mine", "3")]]
    batch = pa.record_batch(
        {"body": ["0", "1", "2", "3"], "properties": pa.array(entries, pa.map_(pa.string(), pa.string()))}
    )
    found = messages(list(encoder(topic="t").blocks(batch.slice(1, 2))))
    assert [(body, properties.get("mine"), properties.get("CLUSTER")) for _, body, properties in found] == [
        (b"1", "1", None),
        (b"2", None, None),
    ]


def delayed(count: int = 6) -> pa.RecordBatch:
    """Every third row has a level, every third a time."""
    return pa.record_batch(
        {
            "body": [f"{number}" for number in range(count)],
            "shardingKey": pa.array([None, "k"] * (count // 2)),
            "delayLevel": pa.array([(3, 0, None)[number % 3] for number in range(count)], pa.int32()),
            "deliverAt": pa.array(
                [1_700_000_000_123_456 if number % 3 == 1 else None for number in range(count)],
                pa.timestamp("us", "UTC"),
            ),
        }
    )


def test_delayed_rows_have_separate_blocks() -> None:
    blocks = list(encoder(topic="t").blocks(delayed()))
    plain, single = [block for block in blocks if not block.is_delayed], [block for block in blocks if block.is_delayed]
    assert sorted(body for _, body, _ in messages(plain)) == [b"2", b"5"]
    assert [len(messages([block])) for block in single] == [1] * 4
    found = {
        body: (block.first_row, block.order, properties.get("DELAY"), properties.get("TIMER_DELIVER_MS"))
        for block in single
        for _, body, properties in messages([block])
    }
    assert found == {
        b"0": (0, None, "3", None),
        b"1": (1, "k", None, "1700000000123"),
        b"3": (3, "k", "3", None),
        b"4": (4, None, None, "1700000000123"),
    }


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_compressed_rows_have_blocks_with_the_compression_flag(kind: str) -> None:
    sizes = [10, 5000, 20, 4096, 4095, 6000]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    keys = [None, None, None, "k", "k", None]
    batch = pa.record_batch({"body": pa.array(bodies, pa.binary()), "shardingKey": pa.array(keys)})
    found: dict[int, tuple[bytes, bool]] = {}
    for block in encoder(topic="t", compression=kind).blocks(batch):
        assert block.sys_flag in (0, COMPRESSION_BITS[kind])
        for _, body, properties in messages([block]):
            row = int(properties["UNIQ_KEY"][20:], 16)
            found[row] = (decompress_body(body, block.sys_flag) if block.sys_flag else body, bool(block.sys_flag))
            assert not block.sys_flag or len(body) < 100
    assert [found[row][0] for row in range(6)] == bodies
    # Either all or no rows of a key are compressed, which keeps their order.
    assert [found[row][1] for row in range(6)] == [False, True, False, True, True, True]
    large = encoder(topic="t", compression=kind, maxMessageSize="60000", compressAbove="0").blocks(
        pa.record_batch({"body": [b"x" * 60_000, b"y" * 5]})
    )
    assert [(block.sys_flag != 0, block.first_row) for block in large] == [(False, 0), (True, 1)], "it goes alone"


def test_only_one_row_is_named() -> None:
    batch = pa.record_batch(
        {"body": ["0", "1", "2"], "queueId": pa.array([2, 1, 0], pa.int32()), "tags": ["\x01", "b", "c"]}
    )
    with pytest.raises(RowError) as caught:
        list(encoder(topic="t").blocks(batch))
    assert re.findall(r"row \d+", str(caught.value)) == ["row 0"]
    assert "row 0 of partition 3: it has a separator" in str(caught.value)


def test_bad_rows_keep_their_number_after_sorting_by_queue() -> None:
    batch = pa.record_batch(
        {"body": ["0", "1", "2"], "queueId": pa.array([2, 1, 0], pa.int32()), "tags": ["\x01", "b", "c"]}
    )
    with pytest.raises(RowError, match="row 0 of partition 3"):
        list(encoder(topic="t").blocks(batch))


@pytest.mark.parametrize(
    ("topics", "row"),
    [(["a", None], 1), (["", "a"], 0), (["a", "no spaces"], 1), (["a", "TBW102"], 1), (["%RETRY%g", "a"], 0)],
)
def test_a_row_without_a_writable_topic_is_named(topics: list[str | None], row: int) -> None:
    batch = pa.record_batch({"body": pa.array(["a", "b"]), "topic": pa.array(topics, pa.string())})
    with pytest.raises(RowError, match=f"row {row} of partition 3: topic is"):
        list(encoder().blocks(batch))


def test_a_read_message_can_be_written_again() -> None:
    entries = [
        ("UNIQ_KEY", "OLD"), ("CLUSTER", "c"), ("TAGS", "from-map"), ("mine", "1"), ("DELAY", "3"), ("REAL_TOPIC", "t"),
        ("TRAN_MSG", "true"), ("PGROUP", "g"), ("TIMER_DELIVER_MS", "1"), ("__RMQ.TRANSIENT.x", "y"),
    ]  # fmt: skip
    batch = pa.record_batch(
        {
            "body": pa.array(["a", "b"]),
            "tags": pa.array(["from-column", None]),
            "properties": pa.array([entries, entries], pa.map_(pa.string(), pa.string())),
        }
    )
    ids = unique_keys(KEY, np.arange(2)).to_pylist()
    assert [m[2] for m in messages(list(encoder(topic="t").blocks(batch)))] == [
        {"TAGS": "from-column", "mine": "1", "UNIQ_KEY": ids[0]},
        {"TAGS": "from-map", "mine": "1", "UNIQ_KEY": ids[1]},
    ]


def lots_of(batch: pa.RecordBatch, batch_rows: int, **given: str) -> dict[bytes, tuple[str, int]]:
    """The value that selects each row's queue, with Arrow batches of this many rows."""
    target = encoder(**given)
    return {
        bytes(properties)[:80]: (block.topic, block.lot)
        for low in range(0, batch.num_rows, batch_rows)
        for block in target.blocks(batch.slice(low, batch_rows))
        if block.is_free and block.queue == choose_queue(block.lot, queues_of(block.topic), KEY)
        for _, _, properties in decode_batch_body(block.body)
    }


def test_a_free_rows_queue_does_not_depend_on_batch_boundaries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_encoder, "LOT_ROWS", 1000)
    monkeypatch.setattr(row_encoder, "LOT_BYTES", 50_000)
    count = 5000
    batch = pa.record_batch(
        {
            "body": pa.array([b"x" * (number % 100 + number // 20) for number in range(count)], pa.binary()),
            "topic": pa.array(["a" if number % 3 else "b" for number in range(count)]),
            "shardingKey": pa.array([None if number % 7 else "k" for number in range(count)]),
            "delayLevel": pa.array([None if number % 50 else 1 for number in range(count)], pa.int32()),
        }
    )
    found = lots_of(batch, count)
    assert len(found) == sum(1 for number in range(count) if number % 7)
    for batch_rows, cut in (
        (1000, {}),
        (777, {}),
        (count, {"sendBatchSize": "13"}),
        (count, {"sendBatchBytes": "3000"}),
        (1001, {"compression": "zlib", "compressAbove": "200"}),
    ):
        assert lots_of(batch, batch_rows, **cut) == found, (batch_rows, cut)
    sizes = Counter(lot for _, lot in found.values())
    assert max(sizes.values()) <= 1000
    assert len(sizes) > 10


def test_the_default_lot_adds_no_request_to_a_typical_batch() -> None:
    batch = pa.record_batch({"body": pa.array([b"x" * 100] * 10_000, pa.binary())})
    target = encoder(topic="t")
    blocks = [block for _ in range(3) for block in target.blocks(batch)]
    assert [(block.count, block.lot >> 32) for block in blocks] == [(10_000, 0), (10_000, 1), (10_000, 2)]


def test_large_rows_have_smaller_lots() -> None:
    batch = pa.record_batch({"body": pa.array([b"x" * (1 << 20)] * 9, pa.binary())})
    target = encoder(topic="t")
    lots = [block.lot for _ in range(2) for block in target.blocks(batch) for _ in range(block.count)]
    assert lots == [row // 4 for row in range(18)]


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=300),
            st.none() | st.integers(0, 2),
            st.none() | st.text("abc", max_size=3),
            st.booleans(),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_every_row_is_in_exactly_one_block_and_queues_keep_the_order(
    rows: list[tuple[bytes, int | None, str | None, bool]],
) -> None:
    bodies = [index.to_bytes(4, "big") + body for index, (body, *_) in enumerate(rows)]
    batch = pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "queueId": pa.array([row[1] for row in rows], pa.int32()),
            "shardingKey": pa.array([row[2] for row in rows], pa.string()),
            "topic": pa.array(["x" if row[3] else "y" for row in rows]),
        }
    )
    blocks = list(encoder(sendBatchBytes="1024").blocks(batch))
    found = messages(blocks)
    assert sorted(body for _, body, _ in found) == sorted(bodies)
    by_place: dict[object, list[bytes]] = {}
    for block in blocks:
        place = by_place.setdefault((block.topic, block.queue, block.is_free), [])
        place += [bytes(body) for _, body, _ in decode_batch_body(block.body)]
    assert all(place == sorted(place) for place in by_place.values())
    ids = unique_keys(KEY, np.arange(len(rows))).to_pylist()
    assert all(properties["UNIQ_KEY"] == ids[int.from_bytes(body[:4], "big")] for _, body, properties in found)
