"""``rocket doctor``: its findings and remedies."""

from __future__ import annotations

import importlib.metadata
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.cli import main
from spark_rocket.cli.commands import doctor_machine, doctor_servers
from spark_rocket.cli.commands.doctor import PROBLEM_FOUND
from spark_rocket.client import Admin
from spark_rocket.datasource.executors import ask_executors
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until

pytestmark = pytest.mark.live

Capsys = pytest.CaptureFixture[str]
CLUSTER: dict[str, object] = {}
TOPICS = {"orders": 3}


@pytest.fixture
def no_address() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_no_problems(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    status = main(["doctor", "-n", cluster.name_server, "-t", "orders"])
    reported = capsys.readouterr().out
    assert status == 0, reported
    assert "3 queues, 0 messages" in reported
    assert reported.endswith("no problems found\n")


def test_a_broker_that_rejects_the_credentials(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    with LocalCluster(in_process=True, access_key="root-key", secret_key="r00t-s3cr3t") as running:

        def broker() -> tuple[str, str]:
            main(["doctor", "-n", running.name_server, "--json"])
            found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            (finding,) = [finding for finding in found if finding["about"].startswith("broker ")]
            return finding["grade"], finding["remedy"]

        grade, remedy = broker()
        assert grade == "wrong"
        assert "access key" in remedy
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "root-key")
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "r00t-s3cr3t")
        assert broker() == ("ok", "")


def test_problems_have_a_remedy(no_address: str, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "no-such-python")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main(["doctor", "-n", no_address, "--json"]) == PROBLEM_FOUND
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    wrong = {finding["about"]: finding for finding in found if finding["grade"] == "wrong"}
    assert wrong.keys() == {"Java", "workers' Python", "name server"}
    assert all(finding["remedy"] for finding in wrong.values())
    assert no_address in wrong["name server"]["text"]


@pytest.mark.parametrize(
    ("reported", "grade"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok"),
        ('openjdk version "21" 2023-09-19', "ok"),
        ('java version "1.8.0_202"', "wrong"),
        ('openjdk version "11.0.2" 2019-01-15', "wrong"),
        ("who knows", "warning"),
    ],
)
def test_java(reported: str, grade: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin" / "java", f"echo '{reported}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert doctor_machine.check_java().grade == grade


def test_package_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pyspark": "3.5.8", "pyarrow": "18.0.0", "pandas": "3.0.1"}

    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = {finding.about: finding for finding in doctor_machine.check_python()}
    assert {about: finding.grade for about, finding in found.items() if about != "Python"} == {
        "pyspark": "wrong", "pyarrow": "ok", "numpy": "wrong", "pandas": "warning",
    }  # fmt: skip
    assert "pandas<3" in found["pandas"].remedy
    assert found["numpy"].remedy == "pip install numpy"


@pytest.mark.parametrize(("spark", "grade"), [("4.1.4", "warning"), ("4.2.0", "ok"), ("5.0.0", "ok")])
def test_spark_before_4_2_cannot_limit_micro_batches(spark: str, grade: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: spark if package == "pyspark" else "18.0")
    (finding,) = (finding for finding in doctor_machine.check_python() if finding.about == "pyspark")
    assert finding.grade == grade
    assert ("maxOffsetsPerTrigger" in finding.remedy) == (grade == "warning")


def test_a_worker_python_without_required_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = program(tmp_path / "python", f'exec {sys.executable} -S -I "$@"')
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    found = doctor_machine.check_workers_python()
    assert found.grade == "wrong"
    assert "lacks pyspark_rocket, pyarrow, numpy" in found.text


def test_an_unreachable_advertised_address(no_address: str) -> None:
    assert doctor_servers.check_address("broker a", no_address, ["127.0.0.1:9876"]).grade == "wrong"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert doctor_servers.check_address("broker a", address, ["127.0.0.1:9876"]).grade == "ok"
        found = doctor_servers.check_address("broker a", address, ["mq.example.com:9876"])
        assert (found.grade, "brokerIP1" in found.remedy) == ("warning", True)


def test_executors() -> None:
    def worker(host: str, missing: list[str], **unreachable: str) -> dict[str, object]:
        place = {"host": host, "executable": "/usr/bin/python3", "python": "3.11.2"}
        return place | {"missing": missing, "unreachable": unreachable}

    found = list(
        doctor_machine.check_executors(
            lambda: [worker("a", []), worker("b", ["spark_rocket"]), worker("c", ["pyarrow"], broker="refused")]
        )
    )
    wrong = [(finding.about[-1], finding.text, finding.remedy) for finding in found if finding.grade == "wrong"]
    assert [text for _, text, _ in wrong] == ["lacks spark_rocket", "lacks pyarrow", "cannot reach broker: refused"]
    assert "--py-files" in wrong[0][2]
    reports = [worker("d", []) | {"read": ""}, worker("e", []) | {"read": "no permission"}]
    reads = [finding.text for finding in doctor_machine.check_executors(lambda: reports) if "read" in finding.text]
    assert reads == ["reads the topic", "cannot read: no permission"]
    assert "PYSPARK_PYTHON" in wrong[1][2]


def test_a_failing_job() -> None:
    def ask() -> list[dict[str, object]]:
        raise RuntimeError("\nno master there\nat org.apache…")

    (found,) = doctor_machine.check_executors(ask)
    assert (found.grade, found.text) == ("wrong", "the job failed: no master there")


def test_spark_connect_that_does_not_respond(no_address: str) -> None:
    def ask() -> list[dict[str, object]]:
        return ask_executors([], remote=f"sc://{no_address}/;user_id=ann;token=s3cr3t")

    (found,) = doctor_machine.check_executors(ask)
    assert found.text.startswith(f"the job failed: no connection to sc://{no_address}: ")
    assert "s3cr3t" not in found.text
    assert "--remote" in found.remedy


def test_brokers_unsuitable_for_exactly_once(cluster: LocalCluster, capsys: Capsys) -> None:
    def found() -> list[tuple[str, str, str]]:
        main(["doctor", "-n", cluster.name_server, "--exactly-once", "--json"])
        findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        about = ("broker broker-a, exactly once", "topic ROCKET_SINK_LEDGER")
        return [(each["about"], each["grade"], each["text"]) for each in findings if each["about"] in about]

    with Admin(cluster.name_server) as admin:
        admin.update_broker_config("broker-a", {"flushDiskType": "ASYNC_FLUSH", "fileReservedTime": "24"})
        lost, kept, ledger = found()
        assert lost[1:] == (
            "warning",
            "acknowledges messages that are not durable (flushDiskType=ASYNC_FLUSH, brokerRole=ASYNC_MASTER)",
        )
        assert kept[1:] == ("warning", "retains messages for 24 hours (fileReservedTime), less than 72")
        assert ledger[1:] == ("ok", "does not exist: the first query creates it")

        cluster.create_topic("ROCKET_SINK_LEDGER", 2)
        admin.update_broker_config("broker-a", {"fileReservedTime": "72"})
        assert [grade for _, grade, _ in found()] == ["warning", "wrong"]
        capsys.readouterr()
        main(["doctor", "-n", cluster.name_server, "--exactly-once"])
        assert capsys.readouterr().out.endswith("\n1 problem, 1 warning found\n")
        cluster.delete_topic("ROCKET_SINK_LEDGER")
        until(lambda: "ROCKET_SINK_LEDGER" not in admin.topics())
        assert main(["doctor", "-n", cluster.name_server, "--exactly-once"]) == 0
        assert capsys.readouterr().out.endswith("\n1 warning found\n")


def test_exactly_once_for_named_topics(capsys: Capsys) -> None:
    """Only the brokers of these topics are checked."""
    with LocalCluster(brokers=2) as cluster, Admin(cluster.name_server) as admin:
        admin.create_topic("orders", 1, broker="broker-b")
        admin.create_topic("own-ledger", 2, broker="broker-b")
        names = ["--staging-topic", "own-staging", "--ledger-topic", "own-ledger"]
        main(["doctor", "-n", cluster.name_server, "--exactly-once", "--json", "-t", "orders", *names])
        findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    about = [each["about"] for each in findings if "exactly once" in each["about"]]
    assert {*about} == {"broker broker-b, exactly once"}
    assert findings[-1]["about"] == "topic own-ledger"
    assert (findings[-1]["grade"], findings[-1]["text"][:12]) == ("wrong", "has 2 queues")


@pytest.mark.parametrize(("flush", "role"), [("SYNC_FLUSH", "ASYNC_MASTER"), ("ASYNC_FLUSH", "SYNC_MASTER")])
def test_brokers_suitable_for_exactly_once(flush: str, role: str) -> None:
    config = {"flushDiskType": flush, "brokerRole": role, "fileReservedTime": "72"}
    assert [finding.grade for finding in doctor_servers.check_durability("broker-a", config)] == ["ok"]
