"""Products of names: each of many groups with each of many topics, for every code that names both.

A table of groups and a table of topics may have 50 entries each and cost next to nothing; what is kept for each pair
has 2,500. After the requests, what reads the state must still be cheap, and an idle server idle.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from pathlib import Path

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

NAMES = 50
_FEW_NAMES = 20
"""For codes that leave no state behind."""
MAX_KEPT_MB = 64.0
MAX_WRITTEN_MB = 64.0
_AT_ONCE = 100
MAX_METRICS_S = 0.1
MAX_METRICS_MB = 32.0
IDLE_S = 10.0
MAX_IDLE_CPU_S = 0.5
MAX_IDLE_WRITTEN_MB = 1.0
_TOPICS = {"topic", "t", "b", "topicName", "originTopic"}
_GROUPS = {"group", "consumerGroup", "c", "groupName", "destGroup", "srcGroup", "producerGroup"}
_CLIENTS = {"clientId", "clientID"}
_COMMITS, _HAS_SUBSCRIPTION = 1, 4  # flags of pulls
_SUCCEED = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.UPDATE_CONSUMER_OFFSET,
)
"""Codes whose pairs must reach the state; others may be refused on the way."""


def crossed() -> list[RequestType]:
    """The rows that name a topic and a group."""
    both = {Resource.TOPIC, Resource.GROUP}
    return [row for row in BROKER_REQUESTS.values() if both <= {need.resource for need in row.needs}]


def reads() -> list[RequestType]:
    return [row for row in BROKER_REQUESTS.values() if row.plain_access is PlainAccess.ANY_ACCOUNT]


def requests_of(row: RequestType) -> Iterator[RemotingCommand]:
    """Each group with each topic; pops also in order, which has a state of its own."""
    changes: list[dict[str, object]] = [{}]
    if row.header is not None and "order" in {each.name for each in header_fields(row.header)}:
        changes.append({"order": True})
    count = NAMES if row.state else _FEW_NAMES
    for change, topic, group in product(changes, range(count), range(count)):
        names = partial(
            _named, topic=f"{values.TOPIC}-{topic}", group=f"{values.GROUP}-{group}", client=f"client-{group}"
        )
        body = None
        if isinstance(row.body, type):
            body = encoded(_renamed(json.loads(default_body(row)), names))
        changed = dict(change)
        if row.header is PullMessageRequestHeader:
            changed |= {"sys_flag": _COMMITS | _HAS_SUBSCRIPTION}
        if row.header is not None:
            found: dict[str, object] = {each.name: names(wire_name(each)) for each in header_fields(row.header)}
            if "born_time" in found:  # an old one is refused
                found["born_time"] = int(time.time() * 1000)
            if "invisible_time" in found:  # longer than the test: a message that is visible again gets a retry topic
                found["invisible_time"] = 600_000
            changed |= {name: value for name, value in found.items() if value is not None}
        yield request_of(row, changed, body)


def _named(wire: str, *, topic: str, group: str, client: str) -> str | None:
    return topic if wire in _TOPICS else group if wire in _GROUPS else client if wire in _CLIENTS else None


def _renamed(value: object, names: partial[str | None]) -> object:
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: (names(key) or each) if isinstance(each, str) else _renamed(each, names) for key, each in value.items()
    }


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
        wanted = {"topic": topic, "attributes": None, "topic_filter_type": "SINGLE_TAG"}
        body["groupName"] = f"{values.GROUP}-{number}"
        for request in (
            request_of(create, wanted),
            request_of(group, body=encoded(body)),
            request_of(send, {"topic": topic}),
        ):
            answer = line.ask(request)
            assert answer is not None
            assert answer.code == 0, answer


@dataclass
class PairsCost:
    """What the pairs of one request code cost: seconds of CPU, MB of memory, MB written into files and connections."""

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
    began, before, written = server.settle(), server.memory(), written_mb(server)
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
    return PairsCost(f"{row.name} ({row.code})", cpu, server.memory() - before, written_mb(server) - written)


def afterwards(server: Measured, line: Line, metrics_url: str) -> Afterwards:
    run, wrong = Run(server, line), []
    for row in reads():
        case = Case(row.code, "plausible", partial(request_of, row))
        wrong += [f"{row.name} {each}" for each in run.cases(row.name, [case]).too_much]
    metrics = min(scraped(server, metrics_url) for _ in range(3))
    began, written = server.cpu(), written_mb(server)
    server.idle(IDLE_S)
    return Afterwards(*metrics, server.cpu() - began, written_mb(server) - written, wrong)


def scraped(server: Measured, url: str) -> tuple[float, float]:
    """CPU time and memory of a scrape."""
    server.reset_peak()
    memory, began = server.memory(), server.settle()
    with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
        assert answer.read()
    return server.settle() - began, max(server.peak() - memory, 0.0)


def written_mb(server: Measured) -> float:
    """What the process has written into files and connections; mapped files are not counted."""
    facts = dict(line.split(": ") for line in Path(f"/proc/{server.pid}/io").read_text().splitlines())
    return int(facts["wchar"]) / 1e6
