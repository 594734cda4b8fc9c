"""Settings of a store: RocketMQ's names in snake case, with Apache's defaults.

They are a part of the broker's settings (``BrokerConfig``): ``broker.conf`` has their names in camel case, so
``flush_disk_type`` is ``flushDiskType``. ``fileReservedSize`` is specific to this project.

Corresponds to org.apache.rocketmq.store.config.MessageStoreConfig. Immutable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from spark_rocket.common.units import duration_ms
from spark_rocket.errors import ConfigError
from spark_rocket.protocol.durability import FlushDiskType
from spark_rocket.protocol.setting import setting
from spark_rocket.store.paths import StorePaths

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_MAX_LEVEL_MS = 10**17


def delete_hours(text: str) -> frozenset[int]:
    """Parse ``deleteWhen`` into hours of the day. ConfigError if it is empty or invalid."""
    words = [word.strip() for word in text.split(";") if word.strip()]
    if not words or not all(word.isascii() and word.isdecimal() and int(word) < 24 for word in words):
        raise ConfigError(
            f"Invalid deleteWhen {text!r}.",
            remedy="Give hours of the day from 00 to 23, separated by ';', such as 04 or 01;13.",
        )
    return frozenset(map(int, words))


def parse_delay_levels(text: str) -> list[int]:
    """Parse ``messageDelayLevel`` into milliseconds per level; level 1 is element 0. ConfigError if it is invalid."""
    levels = [duration_ms(word) for word in text.split()]
    if not levels or any(level is None or level > _MAX_LEVEL_MS for level in levels):
        raise ConfigError(
            f"Invalid messageDelayLevel {text!r}.",
            remedy="Give numbers with the unit s, m, h or d, separated by spaces, such as '1s 5s 1m 2h'.",
        )
    return [level for level in levels if level is not None]


def one_directory(text: str) -> None:
    """Reject several directories, over which Apache's broker since 4.8 spreads the log's files. ConfigError."""
    if "," in text:
        raise ConfigError(
            f"storePathCommitLog={text} names several directories, which is not supported.",
            remedy="Give one directory with room for the entire log; join several disks with LVM or RAID.",
        )


@dataclass(frozen=True)
class StoreConfig:
    """Settings of a store. Sizes are in bytes, intervals in milliseconds, ratios in percent."""

    store_path_root_dir: Path = setting(Path("~/store"))
    store_path_commit_log: str = setting("", check=one_directory)
    store_path_consume_queue: str = setting("")
    store_path_index: str = setting("")
    flush_disk_type: FlushDiskType = setting(FlushDiskType.ASYNC_FLUSH)
    mapped_file_size_commit_log: int = setting(1024 * 1024 * 1024, low=4_096, high=2**31 - 1)
    mapped_file_size_consume_queue: int = setting(6_000_000, low=20, high=2**31 - 1, step=20)
    max_hash_slot_num: int = setting(5_000_000, low=1, high=2**28)
    max_index_num: int = setting(20_000_000, low=2, high=2**28)
    message_index_enable: bool = setting(True)
    flush_interval_commit_log: int = setting(500, low=1)
    flush_interval_consume_queue: int = setting(1_000, low=1)
    sync_flush_timeout: int = setting(5_000, low=1)

    max_message_size: int = setting(4 * 1024 * 1024, low=1, high=15 * 1024 * 1024)
    max_filter_message_size: int = setting(16_000, low=20, high=1 << 20, dynamic=True)
    message_delay_level: str = setting(DEFAULT_DELAY_LEVELS, check=parse_delay_levels)
    timer_roll_window_slot: int = setting(172_800, low=1)
    mapped_file_size_timer_log: int = setting(100 * 1024 * 1024, low=4096, high=1 << 40)

    file_reserved_time: int = setting(72, low=0, high=1_000_000, dynamic=True)
    """Hours."""
    delete_when: str = setting("04", dynamic=True, check=delete_hours)
    """Hours of the day, local time, separated by ``;``."""
    delete_commit_log_files_interval: int = setting(100, low=0, high=60_000, dynamic=True)
    delete_file_batch_max: int = setting(10, low=1, dynamic=True)
    disk_max_used_space_ratio: int = setting(75, low=1, high=100, dynamic=True)
    disk_space_clean_forcibly_ratio: int = setting(85, low=1, high=100, dynamic=True)
    disk_space_warning_level_ratio: int = setting(90, low=1, high=100, dynamic=True)
    clean_file_forcibly_enable: bool = setting(True, dynamic=True)
    file_reserved_size: int = setting(0, low=0, dynamic=True)
    """Maximum size of the commit log in bytes, 0 for no limit."""

    # Not in broker.conf.
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    check_crc_on_recover: bool = True
    is_replica: bool = False
    """A slave's store: it copies its master's log (replica.py) and accepts no messages."""
    timer_wheel_slots: int = 604_800
    """Half of the wheel's slots: a week of seconds. Apache's broker has no setting for it."""
    allocate_ahead: int = 8 << 20
    """How far ahead of the writer disk blocks are allocated for the commit log and its pages are touched."""
    max_mapped_consume_queue_files: int = 16_384
    """Maximum number of consume queues with a file mapped for writing; Linux allows 65,530 mappings per process."""

    def __post_init__(self) -> None:
        """Raise ConfigError if directories overlap. Default ones cannot, and need no known ``~``."""
        if self.store_path_commit_log or self.store_path_consume_queue or self.store_path_index:
            self.paths.check()

    @property
    def store_path(self) -> Path:
        """``storePathRootDir`` with ``~`` expanded."""
        return self.store_path_root_dir.expanduser()

    def delay_levels(self) -> list[int]:
        """Return the milliseconds of each delay level; level 1 is element 0."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def paths(self) -> StorePaths:
        given = (self.store_path_commit_log, self.store_path_consume_queue, self.store_path_index)
        return StorePaths.of(self.store_path, *(Path(text).expanduser() if text else None for text in given))

    def in_directory(self, root: Path) -> StoreConfig:
        """Return the same settings for a store that is completely in one directory."""
        return replace(
            self, store_path_root_dir=root, store_path_commit_log="", store_path_consume_queue="", store_path_index=""
        )

    def at(self, paths: StorePaths) -> StoreConfig:
        """Return the same settings for a store in other directories."""
        return replace(
            self,
            store_path_root_dir=paths.root,
            store_path_commit_log=str(paths.commit_log),
            store_path_consume_queue=str(paths.consume_queue),
            store_path_index=str(paths.index),
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
