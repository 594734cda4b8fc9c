"""The shipped alerts, the metrics and the dashboard, with a real Prometheus that scrapes real servers.

Each alert fires on its fault, and no other alert does. The rules are the shipped ones without ``for``; promtool shows
rules that look hours ahead on hours of samples. ``RocketLoopBlocked`` is left out of the tests of other alerts: it
reports a machine without a free core, on which these tests may run.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from spark_rocket.client import (
    Admin,
    LocalTransactionState,
    Producer,
    TransactionListener,
    TransactionProducer,
    client_metrics,
)
from spark_rocket.client.consume.listeners import ConsumeConcurrentlyStatus
from spark_rocket.errors import RemotingTimeoutError
from spark_rocket.model import Message, MessageExt, MessageQueue
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.store.results import PutResult, PutStatus
from tests.broker.replicas import fill, ha_address
from tests.broker.wire import Wire
from tests.client.pushing import running_consumer
from tests.kit.waiting import until
from tests.monitoring.prometheus import RULES, needs_prometheus, promtool, rules, running, without_waiting
from tests.monitoring.world import World, world
from tests.proxy.outgoing import message, send, sent
from tests.repository.test_dashboard import DASHBOARD

pytestmark = [pytest.mark.live, pytest.mark.long, needs_prometheus]

HOUR_MS = 3_600_000
LOOP = "RocketLoopBlocked"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[World, dict[str, list[str]]]]:
    with world(tmp_path, monkeypatch) as found:
        yield found


# --- faults -----------------------------------------------------------------------------------------------------


def stop_responding(one: World) -> None:
    one.pair.do(one.monitors["slave"].close())


def forbid_writing(one: World) -> None:
    with Admin(one.name_server) as admin:
        admin.update_broker_config(one.pair.master.address, {"brokerPermission": "4"})


def fill_the_disk(one: World) -> None:
    one.disk.used = 880


def refuse_sends(one: World) -> None:
    """By appends that are too slow."""
    one.send("Slow")
    overload = one.pair.master.parts.overload
    for _ in range(2):
        one.pair.run(lambda: overload.append_took(2_000))
    with RemotingClient() as remoting:
        assert Wire(remoting, one.pair.master.address).send("Slow").code != 0


def block_the_loop(one: World) -> None:
    one.pair.run(lambda: time.sleep(1.5))


def silence_a_broker(one: World) -> None:
    """Make the next registration of a broker late by a minute."""
    one.pair.late = 70


def leave_a_slave_behind(one: World) -> None:
    """Connect a slave that asks for the whole log and does not read it."""
    host, port = ha_address(one.pair.master).split(":")
    one.closing.enter_context(socket.create_connection((host, int(port)))).sendall(bytes(8))
    for _ in range(300):
        one.pair.run(lambda: fill(one.pair.master, 1, 1_000_000))


def set_a_clock(one: World) -> None:
    one.pair.skew["a1"] = 3_600_000


def fail_calls(one: World) -> None:
    """The broker answers the first call with an error that is not the caller's fault."""
    one.send("Failing")
    refusal = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="no reason")
    one.pair.master.parts.store.put_message = lambda *_, **__: refusal
    assert send(one.client, message("Failing")).status.code == 50001


def let_calls_time_out(one: World) -> None:
    one.send("Waiting")
    assert one.proxy.server.methods is not None

    async def ask(broker: str, *_: object, **__: object) -> None:
        raise RemotingTimeoutError(f"Broker {broker} did not respond.")

    one.proxy.server.methods.cluster.ask = ask  # type: ignore[assignment]
    assert send(one.client, message("Waiting")).status.code == 50400


def stop_consuming(one: World, age_ms: int = 301_000) -> None:
    one.send("Behind", b"read", b"unread")
    with RemotingClient() as remoting:
        wire = Wire(remoting, one.pair.master.address)
        wire.create_group("behind")
        wire.commit("behind", "Behind", 1)
    one.pair.ahead += age_ms


def stop_consuming_for_days(one: World) -> None:
    stop_consuming(one, 58 * HOUR_MS)


def consume(one: World, *bodies: bytes) -> None:
    """A consumer, which stays online, gets these messages. It fails if the body is ``bad``, and does not try again."""
    left = len(bodies)

    def listen(records: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        nonlocal left
        left -= len(records)
        if any(bytes(record.body) == b"bad" for record in records):
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    one.send("Consumed", *bodies)
    one.closing.enter_context(running_consumer(one.name_server, "consumers", "Consumed", listen, max_reconsume_times=0))
    until(lambda: left == 0, "messages of the consumer")


def fail_to_consume(one: World) -> None:
    """The first dead letter of a group that has consumed before."""
    consume(one, b"good")
    one.prometheus.settle()
    one.send("Consumed", b"bad")
    with Admin(one.name_server) as admin:
        until(lambda: "%DLQ%consumers" in admin.topics())


def fail_to_consume_at_once(one: World) -> None:
    """The first message of a group is a dead letter before anything of the group was scraped."""
    consume(one, b"bad")


def leave_a_query_behind(one: World) -> None:
    queue = one.send("Orders", *(b"%d" % number for number in range(3)))
    one.pair.ahead += 58 * HOUR_MS
    one.report(queue, 1, 3)


def delete_before_a_query(one: World) -> None:
    """The broker deletes all messages that the query has read, and some more."""
    queue = one.send("Orders", *(os.urandom(100_000) for _ in range(60)))
    one.report(queue, 40, 60)
    until(lambda: one.listener.queries()[0].retained)
    retained = one.listener.queries()[0].retained[queue]
    assert retained == 40
    one.prometheus.settle()
    one.pair.ahead += 2 * HOUR_MS
    with Admin(one.name_server) as admin:
        admin.update_broker_config(one.pair.master.address, {"fileReservedTime": "1"})
        admin.delete_expired_commit_log(one.pair.master.address)
    until(lambda: one.pair.run(lambda: one.pair.master.parts.store.get_min_offset("Orders", 0)) > 30)
    one.report(queue, 40, 60)


FAULTS: tuple[tuple[str, Callable[[World], None]], ...] = (
    ("RocketServerDown", stop_responding),
    ("RocketServerNotReady", forbid_writing),
    ("RocketDiskFilling", fill_the_disk),
    ("RocketRequestsRefused", refuse_sends),
    (LOOP, block_the_loop),
    ("RocketBrokerSilent", silence_a_broker),
    ("RocketSlaveBehind", leave_a_slave_behind),
    ("RocketClocksDiffer", set_a_clock),
    ("RocketProxyErrors", fail_calls),
    ("RocketProxyErrors", let_calls_time_out),
    ("RocketGroupBehind", stop_consuming),
    ("RocketRetentionNearGroup", stop_consuming_for_days),
    ("RocketDeadLetters", fail_to_consume),
    ("RocketDeadLetters", fail_to_consume_at_once),
    ("RocketRetentionNearStream", leave_a_query_behind),
    ("RocketRetentionOvertakesStream", delete_before_a_query),
)
IMPLIED = {"RocketRetentionNearGroup": {"RocketGroupBehind"}}


def test_each_alert_has_a_fault() -> None:
    assert {alert for alert, _ in FAULTS} == rules().keys()


@pytest.mark.parametrize(("alert", "fault"), FAULTS)
def test_an_alert_fires_on_its_fault_and_no_other(
    alert: str, fault: Callable[[World], None], served: tuple[World, dict[str, list[str]]], tmp_path: Path
) -> None:
    one, targets = served
    ready = without_waiting(() if alert == LOOP else (LOOP,))
    with running(tmp_path / "prometheus", targets, ready) as prometheus:
        one.prometheus = prometheus
        assert prometheus.firing() <= {LOOP}
        fault(one)
        until(lambda: alert in prometheus.firing(), alert)
        prometheus.settle()
        assert prometheus.firing() - ({LOOP} - {alert}) == {alert} | IMPLIED.get(alert, set())


# --- a healthy cluster ------------------------------------------------------------------------------------------


def test_no_alert_fires_on_a_healthy_cluster(served: tuple[World, dict[str, list[str]]], tmp_path: Path) -> None:
    """With a finished exactly-once query, groups that have read everything, and days that pass."""
    one, targets = served
    source = one.send("Source", *(b"%d" % number for number in range(250)))
    one.send("Target", queues=4)
    consumed: list[bytes] = []

    def listen(records: list[MessageExt], _: object) -> ConsumeConcurrentlyStatus:
        consumed.extend(bytes(record.body) for record in records)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with running(tmp_path / "prometheus", targets, without_waiting((LOOP,))) as prometheus:
        program = [sys.executable, "-m", "tests.spark.exactly_once_query", one.name_server, "Source", "Target"]
        subprocess.run([*program, str(tmp_path / "checkpoint")], timeout=240, check=True)
        with running_consumer(one.name_server, "billing", "Target", listen):
            until(lambda: len(consumed) == 250, "rows of the query")
        one.send("Shipped", b"x")
        (received,) = one.client.receive("shipping", "Shipped", batch_size=1)
        assert one.client.ack("shipping", "Shipped", received).status.code == 20000
        one.report(source, 250, 250)
        for hours in (0, 1, 71, 24):
            one.pair.ahead += hours * HOUR_MS
            prometheus.settle()
            assert prometheus.firing() == set()
        for topic in ("ROCKET_SINK_LEDGER", "ROCKET_SINK_STAGING"):
            assert prometheus.query(f'rocketmq_producer_offset{{topic="{topic}"}} > 0'), "the query has written nothing"


# --- the pages and the dashboard --------------------------------------------------------------------------------


class Decides(TransactionListener):
    """Commits all but those whose body is ``no``."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        no = bytes(message.body) == b"no"
        return LocalTransactionState.ROLLBACK_MESSAGE if no else LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW


def use_everything(one: World) -> Producer:
    """Messages of each kind, transactions, retries, a dead letter."""
    one.send("Orders", *(b"%d" % number for number in range(20)))
    with TransactionProducer("payments", Decides(), name_server=one.name_server) as payments:
        for body in (b"yes", b"no"):
            payments.send_in_transaction(Message("Orders", body))
    consume(one, b"good", b"bad")
    sent(one.client, message("Orders"))
    one.report(MessageQueue("Orders", "a", 0), 10, 20)
    until(lambda: one.listener.queries()[0].retained)
    producer = Producer("metered", name_server=one.name_server)
    producer.start()
    producer.send(Message("Orders", b"x"))
    return producer


def test_the_dashboard_shows_data_in_every_panel(served: tuple[World, dict[str, list[str]]], tmp_path: Path) -> None:
    one, targets = served
    expressions = [(panel["title"], one["expr"]) for panel in DASHBOARD["panels"] for one in panel.get("targets", [])]
    assert len(expressions) > 40
    with running(tmp_path / "prometheus", targets, without_waiting()) as prometheus:
        use_everything(one).close()
        prometheus.settle()
        prometheus.settle()
        for title, text in expressions:
            until(partial(prometheus.query, with_variables(text)), f"data of {title}: {text}")
        for variable in DASHBOARD["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
                assert prometheus.query(f"count by ({label}) ({metric})"), variable["name"]


def with_variables(expression: str) -> str:
    """The expression that Grafana sends with ``All`` selected."""
    return re.sub(r"\$(cluster|broker|topic|group)\b", ".*", expression.replace("$__rate_interval", "1m"))


NAMED_BY_OTHERS = r"^(rocketmq_\S+|.*rocket_stream_\S+)"


def test_promtool_accepts_all_pages(served: tuple[World, dict[str, list[str]]]) -> None:
    """Of its advice on names, that about names of RocketMQ 5 and rocketmq-exporter cannot be followed."""
    one, targets = served
    producer = use_everything(one)
    pages = [urlopen(f"{url}/metrics", timeout=30).read() for urls in targets.values() for url in urls]
    pages.append(client_metrics())
    producer.close()
    for page in pages:
        checked = promtool("check", "metrics", given=page)
        lines = (checked.stdout + checked.stderr).decode().splitlines()
        assert checked.returncode in (0, 3), lines
        assert [line for line in lines if not re.match(NAMED_BY_OTHERS, line)] == []


def test_promtool_accepts_the_rules() -> None:
    checked = promtool("check", "rules", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr


STREAM = 'query="orders",topic="Orders",broker="a",queue="0"'


def after_two_hours(retained: str, lag: str, *, fires: bool) -> dict[str, object]:
    """A test of promtool: samples of each minute, and whether the alert of a stream fires at their end."""
    labels = {"severity": "critical", "query": "orders", "topic": "Orders", "broker": "a", "queue": "0"}
    summary = "Retention will overtake query orders in queue Orders/a/0 within 6 hours"
    expected = [{"exp_labels": labels, "exp_annotations": {"summary": summary}}]
    return {
        "interval": "1m",
        "input_series": [
            {"series": f"rocket_stream_retained_messages{{{STREAM}}}", "values": retained},
            {"series": f"rocket_stream_lag_messages{{{STREAM}}}", "values": lag},
        ],
        "alert_rule_test": [
            {
                "eval_time": "2h",
                "alertname": "RocketRetentionOvertakesStream",
                "exp_alerts": expected if fires else [],
            }
        ],
    }


def test_retention_overtakes_a_stream_within_six_hours(tmp_path: Path) -> None:
    """Hours of samples. The broker deletes files of an hour: each deletion is a steep fall of what it retains."""
    hours_of_growth = " ".join(["2000000+1000x58 1990000+1000x58"] * 2)
    cases = [
        after_two_hours("1000000-5000x120", "3000000+0x120", fires=True),
        after_two_hours("1000000-500x120", "3000000+0x120", fires=False),  # in more than six hours
        after_two_hours(hours_of_growth, "1000+0x240", fires=False),  # a query that keeps up
        after_two_hours("1000000+5000x120", "9000000-5000x120", fires=False),  # one that catches up
    ]
    check_alerts(tmp_path, cases)


def check_alerts(directory: Path, cases: list[dict[str, object]]) -> None:
    given = directory / "test.yml"
    given.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    tested = promtool("test", "rules", str(given))
    assert tested.returncode == 0, (tested.stdout + tested.stderr).decode()


def after_17_minutes(up: str, dead_letters: str, *, fires: bool) -> dict[str, object]:
    """A test of promtool: whether the alert of dead letters fires then."""
    broker = 'job="rocketmq",instance="a:5557"'
    of_group = {"cluster": "c", "consumer_group": "billing"}
    labels = ",".join(f'{name}="{value}"' for name, value in {**of_group, "topic": "%RETRY%billing"}.items())
    summary = "Group billing has new dead letters in %DLQ%billing"
    expected = [{"exp_labels": {"severity": "warning", **of_group}, "exp_annotations": {"summary": summary}}]
    return {
        "interval": "1m",
        "input_series": [
            {"series": f"up{{{broker}}}", "values": up},
            {"series": f"rocketmq_send_to_dlq_messages_total{{{broker},{labels}}}", "values": dead_letters},
        ],
        "alert_rule_test": [
            {"eval_time": "17m", "alertname": "RocketDeadLetters", "exp_alerts": expected if fires else []}
        ],
    }


def test_dead_letters_of_a_counter_that_appears(tmp_path: Path) -> None:
    cases = [
        after_17_minutes("1+0x20", "_x10 1+0x9", fires=True),
        after_17_minutes("1+0x20", "_x2 1+0x17", fires=False),  # 14 minutes ago
        after_17_minutes("1+0x20", "0+0x10 1+0x9", fires=True),
        after_17_minutes("1+0x20", "_x10 0+0x9", fires=False),  # deliveries
        after_17_minutes("_x10 1+0x9", "_x10 1+0x9", fires=False),  # a new Prometheus
        after_17_minutes("1+0x9 0+0x4 1+0x4", "1+0x9 stale _x4 1+0x4", fires=False),  # it could not scrape the broker
        after_17_minutes("1+0x20", "1+0x9 stale _x4 1+0x4", fires=True),  # the broker started again in between
    ]
    check_alerts(tmp_path, cases)
