"""Pages of the site that are made when it is built (a hook of MkDocs, named in mkdocs.yml).

``index.md`` is the README with its links turned to the site's pages; ``cli.md`` has every verb and option of
``rocket``, asked from the program itself; each notebook becomes a page with its stored outputs and pictures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    pages = {"index.md": home(), "cli.md": command_line()}
    for found in list(files):
        if found.src_uri.endswith(".ipynb"):
            pages[found.src_uri.replace(".ipynb", ".md")] = notebook(Path(found.abs_src_path))
    for address, text in pages.items():
        files.append(File.generated(config, address, content=text))
    return files


def home() -> str:
    """The README. What is linked outside docs/ is not on the site."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return re.sub(r"\[(\w+)\]\(\1\)", r"\1", text)


def command_line() -> str:
    from spark_rocket.cli.main import rocket

    parts = [
        "# The command line: every verb and option\n",
        "What `rocket … --help` says, verb by verb; made from the program when this site was built. "
        "Who knows mqadmin finds each of its verbs [here](guides/from-mqadmin.md).\n",
    ]
    for depth, context in commands(click.Context(rocket, info_name="rocket")):
        heading = "#" * min(depth + 2, 4)
        parts.append(f"{heading} {context.command_path}\n\n```text\n{context.get_help()}\n```\n")
    return "\n".join(parts)


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
