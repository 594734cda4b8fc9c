"""Phrases that the project's texts do not use, in documentation, comments, docstrings and messages.

``docs/internals/writing.md`` has the rules. ``python -m tests.test_language PATH ...`` lists what is
found in some files or folders.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
ROOTS = ("spark_rocket", "jobs", "benchmarks", "tools", "docs", "tests", *PAGES)
#: Paths that are not checked: this module lists the phrases.
EXEMPT = ("tests/test_language.py",)

#: A phrase (a regular expression; a space stands for any white space), and what to write instead.
BANNED = {
    r"patience": "retry deadline, timeout",
    r"(?:try|tries|tried|made|asked) again": "retry",
    r"turn(?:s|ed|ing)? away|sen[dt]s? away": "reject, refuse",
    r"what waits where it came from": "backpressure",
    r"(?:its|the|their) time is over": "deadline, timeout",
    r"(?:a|the|no|any|as|without|these|those) repeats?(?! of the)|repeats of": "duplicate",
    r"what (?:is|are|was|were) no": "invalid",
    r"(?:is|are|was|were) no(?! (?:longer|more|less|fewer|later|earlier|older|newer|larger|smaller))": "not, invalid",
    r"nonsense": "invalid, malformed",
    r"whoever|somebody|nobody": "the client, peer or user",
    r"(?:to|for|by|from|of|with|at|on|only|and|tells?|asks?|answers?|gives?) who"
    r"(?! (?:is|are|was|has|owns))": "the client, peer or user",
    r"under way": "pending, in flight",
    r"where it (?:is|was) to get": "durable, replicated",
    r"alike": "homogeneous, uniform, equal",
    r"(?:short|long) way": "fast path, general path",
    r"anew": "again, recreated, rebuilt",
    r"travel(?:s|led|ling)?": "pickled by value, sent, transferred",
    r"(?:taken|takes?|took) back": "reset, rewound, revoked",
    r"what (?:falls|fell) short|falls? short|open points?": "limitation, known issue",
    r"what holds": "guarantees",
    r"as ever": "as usual",
    r"in vain": "without success",
    r"heed(?:s|ed)?": "honor",
    r"at hand": "available",
    r"for good": "permanently",
    r"(?:leave|leaves|left|leaving) out": "skip, omit",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"(?:is|are|was|were|be) away": "unavailable",
    r"believ\w+": "trust, accept",
    r"told": "identified by, notified, configured",
    r"said": "reported",
    r"says": "reports, specifies",
    r"(?:brokers?|servers?|files?|options?|headers?|it|clients?|kernel|who) wants?": "requires, needs",
    r"in silence": "silently",
    r"dearest": "most expensive",
    r"one's own": "your own",
    r"nothing of": "no, none",
    r"texts": "strings, messages",
    r"(?:a|no|this) text(?! (?:column|file|format|body|record|field|line|message))": "string",
    r"(?:Found|Counted|Kept|Held|Read|Written|Sent|Made|Asked|Given|Taken|Named|Shown|Stored|Checked|Measured|Compared)"
    r" (?:is|are|was|were)": "subject before verb",
    r"Who [^?|]{0,150}[.;]": "a noun: the users of ...",
    r"(?:the|these|its|whose|their) letters": "dead letters, messages",
}


#: What looks like one of these phrases, and is allowed.
ALLOWED = r"(?i)\bthere\s+(?:is|are|was|were)\s+no\b"


def _pattern() -> re.Pattern[str]:
    groups = []
    for number, phrase in enumerate(BANNED):
        flag = "(?i:" if phrase == phrase.lower() else "(?:"  # a capital stands for the beginning of a sentence
        groups.append(rf"(?P<p{number}>{flag}{phrase}))".replace(" ", r"\s+"))
    return re.compile(rf"\b(?<![\w-])(?:{'|'.join(groups)})(?![\w-])")


PATTERN = _pattern()


def blank(text: str, pattern: str) -> str:
    """Replace what matches with spaces, so that positions stay."""
    return re.sub(pattern, lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and other strings, each with its line. Placeholders of f-strings are empty."""
    inner = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(value) for value in node.values}
            yield node.lineno, "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value
    first, comment = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            first = first or token.start[0]
            comment += token.string.lstrip("#: ") + "\n"
        elif comment and token.type != tokenize.NL:
            yield first, comment
            first, comment = 0, ""


def markdown_texts(source: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, and the comments in blocks of code."""
    blocks = r"(?ms)^[ ]*```.*?^[ ]*```"
    for block in re.finditer(blocks, source):
        line = source.count("\n", 0, block.start()) + 1
        for number, comment in enumerate(block[0].split("\n")):
            yield line + number, "".join(re.findall(r"(?:^|\s)(?:#|//|--)\s(.*)", comment))
    prose = blank(source, blocks)
    prose = blank(prose, r"\]\([^)]*\)|https?://\S+")
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", prose):
        yield line, paragraph
        line += paragraph.count("\n")


def script_texts(source: str) -> Iterator[tuple[int, str]]:
    """Comments and strings of JavaScript."""
    for found in re.finditer(r"(?m)(?<![:\w])//.*(?:\n\s*//.*)*|/\*[\s\S]*?\*/|\"[^\"\n]*\"|`[^`]*`", source):
        yield source.count("\n", 0, found.start()) + 1, found[0].replace("//", "  ")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from python_texts(source)
    elif path.suffix == ".md":
        yield from markdown_texts(source)
    elif path.suffix == ".js":
        yield from script_texts(source)
    elif path.suffix == ".ipynb":
        for cell in json.loads(source)["cells"]:
            kind = python_texts if cell["cell_type"] == "code" else markdown_texts
            yield from kind("".join(cell["source"]))
    else:
        yield 1, source


def phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """The lines, phrases and replacements found in a text; code between backquotes does not count."""
    for found in PATTERN.finditer(blank(blank(text, r"(`+)[^`]*?\1"), ALLOWED)):
        advice = list(BANNED.values())[int((found.lastgroup or "p0")[1:])]
        yield text.count("\n", 0, found.start()), " ".join(found[0].split()), advice


def files(paths: tuple[str, ...] = ROOTS) -> Iterator[Path]:
    for name in paths:
        path = ROOT / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        own = (file for file in found if "node_modules" not in file.parts)
        yield from (file for file in own if file.suffix in {".py", ".md", ".ipynb", ".js", ".html", ".sh"})


def banned(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line + offset}: {phrase!r}; write: {advice}"
        for line, text in texts(path)
        for offset, phrase, advice in phrases(text)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "%s sends what is no frame",
        "x is no\n    permission",
        "Found are the duplicates of a request.",
        "Who comes from Kafka reads from-kafka.md.",
        "a broker that was away for 2 s",
        "Nobody is told.",
        "Queues that were made anew",
    ],
)
def test_a_banned_phrase_is_found(text: str) -> None:
    assert list(phrases(text))


@pytest.mark.parametrize(
    "text",
    [
        "There is no such topic.",
        "The lease is no longer valid.",
        "Duplicates that were found are dropped.",
        "Pass `told` and ``nobody`` through.",
        "Dead letters and capital letters",
        "Who may read a topic?",
        "amended, recommended, a text file",
    ],
)
def test_other_phrases_are_not_found(text: str) -> None:
    assert not list(phrases(text))


def test_texts_of_a_module() -> None:
    source = '"""One."""\n# two\n# three\ntold = f"four {told} five"  # six\n'
    assert sorted(python_texts(source)) == [(1, "One."), (2, "two\nthree\n"), (4, "four  five"), (4, "six\n")]


def test_texts_of_a_page() -> None:
    found = markdown_texts("One\ntwo\n\n```python\ntold = 1  # three\n```\n\n[four](told.md)\n")
    texts = [(line, text.strip()) for line, text in found if text.strip()]
    assert [(line, text.replace(" ", "")) for line, text in texts] == [(5, "three"), (1, "One\ntwo"), (8, "[four")]


def test_no_text_has_a_banned_phrase() -> None:
    revised = [path for path in files() if not str(path.relative_to(ROOT)).startswith(EXEMPT)]
    assert not [finding for path in revised for finding in banned(path)]


def test_no_text_has_the_marks_of_a_merge() -> None:
    found = [path for path in files() if re.search(r"^(?:<{7}|>{7}) ", path.read_text(encoding="utf-8"), re.M)]
    assert not found


if __name__ == "__main__":
    for path in files(tuple(sys.argv[1:]) or ROOTS):
        print(*banned(path), sep="\n", end="\n" if banned(path) else "")
