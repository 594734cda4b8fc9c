"""Java's hash and tag expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.filter.tags import (
    MAX_EXPRESSION_CHARACTERS,
    java_hash,
    parse_tags,
    tags_code,
)
from spark_rocket.protocol.wire.bodies.client import SubscriptionData

# Worked out by hand from h = 31 h + unit, or known from Java.
HASHES = [
    ("", 0),
    ("*", 42),
    ("a", 97),
    ("TagA", 2598919),
    ("ab", 31 * 97 + 98),
    ("hello", 99162322),
    ("é", 0xE9),
    ("日本", 31 * 0x65E5 + 0x672C),
    ("😀", 31 * 0xD83D + 0xDE00),
    ("polygenelubricants", -(1 << 31)),
    ("\ud800", 0xD800),
]


def one_by_one(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize(("text", "wanted"), HASHES)
def test_known_hashes(text: str, wanted: int) -> None:
    assert java_hash(text) == tags_code(text) == one_by_one(text) == wanted


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 129, 1000])
def test_long_texts(size: int) -> None:
    for letter in ("z", "é", "😀"):
        assert java_hash(letter * size) == one_by_one(letter * size)


@given(st.lists(st.text(st.characters(), max_size=150), max_size=5))
def test_any_text(texts: list[str]) -> None:
    wanted = [one_by_one(text) for text in texts]
    assert [java_hash(text) for text in texts] == wanted


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        (None, set()),
        ("", set()),
        ("*", set()),
        ("  * ", set()),
        (" \t\n", set()),
        ("A", {"A"}),
        ("A || B", {"A", "B"}),
        ("A||B||A", {"A", "B"}),
        (" A ||  || B ", {"A", "B"}),
        ("A | B", {"A | B"}),
        ("|| A", {"A"}),
        ("日本||x", {"日本", "x"}),
    ],
)
def test_parse(expression: str | None, tags: set[str]) -> None:
    parsed = parse_tags(expression)
    assert parsed.tags == tags
    assert parsed.codes == {java_hash(tag) for tag in tags}
    assert parsed.matches_all is not bool(tags)
    assert parse_tags(str(parsed)) == parsed


@pytest.mark.parametrize("expression", ["||", " || ", "||||"])
def test_no_expression(expression: str) -> None:
    with pytest.raises(ProtocolError, match="contains no tag"):
        parse_tags(expression)


def test_matching() -> None:
    everything, some = parse_tags("*"), parse_tags("Aa || C")
    assert everything.matches(None)
    assert everything.matches("x")
    assert some.matches("Aa")
    assert not some.matches(None)
    assert not some.matches("BB")
    assert str(some) == "Aa || C"


def test_subscription_data() -> None:
    tagged = SubscriptionData.build("T", "B || A", 7)
    assert (tagged.topic, tagged.sub_string, tagged.tags_set, tagged.sub_version) == ("T", "B || A", ["A", "B"], 7)
    assert tagged.code_set == [java_hash("A"), java_hash("B")]
    assert SubscriptionData.build("T", None, 1).sub_string == "*"
    sql = SubscriptionData.build("T", "a > 5", 1, "SQL92")
    assert (sql.sub_string, sql.expression_type, sql.tags_set) == ("a > 5", "SQL92", [])
    for data in (tagged, sql):
        assert SubscriptionData.from_json(data.to_json()) == data


def test_an_expression_of_any_length_takes_no_time() -> None:
    tags = "||".join(["tag"] * (MAX_EXPRESSION_CHARACTERS // 5))
    assert parse_tags(tags).tags == {"tag"}
    with pytest.raises(ProtocolError, match="at most 65,536"):
        parse_tags("x" * (MAX_EXPRESSION_CHARACTERS + 1))
