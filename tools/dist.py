"""Build the wheel and the sdist in dist/ and check them: the same bytes twice, valid metadata, every extra installed.

Run by ``make dist``. Files in the archives have the time of the last commit, so a rebuild of a commit gives the same
bytes. The installations need a package index and take some minutes; ``--no-install`` leaves them out.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--no-install", action="store_true", help="do not install the wheel once for each extra")
    install = not parser.parse_args().no_install
    shutil.rmtree(DIST, ignore_errors=True)
    built = build(DIST)
    with tempfile.TemporaryDirectory() as folder:
        again = build(Path(folder))
    if built != again:
        sys.exit(f"The build is not reproducible:\n{built}\n{again}")
    files = [str(DIST / name) for name in built]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    for name, digest in built.items():
        print(f"{digest}  dist/{name}")
    if install:
        (wheel,) = DIST.glob("*.whl")
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "long", "tests/repository/test_install.py"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "LONG": "1", "WHEEL": str(wheel)}, check=True)


def build(folder: Path) -> dict[str, str]:
    """Build both archives; return their names with their SHA-256."""
    committed = ["git", "log", "-1", "--format=%ct"]
    epoch = subprocess.run(committed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


if __name__ == "__main__":
    main()
