"""SQL92 filters: what is true, false, unknown, and refused."""

from __future__ import annotations

import pytest

from spark_rocket.errors import ProtocolError
from spark_rocket.protocol.filter.sql92 import MAX_DEPTH, parse_sql92

A3 = {"a": "3", "b": "5", "c": "6", "d": "1"}

CASES = [
    # comparisons, as text and as numbers
    ("a=3 and b<>4 And c>5 AND d<=4", A3, True),
    ("a=3 and b<>4 And c>5 AND d<=4", A3 | {"a": "4"}, False),
    ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "3", "d": "10"}, False),
    ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "6"}, True),
    ("3 = a", A3, True),
    ("a > b", {"a": "10", "b": "9"}, True),
    ("a > b", {"a": "abc", "b": "9"}, False),
    ("a > 3.14", {"a": "3.1415"}, True),
    ("a > 3.1E10", {"a": "31415000000.0"}, True),
    ("a >= .5", {"a": "0.5"}, True),
    ("a = 5.", {"a": "5"}, True),
    ("a = 1e2", {"a": "100"}, True),
    ("a = -5", {"a": "-5"}, True),
    ("a > -5 and a < +5", {"a": "0"}, True),
    ("a = 3000000000", {"a": "3000000000"}, True),
    ("a = 3000000000L", {"a": "3000000000"}, True),
    ("a = 'it''s'", {"a": "it's"}, True),
    ("TAGS is not null and TAGS='''''tag'''''", {"TAGS": "''tag''"}, True),
    ("a=b", {"a": "3.14", "b": "3.14"}, True),
    ("a<>b", {"a": "3.14", "b": "3.141"}, True),
    ("a=TRUE OR b=FALSE", {"a": "true", "b": "false"}, True),
    ("a=TRUE OR b=FALSE", {"a": "TRUE"}, True),
    ("a=TRUE OR b=FALSE", {"a": "false", "b": "true"}, False),
    ("1 = 1", {}, True),
    ("1 = 1.0", {}, True),
    ("1 > 2", {}, False),
    # what Java cannot read as a number of that kind makes the whole of it false
    ("a > 5", {"a": "5.5"}, False),
    ("a > 5", {"a": "3000000000"}, False),
    ("a > 5 OR b = 'x'", {"a": "x", "b": "x"}, False),
    ("b = 'x' OR a > 5", {"a": "x", "b": "x"}, True),
    ("NOT (a > 5)", {"a": "x"}, False),
    ("a > 5", {"a": " 6"}, False),
    ("a > 5.0", {"a": " 6 "}, True),
    ("a > 5.0", {"a": "6f"}, True),
    ("a < 5.0", {"a": "NaN"}, False),
    ("a > 5.0", {"a": "NaN"}, True),
    ("a > 5.0", {"a": "Infinity"}, True),
    ("a > 5.0", {"a": "1_0"}, False),
    # BETWEEN, IN
    ("a between 2 and 10", {"a": "2"}, True),
    ("a between 2 and 10", {"a": "10"}, True),
    ("a between 2 and 10", {"a": "11"}, False),
    ("a not between 2 and 10", {"a": "11"}, True),
    ("a not between 2 and 10", {"a": "3"}, False),
    ("a between low and high", {"a": "3", "low": "1", "high": "5"}, True),
    ("a between 2 and 10", {}, False),
    ("a not between 2 and 10", {}, False),
    ("a in ('3', '4', '5')", {"a": "4"}, True),
    ("a in ('3', '4', '5')", {"a": "8"}, False),
    ("a not in ('3', '4', '5')", {"a": "8"}, True),
    ("a not in ('3', '4', '5')", {"a": "5"}, False),
    ("a not in ('3')", {}, False),
    # NULL and three-valued logic
    ("a is null", {}, True),
    ("a is null", {"a": ""}, False),
    ("a is not null", {"a": ""}, True),
    ("a IS NOT NULL", {}, False),
    ("a is null OR a='hello'", {}, True),
    ("a is null OR a='hello'", {"a": "abc"}, False),
    ("a = 'x'", {}, False),
    ("a <> 'x'", {}, False),
    ("NOT a = 'x'", {}, False),
    ("NOT (a = 'x' AND b = 'y')", {"b": "z"}, True),
    ("NOT (a = 'x' AND b = 'y')", {"b": "y"}, False),
    ("a = 'x' OR b = 'y'", {"b": "y"}, True),
    ("NOT (a = 'x' OR b = 'y')", {"b": "z"}, False),
    ("a = b", {}, True),  # the original's too: nothing equals nothing
    ("(a = 'x') IS NULL", {}, True),
    ("a", {"a": "true"}, False),  # a property alone is text, never true
    ("NOT a", {"a": "true"}, True),
    ("NOT a", {}, False),
    ("TRUE", {}, True),
    ("FALSE OR TRUE", {}, True),
    ("NULL", {}, False),
    ("-a = 3", {"a": "-3"}, False),  # a sign does not apply to strings
    # text
    ("a CONTAINS 'ell'", {"a": "hello"}, True),
    ("a contains 'x'", {"a": "hello"}, False),
    ("a NOT CONTAINS 'x'", {"a": "hello"}, True),
    ("a NOT CONTAINS 'x'", {}, False),
    ("a CONTAINS ''", {"a": "hello"}, False),
    ("a STARTSWITH 'he' AND a ENDSWITH 'lo'", {"a": "hello"}, True),
    ("a NOT STARTSWITH 'he'", {"a": "hello"}, False),
    # how it is written
    ("a=1--comment\n and b=2", {"a": "1", "b": "2"}, True),
    ("a /* a * and / in it **/ = 1", {"a": "1"}, True),
    ("a=1 -- to the end", {"a": "1"}, True),
    ("((((a=1))))", {"a": "1"}, True),
    ("$a_1 = 1 and _b = 2", {"$a_1": "1", "_b": "2"}, True),
    ("A = 1", {"a": "1"}, False),  # names are exact, words are not
    ("a = 1 = TRUE", {"a": "1"}, True),
    ("NOT NOT a = 1", {"a": "1"}, False),  # NOT binds to what is next: NOT NOT a
    ("NOT (NOT (a = 1))", {"a": "1"}, True),
    ("a = 1 OR b = 2 AND c = 3", {"a": "1"}, True),
]


@pytest.mark.parametrize(("text", "properties", "passes"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES])
def test_matches(text: str, properties: dict[str, str], passes: bool) -> None:
    assert parse_sql92(text).matches(properties) is passes


REFUSED = [
    ("", "ends too early"),
    ("   ", "ends too early"),
    ("a =", "ends too early"),
    ("a != 1", "'!'"),
    ("a == 1", "'='"),
    ("a = 007", "'0' cannot stand there (character 5)"),
    ("a > 'x'", "only numbers"),
    ("a > TRUE", "only numbers"),
    ("a > 1 > 2", "only numbers"),
    ("a > NULL", "only numbers"),
    ("a = NULL", "IS NULL"),
    ("TRUE = 1", "TRUE and FALSE"),
    ("a between 10 and 2", "must not be above"),
    ("a between NULL and 2", "NULL"),
    ("a between 'a' and 'b'", "only numbers"),
    ("a in (1, 2)", "single quotes"),
    ("a in ()", "single quotes"),
    ("a in 'x'", "'('"),
    ("'a' in ('x')", "only a property"),
    ("a like 'x%'", "'like'"),
    ("a + 1 = 2", "follows"),
    ("a = 'x", "closing quote"),
    ('a = "x"', "'\"'"),
    ("(a = 1", "')'"),
    ("a = 1)", "follows"),
    ("a = 1 b = 2", "follows"),
    ("1", "true or false"),
    ("'x'", "true or false"),
    ("a = 1 and 5", "true or false"),
    ("a = 99999999999999999999", "exceeds 64 bits"),
    ("a = 0.0", "0.0"),
    ("a = 1e999", "range"),
    ("a is 5", "'NULL'"),
    ("a not 5", "follows"),
    ("/* open", "'/'"),
    ("a = 1;", "';'"),
    ("(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1), "nested"),
    ("a = 1" + " = TRUE" * 10, "tested again"),
    ("a = '" + "x" * 70_000 + "'", "characters"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED, ids=[case[0][:30] for case in REFUSED])
def test_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=r".") as refusal:
        parse_sql92(text)
    assert why in refusal.value.message
    assert refusal.value.remedy


def test_a_property_that_is_almost_a_number_takes_linear_time() -> None:
    """Any producer may send it; brokers evaluate it for each subscription, between other requests.

    Not a timing test: in quadratic time, it would exceed the suite's own limit.
    """
    filter_ = parse_sql92("a > 1.5")
    assert not filter_.matches({"a": "1" * 1_000_000 + "x"})
    assert filter_.matches({"a": "1" * 300})


def test_deep_and_long_expressions_are_evaluated() -> None:
    deep = "(" * MAX_DEPTH + "a = 1" + ")" * MAX_DEPTH
    assert parse_sql92(deep).matches({"a": "1"})
    nested = "a = 1"
    for _ in range(MAX_DEPTH - 2):
        nested = f"({nested} OR b = 2 AND NOT c = 3)"
    assert parse_sql92(nested).matches({"a": "1"})
    long = " OR ".join(f"a = {number}" for number in range(4_000))
    assert parse_sql92(long).matches({"a": "3999"})
    assert not parse_sql92(long).matches({"a": "4000"})
