"""A small fuzzer that is guided by coverage: no package needed, the same cases for the same seed.

Inputs are mutated; one that reaches a line of ``spark_rocket`` from another line than any before is kept and mutated
further, as AFL does it. The tracer counts lines as well, so that "too much work" is a number of steps and no time.
``make fuzz`` has the same targets driven by atheris (libFuzzer) where that is installed, which is ten times as fast.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.targets import Target

#: Lines that a case may run: about a second of tracing. The longest input has 4 KiB.
MOST_STEPS = 400_000
_PACKAGE = "/spark_rocket/"
_NUMBERS = (
    0,
    1,
    4,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**63,
)
_WORDS = (
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"\\u", b"\\ud800", b"null", b"true", b"-1", b"1e999", b"0.5",
    b"NaN", b"9" * 25, b"\0", b"\x01", b"\x02", b"\xff", b"\xc3", b"\r\n", b"\r\n\r\n", b" ", b"=", b"#", b"'",
    b"(", b")", b"%", b"../", b"${", b"||", b"*", b"&a", b"*a", b"- ", b"\n",
)  # fmt: skip


class TooMuchWorkError(BaseException):
    """A case ran more lines than any good input needs; no decoder's ``except Exception`` may swallow it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An input and what came of it."""

    target: str
    data: bytes
    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.target}: {self.what} at {self.where}; input {self.data[:300]!r}"


class Tracer:
    """Edges between lines of the package, over all cases, and how many lines the present case ran."""

    def __init__(self) -> None:
        self.edges: set[tuple[CodeType, int, int]] = set()
        self._ours: dict[CodeType, bool] = {}
        self._steps = 0

    def run(self, function: Callable[[bytes], None], data: bytes) -> int:
        """Run a case; how many new edges it had."""
        before = len(self.edges)
        self._steps = 0
        outer = sys.gettrace()
        sys.settrace(self._called)
        try:
            function(data)
        finally:
            sys.settrace(outer)
        return len(self.edges) - before

    @property
    def steps(self) -> int:
        return self._steps

    def _called(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = self._ours[code] = _PACKAGE in code.co_filename
        if not ours:
            return None
        last = code.co_firstlineno
        add = self.edges.add

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                add((code, last, frame.f_lineno))
                last = frame.f_lineno
                self._steps += 1
                if self._steps > MOST_STEPS:
                    raise TooMuchWorkError
            return line

        return line


def check(
    target: Target, data: bytes, run: Callable[[Callable[[bytes], None], bytes], Any] | None = None
) -> Finding | None:
    """One case: None if there was a value or an error that is promised."""
    try:
        if run is None:
            target.run(data)
        else:
            run(target.run, data)
    except target.errors:
        return None
    except (Exception, TooMuchWorkError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if _PACKAGE in frame.filename] or frames
        where = f"{ours[-1].filename.rpartition(_PACKAGE)[2]}:{ours[-1].lineno} ({ours[-1].name})"
        return Finding(target.name, data, f"{type(error).__name__}: {str(error)[:200]}", where)
    return None


def mutated(data: bytes, other: bytes, dice: random.Random, longest: int) -> bytes:
    """A relative of ``data``."""
    raw = bytearray(data)
    for _ in range(1 << dice.randrange(4)):
        at = dice.randrange(len(raw) + 1)
        match dice.randrange(9):
            case 0 if raw:
                raw[at % len(raw)] ^= 1 << dice.randrange(8)
            case 1:
                raw[at : at + 1] = bytes([dice.randrange(256)])
            case 2:
                del raw[at : at + dice.randint(1, 16)]
            case 3:
                raw[at:at] = raw[at : at + dice.randint(1, 32)]
            case 4:
                raw[at:at] = dice.choice(_WORDS)
            case 5:
                word = dice.choice(_WORDS)
                raw[at : at + len(word)] = word
            case 6:
                size = dice.choice((1, 2, 4, 8))
                number = (dice.choice(_NUMBERS) + dice.randint(-1, 1)) % (1 << 8 * size)
                raw[at : at + size] = number.to_bytes(size, "big")
            case 7 if other:
                start = dice.randrange(len(other))
                raw[at:at] = other[start : start + dice.randint(1, 64)]
            case 8:
                raw = raw[:at]
            case _:
                raw.append(dice.randrange(256))
    return bytes(raw[:longest])


@dataclass(slots=True)
class Report:
    """Of one run."""

    cases: int = 0
    edges: int = 0
    kept: list[bytes] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def fuzz(target: Target, corpus: list[bytes], cases: int, seed: int) -> Report:
    """The corpus, then so many mutations of it and of what they lead to."""
    dice = random.Random(f"{target.name}{seed}")
    tracer = Tracer()
    report = Report()
    pool: list[bytes] = []
    seen: set[str] = set()

    def one(data: bytes) -> None:
        before = len(tracer.edges)
        found = check(target, data, tracer.run)
        report.cases += 1
        if found is not None and found.where not in seen:
            seen.add(found.where)
            report.findings.append(found)
        if len(tracer.edges) > before:
            pool.append(data)

    for data in (b"", *corpus):
        one(data)
    begun = len(pool)
    for _ in range(cases):
        # The newest are the least explored.
        parent = pool[-1 - int(dice.random() ** 2 * len(pool))]
        one(mutated(parent, dice.choice(pool), dice, target.longest))
    report.edges = len(tracer.edges)
    report.kept = pool[begun:]
    return report
