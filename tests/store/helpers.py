"""Helpers of the store's tests: small stores, messages, and reads of everything."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from spark_rocket.errors import StoreNotWritableError
from spark_rocket.protocol.record.batch_body import encode_batch_body
from spark_rocket.protocol.record.record import iter_records
from spark_rocket.store import MessageStore, PutResult, PutStatus, StoreConfig
from spark_rocket.store.config import DEFAULT_DELAY_LEVELS, parse_delay_levels
from spark_rocket.store.delay.schedule_message_service import ScheduleMessageService
from spark_rocket.store.index.index_service import IndexService
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.record_scan import LogScan
from spark_rocket.store.recovery.recovery import RecoveryReport
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import START, Clock

HOST = ("127.0.0.1", 10911)
BORN = ("127.0.0.1", 50000)
NEVER = 10**9
DELAYS = parse_delay_levels(DEFAULT_DELAY_LEVELS)

GOLDEN_SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 500,
    "max_index_num": 1000,
}


def small(path: Path, **settings: Any) -> StoreConfig:
    """Small files, so that everything rolls over soon; nothing is flushed unless asked."""
    config = StoreConfig(
        path,
        mapped_file_size_commit_log=32 << 10,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=50,
        max_index_num=200,
        flush_interval_commit_log=NEVER,
        flush_interval_consume_queue=NEVER,
        flush_commit_log_thorough_interval=NEVER,
        flush_consume_queue_thorough_interval=NEVER,
    )
    return replace(config, **settings)


def schedule_of(store: MessageStore, saved: dict[str, Any] | None = None, **more: Any) -> ScheduleMessageService:
    """The delivery of delayed messages, with the contents of ``delayOffset.json``."""
    made = ScheduleMessageService(store, DELAYS, **more)
    if saved is not None:
        made.load(saved)
    made.correct_offsets()
    return made


def golden(path: Path) -> StoreConfig:
    return StoreConfig(path, **GOLDEN_SIZES)


def opened(config: StoreConfig, clock: Callable[[], int] | None = None, **more: Any) -> MessageStore:
    store = MessageStore(config, store_host=HOST, clock=clock or Clock(), **more)
    store.start()
    return store


def close_right(store: MessageStore) -> None:
    """Stop a store; the check then finds no problem."""
    store.close()
    assert check_store(store.config.store_path, store.config) == []


def image_of(config: StoreConfig, name: str = "image") -> StoreConfig:
    """The files of a killed process: a copy of the current ones."""
    image = replace(config, store_path_root_dir=config.store_path.with_name(name))
    shutil.copytree(config.store_path, image.store_path)
    return image


def failing(number: int = errno.ENOSPC) -> Callable[..., NoReturn]:
    """A function that fails like a system call, whatever its arguments."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def put(store: MessageStore, topic: str, queue_id: int, body: bytes, properties: bytes = b"", **more: Any) -> PutResult:
    result = store.put_message(topic, queue_id, body, properties, born_timestamp=1, born_host=BORN, **more)
    assert result.status is PutStatus.PUT_OK, result
    return result


def put_batch(
    store: MessageStore, topic: str, queue_id: int, messages: list[tuple[int, bytes, bytes]], **more: Any
) -> PutResult:
    body = encode_batch_body(messages)
    result = store.put_batch(topic, queue_id, body, born_timestamp=1, born_host=BORN, **more)
    assert result.status is PutStatus.PUT_OK, result
    return result


def bodies(store: MessageStore, topic: str, queue_id: int, *, max_msgs: int = 1000) -> list[bytes]:
    """Bodies of a whole queue, read by its offsets."""
    found: list[bytes] = []
    offset = store.get_min_offset(topic, queue_id)
    while offset < store.get_max_offset(topic, queue_id):
        result = store.get_message(topic, queue_id, offset, max_msgs, 1 << 30)
        records = list(iter_records(result.records, check_crc=True))
        assert [record.queue_offset for record in records] == list(range(offset, offset + result.count))
        found += [bytes(record.body) for record in records]
        offset = result.next_begin_offset
    return found


def overwrite(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def trim(store: MessageStore, *, files: int = 1) -> None:
    """Flush everything, and let retention delete all but the last files of the log."""
    store.flush()
    size = 1 + store.config.mapped_file_size_commit_log * (files - 1)
    store.settings_changed(replace(store.config, file_reserved_size=size, delete_file_batch_max=1000))
    store.retention.run(START)
    while store.retention.trim_queues():
        pass
    store.retention.remover.finish()


def trimmed_by_hand(config: StoreConfig) -> None:
    """Record the log's beginning, as retention does, for a test that has deleted the first files itself."""
    path = config.store_path / "config" / "queueEnd.json"
    begin = min(int(file.name) for file in config.commit_log_path.iterdir())
    path.write_text(json.dumps({**json.loads(path.read_text()), "logBegin": begin}))


def recovery_of(store: MessageStore) -> RecoveryReport:
    """The recovery report of the store's start."""
    assert store.recovery is not None
    return store.recovery


def mapped_files(directory: Path) -> set[Path]:
    """Files below a directory that this process has mapped, deleted ones too."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {
        Path(line[line.index(str(directory)) :].removesuffix(" (deleted)")) for line in lines if str(directory) in line
    }


# --- parts of a store, for tests that run one of its threads' steps themselves or break one part ----------------


def log_of(store: MessageStore) -> CommitLog:
    return store._log


def index_of(store: MessageStore) -> IndexService:
    index = store._index
    assert index is not None
    return index


def flush_log(store: MessageStore) -> None:
    """A step of the commit log's flush thread, without the consume queues."""
    store._flush_log.flush()


def flush_queues(store: MessageStore, *, thorough: bool = True) -> None:
    """A step of the consume queues' flush thread."""
    store._flush_queues.flush(thorough=thorough)


def refuse_writes(store: MessageStore, error: StoreNotWritableError | None) -> None:
    """Let the store refuse writes, or take them again, as after a full disk."""
    store._appender.refuse(error)


def log_records(store_path: Path, config: StoreConfig) -> bytes:
    """The log's records, one after another, without the blanks between files."""
    from spark_rocket.store.log.mapped_file_queue import MappedFileQueue

    queue = MappedFileQueue(config.commit_log_path, config.mapped_file_size_commit_log, setting="commitLog")
    queue.load()
    blocks = LogScan(queue, queue.min_offset)
    parts = [block.data[int(block.starts[0]) : int(block.starts[-1] + block.sizes[-1])] for block in blocks]
    queue.close()
    return b"".join(parts)
