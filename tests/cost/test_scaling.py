"""CPU time for hostile text grows about linearly: of every fuzz target, and every regular expression of the package.

``make fuzz`` counts executed lines, so it does not find a regular expression or a loop in C that takes quadratic time.
Here valid input (a target's seeds, or matches of the expression) has some pieces repeated, as they are or with numbers,
and is cut or continued with invalid bytes, in two lengths.
"""

from __future__ import annotations

import ast
import gc
import importlib
import logging
import pkgutil
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import spark_rocket
from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS
from tests.fuzz.test_fuzz import SLOW, WORDS

_SIZES = (1_000, 4_000, 16_000, 64_000, 256_000)  # the last one only for what grew too much before
_MIN_S = 0.005  # with less CPU time, a longer input is judged instead
_MAX_GROWTH = 8  # of the CPU time for four times the length: linear is 4, quadratic 16
_CASES, _SLOW_CASES, _REPEATS = 600, 100, 2
#: Targets without a test, with the reason.
UNSCALED_TARGETS = dict.fromkeys(("checkpoints", "consume_queue", "index_file"), "input has a fixed size")
_METHODS = ("match", "search", "fullmatch", "sub", "split", "findall", "finditer")
_INLINE = re.compile(rf"\bre\.({'|'.join(_METHODS)})\(\s*(r?b?(?:\"[^\"\n]*\"|'[^'\n]*'))")
_USED = re.compile(rf"(\w+)\.({'|'.join(_METHODS)})\b")
#: How expressions are used whose uses are not written as NAME.method.
OTHER_USES = {
    **dict.fromkeys(("acl.addresses._DECIMAL", "acl.addresses._HEXADECIMAL"), "fullmatch"),
    "client.core.responses._REMEDIES_BY_REMARK": "search",
}
#: Expressions without a test, with the reason.
UNSCALED_PATTERNS = {
    "datasource.options.listing._LINK": "texts of this package",
    "datasource.ddl._TOKEN": "the parser stops at the first quote without an end; iterating goes on",
    "protocol.body_text._TOKEN": "only valid JSON, whose strings have an end",
    "protocol.java_properties._VARIABLE": "its text ends with the last }, so each search has an end",
}

_MATCHES = settings(derandomize=True, database=None, max_examples=50, phases=[Phase.generate])


def _patterns_in(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _patterns_in(each)


@cache
def uses() -> dict[str, list[tuple[re.Pattern[Any], str]]]:
    """Every regular expression by its module and its name or text, with the methods that are called."""
    found: dict[str, list[tuple[re.Pattern[Any], str]]] = {}
    names = [info.name for info in pkgutil.walk_packages(spark_rocket.__path__, "spark_rocket.")]
    for module in (importlib.import_module(name) for name in names if not name.endswith("__main__")):
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        prefix = module.__name__.removeprefix("spark_rocket.")
        called = set(_USED.findall(source))
        for name, value in vars(module).items():
            for pattern in _patterns_in(value):
                where = f"{prefix}.{name}"
                methods = {method for owner, method in called if owner == name} or {*OTHER_USES.get(where, "").split()}
                found.setdefault(where, []).extend((pattern, method) for method in sorted(methods))
        for method, text in _INLINE.findall(source):
            found.setdefault(f"{prefix}: {text}", []).append((re.compile(ast.literal_eval(text)), method))
    return found


def _run(pattern: re.Pattern[Any], method: str, raw: bytes) -> None:
    text = raw if isinstance(pattern.pattern, bytes) else raw.decode("utf-8", "surrogateescape")
    found = pattern.sub("", text) if method == "sub" else getattr(pattern, method)(text)
    if method == "finditer":
        list(found)


def _matches(pattern: re.Pattern[Any]) -> list[bytes]:
    """Some texts that match, always the same."""
    found = []

    @settings(_MATCHES)
    @given(st.from_regex(pattern, alphabet=None if isinstance(pattern.pattern, bytes) else st.characters()))
    def collect(text: str | bytes) -> None:
        found.append(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))

    collect()
    return found


def hostile(name: str, seeds: list[bytes], count: int) -> Iterator[Callable[[int], bytes]]:
    """Inputs by length: the begin of a seed, one or two pieces repeated, and a valid or an invalid end."""
    choose = random.Random(name)
    seeds = [seed for seed in seeds if 0 < len(seed) <= 2_000]
    for _ in range(count):
        seed = choose.choice(seeds)
        cut = choose.randrange(len(seed) + 1)
        own = (seed[max(cut - choose.randint(1, 8), 0) : cut], seed[choose.randrange(cut + 1) : cut], seed[:cut], seed)
        pool = (*own, *own, choose.choice(WORDS), b"a", b"1")
        pieces = [choose.choice(pool)[:200] or b" " for _ in range(choose.choice((1, 1, 2)))]
        begin, end = choose.choice((b"", *[seed[:cut]] * 3)), choose.choice((b"", b"\n\0", *[seed[cut:]] * 2))
        yield partial(_grown, begin, pieces, end, choose.randrange(8), choose.random() < 0.3)


def _grown(begin: bytes, pieces: list[bytes], end: bytes, number_at: int, is_numbered: bool, size: int) -> bytes:
    """``is_numbered``: with a number in each piece, so that names differ."""
    parts = [begin]
    for piece in pieces:
        times = size // len(pieces) // len(piece)
        numbers = [b"%d" % number for number in range(times)] if is_numbered else []
        parts += [piece[:number_at] + number + piece[number_at:] for number in numbers] or [piece * times]
    return b"".join([*parts, end])


def _cpu(run: Callable[[bytes], None], data: bytes) -> float:
    begun = time.thread_time()
    run(data)
    return time.thread_time() - begun


def grows(run: Callable[[bytes], None], case: Callable[[int], bytes]) -> bool:
    """Whether CPU time grows too much twice: once is also a buffer, or an error that a short input has earlier."""
    last, before = _cpu(run, case(_SIZES[0])), False
    for small, large in pairwise(_SIZES):
        if large == _SIZES[-1] and not before:
            break
        now = _cpu(run, case(large))
        for _ in range(_REPEATS):
            if now < max(_MIN_S, last * _MAX_GROWTH):
                break
            last = min(last, _cpu(run, case(small)))
            now = min(now, _cpu(run, case(large)))
        is_more = now > last * _MAX_GROWTH
        if now >= _MIN_S and is_more == before:
            return is_more
        last, before = now, is_more and now >= _MIN_S
    return False


def too_slow(name: str, run: Callable[[bytes], None], seeds: list[bytes], count: int = _CASES) -> str:
    """Return the first hostile input whose CPU time grows too much, as short as 100 bytes; empty if there is none."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        return next((repr(case(100)[:500]) for case in hostile(name, seeds, count) if grows(run, case)), "")
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


def test_every_pattern_has_a_use_and_every_reason_a_subject() -> None:
    found = uses()
    assert [where for where, each in found.items() if not each] == [], "say in OTHER_USES how these are used"
    assert (OTHER_USES.keys() | UNSCALED_PATTERNS.keys()) - found.keys() == set(), "these are gone"
    assert UNSCALED_TARGETS.keys() - TARGETS.keys() == set(), "these are gone"


@pytest.mark.cost
def test_quadratic_time_is_found() -> None:
    for text, is_found in ((r"[0-9]+\.?[0-9]*x", True), (r"[0-9]++\.?[0-9]*+x", False)):
        pattern = re.compile(text)
        assert bool(too_slow(text, partial(_run, pattern, "fullmatch"), _matches(pattern))) == is_found, text


@pytest.mark.cost
@pytest.mark.parametrize("name", [name for name in TARGETS if name not in UNSCALED_TARGETS])
def test_targets(name: str) -> None:
    target = TARGETS[name]

    def run(raw: bytes) -> None:
        with suppress(*target.errors):
            target.run(raw)

    seeds = target.seeds() + corpus.load(name)
    assert too_slow(name, run, seeds, _SLOW_CASES if name in SLOW else _CASES) == ""


@pytest.mark.cost
def test_patterns() -> None:
    found = {}
    for where, each in uses().items():
        for pattern, method in each if where not in UNSCALED_PATTERNS else ():
            if problem := too_slow(where, partial(_run, pattern, method), _matches(pattern)):
                found[where, method] = problem
    assert found == {}
