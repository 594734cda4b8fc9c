"""The procedures of docs/guides/operations.md that no other test runs; each names the test that runs it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from spark_rocket.client import Reader
from spark_rocket.errors import RemotingConnectError
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.testing import LocalCluster
from tests.cluster.harness import (
    QUEUES,
    SMALL_FILES,
    TOPIC,
    Load,
    assert_all_there,
    assert_stores_right,
    knows_topic,
    log_end,
    slaves_ready,
    until,
)

ROOT = Path(__file__).parents[2]
SECTIONS = re.split(r"^## ", (ROOT / "docs" / "guides" / "operations.md").read_text(), flags=re.M)[1:]


@pytest.mark.parametrize("section", SECTIONS, ids=[section.partition("\n")[0] for section in SECTIONS])
def test_each_procedure_names_the_test_that_runs_it(section: str) -> None:
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", section)
    assert named, "Shown by which test?"
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"


def read_all(name_server: str) -> dict[int, dict[int, bytes]]:
    """Every message of the topic, as a consumer finds it: at the broker that has it now."""
    with Reader(name_server) as reader:
        found: dict[int, dict[int, bytes]] = {}
        for queue in reader.queues(TOPIC):
            bodies: dict[int, bytes] = {}
            while messages := _messages(reader, queue, len(bodies)):
                bodies |= {message.queue_offset: message.body for message in messages}
            found[queue.queue_id] = bodies
        return found


def _messages(reader: Reader, queue: MessageQueue, offset: int) -> list[MessageExt]:
    try:
        return reader.messages(queue, offset, max_msgs=1000)
    except RemotingConnectError:  # by which the reader learns that the master is gone
        return reader.messages(queue, offset, max_msgs=1000)


def test_a_promotion_a_demotion_and_a_lost_disk(tmp_path: Path) -> None:
    settings = {"brokerRole": "SYNC_MASTER", "grpcServerPort": -1, **SMALL_FILES}
    with LocalCluster(data_dir=tmp_path, brokers=1, slaves=True, config=settings) as cluster:
        (first,), (second,) = cluster.brokers, cluster.slaves
        cluster.create_topic(TOPIC, QUEUES)
        slaves_ready(cluster.brokers)
        with Load(cluster, senders=2) as load:
            load.goes_on(300)
            until(lambda: knows_topic(second), "the slave knows the topic")
            first.kill()
            # Consumers go on from the slave, and producers wait for a master.
            found = read_all(cluster.name_server)
            for (_, queue_id), books in load.strong.items():
                assert {offset: found[queue_id].get(offset) for offset in books} == books

            second.restart(config={"brokerRole": "SYNC_MASTER", "brokerId": 0})
            load.goes_on(100, of="broker-a")
            first.restart(config={"brokerRole": "SLAVE", "brokerId": 1})
            load.goes_on(100, of="SEND_OK")
        assert load.wrong == []
        until(lambda: log_end(first.address) == log_end(second.address), "the former master has it all")
        assert_all_there(load, second.address, "broker-a", weak=False)

        # A disk is lost: the directory of the other one, stopped, is copied.
        first.kill()
        shutil.rmtree(first.store_dir)
        second.stop()
        shutil.copytree(second.store_dir, first.store_dir)
        second.start()
        first.start()
        slaves_ready([second])
        until(lambda: log_end(first.address) == log_end(second.address), "the copy follows")
        assert_all_there(load, first.address, "broker-a", weak=False)
        pairs = [(second.store_dir, first.store_dir)]
    assert_stores_right(pairs)
