"""The store of a consumer's offsets: the broker in clustering mode, a local file in broadcasting mode.

The local file is ``~/.rocketmq_offsets/<clientId>/<group>/offsets.json``, as in the original, with the instance *name*
in place of its client id, because a restarted process must find it. The group has its namespace, so that groups of two
instances do not share offsets. A new version is written to a temporary file, fsynced and renamed; the previous version
becomes ``offsets.json.bak``.

Thread-safety: ``commit`` and ``persist`` by one thread at a time, the others by all. After a crash, offsets are up to
five seconds old, so messages may be consumed again. Corresponds to RemoteBrokerOffsetStore and LocalFileOffsetStore.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path

from spark_rocket.client.consume.commits import commit_each
from spark_rocket.client.consume.listeners import MessageModel
from spark_rocket.client.consume.reader import UNAVAILABLE_ERRORS, Reader
from spark_rocket.errors import ClientError, RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.json import dumps_fastjson, loads_tolerant

logger = logging.getLogger(__name__)

PERSIST_SECONDS = 3.0


class OffsetStore(ABC):
    """The offsets of a group."""

    group: str

    def open(self) -> None:  # noqa: B027 - only a local store has something to prepare
        """Prepare the store; call it first. ClientError if the stored offsets are unreadable."""

    @abstractmethod
    def read(self, queue: MessageQueue) -> int | None:
        """Return the offset of the group in a queue; None if it has none. Raises errors of the query."""

    @abstractmethod
    def has_any(self, queues: Iterable[MessageQueue]) -> bool:
        """Return whether the group has an offset in one of the queues. Raises errors of queries, if none has."""

    @abstractmethod
    def commit(
        self, offsets: Mapping[MessageQueue, int], seconds: float | None = None
    ) -> dict[MessageQueue, RocketError]:
        """Store offsets and wait for brokers; return the errors of those that failed.

        ``seconds``: default is ``PERSIST_SECONDS``.
        """

    def persist(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets, as many as possible; failures are logged, and the caller retries later."""
        for queue, error in self.commit(offsets).items():
            logger.warning("offset %d of group %s in %s not committed: %s", offsets[queue], self.group, queue, error)


def make_offset_store(reader: Reader, group: str, model: MessageModel, instance_name: str) -> OffsetStore:
    if model is MessageModel.CLUSTERING:
        return RemoteOffsetStore(reader, group)
    return LocalOffsetStore(local_directory() / (instance_name or "DEFAULT"), reader.namespace.wrap(group))


class RemoteOffsetStore(OffsetStore):
    """Stores offsets at the broker of each queue. Commits are repeated, because a broker may crash before its fsync."""

    def __init__(self, reader: Reader, group: str) -> None:
        self._reader = reader
        self.group = group

    def read(self, queue: MessageQueue) -> int | None:
        return self._reader.committed_offset(self.group, queue)

    def has_any(self, queues: Iterable[MessageQueue]) -> bool:
        pending = [(queue, self._reader.has_offset_later(self.group, queue)) for queue in queues]
        unknown = []
        found = False
        for queue, response in pending:
            try:
                found = response.result() or found
            except RocketError:
                unknown.append(queue)
        return found or any(map(self.read, unknown))  # from slaves

    def commit(
        self, offsets: Mapping[MessageQueue, int], seconds: float | None = None
    ) -> dict[MessageQueue, RocketError]:
        """Commit all offsets in parallel, even if brokers hang."""
        seconds = PERSIST_SECONDS if seconds is None else seconds
        deadline = time.monotonic() + seconds
        failed = commit_each(self._reader, self.group, offsets, seconds)
        for queue in [queue for queue, error in failed.items() if isinstance(error, UNAVAILABLE_ERRORS)]:
            # The next owner of the queue starts there. The master gets the offset later: commits are repeated.
            left = deadline - time.monotonic()
            if left > 0 and self._reader.commit_to_slave(self.group, queue, offsets[queue], left):
                del failed[queue]
        return failed


class LocalOffsetStore(OffsetStore):
    """Stores offsets in a file of this host."""

    def __init__(self, directory: Path, group: str) -> None:
        self.group = group
        self._path = directory / group / "offsets.json"
        self._offsets: dict[MessageQueue, int] | None = None
        self._written: dict[MessageQueue, int] = {}
        self._unusable: list[str] = []

    def open(self) -> None:
        """Read the file. ClientError if there is one, but neither it nor its backup is usable."""
        self._load()

    def read(self, queue: MessageQueue) -> int | None:
        return self._load().get(queue)

    def has_any(self, queues: Iterable[MessageQueue]) -> bool:
        return any(self.read(queue) is not None for queue in queues)

    def commit(
        self, offsets: Mapping[MessageQueue, int], seconds: float | None = None
    ) -> dict[MessageQueue, RocketError]:
        known = self._load()
        known.update(offsets)
        if known == self._written:
            return {}
        try:
            self._write(known)
        except OSError as error:
            remedy = f"Check that {self._path} is writable."
            return {
                queue: ClientError(f"Cannot store the offset {offset} of {queue}: {error}.", remedy=remedy)
                for queue, offset in offsets.items()
            }
        self._written = dict(known)
        return {}

    def _load(self) -> dict[MessageQueue, int]:
        if self._offsets is None:
            offsets = self._read(self._path)
            if offsets is None:
                offsets = self._read(self._path.with_name("offsets.json.bak"))
            if offsets is None and self._unusable:
                raise ClientError(
                    f"Cannot read the offsets of a broadcasting group: {' '.join(self._unusable)}",
                    remedy="Restore the file, or remove it to reset the group.",
                )
            found = offsets or {}
            self._offsets = found if self._offsets is None else self._offsets  # another thread may have read it
            self._written = dict(found)
        return self._offsets

    def _read(self, path: Path) -> dict[MessageQueue, int] | None:
        try:
            return _decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RocketError) as error:
            self._unusable.append(f"{path}: {error}.")
            logger.warning("invalid offset file %s: %s", path, error)
            return None

    def _write(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name("offsets.json.tmp")
        with temporary.open("wb") as file:
            file.write(_encode(offsets))
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            self._path.replace(self._path.with_name("offsets.json.bak"))
        temporary.replace(self._path)


def local_directory() -> Path:
    """Return ``~/.rocketmq_offsets``, or the value of ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR."""
    given = os.environ.get("ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR")
    try:
        return Path(given) if given else Path.home() / ".rocketmq_offsets"
    except RuntimeError as error:
        raise ClientError(
            f"There is no home directory for broadcasting offsets: {error}.",
            remedy="Set ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR.",
        ) from None


def _encode(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Encode offsets like fastjson encodes a map whose keys are objects."""
    table = {
        (("brokerName", queue.broker_name), ("queueId", queue.queue_id), ("topic", queue.topic)): offset
        for queue, offset in sorted(offsets.items())
    }
    return dumps_fastjson({"offsetTable": table}, pretty=True)


def _decode(raw: bytes) -> dict[MessageQueue, int]:
    found = {}
    for key, offset in loads_tolerant(raw)["offsetTable"].items():
        queue = dict(key)
        found[MessageQueue(str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"]))] = int(offset)
    return found
