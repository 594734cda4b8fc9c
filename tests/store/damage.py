"""A store with every kind of file, held in memory, and kinds of damage to a file.

The records are found by a walk of this module's own over the bytes of the undamaged log: a judge must not be asked by
means of the code that it judges.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_rocket.model import SCHEDULE_TOPIC
from spark_rocket.store import MessageStore, StoreConfig
from spark_rocket.store.queues.side_files import DeletedTopics
from tests.kit.clock import Clock
from tests.store.helpers import opened, put, put_batch, small

LOG_SIZE = 8192
SIZES = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": 200,
    "max_hash_slot_num": 20,
    "max_index_num": 60,
}


@dataclass(frozen=True)
class Record:
    """An acknowledged record of the undamaged log."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    raw: bytes
    body: bytes
    key: str

    @property
    def queue(self) -> tuple[str, int]:
        return self.topic, self.queue_id


@dataclass(frozen=True)
class Image:
    """A store's files as bytes; ``records`` excludes those of deleted topics."""

    files: dict[str, bytes]
    records: tuple[Record, ...]
    flushed: int

    def write(self, path: Path) -> StoreConfig:
        for name, data in self.files.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            end = len(data.rstrip(b"\0"))
            with file.open("wb") as out:
                out.write(data[:end])
                out.truncate(len(data))
        return small(path, **SIZES)

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(prefix))

    def whole(self, path: Path) -> list[Record]:
        """The records whose bytes are complete on the disk under ``path``, at their offsets."""
        found = []
        for record in self.records:
            name = f"{record.physical_offset // LOG_SIZE * LOG_SIZE:020d}"
            file = path / "commitlog" / name
            at = record.physical_offset % LOG_SIZE
            if file.is_file() and file.read_bytes()[at : at + len(record.raw)] == record.raw:
                found.append(record)
        return found


def fill(
    store: MessageStore, clock: Clock, rng: random.Random, count: int, start: int = 0, again: str = "Gone"
) -> None:
    """Single messages, batches and delayed ones in seven queues; every one with a key."""
    for i in range(start, start + count):
        clock.now += 10
        topic, queue_id = (("A", 0), ("A", 1), ("B", 0), ("%RETRY%g", 0), (again if i % 2 else "Gone", 0))[i % 5]
        key = b"KEYS\x01k%d\x02TAGS\x01t%d" % (i, i % 3)
        if i % 7 == 3:
            put_batch(store, topic, queue_id, [(0, rng.randbytes(60), b"KEYS\x01b%d-%d" % (i, n)) for n in range(4)])
        elif i % 7 == 5:
            level = 1 + i % 3
            put(store, SCHEDULE_TOPIC, level - 1, rng.randbytes(90), b"DELAY\x01%d\x02KEYS\x01k%d" % (level, i))
        else:
            put(store, topic, queue_id, rng.randbytes(rng.randrange(20, 700)), key)


def make_image(path: Path, *, clean: bool) -> Image:
    """A cleanly stopped store, or a killed one with two thirds flushed and the rest in the page cache."""
    config, clock, rng = small(path, **SIZES), Clock(), random.Random(7)
    store = opened(config, clock)
    for i in range(25):
        put(store, "Quiet", 2, b"%d" % i * 20, b"KEYS\x01q%d" % i)
    fill(store, clock, rng, 60, again="Dead")
    store.delete_topic("Gone")
    store.delete_topic("Dead")
    (path / "config").mkdir(exist_ok=True)
    (path / "config" / "topics.json").write_text('{"topicConfigTable":{"A":{},"B":{},"Gone":{},"Quiet":{}}}')
    fill(store, clock, rng, 40, start=60)
    store.flush()
    flushed = store.flushed_where
    clock.now += 10_000
    fill(store, clock, rng, 50, start=100)
    store.query_message("A", "k149", 1, 0, 1 << 62)  # the index has caught up now
    if not clean:
        killed = path.with_name(path.name + "-killed")
        shutil.copytree(path, killed)
    deleted = DeletedTopics(path)
    deleted.load()
    store.close()
    read = path if clean else killed
    files = {str(file.relative_to(read)): file.read_bytes() for file in read.rglob("*") if file.is_file()}
    records = tuple(r for r in walk_log(files) if r.physical_offset >= deleted.offsets.get(r.topic, 0))
    return Image(files, records, flushed)


def walk_log(files: dict[str, bytes]) -> Iterator[Record]:
    """Every record, by its size; IPv4 hosts and magic v1 only, as ``fill`` writes them."""
    for name in sorted(name for name in files if name.startswith("commitlog/")):
        data, base, at = files[name], int(name[-20:]), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic != 0xDAA320A7:
                break
            raw = data[at : at + size]
            queue_id, queue_offset = struct.unpack_from(">i4xq", raw, 12)
            end = 88 + struct.unpack_from(">i", raw, 84)[0]
            topic = raw[end + 1 : end + 1 + raw[end]]
            properties = raw[end + 1 + raw[end] + 2 :]
            key = next(p[5:].decode() for p in properties.split(b"\2") if p.startswith(b"KEYS\1"))
            yield Record(topic.decode(), queue_id, queue_offset, base + at, raw, raw[88:end], key)
            at += size


# --- damages ----------------------------------------------------------------------------------------------------

Damage = Callable[[Path, random.Random], None]


def _edit(change: Callable[[bytearray, random.Random], None]) -> Damage:
    def damage(path: Path, rng: random.Random) -> None:
        data = bytearray(path.read_bytes())
        change(data, rng)
        path.write_bytes(data)

    return damage


def _fill(start: float, stop: float, *, zeros: bool = False) -> Damage:
    def change(data: bytearray, rng: random.Random) -> None:
        a, b = int(len(data) * start), int(len(data) * stop)
        data[a:b] = bytes(b - a) if zeros else rng.randbytes(b - a)

    return _edit(change)


def _flip(where: float) -> Damage:
    def change(data: bytearray, rng: random.Random) -> None:
        used = len(data.rstrip(b"\0"))
        if used:
            data[min(int(used * where), used - 1)] ^= 1 << rng.randrange(8)

    return _edit(change)


def _cut(size: Callable[[int], int]) -> Damage:
    return lambda path, rng: os.truncate(path, max(size(path.stat().st_size), 0))


def _grow(path: Path, rng: random.Random) -> None:
    with path.open("ab") as out:
        out.write(rng.randbytes(100))


def _to_directory(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _swap(path: Path, rng: random.Random) -> None:
    """With the next file of the directory, or with nothing if there is none."""
    others = sorted(other for other in path.parent.iterdir() if other != path and other.is_file())
    if others:
        data = others[-1].read_bytes()
        others[-1].write_bytes(path.read_bytes())
        path.write_bytes(data)


def _dangling(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _linked(path: Path, rng: random.Random) -> None:
    """Moved and replaced with a link, as operators do to free space: not damage."""
    store = next(parent for parent in path.parents if parent.name == "store")
    elsewhere = store.with_name(f"moved-{path.name}")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


DAMAGES: dict[str, Damage] = {
    "empty": _cut(lambda size: 0),
    "half": _cut(lambda size: size // 2),
    "one-byte-short": _cut(lambda size: size - 1),
    "grown": _grow,
    "zeros": _fill(0, 1, zeros=True),
    "zeros-head": _fill(0, 0.1, zeros=True),
    "zeros-middle": _fill(0.3, 0.5, zeros=True),
    "zeros-tail": _fill(0.5, 1, zeros=True),
    "random": _fill(0, 1),
    "random-head": _fill(0, 0.1),
    "random-middle": _fill(0.3, 0.5),
    "random-tail": _fill(0.9, 1),
    "bit-head": _flip(0),
    "bit-near-head": _flip(0.02),
    "bit-middle": _flip(0.5),
    "bit-tail": _flip(1),
    "deleted": lambda path, rng: path.unlink(),
    "directory": _to_directory,
    "swapped": _swap,
    "dangling-link": _dangling,
    "link": _linked,
}
