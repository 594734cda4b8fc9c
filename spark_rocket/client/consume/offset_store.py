"""Where a consumer keeps how far it is: at the broker for a cluster, in a local file for broadcasting.

The local file is ``~/.rocketmq_offsets/<clientId>/<group>/offsets.json``, as the original's, with the instance's *name*
in place of its client id: a process that is started again must find it. Written beside, brought to disk, renamed; the
one before is ``offsets.json.bak``.

Thread-safety: all methods. After a crash: offsets are up to five seconds old, so messages may be consumed again.
Corresponds to RemoteBrokerOffsetStore and LocalFileOffsetStore.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from spark_rocket.client.consume.listeners import MessageModel
from spark_rocket.client.consume.reader import AWAY, Reader
from spark_rocket.errors import ClientError, RemotingTimeoutError, RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.json import dumps_fastjson, loads_tolerant

logger = logging.getLogger(__name__)

PERSIST_SECONDS = 3.0


class OffsetStore(Protocol):
    """How far a group is."""

    def open(self) -> None:
        """Before anything else. ClientError if what is kept cannot be used."""

    def read(self, queue: MessageQueue) -> int | None:
        """How far the group is; None when there is no offset. Raises what keeps it from finding out."""

    def begin_new(self, queue: MessageQueue) -> int | None:
        """As ``read``, of a queue that came while the consumer was running."""

    def persist(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Keep these, each as far as it can be; what cannot be kept now is logged and comes again."""

    def commit(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, RocketError]:
        """Keep these now. Comes back: what kept some of them from being kept."""


def make_offset_store(reader: Reader, group: str, model: MessageModel, instance_name: str) -> OffsetStore:
    """Where such a group's consumer keeps it."""
    if model is MessageModel.CLUSTERING:
        return RemoteOffsetStore(reader, group)
    return LocalOffsetStore(local_directory() / (instance_name or "DEFAULT"), group)


class RemoteOffsetStore:
    """At each queue's broker, who is told again and again: it may be killed before what it heard is on its disk."""

    def __init__(self, reader: Reader, group: str) -> None:
        self._reader = reader
        self._group = group

    def open(self) -> None:
        """Nothing is kept here."""

    def read(self, queue: MessageQueue) -> int | None:
        return self._reader.committed_offset(self._group, queue)

    def begin_new(self, queue: MessageQueue) -> int | None:
        """0 if there is none and the broker has the queue's first message in memory, as Java's consumers always ask."""
        return self._reader.committed_offset(self._group, queue, or_zero=True)

    def persist(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, error in self.commit(offsets).items():
            offset = offsets[queue]
            logger.warning("the offset %d of %s in %s was not committed: %s", offset, self._group, queue, error)

    def commit(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, RocketError]:
        """All at once, in a few seconds, however many brokers hang."""
        failed: dict[MessageQueue, RocketError] = {}
        deadline = time.monotonic() + PERSIST_SECONDS
        pending: list[tuple[MessageQueue, int, Future[bool]]] = []
        for queue, offset in offsets.items():
            try:
                left = _left(deadline)
                pending.append((queue, offset, self._reader.commit_offset_async(self._group, queue, offset, left)))
            except RocketError as error:
                failed[queue] = error
        for queue, offset, answer in pending:
            try:
                if not answer.result():
                    _left(deadline)
                    self._reader.commit_offset(self._group, queue, offset)
            except RocketError as error:
                failed[queue] = error
        for queue in [queue for queue, error in failed.items() if isinstance(error, AWAY)]:
            # Whoever has the queue next begins there. The master is told when it is back: commits are repeated.
            if time.monotonic() < deadline and self._reader.commit_to_slave(self._group, queue, offsets[queue]):
                del failed[queue]
        return failed


class LocalOffsetStore:
    """In a file of this machine."""

    def __init__(self, directory: Path, group: str) -> None:
        self._path = directory / group / "offsets.json"
        self._lock = threading.Lock()
        self._offsets: dict[MessageQueue, int] | None = None
        self._unusable: list[str] = []

    def open(self) -> None:
        """Read the file. Raises ClientError if there is one and neither it nor the one before can be used."""
        with self._lock:
            self._load()

    def read(self, queue: MessageQueue) -> int | None:
        with self._lock:
            return self._load().get(queue)

    def begin_new(self, queue: MessageQueue) -> int | None:
        return self.read(queue)

    def persist(self, offsets: Mapping[MessageQueue, int]) -> None:
        with self._lock:
            known = self._load()
            if all(known.get(queue) == offset for queue, offset in offsets.items()):
                return
            known.update(offsets)
            try:
                self._write(known)
            except OSError as error:
                logger.warning("%s could not be written: %s", self._path, error)

    def commit(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, RocketError]:
        with self._lock:
            known = self._load()
            known.update(offsets)
            try:
                self._write(known)
            except OSError as error:
                remedy = f"See that {self._path} can be written."
                return {
                    queue: ClientError(f"The offset {offset} of {queue} cannot be kept: {error}.", remedy=remedy)
                    for queue, offset in offsets.items()
                }
            return {}

    def _load(self) -> dict[MessageQueue, int]:
        if self._offsets is None:
            offsets = self._read(self._path)
            if offsets is None:
                offsets = self._read(self._path.with_name("offsets.json.bak"))
            if offsets is None and self._unusable:
                raise ClientError(
                    f"The offsets of a broadcasting group cannot be read: {' '.join(self._unusable)}",
                    remedy="Restore the file, or remove it to have the group begin anew.",
                )
            self._offsets = offsets or {}
        return self._offsets

    def _read(self, path: Path) -> dict[MessageQueue, int] | None:
        try:
            return _decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RocketError) as error:
            self._unusable.append(f"{path}: {error}.")
            logger.warning("%s cannot be used: %s", path, error)
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


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise RemotingTimeoutError("Brokers that do not answer took all of the time.")
    return left


def local_directory() -> Path:
    """``~/.rocketmq_offsets``, or what ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR says."""
    given = os.environ.get("ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR")
    try:
        return Path(given) if given else Path.home() / ".rocketmq_offsets"
    except RuntimeError as error:
        raise ClientError(
            f"There is no home directory to keep broadcasting offsets in: {error}.",
            remedy="Set ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR.",
        ) from None


def _encode(offsets: Mapping[MessageQueue, int]) -> bytes:
    """fastjson's spelling of a map whose keys are objects."""
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
