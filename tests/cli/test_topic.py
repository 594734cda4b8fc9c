"""``rocket topic create`` and ``rocket group create``."""

from __future__ import annotations

import pytest

from spark_rocket.client import Admin
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import Run

pytestmark = pytest.mark.live


def test_topics(cluster: LocalCluster, rocket: Run) -> None:
    assert (
        "Topic b has 3 queues, message type: FIFO.\n"
        in rocket("topic", "create", "a", "b", "--queues", 3, "--type", "FIFO").out
    )
    assert rocket("topic", "create", "c").out == "Topic c has 8 queues, message type: any.\n"
    with Admin(cluster.name_server) as admin:
        configs = admin.topic_configs(cluster.broker_address)
    assert (configs["a"].read_queue_nums, configs["b"].attributes) == (3, {"message.type": "FIFO"})
    assert (configs["c"].write_queue_nums, configs["c"].attributes) == (8, {})


def test_an_existing_topic(cluster: LocalCluster, rocket: Run) -> None:
    create = ("topic", "create", "there")
    assert rocket(*create, "--queues", 12, "--type", "FIFO").status == 0
    said = rocket(*create)  # the default number of queues must not remove queues with messages
    remedy = "Use --queues 12. To remove queues, use --queues 12 --write-queues 8 first"
    assert (said.status, remedy in said.err) == (1, True)
    assert rocket(*create, "--queues", 12, "--write-queues", 8).status == 0
    assert rocket(*create).out.endswith("Topic there has 8 queues, message type: FIFO.\n")
    with Admin(cluster.name_server) as admin:
        there = admin.topic_configs(cluster.broker_address)["there"]
    assert (there.read_queue_nums, there.write_queue_nums, there.attributes) == (8, 8, {"message.type": "FIFO"})


def test_groups(cluster: LocalCluster, rocket: Run) -> None:
    for options, text in (
        (("--ordered", "--attempts", 4), "4 delivery attempts, in order"),
        (("--attempts", 5), "5 delivery attempts, in order"),
        (("--no-ordered",), "5 delivery attempts"),
    ):
        assert rocket("group", "create", "g", *options).out == f"Group g: at most {text}.\n"
    with Admin(cluster.name_server) as admin:
        group = admin.subscription_groups(cluster.broker_address)["g"]
    assert (group.consume_message_orderly, group.retry_max_times) == (False, 4)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("topic", "create", "no name"), 1, "illegal characters"),
        (("topic", "create"), 2, "Missing argument"),
        (("topic", "create", "a", "--queues", "0"), 2, "use 1 to"),
        (("group", "create", "g", "--attempts", "x"), 2, "use 1 to"),
    ],
)
def test_invalid_arguments(rocket: Run, arguments: tuple[str, ...], status: int, text: str) -> None:
    said = rocket(*arguments)
    assert (said.status, text in said.err) == (status, True), said


def test_a_name_server_that_does_not_respond(run: Run) -> None:
    said = run("topic", "create", "a", "-n", "127.0.0.1:1")
    assert (said.status, "127.0.0.1:1" in said.err) == (1, True)
