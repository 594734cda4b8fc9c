"""Settings of a store: RocketMQ's names in snake case.

Defaults are Apache's. ``broker.conf`` has the names in camel case: ``flush_disk_type`` is ``flushDiskType``.
Exceptions: ``store_path`` is ``storePathRootDir``, and ``check_crc_on_recover`` is ``checkCRCOnRecover``.
``fileReservedSize`` is specific to this project. So are the settings from ``is_replica`` on, which cannot be set in
``broker.conf``.

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
    """Parse ``deleteWhen`` into hours of the day. ConfigError if it is empty or invalid."""
    words = [word.strip() for word in text.split(";") if word.strip()]
    if not words or not all(word.isascii() and word.isdecimal() and int(word) < 24 for word in words):
        raise ConfigError(
            f"Invalid deleteWhen {text!r}.",
            remedy="Give hours of the day from 00 to 23, separated by ';', such as 04 or 01;13.",
        )
    return frozenset(map(int, words))


def delay_levels(text: str) -> list[int]:
    """Parse ``messageDelayLevel`` into milliseconds per level; level 1 is element 0. ConfigError if it is invalid."""
    if not re.fullmatch(r"\s*[0-9]{1,9}[smhd](\s+[0-9]{1,9}[smhd])*\s*", text):
        raise ConfigError(
            f"Invalid messageDelayLevel {text!r}.",
            remedy="Give numbers with the unit s, m, h or d, separated by spaces, such as '1s 5s 1m 2h'.",
        )
    return [int(word[:-1]) * _UNITS[word[-1]] for word in text.split()]


def one_directory(text: str) -> None:
    """Reject several directories, over which Apache's broker since 4.8 spreads the log's files. ConfigError."""
    if "," in text:
        raise ConfigError(
            f"storePathCommitLog={text} names several directories, which is not supported.",
            remedy="Give one directory with room for the entire log; join several disks with LVM or RAID.",
        )


class FlushDiskType(Enum):
    """When a send is acknowledged: with the bytes in the page cache, or with the bytes on disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@dataclass(frozen=True)
class StoreConfig:
    """Settings of a store. Sizes are in bytes, intervals in milliseconds, ratios in percent."""

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
    """Hours of the day, local time, separated by ``;``."""
    delete_commit_log_files_interval: int = 100
    delete_file_batch_max: int = 10
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    clean_file_forcibly_enable: bool = True
    file_reserved_size: int = 0
    """Maximum size of the commit log in bytes, 0 for no limit."""
    mapped_file_size_timer_log: int = 100 << 20
    timer_roll_window_slot: int = 172_800
    store_path_commit_log: Path | None = None
    store_path_consume_queue: Path | None = None
    store_path_index: Path | None = None
    is_replica: bool = False
    """A slave's store: it copies its master's log (replica.py) and accepts no messages."""
    timer_wheel_slots: int = 604_800
    """Half of the wheel's slots: a week of seconds. Apache's broker has no setting for it."""
    allocate_ahead: int = 8 << 20
    """How far ahead of the writer disk blocks are allocated for the commit log and its pages are touched."""
    max_mapped_consume_queue_files: int = 16_384
    """Maximum number of consume queues with a file mapped for writing; Linux allows 65,530 mappings per process."""

    def __post_init__(self) -> None:
        if self.mapped_file_size_commit_log < 4096:
            raise ConfigError(
                f"Invalid mappedFileSizeCommitLog {self.mapped_file_size_commit_log}.", remedy="Give at least 4096."
            )
        size = self.mapped_file_size_consume_queue
        if size < 20 or size % 20:
            raise ConfigError(
                f"Invalid mappedFileSizeConsumeQueue {size}: not a multiple of 20, the size of an entry.",
                remedy="Use a multiple of 20; Apache's default is 6000000.",
            )
        if self.max_hash_slot_num < 1 or self.max_index_num < 2:
            raise ConfigError(
                f"maxHashSlotNum {self.max_hash_slot_num} or maxIndexNum {self.max_index_num} is too small.",
                remedy="Give at least 1 and 2; Apache's defaults are 5000000 and 20000000.",
            )
        self.delay_levels()
        delete_hours(self.delete_when)
        self.paths.check()

    def delay_levels(self) -> list[int]:
        """Return the milliseconds of each delay level; level 1 is element 0."""
        return delay_levels(self.message_delay_level)

    @property
    def paths(self) -> StorePaths:
        """Directories of the store's parts."""
        return StorePaths.of(
            self.store_path, self.store_path_commit_log, self.store_path_consume_queue, self.store_path_index
        )

    def at(self, paths: StorePaths) -> StoreConfig:
        """Return the same settings for a store in other directories."""
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
