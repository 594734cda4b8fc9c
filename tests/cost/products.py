"""Products of names: each of many groups with each of many topics, clients and queues, for every code that names two.

A table of groups and a table of topics may have 50 entries each and cost next to nothing; what is kept for each pair
has 2,500. So may the triples with a client or a queue. What is popped becomes visible again, and gets a retry topic for
each pair. After the requests, what reads the state must still be cheap, and an idle server idle.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from pathlib import Path

from spark_rocket.model import RETRY_PREFIX
from spark_rocket.protocol.requests import BROKER_REQUESTS, RequestType
from spark_rocket.protocol.requests.needs import PlainAccess, Resource
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.headers.pull import PullMessageRequestHeader
from tests.cost import values
from tests.cost.generator import Case, default_body, encoded, request_of
from tests.cost.measuring import Run
from tests.cost.servers import Line, Measured
from tests.cost.values import header_fields, wire_name
from tests.kit.waiting import until

NAMES = 50
_FEW_NAMES = 20
"""For codes that leave no state behind."""
_QUEUES_OF_TOPIC = 16
MAX_KEPT_MB = 64.0
MAX_WRITTEN_MB = 64.0
_AT_ONCE = 100
_LONG_MS = 600_000
"""An invisible time longer than the test."""
_SHORT_MS = 1_000
MAX_METRICS_S = 0.1
MAX_METRICS_MB = 32.0
IDLE_S = 10.0
MAX_IDLE_CPU_S = 0.5
MAX_IDLE_WRITTEN_MB = 1.0
_TOPICS = {"topic", "t", "b", "topicName", "originTopic"}
_GROUPS = {"group", "consumerGroup", "c", "groupName", "destGroup", "srcGroup", "producerGroup"}
_CLIENTS = {"clientId", "clientID", "consumerId", "producerId"}
_QUEUES = {"queueId", "e", "queueIdInOffset"}
_COMMITS, _HAS_SUBSCRIPTION = 1, 4  # flags of pulls
_SUCCEED = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.UPDATE_CONSUMER_OFFSET,
)
"""Codes whose pairs must reach the state; others may be refused on the way."""


@dataclass(frozen=True)
class Names:
    """One name of each kind, by number."""

    topic: int
    group: int
    client: int = 0
    queue: int = 0

    def of(self, wire: str) -> str | int | None:
        """The value of a field, by its name on the wire; None if it names nothing."""
        if wire in _TOPICS:
            return f"{values.TOPIC}-{self.topic}"
        if wire in _GROUPS:
            return f"{values.GROUP}-{self.group}"
        if wire in _CLIENTS:
            return f"client-{self.client}"
        return self.queue if wire in _QUEUES else None

    def within(self, value: object) -> object:
        """A body with these names."""
        if isinstance(value, list):
            return [self.within(each) for each in value]
        if not isinstance(value, dict):
            return value
        named = {key: self.of(key) if isinstance(each, str | int) else None for key, each in value.items()}
        return {key: self.within(each) if named[key] is None else named[key] for key, each in value.items()}


def fields_of(row: RequestType) -> set[str]:
    """The names on the wire of the fields of its header and of its body's objects."""
    found = set() if row.header is None else {wire_name(each) for each in header_fields(row.header)}
    rest: list[object] = [json.loads(default_body(row))] if isinstance(row.body, type) else []
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            found |= value.keys()
            rest += value.values()
        elif isinstance(value, list):
            rest += value
    return found


def factors(row: RequestType) -> int:
    """The number of kinds of names that it has: topics, groups, clients, queues."""
    fields = fields_of(row)
    return sum(not kind.isdisjoint(fields) for kind in (_TOPICS, _GROUPS, _CLIENTS, _QUEUES))


def crossed() -> list[RequestType]:
    """The rows that name a topic and a group, or leave state behind and have two kinds of names."""
    both = {Resource.TOPIC, Resource.GROUP}
    return [
        row
        for row in BROKER_REQUESTS.values()
        if both <= {need.resource for need in row.needs} or (row.state and factors(row) > 1)
    ]


def reads() -> list[RequestType]:
    return [row for row in BROKER_REQUESTS.values() if row.plain_access is PlainAccess.ANY_ACCOUNT]


def requests_of(row: RequestType, invisible_ms: int = _LONG_MS, **more: object) -> Iterator[RemotingCommand]:
    """Each group with each topic, and fewer with clients and queues; pops also in order, which has its own state."""
    changes: list[dict[str, object]] = [more]
    if row.header is not None and "order" in {each.name for each in header_fields(row.header)}:
        changes.append({**more, "order": True})
    count = NAMES if row.state else _FEW_NAMES
    pairs = [Names(topic, group, group) for topic, group in product(range(count), repeat=2)]
    if row.state and factors(row) > 2:
        root = _QUEUES_OF_TOPIC if factors(row) == 3 else int(_QUEUES_OF_TOPIC**0.75)
        pairs += [Names(*each) for each in product(*_ranges(row, root))]
    for change, names in product(changes, pairs):
        body = None
        if isinstance(row.body, type):
            body = encoded(names.within(json.loads(default_body(row))))
        changed = dict(change)
        if row.header is PullMessageRequestHeader:
            changed |= {"sys_flag": _COMMITS | _HAS_SUBSCRIPTION}
        if row.header is not None:
            found: dict[str, object] = {each.name: names.of(wire_name(each)) for each in header_fields(row.header)}
            if "born_time" in found:  # an old one is refused
                found["born_time"] = int(time.time() * 1000)
            if "invisible_time" in found:
                found["invisible_time"] = invisible_ms
            changed |= {name: value for name, value in found.items() if value is not None}
        yield request_of(row, changed, body)


def _ranges(row: RequestType, count: int) -> Iterator[range]:
    """The numbers of its topics, groups, clients and queues; one of a kind that it has not."""
    fields = fields_of(row)
    for kind in (_TOPICS, _GROUPS, _CLIENTS, _QUEUES):
        yield range(1 if kind.isdisjoint(fields) else count)


def batched(requests: Iterator[RemotingCommand], size: int) -> Iterator[list[RemotingCommand]]:
    while part := list(islice(requests, size)):
        yield part


def prepare(line: Line) -> None:
    """Create the topics, with a message each, and the groups."""
    create = BROKER_REQUESTS[RequestCode.UPDATE_AND_CREATE_TOPIC]
    group = BROKER_REQUESTS[RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP]
    send = BROKER_REQUESTS[RequestCode.SEND_MESSAGE]
    body = json.loads(default_body(group))
    for number in range(NAMES):
        topic = f"{values.TOPIC}-{number}"
        wanted: dict[str, object] = {"topic": topic, "attributes": None, "topic_filter_type": "SINGLE_TAG"}
        wanted |= {"read_queue_nums": _QUEUES_OF_TOPIC, "write_queue_nums": _QUEUES_OF_TOPIC}
        body["groupName"] = f"{values.GROUP}-{number}"
        for request in (
            request_of(create, wanted),
            request_of(group, body=encoded(body)),
            request_of(send, {"topic": topic, "queue_id": 0}),
        ):
            answer = line.ask(request)
            assert answer is not None
            assert answer.code == 0, answer


@dataclass
class PairsCost:
    """What the pairs of one request code cost: seconds of CPU, MB of memory, MB written into files."""

    name: str
    cpu: float
    kept: float
    written: float

    def too_much(self) -> list[str]:
        bounds = (("keep", self.kept, MAX_KEPT_MB), ("write", self.written, MAX_WRITTEN_MB))
        return [f"{self.name}: pairs {what} {value:.0f} MB" for what, value, most in bounds if value > most]


@dataclass
class Afterwards:
    """What reading the state of all pairs costs, and doing nothing."""

    metrics_cpu: float
    metrics_memory: float
    idle_cpu: float
    idle_written: float
    reads: list[str] = field(default_factory=list)
    """Reads above the bounds of a request."""

    def too_much(self) -> list[str]:
        bounds = (
            ("GET /metrics costs", self.metrics_cpu, MAX_METRICS_S, "s"),
            ("GET /metrics takes", self.metrics_memory, MAX_METRICS_MB, "MB"),
            (f"{IDLE_S:.0f} idle seconds cost", self.idle_cpu, MAX_IDLE_CPU_S, "s"),
            (f"{IDLE_S:.0f} idle seconds write", self.idle_written, MAX_IDLE_WRITTEN_MB, "MB"),
        )
        found = [f"after all pairs, {what} {value:.2f} {unit}" for what, value, most, unit in bounds if value > most]
        return found + [f"after all pairs, {each}" for each in self.reads]


def pairs_of(server: Measured, line: Line, row: RequestType) -> PairsCost:
    began, before, written = server.settle(), server.memory(), written_mb(server, line)
    codes: Counter[int] = Counter()
    for part in batched(requests_of(row), _AT_ONCE):
        for request in part:
            line.send(request)
        line.pass_through()
        codes.update(answer.code for answer in line.answers.values())
        line.answers.clear()
    if row.code in _SUCCEED:
        assert codes[0] > NAMES * NAMES // 2, f"{row.name}: responses by code {codes}"
    cpu = server.settle(0.3) - began
    return PairsCost(f"{row.name} ({row.code})", cpu, server.memory() - before, written_mb(server, line) - written)


def visible_again(server: Measured, line: Line, topics_file: Path) -> PairsCost:
    """What it costs when the messages that each group has popped from each topic are visible again."""
    row, send = BROKER_REQUESTS[RequestCode.POP_MESSAGE], BROKER_REQUESTS[RequestCode.SEND_MESSAGE]
    for number in range(NAMES):
        line.ask(request_of(send, {"topic": f"{values.TOPIC}-{number}", "queue_id": 0}))
    began, before, written = server.settle(), server.memory(), written_mb(server, line)
    for part in batched(islice(requests_of(row, _SHORT_MS, max_msg_nums=1), NAMES * NAMES), _AT_ONCE):
        for request in part:
            line.send(request)
        line.pass_through()
        line.answers.clear()

    def saved() -> int:
        with suppress(FileNotFoundError):  # it is being replaced
            return topics_file.read_text().count(f'"topicName":"{RETRY_PREFIX}')
        return 0

    until(lambda: saved() >= NAMES * NAMES, "the retry topics in the file")
    cpu = server.settle(0.3) - began
    return PairsCost("visible again after a pop", cpu, server.memory() - before, written_mb(server, line) - written)


def afterwards(server: Measured, line: Line, metrics_url: str) -> Afterwards:
    run, wrong = Run(server, line), []
    for row in reads():
        case = Case(row.code, "plausible", partial(request_of, row))
        wrong += [f"{row.name} {each}" for each in run.cases(row.name, [case]).too_much]
    metrics = min(scraped(server, metrics_url) for _ in range(5))
    began, written = server.cpu(), written_mb(server, line)
    server.idle(IDLE_S)
    return Afterwards(*metrics, server.cpu() - began, written_mb(server, line) - written, wrong)


def scraped(server: Measured, url: str) -> tuple[float, float]:
    """CPU time and memory of a scrape."""
    server.reset_peak()
    memory, began = server.memory(), server.settle()
    with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
        assert answer.read()
    return server.settle() - began, max(server.peak() - memory, 0.0)


def written_mb(server: Measured, line: Line) -> float:
    """What the process has written into files, and other connections than this one; without mapped files."""
    facts = dict(line.split(": ") for line in Path(f"/proc/{server.pid}/io").read_text().splitlines())
    return (int(facts["wchar"]) - line.received) / 1e6
