"""``rocket topic create``, ``topic route`` and ``group create``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_rocket.client import Admin
from spark_rocket.protocol.wire.bodies.config import TopicConfig
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import Run
from tests.kit.scripted import FakeCluster, says

pytestmark = pytest.mark.live

UPDATE_TOPIC, SHOW_TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_TOPIC_CONFIG


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


@pytest.fixture
def fakes() -> Iterator[FakeCluster]:
    """Brokers b0 and b1, both with the topics "a", "b" and "c". They create topics, but do not show their settings."""
    fakes = FakeCluster(2)
    fakes.everywhere(UPDATE_TOPIC, says(0))
    for name in ("a", "b", "c"):
        fakes.add(name, 8)
    yield fakes
    fakes.close()


def test_topics_are_created_on_one_broker_while_another_is_unavailable(run: Run, fakes: FakeCluster) -> None:
    fakes.brokers[0].close()
    fifo = TopicConfig("a", 8, 8, 6, attributes={"message.type": "FIFO"})
    create = ("topic", "create", "a", "b", "c", "--broker", "b1", "-n", fakes.name_server.address)
    for options, respond, message_type in (
        (("--type", "DELAY"), says(1, "not now"), "DELAY"),
        ((), says(0, body=fifo.to_json()), "FIFO"),
        ((), says(1, "not now"), "any"),
    ):
        fakes.brokers[1].responses[SHOW_TOPIC] = respond
        said = run(*create, *options)
        assert (said.status, said.err) == (0, "")
        assert said.out == "".join(f"Topic {name} has 8 queues, message type: {message_type}.\n" for name in "abc")
    created = [one.ext_fields["topic"] for one in fakes.brokers[1].requests if one.code == UPDATE_TOPIC]
    assert created == ["a", "b", "c"] * 3


def test_the_route_of_a_topic_on_a_broker_without_addresses(run: Run, fakes: FakeCluster) -> None:
    del fakes.topics["a"].broker_datas[0]
    first, second = run("topic", "route", "a", "-n", fakes.name_server.address, "--json").json
    assert (first["brokerName"], first["cluster"], first["brokerAddrs"]) == ("b0", None, {})
    assert (second["brokerName"], second["cluster"]) == ("b1", "c")
    assert (first["readQueueNums"], first["perm"]) == (8, "RW")
    shown = run("topic", "route", "a", "-n", fakes.name_server.address).out.splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [["-", "b0"], ["c", "b1"]]


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
