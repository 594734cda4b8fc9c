"""Java properties text, by cases and by round trip."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rocket.errors import ConfigError
from spark_rocket.protocol.java_properties import (
    edit_properties,
    expand_variables,
    has_variable,
    parse_properties,
    render_properties,
)

CASES = [
    ("a=1", [("a", "1", 1)]),
    ("a:1\nb 2\nc\t=\t3 ", [("a", "1", 1), ("b", "2", 2), ("c", "3 ", 3)]),
    ("# no\n! no\n\n  a = x = y", [("a", "x = y", 4)]),
    ("a=1\r\nb=2\rc=3", [("a", "1", 1), ("b", "2", 2), ("c", "3", 3)]),
    ("a=one \\\n   two\\\n three\nb=4", [("a", "one twothree", 1), ("b", "4", 4)]),
    ("a=x\\\\\nb=1", [("a", "x\\", 1), ("b", "1", 2)]),
    (r"a\ b\:c=\t\n\u00e9\z", [("a b:c", "\t\n\u00e9z", 1)]),
    (r"a=\ud83d\ude00", [("a", "\U0001f600", 1)]),
    ("novalue", [("novalue", "", 1)]),
    ("a=1\\", [("a", "1", 1)]),
    ("=x", [("", "x", 1)]),
]


@pytest.mark.parametrize(("text", "entries"), CASES)
def test_a_text_is_read_as_java_reads_it(text: str, entries: list[tuple[str, str, int]]) -> None:
    assert parse_properties(text) == entries


@pytest.mark.parametrize("value", [r"a=\u12", r"a=\uxyz1", r"ok=1\u"])
def test_a_broken_unicode_escape_names_file_and_line(value: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.conf, line 2: "):
        parse_properties("x=1\n" + value, "broker.conf")


@pytest.mark.parametrize("text", ["x=1\nstorePathRootDir=\0/x", "x=1\na\0=1", r"x=1" + "\n" + r"a=\u0000"])
def test_a_nul_character_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.conf, line 2: .* NUL"):
        parse_properties(text, "broker.conf")


names = st.text(min_size=1).filter(lambda text: text.isprintable())


@given(st.dictionaries(names, st.text().filter(lambda text: "\x00" not in text), max_size=5))
def test_what_is_rendered_is_read_back(entries: dict[str, str]) -> None:
    text = render_properties(entries.items())
    read = {name: value for name, value, _ in parse_properties(text)}
    # A lone surrogate is not a character; no text file can store it.
    assert read == {
        name: value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for name, value in entries.items()
    } or not all(_is_text(part) for pair in entries.items() for part in pair)


EDITS = [
    ("", {"a": "1"}, "a=1\n"),
    ("# first\na=1\n! b=2\nb = 2\n", {"b": "3"}, "# first\na=1\n! b=2\nb=3\n"),
    ("a=1\r\nb=2\r\n", {"a": "x", "c": "y"}, "a=x\r\nb=2\r\nc=y\r\n"),
    ("a=one\\\n  two\nb=2", {"a": "1"}, "a=1\nb=2"),
    ("a=1\na=2\n", {"a": "3"}, "a=1\na=3\n"),
    ("a=1", {"b": "2"}, "a=1\nb=2\n"),
    ("a=1\\", {"b": "2"}, "a=1\\\n\nb=2\n"),
    ("\\", {"b": "2"}, "\\\n\nb=2\n"),
    ("\na=1\\\r", {"b": "2"}, "\na=1\\\r\rb=2\n"),
]


def test_joined_lines_that_are_empty_are_no_entry() -> None:
    assert parse_properties("\\\n\n\\\n  \\\n\na=1\n\\") == [("a", "1", 6)]


@pytest.mark.parametrize(("text", "values", "edited"), EDITS)
def test_an_edit_changes_these_names_only(text: str, values: dict[str, str], edited: str) -> None:
    assert edit_properties(text, values) == edited


@given(
    st.text(alphabet="ab=:#! \\\\\n\rx"),
    st.dictionaries(st.sampled_from(["a", "b", "ab", "c"]), st.text(alphabet="xy =\\\\#\n"), max_size=3),
)
def test_any_text_that_is_edited_says_the_rest_as_before(text: str, values: dict[str, str]) -> None:
    before = {name: value for name, value, _ in parse_properties(text)}
    after = {name: value for name, value, _ in parse_properties(edit_properties(text, values))}
    assert after == before | values


def _is_text(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def test_variables_are_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert expand_variables("${user.home}/store", {}) == "/home/someone/store"
    assert expand_variables("${ROCKETMQ_HOME}/x-${A}", {"ROCKETMQ_HOME": "/opt/mq"}) == "/opt/mq/x-${A}"
    assert expand_variables("$plain", {"plain": "no"}) == "$plain"
    assert expand_variables("${A}${A", {"A": "a"}) == "a${A"
    assert [has_variable(text) for text in ("${A}", "x${", "}${A", "${A${A}")] == [True, False, False, True]


def test_variables_without_an_end_take_linear_time() -> None:
    """A value may come from a request."""
    text = "${" * 40_000
    begun = time.perf_counter()
    assert expand_variables(text, {}) == text
    assert not has_variable(text)
    assert time.perf_counter() - begun < 3, "quadratic: 25 s"
