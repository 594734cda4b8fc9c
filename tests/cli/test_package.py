"""``rocket package`` without Spark; tests/spark/test_package.py runs the zip on workers."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path

from spark_rocket.cli.package import write_package


def test_the_zip_has_everything_that_it_imports(tmp_path: Path) -> None:
    """Also what functions import when they are called."""
    write_package(tmp_path / "spark_rocket.zip")
    with zipfile.ZipFile(tmp_path / "spark_rocket.zip") as package:
        texts = {name: package.read(name).decode() for name in package.namelist()}
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in texts}
    assert "spark_rocket.datasource.source" in modules
    assert "spark_rocket.broker.broker" not in modules
    missing = {
        (name, module)
        for name, text in texts.items()
        for module in imported(ast.parse(text))
        if module.split(".")[0] == "spark_rocket" and module not in modules
    }
    assert not missing


def test_a_link_to_itself_is_replaced(tmp_path: Path) -> None:
    output = tmp_path / "spark_rocket.zip"
    output.symlink_to(output)
    write_package(output)
    assert zipfile.is_zipfile(output)


def imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names
