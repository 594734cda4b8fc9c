"""``rocket topic create`` and ``rocket group create``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_rocket.cli import main
from spark_rocket.client import Admin
from spark_rocket.testing import LocalCluster

pytestmark = pytest.mark.live

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(in_process=True) as running:
        yield running


def test_topics(cluster: LocalCluster, capsys: Capsys) -> None:
    assert main(["topic", "create", "a", "b", "-n", cluster.name_server, "--queues", "3", "--type", "FIFO"]) == 0
    assert main(["topic", "create", "c", "-n", cluster.name_server]) == 0
    said = capsys.readouterr().out
    assert "Topic b has 3 queues, message type: FIFO.\n" in said
    assert "Topic c has 8 queues, message type: any.\n" in said
    with Admin(cluster.name_server) as admin:
        configs = admin.topic_configs(cluster.broker_address)
    assert (configs["a"].read_queue_nums, configs["b"].attributes) == (3, {"message.type": "FIFO"})
    assert (configs["c"].write_queue_nums, configs["c"].attributes) == (8, {})


def test_an_existing_topic(cluster: LocalCluster, capsys: Capsys) -> None:
    create = ["topic", "create", "there", "-n", cluster.name_server]
    assert main([*create, "--queues", "12", "--type", "FIFO"]) == 0
    capsys.readouterr()
    # The default number of queues must not remove queues with messages.
    assert main(create) == 1
    assert "Use --queues 12. To remove queues, use --queues 12 --write-queues 8 first" in capsys.readouterr().err
    assert main([*create, "--queues", "12", "--write-queues", "8"]) == 0
    assert main(create) == 0
    assert capsys.readouterr().out.endswith("Topic there has 8 queues, message type: FIFO.\n")
    with Admin(cluster.name_server) as admin:
        there = admin.topic_configs(cluster.broker_address)["there"]
    assert (there.read_queue_nums, there.write_queue_nums, there.attributes) == (8, 8, {"message.type": "FIFO"})


def test_groups(cluster: LocalCluster, capsys: Capsys) -> None:
    assert main(["group", "create", "g", "-n", cluster.name_server, "--ordered", "--attempts", "4"]) == 0
    assert capsys.readouterr().out == "Group g: at most 4 delivery attempts, in order.\n"
    with Admin(cluster.name_server) as admin:
        group = admin.subscription_groups(cluster.broker_address)["g"]
    assert (group.consume_message_orderly, group.retry_max_times) == (True, 3)
    assert main(["group", "create", "g", "-n", cluster.name_server, "--attempts", "5"]) == 0
    assert capsys.readouterr().out == "Group g: at most 5 delivery attempts, in order.\n"
    assert main(["group", "create", "g", "-n", cluster.name_server, "--no-ordered"]) == 0
    assert capsys.readouterr().out == "Group g: at most 5 delivery attempts.\n"


def test_invalid_arguments(cluster: LocalCluster, capsys: Capsys) -> None:
    assert main(["topic", "create", "no name", "-n", cluster.name_server]) == 1
    assert "illegal characters" in capsys.readouterr().err
    assert main(["topic", "create", "a", "-n", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    for wrong in (
        ["topic", "create"],
        ["topic", "create", "a", "--queues", "0"],
        ["group", "create", "g", "--attempts", "x"],
    ):
        with pytest.raises(SystemExit):
            main(wrong)
    assert "use 1 to" in capsys.readouterr().err
