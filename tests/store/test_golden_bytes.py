"""The messages of Apache's broker, put into our store at the same times, make the same files."""

from __future__ import annotations

import os
from pathlib import Path
from struct import pack

import pytest

from spark_rocket.protocol.record.record import iter_records
from spark_rocket.store import MessageStore, PutStatus
from spark_rocket.store.config import StoreConfig
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.log.record_scan import LogScan
from spark_rocket.store.tools.check import check_store
from tests.golden import StoreName, store_files
from tests.kit.clock import Clock
from tests.store.helpers import golden, opened, trimmed_by_hand


@pytest.fixture(params=["clean", "killed"])
def name(request: pytest.FixtureRequest) -> StoreName:
    found: StoreName = request.param
    return found


def apaches_log(name: StoreName, directory: Path) -> bytes:
    """The records of Apache's commit log, one after another."""
    config = golden(directory / "apache")
    config.commit_log_path.mkdir(parents=True)
    for path, data in store_files(name).items():
        if path.startswith("commitlog/"):
            (config.store_path / path).write_bytes(data)
    log = CommitLog(config)
    log.load()
    blocks = [
        block.data[int(block.starts[0]) : int(block.starts[-1] + block.sizes[-1])] for block in LogScan(log.queue, 0)
    ]
    log.close()
    return b"".join(blocks)


def written_again(name: StoreName, directory: Path, config: StoreConfig) -> None:
    """Put every message of Apache's log into our store, in the same order and at the same time."""
    clock = Clock(0)
    store: MessageStore | None = None
    for record in iter_records(apaches_log(name, directory)):
        clock.now = record.store_timestamp
        if store is None:
            store = opened(config, clock)
        result = store.put_message(
            str(record.topic, "utf-8"),
            record.queue_id,
            bytes(record.body),
            bytes(record.properties),
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp=record.born_timestamp,
            born_host=bytes(record.born_host),
            reconsume_times=record.reconsume_times,
            prepared_transaction_offset=record.prepared_transaction_offset,
        )
        assert result.status is PutStatus.PUT_OK
        assert (result.queue_offset, result.physical_offset) == (record.queue_offset, record.physical_offset)
    assert store is not None
    store.close()
    assert check_store(config.store_path, config) == []


def files_of(config: StoreConfig, folder: str) -> dict[str, bytes]:
    root = config.store_path
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.glob(f"{folder}/**/*")) if path.is_file()
    }


def apaches(name: StoreName, folder: str) -> dict[str, bytes]:
    return {path: data for path, data in store_files(name).items() if path.startswith(folder + "/")}


def test_the_same_files_to_the_last_byte(name: StoreName, tmp_path: Path) -> None:
    config = golden(tmp_path / "ours")
    written_again(name, tmp_path, config)
    assert files_of(config, "commitlog") == apaches(name, "commitlog")
    assert files_of(config, "consumequeue") == apaches(name, "consumequeue")
    # An index file is called after the moment of its making; headers, slots, chains and entries are the records'.
    ours = [data for _, data in sorted(files_of(config, "index").items())]
    theirs = [data for _, data in sorted(apaches(name, "index").items())]
    if name == "killed":  # Apache's index was behind its log
        assert len(ours) == len(theirs)
        ours, theirs = ours[:-1], theirs[:-1]
    assert ours == theirs
    assert (config.store_path / "lock").read_bytes() == store_files(name)["lock"] == b"lock"
    if name == "clean":
        assert (config.store_path / "checkpoint").read_bytes() == store_files(name)["checkpoint"]


def test_abort_is_there_while_a_store_runs(tmp_path: Path) -> None:
    """Empty in 4.9.8, the process id in 5.x; both only check that it exists."""
    store = opened(golden(tmp_path))
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    store.close()
    assert not (tmp_path / "abort").exists()
    assert store_files("killed")["abort"] == b""
    assert "abort" not in store_files("clean")


def test_consume_queues_of_a_trimmed_log_begin_with_fillers(tmp_path: Path) -> None:
    """As ConsumeQueue.fillPreBlank writes them: offset 0, the largest size, tags code 0."""
    config = golden(tmp_path / "ours")
    written_again("killed", tmp_path, config)
    whole = files_of(config, "consumequeue")
    (config.commit_log_path / "00000000000000000000").unlink()
    trimmed_by_hand(config)
    for path in whole:
        (config.store_path / path).unlink()
    store = opened(config)
    first = store.get_min_offset("GoldenA", 0)
    assert 0 < first < store.get_max_offset("GoldenA", 0)
    store.close()
    rebuilt = files_of(config, "consumequeue")
    begin = first * 20 // 2000 * 2000
    for path in [path for path in whole if path.startswith("consumequeue/GoldenA/0/")]:
        at = int(path.rpartition("/")[2])
        if at + 2000 <= begin:
            assert path not in rebuilt
            continue
        blank = max(first * 20 - at, 0)
        assert rebuilt[path] == pack(">qiq", 0, 0x7FFFFFFF, 0) * (blank // 20) + whole[path][blank:]
    store = opened(config)
    assert store.get_min_offset("GoldenA", 0) == first
    store.close()
    assert check_store(config.store_path, config) == []
