"""Every verb exists, has a help text, and is imported only when it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from spark_rocket.cli.help import pages
from spark_rocket.cli.main import rocket
from spark_rocket.cli.other_tools import KAFKA, MQADMIN, RELATED
from spark_rocket.cli.verbs import VerbGroup, commands_with
from tests.cli.conftest import Run
from tests.cli.tool_names import KAFKA_SCRIPTS, MQADMIN_COMMANDS


def _verbs(group: click.Group, path: str = "rocket") -> Iterator[tuple[str, click.Group, str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", group, name, command
        if isinstance(command, click.Group):
            yield from _verbs(command, f"{path} {name}")


VERBS = list(_verbs(rocket))
PATHS = {path for path, *_ in VERBS}


@pytest.mark.parametrize(("path", "group", "name", "command"), VERBS, ids=[verb[0] for verb in VERBS])
def test_each_verb_has_a_help_text(path: str, group: click.Group, name: str, command: click.Command) -> None:
    assert command.name == name
    sections = group.sections.values() if isinstance(group, VerbGroup) else ()
    is_lazy = any(name in verbs for verbs in sections)
    assert bool(command.short_help) != is_lazy, "one line in the list of commands: its own, or the table's"
    assert command.help
    assert command.help[0].isupper()
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{path} {parameter.opts[0]} has no help text"


def test_help_lists_every_verb(run: Run) -> None:
    said = run("--help")
    listed = {line.split()[0] for line in said.out.splitlines() if line.startswith("  ")}
    assert (said.status, {path.split()[1] for path, group, *_ in VERBS if group is rocket} <= listed) == (0, True)
    assert run("-h").out == said.out
    assert run("--version").out.startswith("spark_rocket ")
    assert run("group").status == 2
    assert "No such command" in run("group", "unknown").err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["gruop"], "'rocket group'"),
        (["group", "lagg"], "'rocket group lag'"),
        (["brokr", "config"], "'rocket broker'"),
        (["broker", "confg"], "'rocket broker config'"),
        (["message", "reset"], "'rocket message resend'"),
        (["lag"], "'rocket group lag'"),
        (["reset"], "'rocket offsets reset'"),
        (["producers"], "'rocket cluster producers'"),
        (["topic", "describe"], "'rocket topic show'"),
        (["group", "reset"], "'rocket offsets reset'"),
        (["message", "find"], "'rocket message query-key' or 'rocket message query-id'"),
        (["resetOffsetByTime"], "'rocket offsets reset'"),
        (["resetoffsetbytime"], "'rocket offsets reset'"),
        (["updateTopic", "-n", "h"], "'rocket topic create' or 'rocket topic update'?"),
        (["kafka-consumer-groups.sh"], "'rocket group list' or 'rocket group lag' or 'rocket offsets reset'"),
        (["message", "peek"], "'rocket message tail'"),
        (["dlq", "retry"], "'rocket dlq resend'"),
        (["Consume"], "'rocket message tail' or 'rocket bench consume'"),
    ],
)
def test_an_unknown_verb_gets_a_suggestion(run: Run, words: list[str], meant: str) -> None:
    assert run(*words).failed(f"Did you mean {meant}", status=2)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["dlq", "resend", "g", "--key", "k"], "'rocket message query-key' or 'rocket message send --key'"),
        (["message", "get", "--key", "k"], "'rocket message query-key' or 'rocket message send --key'"),
        (["topic", "show", "--watch", "5"], "'rocket topic stats --watch'"),
        (["group", "lag", "--tags", "x"], "'rocket message tail --tags'"),
        (["topic", "show", "--topic", "t"], "'rocket topic show TOPIC'"),
        (["bench", "send", "--key", "k"], "'rocket bench send --keys'"),
        (["topic", "list", "--jsno"], "'rocket topic list --json'"),
    ],
)
def test_an_unknown_option_gets_a_suggestion(run: Run, words: list[str], meant: str) -> None:
    assert run(*words).failed(f"Did you mean {meant}", status=2)


COMMANDS = {path: command for path, _, _, command in VERBS if not isinstance(command, click.Group)}
OPTIONS = {path: {name for parameter in each.params for name in parameter.opts} for path, each in COMMANDS.items()}
HIDDEN = {
    name
    for command in COMMANDS.values()
    for parameter in command.params
    if isinstance(parameter, click.Option) and parameter.hidden
    for name in parameter.opts
}


@pytest.mark.parametrize("path", COMMANDS)
def test_each_option_of_a_sibling_leads_to_a_command_that_has_it(path: str) -> None:
    context = click.Context(rocket, info_name="rocket")
    for word in path.split()[1:]:
        assert isinstance(context.command, click.Group)
        command = context.command.get_command(context, word)
        assert command is not None
        context = click.Context(command, parent=context, info_name=word)
    group = path.rpartition(" ")[0]
    siblings = {name for each, names in OPTIONS.items() if each.rpartition(" ")[0] == group for name in names}
    for option in {name for name in siblings if name.startswith("--")} - OPTIONS[path] - HIDDEN:
        lines = commands_with(option, context)
        assert lines, option
        for line in lines:
            words, _, named = line.partition(" --")
            words = words if named else re.sub(r" [A-Z_]+$", "", words)
            assert words in COMMANDS, (option, line)
            assert not named or f"--{named}" in OPTIONS[words], (option, line)


@pytest.mark.parametrize(
    ("topic", "meant"),
    [
        ("kafka-topics", "'rocket topic list --help'"),
        ("kafka-topics.sh", "'rocket topic list --help'"),
        ("resetOffsetByTime", "'rocket offsets reset --help'"),
        ("kafka-storage", "RocketMQ has no KRaft quorum"),
        ("peek", "'rocket message tail --help'"),
        ("exactly-onc", "exactly-once"),
    ],
)
def test_an_unknown_help_topic_gets_a_suggestion(run: Run, topic: str, meant: str) -> None:
    assert run("help", topic).failed(meant)


TOOLS = [*MQADMIN_COMMANDS.split(), *(f"{name}.sh" for name in KAFKA_SCRIPTS.split())]


def test_all_commands_of_other_tools_are_in_the_table() -> None:
    assert (set(MQADMIN), set(KAFKA)) == (set(MQADMIN_COMMANDS.split()), set(KAFKA_SCRIPTS.split()))


@pytest.mark.parametrize("words", [(), ("help",)], ids=["rocket", "rocket help"])
@pytest.mark.parametrize("name", TOOLS)
def test_commands_of_other_tools_name_their_counterpart(run: Run, name: str, words: tuple[str, ...]) -> None:
    """Or the reason why there is none: a sentence."""
    said = run(*words, name, *(() if words else ("-n", "127.0.0.1:9876")))
    if words and said.status == 0:
        assert "Usage: rocket" in said.out, "rocket has a command of the same name"
        return
    assert said.failed(name, status=1 if words else 2)
    answer = " ".join(said.err.split()).partition(f"{name!r}.")[2]
    lines = [line.removesuffix(" --help") for line in re.findall(r"'(rocket [^']+)'", answer)]
    assert all(line in PATHS or line.startswith("rocket help ") for line in lines), answer
    assert lines or re.fullmatch(r" [A-Z][^.]{20,}\.( [A-Z][^.]+\.)?", answer), answer


@pytest.mark.parametrize("name", ["bin/kafka-topics.sh", "./kafka-topics", "Kafka-Topics.bat"])
def test_scripts_with_a_path(run: Run, name: str) -> None:
    assert run(name).failed("'rocket topic list'", status=2)


def test_commands_in_reasons_exist() -> None:
    reasons = {reason for reason in (MQADMIN | KAFKA).values() if isinstance(reason, str)}
    named = {tuple(found.split()) for reason in reasons for found in re.findall(r"(rocket(?: [a-z]+)+)", reason)}
    assert len(named) > 5
    for words in named:
        if words[1] == "help":
            assert words[2] in pages(), words
        else:
            assert " ".join(words[:2]) in PATHS, words


def test_suggested_commands_exist() -> None:
    elsewhere = [lines for lines in (MQADMIN | KAFKA).values() if not isinstance(lines, str)]
    for line in (line for lines in (*RELATED.values(), *elsewhere) for line in lines):
        words = f"rocket {line}".split()
        assert " ".join(words) in PATHS or words[1] in ("--version", "help"), line


def test_the_guide_and_the_table_have_the_same_commands() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/from-mqadmin.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert names <= set(MQADMIN), names - set(MQADMIN)


def test_other_names_of_verbs_work_and_are_not_listed(run: Run) -> None:
    said = run("group", "reset-offset", "--help")
    assert (said.status, "rocket offsets reset" in said.out) == (0, True)
    assert "reset-offset" not in run("group", "--help").out


@pytest.mark.live
def test_help_imports_no_heavy_modules() -> None:
    program = (
        "import sys\nfrom spark_rocket.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'rich', 'asyncio', 'socket', 'spark_rocket.client', 'spark_rocket.broker', 'orjson'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
