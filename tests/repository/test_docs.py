"""What the documents say is so: scores of request codes, tests that are named, files that are linked."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from spark_rocket.datasource.conditions import CONDITIONS
from spark_rocket.datasource.options.table import OPTIONS
from spark_rocket.protocol.requests import REQUESTS, SENT_TO_CLIENTS
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.proxy import definitions
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.testing import LocalCluster

ROOT = Path(__file__).parents[2]
COMPATIBILITY = (ROOT / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
_ROWS = [
    (code, name, "partial" if note.startswith("partial") else "supported")
    for code, name, note in re.findall(r"^\| (\d+) \| (\w+) \| `[^`]+` \| (.*)\|$", COMPATIBILITY, re.M)
]
_NOT = re.findall(r"(\d+) (\w+)", COMPATIBILITY.partition("\nNot supported: ")[2].partition("\n\n")[0])
SCORES = {int(code): (name, score) for code, name, score in [*_ROWS, *((*row, "not") for row in _NOT)]}


def test_every_request_code_has_a_score() -> None:
    assert {code: name for code, (name, _) in SCORES.items()} == {int(code): code.name for code in RequestCode}
    assert len(SCORES) == len(_ROWS) + len(_NOT)
    assert {score for _, score in SCORES.values()} == {"supported", "partial", "not"}


def test_the_supported_request_codes_are_those_with_a_row() -> None:
    supported = {code for code, (_, score) in SCORES.items() if score != "not"}
    assert supported == (REQUESTS.keys() | SENT_TO_CLIENTS.keys()) - {RequestCode.POP_ROLLBACK}  # slaves refuse it


@pytest.mark.live
def test_request_codes_are_scored_as_the_servers_answer() -> None:
    """An empty request is answered with code 3 by both servers, or it is known to one of them."""
    known = set(SENT_TO_CLIENTS)
    client = RemotingClient()
    try:
        with LocalCluster(in_process=True) as cluster:
            for code in RequestCode:
                for address in (cluster.name_server, cluster.broker_address):
                    answer = client.invoke(address, RemotingCommand.request(code), timeout=10)
                    if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        known.add(int(code))
    finally:
        client.close()
    assert known == {code for code, (_, score) in SCORES.items() if score != "not"}


def test_every_grpc_method_has_a_score() -> None:
    """``proxy/test_telemetry.py`` and others show what the scores say."""
    table = COMPATIBILITY.partition("\n| call | shown by | |\n")[2].partition("\n\n")[0]
    notes = dict(re.findall(r"^\| (\w+) \| .*?\| (.*)\|$", table, re.M))
    service = definitions.messaging().descriptor.services_by_name["MessagingService"]
    assert set(notes) == {method.name for method in service.methods}
    assert [name for name, note in notes.items() if note.startswith("not")] == ["SyncLiteSubscription"]


def test_what_is_supported_names_a_test() -> None:
    tables = re.findall(r"^\|.* shown by \|.*\n\|[-:|]+\n((?:\|.*\n)+)", COMPATIBILITY, re.M)
    rows = [row for table in tables for row in table.splitlines() if not re.search(r"\| not supported\b", row)]
    assert len(rows) > 300
    assert [row for row in rows if not re.search(r"\| `[\w/]+\.py(::\w+)?` \|", row)] == []


@pytest.mark.parametrize("page", ["compatibility", "security"])
def test_the_tests_that_are_named_exist(page: str) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    path = ""
    for given, function in re.findall(r"`(?:([\w/]+\.py)|(?=::))(?:::(\w+))?`", text):
        path = given or path  # `::name` is in the file named before
        file = ROOT / "tests" / path.removeprefix("tests/")
        assert file.is_file(), path
        if function:
            assert re.search(rf"def {function}\b", file.read_text(encoding="utf-8")), f"{path}::{function}"


def test_every_option_has_a_test() -> None:
    table = COMPATIBILITY.partition("\n| options | shown by |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.*) \| `[\w/]+\.py::\w+` \|$", table, re.M)
    assert len(rows) == table.count("\n")
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(option.name for option in OPTIONS)


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    ],
)
def test_links_lead_somewhere(document: str) -> None:
    file = ROOT / document
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", file.read_text(encoding="utf-8")):
        assert (file.parent / target).exists(), target


def test_named_targets_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in ("README.md", "CONTRIBUTING.md"):
        assert set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8"), re.M)) <= targets


def test_the_readme_begins_with_what_is_needed() -> None:
    """The versions and systems that the package's metadata name."""
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("```")[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (spark,) = (need for need in project["optional-dependencies"]["spark"] if need.startswith("pyspark"))
    assert f"PySpark {re.findall(r'>=([0-9.]+)', spark)[0]} or newer" in first
    assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in first
    systems = {name for name in project["classifiers"] if name.startswith("Operating System")}
    assert systems == {"Operating System :: MacOS", "Operating System :: POSIX :: Linux"}
    assert "Linux or macOS" in first
    assert "WSL" in first


def test_guides_name_conditions_that_exist() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "guides").glob("*.md"))
    named = set(re.findall(r"\b((?:BAD_OPTION|BAD_OFFSETS|DATA_LOSS|EXACTLY_ONCE)\.[A-Z_]+)\b", pages))
    assert named <= {condition.name for condition in CONDITIONS}
