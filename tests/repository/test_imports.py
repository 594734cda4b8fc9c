"""Allowed imports: import-linter's contracts in pyproject.toml are kept, and the servers import little."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_layers_import_only_what_the_architecture_allows() -> None:
    run = _python("-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache", "--no-logo")
    assert run.returncode == 0, run.stdout + run.stderr
    assert " 0 broken" in run.stdout


def test_neither_modules_nor_folders_import_themselves_through_others() -> None:
    """Imports inside functions and for type checking count, which import-linter's contract ignores."""
    graph = grimp.build_graph("spark_rocket", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # CycleError names the circle
    for depth in range(2, 5):
        folders: dict[str, set[str]] = {}
        for module, imported in imports.items():
            name = _cut(module, depth)
            parent = name.rpartition(".")[0]
            same_parent = {cut for cut in (_cut(one, depth) for one in imported) if cut.rpartition(".")[0] == parent}
            folders.setdefault(name, set()).update(same_parent - {name})
        TopologicalSorter(folders).prepare()


def _cut(module: str, depth: int) -> str:
    return ".".join(module.split(".")[:depth])


@pytest.mark.parametrize("module", ["spark_rocket.namesrv", "spark_rocket.broker", "spark_rocket.cli"])
def test_servers_start_without_the_heavy_libraries(module: str) -> None:
    """`rocket up` answers within two seconds and stays small: Arrow, pandas and Spark are not for the servers."""
    heavy = "{'pyarrow', 'pandas', 'pyspark', 'grpc'}"
    run = _python("-c", f"import {module}, sys; print(sorted({heavy} & set(sys.modules)))")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


def test_the_sinks_of_the_command_line_are_shown_without_spark() -> None:
    modules = "spark_rocket.cli.commands.offsets, spark_rocket.datasource.exactly_once.status"
    run = _python("-c", f"import sys, {modules}; print('pyspark' in sys.modules)")
    assert (run.returncode, run.stdout.strip()) == (0, "False"), run.stdout + run.stderr


def test_the_module_that_spark_imports_by_itself_is_light_and_never_raises() -> None:
    """Spark imports every top-level module named pyspark_* (trap T13), also where pyspark is all there is."""
    run = _python("-W", "error", "-c", "import pyspark_rocket, sys; print('spark_rocket.store' in sys.modules)")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "False"


def test_a_streams_source_starts_without_pandas() -> None:
    """Every streaming query starts a process for it. pyarrow imports pandas when a value is made an array of."""
    modules = "spark_rocket.datasource.stream, spark_rocket.datasource.write.writer"
    run = _python("-c", f"import sys, {modules}; print('pandas' in sys.modules)")
    assert (run.returncode, run.stdout.strip()) == (0, "False"), run.stdout + run.stderr


@pytest.mark.parametrize("package", ["spark_rocket", "spark_rocket.client"])
def test_every_public_name_can_be_imported(package: str) -> None:
    """Their modules are imported on first access, which type checkers do not see."""
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        getattr(module, name)
