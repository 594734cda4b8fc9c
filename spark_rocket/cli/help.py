"""``rocket help``: the installed documentation.

The pages of ``docs/`` are part of the package. A page is named by its file (``security``), or with its folder if that
is ambiguous (``reference/security``). On a terminal, the page is formatted and shown in the pager. Chinese readers get
the translation ``x.zh.md`` of a page ``x.md``, where there is one.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path

import click

import spark_rocket
from spark_rocket.cli import show
from spark_rocket.cli.arguments import language_option
from spark_rocket.cli.other_tools import counterpart
from spark_rocket.cli.show import Column
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.errors import ConfigError

_FOLDERS = ("guides", "recipes", "reference", "internals", "")
_COLUMNS = (Column("page"), Column("title"))


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [page for page in pages() if page.startswith(incomplete)]


@click.command()
@click.argument("topic", required=False, shell_complete=_complete)
@language_option
@click.pass_context
def help(context: click.Context, topic: str | None, language: str) -> None:
    """Show a page of the documentation, or the help of a verb. Without TOPIC: list the pages."""
    if topic is not None and topic.endswith(".zh"):
        topic, language = topic.removesuffix(".zh"), "zh"
    found = pages(language)
    if topic is None:
        show.table([{"page": page, "title": _title(path)} for page, path in found.items()], _COLUMNS)
    elif topic in found:
        _page(found[topic].read_text(encoding="utf-8"))
    elif (verb := _verb(context, topic)) is not None:
        click.echo_via_pager(verb)
    else:
        raise ConfigError(f"Unknown help topic {topic!r}.", remedy=_remedy(context, topic, found))


def pages(language: str = "en") -> dict[str, Path]:
    """Return the pages of the documentation by name: guides first. Pages without a translation are English."""
    package = Path(spark_rocket.__file__).parent
    root = package / "docs" if (package / "docs").is_dir() else package.parent / "docs"  # installed, or a checkout
    found: dict[str, Path] = {}
    for folder in _FOLDERS:
        for path in sorted((root / folder).glob("*.md")):
            if path.suffixes[:-1] == [".zh"]:
                continue
            name = path.stem if path.stem not in found else f"{folder}/{path.stem}"
            translation = path.with_suffix(f".{language}.md")
            found[name] = translation if translation.exists() else path
    return found


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next(lines, "").lstrip("# ").strip().replace("`", "")


def _verb(context: click.Context, topic: str) -> str | None:
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    command = root.command.get_command(root, topic)
    return None if command is None else command.get_help(click.Context(command, info_name=topic, parent=root))


def _remedy(context: click.Context, topic: str, found: Mapping[str, Path]) -> str:
    """Name similar pages, or else the commands that are meant, also by the names that other tools give them."""
    near = difflib.get_close_matches(topic, found, n=3) or [page for page in found if topic.lower() in page]
    elsewhere = counterpart(topic)
    if elsewhere is None and near:
        return f"Did you mean {' or '.join(near)}?"
    if isinstance(elsewhere, str):
        return elsewhere
    root = context.find_root()
    assert isinstance(root.command, VerbGroup)
    lines = [f"{line} --help" for line in root.command.suggestions(root, topic)]
    return f"Did you mean {' or '.join(map(repr, lines))}?" if lines else "List the pages with: rocket help"


def _page(text: str) -> None:
    if not sys.stdout.isatty():
        click.echo(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.capture() as shown:
        console.print(Markdown(text, hyperlinks=False))
    click.echo_via_pager(shown.get(), color=True)
