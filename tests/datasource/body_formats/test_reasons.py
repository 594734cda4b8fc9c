"""The reasons of invalid records are plain words: damaged bodies of every format.

Bodies are truncated at each byte, and their bits and values are changed. No reason has the words of Python: names of
its exceptions, types and codecs.
"""

from __future__ import annotations

import builtins
import random
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_rocket.datasource.bodies.decoding import BAD, Decoder, reason
from spark_rocket.datasource.options.bodies import BodySettings
from tests.datasource.body_formats.formats import NOISE, VALUES, bodies
from tests.datasource.body_formats.samples import FORMATS, JSON_VALUES, json_of, sample

PYTHON = re.compile(
    r"\w+(Error|Exception|Warning)\b|codec|decode byte|index out of range|<class|NoneType|bytes-like|bytearray|"
    r"(type |['\"])(str|dict|list|bytes|int|float)\b(?!<)|\bobject\b.*\b(is not|has no)\b|argument|unpack|"
    r"invalid literal|recursion|line \d+ column|must be in|digits\)|too big|too large|Python|PySpark|Traceback",
)
WRONG = [
    *VALUES,
    "9" * 5000,
    "-" + "9" * 50,
    "1e99999999",
    "1e2147483648",
    '"' + "9" * 5000 + '"',
    '"2026-13-01"',
    '"2026-02-30 99:00"',
    '"2026-01-31T12:00:61"',
    '"999999-01-01"',
    '"!"',
    '"QQ="',
    "[" * 3000,
    '{"a":' * 3000,
    '{"a":1,"a":2}',
    '"\\x"',
    '"\\u12"',
    "nul",
]


def damaged(body: bytes, rng: random.Random) -> Iterator[bytes]:
    """Truncate, change and extend a body."""
    yield from (body[:end] for end in range(len(body)))
    bits = range(8 * len(body)) if len(body) < 300 else rng.sample(range(8 * len(body)), 2400)
    for bit in bits:
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
    for _ in range(300):
        at = rng.randrange(len(body))
        some = rng.choice(
            [rng.randbytes(rng.randrange(1, 9)), b"\xff" * 10, b"\0" * 8, b"\x80" * 4, rng.choice(NOISE).encode()]
        )
        yield body[:at] + some + body[at + rng.choice([0, len(some)]) :]
    yield from (rng.randbytes(rng.randrange(60)) for _ in range(100))


def with_wrong_values() -> Iterator[bytes]:
    for name in JSON_VALUES:
        yield from (json_of(JSON_VALUES | {name: value}) for value in WRONG)


def csv_lines() -> Iterator[bytes]:
    good = ["1", "1.5", "2.5", "true", "x", "2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31 12:00:00", "12.5"]
    for at in range(len(good)):
        for value in WRONG:
            values = [*good[:at], value, *good[at + 1 :]]
            yield ",".join(values).encode()
            yield ",".join([*good[:at], value.strip('"'), *good[at + 1 :]]).encode()


def cases(form: str, rng: random.Random) -> tuple[BodySettings, pa.Schema, list[bytes]]:
    """The settings and columns of a format, and damaged bodies."""
    settings, fields, body = sample(form)
    values = [*damaged(body, rng)]
    if "json" in form:
        values += with_wrong_values()
    elif form == "csv":
        values += csv_lines()
    elif form == "variant":
        values += (value.encode() for value in WRONG)
    return settings, fields, values


def decoder_of(settings: BodySettings, fields: pa.Schema) -> Decoder:
    from spark_rocket.datasource.bodies.codecs import decoder

    return decoder(settings, fields)


@pytest.mark.parametrize("form", FORMATS)
def test_reasons_of_damaged_bodies_are_plain_words(form: str) -> None:
    settings, fields, values = cases(form, random.Random(form))
    found = decoder_of(settings, fields).decode(bodies(*values))
    if found.count is None:
        assert len(found.bad) > len(values) / (20 if form == "protobuf" else 4)
    for at, text in found.bad.items():
        # What the body has, in quotation marks or with its column, is not checked: it can be any word.
        own_words = re.sub(r"""(["'\[{]).*(?= is not )|the column [\w.]+: """, "", text)
        assert text, values[at]
        assert not PYTHON.search(own_words), (text, values[at][:200])


@pytest.mark.parametrize(
    "kind",
    [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BAD)],
    ids=lambda kind: kind.__name__,
)
def test_the_words_of_exceptions_are_not_reasons(kind: type[BaseException]) -> None:
    arguments: dict[str, Any] = {
        "UnicodeDecodeError": ("utf-8", b"\xff", 0, 1, "its words"),
        "UnicodeEncodeError": ("utf-8", "x", 0, 1, "its words"),
        "UnicodeTranslateError": ("x", 0, 1, "its words"),
    }
    text = reason(kind(*arguments.get(kind.__name__, ("its words",))))
    assert "words" not in text
    assert kind.__name__ not in text
