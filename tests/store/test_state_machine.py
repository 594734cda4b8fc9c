"""Puts, flushes, restarts, kills, losses, deletions, retention and queries in any order, against a dictionary."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.record import decode_record
from spark_rocket.store import MessageStore, StoreConfig
from spark_rocket.store.tools.check import check_store
from tests.kit.clock import Clock
from tests.store.helpers import bodies, flush_log, opened, put, put_batch, small

topics = st.sampled_from(["A", "B", "%RETRY%g"])
queue_ids = st.integers(0, 2)
small_bodies = st.binary(max_size=300)
any_bodies = small_bodies | st.integers(3000, 9000).map(lambda size: b"b" * size)
tags = st.sampled_from([b"", b"red", b"blue"])


class Stored(NamedTuple):
    """A message of the model."""

    body: bytes
    tag: bytes
    time: int
    physical_offset: int


@dataclass(frozen=True)
class Disk:
    """A nearly empty disk, independent of the machine's."""

    total: int = 100
    used: int = 1
    free: int = 99


class StoreMachine(RuleBasedStateMachine):
    """The model: every message of each queue, and the first ones that are deleted."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.config = small(
            self.directory / "store0", mapped_file_size_commit_log=16 << 10, file_reserved_size=30 << 10
        )
        self.clock = Clock()
        self.store = self._open(self.config)
        self.model: dict[tuple[str, int], list[Stored]] = {}
        self.keys: dict[int, int] = {}
        self.images = 0
        self.number = 0

    def _open(self, config: StoreConfig) -> MessageStore:
        return opened(config, self.clock, disk_usage=lambda path: Disk())

    def _first(self, key: tuple[str, int]) -> int:
        """The number of deleted messages of a queue."""
        begin = self.store.min_physical_offset
        return sum(message.physical_offset < begin for message in self.model[key])

    def _properties(self, tag: bytes) -> bytes:
        self.number += 1
        return b"KEYS\x01k%d" % self.number + (b"\x02TAGS\x01" + tag if tag else b"")

    @rule(topic=topics, queue_id=queue_ids, body=any_bodies, tag=tags, pause=st.sampled_from([0, 1, 5000]))
    def put(self, topic: str, queue_id: int, body: bytes, tag: bytes, pause: int) -> None:
        self.clock.now += pause
        result = put(self.store, topic, queue_id, body, self._properties(tag))
        messages = self.model.setdefault((topic, queue_id), [])
        assert result.queue_offset == len(messages)
        messages.append(Stored(body, tag, self.clock.now, result.physical_offset))
        self.keys[self.number] = result.physical_offset

    @rule(topic=topics, queue_id=queue_ids, batch=st.lists(st.tuples(small_bodies, tags), min_size=1, max_size=25))
    def put_batch(self, topic: str, queue_id: int, batch: list[tuple[bytes, bytes]]) -> None:
        encoded = [(0, body, self._properties(tag)) for body, tag in batch]
        result = put_batch(self.store, topic, queue_id, encoded, batch_properties=b"CLUSTER\x01C")
        messages = self.model.setdefault((topic, queue_id), [])
        assert result.queue_offset == len(messages)
        for index, (body, tag) in enumerate(batch):
            messages.append(Stored(body, tag, self.clock.now, result.physical_offsets[index]))
            self.keys[self.number - len(batch) + 1 + index] = result.physical_offsets[index]

    @rule(topic=topics)
    def roll(self, topic: str) -> None:
        """A message that fills most of a file."""
        self.put(topic, 0, b"r" * 15_000, b"", 1)

    @rule(thorough=st.booleans())
    def flush(self, thorough: bool) -> None:
        if thorough:
            self.store.flush()
        else:
            flush_log(self.store)
        assert self.store.flushed_where == self.store.max_physical_offset

    @rule()
    def restart(self) -> None:
        self.store.close()
        assert check_store(self.config.store_path, self.config) == []
        self.store = self._open(self.config)
        assert self.store.recovery is not None
        assert self.store.recovery.clean

    @rule(lost=st.sampled_from(["consumequeue", "index", "checkpoint", "lock"]), abort=st.booleans())
    def lose(self, lost: str, abort: bool) -> None:
        """Derived files are rebuilt; a queue without messages continues at its end of the last stop."""
        self.store.close()
        path = self.config.store_path / lost
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if abort:
            (self.config.store_path / "abort").touch()
        self.store = self._open(self.config)

    @rule()
    def expire(self) -> None:
        """The first files of the log are deleted, with the entries that point to them."""
        self.store.flush()
        self.store.retention.run(self.clock.now)
        while self.store.retention.trim_queues():
            pass
        self.store.retention.remover.finish()
        reserved = self.config.file_reserved_size + self.config.mapped_file_size_commit_log
        assert self.store.max_physical_offset - self.store.min_physical_offset <= reserved + (16 << 10)

    @rule()
    def kill(self) -> None:
        """A killed process leaves all bytes that it wrote: a copy of the files."""
        self.images += 1
        image = replace(self.config, store_path_root_dir=self.directory / f"store{self.images}")
        try:
            shutil.copytree(self.config.store_path, image.store_path)
        except shutil.Error as error:  # a deleted topic's files go in the background
            if not all("consumequeue.deleted-" in str(failed) for failed in error.args[0]):
                raise
        self.store.close()
        shutil.rmtree(self.config.store_path)
        self.config = image
        self.store = self._open(image)
        assert self.store.recovery is not None
        assert not self.store.recovery.clean

    @rule(topic=topics)
    def delete(self, topic: str) -> None:
        self.store.delete_topic(topic)
        self.model = {key: value for key, value in self.model.items() if key[0] != topic}

    @rule(data=st.data())
    def query_by_key(self, data: st.DataObject) -> None:
        if self.number:
            key = data.draw(st.integers(1, self.number))
            is_gone = self.keys[key] < self.store.min_physical_offset
            found = [
                decode_record(record).body
                for topic in ("A", "B", "%RETRY%g")
                for record in self.store.query_message(topic, f"k{key}", 10, 0, 1 << 62).records
            ]
            assert len(found) == (0 if is_gone else 1)
            assert (self.store.look_message_by_offset(self.keys[key]) is None) == is_gone

    @rule(data=st.data(), wanted=st.sets(tags, min_size=1))
    def read_by_tag(self, data: st.DataObject, wanted: set[bytes]) -> None:
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model)))
            codes = frozenset(java_hash(tag.decode()) for tag in wanted)
            offset, found = data.draw(st.integers(self._first(key), len(self.model[key]))), []
            must = [message.body for message in self.model[key][offset:] if message.tag in wanted]
            while offset < len(self.model[key]):
                result = self.store.get_message(*key, offset, data.draw(st.integers(1, 70)), 1 << 16, codes)
                records, at = result.records, 0
                for _ in range(result.count):
                    message = decode_record(records, at)
                    found.append(message.body)
                    at += message.store_size
                assert at == len(records)
                offset = result.next_begin_offset
            assert found == must

    @rule(data=st.data(), shift=st.integers(-1, 1))
    def find_by_time(self, data: st.DataObject, shift: int) -> None:
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model)))
            times = [message.time for message in self.model[key]]
            wanted, first = data.draw(st.sampled_from(times)) + shift, self._first(key)
            lower = sum(time < wanted for time in times)
            assert self.store.get_offset_by_time(*key, wanted) == max(lower, first)

    @invariant()
    def everything_is_there(self) -> None:
        if hasattr(self, "store"):
            for key, messages in self.model.items():
                first = self._first(key)
                assert self.store.get_max_offset(*key) == len(messages)
                assert self.store.get_min_offset(*key) == first
                assert bodies(self.store, *key) == [message.body for message in messages[first:]]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            assert check_store(self.config.store_path, self.config) == []
            shutil.rmtree(self.directory)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
