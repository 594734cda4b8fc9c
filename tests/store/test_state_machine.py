"""Any order of puts, batches, flushes, restarts, kills, deletions and queries, against a dictionary."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_rocket.protocol.record import decode_record
from spark_rocket.protocol.subscription import java_hash
from spark_rocket.store.check import check_store
from tests.store.helpers import Clock, bodies, opened, put, put_batch, small

topics = st.sampled_from(["A", "B", "%RETRY%g"])
queue_ids = st.integers(0, 2)
small_bodies = st.binary(max_size=300)
any_bodies = small_bodies | st.integers(3000, 9000).map(lambda size: b"b" * size)
tags = st.sampled_from([b"", b"red", b"blue"])


class StoreMachine(RuleBasedStateMachine):
    """The model: for each queue the list of (body, tag, store time)."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.config = small(self.directory / "store0", mapped_file_size_commit_log=16 << 10)
        self.clock = Clock()
        self.store = opened(self.config, self.clock)
        self.model: dict[tuple[str, int], list[tuple[bytes, bytes, int]]] = {}
        self.images = 0
        self.number = 0

    def _properties(self, tag: bytes) -> bytes:
        self.number += 1
        return b"KEYS\x01k%d" % self.number + (b"\x02TAGS\x01" + tag if tag else b"")

    @rule(topic=topics, queue_id=queue_ids, body=any_bodies, tag=tags, pause=st.sampled_from([0, 1, 5000]))
    def put(self, topic: str, queue_id: int, body: bytes, tag: bytes, pause: int) -> None:
        self.clock.now += pause
        result = put(self.store, topic, queue_id, body, self._properties(tag))
        messages = self.model.setdefault((topic, queue_id), [])
        assert result.queue_offset == len(messages)
        messages.append((body, tag, self.clock.now))

    @rule(topic=topics, queue_id=queue_ids, batch=st.lists(st.tuples(small_bodies, tags), min_size=1, max_size=25))
    def put_batch(self, topic: str, queue_id: int, batch: list[tuple[bytes, bytes]]) -> None:
        encoded = [(0, body, self._properties(tag)) for body, tag in batch]
        result = put_batch(self.store, topic, queue_id, encoded, batch_properties=b"CLUSTER\x01C")
        messages = self.model.setdefault((topic, queue_id), [])
        assert result.queue_offset == len(messages)
        messages += [(body, tag, self.clock.now) for body, tag in batch]

    @rule(thorough=st.booleans())
    def flush(self, thorough: bool) -> None:
        if thorough:
            self.store.flush()
        else:
            self.store._flush_log.flush()
        assert self.store.flushed_where == self.store.max_physical_offset

    @rule()
    def restart(self) -> None:
        self.store.close()
        assert check_store(self.config.store_path, self.config) == []
        self.store = opened(self.config, self.clock)
        assert self.store.recovery is not None
        assert self.store.recovery.clean

    @rule()
    def kill(self) -> None:
        """What a killed process leaves is all it wrote: a copy of the files as they are."""
        self.images += 1
        image = replace(self.config, store_path=self.directory / f"store{self.images}")
        shutil.copytree(self.config.store_path, image.store_path)
        self.store.close()
        shutil.rmtree(self.config.store_path)
        self.config = image
        self.store = opened(image, self.clock)
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
            found = [
                decode_record(record).body
                for topic in ("A", "B", "%RETRY%g")
                for record in self.store.query_message(topic, f"k{key}", 10, 0, 1 << 62).records
            ]
            assert len(found) == 1

    @rule(data=st.data(), wanted=st.sets(tags, min_size=1))
    def read_by_tag(self, data: st.DataObject, wanted: set[bytes]) -> None:
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model)))
            codes = frozenset(java_hash(tag.decode()) for tag in wanted)
            offset, found = data.draw(st.integers(0, len(self.model[key]) - 1)), []
            must = [body for body, tag, _ in self.model[key][offset:] if tag in wanted]
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
            times = [time for _, _, time in self.model[key]]
            wanted = data.draw(st.sampled_from(times)) + shift
            assert self.store.get_offset_by_time(*key, wanted) == sum(time < wanted for time in times)

    @invariant()
    def everything_is_there(self) -> None:
        if hasattr(self, "store"):
            for key, messages in self.model.items():
                assert bodies(self.store, *key) == [body for body, _, _ in messages]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            assert check_store(self.config.store_path, self.config) == []
            shutil.rmtree(self.directory)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
