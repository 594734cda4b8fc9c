"""Runs the cases of a code against a server and measures what each costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spark_rocket.protocol.wire.command import RemotingCommand
from tests.cost.generator import Case, Size
from tests.cost.servers import Line, Measured

MAX_CPU_S = {Size.SMALL: 0.1, Size.FRAME: 1.0}
MAX_MEMORY_MB = 32.0
"""Of a request of 1 MB; a full frame alone has 17."""
_TICK_S = 0.011  # the system counts CPU time in hundredths of a second
_LATER_S = 0.3  # for work after the response: acks are collected for 200 ms
_REPEATS = 5
_CHUNK = 100


@dataclass
class Cost:
    """What a request costs a server: seconds of CPU time, MB of memory above what it had."""

    label: str
    size: Size
    cpu: float
    memory: float
    outcome: str = ""

    @property
    def is_too_much(self) -> bool:
        is_small = self.size is Size.SMALL
        return self.cpu > MAX_CPU_S[self.size] + _TICK_S or (is_small and self.memory > MAX_MEMORY_MB)

    def __str__(self) -> str:
        return f"{self.label}: {self.cpu * 1000:.0f} ms, {self.memory:.0f} MB ({self.outcome})"


@dataclass
class Costs:
    """The costs of a code's or a method's requests."""

    name: str
    costs: list[Cost] = field(default_factory=list)
    kept: float = 0.0
    """MB that all its requests together left behind."""

    def worst(self, size: Size) -> Cost | None:
        return max((each for each in self.costs if each.size is size), key=lambda each: each.cpu, default=None)

    @property
    def most_memory(self) -> Cost | None:
        return max((each for each in self.costs if each.size is Size.SMALL), key=lambda each: each.memory, default=None)

    @property
    def too_much(self) -> list[str]:
        return [str(each) for each in self.costs if each.is_too_much]


class Connection(Protocol):
    """Sends the requests of cases, and collects responses with ``code`` and ``remark``."""

    is_closed: bool
    answers: dict[int, Any]

    def send(self, request: Any, /) -> int: ...
    def pass_through(self) -> None: ...


class Run:
    """Measures codes or methods of one server over one connection."""

    def __init__(self, server: Measured, line: Connection) -> None:
        self._server = server
        self._line = line

    def cases(self, name: str, cases: Iterable[Case]) -> Costs:
        server = self._server
        result = Costs(name)
        before = server.memory()
        given = list(cases)
        numbers = [case for case in given if case.is_number]
        result.costs += [self._checked(case) for case in given if not case.is_number]
        if numbers:
            result.costs += self._together(numbers)
        result.costs.append(self._afterwards(given))
        result.kept = server.memory() - before
        return result

    def _afterwards(self, cases: Sequence[Case]) -> Cost:
        """Measure what follows the responses. If it is too much, send all again: a periodic task may have come between.

        What requests cause follows them each time.
        """
        found = [self._later()]
        while found[-1].is_too_much and len(found) < _REPEATS:
            for case in cases:
                self._measure(case.label, case.size, [case.make()])
            found.append(self._later())
        return min(found, key=lambda each: each.cpu)

    def _later(self) -> Cost:
        began = self._server.cpu()
        return Cost("after the responses to all", Size.SMALL, self._server.settle(_LATER_S) - began, 0.0)

    def _together(self, cases: Sequence[Case]) -> list[Cost]:
        """Measure cheap cases together, and again one by one if they cost too much together."""
        cost = self._measure("numbers at their extremes", Size.SMALL, [case.make() for case in cases])
        if not cost.is_too_much:
            return [cost]
        return [self._checked(case) for case in cases]

    def _checked(self, case: Case) -> Cost:
        """Measure again what costs too much: the first time, a table may be built, or memory be requested."""
        found = [self._measure(case.label, case.size, [case.make()])]
        while found[-1].is_too_much and len(found) < _REPEATS:
            found.append(self._measure(case.label, case.size, [case.make()]))
        return min(found, key=lambda each: (each.is_too_much, each.cpu))

    def _measure(self, label: str, size: Size, requests: Sequence[Any]) -> Cost:
        server, line = self._server, self._line
        server.reset_peak()
        memory, began = server.memory(), server.cpu()
        numbers = [line.send(request) for request in requests]
        line.pass_through()
        cpu = server.settle() - began
        cost = Cost(label, size, cpu, max(server.peak() - memory, 0.0))
        answers = [line.answers.pop(number, None) for number in numbers]
        cost.outcome = _outcome(answers[0], is_closed=line.is_closed)
        return cost


def _outcome(answer: Any, *, is_closed: bool) -> str:
    if answer is None:
        return "connection closed" if is_closed else "no response yet"
    remark = " ".join((answer.remark or "").split())
    return "success" if answer.code == 0 else f"{answer.code}: {remark[:100]}"


def send_all(line: Line, requests: Iterator[RemotingCommand]) -> float:
    """Send requests, some at a time; return their MB."""
    sent = 0
    for number, request in enumerate(requests, 1):
        line.send(request)
        sent += len(request.body) + 200
        if number % _CHUNK == 0:
            line.pass_through()
            line.answers.clear()
    line.pass_through()
    line.answers.clear()
    return sent / 1e6
