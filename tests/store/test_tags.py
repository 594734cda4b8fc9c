"""Tags codes of many messages at once are those of one message at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.record.properties import find_property
from spark_rocket.store.queues import tags
from spark_rocket.store.queues.tags import tags_code, tags_codes

PIECES = st.sampled_from(
    [
        b"TAGS\x01",
        b"TAGS",
        b"\x01",
        b"\x02",
        b"TagA",
        b"a",
        b"KEYS\x01k\x02",
        "ключ".encode(),
        b"x" * 63,
        b"x" * 64,
        b"\0",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.lists(PIECES, max_size=5), st.lists(PIECES, max_size=8)), max_size=40))
@example([([b"TAGS\x01"], []), ([], [b"TAGS\x01", b"a", b"\x02", b"TAGS\x01", b"TagA"])])
@example([([], [b"TAGS\x01"]), ([b"a"], [b"TAGS\x01", b"x" * 64, b"x" * 63])])
def test_many_are_as_one_by_one(messages: list[tuple[list[bytes], list[bytes]]]) -> None:
    raw, starts, ends = b"", [], []
    for before, properties in messages:
        raw += b"-" + b"".join(before) + b"-"
        starts.append(len(raw))
        raw += b"".join(properties)
        ends.append(len(raw))
    expected = []
    for start, end in zip(starts, ends, strict=True):
        value = find_property(raw[start:end], b"TAGS")
        expected.append(java_hash(value.decode("utf-8", "replace")) if value else 0)
        assert tags_code(raw[start:end]) == expected[-1]
    assert tags_codes(raw, np.array(starts, np.int64), np.array(ends, np.int64)) == expected


def test_more_different_tags_than_are_looked_at_together() -> None:
    values = [b"tag-%d" % (number % (3 * tags._COMMON)) for number in range(500)]
    raw = b"".join(b"-TAGS\x01" + value for value in values)
    ends = np.cumsum([6 + len(value) for value in values])
    starts = np.append(0, ends[:-1]) + 1
    assert tags_codes(raw, starts, ends) == [java_hash(value.decode()) for value in values]
