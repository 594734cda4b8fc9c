"""Settings of a store: RocketMQ's names in snake case, with Apache's defaults.

They are a part of the broker's settings (``BrokerConfig``): ``broker.conf`` has their names in camel case, so
``flush_disk_type`` is ``flushDiskType``. ``fileReservedSize`` is specific to this project.

Corresponds to org.apache.rocketmq.store.config.MessageStoreConfig. Immutable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
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


# By section of the reference.
_topics = partial(setting, section="Topics, groups and sends")
_delays = partial(setting, section="Delays, recalls and transactions")
_pulls = partial(setting, section="Pull, POP and queries")
_store = partial(setting, section="Store")
_retention = partial(setting, section="Retention")


@dataclass(frozen=True)
class StoreConfig:
    """Settings of a store. Sizes are in bytes, intervals in milliseconds, ratios in percent."""

    store_path_root_dir: Path = _store(Path("~/store"), "the store's directory. `rocket up`: `rocket-data/store`")  # noqa: RUF009 - makes a field
    store_path_commit_log: str = _store(
        "",
        "directory of the commit log. Default: `commitlog` in `storePathRootDir`. Several directories are not "
        "supported",
        check=one_directory,
    )
    store_path_consume_queue: str = _store(
        "",
        "directory of the consume queues. Default: `consumequeue` in `storePathRootDir`. Apache's brokers ignore "
        "it since 4.0",
    )
    store_path_index: str = _store(
        "", "directory of the index. Default: `index` in `storePathRootDir`. Apache's brokers ignore it since 4.0"
    )
    flush_disk_type: FlushDiskType = _store(  # noqa: RUF009 - makes a field
        FlushDiskType.ASYNC_FLUSH,
        "a send is acknowledged when its bytes are in the page cache, or when they are on disk",
    )
    mapped_file_size_commit_log: int = _store(
        1024 * 1024 * 1024, "bytes of a file of the commit log (1 GiB)", low=4_096, high=2**31 - 1
    )
    mapped_file_size_consume_queue: int = _store(
        6_000_000, "bytes of a file of a consume queue", low=20, high=2**31 - 1, step=20
    )
    max_hash_slot_num: int = _store(5_000_000, "hash slots of an index file", low=1, high=2**28)
    max_index_num: int = _store(20_000_000, "entries of an index file", low=2, high=2**28)
    message_index_enable: bool = _store(True, "index keys and message ids")
    flush_interval_commit_log: int = _store(
        500, "milliseconds between two flushes of the commit log with `ASYNC_FLUSH`", low=1
    )
    flush_interval_consume_queue: int = _store(1_000, "milliseconds between two flushes of the consume queues", low=1)
    sync_flush_timeout: int = _store(
        5_000,
        "milliseconds that a send waits for the disk with `SYNC_FLUSH`; then it has the status `FLUSH_DISK_TIMEOUT`",
        low=1,
    )

    max_message_size: int = _topics(
        4 * 1024 * 1024, "the limit of a body in bytes (4 MiB)", low=1, high=15 * 1024 * 1024
    )
    max_filter_message_size: int = _pulls(
        16_000,
        "bytes of the consume queue (20 per message) that a pull with a filter examines at most",
        low=20,
        high=1 << 20,
        dynamic=True,
    )
    message_delay_level: str = _delays(
        DEFAULT_DELAY_LEVELS,
        "the delays of levels 1, 2, …: numbers with the unit s, m, h or d",
        check=parse_delay_levels,
    )
    timer_roll_window_slot: int = _delays(
        172_800,
        "slots of the timer wheel that messages can be scheduled ahead (two days of seconds). Later messages are "
        "first stored again after this time",
        low=1,
    )
    mapped_file_size_timer_log: int = _delays(
        100 * 1024 * 1024, "bytes of a file of the timer log (100 MiB)", low=4096, high=1 << 40
    )

    file_reserved_time: int = _retention(72, "hours after which a file is expired", low=0, high=1_000_000, dynamic=True)
    delete_when: str = _retention(
        "04",
        "hours of the day, in local time and separated by `;`, in which expired files are deleted",
        dynamic=True,
        check=delete_hours,
    )
    delete_commit_log_files_interval: int = _retention(
        100, "milliseconds between the deletions of two files", low=0, high=60_000, dynamic=True
    )
    delete_file_batch_max: int = _retention(10, "files deleted per check", low=1, dynamic=True)
    disk_max_used_space_ratio: int = _retention(
        75, "percentage of the disk above which expired files are deleted at any hour", low=1, high=100, dynamic=True
    )
    disk_space_clean_forcibly_ratio: int = _retention(
        85,
        "percentage above which the oldest files are deleted although they are not expired",
        low=1,
        high=100,
        dynamic=True,
    )
    disk_space_warning_level_ratio: int = _retention(
        90, "percentage above which messages are rejected", low=1, high=100, dynamic=True
    )
    clean_file_forcibly_enable: bool = _retention(
        True, "`false`: do not delete files that are not expired", dynamic=True
    )
    file_reserved_size: int = _retention(
        0,
        "keep at least this many bytes of the commit log, and delete older files at any hour; 0: keep all until "
        "they expire. *Own*",
        low=0,
        dynamic=True,
    )

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
