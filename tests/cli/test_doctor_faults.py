"""``rocket doctor`` finds each fault that a pipeline would meet, names it with its remedy, and finds nothing else."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_rocket.cli import main
from spark_rocket.cli.commands import doctor_pipeline
from spark_rocket.cli.commands.doctor import PROBLEM_FOUND
from spark_rocket.cli.commands.doctor_pipeline import clock_finding
from spark_rocket.client import Admin
from spark_rocket.datasource.exactly_once.driver import check_topics
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.protocol.requests.pipelines import EXACTLY_ONCE_STREAM, NAMES, TOPIC
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.certificates import CertificateAuthority
from tests.kit.accounts import KEYS
from tests.kit.addresses import ADVERTISED_HOST, address_map, unreachable_broker
from tests.kit.remoting_proxy import RemotingProxy

pytestmark = pytest.mark.live

Capsys = pytest.CaptureFixture[str]
READER, WRITER = ("reader-key", "reader-s3cr3t"), ("writer-key", "writer-s3cr3t")
ACCOUNTS = """
accounts:
  - {accessKey: root-key, secretKey: r00t-s3cr3t, admin: true}
  - accessKey: reader-key
    secretKey: reader-s3cr3t
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=SUB, closed=SUB, other=DENY]
    groupPerms: [pipeline=SUB]
  - accessKey: writer-key
    secretKey: writer-s3cr3t
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=PUB|SUB]
    groupPerms: [pipeline=SUB]
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with accounts."""
    accounts = tmp_path_factory.mktemp("accounts") / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    config = {"aclEnable": True, "aclFile": str(accounts)}
    with LocalCluster(config=config, access_key="root-key", secret_key="r00t-s3cr3t", in_process=True) as cluster:
        for topic in ("orders", "other"):
            cluster.create_topic(topic, 2)
        yield cluster


def findings(capsys: Capsys, cluster: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status and the findings about servers."""
    capsys.readouterr()
    status = main(["doctor", "-n", cluster, "--json", "--timeout", "3", *arguments])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    machine = {"Python", "pyspark", "pyarrow", "numpy", "pandas", "Java", 'format("rocket")', "workers' Python"}
    return status, [finding for finding in found if finding["about"] not in machine]


def problems(capsys: Capsys, cluster: str, *arguments: str) -> dict[str, str]:
    """Return text and remedy of each problem, by subject."""
    status, found = findings(capsys, cluster, *arguments)
    assert status == PROBLEM_FOUND
    wrong = {each["about"]: f"{each['text']} {each['remedy']}" for each in found if each["grade"] == "wrong"}
    assert all(each["remedy"] or "Free some space" in each["text"] for each in found if each["grade"] == "wrong"), wrong
    return wrong


def signed(account: tuple[str, str]) -> list[str]:
    return ["--access-key", account[0], "--secret-key", account[1]]


def test_a_sound_pipeline_has_no_problem(guarded: LocalCluster, capsys: Capsys) -> None:
    arguments = ["-t", "orders", "-g", "pipeline", "--write", "orders", *signed(WRITER)]
    _, found = findings(capsys, guarded.name_server, *arguments)
    grades = {each["about"]: each["grade"] for each in found if not each["about"].startswith("broker ")}
    assert set(grades.values()) == {"ok"}
    assert {"topic orders", "offsets of group pipeline", "send to orders"} <= grades.keys()
    assert any(about.startswith("clock of ") for about in grades)


def test_a_group_without_permission(guarded: LocalCluster, capsys: Capsys) -> None:
    """The group is what guides used to forget: pulls and offsets need it, the ends of queues do not."""
    wrong = problems(capsys, guarded.name_server, "-t", "orders", "-g", "unknown-group", *signed(READER))
    pulls = [text for about, text in wrong.items() if about.startswith("pull from ")]
    assert pulls
    assert all("Account reader-key needs" in text and "--group unknown-group=SUB" in text for text in pulls)
    assert "topic orders" not in wrong


@pytest.mark.parametrize(("topic", "named"), [("other", "--topic other=SUB")])
def test_a_topic_without_permission(topic: str, named: str, guarded: LocalCluster, capsys: Capsys) -> None:
    wrong = problems(capsys, guarded.name_server, "-t", topic, "-g", "pipeline", *signed(READER))
    assert any("Account reader-key needs" in text and named in text for text in wrong.values()), wrong


def test_a_send_without_permission(guarded: LocalCluster, capsys: Capsys) -> None:
    wrong = problems(capsys, guarded.name_server, "--write", "orders", "-g", "pipeline", *signed(READER))
    assert "--topic orders=PUB" in wrong["send to orders"]
    assert "Account reader-key needs" in wrong["send to orders"]


@pytest.mark.parametrize(
    ("account", "words"), [(("reader-key", "wrong-secret"), "secret"), (("nobody-key", "wrong-secret"), "access key")]
)
def test_credentials_that_are_refused(
    account: tuple[str, str], words: str, guarded: LocalCluster, capsys: Capsys
) -> None:
    wrong = problems(capsys, guarded.name_server, "-t", "orders", "-g", "pipeline", *signed(account))
    assert words in " ".join(wrong.values())


def test_no_account_at_all(guarded: LocalCluster, capsys: Capsys) -> None:
    wrong = problems(capsys, guarded.name_server, "-t", "orders")
    assert any("ROCKETMQ_ACCESS_KEY" in text for text in wrong.values()), wrong


def test_a_missing_topic(guarded: LocalCluster, capsys: Capsys) -> None:
    wrong = problems(capsys, guarded.name_server, "-t", "no-such-topic", *signed(("root-key", "r00t-s3cr3t")))
    assert "rocket topic create no-such-topic" in wrong["topic no-such-topic"]
    assert "mqadmin updateTopic" in wrong["topic no-such-topic"]


@pytest.fixture(scope="module")
def strict() -> Iterator[LocalCluster]:
    """A cluster without accounts whose broker creates nothing by itself."""
    config = {"autoCreateSubscriptionGroup": False, "autoCreateTopicEnable": False}
    with LocalCluster(config=config, in_process=True) as cluster, Admin(cluster.name_server) as admin:
        cluster.create_topic("orders", 2)
        cluster.create_topic("MQ_INST_123_abc%payments", 2)
        admin.create_topic("write-only", 2, perm=2)
        admin.create_topic("read-only", 2, perm=4)
        yield cluster


def test_a_missing_group(strict: LocalCluster, capsys: Capsys) -> None:
    wrong = problems(capsys, strict.name_server, "-t", "orders", "-g", "new-group")
    assert all("rocket group create new-group" in text for text in wrong.values()), wrong


def test_a_topic_that_exists_in_a_namespace(strict: LocalCluster, capsys: Capsys) -> None:
    wrong = problems(capsys, strict.name_server, "-t", "payments")
    assert "MQ_INST_123_abc%payments" in wrong["topic payments"]
    assert "set namespace MQ_INST_123_abc" in wrong["topic payments"]


def test_topics_with_the_wrong_permission(strict: LocalCluster, capsys: Capsys) -> None:
    assert "readable" in problems(capsys, strict.name_server, "-t", "write-only")["topic write-only"]
    assert "perm" in problems(capsys, strict.name_server, "--write", "read-only")["send to read-only"]


def test_a_missing_topic_to_write(strict: LocalCluster, capsys: Capsys) -> None:
    assert (
        "rocket topic create no-such-topic"
        in problems(capsys, strict.name_server, "--write", "no-such-topic")["send to no-such-topic"]
    )


def test_a_full_disk(capsys: Capsys) -> None:
    with LocalCluster(config={"diskSpaceWarningLevelRatio": 1}, in_process=True) as cluster:
        cluster.create_topic("orders")
        wrong = problems(capsys, cluster.name_server, "-t", "orders", "--write", "orders")
    assert "disk" in wrong["send to orders"]


def test_a_broker_whose_advertised_address_cannot_be_reached(capsys: Capsys) -> None:
    with unreachable_broker() as cluster:
        wrong = problems(capsys, cluster.name_server, "-t", "orders")
        (broker,) = [text for about, text in wrong.items() if about.startswith("broker ")]
        assert f"advertises {ADVERTISED_HOST}:" in broker
        assert "brokerIP1" in broker
        assert f"--address-map {ADVERTISED_HOST}:" in broker
        with Admin(cluster.name_server, address_map=address_map(cluster)) as admin:
            admin.create_topic("orders", 1)
        _, found = findings(capsys, cluster.name_server, "-t", "orders", "--address-map", address_map(cluster))
        assert not [each for each in found if each["grade"] == "wrong"]
        (text,) = [each["text"] for each in found if each["about"].startswith("broker broker-a (")]
        assert re.fullmatch(rf"reachable at 127\.0\.0\.1:\d+; advertises {ADVERTISED_HOST}:\d+", text)


def test_no_broker(capsys: Capsys) -> None:
    with LocalCluster(brokers=1) as cluster:
        cluster.brokers[0].kill()
        wrong = problems(capsys, cluster.name_server, "-t", "orders")
    assert "namesrvAddr" in wrong["brokers"]


def test_a_server_that_accepts_only_tls(capsys: Capsys) -> None:
    with LocalCluster(tls="enforcing", in_process=True) as cluster:
        wrong = problems(capsys, cluster.name_server, "-t", "orders")
    assert "tls" in wrong["name server"].lower()


def test_a_certificate_that_is_not_trusted(tmp_path: Path, capsys: Capsys) -> None:
    other = CertificateAuthority(tmp_path).certificate
    with LocalCluster(tls="enforcing", in_process=True) as cluster:
        wrong = problems(capsys, cluster.name_server, "-t", "orders", "--tls", "--tls-ca", str(other))
    assert "--tls-ca" in wrong["name server"]


def test_a_reader_without_get(capsys: Capsys) -> None:
    """ACL 2.0: the ends of queues need it, pulls do not."""
    with LocalCluster(acl="2.0", in_process=True, **KEYS) as cluster:
        cluster.create_topic("orders", 1)
        reader = sink_account((cluster, "2.0"), {"Topic:orders": ["Sub"], "Group:pipeline": ["Sub"]}, "reader")
        wrong = problems(capsys, cluster.name_server, "-t", "orders", "-g", "pipeline", *reader)
    assert wrong.keys() == {"topic orders"}
    assert "rocket acl allow reader Topic:orders Get" in wrong["topic orders"]


def test_a_clock_of_this_machine_that_is_off(
    guarded: LocalCluster, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock() -> dict[str, Any]:
        _, found = findings(capsys, guarded.name_server, "--write", "orders", "-g", "pipeline", *signed(WRITER))
        (finding,) = (each for each in found if each["about"].startswith("clock of "))
        return finding

    assert clock()["grade"] == "ok"
    late = SimpleNamespace(time_ns=lambda: time.time_ns() - 90_000_000_000)
    monkeypatch.setattr(doctor_pipeline, "time", late)
    found = clock()
    assert (found["grade"], "NTP" in found["remedy"]) == ("warning", True)
    assert re.search(r"by (89|90) s", found["text"])


def test_a_clock_that_is_off() -> None:
    assert clock_finding("broker-a", 4_000).grade == "ok"
    late = clock_finding("broker-a", 90_000)
    assert (late.grade, "90 s" in late.text, "NTP" in late.remedy) == ("warning", True, True)


def test_a_proxy_as_name_server(capsys: Capsys) -> None:
    """What it does not tell is a warning; reads and writes are checked through it."""
    with LocalCluster(in_process=True) as cluster:
        cluster.create_topic("orders")
        with RemotingProxy(cluster) as proxy:
            _, found = findings(capsys, proxy.address, "-t", "orders", "--write", "orders")
    grades = {each["about"]: each["grade"] for each in found}
    assert "wrong" not in grades.values(), found
    assert (grades["name server"], grades["topic orders"], grades["send to orders"]) == ("warning", "ok", "ok")
    assert any("is a proxy" in each["text"] for each in found)


# --- exactly once -----------------------------------------------------------------------------------------------------


def sink_grants(acl: str) -> dict[str, list[str]]:
    """What the guides say that an exactly-once stream needs, and no more."""
    declared = EXACTLY_ONCE_STREAM.policies() if acl == "2.0" else EXACTLY_ONCE_STREAM.plain_permissions()
    names = {**NAMES, TOPIC: "results"}
    return {
        f"{granted.resource.value}:{names[granted.name]}": [action.capitalize() for action in granted.actions]
        for granted in declared
    }


ONCE = ("--exactly-once", "--write", "results", "-g", "ROCKET_SINK_LEDGER")


@pytest.fixture(scope="module", params=["1.0", "2.0"])
def sink_world(request: pytest.FixtureRequest) -> Iterator[tuple[LocalCluster, str]]:
    """A cluster with the topics of a sink, and the kind of its access control."""
    with LocalCluster(config={"flushDiskType": "SYNC_FLUSH"}, acl=request.param, in_process=True, **KEYS) as cluster:
        for topic in ("results", "ROCKET_SINK_STAGING", "ROCKET_SINK_LEDGER"):
            cluster.create_topic(topic, 1)
        yield cluster, request.param


def sink_account(world: tuple[LocalCluster, str], grants: dict[str, list[str]], name: str) -> list[str]:
    world[0].set_account(name, "account-s3cr3t", grants)
    return signed((name, "account-s3cr3t"))


def test_a_sound_sink_has_no_problem(sink_world: tuple[LocalCluster, str], capsys: Capsys) -> None:
    cluster, acl = sink_world
    with Admin(cluster.name_server, access_key="root-key", secret_key="r00t-s3cr3t") as admin:
        admin.put_kv_config("ROCKET_SINK", "ROCKET_SINK_LEDGER_DOCTOR", "of a doctor that was killed")
    for _ in range(2):
        status, found = findings(
            capsys, cluster.name_server, *ONCE, *sink_account(sink_world, sink_grants(acl), "sound-account")
        )
        wrong = {each["about"]: each for each in found if each["grade"] == "wrong"}
        assert (status, wrong) == (0, {})
        about = {each["about"] for each in found}
        assert {
            "entry ROCKET_SINK/ROCKET_SINK_LEDGER",
            "send to ROCKET_SINK_LEDGER",
            "topic ROCKET_SINK_LEDGER",
        } <= about
    with Admin(cluster.name_server, access_key="root-key", secret_key="r00t-s3cr3t") as admin:
        assert admin.kv_configs("ROCKET_SINK") == {}
        assert not [topic for topic in admin.topics() if topic.endswith("_DOCTOR")]


def test_each_missing_permission_of_a_sink(sink_world: tuple[LocalCluster, str], capsys: Capsys) -> None:
    cluster, acl = sink_world
    grants = sink_grants(acl)
    for number, (resource, action) in enumerate((one, each) for one, actions in grants.items() for each in actions):
        fewer = {
            one: [each for each in actions if (one, each) != (resource, action)] for one, actions in grants.items()
        }
        name = f"account-{number}"
        keys = sink_account(sink_world, {one: actions for one, actions in fewer.items() if actions}, name)
        texts = " ".join(problems(capsys, cluster.name_server, *ONCE, *keys).values())
        kind, _, resource_name = resource.partition(":")
        command = (
            f"rocket acl allow {name} {resource} {action}"
            if acl == "2.0"
            else f"rocket acl update {name} --{kind.lower()} {resource_name}={action.upper()}"
        )
        assert command in texts or f"--{kind.lower()} {resource_name}={action.upper()}" in texts, (command, texts)
        assert "s3cr3t" not in texts


def test_a_sink_whose_topics_are_missing_and_cannot_be_created(
    sink_world: tuple[LocalCluster, str], capsys: Capsys
) -> None:
    cluster, acl = sink_world
    keys = sink_account(sink_world, sink_grants(acl), "no-create")
    topics = ("--ledger-topic", "no-such-ledger", "--staging-topic", "no-such-staging")
    wrong = problems(capsys, cluster.name_server, *ONCE, *topics, *keys)
    for topic in ("no-such-ledger", "no-such-staging"):
        assert f"rocket topic create {topic}" in wrong[f"topic {topic}"]
        assert "mqadmin updateTopic" in wrong[f"topic {topic}"]
        assert "no-create" in wrong[f"topic {topic}"]


def test_a_sink_whose_topics_are_created_by_the_first_query(capsys: Capsys) -> None:
    config = {"autoCreateSubscriptionGroup": False, "autoCreateTopicEnable": False}
    with LocalCluster(config=config, in_process=True) as cluster:
        _, found = findings(capsys, cluster.name_server, "--exactly-once")
        grades = {each["about"]: each["grade"] for each in found if each["about"].startswith("topic ")}
        assert grades == {"topic ROCKET_SINK_STAGING": "ok", "topic ROCKET_SINK_LEDGER": "ok"}
        with Admin(cluster.name_server) as admin:
            assert not [topic for topic in admin.topics() if topic.startswith("ROCKET_SINK")]


def test_an_account_that_may_create_exactly_the_topics_of_a_sink(capsys: Capsys) -> None:
    """ACL 2.0 grants single names. Nothing is created."""
    missing = ("ROCKET_SINK_STAGING", "ROCKET_SINK_LEDGER")
    config = {"autoCreateTopicEnable": False}
    with LocalCluster(config=config, acl="2.0", in_process=True, **KEYS) as cluster:
        world = cluster, "2.0"
        grants = {f"Topic:{topic}": ["Create", "Get", "Sub", "Pub"] for topic in missing}
        _, found = findings(capsys, cluster.name_server, "--exactly-once", *sink_account(world, grants, "creator"))
        assert {each["about"]: each["grade"] for each in found if each["about"].startswith("topic ")} == {
            f"topic {topic}": "ok" for topic in missing
        }
        others = sink_account(world, {"Topic:other": ["Create"]}, "other")
        wrong = problems(capsys, cluster.name_server, "--exactly-once", *others)
        assert all(f"rocket acl allow other Topic:{topic} Create" in wrong[f"topic {topic}"] for topic in missing)
        with Admin(cluster.name_server, **KEYS) as admin:
            assert not [topic for topic in admin.topics() if topic.startswith("ROCKET_SINK")]


def place_of(capsys: Capsys, cluster: LocalCluster, *more: str, at: str = "") -> tuple[str, str]:
    """Return the grade and the text about the ledger topic with a given place; no send is tried in vain."""
    _, found = findings(capsys, at or cluster.name_server, "--exactly-once", *more)
    ((grade, text),) = [(each["grade"], each["text"]) for each in found if each["about"] == "topic ROCKET_SINK_LEDGER"]
    assert not any(each["about"].startswith("entry ") for each in found)
    assert grade == "wrong" or "wrong" not in {each["grade"] for each in found}, found
    return grade, text


def test_the_given_place_of_a_ledger(capsys: Capsys) -> None:
    """Before the first query, the doctor leaves both topics unused: the place can still be changed."""
    given = ("--ledger-broker", "broker-a", "--ledger-queue", "1")
    with LocalCluster(in_process=True) as cluster, RemotingProxy(cluster) as proxy:
        grade, text = place_of(capsys, cluster, *given)
        assert (grade, "with ledgerBroker the sink does not create it" in text) == ("wrong", True)
        for topic in ("results", "ROCKET_SINK_STAGING", "ROCKET_SINK_LEDGER"):
            cluster.create_topic(topic, 2)
        for at in (cluster.name_server, proxy.address):
            grade, text = place_of(capsys, cluster, *given, at=at)
            assert (grade, "broker-a/1 was never used" in text) == ("warning", True)
        with Admin(cluster.name_server) as admin:
            for topic in ("ROCKET_SINK_STAGING", "ROCKET_SINK_LEDGER"):
                assert {high for _, high in admin.offsets(topic).values()} == {0}
        options = {"nameServer": cluster.name_server, "topic": "results", "deliveryGuarantee": "exactlyOnce"}
        options |= {"ledgerBroker": "broker-a", "ledgerQueue": "1"}
        check_topics(parse_write_options(options, Scope.WRITE_STREAM))
        for at in (cluster.name_server, proxy.address):
            assert place_of(capsys, cluster, *given, at=at) == ("ok", "ROCKET_SINK_LEDGER/broker-a/1 is the ledger")
        for wrong, why in ((("broker-a", "0"), "a ledger exists"), (("broker-a", "7"), "no queue")):
            grade, text = place_of(capsys, cluster, "--ledger-broker", wrong[0], "--ledger-queue", wrong[1])
            assert (grade, why in text) == ("wrong", True)
        check_topics(parse_write_options(options, Scope.WRITE_STREAM))  # what the doctor left changes nothing


def test_the_group_of_a_sink_is_missing(capsys: Capsys) -> None:
    with LocalCluster(config={"autoCreateSubscriptionGroup": False}, in_process=True) as cluster:
        for topic in ("ROCKET_SINK_STAGING", "ROCKET_SINK_LEDGER"):
            cluster.create_topic(topic, 1)
        wrong = problems(capsys, cluster.name_server, "--exactly-once", "--ledger-group", "new-group")
    assert any("rocket group create new-group" in text for text in wrong.values()), wrong


# --- addresses --------------------------------------------------------------------------------------------------------


def test_a_grpc_port_as_name_server(capsys: Capsys) -> None:
    with LocalCluster(in_process=True) as cluster:
        wrong = problems(capsys, cluster.grpc_endpoint, "-t", "orders")
    assert "speaks HTTP/2" in wrong["name server"]
    assert "gRPC port" in wrong["name server"]


def test_an_unreachable_name_server(capsys: Capsys) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        wrong = problems(capsys, f"127.0.0.1:{taken.getsockname()[1]}", "-t", "orders")
    assert "127.0.0.1" in wrong["name server"]
