"""``make verify``: tools/verify.py in a small project, with a Makefile whose suites pass, fail and print."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = """
ARGS ?=
REPORT = $(subst --junitxml=,,$(lastword $(ARGS)))
long: ; @cp good.xml $(REPORT)
connect: ; @cp mixed.xml $(REPORT); exit 1
crash: ; @echo $(TORN_IMAGES) images; exit 2
bench: ; @echo '[{"name": "x.y", "value": 1234.5, "unit": "rows/s", "ratio": 0.5}]' >$(lastword $(ARGS))
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


def verify(project: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "tools/verify.py", *arguments]
    status = subprocess.run(command, cwd=project, capture_output=True, check=False).returncode
    return status, (project / "docs" / "reference" / "verification.md").read_text()


def test_a_failed_suite_does_not_end_the_run(project: Path) -> None:
    status, page = verify(project, "--only", "long", "connect", "crash", "bench", "matrix")
    assert status == 1
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `make")}
    assert "| passed |" in rows["make long"]
    assert rows["make long"].endswith("| 1 passed |")
    assert "| failed |" in rows["make connect"]
    assert rows["make connect"].endswith("1 passed, 1 failed, 1 skipped |")
    assert "| failed |" in rows["make crash"]
    assert "| passed |" in rows["make bench"]
    assert "| passed |" in rows["make matrix"]
    assert "| not run |" in rows["make fuzz"]
    details = page[page.index("## Figures") :]
    assert "* `make connect`: 7 kills" in details
    assert "* `make connect` failed: tests.a::bad" in details
    assert "`x.y` 1,234 rows/s, 0.50 of its ceiling" in details
    assert "* `make matrix`: 3.11 4.3" in details


def test_the_page_names_form_and_commit(project: Path) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=project, check=True, capture_output=True, text=True
    )
    status, page = verify(project, "--short", "--only", "long")
    assert status == 0
    assert "Short form, 20" in page
    assert f"commit `{commit.stdout.strip()}`" in page
    assert "| not in the short form |" in page


def test_a_later_run_keeps_the_rows_of_the_same_commit(project: Path) -> None:
    verify(project, "--only", "long")
    _, page = verify(project, "--only", "matrix")
    assert page.count("| passed |") == 2
    (project / "Makefile").write_text(MAKEFILE + "\n")
    _, page = verify(project, "--only", "matrix")
    assert page.count("| passed |") == 1
    assert "with changes" in page
