"""What else RocketMQ can keep in a store directory, and which of it a store of ours must not be opened on.

Left alone, and still there for RocketMQ: ``timerwheel`` and ``timerlog`` where the timer is off, ``compaction``, files
of ``config`` that this broker does not know, an ``abort`` with a process id in it. Refused by name, because to go on
would lose messages or give them to the wrong readers without a word:

========================  ==========================================================================================
``consumequeue_ext``      entries hold addresses into it where their tags codes should be: no filter would match
``batchconsumequeue``     queues of topics whose records each hold many messages and offsets
``consumequeue/%LMQ%…``   light queues: their entries point to records of other topics, recovery would cut them off
``consumequeue*/CURRENT``  consume queues in RocksDB (5.x, storeType=defaultRocksDB)
``config/*/CURRENT``      topics, groups and offsets in RocksDB
``dledger-…``             the commit log of a DLedger group, beside an empty ``commitlog``
========================  ==========================================================================================

Looks at names only. Corresponds to StorePathConfigHelper.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spark_rocket.errors import StoreError
from spark_rocket.store.paths import StorePaths

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
