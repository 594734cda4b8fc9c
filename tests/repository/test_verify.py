"""``make verify``: tools/verify.py in a small project, with a Makefile whose suites pass, fail and print."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = """
ARGS ?=
FUZZ_CASES ?= 9
REPORT = $(subst --junitxml=,,$(lastword $(ARGS)))
long: ; @cp good.xml $(REPORT)
connect: ; @cp mixed.xml $(REPORT); exit 1
crash: ; @echo $(TORN_IMAGES) images; exit 2
bench: ; @echo '[{"name": "x.y", "value": 1234.5, "unit": "rows/s", "ratio": 0.5}]' >$(lastword $(ARGS))
fuzz: ; @test $(FUZZ_CASES) = 7 && cp good.xml $(REPORT)
matrix: ; @printf '| Python | PySpark |\\n|---|---|\\n| 3.11 | 4.3 |\\n'
"""
MIXED = """<testsuites><testsuite>
<testcase classname="tests.a" name="good"><properties><property name="figure" value="7 kills"/></properties></testcase>
<testcase classname="tests.a" name="bad"><failure message="no"/></testcase>
<testcase classname="tests.a" name="other"><skipped/></testcase>
</testsuite></testsuites>"""
GOOD = '<testsuites><testsuite><testcase classname="tests.a" name="b"/></testsuite></testsuites>'

pytestmark = [
    pytest.mark.skipif(not (shutil.which("make") and shutil.which("git")), reason="make or git is missing"),
    pytest.mark.live,
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "verify.py", tmp_path / "tools")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "mixed.xml").write_text(MIXED)
    (tmp_path / "good.xml").write_text(GOOD)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def verify(project: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    command = [sys.executable, "tools/verify.py", *arguments]
    environment = os.environ | variables
    status = subprocess.run(command, cwd=project, env=environment, capture_output=True, check=False).returncode
    return status, (project / "docs" / "reference" / "verification.md").read_text()


def test_a_failed_suite_does_not_end_the_run(project: Path) -> None:
    status, page = verify(project, "--only", "long", "connect", "crash", "bench", "matrix")
    assert status == 1
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `make")}
    assert "| passed |" in rows["make long"]
    assert "| 1 passed |" in rows["make long"]
    assert "| failed |" in rows["make connect"]
    assert "| 1 passed, 1 failed, 1 skipped |" in rows["make connect"]
    assert "| failed |" in rows["make crash"]
    assert "| passed |" in rows["make bench"]
    assert "| passed |" in rows["make matrix"]
    assert "| not run |" in rows["make fuzz"]
    details = page[page.index("## Figures") :]
    assert "* `make connect`: 7 kills" in details
    assert "* `make connect` failed: tests.a::bad" in details
    assert "`x.y` 1,234 rows/s, 0.50 of its ceiling" in details
    assert "* `make matrix`: 3.11 4.3" in details
    _, later = verify(project, "--only", "matrix")
    assert later == page


def row(page: str, suite: str) -> str:
    return next(line for line in page.splitlines() if line.startswith(f"| `make {suite}`"))


def test_each_row_names_its_form_and_commit_and_a_later_run_keeps_the_others(project: Path) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=project, check=True, capture_output=True, text=True
    )
    status, page = verify(project, "--short", "--only", "long")
    assert status == 0
    first = row(page, "long")
    assert "| short | passed |" in first
    assert f"| `{commit.stdout.strip()}`, 20" in first
    (project / "Makefile").write_text(MAKEFILE + "\n")
    shutil.rmtree(project / "build")  # as in another clone
    _, page = verify(project, "--only", "matrix")
    assert row(page, "long") == first
    assert "| full | passed |" in row(page, "matrix")
    assert " with changes`, 20" in row(page, "matrix")


def test_a_row_names_the_variables_that_the_environment_sets(project: Path) -> None:
    status, page = verify(project, "--only", "fuzz", FUZZ_CASES="7")
    assert status == 0
    assert "| full FUZZ_CASES=7 | passed |" in row(page, "fuzz")
    status, page = verify(project, "--only", "fuzz", FUZZ_CASES="8")
    assert status == 1
    assert "| full FUZZ_CASES=8 | failed |" in row(page, "fuzz")
