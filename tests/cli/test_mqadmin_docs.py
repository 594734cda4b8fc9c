"""docs/guides/from-mqadmin.md: its ``rocket`` commands exist, and each mqadmin command has one line."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import click
import pytest

from spark_rocket.cli.main import rocket
from tests.cli.tool_names import MQADMIN_COMMANDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "from-mqadmin.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"`(rocket [^`]+)`", TEXT)))


def test_each_mqadmin_command_has_one_line() -> None:
    first_columns = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("|")]
    named = Counter(verb for column in first_columns for verb in re.findall(r"`(\w+)`", column))
    assert [verb for verb in MQADMIN_COMMANDS.split() if named[verb] != 1] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_on_the_page_exist(line: str) -> None:
    command: click.Command = rocket
    context = click.Context(rocket)
    words = line.split()[1:]
    while isinstance(command, click.Group) and words and re.fullmatch("[a-z-]+", words[0]):
        found = command.get_command(context, words.pop(0))
        assert found is not None, line
        command = found
    _, left_over, _ = command.make_parser(click.Context(command)).parse_args(words)  # NoSuchOption if one is not there
    assert left_over == [], line
