"""Output on a terminal, to a pipe, and as JSON."""

from __future__ import annotations

import io
import json
import sys

import click
import pytest

from spark_rocket.cli import show
from spark_rocket.cli.show import Column
from spark_rocket.common.units import duration_text, second_text
from spark_rocket.errors import RemotingTimeoutError, StateError

ROWS = [
    {"topic": "orders", "messages": 12, "brokers": ["a", "b"], "order": True},
    {"topic": "x" * 30, "messages": 3, "brokers": [], "order": None},
]
COLUMNS = (Column("topic"), Column("messages"), Column("brokers", spare=True), Column("order"))
Capsys = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: pytest takes sys.stdout for itself when the test begins."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    output = Terminal()
    monkeypatch.setattr(sys, "stdout", output)
    return output


def test_a_pipe_gets_plain_text_without_truncation(capsys: Capsys) -> None:
    show.table(ROWS, COLUMNS, title="Topics", total={"messages": 15}, foot="That is all.")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Topics", "TOPIC                           MESSAGES  BROKERS  ORDER"]
    assert [line.split("  ")[0] for line in lines[2:]] == ["orders", "x" * 30, "-", "That is all."]
    assert lines[2].split() == ["orders", "12", "a,", "b", "yes"]
    show.table([], COLUMNS, empty="There are no topics.")
    assert capsys.readouterr().out == "There are no topics.\n"


@pytest.mark.parametrize(("width", "has_brokers"), [(80, True), (50, False)])
def test_a_terminal_gets_the_columns_that_fit(monkeypatch: pytest.MonkeyPatch, width: int, has_brokers: bool) -> None:
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(width))
    show.table(ROWS, COLUMNS, marked=lambda row: row["messages"] > 10)
    said = terminal.getvalue()
    assert "\x1b[1;33m" in said
    assert ("a, b" in said) is has_brokers
    assert ("Omitted: BROKERS" in said) is not has_brokers
    assert "orders" in said


def test_a_terminal_is_not_driven_by_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They choose the ids of clients, names, properties, stacks and the remarks of errors."""
    nasty, shown = "\x1b[2J\x9b31m", "\\u001b[2J\\u009b31m"
    terminal = at_a_terminal(monkeypatch)
    show.table([{"topic": nasty}], [Column("topic")], title=f"title {nasty}", foot=f"foot {nasty}")
    show.record({f"name {nasty}": f"value {nasty}"}, f"record {nasty}")
    said = terminal.getvalue()
    assert "\x1b[2J" not in said
    assert "\x9b" not in said
    assert [line for line in said.splitlines() if line.startswith(shown)]
    for word in ("title", "foot", "name", "value", "record"):
        assert f"{word} {shown}" in said

    for print_json in (show.document, show.line):
        terminal = at_a_terminal(monkeypatch)
        print_json({"tags": f"{nasty}\U000e0001"})
        assert json.loads(terminal.getvalue()) == {"tags": f"{nasty}\U000e0001"}
        assert shown in terminal.getvalue()

    problems = Terminal()
    monkeypatch.setattr(sys, "stderr", problems)
    show.print_failures({"broker-a": RemotingTimeoutError(nasty)})
    assert problems.getvalue() == f"rocket: broker-a: {shown}\n"


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    show.table(ROWS, COLUMNS, marked=lambda row: True)
    assert "\x1b[1;33m" not in terminal.getvalue()


def test_colours_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert show.coloured("ok", "green") == "ok"
    at_a_terminal(monkeypatch)
    assert show.coloured("ok", "green") == "\x1b[32mok\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert show.coloured("ok", "green") == "ok"


def test_markup_in_values_is_printed_literally(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    show.table([{"topic": "[red]x[/red] :smile:"}], [Column("topic")])
    assert "[red]x[/red] :smile:" in terminal.getvalue()


def test_records(capsys: Capsys) -> None:
    show.record({"name": "broker-a", "groups": "g1\ng2", "none": None}, "A broker")
    assert capsys.readouterr().out == "A broker\n  name    broker-a\n  groups  g1\n          g2\n  none    -\n"


def test_json(capsys: Capsys) -> None:
    show.document({"sets": {2, 1}, "bytes": b"\xff", "text": "你好"})
    assert json.loads(capsys.readouterr().out) == {"sets": [1, 2], "bytes": "\\xff", "text": "你好"}
    show.line([1])
    assert capsys.readouterr().out == "[1]\n"


def test_watch_runs_until_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    looks = 0

    def fetch() -> tuple[object, show.Table]:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt
        return [looks], show.Table([{"topic": f"look {looks}"}], [Column("topic")])

    with pytest.raises(KeyboardInterrupt):
        show.watch(fetch, 0.001)
    assert "look 1" in terminal.getvalue()
    assert "look 2" in terminal.getvalue()
    looks = 0
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    with pytest.raises(KeyboardInterrupt):
        show.watch(fetch, 0.001, as_json=True)
    assert pipe.getvalue() == "[1]\n[2]\n"


def test_watch_reports_errors_and_retries(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    looks = iter([None, RemotingTimeoutError("No answer."), None, KeyboardInterrupt()])

    def fetch() -> tuple[object, show.Table]:
        problem = next(looks)
        if problem is not None:
            raise problem
        return "fine", show.Table([{"topic": "t"}], [Column("topic")])

    with pytest.raises(KeyboardInterrupt):
        show.watch(fetch, 0.001)
    assert capsys.readouterr().out.split("\n\n") == ["TOPIC\nt", "TOPIC\nt\nNot refreshed: No answer.", "TOPIC\nt", ""]
    looks = iter([RemotingTimeoutError("No answer.")])
    with pytest.raises(RemotingTimeoutError):  # nothing was seen yet
        show.watch(fetch, 0.001)


def test_questions(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    show.confirm("Really?", yes=True)
    with pytest.raises(StateError, match=r"Really\? Cannot ask for confirmation"):
        show.confirm("Really?", yes=False)
    monkeypatch.setattr(sys, "stdin", Terminal(""))  # its end, as Ctrl-D
    with pytest.raises(click.exceptions.Exit) as caught:
        show.confirm("Really?", yes=False)
    assert caught.value.exit_code == 1
    assert capsys.readouterr().out.endswith("Nothing was changed.\n")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1000, "1 s"), (60_000, "1 min"), (3_723_000, "1 h 2 min"), (90_000_000, "1 d 1 h")],
)
def test_durations(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text


def test_no_time_is_a_dash() -> None:
    assert (second_text(0), second_text(-1)) == ("-", "-")
