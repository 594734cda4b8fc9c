"""The procedures of docs/guides/operations.md: which tests run them, and those that no other file runs."""

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
)
from tests.kit.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "operations.md").read_text()
PROCEDURES = {
    "Start a cluster": (
        "tests/cli/test_up_cluster.py::test_two_brokers_one_of_them_killed",
        "tests/cli/test_up_cluster.py::test_a_master_and_its_slave_exit_with_their_parent",
    ),
    "Add a broker": (
        "tests/testing/test_members.py::test_a_broker_added",
        "tests/spark/test_cluster.py::test_a_killed_broker_and_added_brokers_and_queues",
    ),
    "Drain and stop a broker": (
        "tests/cli/test_drain.py::test_a_drained_broker_can_be_stopped_without_errors",
        "tests/broker/test_replication.py::test_the_last_messages_reach_the_slave_before_a_clean_stop",
    ),
    "Add and remove queues": ("tests/cli/test_drain.py::test_queues_are_added_and_removed_while_a_topic_is_in_use",),
    "Promote a slave": (
        "tests/cluster/test_operations.py::test_a_promotion_a_demotion_and_a_lost_disk",
        "tests/broker/test_promotion.py::test_transactions_continue",
        "tests/broker/test_promotion.py::test_popped_messages_are_acked_or_redelivered_after_a_promotion",
    ),
    "Recover after a crash or power failure": (
        "tests/cluster/test_failover.py::test_nothing_acknowledged_is_lost_whatever_happens",
        "tests/broker/test_replication.py::test_a_slave_ahead_of_its_master_removes_its_tail",
    ),
    "Recover after a lost disk": (
        "tests/cluster/test_operations.py::test_a_promotion_a_demotion_and_a_lost_disk",
        "tests/broker/test_replication.py::test_a_master_that_lost_its_store_copies_nothing_from_its_slave",
    ),
    "Use several name servers": (
        "tests/testing/test_members.py::test_a_name_server_killed_and_restarted",
        "tests/testing/test_members.py::test_a_broker_cut_off_from_one_name_server_only",
    ),
    "Synchronize clocks": (
        "tests/broker/test_promotion.py::test_clocks_that_differ",
        "tests/broker/test_promotion.py::test_timed_messages_survive_the_second_master_of_an_hour",
    ),
    "Handle overload": (
        "tests/remoting/test_overload.py::test_heartbeats_overtake_a_flood_of_sends",
        "tests/remoting/test_watch.py::test_unread_responses_are_bounded",
        "tests/broker/test_overload.py::test_a_disk_that_does_not_keep_up",
    ),
}
"""The tests of each section of the page."""


def test_each_procedure_has_tests() -> None:
    assert re.findall(r"^## (.*)$", PAGE, flags=re.M) == list(PROCEDURES)


@pytest.mark.parametrize("name", [name for names in PROCEDURES.values() for name in names])
def test_tests_of_procedures_exist(name: str) -> None:
    file, _, test = name.partition("::")
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
