"""A model of the exactly-once sink: random histories of its real code in a cluster in memory (``sink_cluster.py``).

In a history brokers stop, return and join, name servers stop and lose their entries, drivers are killed and suspended
at any request and lose any response, several run on one checkpoint, checkpoints are new, and a writeId is used again
for other topics and other rows. Registers are lost, rewound and those of earlier versions, and the ledger's records
expire. At all times, a row is visible at most once, and an epoch's rows are those
of one attempt. At the end everything runs again, and each query and write is repeated. Then each epoch that was
reported as complete has all its rows once, and a write has them or an error that names the cause.

Hypothesis shortens a history that fails. ``SINK_HISTORIES`` and ``SINK_SEED`` set the number and the seed.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from spark_rocket.datasource.exactly_once.driver import check_topics
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.records import PREPARED
from spark_rocket.datasource.exactly_once.registers import fingerprint_of, former_group
from spark_rocket.model import MessageQueue
from tests.datasource.sink_cluster import (
    LEDGER,
    STAGING,
    TARGETS,
    Driver,
    Node,
    World,
    patched,
    sink_options,
    slots_of,
    write_rows,
)

HISTORIES = int(os.environ.get("SINK_HISTORIES", 100))
SEED = int(os.environ.get("SINK_SEED", 1))
_ROWS, _BATCHES, _DRIVERS = 3, 2, 3
GROUP = "ROCKET_SINK_LEDGER"

TOPICS = st.sampled_from(TARGETS)
NUMBERS = st.integers(0, 2)
STEPS = st.integers(1, 40)
WRITES = st.tuples(st.just("write"), TOPICS, st.integers(2, 3))
EVENTS = st.one_of(
    st.tuples(st.just("stream"), TOPICS),
    st.tuples(st.sampled_from(["restart", "again"]), NUMBERS),
    st.tuples(st.just("step"), NUMBERS, STEPS),
    st.tuples(st.just("lose"), NUMBERS, STEPS),
    st.tuples(st.just("crash"), NUMBERS),
    st.tuples(st.just("finish"), NUMBERS),
    st.tuples(st.just("kill"), NUMBERS),
    st.tuples(st.sampled_from(["stop", "start"]), st.sampled_from("ab")),
    st.tuples(st.just("join"), st.just("b")),
    st.tuples(st.sampled_from(["wipe", "cut", "repair"]), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.sampled_from([1, 5, 60])),
    st.tuples(st.just("age"), NUMBERS),
    st.tuples(st.just("forget"), st.sampled_from([(0,), (1,), (0, 1)])),
    st.tuples(st.just("rewind"), NUMBERS),
    st.just(("expire",)),
)


@dataclass
class Query:
    """A checkpoint."""

    name: str
    topic: str
    committed: int = 0


@dataclass
class Write:
    """A batch write: ``rows`` rows to a topic, under the only writeId."""

    topic: str
    rows: int
    is_done: bool = False


@dataclass
class History:
    """What happened."""

    world: World = field(default_factory=World)
    drivers: list[Driver] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    attempts: count[int] = field(default_factory=count)
    loses_entries: bool = False
    snapshots: list[dict[tuple[str, MessageQueue], int]] = field(default_factory=list)
    expired: dict[str, int] = field(default_factory=dict)
    """The last batch of each query that was decided before the ledger's records expired."""

    # --- events -----------------------------------------------------------------------------------------------

    def apply(self, kind: str, *more: object) -> None:
        event = getattr(self, f"on_{kind}")
        event(*more)
        self.check_visible()

    def on_stream(self, topic: str) -> None:
        query = Query(f"query{len(self.queries)}", topic)
        self.queries.append(query)
        self.begin(partial(self.run_query, query))

    def on_restart(self, number: int) -> None:
        if self.queries:
            self.begin(partial(self.run_query, self.queries[number % len(self.queries)]))

    def on_again(self, number: int) -> None:
        if self.queries:
            self.on_restart(number)
            self.drivers[-1].run()

    def on_write(self, topic: str, rows: int) -> None:
        write = Write(topic, rows)
        self.writes.append(write)
        self.begin(partial(self.run_write, write))

    def on_step(self, number: int, steps: int) -> None:
        for driver in self.chosen(number):
            for _ in range(steps):
                driver.step()

    def on_lose(self, number: int, steps: int) -> None:
        self.on_step(number, steps)
        for driver in self.chosen(number):
            driver.step(loses=True)

    def on_crash(self, number: int) -> None:
        """The epoch is complete, and Spark did not record it."""
        for driver in self.chosen(number):
            driver.run("checkpoint")
            driver.kill()

    def on_finish(self, number: int) -> None:
        for driver in self.chosen(number):
            driver.run()

    def on_kill(self, number: int) -> None:
        for driver in self.chosen(number):
            driver.kill()

    def on_stop(self, broker: str) -> None:
        if broker in self.world.nodes:
            node = self.world.nodes[broker]
            node.is_up = False
            node.is_up = self.is_undetectable()

    def on_start(self, broker: str) -> None:
        if broker in self.world.nodes:
            self.world.nodes[broker].is_up = True

    def on_join(self, broker: str) -> None:
        if broker not in self.world.nodes:
            self.world.nodes[broker] = Node(topics=dict.fromkeys(TARGETS, 1))
            if self.is_undetectable():
                del self.world.nodes[broker]

    def on_wipe(self, number: int) -> None:
        server = list(self.world.servers.values())[number]
        entries, server.entries = server.entries, {}
        self.loses_entries |= bool(entries)
        if self.is_undetectable():
            server.entries = entries

    def on_cut(self, number: int) -> None:
        list(self.world.servers.values())[number].is_up = False

    def on_repair(self, number: int) -> None:
        list(self.world.servers.values())[number].is_up = True

    def on_wait(self, seconds: int) -> None:
        self.world.now += seconds

    # --- registers --------------------------------------------------------------------------------------------

    def on_age(self, number: int) -> None:
        """The query was run by an earlier version until now."""
        if not self.queries:
            return
        self.kill_all()
        name, offsets = self.queries[number % len(self.queries)].name, self.world.offsets
        for position, batch, value in self.registers(name):
            queue = MessageQueue(LEDGER, batch.broker_name, 0)
            offsets[former_group(LEDGER, name), queue] = offsets.pop((GROUP, position), 0)
            offsets[former_group(LEDGER, name), replace(queue, queue_id=1)] = value & (1 << 40) - 1
            del offsets[GROUP, batch]

    def on_forget(self, kinds: tuple[int, ...]) -> None:
        """The broker loses positions (0), batches (1) or both."""
        lost = [place for place in self.world.offsets if place[0] == GROUP and place[1].queue_id % 2 in kinds]
        self.replace_offsets({place: value for place, value in self.world.offsets.items() if place not in lost})

    def on_rewind(self, number: int) -> None:
        """The broker returns with offsets that it saved earlier."""
        self.snapshots.append(dict(self.world.offsets))
        self.replace_offsets(self.snapshots[number % len(self.snapshots)])

    def replace_offsets(self, offsets: dict[tuple[str, MessageQueue], int]) -> None:
        """Replace them, unless it is undetectable: what a query remembers and its expired record are both lost."""
        before = dict(self.world.offsets)
        self.world.offsets.clear()
        self.world.offsets.update(offsets)
        if any(self.remembered(name) < batch for name, batch in self.expired.items()):
            self.world.offsets.clear()
            self.world.offsets.update(before)

    def on_expire(self) -> None:
        """All drivers are down until the records have expired. Batch writes remember nothing."""
        decided = self.decided()
        if self.writes or any(self.remembered(name) < batch for name, batch in decided.items()):
            return
        self.kill_all()
        decided = self.decided()
        if all(self.remembered(name) >= batch for name, batch in decided.items()):
            self.world.first |= {queue: len(log) for queue, log in self.world.log.items() if queue.topic == LEDGER}
            self.expired |= decided

    def kill_all(self) -> None:
        for driver in self.drivers:
            driver.kill()

    def decided(self) -> dict[str, int]:
        """The last decided batch of each query."""
        decided: dict[str, int] = {}
        for queue, log in self.world.log.items():
            for record in (json.loads(stored.body) for stored in log if queue.topic == LEDGER):
                if record["kind"] == PREPARED and record["query"] != "nightly":
                    decided[record["query"]] = max(record["batch"], decided.get(record["query"], 0))
        return decided

    def registers(self, name: str) -> list[tuple[MessageQueue, MessageQueue, int]]:
        """The first slot of a query: its two queues, and the batch's value."""
        for slot in slots_of(name):
            for (group, queue), value in self.world.offsets.items():
                if (group, queue.queue_id, value >> 41) == (GROUP, 2 * slot + 1, fingerprint_of(name)):
                    return [(replace(queue, queue_id=2 * slot), queue, value)]
        return []

    def remembered(self, name: str) -> int:
        former = former_group(LEDGER, name)
        batches = [value & (1 << 40) - 1 for _, _, value in self.registers(name)]
        batches += [
            value for (group, queue), value in self.world.offsets.items() if (group, queue.queue_id) == (former, 1)
        ]
        return max(batches, default=0) - 1

    def is_undetectable(self) -> bool:
        """The documented limit: no entry is left, and all brokers that have the sink's topics are stopped."""
        own = [node for node in self.world.nodes.values() if LEDGER in node.topics or STAGING in node.topics]
        entries = any(server.entries for server in self.world.servers.values())
        others = any(node.is_up for node in self.world.nodes.values())
        return self.loses_entries and bool(own) and others and not entries and not any(node.is_up for node in own)

    # --- drivers ----------------------------------------------------------------------------------------------

    def begin(self, work: partial[None]) -> None:
        if len(self.drivers) == _DRIVERS:
            self.drivers.pop(0).kill()
        self.drivers.append(Driver(self.world, work))

    def chosen(self, number: int) -> list[Driver]:
        return [self.drivers[number % len(self.drivers)]] if self.drivers else []

    def run_query(self, query: Query, driver: Driver) -> None:
        options = sink_options(query.topic)
        check_topics(options)
        for _ in range(_BATCHES):
            batch, attempt = query.committed, next(self.attempts)
            bodies = [f"{query.name}/{batch} {query.topic} {attempt} {row}" for row in range(_ROWS)]
            write_rows(driver, options, Epoch(query.name, batch, f"run{attempt}"), bodies)
            driver.pause("checkpoint")
            query.committed = max(query.committed, batch + 1)

    def run_write(self, write: Write, driver: Driver) -> None:
        options = sink_options(write.topic, "nightly")
        check_topics(options)
        attempt = next(self.attempts)
        bodies = [f"nightly {write.topic} {attempt} {row}" for row in range(write.rows)]
        write_rows(driver, options, Epoch("nightly", 0), bodies)
        write.is_done = True

    # --- invariants -------------------------------------------------------------------------------------------

    def check_visible(self) -> None:
        rows = self.world.visible()
        twice = [row for row, times in Counter(rows).items() if times > 1]
        assert not twice, f"stored twice: {twice}"
        attempts: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            epoch, _, attempt, _ = row.split()
            attempts[epoch].add(attempt)
        several = [epoch for epoch, of in attempts.items() if len(of) > 1]
        assert not several, f"rows of several attempts: {several}"

    def check_complete(self) -> None:
        stored: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self.world.visible():
            epoch, topic, _, _ = row.split()
            stored[epoch][topic] += 1
        for query in self.queries:
            for batch in range(query.committed):
                found = stored[f"{query.name}/{batch}"]
                assert found == {query.topic: _ROWS}, f"batch {batch} of {query.name} is complete, and has {found}"
        for write in self.writes:
            if write.is_done:
                assert stored["nightly"] == {write.topic: write.rows}, f"{write} is complete: {stored['nightly']}"

    def end(self) -> None:
        """Everything runs again; each query and write is repeated."""
        for driver in self.drivers:
            kill_with_error(driver)
        self.check_complete()
        for node in self.world.nodes.values():
            node.is_up = True
        for server in self.world.servers.values():
            server.is_up = True
        for query in self.queries:
            driver = Driver(self.world, partial(self.run_query, query))
            driver.run()
            if query.name in self.expired and driver.error and driver.error.code == "EXACTLY_ONCE.LEDGER_EXPIRED":
                assert query.committed == self.expired[query.name], "its last decided batch was complete"
                continue
            assert driver.error is None, driver.error
            former = former_group(LEDGER, query.name)
            assert former not in {group for group, _ in self.world.offsets}, "the former group was not removed"
        for write in self.writes:
            driver = Driver(self.world, partial(self.run_write, write))
            driver.run()
            assert driver.error is None or driver.error.code == "EXACTLY_ONCE.WRITE_ID", driver.error
        self.check_visible()
        self.check_complete()


def kill_with_error(driver: Driver) -> None:
    driver.kill()
    assert driver.failure is None, driver.failure


def run(histories: int, number: int, events: st.SearchStrategy[Any]) -> int:
    """Run random histories; return their number."""
    done, failed = 0, 0

    @seed(number)
    @settings(
        max_examples=histories, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(events, min_size=8, max_size=24))
    def one(events: list[tuple[object, ...]]) -> None:
        nonlocal done, failed
        done += 1
        history = History()
        try:
            for kind, *more in events:
                history.apply(str(kind), *more)
            history.end()
        except AssertionError as error:
            failed = failed or done
            error.add_note(f"history {failed} of seed {number}, before it was shortened")
            raise
        finally:
            for driver in history.drivers:
                driver.kill()

    one()
    return done


@pytest.mark.parametrize("events", [EVENTS, st.one_of(EVENTS, WRITES)], ids=["streams", "streams and writes"])
def test_random_histories(
    events: st.SearchStrategy[Any], monkeypatch: pytest.MonkeyPatch, figure: Callable[[str], None]
) -> None:
    patched(monkeypatch)
    done = run(HISTORIES, SEED, events)
    figure(f"{done} histories of seed {SEED}")
    assert done >= HISTORIES
