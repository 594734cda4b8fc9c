"""How ``rocket message`` and ``bench`` show bodies, lines and latencies, and their help."""

from __future__ import annotations

import sys

import pytest

from spark_rocket.cli.commands import message_show
from spark_rocket.cli.commands.bench import Latencies
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("body", "form", "line", "text"),
    [
        (b"a\nb\\", "auto", "a\\nb\\\\", "a\nb\\"),
        (b'{"a": "\\u00fc"}', "auto", '{"a": "\\u00fc"}', '{"a": "\\u00fc"}'),
        (b'{"b": [1, 2]}', "json", '{"b": [1, 2]}', '{\n  "b": [\n    1,\n    2\n  ]\n}'),
        (b"no json", "json", "no json", "no json"),
        (b"\x00\x01", "auto", "0001", "00000000  00 01                                             |..|"),
        (b"\xff\xfea", "text", "\\xff\\xfea", "\\xff\\xfea"),
        (b"abc", "none", "", ""),
        (b"", "auto", "", ""),
    ],
)
def test_forms_of_bodies(body: bytes, form: str, line: str, text: str) -> None:
    assert message_show.body_line(body, form) == line
    assert message_show.body_text(body, form) == text


def test_large_binary_bodies() -> None:
    lines = message_show.body_text(b"\x00" * 5_000, "auto").splitlines()
    assert (len(lines), lines[-1]) == (65, "… 3,976 more bytes; --body hex shows all.")
    assert len(message_show.body_text(b"\x00" * 5_000, "hex").splitlines()) == 313


def test_a_terminal_is_not_driven_by_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    nasty = "\x1b[2Jred\x07 \u202e\u200b\x9b31m ok ✓"
    assert message_show.body_text(nasty.encode(), "text") == nasty, "into a file it goes as it is"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = message_show.body_text(nasty.encode(), "text")
    assert shown == "\\u001b[2Jred\\u0007 \\u202e\\u200b\\u009b31m ok ✓"
    assert message_show.body_text(b"a\tb\nc", "text") == "a\tb\nc"
    assert message_show.body_line(b'{"a": "\xc2\x9b31m"}', "json") == '{"a": "\\u009b31m"}'


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("short", None, "short"),
        ("x" * 30, 30, "x" * 30),
        ("x" * 31, 30, "x" * 29 + "…"),
        ("你" * 15, 30, "你" * 15),
        ("你" * 16, 30, "你" * 14 + "…"),
        ("e\u0301" * 30, 30, "e\u0301" * 30),
    ],
)
def test_lines_are_cut_to_columns(text: str, width: int | None, shown: str) -> None:
    assert message_show.cut(text, width) == shown


def test_latencies_are_within_two_percent() -> None:
    latencies = Latencies()
    for number in range(1, 1001):
        latencies.add(number / 1000)
    shown = latencies.to_json()
    assert shown["mean"] == 500.5
    assert shown["max"] == 1000.0
    for percent in (50, 90, 99):
        assert percent * 10 <= shown[f"p{percent}"] <= percent * 10 * 1.021
    assert set(Latencies().to_json().values()) == {0.0}


def test_each_verb_has_help(run: Run) -> None:
    for group, verbs in (
        ("message", ("send", "tail", "get", "query-key", "query-id", "trace", "resend")),
        ("dlq", ("list", "resend")),
        ("queue", ("dump",)),
        ("bench", ("send", "consume")),
    ):
        listed = run(group, "--help").out
        for verb in verbs:
            assert verb in listed
            said = run(group, verb, "--help")
            assert said.status == 0
            assert max(map(len, said.out.splitlines())) <= 80
