"""``make matrix``: run the data source's tests with several versions of Python and PySpark, and print one table.

Each pair gets an environment in ``build/matrix``, which is reused. Interpreters are searched on the PATH and in
pyenv; missing ones are reported. A test that needs a newer Spark is skipped; its reason names the version.
``--only 3.11-4.0`` runs one pair, ``--list`` shows all pairs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAIRS = [
    ("3.11", "4.0"),
    ("3.11", "4.1"),
    ("3.11", "4.2"),
    ("3.11", "4.3"),
    ("3.12", "4.3"),
    ("3.13", "4.3"),
    ("3.14", "4.3"),
]
TESTS = [
    "tests/datasource/test_capabilities.py",
    "tests/datasource/test_schema.py",
    *(
        f"tests/spark/test_{name}.py"
        for name in ("read", "stream", "traps", "write", "exactly_once", "body_formats", "sql", "lag")
    ),
]
PACKAGES = [f"{ROOT}[all,connect]", "pytest>=8.3", "pytest-xdist>=3.6", "hypothesis>=6.112", "psutil>=6"]


def interpreter(version: str) -> str | None:
    """Return the path of Python ``version``; None if it is not installed."""
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    found = [str(path) for root in roots for path in sorted(root.glob(f"{version}.*/bin/python"))]
    for candidate in [*found[::-1], shutil.which(f"python{version}")]:
        if candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
            return candidate
    return None


def environment(python: str, name: str, spark: str) -> Path:
    """Create the environment of a pair, once, and return its Python."""
    folder = ROOT / "build" / "matrix" / name
    inside = folder / "bin" / "python"
    if not inside.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    install = [inside, "-m", "pip", "install", "-qq", "--disable-pip-version-check", f"pyspark=={spark}.*", *PACKAGES]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    return inside


def run(python: Path, log: Path) -> str:
    """Run the tests and return pytest's last line."""
    settings = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    with log.open("w", encoding="utf-8") as file:
        command = [python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *TESTS]
        subprocess.run(command, cwd=ROOT, env=settings, stdout=file, stderr=subprocess.STDOUT)
    lines = log.read_text(encoding="utf-8").splitlines()
    return lines[-1].strip("= ") if lines else "no output"


def row(version: str, spark: str) -> str:
    """Run one pair and return its row of the table."""
    name = f"{version}-{spark}"
    day = datetime.now(UTC).date().isoformat()
    python = interpreter(version)
    if python is None:
        return f"| {version} | {spark} | — | not run: Python {version} is not installed | {day} |"
    try:
        inside = environment(python, name, spark)
    except subprocess.CalledProcessError as problem:
        return f"| {version} | {spark} | — | not run: installation failed ({problem.returncode}) | {day} |"
    script = "import platform, pyspark; print(platform.python_version(), pyspark.__version__)"
    versions = subprocess.run([inside, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    result = re.sub(r" in [0-9.]+s.*", "", run(inside, ROOT / "build" / "matrix" / f"{name}.log"))
    return f"| {versions[0]} | {versions[1]} | {sys.platform} | {result} | {day} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="PYTHON-SPARK", help="run this pair; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the pairs")
    given = parser.parse_args()
    pairs = [pair for pair in PAIRS if not given.only or "-".join(pair) in given.only]
    if given.list:
        print("\n".join("-".join(pair) for pair in pairs))
        return 0
    rows = []
    for version, spark in pairs:
        print(f"Python {version}, PySpark {spark} …", file=sys.stderr, flush=True)
        rows.append(row(version, spark))
        print(rows[-1], file=sys.stderr, flush=True)
    print("| Python | PySpark | system | tests | date |\n|---|---|---|---|---|", *rows, sep="\n")
    return int(any("failed" in each or "error" in each for each in rows))


if __name__ == "__main__":
    sys.exit(main())
