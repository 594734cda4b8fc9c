"""Samples the cluster for the pages: one thread, regardless of the number of viewers.

===================  ========================================================================================
pages are open       brokers, and topics or groups if their pages are open, every ``interval`` seconds, or less often
                     so that sampling takes at most a tenth of a core
no page is open      rates of brokers and lag of groups every ``IDLE_INTERVAL_S`` seconds, for the charts; no topics
the page of a topic  shows the cached sample, then requests that topic itself on separate connections
the rates of topics  from these samples: the ends of queues and the offsets of groups
===================  ========================================================================================

Pages read the cached samples without waiting; unknown values are None. If a broker does not respond, its error is
recorded, its last sample is retained, and the other brokers are sampled.

Thread-safety: all methods. Corresponds to the collectors of RocketMQ's dashboard and exporter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from spark_rocket.client.admin import Admin, TopicInfo, TopicKind
from spark_rocket.common.attributes import pick
from spark_rocket.console.links import REQUEST_SECONDS, Links
from spark_rocket.console.responses import RequestProblem, describe, failures_json
from spark_rocket.console.series import Series
from spark_rocket.console.state import GONE, BrokerRecord, GroupRecord, TopicRecord
from spark_rocket.errors import RocketError
from spark_rocket.model import MessageQueue
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand

_log = logging.getLogger(__name__)

T = TypeVar("T")

IDLE_INTERVAL_S = 30.0
DUTY, IDLE_DUTY = 10.0, 50.0
MAX_INTERVAL_S = 15.0
VIEWED_S = 12.0
"""A page counts as open for this time after its last request."""
FRESH_S = 1.0
LIST_INTERVALS = 5
"""The lists of topics and groups are requested once per this many intervals."""
REQUESTS_PER_PIECE = 100
MEASURE_INTERVAL_S = 600.0
MEASURED_MESSAGES = 16
MEASURED_TOPICS_PER_PASS = 50

OVERVIEW, TOPICS, TOPIC, GROUPS = "overview", "topics", "topic", "groups"


@dataclass(slots=True)
class NameServerRecord:
    address: str
    millis: float | None = None
    trouble: RequestProblem | None = None

    def to_json(self) -> dict[str, object]:
        return pick(self, "address millis") | {"trouble": self.trouble and self.trouble.to_json()}


class Sampler:
    """Samples the cluster. Hold ``lock`` to read ``brokers``, ``topics`` and ``groups``."""

    def __init__(self, links: Links, *, fast: float) -> None:
        self.lock = threading.Lock()
        self.name_servers: dict[str, NameServerRecord] = {}
        self.brokers: dict[str, BrokerRecord] = {}
        self.topics: dict[str, TopicRecord] = {}
        self.groups: dict[str, GroupRecord] = {}
        self.rates = Series()
        self.trouble: RequestProblem | None = None
        """The error of the last sample, if the whole cluster is unavailable."""
        self.failed: dict[str, RequestProblem] = {}
        """Errors by broker name: topics and groups of these brokers are not current."""
        self.passes = 0
        self.last_seconds = 0.0
        self.cost = 0.0
        """CPU seconds that this process used during the last pass."""
        self.interval = fast
        self.sampled: dict[str, float] = {}
        self._links = links
        self.fast = fast
        self._viewed_at: dict[str, float] = {}
        self._listed = 0.0
        self._listing = threading.Lock()
        self._unlisted: dict[str, RocketError] = {}  # brokers without current lists
        self._is_due = False
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="console-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        self._thread.join(REQUEST_SECONDS * 2)

    def note_view(self, what: str) -> None:
        """Record that a page of this kind is open. If its sample is too old, the next pass starts at once."""
        now = time.monotonic()
        first = now - self._viewed_at.get(what, -VIEWED_S) >= VIEWED_S
        self._viewed_at[what] = now
        if first:
            self._is_due = now - self.sampled.get(what, -MAX_INTERVAL_S) > self.pace
            self._wake.set()  # it may be waiting for the slow interval

    @property
    def pace(self) -> float:
        """Seconds between passes while pages are open."""
        return max(self.fast, min(self.cost * DUTY, MAX_INTERVAL_S))

    def problems(self) -> dict[str, Any]:
        """Return the errors that every page shows: of the cluster and of single brokers."""
        return {
            "trouble": self.trouble.to_json() if self.trouble else None,
            "failed": failures_json(self.failed),
        }

    def is_known(self, what: str) -> bool:
        return what in self.sampled

    def ask_lists_again(self) -> None:
        """Refresh the lists after something was created or deleted; the next pass starts at once."""
        with suppress(RocketError):  # the change itself succeeded
            self._ask_lists(self._links.admin, {})
        self._listed = 0.0
        self._is_due = True
        self._wake.set()

    @property
    def looking(self) -> frozenset[str]:
        oldest = time.monotonic() - VIEWED_S
        return frozenset(what for what, moment in list(self._viewed_at.items()) if moment > oldest)

    # --- one topic, one group ---------------------------------------------------------------------------------

    def fresh_topic(self, topic: str) -> TopicRecord | None:
        """Sample a topic now; None if no broker has it."""
        admin = self._links.admin
        record = self.topics.get(topic)
        if record is None:
            self._ask_lists(admin, {})
            record = self.topics.get(topic)
        if record is not None and not _is_within(FRESH_S, record.sampled):
            self._ask_topics(admin, [record.info], {})
            self._measure(admin, [record])
        return record

    def fresh_group(self, group: str) -> GroupRecord | None:
        admin = self._links.admin
        record = self.groups.get(group)
        if record is None:
            self._ask_lists(admin, {})
            record = self.groups.get(group)
        if record is not None and not _is_within(FRESH_S, record.detailed):
            self._ask_groups(admin, [group], {}, delays=True)
        return record

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            looking = self.looking if self.passes else frozenset((OVERVIEW, TOPICS, GROUPS))
            began, used = time.monotonic(), time.process_time()
            try:
                self.sample(looking)
            except Exception as error:  # the thread must continue; the pages show the error
                self.trouble = describe(error)
            self.last_seconds = time.monotonic() - began
            self.cost = time.process_time() - used
            self.passes += 1
            self._pause(time.monotonic())

    def _pause(self, ended: float) -> None:
        """Wait for the next pass. A page that is opened meanwhile shortens the wait."""
        self._is_due = False
        while True:
            self._wake.clear()  # before checking the conditions that set it
            self.interval = self.pace if self.looking else max(IDLE_INTERVAL_S, self.cost * IDLE_DUTY)
            left = ended + self.interval - time.monotonic()
            if self._closed or self._is_due or left <= 0:
                return
            self._wake.wait(left)

    def sample(self, looking: frozenset[str]) -> None:
        failed: dict[str, RocketError] = {}
        began = time.time()
        self._ask_name_servers()
        self._ask_brokers()
        if self.trouble is not None:
            return
        self.sampled[OVERVIEW] = time.monotonic()
        admin = self._links.sampling
        if time.monotonic() - self._listed >= LIST_INTERVALS * self.fast:
            self._ask_lists(admin, failed)
        if TOPICS in looking:
            for infos in _pieces([record.info for record in self.topics.values()]):
                self._ask_topics(admin, infos, failed)
            self._measure(admin, list(self.topics.values()))
            self.sampled[TOPICS] = time.monotonic()
        elif OVERVIEW in looking:  # the overview counts dead letters
            dead = (record.info for record in self.topics.values() if record.info.kind is TopicKind.DLQ)
            for infos in _pieces(list(dead)):
                self._ask_topics(admin, infos, failed)
        for piece in _pieces([name for name, record in self.groups.items() if not record.is_own]):
            self._ask_groups(admin, piece, failed)
        self.sampled[GROUPS] = time.monotonic()
        self._count(began)
        self.failed = {name: describe(error) for name, error in (self._unlisted | failed).items()} | self.gone_masters()

    def gone_masters(self) -> dict[str, RequestProblem]:
        """Return the masters that are no longer registered: their data is missing on the pages."""
        with self.lock:
            gone = [r for r in self.brokers.values() if r.trouble is GONE and r.status.is_master]
        return {record.status.name: GONE for record in gone}

    def _ask_name_servers(self) -> None:
        addresses = self._links.name_servers
        records = {}
        for address in addresses:
            record = records[address] = NameServerRecord(address)
            began = time.monotonic()
            try:
                request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
                self._links.reader.remoting.invoke(address, request, REQUEST_SECONDS / 2)
                record.millis = round((time.monotonic() - began) * 1000, 1)
            except RocketError as error:
                record.trouble = describe(error)
        with self.lock:
            self.name_servers = records

    def _ask_brokers(self) -> None:
        try:
            found = self._links.sampling.brokers()
        except RocketError as error:
            self.trouble = describe(error)
            return
        self.trouble = None
        now = time.time()
        with self.lock:
            known, self.brokers = self.brokers, {}
            for status in found:
                key = f"{status.name}/{status.broker_id}"
                record = self.brokers[key] = known.get(key) or BrokerRecord(status)
                record.update(now, status)
            for key, record in known.items():
                if key not in self.brokers and not record.gone(now):
                    self.brokers[key] = record
            self.brokers = dict(sorted(self.brokers.items()))
            rates = [record.rates() for record in self.brokers.values()]
            self.rates.add(now, {"in": sum(r[0] for r in rates), "out": sum(r[1] for r in rates)})

    def _ask_lists(self, admin: Admin, failed: dict[str, RocketError]) -> None:
        """Request the lists of topics and groups. Entries of brokers that do not respond are retained."""
        with self._listing:  # the later request must win
            self._take_lists(admin, failed)

    def _take_lists(self, admin: Admin, failed: dict[str, RocketError]) -> None:
        lost: dict[str, RocketError] = {}
        topics = {info.name: info for info in admin.topic_list(failed=lost)}
        groups = {info.name: info for info in admin.groups(failed=lost)}
        failed.update(lost)
        with self.lock:
            _take_list(self.topics, topics, lost.keys(), TopicRecord)
            _take_list(self.groups, groups, lost.keys(), GroupRecord)
        self._unlisted, self._listed = lost, time.monotonic()

    def _ask_topics(self, admin: Admin, infos: list[TopicInfo], failed: dict[str, RocketError]) -> None:
        found = admin.topic_states(infos, failed=failed)
        now = time.time()
        with self.lock:
            for name, state in found.items():
                if (record := self.topics.get(name)) is not None:
                    record.update(now, state, failed.keys())

    def _ask_groups(
        self, admin: Admin, names: list[str], failed: dict[str, RocketError], *, delays: bool = False
    ) -> None:
        found = admin.group_states(names, delays=delays, failed=failed)
        now = time.time()
        with self.lock:
            for name, state in found.items():
                record = self.groups.get(name)
                if record is not None:
                    record.update(now, state, self.topics, delays=delays)

    def _count(self, began: float) -> None:
        """Add to the history of topics what this pass has sampled, without further requests."""
        now = time.time()
        ends: dict[str, dict[MessageQueue, int]] = {}
        with self.lock:
            for group in self.groups.values():
                if group.state is None or group.sampled < began:
                    continue
                for progress in group.state.queues:
                    queue = progress.queue
                    table = ends.setdefault(queue.topic, {})
                    table[queue] = max(progress.broker_offset, table.get(queue, 0))
                for topic, advance in group.consumed.items():
                    if topic in self.topics:
                        self.topics[topic].consumed += advance
                group.consumed.clear()
            for name, record in self.topics.items():
                record.count(now, ends.get(name))

    def _measure(self, admin: Admin, records: Iterable[TopicRecord]) -> None:
        """Estimate the message size of topics without an estimate or with an old one."""
        with_messages = (record for record in records if record.state and record.state.messages)
        due = (record for record in with_messages if not _is_within(MEASURE_INTERVAL_S, record.measured))
        for record in islice(due, MEASURED_TOPICS_PER_PASS):
            newest = record.state.newest if record.state is not None else None
            assert newest is not None
            record.measured = time.time()
            first = max(newest.min_offset, newest.max_offset - MEASURED_MESSAGES)
            try:
                page = admin.consume_queue(newest.queue, first, newest.max_offset - first)
            except RocketError as error:
                _log.info("unknown message size of topic %s: %s", record.info.name, error)
                continue
            sizes = [entry.size for entry in page.entries]
            if sizes:
                record.message_bytes = sum(sizes) / len(sizes)


def _is_within(seconds: float, moment: float) -> bool:
    """Whether a moment is not longer ago; a later one is not: the clock was set back since then."""
    return 0 <= time.time() - moment < seconds


def _take_list(records: dict[str, Any], found: Mapping[str, Any], lost: Set[str], make: Callable[[Any], Any]) -> None:
    """Update records from a list. ``lost``: brokers that did not respond; their entries are retained."""
    for name, record in list(records.items()):
        if name not in found and not (lost & record.info.configs.keys()):
            del records[name]
    for name, info in found.items():
        if name in records:
            records[name].info = info
        else:
            records[name] = make(info)


def _pieces(every: list[T]) -> Iterator[list[T]]:
    for first in range(0, len(every), REQUESTS_PER_PIECE):
        yield every[first : first + REQUESTS_PER_PIECE]
