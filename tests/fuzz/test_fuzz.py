"""Bad input of every kind into every decoder: a value or the promised error, in bounded work.

Hypothesis edits each target's seeds and kept inputs: forty cases a target, always the same. ``make fuzz`` sets
FUZZ_CASES and runs that many over all targets, other ones each time. Put a finding into ``corpus/<target>.txt``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS, Target

#: Lines of the package that a case may run: about a second of tracing. The longest input has 4 KiB.
MAX_STEPS = 400_000
_CASES = int(os.environ.get("FUZZ_CASES") or 0)
#: These take long (Arrow, files, large tables) and get fewer cases.
SLOW = {
    *("frame", "columnar", "broker_conf", "broker_conf_update", "offsets_option", "console_body"),
    *(name for name in TARGETS if name.startswith("body_")),
}
_SETTINGS = settings(
    deadline=None,
    derandomize=not _CASES,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
if not _CASES:
    _SETTINGS = settings(_SETTINGS, database=None)
EACH = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)

_NUMBERS = (0, 1, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63)
WORDS = (
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"\\u", b"\\ud800", b"null", b"true", b"-1", b"1e999", b"0.5",
    b"NaN", b"9" * 25, b"\0", b"\x01", b"\x02", b"\xff", b"\xc3", b"\r\n", b"\r\n\r\n", b" ", b"=", b"#", b"'",
    b"(", b")", b"%", b"../", b"${", b"||", b"*", b"&a", b"*a", b"- ", b"\n",
)  # fmt: skip
_PIECES = (
    st.sampled_from(WORDS)
    | st.binary(max_size=16)
    | st.builds(
        lambda number, more, size: ((number + more) % (1 << 8 * size)).to_bytes(size, "big"),
        st.sampled_from(_NUMBERS),
        st.integers(-1, 1),
        st.sampled_from((1, 2, 4, 8)),
    )
)
#: Position, bytes to delete, bytes to insert; None: double what is deleted.
_EDITS = st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 32), st.none() | _PIECES), max_size=8)


class TooMuchWorkError(BaseException):
    """A case ran more lines than any valid input needs; a decoder's ``except Exception`` must not catch it."""


def edited(data: bytes, edits: list[tuple[int, int, bytes | None]], longest: int) -> bytes:
    for at, count, piece in edits:
        at %= len(data) + 1
        cut = data[at : at + count]
        data = data[:at] + (cut * 2 if piece is None else piece) + data[at + count :]
    return data[:longest]


def check(target: Target, data: bytes) -> None:
    """Run one case: a value, a promised error, or a failure."""
    steps = 0
    ours: dict[CodeType, bool] = {}

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        if steps > MAX_STEPS:
            raise TooMuchWorkError
        return line

    def called(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in ours:
            ours[code] = "/spark_rocket/" in code.co_filename
        return line if ours[code] else None

    outer = sys.gettrace()
    sys.settrace(called)
    try:
        target.run(data)
    except target.errors:
        pass
    finally:
        sys.settrace(outer)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Unknown settings and the like cause thousands of warnings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@EACH
def test_corpus(target: Target) -> None:
    """Each input that once broke something or reached something new."""
    for data in (b"", *target.seeds(), *corpus.load(target.name)):
        check(target, data)


@EACH
def test_edited_input(target: Target) -> None:
    begin = st.sampled_from([b"", *target.seeds(), *corpus.load(target.name)])
    cases = _CASES // len(TARGETS) + 1 if _CASES else 40

    @settings(_SETTINGS, max_examples=max(cases // 5, 1) if target.name in SLOW else cases)
    @given(st.builds(edited, begin, _EDITS, st.just(target.longest)) | st.binary(max_size=64))
    def run(data: bytes) -> None:
        check(target, data)

    run()


def test_every_target_has_seeds_and_every_corpus_a_target() -> None:
    assert [name for name, target in TARGETS.items() if not target.seeds()] == []
    assert {path.stem for path in corpus.HERE.glob("*.txt")} <= set(TARGETS)


def test_too_much_work_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_rocket.protocol.java_properties import parse_properties

    def forever(raw: bytes) -> None:
        while True:
            parse_properties("a=b")

    monkeypatch.setattr(sys.modules[__name__], "MAX_STEPS", 20_000)
    with pytest.raises(TooMuchWorkError):
        check(Target("forever", forever, (Exception,), list), b"x")
