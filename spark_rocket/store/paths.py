"""Where the parts of a store are: its root, and the directories that may be on disks of their own.

=================  =========================  ======================================================================
part               setting                    by default
=================  =========================  ======================================================================
``root``           ``storePathRootDir``       what has no place of its own: ``config``, ``checkpoint``, ``abort``,
                                              ``lock``, the timer's files, ``quarantine``
``commit_log``     ``storePathCommitLog``     ``<root>/commitlog``
``consume_queue``  ``storePathConsumeQueue``  ``<root>/consumequeue``
``index``          ``storePathIndex``         ``<root>/index``
=================  =========================  ======================================================================

Where one of them is elsewhere, ``<root>/config/storePaths.json`` names all four. Tools and Spark's ``storePath`` find
the parts by it, and a broker that is started without its ``broker.conf`` is refused: it would begin an empty store
beside the full one. The file names the root too, so that a copy of the root is known as one.

Apache's brokers since 4.0 know the first two settings only: queues and index are in the root, whatever ``broker.conf``
says. A directory that is named and empty, while the root has such files, is refused for that reason too.

The file is written to a temporary file, synced and renamed, before anything is written to a directory that it names.
RocketMQ can keep more in a store directory. Left alone, and still there for RocketMQ: ``timerwheel`` and ``timerlog``
where the timer is off, ``compaction``, files of ``config`` that this broker does not know, an ``abort`` with a process
id in it. Refused by name (:func:`refuse_foreign`, which looks at names only), because to go on would lose messages or
give them to the wrong readers without a word:

========================  ==========================================================================================
``consumequeue_ext``      entries hold addresses into it where their tags codes should be: no filter would match
``batchconsumequeue``     queues of topics whose records each hold many messages and offsets
``consumequeue/%LMQ%…``   light queues: their entries point to records of other topics, recovery would cut them off
``consumequeue*/CURRENT``  consume queues in RocksDB (5.x, storeType=defaultRocksDB)
``config/*/CURRENT``      topics, groups and offsets in RocksDB
``dledger-…``             the commit log of a DLedger group, beside an empty ``commitlog``
========================  ==========================================================================================

Pure values but for :func:`find_paths`, :func:`refuse_foreign`, :func:`refuse_left_behind` and :func:`remember`, which
are for one thread.
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
        """With everything where it is by default, but for what is given."""
        return cls(
            root, commit_log or root / "commitlog", consume_queue or root / "consumequeue", index or root / "index"
        )

    @property
    def directories(self) -> tuple[Path, Path, Path]:
        """All but the root."""
        return self.commit_log, self.consume_queue, self.index

    @property
    def elsewhere(self) -> tuple[Path, ...]:
        """Those that are not where they are by default."""
        usual = StorePaths.of(self.root).directories
        return tuple(path for path, at in zip(self.directories, usual, strict=True) if path.resolve() != at.resolve())

    @property
    def outside(self) -> tuple[Path, ...]:
        """Those that are not in the root."""
        return tuple(path for path in self.directories if not _is_inside(path, self.root))

    def named(self) -> Iterator[tuple[str, Path]]:
        """Each directory but the root, by its setting."""
        return zip(_SETTINGS, self.directories, strict=True)

    def check(self) -> None:
        """ConfigError where two of them are one directory, or one is inside another."""
        for (name, path), (other, place) in combinations(self.named(), 2):
            if _is_inside(path, place) or _is_inside(place, path):
                raise ConfigError(
                    f"{name}={path} and {other}={place} overlap.", remedy="Give each a directory of its own."
                )
        for name, path in self.named():
            if _is_inside(self.root, path):
                raise ConfigError(
                    f"{name}={path} has {_ROOT}={self.root} in it.",
                    remedy=f"Give it a directory of its own, such as {path / 'rocketmq'}.",
                )


def find_paths(root: Path) -> StorePaths:
    """Where the store in ``root`` says its parts are; StoreError if it is a copy of one that has them elsewhere."""
    known = _recorded(root)
    if known is None or known.root.resolve() == root.resolve():
        return StorePaths.of(root) if known is None else replace(known, root=root)
    copied = StorePaths.of(root)
    if copied.commit_log.is_dir():
        return copied
    raise StoreError(
        f"{root} is a copy of {known.root}, whose commit log is in {known.commit_log}: it has none itself.",
        remedy=f"Copy that directory to {copied.commit_log}, or give a broker.conf with -c that sets {_ROOT}={root} "
        "and storePathCommitLog to where its copy is.",
    )


def refuse_left_behind(paths: StorePaths) -> None:
    """StoreError where a directory is empty, and the one that had its files until now is not."""
    known = _recorded(paths.root)
    usual = StorePaths.of(paths.root)
    for before in (usual,) if known is None or known.root.resolve() != paths.root.resolve() else (known, usual):
        for (name, path), was in zip(paths.named(), before.directories, strict=True):
            if path.resolve() != was.resolve() and _has_files(was) and not _has_files(path):
                raise StoreError(
                    f"{was} has files of this store, and {name}={path} has none: the broker would begin anew there.",
                    remedy=f"Set {name}={was} in broker.conf (-c), or move what is in {was} to {path}."
                    + ("" if path == paths.commit_log else f" Apache's brokers since 4.0 do not know {name}."),
                )


def remember(paths: StorePaths) -> None:
    """Put on disk where the parts are, if that is not where they are by default. OSError."""
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
    """What the file says; None without one."""
    file = _file(root)
    try:
        table = json.loads(file.read_bytes())
        return StorePaths(*(Path(str(table[name])) for name in (_ROOT, *_SETTINGS)))
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise StoreError(
            f"{file} cannot be read: {error}.",
            remedy="Delete it, and start the broker with the broker.conf that says where its directories are.",
        ) from error


def _absolute(paths: StorePaths) -> StorePaths:
    return StorePaths(paths.root.resolve(), *(path.resolve() for path in paths.directories))


def _is_inside(path: Path, directory: Path) -> bool:
    return path.resolve().is_relative_to(directory.resolve())


def _has_files(directory: Path) -> bool:
    return any(names for _, _, names in os.walk(directory))


# --- what is not served here ------------------------------------------------------------------------------------------

LMQ_PREFIX = "%LMQ%"
_QUEUES = "consumequeue"
_ANOTHER_BROKER = "Open it with the broker that made it, or have that broker's messages sent to a new one."
_REFUSED = (
    (
        "consumequeue_ext/*/*/*",
        "consume queues with extensions (enableConsumeQueueExt)",
        "Delete consumequeue and consumequeue_ext: queues are built anew from the log, and RocketMQ takes those too. "
        "One of which the log has no message any more begins at 0.",
    ),
    (
        "batchconsumequeue/*/*/*",
        "topics with batch consume queues (queue.type=BatchCQ)",
        "Delete these topics in the broker that made them.",
    ),
    (
        f"{_QUEUES}/{LMQ_PREFIX}*",
        "light queues (enableLmq)",
        f"Delete the directories consumequeue/{LMQ_PREFIX}*: the messages themselves are in other topics and stay.",
    ),
    (f"{_QUEUES}/CURRENT", "consume queues in RocksDB (storeType)", _ANOTHER_BROKER),
    (f"{_QUEUES}*/CURRENT", "consume queues in RocksDB (storeType)", _ANOTHER_BROKER),
    ("config/*/CURRENT", "its configuration in RocksDB", _ANOTHER_BROKER),
    ("dledger-*/*", "the log of a DLedger group (enableDLegerCommitLog)", _ANOTHER_BROKER),
)


def refuse_foreign(paths: StorePaths) -> None:
    """StoreError when the store has parts that cannot be served rightly."""
    for pattern, what, remedy in _REFUSED:
        found = next(_matches(paths, pattern), None)
        if found is not None:
            raise StoreError(f"{paths.root} has {what}, which are not served here: {found}.", remedy=remedy)


def _matches(paths: StorePaths, pattern: str) -> Iterator[Path]:
    yield from paths.root.glob(pattern)
    place, _, rest = pattern.partition("/")
    if place == _QUEUES:
        yield from paths.consume_queue.glob(rest)
