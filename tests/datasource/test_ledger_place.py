"""The place of the exactly-once sink's ledger on real servers: brokers and name servers that come and go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.datasource.exactly_once.driver import check_topics, commit_epoch
from spark_rocket.datasource.exactly_once.entry import NAMESPACE, LedgerEntry
from spark_rocket.datasource.exactly_once.first_record import LedgerPlace
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.place import find_ledger
from spark_rocket.datasource.exactly_once.replace import replace_ledger
from spark_rocket.datasource.exactly_once.sink_brokers import brokers_for
from spark_rocket.datasource.exactly_once.staging import stage_rows
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.errors import ExactlyOnceError
from spark_rocket.model import Message
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two brokers and two name servers; each test has its own topics."""
    with LocalCluster(brokers=2, name_servers=2) as running, Admin(running.name_server) as admin:
        until(lambda: all(len(info.broker_addr_table) == 2 for info in admin.cluster_info_of_each().values()))
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.name_server) as admin:
        yield admin


def options(name_server: str, mark: str = "", **more: str) -> WriteOptions:
    given = {"nameServer": name_server, "topic": "target", "deliveryGuarantee": "exactlyOnce", "retryTimeout": "0"}
    given |= {"gracePeriod": "2s", "requestTimeout": "1s"}
    if mark:
        given |= {"ledgerTopic": f"{mark}-ledger", "stagingTopic": f"{mark}-staging"}
    return parse_write_options(given | more, Scope.WRITE_STREAM)


def place(given: WriteOptions) -> LedgerPlace:
    return find_ledger(given, brokers_for(given))


def entries(admin: Admin, mark: str) -> list[LedgerEntry]:
    return [LedgerEntry.decode(text) for text in admin.kv_config_of_each(NAMESPACE, f"{mark}-ledger").values()]


def test_no_second_ledger_while_its_broker_is_unavailable() -> None:
    """A broker that joined later has the target topic; the broker of the ledger is stopped, and the epoch repeated."""
    with LocalCluster(brokers=1) as cluster, Admin(cluster.name_server) as admin:
        given = options(cluster.name_server)
        admin.create_topic("target", 1)
        check_topics(given)
        frame = pa.record_batch({"body": ["1", "2", "3"]})
        brokers = brokers_for(given)
        staged = stage_rows(iter([frame]), brokers, given, Epoch("query", 0))
        commit_epoch(given, [staged], is_stream=True)
        cluster.add_broker()
        admin.create_topic("target", 1)
        cluster.brokers[0].stop()
        until(lambda: [*admin.cluster_info().broker_addr_table] == ["broker-b"])
        fresh = options(cluster.name_server, requestTimeout="999ms")  # routes are not cached
        with pytest.raises(
            ExactlyOnceError, match=r"LEDGER_UNAVAILABLE.*its entry .* names broker broker-a.*Tried to find"
        ):
            check_topics(fresh)
        with pytest.raises(ExactlyOnceError, match=r"LEDGER_UNAVAILABLE"):
            commit_epoch(fresh, [staged], is_stream=True)
        assert "ROCKET_SINK_LEDGER" not in admin.topics()
        cluster.brokers[0].start()
        until(lambda: "ROCKET_SINK_LEDGER" in admin.topics() and "target" in admin.topics())
        until(lambda: len(admin.cluster_info().broker_addr_table) == 2)
        commit_epoch(options(cluster.name_server, retryTimeout="10s"), [staged], is_stream=True)
        assert sum(high - low for low, high in admin.offsets("target").values()) == 3


def test_the_staging_topic_tells_of_a_ledger_whose_entry_is_lost() -> None:
    """The staging topic is on brokers that joined later, too."""
    with LocalCluster(brokers=1) as cluster, Admin(cluster.name_server) as admin:
        check_topics(options(cluster.name_server))
        cluster.add_broker()
        until(lambda: len(admin.cluster_info().broker_addr_table) == 2)
        check_topics(options(cluster.name_server))
        assert {queue.broker_name for queue in admin.queues("ROCKET_SINK_STAGING")} == {"broker-a", "broker-b"}
        cluster.brokers[0].stop()
        until(lambda: [*admin.cluster_info().broker_addr_table] == ["broker-b"])
        admin.delete_kv_config(NAMESPACE, "ROCKET_SINK_LEDGER")
        with pytest.raises(ExactlyOnceError, match=r"LEDGER_UNAVAILABLE.*ROCKET_SINK_STAGING has one"):
            check_topics(options(cluster.name_server, requestTimeout="999ms"))


def test_name_servers_that_lose_their_entries_while_the_ledger_is_unavailable() -> None:
    """One after the other, then both at once. A broker joined after the last write; drivers try in between."""
    with LocalCluster(brokers=1, name_servers=2) as cluster, Admin(cluster.name_server) as admin:
        check_topics(options(cluster.name_server))
        entry = place(options(cluster.name_server))
        cluster.add_broker()
        cluster.brokers[0].stop()
        until(lambda: [*admin.cluster_info().broker_addr_table] == ["broker-b"])
        for server in admin.name_servers:
            with Admin(server) as one:
                one.delete_kv_config(NAMESPACE, "ROCKET_SINK_LEDGER")
            with pytest.raises(ExactlyOnceError, match=r"LEDGER_UNAVAILABLE.*names broker broker-a"):
                check_topics(options(cluster.name_server, requestTimeout="999ms"))
        kept = admin.kv_config_of_each(NAMESPACE, "ROCKET_SINK_LEDGER")
        assert {LedgerEntry.decode(text) for text in kept.values()} == {LedgerEntry("broker-a", entry.ledger)}
        assert len(kept) == 2
        until(lambda: "ROCKET_SINK_STAGING" in admin.topics())
        admin.delete_kv_config(NAMESPACE, "ROCKET_SINK_LEDGER")
        with pytest.raises(ExactlyOnceError, match=r"LEDGER_UNAVAILABLE.*ROCKET_SINK_STAGING has one"):
            check_topics(options(cluster.name_server, requestTimeout="999ms"))


def test_a_query_that_starts_while_the_only_broker_is_stopped() -> None:
    with LocalCluster(brokers=1) as cluster, Admin(cluster.name_server) as admin:
        until(lambda: bool(admin.cluster_info().broker_addr_table))
        cluster.brokers[0].stop()
        until(lambda: not admin.cluster_info().broker_addr_table)
        with pytest.raises(ExactlyOnceError, match=r"CLUSTER_INCOMPLETE.*no broker is registered.*retryTimeout"):
            check_topics(options(cluster.name_server))
        cluster.brokers[0].start()
        check_topics(options(cluster.name_server, retryTimeout="20s"))
        cluster.brokers[0].stop()
        until(lambda: not admin.cluster_info().broker_addr_table)
        with pytest.raises(
            ExactlyOnceError, match=r"LEDGER_UNAVAILABLE.*names broker broker-a.*retryTimeout"
        ) as caught:
            check_topics(options(cluster.name_server, requestTimeout="999ms"))
        assert caught.value.retriable


def test_a_ledger_is_not_created_while_a_name_server_is_stopped(cluster: LocalCluster, admin: Admin) -> None:
    given = options(cluster.name_server, "half")
    cluster.name_servers[1].stop()
    try:
        with pytest.raises(ExactlyOnceError, match=rf"CLUSTER_INCOMPLETE.*{cluster.name_servers[1].address}"):
            place(given)
    finally:
        cluster.name_servers[1].start()
    assert not entries(admin, "half")
    until(lambda: len(admin.cluster_info_of_each()) == 2)


def test_drivers_that_create_a_ledger_at_once_agree(cluster: LocalCluster, admin: Admin) -> None:
    every = [options(cluster.name_server, "race", requestTimeout=f"{900 + n}ms", retryTimeout="30s") for n in range(6)]
    with ThreadPoolExecutor(len(every)) as pool:
        list(pool.map(check_topics, every))
    places = {place(given) for given in every}
    assert len(places) == 1
    assert entries(admin, "race") == [LedgerEntry("broker-a", next(iter(places)).ledger)] * 2


def test_a_lost_entry_is_set_again(cluster: LocalCluster, admin: Admin) -> None:
    given = options(cluster.name_server, "lost")
    found = place(given)
    with Admin(cluster.name_servers[0].address) as one:
        one.delete_kv_config(NAMESPACE, "lost-ledger")
    assert place(given) == found
    assert len(entries(admin, "lost")) == 2
    admin.delete_kv_config(NAMESPACE, "lost-ledger")
    assert place(given) == found
    assert entries(admin, "lost") == [LedgerEntry("broker-a", found.ledger)] * 2


def test_a_changed_entry_is_refused(cluster: LocalCluster, admin: Admin) -> None:
    given = options(cluster.name_server, "changed")
    found = place(given)
    admin.put_kv_config(NAMESPACE, "changed-ledger", LedgerEntry("broker-b", found.ledger).encode())
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_ENTRY\].*names broker broker-b, and the topic is on broker-a"):
        place(given)
    with Admin(cluster.name_servers[0].address) as one:
        one.put_kv_config(NAMESPACE, "changed-ledger", LedgerEntry("broker-a", found.ledger).encode())
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_ENTRY\].*name servers differ"):
        place(given)
    admin.put_kv_config(NAMESPACE, "changed-ledger", "broker-a")
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_ENTRY\].*has 'broker-a'"):
        place(given)
    admin.put_kv_config(NAMESPACE, "changed-ledger", LedgerEntry("broker-a", "f" * 32).encode())
    commit = [stage_rows(iter([pa.record_batch({"body": ["1"]})]), brokers_for(given), given, EPOCH)]
    admin.put_kv_config(NAMESPACE, "changed-ledger", LedgerEntry("broker-a", found.ledger).encode())
    commit_epoch(given, commit, is_stream=True)
    admin.put_kv_config(NAMESPACE, "changed-ledger", LedgerEntry("broker-a", "f" * 32).encode())
    with pytest.raises(ExactlyOnceError, match=rf"LEDGER_REPLACED.*is of the ledger {found.ledger}"):
        commit_epoch(given, commit, is_stream=True)


EPOCH = Epoch("query", 0)


@pytest.mark.parametrize("begun", ["entry", "topic", "record"])
def test_a_creation_that_was_interrupted(cluster: LocalCluster, admin: Admin, begun: str) -> None:
    """It is completed where it began."""
    given = options(cluster.name_server, f"begun-{begun}")
    admin.put_kv_config(NAMESPACE, given.ledger_topic, LedgerEntry("broker-b").encode())
    if begun != "entry":
        admin.create_topic(given.ledger_topic, 1, broker="broker-b")
    if begun == "record":
        with Producer("tests", name_server=cluster.name_server) as producer:
            producer.send(Message.of(given.ledger_topic, json.dumps(RECORD | {"ledger": "1" * 32}).encode()))
    found = place(given)
    assert found.queue.broker_name == "broker-b"
    assert entries(admin, f"begun-{begun}") == [LedgerEntry("broker-b", found.ledger)] * 2
    assert begun != "record" or found.ledger == "1" * 32
    assert {queue.broker_name for queue in admin.queues(given.staging_topic)} == {"broker-a", "broker-b"}


RECORD = {"rocketSink": 1, "kind": "DONE", "query": "old", "batch": 3, "run": "r", "publisher": "p", "time": 1}


def test_a_ledger_of_an_older_version_is_adopted(cluster: LocalCluster, admin: Admin) -> None:
    given = options(cluster.name_server, "old")
    admin.create_topic("old-ledger", 1, broker="broker-b")
    admin.create_topic("old-staging", 4)
    with Producer("tests", name_server=cluster.name_server) as producer:
        producer.send(Message.of("old-ledger", json.dumps(RECORD).encode()))
    found = place(given)
    assert (found.queue.broker_name, len(found.ledger)) == ("broker-b", 32)
    assert entries(admin, "old") == [LedgerEntry("broker-b", found.ledger)] * 2


def test_a_recreated_ledger_is_refused_until_it_is_replaced(cluster: LocalCluster, admin: Admin) -> None:
    given = options(cluster.name_server, "remade")
    found = place(given)
    staged = stage_rows(iter([pa.record_batch({"body": ["1"]})]), brokers_for(given), given, EPOCH)
    admin.delete_topic("remade-ledger")
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_UNAVAILABLE"):
        place(given)
    admin.create_topic("remade-ledger", 1, broker="broker-a")
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_REPLACED.*it has never had a record.*rocket offsets ledger"):
        commit_epoch(given, [staged], is_stream=True)
    with Reader(cluster.name_server) as reader, Producer("tests", name_server=cluster.name_server) as producer:
        entry = replace_ledger(admin, reader, producer, "remade-ledger", "broker-a")
    assert entry.ledger not in ("", found.ledger)
    commit_epoch(given, [staged], is_stream=True)
