"""Settings of a store, under RocketMQ's names in Python's spelling.

Defaults are Apache's. In ``broker.conf`` a setting has its name in camel case: ``flush_disk_type`` is
``flushDiskType``. But ``store_path`` is ``storePathRootDir``, and ``check_crc_on_recover`` is ``checkCRCOnRecover``.
``fileReservedSize`` is ours, and so are the settings from ``is_replica`` on, which ``broker.conf`` does not have.

Corresponds to org.apache.rocketmq.store.config.MessageStoreConfig. Immutable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from spark_rocket.errors import ConfigError
from spark_rocket.store.paths import StorePaths

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delete_hours(text: str) -> frozenset[int]:
    """The hours of the day that ``deleteWhen`` names. ConfigError when it names none, or no hours."""
    words = [word.strip() for word in text.split(";") if word.strip()]
    if not words or not all(word.isascii() and word.isdecimal() and int(word) < 24 for word in words):
        raise ConfigError(
            f"deleteWhen {text!r} does not name hours of the day.",
            remedy="Write hours from 00 to 23, with ; between several, such as 04 or 01;13.",
        )
    return frozenset(map(int, words))


def delay_levels(text: str) -> list[int]:
    """Milliseconds of each level that ``messageDelayLevel`` names; level 1 is element 0. ConfigError if it cannot."""
    if not re.fullmatch(r"\s*[0-9]{1,9}[smhd](\s+[0-9]{1,9}[smhd])*\s*", text):
        raise ConfigError(
            f"messageDelayLevel {text!r} cannot be read.",
            remedy="Write numbers with s, m, h or d, separated by spaces, such as '1s 5s 1m 2h'.",
        )
    return [int(word[:-1]) * _UNITS[word[-1]] for word in text.split()]


def one_directory(text: str) -> None:
    """ConfigError for several, which Apache's broker since 4.8 spreads the log's files over."""
    if "," in text:
        raise ConfigError(
            f"storePathCommitLog={text} names several directories, which is not supported.",
            remedy="Give one, on a disk (or several joined by LVM or RAID) that has room for the whole log.",
        )


class FlushDiskType(Enum):
    """When a send is answered: once the bytes are in the page cache, or once they are on the disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@dataclass(frozen=True)
class StoreConfig:
    """What a store needs to know. Sizes are bytes, intervals milliseconds, ratios percent."""

    store_path: Path
    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 6_000_000
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_interval_consume_queue: int = 1_000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    sync_flush_timeout: int = 5_000
    max_message_size: int = 4 << 20
    max_filter_message_size: int = 16_000
    message_delay_level: str = DEFAULT_DELAY_LEVELS
    check_crc_on_recover: bool = True
    file_reserved_time: int = 72
    """Hours."""
    delete_when: str = "04"
    """Hours of the day, local time, ``;`` between."""
    delete_commit_log_files_interval: int = 100
    delete_file_batch_max: int = 10
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    clean_file_forcibly_enable: bool = True
    file_reserved_size: int = 0
    """Bytes of commit log to keep, 0 for no bound."""
    mapped_file_size_timer_log: int = 100 << 20
    timer_roll_window_slot: int = 172_800
    store_path_commit_log: Path | None = None
    store_path_consume_queue: Path | None = None
    store_path_index: Path | None = None
    is_replica: bool = False
    """A slave's store: it takes its master's log (replica.py), and no messages."""
    timer_wheel_slots: int = 604_800
    """Half of the wheel's slots: a week of seconds, which Apache's broker has no setting for."""
    allocate_ahead: int = 8 << 20
    """How far in front of the writer the commit log is given disk blocks and touched."""
    max_mapped_consume_queue_files: int = 16_384
    """How many consume queues have a file mapped at once, for writing; Linux gives a process 65,530 mappings."""

    def __post_init__(self) -> None:
        if self.mapped_file_size_commit_log < 4096:
            raise ConfigError(
                f"mappedFileSizeCommitLog is {self.mapped_file_size_commit_log}.", remedy="Give at least 4096."
            )
        size = self.mapped_file_size_consume_queue
        if size < 20 or size % 20:
            raise ConfigError(
                f"mappedFileSizeConsumeQueue is {size}, not a multiple of the 20 bytes of an entry.",
                remedy="Apache's default is 6000000.",
            )
        if self.max_hash_slot_num < 1 or self.max_index_num < 2:
            raise ConfigError(
                f"maxHashSlotNum {self.max_hash_slot_num} or maxIndexNum {self.max_index_num} is too small.",
                remedy="Apache's defaults are 5000000 and 20000000.",
            )
        self.delay_levels()
        delete_hours(self.delete_when)
        self.paths.check()

    def delay_levels(self) -> list[int]:
        """Milliseconds of each delay level; level 1 is element 0."""
        return delay_levels(self.message_delay_level)

    @property
    def paths(self) -> StorePaths:
        """Where the store's parts are."""
        return StorePaths.of(
            self.store_path, self.store_path_commit_log, self.store_path_consume_queue, self.store_path_index
        )

    def at(self, paths: StorePaths) -> StoreConfig:
        """The same settings for a store elsewhere."""
        return replace(
            self,
            store_path=paths.root,
            store_path_commit_log=paths.commit_log,
            store_path_consume_queue=paths.consume_queue,
            store_path_index=paths.index,
        )

    @property
    def commit_log_path(self) -> Path:
        return self.paths.commit_log

    @property
    def consume_queue_path(self) -> Path:
        return self.paths.consume_queue

    @property
    def index_path(self) -> Path:
        return self.paths.index

    @property
    def index_file_size(self) -> int:
        return 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num
