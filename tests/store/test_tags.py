"""Tags codes: computed from the last TAGS property, whatever the others are."""

from __future__ import annotations

import pytest

from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.store.layout import tags_code


@pytest.mark.parametrize(
    ("properties", "tags"),
    [
        (b"", ""),
        (b"KEYS\x01k", ""),
        (b"TAGS\x01", ""),
        (b"TAGS\x01TagA", "TagA"),
        (b"KEYS\x01k\x02TAGS\x01TagA\x02", "TagA"),
        (b"TAGS\x01a\x02TAGS\x01TagA", "TagA"),
        (b"XTAGS\x01a\x02KEYS\x01TAGS\x01b", ""),
        ("TAGS\x01ключ".encode(), "ключ"),
        (b"TAGS\x01" + b"x" * 64, "x" * 64),
    ],
)
def test_tags_code(properties: bytes, tags: str) -> None:
    assert tags_code(properties) == java_hash(tags)
