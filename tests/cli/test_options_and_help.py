"""``rocket options`` and ``rocket help``: reference and documentation in the shell, and ``spark_rocket.options()``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import spark_rocket
from spark_rocket.cli import main
from spark_rocket.cli.help import pages
from spark_rocket.cli.text import wrapped
from spark_rocket.datasource.options.other_names import FOREIGN_NAMES, NOT_NEEDED
from spark_rocket.datasource.options.table import OPTIONS
from spark_rocket.errors import ClientError
from tests.cli.conftest import Run


def test_all_options_are_listed_without_markdown() -> None:
    listed = spark_rocket.options()
    assert [option.name for option in listed] == [*(option.name for option in OPTIONS), *NOT_NEEDED]
    assert not [option for option in listed if "](" in option.meaning or "`" in option.meaning + option.type]
    assert {name for option in listed for name in option.other_names} == set(FOREIGN_NAMES)


def test_a_pattern_matches_names_and_aliases() -> None:
    (name_server,) = spark_rocket.options("KAFKA.bootstrap")
    assert (name_server.name, name_server.type, name_server.scope) == (
        "nameServer",
        "addresses",
        ("read", "write", "view"),
    )
    (acks,) = spark_rocket.options("kafka.acks")
    assert acks.scope == ()
    assert "no such option" in str(acks)
    (limit,) = spark_rocket.options("maxOffsetsPer")
    assert str(limit).startswith("maxOffsetsPerTrigger (read stream; integer ≥ 1): ")
    assert spark_rocket.options("unknown") == []


@pytest.mark.parametrize(
    ("language", "link"), [("en", "See TLS (rocket help connect)."), ("zh", "参见 TLS（rocket help connect）。")]
)
def test_links_are_pages_of_rocket_help(language: str, link: str) -> None:
    (tls,) = spark_rocket.options("kafka.security.protocol", language)
    assert link in tls.meaning
    for option in spark_rocket.options("", language):
        for page in re.findall(r"rocket help ([\w-]*)", option.meaning):
            assert page in pages(), option


def test_options_in_chinese(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for option, english in zip(spark_rocket.options("", "zh"), spark_rocket.options(), strict=True):
        assert re.search(r"[\u4e00-\u9fff]", option.meaning), option
        assert "](" not in option.meaning
        assert "`" not in option.meaning
        assert replace(option, meaning="") == replace(english, meaning="")
    monkeypatch.setenv("COLUMNS", "120")
    line = "maxTriggerDelay（流式读取；时长 1ms–30d，默认 15m）：minOffsetsPerTrigger 造成的最长推迟。\n"
    assert run("options", "maxTriggerDelay", "--language", "zh").out == line
    monkeypatch.setenv("LANGUAGE", "zh_CN")
    assert run("options", "maxTriggerDelay").out == line
    assert "其他名称：kafka.bootstrap.servers、" in run("options", "bootstrap").out
    assert "maximum delay" in run("options", "maxTriggerDelay", "--language", "en").out


def test_options_in_an_unknown_language() -> None:
    with pytest.raises(ClientError, match=r"language: 'fr'.*'en' or 'zh'"):
        spark_rocket.options("", "fr")


def test_a_line_break_in_chinese() -> None:
    """A character is two columns wide; no line begins with a comma or ends with an opening parenthesis."""
    assert wrapped("消息，消息（a b）", 5, " ") == "消\n 息，\n 消息\n （a\n b）"
    assert wrapped("one two three", 7, "  ") == "one two\n  three"


def test_the_verb_lists_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "bootstrap", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["name"] == "nameServer"
    assert main(["options", "--scope", "view"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert "nameServer" in names
    assert "topic" not in names
    assert max(map(len, lines)) <= 100
    assert main(["options", "unknown"]) == 1
    assert "No option contains 'unknown'. List all options" in capsys.readouterr().err


def test_pages_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["security", "Security"] for line in lines)
    docs = Path(spark_rocket.__file__).parents[1] / "docs"
    assert len(pages()) == len([page for page in docs.rglob("*.md") if not page.name.endswith(".zh.md")])
    assert main(["help", "security"]) == 0
    assert capsys.readouterr().out == (docs / "guides" / "security.md").read_text(encoding="utf-8") + "\n"


@pytest.mark.parametrize(
    ("environment", "words", "is_chinese"),
    [
        ({"LANG": "zh_CN.UTF-8"}, (), True),
        ({"LANG": "zh_TW"}, (), True),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, (), False),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "fr:en:zh"}, (), False),
        ({"LANG": "en_US.UTF-8", "LANGUAGE": "fr:zh_CN"}, (), True),
        ({"LANG": "de_DE.UTF-8"}, (), False),
        ({}, (), False),
        ({"LANG": "zh_CN.UTF-8"}, ("--language", "en"), False),
        ({}, ("--language", "zh"), True),
    ],
)
def test_help_follows_the_language(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    words: tuple[str, ...],
    is_chinese: bool,
) -> None:
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    titles = dict(line.split(maxsplit=1) for line in run("help", *words).out.splitlines())
    assert titles["faq"].rstrip() == ("常见问题" if is_chinese else "Frequently asked questions")
    assert titles["decisions"].isascii(), "it has no translation"
    assert not [name for name in titles if name.endswith(".zh")]
    assert ("常见问题" in run("help", "faq", *words).out.splitlines()[0]) == is_chinese
    assert "常见问题" in run("help", "faq.zh").out.splitlines()[0]


def test_help_on_a_verb_and_on_an_unknown_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "doctor"]) == 0
    assert "Usage: rocket doctor" in capsys.readouterr().out
    assert main(["help", "securty"]) == 1
    assert "Unknown help topic 'securty'. Did you mean security?" in capsys.readouterr().err
    assert main(["help", "../../README"]) == 1


@pytest.mark.live
def test_options_are_listed_without_pyspark_and_pyarrow() -> None:
    code = (
        "import sys, spark_rocket; spark_rocket.options(); print({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
