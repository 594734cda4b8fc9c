"""The files of a store, which recovery, retention and a replica work on together.

Frozen; each part states its own thread-safety. Corresponds to the fields of DefaultMessageStore.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_rocket.store.config import StoreConfig
from spark_rocket.store.index.index_service import IndexService
from spark_rocket.store.layout import DelayLevels
from spark_rocket.store.log.checkpoint import StoreCheckpoint
from spark_rocket.store.log.commit_log import CommitLog
from spark_rocket.store.queues.queue_table import ConsumeQueueTable
from spark_rocket.store.queues.side_files import DeletedTopics, QueueEnds


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of one store."""

    config: StoreConfig
    log: CommitLog
    queues: ConsumeQueueTable
    index: IndexService | None
    deleted: DeletedTopics
    ends: QueueEnds
    checkpoint: StoreCheckpoint
    delays: DelayLevels
