"""Batches: the same records as single messages, stored all or none."""

from __future__ import annotations

from typing import Any

import pytest

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.store import MessageStore, PutStatus
from spark_rocket.store.batch_columns import ColumnBatchPlan
from spark_rocket.store.batch_plan import BatchPlan
from tests.kit.clock import START
from tests.store.conftest import MakeStore
from tests.store.helpers import BORN, HOST, bodies, log_of, overwrite, put, put_batch

ILLEGAL, EXCEEDED = PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED


def expected(store: MessageStore, batch: list[tuple[int, bytes, bytes]], extra: bytes, start: int) -> bytes:
    """The expected records, from the protocol's own encoder."""
    out = b""
    for number, (flag, body, raw) in enumerate(batch):
        joint = b"\2" if raw and extra and not raw.endswith(b"\2") else b""
        out += encode_record(
            b"Topic",
            0,
            body,
            raw + joint + extra,
            queue_offset=number,
            physical_offset=start + len(out),
            born_timestamp=1,
            born_host=bytes([127, 0, 0, 1]) + BORN[1].to_bytes(4, "big"),
            store_timestamp=START,
            store_host=bytes([127, 0, 0, 1]) + HOST[1].to_bytes(4, "big"),
            flag=flag,
        )
    return out


@pytest.mark.parametrize("size", [50, 4_000])
@pytest.mark.parametrize("count", [3, 7, 99])
@pytest.mark.parametrize("extra", [b"", b"CLUSTER\x01C", b"CLUSTER\x01C\x02"])
def test_records_and_entries_are_those_of_single_messages(
    make_store: MakeStore, count: int, extra: bytes, size: int
) -> None:
    store = make_store(mapped_file_size_commit_log=1 << 20)
    batch = [
        (-number, bytes([number]) * (size + number % 5), b"TAGS\x01%d" % (number % 3) if number % 4 else b"")
        for number in range(count)
    ]
    result = put_batch(store, "Topic", 0, batch, batch_properties=extra)
    stored = b"".join(store.look_message_by_offset(offset) or b"" for offset in result.physical_offsets)
    must = expected(store, batch, extra, result.physical_offset)
    assert stored == must
    assert (result.count, result.queue_offset) == (len(batch), 0)
    assert result.end_physical_offset - result.physical_offset == len(must)
    assert store.get_message("Topic", 0, 0, 100, 1 << 20).records == must
    codes = [java_hash(str(number % 3)) if number % 4 else 0 for number in range(count)]
    assert [code for _, _, code in store.get_entries("Topic", 0, 0, 100)] == codes


def test_a_batch_that_does_not_fit_goes_to_the_next_file_as_a_whole(make_store: MakeStore) -> None:
    store = make_store()
    size = store.config.mapped_file_size_commit_log
    put(store, "T", 0, b"x" * (size - 2000))
    result = put_batch(store, "T", 0, [(0, b"y" * 100, b"")] * 20)
    assert result.physical_offset == size
    assert result.queue_offset == 1
    assert bodies(store, "T", 0)[1:] == [b"y" * 100] * 20


def batch_of(count: int, body: bytes = b"", properties: bytes = b"") -> bytes:
    return encode_batch_body([(0, body, properties)] * count)


@pytest.mark.parametrize(
    ("raw", "more", "status"),
    [
        pytest.param(batch_of(1, b"", b"a" * 32767), {"batch_properties": b"b"}, EXCEEDED, id="joined properties"),
        pytest.param(batch_of(200, b"", b"a"), {"batch_properties": b"b" * 33000}, EXCEEDED, id="its properties"),
        pytest.param(batch_of(100, b"x" * 2000), {}, ILLEGAL, id="more than a file"),
        pytest.param(batch_of(1, b"x" * (5 << 20)), {}, ILLEGAL, id="a large body"),
        pytest.param(batch_of(1), {"batch_properties": b"a\0b"}, ILLEGAL, id="NUL"),
        pytest.param(batch_of(1), {"sys_flag": 4}, ILLEGAL, id="prepared"),
        pytest.param(batch_of(0), {}, ILLEGAL, id="empty"),
        pytest.param(batch_of(9)[:-1], {}, ILLEGAL, id="malformed"),
    ],
)
def test_what_is_refused_leaves_nothing(
    store: MessageStore, raw: bytes, more: dict[str, Any], status: PutStatus
) -> None:
    result = store.put_batch("T", 0, raw, born_timestamp=1, born_host=BORN, **more)
    assert result.status is status
    assert result.reason
    assert (store.max_physical_offset, store.get_max_offset("T", 0)) == (0, 0)


def test_a_batch_with_a_tag_hidden_in_a_body(store: MessageStore) -> None:
    """The fast path searches for TAGS in the entire request: TAGS in a message's body must not count."""
    batch = [(0, b"TAGS\x01no", b"TAGS\x01ya"), (0, b"TAGS\x01no", b"TAGS\x01ya"), (0, b"aaaaaaa", b"TAGS\x01ya")]
    put_batch(store, "T", 0, batch)
    assert {code for _, _, code in store.get_entries("T", 0, 0, 3)} == {java_hash("ya")}


def test_mark_of_a_process_killed_inside_a_batch(make_store: MakeStore) -> None:
    """The first record's size is written last: without it the batch does not exist."""
    store = make_store()
    put(store, "T", 0, b"before")
    end = store.max_physical_offset
    put_batch(store, "T", 0, [(0, b"x" * 50, b"")] * 5)
    store.close()
    overwrite(store.config.commit_log_path / ("0" * 20), end, bytes(4))
    (store.config.store_path / "abort").touch()
    (store.config.store_path / "checkpoint").unlink()
    store = make_store()
    assert store.max_physical_offset == end
    assert bodies(store, "T", 0) == [b"before"]


def test_a_check_may_refuse_and_then_nothing_is_stored(store: MessageStore) -> None:
    seen: list[bool] = []

    def check(plan: BatchPlan) -> None:
        seen.append(plan.may_have(b"KEYS\x01"))
        raise ValueError("no")

    for batch in ([(0, b"", b"KEYS\x01k")], [(0, b"", b"KEYS\x01k")] * 99, [(0, b"KEYS\x01", b"A\x01b\x01KEYS")] * 99):
        with pytest.raises(ValueError, match="no"):
            put_batch(store, "T", 0, batch, check=check)
    assert seen == [True, True, False]
    assert store.get_max_offset("T", 0) == 0


def test_a_failure_while_records_are_built_leaves_the_log_clean(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(plan: ColumnBatchPlan, out: memoryview, *rest: object) -> None:
        out[40:60] = b"x" * 20
        raise MemoryError

    put(store, "T", 0, b"before")
    end = store.max_physical_offset
    with monkeypatch.context() as patch:
        patch.setattr(ColumnBatchPlan, "write", fail)
        with pytest.raises(MemoryError):
            put_batch(store, "T", 0, [(0, b"y" * size, b"") for size in range(99)])
    assert store.max_physical_offset == end
    file = log_of(store).queue.find(end)
    assert file is not None
    assert not file.has_data(end - file.file_from_offset)
    put(store, "T", 0, b"after")
    assert bodies(store, "T", 0) == [b"before", b"after"]


@pytest.mark.parametrize("count", [3, 99])
@pytest.mark.parametrize("own", [b"TAGS\x01own", b""])
def test_tags_of_the_batch_count_for_each_message(store: MessageStore, count: int, own: bytes) -> None:
    """Its properties are appended to those of each message, and the last TAGS count: also when a queue is rebuilt."""
    put_batch(store, "T", 0, [(0, b"a", own)] * count + [(0, b"longer", b"A\x01b")], batch_properties=b"TAGS\x01all")
    assert [code for _, _, code in store.get_entries("T", 0, 0, 100)] == [java_hash("all")] * (count + 1)
