"""Locations of a store's parts: its root, and the directories that may be on separate disks.

=================  =========================  ======================================================================
part               setting                    default
=================  =========================  ======================================================================
``root``           ``storePathRootDir``       all other parts: ``config``, ``checkpoint``, ``abort``, ``lock``, the
                                              timer's files, ``quarantine``
``commit_log``     ``storePathCommitLog``     ``<root>/commitlog``
``consume_queue``  ``storePathConsumeQueue``  ``<root>/consumequeue``
``index``          ``storePathIndex``         ``<root>/index``
=================  =========================  ======================================================================

If a part is outside its default place, ``<root>/config/storePaths.json`` names all four. Tools and Spark's
``storePath`` find the parts with it. A broker started without its ``broker.conf`` is rejected: it would create an empty
store beside the full one. The file names the root too, so that a copy of the root is detected.

Apache's brokers since 4.0 support only the first two settings: queues and index are always in the root, even if
``broker.conf`` names other directories. An empty directory in the settings, while the root has such files, is rejected
for that reason too.

The file is written to a temporary file, synced and renamed before anything is written to a directory that it names.

RocketMQ can store more in a store directory. These are left unchanged for RocketMQ: ``timerwheel`` and ``timerlog`` if
the timer is off, ``compaction``, unknown files of ``config``, an ``abort`` with a process id in it. The following are
rejected by name (:func:`refuse_foreign`), because otherwise messages would be silently lost or go to wrong readers:

========================  ==========================================================================================
``consumequeue_ext``      entries have addresses into it instead of tags codes: no filter would match
``batchconsumequeue``     queues of topics whose records each contain many messages and offsets
``consumequeue/%LMQ%…``   light queues: their entries point to records of other topics, so recovery would cut them off
``consumequeue*/CURRENT``  consume queues in RocksDB (5.x, storeType=defaultRocksDB)
``config/*/CURRENT``      topics, groups and offsets in RocksDB
``dledger-…``             the commit log of a DLedger group, beside an empty ``commitlog``
========================  ==========================================================================================

Pure values. :func:`find_paths`, :func:`refuse_foreign`, :func:`refuse_left_behind` and :func:`record_paths` access the
disk and are for one thread.
Corresponds to StorePathConfigHelper and MessageStoreConfig.getStorePathCommitLog.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from spark_rocket.errors import ConfigError, StoreError
from spark_rocket.store.descriptors import replace_file, sync_directory

_ROOT = "storePathRootDir"
_SETTINGS = ("storePathCommitLog", "storePathConsumeQueue", "storePathIndex")


@dataclass(frozen=True, slots=True)
class StorePaths:
    """The directories of one store."""

    root: Path
    commit_log: Path
    consume_queue: Path
    index: Path

    @classmethod
    def of(
        cls,
        root: Path,
        commit_log: Path | None = None,
        consume_queue: Path | None = None,
        index: Path | None = None,
    ) -> StorePaths:
        """Return the paths of a store, with defaults for those not given."""
        return cls(
            root, commit_log or root / "commitlog", consume_queue or root / "consumequeue", index or root / "index"
        )

    @property
    def directories(self) -> tuple[Path, Path, Path]:
        """All but the root."""
        return self.commit_log, self.consume_queue, self.index

    @property
    def elsewhere(self) -> tuple[Path, ...]:
        """Directories outside their default places."""
        usual = StorePaths.of(self.root).directories
        return tuple(path for path, at in zip(self.directories, usual, strict=True) if path.resolve() != at.resolve())

    @property
    def outside(self) -> tuple[Path, ...]:
        """Directories outside the root."""
        return tuple(path for path in self.directories if not _is_inside(path, self.root))

    def named(self) -> Iterator[tuple[str, Path]]:
        """Yield each directory but the root, with its setting."""
        return zip(_SETTINGS, self.directories, strict=True)

    def check(self) -> None:
        """Raise ConfigError if two parts share a directory, or one is inside another."""
        for (name, path), (other, place) in combinations(self.named(), 2):
            if _is_inside(path, place) or _is_inside(place, path):
                raise ConfigError(
                    f"{name}={path} and {other}={place} overlap.", remedy="Give each a directory of its own."
                )
        for name, path in self.named():
            if _is_inside(self.root, path):
                raise ConfigError(
                    f"{name}={path} contains {_ROOT}={self.root}.",
                    remedy=f"Give it a directory of its own, such as {path / 'rocketmq'}.",
                )


def find_paths(root: Path) -> StorePaths:
    """Return the recorded paths of the store in ``root``. StoreError if it is an incomplete copy of a split store."""
    known = _recorded(root)
    if known is None or known.root.resolve() == root.resolve():
        return StorePaths.of(root) if known is None else replace(known, root=root)
    copied = StorePaths.of(root)
    if copied.commit_log.is_dir():
        return copied
    raise StoreError(
        f"{root} is a copy of {known.root} without a commit log; the original's is in {known.commit_log}.",
        remedy=f"Copy that directory to {copied.commit_log}, or give a broker.conf with -c that sets {_ROOT}={root} "
        "and storePathCommitLog to the copy of the log.",
    )


def refuse_left_behind(paths: StorePaths) -> None:
    """Raise StoreError if a part's directory is empty but its previous directory has files."""
    known = _recorded(paths.root)
    usual = StorePaths.of(paths.root)
    for before in (usual,) if known is None or known.root.resolve() != paths.root.resolve() else (known, usual):
        for (name, path), was in zip(paths.named(), before.directories, strict=True):
            if path.resolve() != was.resolve() and _has_files(was) and not _has_files(path):
                raise StoreError(
                    f"{was} has files of this store, but {name}={path} is empty: the broker would start empty there.",
                    remedy=f"Set {name}={was} in broker.conf (-c), or move the content of {was} to {path}."
                    + ("" if path == paths.commit_log else f" Apache's brokers since 4.0 do not support {name}."),
                )


def record_paths(paths: StorePaths) -> None:
    """Record the paths on disk, if they are not the defaults. OSError."""
    file = _file(paths.root)
    if not paths.elsewhere:
        if file.exists():
            file.unlink()
            sync_directory(file.parent)
        return
    if _recorded(paths.root) == _absolute(paths):
        return
    table = {_ROOT: str(paths.root.resolve())} | {name: str(path.resolve()) for name, path in paths.named()}
    replace_file(file, json.dumps(table, indent="\t", ensure_ascii=False))


def _file(root: Path) -> Path:
    return root / "config" / "storePaths.json"


def _recorded(root: Path) -> StorePaths | None:
    """Return the paths recorded in the file; None without one."""
    file = _file(root)
    try:
        table = json.loads(file.read_bytes())
        return StorePaths(*(Path(str(table[name])) for name in (_ROOT, *_SETTINGS)))
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"{file} cannot be read: {error}.",
            remedy="Delete it, and start the broker with the broker.conf that sets its directories.",
        ) from error


def _absolute(paths: StorePaths) -> StorePaths:
    return StorePaths(paths.root.resolve(), *(path.resolve() for path in paths.directories))


def _is_inside(path: Path, directory: Path) -> bool:
    return path.resolve().is_relative_to(directory.resolve())


def _has_files(directory: Path) -> bool:
    return any(names for _, _, names in os.walk(directory))


# --- unsupported parts ------------------------------------------------------------------------------------------------

LMQ_PREFIX = "%LMQ%"
_QUEUES = "consumequeue"
_ANOTHER_BROKER = "Open it with the broker that created it, or send that broker's messages to a new one."
_UNSUPPORTED = (
    (
        "consumequeue_ext/*/*/*",
        "consume queues with extensions (enableConsumeQueueExt)",
        "Delete consumequeue and consumequeue_ext: queues are rebuilt from the log, and RocketMQ accepts those too. "
        "A queue without messages in the log then starts at 0.",
    ),
    (
        "batchconsumequeue/*/*/*",
        "topics with batch consume queues (queue.type=BatchCQ)",
        "Delete these topics in the broker that created them.",
    ),
    (
        f"{_QUEUES}/{LMQ_PREFIX}*",
        "light queues (enableLmq)",
        f"Delete the directories consumequeue/{LMQ_PREFIX}*: the messages themselves are in other topics and stay.",
    ),
    (f"{_QUEUES}/CURRENT", "consume queues in RocksDB (storeType)", _ANOTHER_BROKER),
    (f"{_QUEUES}*/CURRENT", "consume queues in RocksDB (storeType)", _ANOTHER_BROKER),
    ("config/*/CURRENT", "configuration tables in RocksDB", _ANOTHER_BROKER),
    ("dledger-*/*", "log files of a DLedger group (enableDLegerCommitLog)", _ANOTHER_BROKER),
)


def refuse_foreign(paths: StorePaths) -> None:
    """Raise StoreError if the store has unsupported parts."""
    for pattern, what, remedy in _UNSUPPORTED:
        found = next(_matches(paths, pattern), None)
        if found is not None:
            raise StoreError(f"{paths.root} has {what}, which are not supported: {found}.", remedy=remedy)


def _matches(paths: StorePaths, pattern: str) -> Iterator[Path]:
    yield from paths.root.glob(pattern)
    place, _, rest = pattern.partition("/")
    if place == _QUEUES:
        yield from paths.consume_queue.glob(rest)
