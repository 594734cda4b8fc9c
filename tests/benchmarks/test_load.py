"""The lean client against a real broker and the echo server, with very little load: its results are correct."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import frames
from benchmarks.frames import BATCH
from benchmarks.lab import Lab
from benchmarks.load import pipeline
from benchmarks.overload import judge

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


@pytest.mark.parametrize("conns", [1, 3])
def test_single_sends_are_stored(lab: Lab, conns: int) -> None:
    topic = lab.topic(f"sends-{conns}")
    done = lab.load("send", port=lab.broker_port, topic=topic, size=128, conns=conns, seconds=0.05)
    assert stored(lab, topic) == done["requests"] > 0


def test_pipelined_sends_are_stored(lab: Lab) -> None:
    topic = lab.topic("pipelined")
    done = pipeline(lab.broker_port, [frames.send(topic, queue, b"x") for queue in range(3)], 20, seconds=0.05)
    assert stored(lab, topic) == done["requests"] >= 20


def test_batches_are_stored(lab: Lab) -> None:
    topic = lab.topic("batches")
    done = lab.load("batch", port=lab.broker_port, topic=topic, size=128, conns=2, seconds=0.05)
    assert stored(lab, topic) == done["messages"] == done["requests"] * BATCH > 0


def test_filling_stores_exactly_so_many(lab: Lab) -> None:
    assert stored(lab, lab.filled(128, 3 * BATCH)) == 3 * BATCH


def test_held_pulls_bring_every_message_once(lab: Lab) -> None:
    topic = lab.topic("held", queues=1)
    for _ in range(2):  # the second time there is a backlog that must not be counted
        done = lab.load("longpoll", port=lab.broker_port, topic=topic, rate=500, count=50, size=128)
        assert done["count"] == 50
        assert 0 < done["p50"] <= done["p99"]


@pytest.mark.parametrize("delay", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "500"}])
def test_delayed_messages_are_measured_from_when_they_are_due(lab: Lab, delay: dict[str, str]) -> None:
    topic = lab.topic("-".join(("late", *delay)).replace("_", "-"), queues=1)
    done = lab.load("longpoll", port=lab.broker_port, topic=topic, rate=200, count=20, size=128, **delay)
    assert done["count"] == 20
    assert 0 < done["p50"] <= done["p99"]


def test_the_echo_server_answers_the_same_frames(lab: Lab) -> None:
    done = lab.load("send", port=lab.echo_port(), topic="any", size=128, conns=2, seconds=0.05)
    assert done["requests"] > 0
    done = lab.load("echo", port=lab.echo_port(), topic="any", rate=500, count=20, size=128)
    assert done["count"] == 20


def test_the_grpc_client_sends_receives_and_holds(lab: Lab) -> None:
    topic, port = lab.topic("grpc"), int(lab.cluster.grpc_endpoint.rpartition(":")[2])
    for count in (1, 100):
        already = stored(lab, topic)
        done = lab.grpc_load("send", port=port, topic=topic, size=128, conns=3, count=count, seconds=0.05)
        assert stored(lab, topic) - already == done["messages"] > 0
    empty, _ = lab.empty_grpc(128)
    waiting, _ = lab.empty_grpc(128, hold=True)
    for server in (port, empty):
        done = lab.grpc_load("receive", port=server, topic=topic, group="g", conns=2, seconds=0.05)
        assert done["messages"] > 0
    held = lab.topic("grpc-held")
    for server in (port, waiting):
        done = lab.grpc_load("held", port=server, topic=held, group="g", conns=10, rate=200, count=20, size=128)
        assert 0 < done["p50"] <= done["p99"]


def stored(lab: Lab, topic: str) -> int:
    from spark_rocket.client import Reader

    with Reader(lab.cluster.name_server) as reader:
        return sum(reader.max_offset(queue) for queue in reader.queues(topic))


def test_a_crowd_holds_pulls_and_a_flood_is_answered(lab: Lab) -> None:
    topic, pid = lab.topic("crowd"), lab.cluster.pid
    few = {"idle": 5, "held": 3, "rate": 300, "count": 12}
    done = lab.overload_load("idle", port=lab.broker_port, topic=topic, size=128, pid=pid, **few)
    assert (done["count"], done["idle"]) == (12, 5)
    echo, echo_pid = lab.own_echo()
    assert lab.overload_load("echoes", port=echo, pid=echo_pid, **few)["count"] == 12
    done = lab.overload_load("flood", port=lab.broker_port, topic=topic, size=128, conns=2, rate=5_000, seconds=0.1)
    assert done["ok"] + done["busy"] == done["sent"] > 0
    done = lab.overload_load("probe", port=lab.broker_port, topic=topic, seconds=0.05, pid=pid)
    assert {code for _, _, _, code in done["seen"]} == {0}


def test_what_a_floods_reports_say() -> None:
    """Usual is 1 ms; during the flood 9 ms; until 0.3 s after its end 6 ms, with one refusal at 0.5 s."""
    seen = [(at / 100, 0.001 if at < 100 else 0.009, at % 2, 0) for at in range(200)]
    seen += [(2 + at / 100, 0.006 if at < 30 else 0.001, at % 2, 2 if at == 50 else 0) for at in range(100)]
    flood = {"end": 2.0, "seconds": 1.0, "ok": 30, "busy": 70, "sent": 110, "offered": 200}
    found = judge({"seen": seen, "MiB": 50.0}, flood)
    assert found["heartbeat"] == found["send"] == pytest.approx(9.0)
    assert (found["busy"], found["unanswered"], found["MiB"]) == (70.0, 10, 50.0)
    assert found["normal"] == pytest.approx(0.6)
