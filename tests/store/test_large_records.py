"""Large records are indexed without their bodies, and nobody can tell from the index."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.record import encode_record
from spark_rocket.store.index import service as index_service
from spark_rocket.store.index.keys import keys_of
from spark_rocket.store.log import large_records
from spark_rocket.store.log.large_records import LARGE
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.log.record_scan import parse, walk
from tests.store.conftest import MakeStore
from tests.store.helpers import Clock, opened, put, small

HOSTS = [("127.0.0.1", 10911), ("::1", 10911)]
SIZE = 1 << 20


def record(at: int, number: int, body: int, topic: str, keys: str, born: int, store: int) -> bytes:
    return encode_record(
        topic.encode(),
        number % 3,
        bytes(body),
        f"UNIQ_KEY\x01u{number}\x02KEYS\x01{keys}".encode() if keys else b"",
        queue_offset=number,
        physical_offset=at,
        born_timestamp=1,
        store_timestamp=1000 + number,
        born_host=pack_host(HOSTS[born]),
        store_host=pack_host(HOSTS[store]),
    )


@settings(max_examples=50, deadline=None)
@given(
    messages=st.lists(
        st.tuples(
            st.sampled_from([LARGE, LARGE + 1, 20_000]),
            st.sampled_from(["T", "ü" * 60, "t" * 130]),
            st.sampled_from(["", "k", "a b"]),
            st.integers(0, 1),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=12,
    ),
    base=st.sampled_from([0, SIZE]),
)
def test_the_same_keys_as_of_whole_records(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[int, str, str, int, int]], base: int
) -> None:
    data = b""
    for number, message in enumerate(messages):
        data += record(base + len(data), number, *message)
    file = MappedFile(tmp_path_factory.mktemp("log") / f"{base:020d}", SIZE, base, create=True)
    file.mm[: len(data)] = data
    found = large_records.large_records(file, 0, len(data))
    assert found is not None
    block, end = found
    assert end == len(data)
    starts, at, _, _ = walk(data, SIZE)
    whole, reason = parse(data, base, starts, at)
    assert not reason
    for column in ("physical_offsets", "sizes", "queue_ids", "queue_offsets", "sys_flags", "store_timestamps"):
        assert getattr(block, column).tolist() == getattr(whole, column).tolist()
    assert block.topics() == whole.topics()
    records, hashes = keys_of(block)
    expected_records, expected_hashes = keys_of(whole)
    assert records.tolist() == expected_records.tolist()
    assert hashes.tolist() == expected_hashes.tolist()
    file.close()


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 120) | st.integers(20_080, 20_130), value=st.binary(min_size=1, max_size=8))
def test_any_bytes_are_records_or_none(tmp_path_factory: pytest.TempPathFactory, at: int, value: bytes) -> None:
    data = bytearray(record(0, 0, 20_000, "T", "a b", 0, 0))
    second = len(data)
    data += record(second, 1, 20_000, "T", "a b", 0, 0)
    data[at : at + len(value)] = value
    file = MappedFile(tmp_path_factory.mktemp("log") / f"{0:020d}", SIZE, 0, create=True)
    file.mm[: len(data)] = data
    found = large_records.large_records(file, 0, len(data))
    assert found is None or found[1] in (second, len(data))
    assert large_records.large_records(file, second, second) is None
    file.close()


def test_small_records_are_read_whole(make_store: MakeStore) -> None:
    store = make_store()
    put(store, "T", 0, b"x" * 100)
    file = store._log.queue.files[0]
    assert large_records.large_records(file, 0, store.max_physical_offset) is None


def test_the_index_is_the_same_and_bodies_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of 8 MiB costs less than a quarter of that in reading."""
    images: list[list[bytes]] = []
    for large in (LARGE, 1 << 40):
        monkeypatch.setattr(large_records, "LARGE", large)
        config = small(tmp_path / f"store-{large}", mapped_file_size_commit_log=16 << 20, max_index_num=150)
        store = opened(config, Clock())
        index = store._index
        assert index is not None
        read = 0
        with index._lock, monkeypatch.context() as patch:
            pread = os.pread

            def count(fd: int, size: int, position: int, pread: object = pread) -> bytes:
                nonlocal read
                data: bytes = pread(fd, size, position)  # type: ignore[operator]
                read += len(data)
                return data

            patch.setattr(os, "pread", count)
            for number in range(100):
                put(store, "T", number % 3, bytes(80_000 + number), b"UNIQ_KEY\x01u%d\x02KEYS\x01a b" % number)
                if number == 50:
                    put(store, "T", 0, b"small", b"KEYS\x01c")
            read = 0
            assert index.catch_up(60)
        assert (read < 2 << 20) == (large == LARGE)
        assert len(store.query_message("T", "u99", 10, 0, 1 << 60).records) == 1
        store.close()
        images.append([path.read_bytes() for path in sorted(config.index_path.iterdir())])
    assert images[0] == images[1]
    assert len(images[0]) > 2


def test_a_stop_does_not_wait_long_for_the_index(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_service, "_POLL", 1000)  # nothing is done behind the writer's back
    monkeypatch.setattr(index_service, "_CLOSE_PATIENCE", -1.0)
    store = make_store(mapped_file_size_commit_log=8 << 20, max_index_num=5000)
    for _ in range(3000):
        put(store, "T", 0, b"x" * 1000, b"KEYS\x01late")
    store.close()
    assert store._index is not None
    assert store._index.behind > 1 << 20
    monkeypatch.undo()
    again = make_store(store.config)
    assert len(again.query_message("T", "late", 5000, 0, 1 << 60).records) == 3000
