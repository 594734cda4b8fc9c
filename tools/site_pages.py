"""Pages that are generated when the site is built (a MkDocs hook, named in mkdocs.yml).

``index.md`` is the README with its links changed to the site's pages, ``index.zh.md`` the Chinese one. ``cli.md``
lists every verb and option of ``rocket``, taken from the program itself. ``api.md`` lists the public classes and
functions; mkdocstrings inserts their docstrings. Each notebook becomes a page with its stored outputs and pictures. Old
addresses of pages and headings redirect to the new ones (``docs/redirects.yml``).

A page ``x.zh.md`` is the Chinese translation of ``x.md``. It has the theme's Chinese labels, and a switch in the header
leads from one to the other; pages without a translation lead to the Chinese home page. The search finds Chinese words
because every Chinese character in the index is followed by a zero-width space, at which the search separates terms.
"""

from __future__ import annotations

import copy
import gc
import html
import importlib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import click
import yaml

ROOT = Path(__file__).resolve().parents[1]

_MOVED_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="robots" content="noindex">
<meta name="viewport" content="width=device-width">
<title>This page has moved</title>
</head>
<body>
<h1>This page has moved</h1>
<p>It is now at <a href="{page}">{page}</a>. Its sections:</p>
<ul>
{sections}
</ul>
{script}
</body>
</html>
"""
_SCRIPT = """<script>
{{
  const moved = {moved};
  const follow = () => {{
    const heading = decodeURIComponent(location.hash.slice(1));
    const target = document.getElementById(heading) ? undefined : moved[heading];
    if (target) location.replace(target);
    else if (moved[""]) location.replace(moved[""] + location.hash);
  }};
  addEventListener("hashchange", follow);
  follow();
}}
</script>"""

# The widths of code in a table: its font, and the padding of a cell.
_CHARACTER_REM, _CELL_PADDING_REM = 0.335, 1.4
_MAX_NAME_CHARACTERS, _MAX_WORD_CHARACTERS, _MIN_TEXT_CHARACTERS = 36, 14, 20

#: The weight of a folder or page in the search: readers look for a guide first, and seldom for a single method.
_SEARCH_BOOSTS = {"guides": 4.0, "recipes": 4.0, "reference": 2.0, "internals": 0.5, "api.md": 0.2, "cli.md": 0.5}

#: The section of the navigation with the Chinese pages.
_CHINESE_SECTION = "中文"
#: The sections of the navigation with the English pages, in Chinese.
_SECTIONS = {
    "Recipes": "示例",
    "Use": "使用",
    "Operate": "运维",
    "Migrate": "迁移",
    "Reference": "参考",
    "Internals": "内部实现",
}


def on_startup(command: str, **_: Any) -> None:
    """A build keeps nearly all objects that it makes, for which the garbage collector would look again and again."""
    if command == "build":
        gc.disable()


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    pages = {
        "index.md": home("README.md"),
        "index.zh.md": home("README.zh-CN.md"),
        "cli.md": command_line(),
        "api.md": api(),
    }
    for found in list(files):
        if found.src_uri.endswith(".ipynb"):
            pages[found.src_uri.replace(".ipynb", ".md")] = notebook(Path(found.abs_src_path))
    for address, text in pages.items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> None:
    """Set the weight of the page in the search of the site. Pages for contributors are not found."""
    folder = page.file.src_uri.rpartition("/")[0] or page.file.src_uri
    excluded = config.not_in_nav.match_file(page.file.src_uri)
    page.meta["search"] = {"boost": _SEARCH_BOOSTS.get(folder, 1.0), "exclude": excluded}


def is_chinese(page: Any) -> bool:
    return bool(page.file.src_uri.endswith(".zh.md"))


def on_nav(nav: Any, **_: Any) -> Any:
    """The links to the previous and the next page stay within a language."""
    for page in nav.pages:
        if page.next_page and is_chinese(page) != is_chinese(page.next_page):
            page.next_page.previous_page = None
            page.next_page = None
    return nav


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> Any:
    """Set the language of the theme, the language switch and the navigation of a page."""
    chinese = is_chinese(page)
    pages = {found.file.src_uri: found.url for found in nav.pages}
    here = page.file.src_uri.replace(".zh.md", ".md")
    config.theme["language"] = "zh" if chinese else "en"
    config.extra["alternate"] = [
        {"name": "English", "lang": "en", "link": pages.get(here, page.url)},
        {"name": "中文", "lang": "zh", "link": pages.get(here.replace(".md", ".zh.md"), pages["index.zh.md"])},
    ]
    context["nav"] = copy.copy(nav)
    translated = [item for section in nav.items if section.title == _CHINESE_SECTION for item in section.children]
    others = [item for item in nav.items if item.title != _CHINESE_SECTION]
    context["nav"].items = [*translated, *in_english_only(others, pages)] if chinese else others
    if chinese:
        context["nav"].homepage = next(found for found in nav.pages if found.file.src_uri == "index.zh.md")
    return context


def in_english_only(items: list[Any], pages: Mapping[str, str]) -> list[Any]:
    """Return the pages of the navigation that have no translation, in their sections."""
    found = []
    for item in items:
        if item.is_section:
            section = copy.copy(item)
            section.title = f"{_SECTIONS[item.title]}（英文）"
            section.children = in_english_only(item.children, pages)
            if section.children:
                found.append(section)
        elif item.file.src_uri.replace(".md", ".zh.md") not in pages:
            found.append(item)
    return found


def on_page_content(content: str, **_: Any) -> str:
    return re.sub(r"<table>.*?</table>", lambda table: with_widths_and_labels(table.group()), content, flags=re.S)


def with_widths_and_labels(table: str) -> str:
    """Give each column a minimum width, so that browsers do not break short names, and each cell its column's name.

    On a phone, ``docs/stylesheets/tables.css`` shows the rows of a wide table as cards with these names.
    """
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in table.split("</tr>")]
    names = [html.escape(text(cell)) for cell in rows[0]]
    columns = zip(*(row for row in rows if len(row) == len(names)), strict=True)
    words = [max((characters(word) for cell in column for word in text(cell).split()), default=0) for column in columns]
    words[-1] = max(words[-1], _MIN_TEXT_CHARACTERS)
    limits = [_MAX_NAME_CHARACTERS, *[_MAX_WORD_CHARACTERS] * (len(names) - 2), _MIN_TEXT_CHARACTERS]
    widths = [_CELL_PADDING_REM + min(word, limit) * _CHARACTER_REM for word, limit in zip(words, limits, strict=True)]

    def opened(row: str) -> str:
        heads = (f'<th style="min-width: min({width:.1f}rem, 48vw)"' for width in widths)
        cells = (f'<td data-label="{name}"' for name in names)
        return re.sub(r"<td\b", lambda _: next(cells), re.sub(r"<th\b", lambda _: next(heads), row))

    return f'<table data-columns="{len(names)}">' + "</tr>".join(map(opened, table.split("</tr>"))).removeprefix(
        "<table>"
    )


def characters(word: str) -> int:
    """Return the width of a word; a Chinese character is as wide as two others."""
    return sum(2 if character >= "\u2e80" else 1 for character in word)


def text(cell: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", cell))


def on_post_build(config: Any) -> None:
    separate_chinese_characters(Path(config["site_dir"]) / "search" / "search_index.json")
    redirects = yaml.safe_load((ROOT / "docs" / "redirects.yml").read_text(encoding="utf-8"))
    for old, moved in redirects.items():
        links = {heading: link(old, to) for heading, to in moved.items() if to != f"{old}#{heading}".rstrip("#")}
        if links:
            redirect(Path(config["site_dir"]) / address(old), links)


def separate_chinese_characters(index: Path) -> None:
    """The search separates terms at the zero-width space, and a query into the terms that the index has."""
    found = json.loads(index.read_text(encoding="utf-8"))
    for entry in found["docs"]:
        for field in ("title", "text"):
            entry[field] = re.sub(r"([\u4e00-\u9fff])", "\\1\u200b", entry[field])
    index.write_text(json.dumps(found, separators=(",", ":")), encoding="utf-8")


def address(source: str) -> str:
    """Return the address of a page or heading, named by its source: ``a/b.md#c`` becomes ``a/b.html#c``."""
    return re.sub(r"\.md(?=#|$)", ".html", source)


def link(old: str, to: str) -> str:
    return posixpath.relpath(address(to), posixpath.dirname(old) or ".")


def redirect(page: Path, links: dict[str, str]) -> None:
    """Write a page that redirects. If the page still exists, it only gets the redirects of its old headings."""
    script = _SCRIPT.format(moved=json.dumps(links, indent=2))
    if page.exists():
        text = page.read_text(encoding="utf-8").replace("</body>", f"{script}\n</body>")
    else:
        sections = "\n".join(
            f'<li><a href="{html.escape(to)}">{heading.replace("-", " ")}</a></li>'
            for heading, to in links.items()
            if heading
        )
        text = _MOVED_PAGE.format(page=html.escape(links[""]), sections=sections, script=script)
        page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def home(readme: str) -> str:
    """Return a README with links to the site's pages. Other files outside docs/ are not on the site."""
    text = (ROOT / readme).read_text(encoding="utf-8").replace("](docs/", "](")
    text = text.replace("](README.md)", "](index.md)").replace("](README.zh-CN.md)", "](index.zh.md)")
    return re.sub(r"\[([\w.]+)\]\(\1\)", r"\1", text)


def command_line() -> str:
    from spark_rocket.cli.main import rocket

    parts = [
        "# The command line: every verb and option\n",
        "For everyone who uses the command line: the output of `rocket … --help` for every verb. "
        "For the verbs of mqadmin, see [From mqadmin](guides/from-mqadmin.md).\n",
    ]
    for depth, context in commands(click.Context(rocket, info_name="rocket")):
        heading = "#" * min(depth + 2, 4)
        parts.append(f"{heading} {context.command_path}\n\n```text\n{context.get_help()}\n```\n")
    return "\n".join(parts)


#: Heading to module; the public names of a module are its ``__all__``, or all names without an underscore.
_PUBLIC = {
    "Options, and reading without Spark": "spark_rocket",
    "Data source": "spark_rocket.datasource",
    "Client": "spark_rocket.client",
    "Administration: brokers": "spark_rocket.client.admin.broker_rows",
    "Administration: topics": "spark_rocket.client.admin.topic_rows",
    "Administration: groups": "spark_rocket.client.admin.group_rows",
    "Administration: messages": "spark_rocket.client.admin.message_rows",
    "Messages and queues": "spark_rocket.model",
    "Errors": "spark_rocket.errors",
    "Tests": "spark_rocket.testing",
}


def api() -> str:
    """Return the page of the public API: one directive of mkdocstrings for each name."""
    parts = [
        "# Python API\n",
        "For Python developers: the public classes and functions, from their docstrings. Other modules and names may "
        "change at any time ([versions](reference/versions.md)). The [client reference](reference/client.md) explains "
        "how they fit together.\n",
    ]
    for heading, module in _PUBLIC.items():
        parts.append(f"## {heading}\n\n`{module}`\n")
        parts += [f"::: {module}.{name}\n" for name in public_names(module)]
    return "\n".join(parts)


def public_names(module: str) -> list[str]:
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and isinstance(value, type | FunctionType) and value.__module__ == module
    ]
    return sorted(name for name in names if not name.startswith("__"))


def commands(context: click.Context, depth: int = 0) -> Iterator[tuple[int, click.Context]]:
    context.color = False
    context.terminal_width = 100
    yield depth, context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield from commands(click.Context(command, info_name=name, parent=context), depth + 1)


def notebook(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts.extend(output(found) for found in cell["outputs"])
    parts.insert(1, f"*This page is a notebook: [{path.name}]({path.name}), with the outputs of a run.*")
    return "\n\n".join(parts)


def output(found: dict[str, Any]) -> str:
    data = found.get("data", {})
    if picture := data.get("image/png"):
        return f'<img alt="What this cell drew" src="data:image/png;base64,{"".join(picture).strip()}">'
    text = "".join(found.get("text") or data.get("text/plain", ""))
    return f"```text\n{text.rstrip()}\n```"
