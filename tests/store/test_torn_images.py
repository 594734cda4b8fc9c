"""Torn images: possible disk contents after a power failure, recovered and checked.

A store is written to and now and then flushed. At a random moment its files are copied as a disk might have them: all
that was flushed is kept; every page with something newer is kept as it is, dropped, made zeros or garbled. The copy
must open, hold every flushed message unchanged and in order, be right by the check, and take new messages.

Seeds are in the names of the tests: ``-k seed17`` runs one again; TORN_IMAGES=1000 in the environment makes more.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from spark_rocket.model import SCHEDULE_TOPIC
from spark_rocket.store import FlushDiskType, MessageStore, StoreConfig
from spark_rocket.store import flush as store_flush
from spark_rocket.store.log.mapped_file import MappedFile
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import Clock
from tests.store.helpers import bodies, flush_log, log_records, opened, put, put_batch, recovery_of, small

PAGE = 4096
IMAGES = int(os.environ.get("TORN_IMAGES", "15"))
FATES = ("keep", "keep", "drop", "zero", "garble")


class Disk:
    """Records the flushed parts of each file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flushed: dict[Path, bytes] = {}
        real = MappedFile.flush

        def flush(file: MappedFile, start: int = 0, end: int | None = None) -> None:
            before = file.path.read_bytes()  # what comes while the disk is busy is not promised
            real(file, start, end)
            first, last = (0, len(before)) if end is None else (start // PAGE * PAGE, -(-end // PAGE) * PAGE)
            known = self.flushed.get(file.path, bytes(len(before)))
            self.flushed[file.path] = known[:first] + before[first:last] + known[min(last, len(before)) :]

        monkeypatch.setattr(MappedFile, "flush", flush)
        monkeypatch.setattr(store_flush, "sync_file_system", self.flush_all)

    def flush_all(self, directory: Path) -> None:
        self.flushed |= {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    def image(self, source: Path, target: Path, rng: random.Random, fates: tuple[str, ...]) -> None:
        """Copy a live store as a disk may have it after a power failure."""
        target.mkdir()
        for path in sorted(source.rglob("*")):
            copy = target / path.relative_to(source)
            if path.is_dir():
                copy.mkdir(parents=True, exist_ok=True)
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)  # a directory created during the walk may be missing
            now = path.read_bytes()
            durable = self.flushed.get(path)
            if path.parent.name in ("commitlog", "index") or path.parent.parent.parent.name == "consumequeue":
                now = self._tear(now, durable or bytes(len(now)), rng, fates)
            copy.write_bytes(now)

    @staticmethod
    def _tear(now: bytes, durable: bytes, rng: random.Random, fates: tuple[str, ...]) -> bytes:
        image = bytearray(now)
        for start in range(0, len(now), PAGE):
            new, old = now[start : start + PAGE], durable[start : start + PAGE]
            if new == old:
                continue
            fate = rng.choice(fates)
            if fate == "keep":
                continue
            # Only what was written since the flush is in danger: the bytes that differ, and all behind the first.
            first = next(i for i, (a, b) in enumerate(zip(new, old, strict=True)) if a != b)
            if fate == "drop":
                image[start : start + PAGE] = old
            elif fate == "zero":
                image[start + first : start + len(new)] = old[first:] if any(old[first:]) else bytes(len(new) - first)
            else:
                image[start + first : start + len(new)] = rng.randbytes(len(new) - first)
        return bytes(image)


def write_some(store: MessageStore, clock: Clock, rng: random.Random, acts: int) -> None:
    """A random history: single messages, batches, flushes of the log, of everything, or none."""
    for act in range(acts):
        clock.now += rng.choice((0, 0, 1, 10, 4000))
        topic, queue_id = rng.choice(("TopicA", "TopicB", "%RETRY%g")), rng.randrange(3)
        kind = rng.random()
        if kind < 0.6:
            size = rng.choice((0, 10, 100, 1000, 6000))
            properties = b"KEYS\x01k%d\x02TAGS\x01T%d\x02UNIQ_KEY\x01%032X" % (act % 7, act % 3, act)
            put(store, topic, queue_id, rng.randbytes(size), properties, flag=act)
        elif kind < 0.85:
            count = rng.randrange(1, 20)
            messages = [(i, rng.randbytes(rng.choice((20, 20, 300))), b"UNIQ_KEY\x01B%d" % i) for i in range(count)]
            put_batch(store, topic, queue_id, messages, batch_properties=b"CLUSTER\x01C")
        elif kind < 0.9:
            level = rng.randrange(1, 4)
            put(store, SCHEDULE_TOPIC, level - 1, rng.randbytes(50), b"DELAY\x01%d\x02KEYS\x01d%d" % (level, act))
        elif kind < 0.95:
            flush_log(store)
        else:
            store.flush()


def recover_and_verify(config: StoreConfig, image: Path, before: bytes, flushed: bytes, *, exact: bool) -> None:
    """``before``: records at the power failure; ``flushed``: records that were on the disk."""
    config = replace(config, store_path_root_dir=image)
    store = opened(config)
    assert not recovery_of(store).clean
    store.close()
    assert check_store(image, config) == []
    after = log_records(image, config)
    assert after.startswith(flushed)
    if exact:
        assert before.startswith(after)
    store = opened(config)
    assert recovery_of(store).clean
    counts = {key: store.get_max_offset(*key) for key in (("TopicA", 0), ("New", 5))}
    for key, count in counts.items():
        result = put(store, *key, b"after", b"KEYS\x01later")
        assert result.queue_offset == count
        assert bodies(store, *key)[-1] == b"after"
        assert len(store.query_message(key[0], "later", 10, 0, 1 << 62).records) == 1
    store.close()
    assert check_store(image, config) == []


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(IMAGES), ids=lambda seed: f"seed{seed}")
def test_torn_image_is_recovered(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    clock = Clock()
    disk = Disk(monkeypatch)
    config = small(tmp_path / "store")
    store = opened(config, clock)
    write_some(store, clock, rng, rng.randrange(5, 120))
    if rng.random() < 0.3:  # a store that has been closed and opened before
        store.close()
        store = opened(config, clock)
        write_some(store, clock, rng, rng.randrange(0, 40))
    fates = FATES if seed % 2 else ("keep", "drop", "zero")
    disk.image(config.store_path, tmp_path / "image", rng, fates)
    before = log_records(config.store_path, config)
    end = store.flushed_where
    flushed = before[: _length_up_to(config, end)]
    store.close()
    recover_and_verify(config, tmp_path / "image", before, flushed, exact="garble" not in fates)


def _length_up_to(config: StoreConfig, offset: int) -> int:
    """The number of bytes of records below a physical offset."""
    from spark_rocket.store.log.mapped_file_queue import MappedFileQueue
    from spark_rocket.store.log.record_scan import LogScan

    queue = MappedFileQueue(config.commit_log_path, config.mapped_file_size_commit_log, setting="commitLog")
    queue.load()
    total = 0
    for block in LogScan(queue, queue.min_offset):
        total += int(block.sizes[block.physical_offsets < offset].sum())
    queue.close()
    return total


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(5))
def test_a_kill_and_then_a_power_failure(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that a killed process left in memory may not be on disk, and the next start must not rely on them."""
    rng, clock, disk = random.Random(seed), Clock(), Disk(monkeypatch)
    config = small(tmp_path / "store")
    store = opened(config, clock)
    write_some(store, clock, rng, 100)
    shutil.copytree(config.store_path, tmp_path / "killed")  # memory outlives the process
    flushed = {tmp_path / "killed" / path.relative_to(config.store_path): raw for path, raw in disk.flushed.items()}
    store.close()
    disk.flushed = flushed
    config = replace(config, store_path_root_dir=tmp_path / "killed")
    store = opened(config, clock)
    clock.now += 10_000
    for i in range(60):
        put(store, "New", 1, b"%d" % i * 1000)
    store.flush()
    disk.image(config.store_path, tmp_path / "image", rng, ("drop",))
    before = log_records(config.store_path, config)
    store.close()
    recover_and_verify(config, tmp_path / "image", before, before, exact=True)


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(max(IMAGES // 20, 5)))
def test_what_sync_flush_acknowledged_is_in_every_image(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many queues, files that roll over, an index that fills up; the power fails when nothing was flushed since."""
    rng, clock, disk = random.Random(seed), Clock(), Disk(monkeypatch)
    config = small(tmp_path / "store", flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store = opened(config, clock)
    acknowledged: dict[tuple[str, int], list[bytes]] = {}
    for number in range(rng.randrange(20, 120)):
        clock.now += rng.choice((0, 1, 5000))
        key, body = (f"T{rng.randrange(10)}", rng.randrange(4)), rng.randbytes(rng.choice((10, 500, 3000)))
        result = put(store, *key, body, b"KEYS\x01a%d b%d c%d" % (number, number, number))
        answers: SimpleQueue[bool] = SimpleQueue()
        store.when_flushed(result.end_physical_offset, answers.put)
        assert answers.get(timeout=60)
        acknowledged.setdefault(key, []).append(body)
    for _ in range(rng.randrange(5)):  # and some without a waiter
        put(store, "T0", 0, b"unacknowledged" * 30)
    disk.image(config.store_path, tmp_path / "image", rng, ("drop",) if seed % 2 else ("drop", "zero", "garble"))
    store.close()
    config = replace(config, store_path_root_dir=tmp_path / "image")
    store = opened(config)
    for key, expected in acknowledged.items():
        assert bodies(store, *key)[: len(expected)] == expected
    store.close()
    assert check_store(config.store_path, config) == []


def test_image_of_an_untouched_store_is_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness itself: with everything flushed, tearing changes nothing."""
    disk = Disk(monkeypatch)
    config = small(tmp_path / "store")
    store = opened(config)
    write_some(store, Clock(), random.Random(1), 30)
    store.flush()
    disk.image(config.store_path, tmp_path / "image", random.Random(2), ("garble",))
    for path in (config.commit_log_path, config.consume_queue_path):
        for file in path.rglob("0" * 10 + "*"):
            copy = tmp_path / "image" / file.relative_to(config.store_path)
            assert copy.read_bytes() == file.read_bytes()
    store.close()
    assert any((tmp_path / "image" / "commitlog").iterdir())
