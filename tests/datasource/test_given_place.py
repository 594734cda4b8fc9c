"""The place of the ledger, given by options, where name servers store no entries."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_rocket.client import Admin, Reader
from spark_rocket.datasource.exactly_once.driver import check_topics, commit_epoch
from spark_rocket.datasource.exactly_once.entry import NAMESPACE, LedgerEntry
from spark_rocket.datasource.exactly_once.manifest import Epoch
from spark_rocket.datasource.exactly_once.place import find_ledger
from spark_rocket.datasource.exactly_once.records import id_record
from spark_rocket.datasource.exactly_once.sink_brokers import brokers_for
from spark_rocket.datasource.exactly_once.staging import stage_rows
from spark_rocket.datasource.options.options import WriteOptions
from spark_rocket.datasource.options.parse import parse_write_options
from spark_rocket.datasource.options.table import Scope
from spark_rocket.errors import ExactlyOnceError
from spark_rocket.model import MessageQueue
from spark_rocket.testing import LocalCluster
from tests.kit.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.name_server) as admin:
        yield admin


def options(cluster: LocalCluster, mark: str, broker: str, queue: int = 0, **more: str) -> WriteOptions:
    """Options for the topics that an administrator has created for ``mark``."""
    given = {"nameServer": cluster.name_server, "topic": f"{mark}-target", "deliveryGuarantee": "exactlyOnce"}
    given |= {"ledgerTopic": f"{mark}-ledger", "stagingTopic": f"{mark}-staging", "ledgerBroker": broker}
    given |= {"ledgerQueue": str(queue), "retryTimeout": "0", "gracePeriod": "2s", "requestTimeout": "1s"}
    return parse_write_options(given | more, Scope.WRITE_STREAM)


def create_topics(admin: Admin, mark: str) -> None:
    for topic in ("target", "ledger", "staging"):
        admin.create_topic(f"{mark}-{topic}", 2)


def write(given: WriteOptions, batch: int) -> None:
    check_topics(given)
    epoch = Epoch("query", batch)
    frame = pa.record_batch({"body": [f"{batch}-{row}" for row in range(5)]})
    commit_epoch(given, [stage_rows(iter([frame]), brokers_for(given), given, epoch)], is_stream=True)


def test_a_changed_place_is_refused(cluster: LocalCluster, admin: Admin) -> None:
    mark = "changed"
    create_topics(admin, mark)
    given = options(cluster, mark, "broker-b", 1)
    for batch in (0, 1, 1):
        write(given, batch)
    with Reader(cluster.name_server) as reader:
        stored = [reader.max_offset(queue) for queue in reader.queues(f"{mark}-target")]
    assert sum(stored) == 10
    assert admin.kv_config_of_each(NAMESPACE, f"{mark}-ledger") == {}
    assert find_ledger(given, brokers_for(given)).queue == MessageQueue(f"{mark}-ledger", "broker-b", 1)
    for other in (options(cluster, mark, "broker-a", 1), options(cluster, mark, "broker-b", 0)):
        with pytest.raises(ExactlyOnceError, match=r"LEDGER_PLACE.*it was never used, but changed-ledger/broker-b/1"):
            write(other, 2)
    admin.create_topic("changed-other", 1)
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_PLACE.*changed-other/broker-b/0.*but changed-staging/"):
        write(options(cluster, mark, "broker-b", ledgerTopic="changed-other"), 2)
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_PLACE.*the topic has the queues 0, 1 on broker-b"):
        write(options(cluster, mark, "broker-b", 2), 2)
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_UNAVAILABLE.*ledgerBroker and ledgerQueue name .*/broker-c/0"):
        write(options(cluster, mark, "broker-c"), 2)
    write(given, 2)


def test_topics_are_not_created(cluster: LocalCluster, admin: Admin) -> None:
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_UNAVAILABLE"):
        write(options(cluster, "none", "broker-a"), 0)
    admin.create_topic("none-ledger", 1)
    with pytest.raises(ExactlyOnceError, match=r"NO_TOPIC.*topic none-staging.*the sink creates no topics"):
        write(options(cluster, "none", "broker-a"), 0)
    assert "none-staging" not in admin.topics()


def test_an_entry_that_names_another_broker(cluster: LocalCluster, admin: Admin) -> None:
    create_topics(admin, "entry")
    admin.put_kv_config(NAMESPACE, "entry-ledger", LedgerEntry("broker-a", "1" * 32).encode())
    with pytest.raises(ExactlyOnceError, match=r"LEDGER_PLACE.*an entry of the name servers names broker broker-a"):
        check_topics(options(cluster, "entry", "broker-b"))
    check_topics(options(cluster, "entry", "broker-a"))


def test_two_ledgers_that_were_begun_at_the_same_time(cluster: LocalCluster, admin: Admin) -> None:
    """Neither is used: both drivers stop, also when they are restarted."""
    create_topics(admin, "both")
    first, second = options(cluster, "both", "broker-a"), options(cluster, "both", "broker-b")
    check_topics(first)
    brokers = brokers_for(second)
    body, tag = id_record()
    brokers.append(MessageQueue("both-ledger", "broker-b", 0), body, tags=tag)
    for given in (first, second):
        with pytest.raises(ExactlyOnceError, match=r"LEDGER_PLACE.*was used, too"):
            check_topics(given)


def test_no_second_ledger_while_its_broker_is_unavailable() -> None:
    """Every broker of the staging topic tells that there is a ledger."""
    with LocalCluster(brokers=2) as cluster, Admin(cluster.name_server) as admin:
        create_topics(admin, "away")
        check_topics(options(cluster, "away", "broker-a"))
        cluster.brokers[0].stop()
        until(lambda: [*admin.cluster_info().broker_addr_table] == ["broker-b"])
        with pytest.raises(ExactlyOnceError, match=r"LEDGER_UNAVAILABLE.*name away-ledger/broker-a/0"):
            check_topics(options(cluster, "away", "broker-a", requestTimeout="999ms"))
        with pytest.raises(ExactlyOnceError, match=r"LEDGER_PLACE.*ledger/broker-b/0.*but away-staging/broker-b/0"):
            check_topics(options(cluster, "away", "broker-b", requestTimeout="999ms"))
