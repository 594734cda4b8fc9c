"""The commands of docs/guides/accounts.md and permissions.md, each on a broker of its kind."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from spark_rocket.testing import LocalCluster
from tests.cli.conftest import Run
from tests.kit.accounts import KEYS
from tests.kit.pages import ROOT

pytestmark = pytest.mark.live

PAGE = (ROOT / "docs/guides/accounts.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line)[1:] for line in re.findall(r"^ *\$ (rocket .*)$", PAGE, re.M)]
SIGNED = ("--access-key", "root-key", "--secret-key", "r00t-s3cr3t")


def of_kind(acl: str) -> list[list[str]]:
    """The commands for one kind: those of accounts name permissions of ACL 1.0."""
    changes = [words for words in COMMANDS if words[0] == "acl"]
    return [words for words in changes if any("=SUB" in word for word in words) is (acl == "1.0")]


@pytest.mark.parametrize("acl", ["1.0", "2.0"])
def test_the_commands_of_the_guide_work(acl: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "billing.secret").write_text("b1ll1ng-s3cr3t\n")
    assert of_kind(acl)
    with LocalCluster(in_process=True, acl=acl, **KEYS) as cluster:
        where = ("-n", cluster.name_server)
        cluster.create_topic("orders", 1)
        cluster.create_group("billing")
        for words in of_kind(acl):
            said = run(*words, *where, *SIGNED)
            assert said.status == 0, said.err
        name = of_kind(acl)[0][2]
        (tmp_path / "billing.yml").write_text(f"accessKey: {name}\nsecretKey: b1ll1ng-s3cr3t\n")
        (tmp_path / "billing.yml").chmod(0o600)
        (doctor,) = (words for words in COMMANDS if words[0] == "doctor")
        said = run(*doctor, *where)
        assert re.search(r"ok +offsets of group billing", said.out), said.out
        assert re.search(r"ok +pull from broker-a as group billing", said.out), said.out


@pytest.mark.parametrize(("acl", "verb", "more"), [("1.0", "update", ["--yes"]), ("2.0", "allow", [])])
def test_the_commands_of_the_permissions_guide_work(acl: str, verb: str, more: list[str], run: Run) -> None:
    page = (ROOT / "docs/guides/permissions.md").read_text(encoding="utf-8").replace("\\\n", "")
    changes = [shlex.split(line)[1:] for line in re.findall(rf"^rocket acl {verb} .*$", page, re.M)]
    assert changes
    with LocalCluster(in_process=True, acl=acl, **KEYS) as cluster:
        cluster.set_account("nightly", "n1ghtly-s3cr3t", {"Topic:others": ["Sub"]})
        for words in changes:
            said = run(*words, *more, "-n", cluster.name_server, *SIGNED)
            assert said.status == 0, said.err
