"""``rocket --namespace``, beside commands that see the full names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_rocket.client import Producer, Reader
from spark_rocket.datasource.stream_offsets import StreamOffset
from spark_rocket.model import Message, MessageQueue
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import Run

pytestmark = pytest.mark.live

INSTANCE = "MQ_INST_1_a"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running, Producer("shop", name_server=running.name_server) as producer:
        topic = running.create_topic(f"{INSTANCE}%orders", 1)
        running.create_topic("orders", 1)
        producer.send(Message.of(topic, "one", keys="k"))
        with Reader(running.name_server) as reader:
            reader.commit_offset(f"{INSTANCE}%billing", reader.queues(topic)[0], 1)
        yield running


VERBS: dict[str, list[str]] = {
    "topics": ["topic", "list"],
    "topic": ["topic", "stats", "orders"],
    "groups": ["group", "list"],
    "lag": ["group", "lag", "billing"],
    "key": ["message", "query-key", "orders", "k"],
    "tail": ["message", "tail", "orders", "--from", "earliest", "--no-follow", "--long"],
    "sinks": ["offsets", "sinks"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_names_are_short(verb: str, cluster: LocalCluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(*VERBS[verb], "-n", cluster.name_server, "--namespace", INSTANCE)
    assert found.status == 0, found.err
    assert INSTANCE not in found.out
    monkeypatch.setenv("ROCKETMQ_NAMESPACE", INSTANCE)
    assert run(*VERBS[verb], "-n", cluster.name_server).out.splitlines()[:1] == found.out.splitlines()[:1]


def test_names_are_full_without_it(cluster: LocalCluster, run: Run) -> None:
    assert run("topic", "list", "-n", cluster.name_server).printed(f"{INSTANCE}%orders")


def test_changes_are_made_in_the_namespace(cluster: LocalCluster, run: Run) -> None:
    assert run("topic", "create", "new", "-n", cluster.name_server, "--namespace", INSTANCE).status == 0
    assert run("topic", "list", "-n", cluster.name_server).printed(f"{INSTANCE}%new")


def test_positions_of_a_checkpoint(cluster: LocalCluster, run: Run, tmp_path: Path) -> None:
    """Checkpoints have full names; one of other topics is refused."""
    queue = MessageQueue(f"{INSTANCE}%orders", "broker-a", 0)
    end = StreamOffset({queue: 1}, {queue: 0})
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("\n".join(["v1", "{}", json.dumps(end.to_json())]))
    where = ("-n", cluster.name_server, "--namespace")
    shown = run("offsets", "show", tmp_path, *where, INSTANCE)
    assert shown.status == 0, shown.err
    assert shown.out.splitlines()[1].split()[:3] == ["orders", "broker-a", "0"]
    assert run("offsets", "show", tmp_path, *where, "other").failed("not in the namespace other", f"{INSTANCE}%orders")
    assert run("offsets", "show", tmp_path, *where, "").printed(f"{INSTANCE}%orders")


def test_the_doctor_names_what_accounts_need(cluster: LocalCluster, run: Run) -> None:
    found = run("doctor", "-t", "orders", "-n", cluster.name_server, "--namespace", INSTANCE)
    assert f"{INSTANCE}%orders" in found.out
