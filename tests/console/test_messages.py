"""The messages of the console's pages: each exists in English and in Chinese."""

from __future__ import annotations

import ast
import html
import json
import re
from itertools import count
from pathlib import Path

import pytest

from spark_rocket import errors
from spark_rocket.datasource.bodies import decoding
from tests.console.scripts import SCRIPTS, STATIC, Literal, literals

TAGS = {"tr", "trNodes"}
#: Values of RocketMQ's protocol, units, and names that are the same in every language.
SAME = {
    *("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"),  # actions of a permission
    *("Allow", "Deny", "Normal", "Super", "Custom", "Default", "Topic:"),
    *("KiB", "MiB", "GiB", "TiB"),
    "use strict",
}


def _table(name: str) -> dict[str, str]:
    source = (STATIC / "chinese.js").read_text(encoding="utf-8")
    found: dict[str, str] = json.loads(source.partition(f"export const {name} = ")[2].partition("};\n")[0] + "}")
    return found


#: Terms that stay English in Chinese messages.
TERMS = {"AccessKey", "Avro", "Broker", "ID", "Key", "NameServer", "POP", "Schema", "SecretKey", "Tag"}


CHINESE, CHINESE_ERRORS, CHINESE_REASONS = _table("CHINESE"), _table("CHINESE_ERRORS"), _table("CHINESE_REASONS")
LITERALS = [(path, literal) for path in SCRIPTS if path.name != "chinese.js" for literal in literals(path.read_text())]
MESSAGES = {literal.key for _, literal in LITERALS if literal.tag in TAGS}


def test_every_message_is_translated() -> None:
    assert len(MESSAGES) > 400
    assert MESSAGES - set(CHINESE) == set()
    assert set(CHINESE) - MESSAGES == set(), "no script has these messages"


def values_in(message: str) -> list[str]:
    return sorted(re.findall(r"\{\d\}", message))


def test_translations_have_the_values_of_their_messages() -> None:
    wrong = [(english, chinese) for english, chinese in CHINESE.items() if values_in(english) != values_in(chinese)]
    assert wrong == []


def test_translations_are_chinese_but_for_terms() -> None:
    others = [text for text in CHINESE.values() if not re.search(r"[\u4e00-\u9fff]", text)]
    assert [text for text in others if set(re.findall(r"[A-Za-z]+", text)) - TERMS] == []


def test_every_error_of_the_console_has_a_title() -> None:
    """Messages of errors are English; in Chinese, the meaning of their code precedes them."""
    package = STATIC.parent
    codes = {"CONSOLE_FAULT", "NOT_AVRO", "BROKER_GONE"}
    for path in package.rglob("*.py"):
        codes |= set(re.findall(r'code ?= ?"([A-Z_]+)"', path.read_text(encoding="utf-8")))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RocketError)]
    reached = (errors.ClientError, errors.RemotingError, errors.ProtocolError, errors.ConfigError, errors.StateError)
    codes |= {kind.code for kind in kinds if issubclass(kind, reached)}
    assert codes - set(CHINESE_ERRORS) == set()


def _reasons() -> set[str]:
    """The reasons of bad records as templates: what the modules of bodies raise, or say instead of Python."""
    found = {decoding.reason(kind()) for kind in (EOFError, RecursionError, MemoryError, KeyError)} | {
        "the column {0}: {1}"
    }
    for path in Path(decoding.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            said: ast.expr | None = None
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("BodyError", "ColumnError"):
                said = node.args[-1]
            elif isinstance(node, ast.Return) and path.name == "decoding.py":
                said = node.value
            if isinstance(said, ast.JoinedStr):
                values = count()
                parts = [
                    part.value if isinstance(part, ast.Constant) else f"{{{next(values)}}}" for part in said.values
                ]
                found.add("".join(map(str, parts)))
            elif isinstance(said, ast.Constant) and isinstance(said.value, str):
                found.add(said.value)
    return found


def test_every_reason_of_a_bad_record_is_translated() -> None:
    computed = {"{0}; {1}", "{0}.{1}", "{0}{1} is not {2}"}  # made of others
    reasons = _reasons()
    assert len(reasons) > 30
    assert reasons - CHINESE_REASONS.keys() - computed == set()
    assert CHINESE_REASONS.keys() - reasons == set(), "no body has these reasons"
    for english, chinese in CHINESE_REASONS.items():
        assert sorted(re.findall(r"\{\d\}", english)) == sorted(re.findall(r"\{\d\}", chinese))


# --- no message without a translation ---------------------------------------------------------------------------------

CLASSES = set(re.findall(r"\.([a-z][\w-]*)", "".join(path.read_text() for path in STATIC.glob("*.css"))))
CODE = re.compile(
    r"(?:from|import) \Z"  # modules
    r"|\b(?:class|href|pattern|d|viewBox): \Z|\bh\(\Z|\bquerySelector(?:All)?\(\Z"  # elements, selectors
    r"|\bh\(\"code\", \{\}, \Z|<code>\Z"  # code in messages
)
#: Two lower-case words, or a word with a capital that is not a name of JavaScript or of a setting.
WORDS = re.compile(r"[A-Za-z]{2,},? [A-Za-z]{2,}|(?:^|[^\w-])[A-Z][a-z]+(?![\w-])")


def _is_message(literal: Literal) -> bool:
    text = " ".join(literal.parts)
    if literal.tag in TAGS or text in SAME or CODE.search(literal.before):
        return False
    if set(text.split()) <= CLASSES or text.startswith(("/", "rocket ", ".option(", "Content-", "X-")):
        return False
    return bool(WORDS.search(text))


def test_the_scripts_have_no_other_messages() -> None:
    left = [f"{path.name}:{literal.line}: {literal.key}" for path, literal in LITERALS if _is_message(literal)]
    assert left == []


@pytest.mark.parametrize(
    "text", ["No topics yet.", "Topics", "all queues", "${n} messages of a", "Message in ${topic}"]
)
def test_a_message_without_a_tag_is_found(text: str) -> None:
    (*_, plain), (*_, tagged) = literals(f"show(`{text}`)"), literals(f"show(tr`{text}`)")
    assert _is_message(plain)
    assert not _is_message(tagged)


def test_messages_of_the_first_page() -> None:
    """Each visible text of index.html is that of a message of main.js, which main.js translates."""
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    main = (STATIC / "main.js").read_text(encoding="utf-8")
    known = dict(re.findall(r"(\w+): tr`([^`]+)`", main.partition("const messages = {")[2].partition("};")[0]))
    used = set()
    for attributes, text in re.findall(
        r"<[a-z]+\b([^>]*)>([^<]*)", page.partition("<body>")[2].partition("<noscript>")[0]
    ):
        named = dict(re.findall(r'(aria-label|title|data-message)="([^"]*)"', attributes))
        message = named.pop("data-message", None)
        texts = [*named.values(), *([html.unescape(text.strip())] if text.strip() not in ("", "…", "rocket") else [])]
        assert not texts or message in known, texts
        if message:
            used.add(message)
            assert set(texts) == {known[message]}
    assert used == set(known)


def test_the_strings_of_a_script() -> None:
    source = 'a = \'x\'; // "no"\nb = tr`one ${f(`two ${\'three\'}`)} four` + /"[/"]/.test(s) /* `no` */ + "it\'s";'
    assert [(found.tag, found.parts, found.line) for found in literals(source)] == [
        ("", ("x",), 1),
        ("", ("three",), 2),
        ("", ("two ", ""), 2),
        ("tr", ("one ", " four"), 2),
        ("", ("it's",), 2),
    ]


def test_all_scripts_are_read() -> None:
    assert {Path(path).name for path in SCRIPTS} >= {"main.js", "language.js", "chinese.js", "overview.js"}


def test_no_scripts_import_one_another_in_a_circle() -> None:
    pattern = re.compile(r'(?:from|import)\s*\(?"(\.[^"]+)"')
    imports = {path: {(path.parent / name).resolve() for name in pattern.findall(path.read_text())} for path in SCRIPTS}
    assert all(path.is_file() for found in imports.values() for path in found)
    rest = dict(imports)
    while leaves := [path for path, found in rest.items() if not found & set(rest)]:
        for path in leaves:
            del rest[path]
    assert not rest, sorted(path.name for path in rest)
