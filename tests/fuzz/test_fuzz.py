"""Bad input of every kind into every decoder: a value or the error that is promised, in bounded work.

A few thousand cases each way here, always the same; ``make fuzz`` has ten million.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.fuzz import corpus, engine
from tests.fuzz.engine import Finding, TooMuchWorkError, Tracer, check, fuzz
from tests.fuzz.targets import TARGETS, Target

#: Mutations of a target, tracing and all: about a fifth of a second each.
_CASES = {
    "frame": 60,
    "columnar": 40,
    "broker_conf": 60,
    "broker_conf_update": 60,
    "offsets_option": 100,
    "console_body": 100,
}
_USUAL = 300
EACH = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Unknown settings and the like are warned of, thousands of times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@EACH
def test_what_is_kept(target: Target) -> None:
    """Each input that once broke something or led somewhere new."""
    findings = [found for data in corpus.load(target.name) if (found := check(target, data)) is not None]
    assert findings == []


@EACH
def test_guided_by_coverage(target: Target) -> None:
    report = fuzz(target, target.seeds(), _CASES.get(target.name, _USUAL), seed=1)
    assert report.findings == []


def test_each_target_has_something_to_begin_with() -> None:
    assert [name for name, target in TARGETS.items() if not target.seeds()] == []
    assert {path.stem for path in corpus.HERE.glob("*.txt")} <= set(TARGETS)


# --- the fuzzer itself ------------------------------------------------------------------------------------------------


def _lock(raw: bytes) -> None:
    """Opens for four right bytes, one after the other, which chance alone does not find in so few cases."""
    from spark_rocket.protocol.wire.ha import TransferDecoder

    TransferDecoder().feed(raw)
    if raw[:3] == b"\0\0\0" and len(raw) > 20:
        raise KeyError("found")


def test_the_fuzzer_finds_what_is_wrong_and_does_so_again() -> None:
    target = Target("lock", _lock, (Exception,), lambda: [b"\0" * 12])
    strict = Target("lock", _lock, (ValueError,), lambda: [b"\0" * 12])
    assert fuzz(target, target.seeds(), 200, 1).findings == []
    reports = [fuzz(strict, strict.seeds(), 500, 1) for _ in range(2)]
    assert reports[0] == reports[1]
    assert reports[0].findings
    assert reports[0].kept


def test_too_much_work_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_STEPS", 20_000)
    from spark_rocket.protocol.java_properties import parse_properties

    def forever(raw: bytes) -> None:
        while True:
            parse_properties("a=b")

    tracer = Tracer()
    found = check(Target("forever", forever, (Exception,), list), b"x", tracer.run)
    assert isinstance(found, Finding)
    assert found.what.startswith(TooMuchWorkError.__name__)
