"""Store directories of RocketMQ 5: supported parts are served, others are refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from struct import pack
from zlib import crc32

import pytest

from spark_rocket.errors import StoreError
from spark_rocket.protocol.ids import pack_host
from spark_rocket.protocol.record.record import decode_record, encode_record
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.store_lock import abort_path
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import START
from tests.store.helpers import BORN, HOST, bodies, golden, opened, put, recovery_of, small

FILE = 64 << 10


def with_record_crc(record: bytes) -> bytes:
    """A record as enabledAppendPropCRC makes it: the last property is the CRC of all before it, digits reversed.

    The body's own CRC stays what it was.
    """
    head = len(record) - 20
    digits = f"{crc32(record[:head]) & 0x7FFFFFFF:010d}"[::-1]
    return record[:head] + b"__CRC32#\x01" + digits.encode() + b"\x02"


def made_by_5x(path: Path, *, record_crc: bool = False) -> StoreConfig:
    """A killed store of 5.x, with handmade bytes."""
    config = replace(small(path), mapped_file_size_commit_log=FILE)
    config.commit_log_path.mkdir(parents=True)
    properties = (
        b"KEYS\x01a b\x02TAGS\x01TagA\x02UNIQ_KEY\x01u1\x02",
        b"TIMER_OUT_MS\x011795230005000\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02TIMER_DELIVER_MS\x011795230005000\x02",
        b"POP_CK\x010 1795230000000 60000 0 0 broker-a 0 5\x02TAGS\x01ck\x02UNIQ_KEY\x01u2\x02",
        b"__STARTDELIVERTIME\x011795230005000\x02TRACE_ON\x01true\x02MSG_REGION\x01DefaultRegion\x02CLUSTER\x01C\x02",
    )
    topics = (b"T", b"rmq_sys_wheel_timer", b"rmq_sys_REVIVE_LOG_C", b"T")
    log, numbers = b"", dict.fromkeys(topics, 0)
    for at, (topic, text) in enumerate(zip(topics, properties, strict=True)):
        record = encode_record(
            topic,
            0,
            b"body %d" % at,
            text + bytes(20 * record_crc),
            queue_offset=numbers[topic],
            physical_offset=len(log),
            born_timestamp=START,
            born_host=pack_host(BORN),
            store_timestamp=START + at,
            store_host=pack_host(HOST),
        )
        numbers[topic] += 1
        log += with_record_crc(record) if record_crc else record
    (config.commit_log_path / f"{0:020d}").write_bytes(log.ljust(FILE, b"\0"))
    (path / "checkpoint").write_bytes(pack(">5q", START, START, 0, len(log), 0).ljust(4096, b"\0"))
    (path / "abort").write_text("12345")
    (path / "lock").write_text("lock")
    (path / "compaction").mkdir()
    (path / "config").mkdir()
    for file, content in (
        ("topicQueueMapping.json", '{"dataVersion":{"counter":0},"topicQueueMappingInfoMap":{}}'),
        ("consumerOrderInfo.json", '{"table":{}}'),
        ("messageRequestMode.json", '{"messageRequestModeMap":{}}'),
        ("tieredStoreMetadata.json", "{}"),
        ("lmqConsumerOffset.json", '{"offsetTable":{}}'),
        ("timermetrics", "{}"),
        ("transactionMetrics", "{}"),
    ):
        (path / "config" / file).write_text(content)
    return config


@pytest.mark.parametrize("record_crc", [False, True], ids=["plain", "enabledAppendPropCRC"])
def test_a_killed_store_of_5x_is_recovered_to_the_last_record(tmp_path: Path, record_crc: bool) -> None:
    config = made_by_5x(tmp_path / "store", record_crc=record_crc)
    before = (config.commit_log_path / f"{0:020d}").read_bytes()
    others = {path: path.read_bytes() for path in (tmp_path / "store" / "config").iterdir()}
    store = opened(config)
    assert not recovery_of(store).clean
    assert (recovery_of(store).records, recovery_of(store).cut_reason) == (4, "")
    assert bodies(store, "T", 0) == [b"body 0", b"body 3"]
    assert bodies(store, "rmq_sys_wheel_timer", 0) == [b"body 1"]
    assert bodies(store, "rmq_sys_REVIVE_LOG_C", 0) == [b"body 2"]
    (found,) = store.query_message("T", "b", 10, 0, 1 << 62).records
    properties = decode_record(found).properties
    assert (properties["TAGS"], properties["UNIQ_KEY"], properties["KEYS"]) == ("TagA", "u1", "a b")
    assert ("__CRC32#" in properties) is record_crc
    put(store, "T", 0, b"ours")
    store.close()
    assert check_store(config.store_path, config) == []
    after = (config.commit_log_path / f"{0:020d}").read_bytes()
    end = len(before.rstrip(b"\0"))
    assert after[:end] == before[:end]
    assert {path: path.read_bytes() for path in others} == others
    store = opened(config)
    assert bodies(store, "T", 0) == [b"body 0", b"body 3", b"ours"]
    store.close()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("consumequeue_ext/T/0/00000000000000000000", "enableConsumeQueueExt"),
        ("batchconsumequeue/T/0/00000000000000000000", "BatchCQ"),
        ("consumequeue/%LMQ%light/0/00000000000000000000", "enableLmq"),
        ("consumequeue/CURRENT", "RocksDB"),
        ("consumequeue_rocksdb/CURRENT", "RocksDB"),
        ("config/consumerOffsets/CURRENT", "RocksDB"),
        ("dledger-n0/data/00000000000000000000", "DLedger"),
    ],
)
def test_unsupported_parts_are_refused_by_name_and_not_changed(tmp_path: Path, path: str, name: str) -> None:
    config = golden(tmp_path / "store")
    store = opened(config)
    put(store, "T", 0, b"x", b"TAGS\x01a")
    store.close()
    foreign = config.store_path / path
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_bytes(bytes(2000))
    before = {file: file.read_bytes() for file in config.store_path.rglob("*") if file.is_file()}
    with pytest.raises(StoreError, match=name) as raised:
        opened(config)
    assert str(foreign) in str(raised.value) or foreign.parts[-4] in str(raised.value)
    assert raised.value.remedy
    assert {file: file.read_bytes() for file in config.store_path.rglob("*") if file.is_file()} == before
    assert not abort_path(config.store_path).exists()


def test_empty_directories_of_unsupported_parts_are_accepted(tmp_path: Path) -> None:
    config = golden(tmp_path / "store")
    for name in ("consumequeue_ext", "batchconsumequeue/T"):
        (config.store_path / name).mkdir(parents=True)
    store = opened(config)
    put(store, "T", 0, b"x")
    store.close()


def test_a_queue_with_extensions_is_rebuilt_by_its_remedy(tmp_path: Path) -> None:
    """The addresses in its entries become tags codes again, so messages are found by their tags."""
    config = golden(tmp_path / "store")
    store = opened(config)
    put(store, "T", 0, b"x", b"TAGS\x01TagA")
    store.close()
    file = config.consume_queue_path / "T" / "0" / f"{0:020d}"
    right = file.read_bytes()
    file.write_bytes(right[:12] + pack(">q", -(1 << 63)) + right[20:])
    extension = config.store_path / "consumequeue_ext" / "T" / "0" / f"{0:020d}"
    extension.parent.mkdir(parents=True)
    extension.write_bytes(pack(">hqqh", 20, 2598919, START, 0).ljust(4096, b"\0"))
    with pytest.raises(StoreError, match="enableConsumeQueueExt"):
        opened(config)
    file.unlink()
    file.parent.rmdir()
    file.parent.parent.rmdir()
    extension.unlink()
    store = opened(config)
    assert store.get_message("T", 0, 0, 1, 1000, frozenset({2598919})).count == 1
    store.close()
    assert file.read_bytes() == right
