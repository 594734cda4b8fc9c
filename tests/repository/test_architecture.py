"""docs/architecture.md and the comments are true: the modules that they name exist, and the stated limits hold."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.repository.package_code import MODULES, PACKAGE, nodes, trees

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}


def test_the_modules_that_are_named_exist() -> None:
    named = {name for name in re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)`", PAGE) if name.split(".")[0] in PACKAGES}
    assert len(named) > 30
    missing = [name for name in named if not _exists(name)]
    assert not missing, sorted(missing)


def test_the_first_pages_name_every_package() -> None:
    """The package's docstring names all of them, README's picture those that take part in a message's way."""
    docstring = ast.get_docstring(trees()[PACKAGE / "__init__.py"]) or ""
    assert set(re.findall(r"``([a-z_]+)``", docstring)) - {"rocket"} == PACKAGES | {"arrow", "model", "errors"}
    for picture in ("overview.svg", "overview.zh.svg"):
        folders = (ROOT / "docs" / "images" / picture).read_text().partition("monospace")[2].partition("</g>")[0]
        named = set(re.findall(r"[a-z]+", " ".join(re.findall(r">([^<]+)</text>", folders))))
        assert named & PACKAGES == PACKAGES - {"acl", "cli", "console", "testing"}


def _exists(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    module = path.parent.with_suffix(".py")  # of a function or class
    return path.is_dir() or path.with_suffix(".py").is_file() or (module.is_file() and path.name in module.read_text())


def test_modules_and_functions_are_short() -> None:
    """A ceiling, not a guide: divide by meaning, long before it."""
    lengths = {str(path.relative_to(PACKAGE)): path.read_text().count("\n") for path in MODULES}
    assert [name for name, length in lengths.items() if length > 600] == []
    functions = [
        (name, node.name)
        for name, node in nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno + 1 > 80
    ]
    assert functions == []


def test_the_modules_that_docstrings_and_comments_name_exist() -> None:
    """As ``folder/name.py``, as ``package.module``, or as ``name.py`` if it is in the same package."""
    paths = [str(path.relative_to(PACKAGE)) for path in MODULES]
    missing = []
    for module in paths:
        text = (PACKAGE / module).read_text()
        strings = [node.value for node in ast.walk(trees()[PACKAGE / module]) if isinstance(node, ast.Expr)]
        docstrings = [str(node.value) for node in strings if isinstance(node, ast.Constant)]
        prose = "\n".join(re.findall(r"#.*", text) + docstrings)
        package = module.partition("/")[0] + "/"
        near = [path for path in paths if path.startswith(package)] if "/" in module else paths
        missing += [
            (module, file)
            for file in re.findall(r"(?<![\w./-])[\w./]*\w\.py\b", prose)
            if not any(f"/{path}".endswith(f"/{file}") for path in (paths if "/" in file else near))
        ]
        missing += [
            (module, name)
            for name in re.findall(r"``(?:spark_rocket\.)?([a-z_]+(?:\.[a-z_0-9]+)+)``", prose)
            if name.split(".")[0] in PACKAGES and not name.endswith(".conf") and not _exists(name)
        ]
    assert not missing


def test_private_constants_are_used() -> None:
    unused = []
    for path in MODULES:
        tree = trees()[path]
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        private = {target.id for target in targets if isinstance(target, ast.Name) and re.match(r"_[^_]", target.id)}
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        unused += [f"{path.relative_to(PACKAGE)}: {name}" for name in private - used]
    assert not unused


SAME_NAMES = {
    "Admin": "aio: the same for asyncio",
    "Producer": "aio: the same for asyncio",
    "Reader": "aio: the same for asyncio",
}
"""Names of several public classes, with the reason."""


def test_a_public_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in trees()[path].body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    unknown = {name: found for name, found in repeated.items() if name not in SAME_NAMES}
    assert not unknown, "rename one of them, or add the reason to SAME_NAMES"
    assert not SAME_NAMES.keys() - repeated.keys(), "these names are unique now: remove them from SAME_NAMES"
