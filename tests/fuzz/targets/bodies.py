"""Bodies of typed rows, in every format: an invalid one is a bad record, whatever its batch has beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_rocket.datasource.bodies.codecs import decoder
from spark_rocket.datasource.bodies.decoding import Decoded, Decoder
from tests.datasource.body_formats.odd_values import plain
from tests.datasource.body_formats.samples import FORMATS, sample
from tests.fuzz.targets.base import target

_INVALID = b"\xff\xfe"
_MAX_ROWS = 20
"""Of an Arrow body, of which more are not compared."""


def decoded(reader: Decoder, *bodies: bytes) -> tuple[Decoded, list[tuple[str, list[Any]]]]:
    """Decode a batch; return also the reason and the values of each body."""
    found = reader.decode(pa.array(bodies, pa.binary()))
    assert found.count in (None, len(bodies))
    assert set(found.bad) <= set(range(len(bodies)))
    for column in found.columns:
        column.validate(full=True)
    rows = found.rows.tolist() if found.rows is not None else list(range(len(bodies)))
    parts = []
    for index in range(len(bodies)):
        some = pa.array([at for at, row in enumerate(rows) if row == index][:_MAX_ROWS], pa.int64())
        parts.append((found.bad.get(index, ""), [plain(column.take(some)) for column in found.columns]))
    return found, parts


def check(form: str) -> Callable[[bytes], None]:
    settings, fields, valid = sample(form)
    reader = decoder(settings, fields)
    _, (of_valid,) = decoded(reader, valid)
    assert not of_valid[0]

    def run(raw: bytes) -> None:
        _, (alone,) = decoded(reader, raw)
        reason, columns = alone
        assert reason.isprintable(), reason
        assert not reason or all(value is None for column in columns for value in column)
        for beside in (valid, _INVALID):  # JSON and CSV: an invalid body sends all of its batch the slow way
            _, (first, one, last) = decoded(reader, beside, raw, valid)
            assert one == alone
            assert last == of_valid
            assert (first == of_valid) == (beside == valid)

    return run


for _form in FORMATS:
    _run = check(_form)
    _run.__name__ = f"body_{_form.lower().replace(' ', '_')}"
    target(sample(_form)[2])(_run)
