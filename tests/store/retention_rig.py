"""A store of ten log files with a manual clock and a simulated disk."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from spark_rocket.store import MessageStore, StoreConfig, retention
from tests.kit.clock import Clock
from tests.store.helpers import bodies, opened

COUNT = 330  # messages of 0.8 KiB, a second apart, 39 in a file of the log
QUEUES = 3
FILES = 10
SIZE = 32 << 10


@dataclass
class Disk:
    """A disk with room for 1000 log files and a settable usage."""

    used: int = 0
    total: int = 1000 * SIZE
    queues: Disk | None = None
    """The disk of the consume queues, if it is separate."""

    @property
    def free(self) -> int:
        return self.total - self.used

    def at(self, percent: float) -> None:
        self.used = int(self.total * percent / 100)

    def __call__(self, path: Path) -> Disk:
        return self.queues if self.queues is not None and path.name == "consumequeue" else self


@dataclass
class Trimmable:
    """A store with a manual clock and a simulated disk."""

    config: StoreConfig
    clock: Clock
    disk: Disk
    store: MessageStore

    def open(self) -> MessageStore:
        self.store = opened(self.config, self.clock, disk_usage=self.disk)
        return self.store

    def run(self) -> retention.RetentionReport:
        """A run, and all deletions that it has scheduled."""
        report = self.store.retention.run(self.clock.now)
        while self.store.retention.trim_queues():
            pass
        self.drain()
        return report

    def drain(self) -> None:
        """Wait until all files are deleted, or a deletion fails."""
        self.store.retention.remover.finish()

    def trim_to(self, files: int) -> None:
        """Delete all but a number of files of the log, by size."""
        self.store.settings_changed(
            replace(self.config, file_reserved_size=1 + SIZE * (files - 1), delete_file_batch_max=1000)
        )
        self.run()

    def logs(self) -> list[str]:
        return sorted(path.name for path in self.config.commit_log_path.iterdir())

    def queue_files(self, topic: str = "T", queue_id: int = 0) -> list[Path]:
        return sorted((self.config.consume_queue_path / topic / str(queue_id)).iterdir())


def body(number: int) -> bytes:
    return b"%04d" % number * 200


def number_of(raw: bytes) -> int:
    return int(raw[:4])


def at_hour(hour: int, after: int) -> int:
    """The next time (ms) in a given hour of the local day."""
    while time.localtime(after / 1000).tm_hour != hour:
        after += 60_000
    return after


def first_number(store: MessageStore) -> int:
    """The first remaining message: all earlier ones are deleted, all later ones can be read."""
    numbers = sorted(number_of(raw) for queue_id in range(QUEUES) for raw in bodies(store, "T", queue_id))
    assert numbers == list(range(numbers[0], COUNT))
    return numbers[0]
