"""``rocket cluster``, ``topic``, ``group``, ``broker`` and ``namesrv`` against two running brokers."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import click
import pytest

from spark_rocket.cli import main
from spark_rocket.cli.commands.topic import topic
from spark_rocket.client import Admin, Producer, Reader
from spark_rocket.client.core.instance import ClientInstance
from spark_rocket.errors import RemotingTimeoutError
from spark_rocket.model import Message
from spark_rocket.remoting.tls.settings import Verify
from spark_rocket.store.tools.check import check_store
from spark_rocket.testing import LocalCluster
from tests.cli.conftest import Run, unavailable_broker
from tests.client.pushing import running_consumer
from tests.kit.brokers import Servers
from tests.kit.waiting import until

pytestmark = pytest.mark.live

COUNT = 10  # messages of "orders" in each of its four queues


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("verbs"))
    servers.add_name_server()
    servers.add_broker("a")
    servers.add_broker("b")
    yield servers
    servers.close()
    for broker in servers.brokers:
        assert check_store(broker.config.store.store_path) == []


@pytest.fixture(scope="module")
def admin(servers: Servers) -> Iterator[Admin]:
    with Admin(servers.addresses) as admin:
        until(lambda: len(admin.cluster_info().broker_addr_table) == 2)
        admin.create_topic("orders", 2)
        yield admin


@pytest.fixture(scope="module", autouse=True)
def _messages(servers: Servers, admin: Admin) -> None:
    with Producer("shop", name_server=servers.addresses) as producer:
        for queue in producer.queues("orders"):
            producer.send([Message.of("orders", f"{i}") for i in range(COUNT)], queue=queue)


@pytest.fixture(scope="module")
def name_server(servers: Servers) -> str:
    return servers.addresses


def put(servers: Servers, group: str, offset: int) -> None:
    """The offsets of a group in every queue of "orders"."""
    with Reader(servers.addresses) as reader:
        for queue in reader.queues("orders"):
            reader.commit_offset(group, queue, offset)


def offsets(admin: Admin, group: str) -> set[int | None]:
    return set(admin.committed_offsets(group, "orders").values())


def test_brokers_missed_by_a_change_are_reported(rocket: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Admin, "unavailable_masters", lambda admin, cluster: ["c"])
        for arguments in (
            ("topic", "create", "partly"),
            ("topic", "update", "partly", "--perm", "R"),
            ("topic", "delete", "partly", "--yes"),
            ("group", "create", "partly"),
            ("group", "delete", "partly", "--yes"),
        ):
            said = rocket(*arguments)
            assert (said.status, said.err) == (1, "rocket: c has no master now: not changed there.\n")
        assert rocket("topic", "create", "partly", "--broker", "a").status == 0
    assert rocket("topic", "delete", "partly", "--yes").status == 0


# --- cluster ---------------------------------------------------------------------------------------------------------


def test_brokers_of_a_cluster(rocket: Run, servers: Servers) -> None:
    said = rocket("cluster", "list")
    lines = [line.split() for line in said.out.splitlines()]
    assert said.status == 0
    assert lines[0][:8] == ["CLUSTER", "BROKER", "ID", "ADDRESS", "VERSION", "IN/s", "OUT/s", "DISK"]
    assert [line[:4] for line in lines[1:]] == [
        ["DefaultCluster", name, "0", broker.address] for name, broker in zip("ab", servers.brokers, strict=True)
    ]
    rows = rocket("cluster", "list", "--json", "--cluster", "DefaultCluster").json
    assert [(row["brokerName"], row["brokerId"], row["error"]) for row in rows] == [("a", 0, None), ("b", 0, None)]
    assert {"putTps", "getTps", "diskRatio", "putToday", "startedMs", "version"} <= rows[0].keys()
    assert rocket("cluster", "list", "--cluster", "other").failed("Known clusters: DefaultCluster")


def test_an_unavailable_broker_is_shown_with_the_reason(tmp_path: Path, run: Run) -> None:
    alone = Servers(tmp_path)
    name_server = alone.add_name_server()
    said = run("cluster", "list", "-n", name_server)
    assert (said.status, said.out) == (0, "No broker is registered with the name server.\n")
    with unavailable_broker(name_server):
        said = run("cluster", "list", "-n", name_server)
        (row,) = run("cluster", "list", "-n", name_server, "--json").json
        topics = run("topic", "list", "-n", name_server)
    alone.close()
    assert said.status == 1
    assert said.out.splitlines()[1].split()[1:4] == ["gone", "0", "127.0.0.1:1"]
    assert said.out.splitlines()[2].startswith("gone (0): ")
    assert "127.0.0.1:1" in row["error"]
    assert (topics.status, topics.err.startswith("rocket: gone: ")) == (1, True)


def test_producers(rocket: Run, servers: Servers) -> None:
    with Producer("shop", name_server=servers.addresses) as producer:
        producer.send(Message.of("elsewhere", "x"))
        client_id = producer.running().client_id
        until(lambda: rocket("cluster", "producers", "shop", "--json").json)
        (member,) = rocket("cluster", "producers", "shop", "--json").json
        assert (member["group"], member["clientId"], member["language"]) == ("shop", client_id, "PYTHON")
        said = rocket("cluster", "producers", "shop")
        assert (said.status, client_id in said.out) == (0, True)
        assert client_id in rocket("cluster", "producers").out
        every = {member["clientId"]: member for member in rocket("cluster", "producers", "--json").json}
        assert every[client_id]["lastHeartbeatMs"] > 1_700_000_000_000
    assert rocket("cluster", "producers", "missing").out == "No producer is connected.\n"
    rocket("topic", "delete", "elsewhere", "--yes")


# --- topic -----------------------------------------------------------------------------------------------------------


def test_topics(rocket: Run) -> None:
    said = rocket("topic", "list")
    lines = [line.split() for line in said.out.splitlines()]
    assert said.status == 0
    assert lines == [
        ["TOPIC", "QUEUES", "WRITTEN", "PERM", "TYPE", "BROKERS"],
        ["orders", "4", "4", "RW", "any", "a,", "b"],
    ]
    rows = rocket("topic", "list", "--all", "--json").json
    assert {row["kind"] for row in rows} >= {"USER", "SYSTEM"}
    assert {"topic": "orders", "brokers": ["a", "b"]}.items() <= next(
        row for row in rows if row["topic"] == "orders"
    ).items()
    assert [row["topic"] for row in rocket("topic", "list", "--json", "--cluster", "DefaultCluster").json] == ["orders"]
    assert "Known clusters" in rocket("topic", "list", "--cluster", "other").err


def test_a_topic(rocket: Run, servers: Servers) -> None:
    put(servers, "reads", 3)
    said = rocket("topic", "show", "orders")
    assert said.status == 0
    assert "40 in 4 queues" in said.out
    assert "reads" in said.out
    whole = rocket("topic", "show", "orders", "--json").json
    assert (whole["messages"], [found["brokerName"] for found in whole["brokers"]]) == (40, ["a", "b"])
    assert "reads" in whole["groups"]
    said = rocket("topic", "route", "orders")
    assert f"0: {servers.brokers[0].address}" in said.out
    route = rocket("topic", "route", "orders", "--json").json
    assert [(row["brokerName"], row["readQueueNums"], row["perm"]) for row in route] == [("a", 2, "RW"), ("b", 2, "RW")]
    assert route[1]["brokerAddrs"] == {"0": servers.brokers[1].address}
    said = rocket("topic", "stats", "orders")
    assert [line.split()[:5] for line in said.out.splitlines()[1:]] == [
        *([name, str(i), "0", "10", "10"] for name in "ab" for i in range(2)),
        ["all", "-", "-", "-", "40"],
    ]
    rows = rocket("topic", "stats", "orders", "--json").json
    assert {(row["minOffset"], row["maxOffset"], row["messages"]) for row in rows} == {(0, 10, 10)}
    (row,) = rocket("topic", "stats", "--json").json
    assert (row["topic"], row["queues"], row["messages"]) == ("orders", 4, 40)
    for verb in ("show", "route", "stats", "delete", "update"):
        said = rocket("topic", verb, "missing", *(["--perm", "R"] if verb == "update" else []))
        assert (said.status, "missing" in said.err, said.err.count("\n")) == (1, True, 1)


def test_results_of_available_brokers_are_shown(rocket: Run, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ClientInstance.invoke_async

    def ask_all_but_one(self: ClientInstance, address: str, *arguments: Any, **options: Any) -> Future[Any]:
        if address != servers.brokers[1].address:
            return ask(self, address, *arguments, **options)
        stuck: Future[Any] = Future()
        stuck.set_exception(RemotingTimeoutError(f"{address} is stuck."))
        return stuck

    monkeypatch.setattr(ClientInstance, "invoke_async", ask_all_but_one)
    said = rocket("topic", "stats", "orders")
    assert (said.status, said.err) == (1, f"rocket: b: {servers.brokers[1].address} is stuck.\n")
    assert [line.split()[:4] for line in said.out.splitlines()[1:3]] == [["a", str(i), "0", "10"] for i in (0, 1)]
    for arguments, text in (
        (("message", "query-key", "orders", "none"), "No messages with key none in topic orders"),
        (("dlq", "list", "billing"), "Group billing has no dead letters"),
    ):
        said = rocket(*arguments)
        assert (said.status, said.out) == (1, f"{text} on the available brokers.\n")
        assert said.err.startswith("rocket: b: ")


@pytest.mark.parametrize("verb", [("message", "query-key", "orders", "none"), ("dlq", "list", "billing")])
def test_a_range_of_times_that_ends_before_it_begins(rocket: Run, verb: tuple[str, ...]) -> None:
    """It finds nothing, which does not mean that there is no such message."""
    said = rocket(*verb, "--from", "2026-01-02T00:00Z", "--to", "2026-01-01T00:00Z")
    assert said.failed("Invalid range of times")


def test_a_topic_is_updated_setting_by_setting(rocket: Run, admin: Admin) -> None:
    assert rocket("topic", "create", "work", "--queues", "3", "--attribute", "message.type=FIFO").status == 0
    said = rocket("topic", "update", "work", "--perm", "R", "--write-queues", "1")
    assert [line.split() for line in said.out.splitlines()[1:]] == [
        [name, "3", "1", "R-", "FIFO", "message.type=FIFO"] for name in "ab"
    ]
    (row,) = rocket("topic", "update", "work", "--queues", "1", "--perm", "6", "--broker", "a", "--json").json
    assert (row["brokerName"], row["readQueueNums"], row["writeQueueNums"], row["perm"]) == ("a", 1, 1, "RW")
    found = {name: admin.topic_config("work", broker=name) for name in "ab"}
    assert [(c.read_queue_nums, c.write_queue_nums, c.perm) for c in found.values() if c] == [(1, 1, 6), (3, 1, 4)]
    for arguments, reason in (
        (["--write-queues", "5"], "would be unreadable. Use --queues 5 too."),
        (["--type", "FIFO", "--cluster", "other"], "Known clusters"),
    ):
        said = rocket("topic", "update", "work", *arguments)
        assert (said.status, reason in said.err) == (1, True), said
    for wrong in ([], ["--perm", "X"], ["--type", "SOME"]):
        assert rocket("topic", "update", "work", *wrong).status == 2
    created = rocket("topic", "create", "work", "--queues", "5")
    assert "work has 5 queues (before: 1) on each of 2 brokers," in created.out
    assert rocket("topic", "create", "more", "--queues", "2", "--write-queues", "3").failed("Use --queues 3 too")


def test_a_topic_is_deleted_after_confirmation(rocket: Run, admin: Admin) -> None:
    rocket("topic", "create", "old")
    for answer in ("n", ""):
        said = rocket("topic", "delete", "old", answer=answer)
        assert (said.status, said.out) == (1, "Topic old has 0 messages.\nNothing was changed.\n")
    assert rocket("topic", "delete", "old").failed("Cannot ask for confirmation: stdin is not a terminal. Use --yes.")
    assert "old" in admin.topics()
    assert rocket("topic", "delete", "old", answer="y").out.endswith("Deleted topic old.\n")
    assert "old" not in admin.topics()


# --- group -----------------------------------------------------------------------------------------------------------


def test_groups_and_lag(rocket: Run, servers: Servers) -> None:
    rocket("group", "create", "late")
    put(servers, "late", 4)
    row = next(row for row in rocket("group", "list", "--json").json if row["group"] == "late")
    assert (row["members"], row["lag"], row["topics"], row["brokers"]) == (0, 24, ["orders"], ["a", "b"])
    said = rocket("group", "list")
    assert ["late", "0", "orders"] in [line.split()[:3] for line in said.out.splitlines()]
    assert "TOOLS_CONSUMER" not in said.out
    assert "TOOLS_CONSUMER" in rocket("group", "list", "--all").out
    said = rocket("group", "lag", "late")
    assert said.out.startswith("late: Spark stream\n")  # as the console calls it: it commits and has no members
    assert said.out.splitlines()[2].split()[:6] == ["orders", "a", "0", "4", "10", "6"]
    assert said.out.splitlines()[-1].split()[:5] == ["all", "-", "-", "-", "-"]
    whole = rocket("group", "lag", "late", "-t", "orders", "--json").json
    assert (whole["lag"], len(whole["queues"]), whole["queues"][0]["consumerOffset"]) == (24, 4, 4)
    assert whole["kind"] == rocket("group", "show", "late", "--json").json["kind"] == "stream"
    assert whole["delayMs"] >= 0
    said = rocket("group", "show", "late")
    assert "24 messages" in said.out
    assert "No members online." in said.out
    assert re.search(r"^ *state +Spark stream$", said.out, re.M)
    for verb in ("show", "lag"):
        assert rocket("group", verb, "missing").failed("Unknown group 'missing'")


def test_lag_is_watched_until_interrupted(rocket: Run, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    put(servers, "watched", 4)

    class Clock:
        looks = 0

        def sleep(self, seconds: float) -> None:
            assert seconds == 0.5
            self.looks += 1
            put(servers, "watched", 4 + self.looks)
            if self.looks == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr("spark_rocket.cli.show.time", Clock())
    said = rocket("group", "lag", "watched", "--watch", "0.5", "--json")
    assert said.status == 0
    assert [json.loads(line)["lag"] for line in said.out.splitlines()] == [24, 20, 16]


def test_a_single_look_estimates_when_a_group_has_caught_up(rocket: Run, servers: Servers) -> None:
    """From what the brokers have counted: the group has read more than has arrived."""
    put(servers, "catching", 4)
    assert rocket("group", "lag", "catching", "--json").json["catchUpMs"] is None
    with Reader(servers.addresses, group="catching") as reader:
        for queue in reader.queues("orders"):
            for _ in range(100):
                assert reader.pull(queue, 0, max_msgs=COUNT).next_offset == COUNT
    for broker in servers.brokers:
        servers.run(broker.parts.stats.sample)
    assert rocket("group", "lag", "catching", "--json").json["catchUpMs"] > 0
    for more in ((), ("-t", "orders")):
        title = rocket("group", "lag", "catching", *more).out.splitlines()[0]
        assert re.fullmatch(r"catching: Spark stream; caught up in about \d.*", title)
    with unavailable_broker(servers.addresses):
        assert '"catchUpMs": null' in rocket("group", "lag", "catching", "--json").out, "the lag is incomplete"
    put(servers, "catching", COUNT)
    assert rocket("group", "lag", "catching", "--json").json["catchUpMs"] == 0
    assert rocket("group", "lag", "catching").out.startswith("catching: Spark stream\n")


def test_a_member(rocket: Run, servers: Servers) -> None:
    with running_consumer(servers.addresses, "team", "orders"):
        until(lambda: len(rocket("group", "show", "team", "--json").json["members"]) == 1)
        whole = rocket("group", "show", "team", "--json").json
        client_id = whole["members"][0]["clientId"]
        assert whole["messageModel"] == "CLUSTERING"
        assert {"topic": "orders", "expression": "*"}.items() <= whole["subscriptions"][-1].items()
        said = rocket("group", "show", "team")
        assert client_id in said.out
        assert "CLUSTERING" in said.out
        until(lambda: len(rocket("group", "member", "team", client_id, "--json").json["mqTable"]) >= 4)
        rows = rocket("group", "lag", "team", "--members", "-t", "orders", "--json").json["queues"]
        assert {row["member"] for row in rows} == {client_id}
        until(lambda: client_id in rocket("group", "lag", "team", "-m").out)
        said = rocket("group", "lag", "team")
        assert client_id not in said.out
        assert said.out.startswith("team: 1 member online, ")
        said = rocket("group", "member", "team", client_id, "--stacks")
        assert (said.status, said.out.startswith(client_id)) == (0, True)
        assert rocket("group", "member", "team").out.startswith(client_id), "there is but one"
        assert rocket("group", "member", "team", "missing").failed(f"Online consumers: {client_id}.")
        # A group with members keeps its offsets.
        assert rocket("group", "reset-offset", "team", "-t", "orders", "--to", "earliest", "--yes").failed(
            "use --online"
        )
        said = rocket("group", "reset-offset", "team", "-t", "orders", "--to", "earliest", "--yes", "--online")
        assert said.status == 0, said
        said = rocket("group", "clone", "late", "team", "-t", "orders", "--yes")
        assert said.status == 1
        said = rocket("group", "member", "late")
        assert (said.status, said.err) == (1, "rocket: Group late has no members online.\n")
        said = rocket("group", "delete", "team", answer="n")
        assert "Its 1 online member will create it again." in said.out
    put(servers, "team", 1)
    # It has a retry topic, so its consumers are offline; one commit does not make it a stream.
    until(lambda: rocket("group", "lag", "team").out.startswith("team: no consumers\n"))


@pytest.mark.parametrize(("where", "then"), [("earliest", 0), ("latest", 10), ("-1h", 0), ("0s", 10)])
def test_a_group_is_reset_as_by_rocket_offsets(
    rocket: Run, servers: Servers, admin: Admin, where: str, then: int
) -> None:
    put(servers, "moved", 5)
    rows = rocket("group", "reset-offset", "moved", "-t", "orders", "--to", where, "--yes", "--json").json_lines
    assert {(row["from"], row["to"]) for row in rows} == {(5, then)}
    assert offsets(admin, "moved") == {then}


def test_offsets_of_a_group_are_cloned(rocket: Run, servers: Servers, admin: Admin) -> None:
    put(servers, "model", 6)
    clone = ["group", "clone", "model", "copy", "-t", "orders"]
    assert rocket(*clone, "--dry-run").out.count("first time") == 4
    assert rocket(*clone, answer="n").status == 1
    assert offsets(admin, "copy") == {None}
    assert rocket(*clone, "--yes").out.endswith("Set the offsets of group copy in 4 queues.\n")
    assert offsets(admin, "copy") == {6}
    assert rocket("group", "clone", "missing", "copy", "-t", "orders", "--yes").failed("No offsets found")


def test_a_group_is_deleted_after_confirmation(rocket: Run, servers: Servers, admin: Admin) -> None:
    rocket("group", "create", "gone")
    put(servers, "gone", 2)
    assert rocket("group", "delete", "gone").failed("Use --yes")
    assert rocket("group", "delete", "gone", answer="n").status == 1
    assert "gone" in admin.subscription_groups("a")
    assert rocket("group", "delete", "gone", "--topics", answer="y").out.endswith("Deleted group gone.\n")
    assert "gone" not in admin.subscription_groups("a")
    assert offsets(admin, "gone") == {None}
    assert rocket("group", "delete", "gone", "--yes").status == 1


# --- broker and name server ------------------------------------------------------------------------------------------


def test_settings_of_a_broker(rocket: Run, admin: Admin) -> None:
    said = rocket("broker", "config", "a", "--like", "FLUSHinterval")
    assert [line.split() for line in said.out.splitlines()] == [
        ["flushIntervalCommitLog", "500"],
        ["flushIntervalConsumeQueue", "1000"],
    ]
    assert rocket("broker", "config", "a", "--json").json["brokerName"] == "a"
    assert rocket("broker", "config", "a", "--like", "nothing").out == "No setting contains 'nothing' in its name.\n"
    change = ["broker", "config", "a", "fileReservedTime=50"]
    assert rocket(*change).failed("Use --yes")
    assert rocket(*change, answer="n").status == 1
    said = rocket(*change, "--yes")
    assert said.out.splitlines()[1].split() == ["fileReservedTime", "72", "50"]
    assert admin.broker_config("a")["fileReservedTime"] == "50"
    assert rocket(*change, "--yes").out.endswith("Already up to date.\n")
    assert rocket("broker", "config", "a", "listenPort=1", "--yes").failed("cannot be changed")
    assert rocket("broker", "config", "a", "unknown").status == 2
    said = rocket("broker", "config", "a", "fileReservdTime=1", "--yes")
    assert "Unknown setting fileReservdTime. Did you mean fileReservedTime or " in said.out
    assert (said.status, "'fileReservdTime'" in said.err, "Applied" in said.out) == (1, True, False), said
    said = rocket("broker", "config", "a", "fileReservedTim=2", "fileReservedTime=51", "--yes")
    assert (said.status, "Applied 1 setting." in said.out) == (1, True), said
    assert rocket("broker", "config", "missing").failed("named 'missing' is registered at the name server")


def test_broker_runtime(rocket: Run, servers: Servers) -> None:
    said = rocket("broker", "runtime", "b")
    assert (said.status, said.out.splitlines()[0]) == (0, "b")
    assert "commit log" in said.out
    found = rocket("broker", "runtime", servers.brokers[1].address, "--json").json
    assert {"version", "putTps", "raw"} <= found.keys()
    assert rocket("broker", "runtime", "b", "--raw", "--json").json.keys() == found["raw"].keys()
    assert "brokerVersionDesc" in rocket("broker", "runtime", "b", "--raw").out


def test_replication_and_timers(rocket: Run, servers: Servers) -> None:
    found = rocket("broker", "ha", "a", "--json").json
    assert (found["master"], found["slaves"], found["asSlave"]["masterAddr"]) == (True, [], None)
    assert "No slaves connected." in rocket("broker", "ha", "a").out
    with Producer("shop", name_server=servers.addresses) as producer:
        later = Message.of("orders", "later", deliver_at_ms=int(time.time() * 1000) + 3_600_000)
        name = producer.send(later).queue.broker_name
    until(lambda: rocket("broker", "timers", name, "--json").json == [{"topic": "orders", "count": 1}])
    assert rocket("broker", "timers", name).out.splitlines()[1].split() == ["orders", "1"]
    other = "b" if name == "a" else "a"
    assert rocket("broker", "timers", other).out == "No pending delayed messages.\n"


def test_broker_clean(rocket: Run) -> None:
    for what in ("log", "queues", "topics"):
        assert rocket("broker", "clean", "a", what).failed("Use --yes")
        assert rocket("broker", "clean", "a", what, answer="n").status == 1
        assert rocket("broker", "clean", "a", what, "--yes").out == "Sent the request to a.\n"
    assert rocket("broker", "clean", "a", "everything").status == 2


def test_name_servers(rocket: Run, servers: Servers) -> None:
    settings = rocket("namesrv", "config", "--json").json
    assert list(settings) == [servers.addresses]
    assert "orderMessageEnable" in rocket("namesrv", "config", "--like", "order").out
    change = ["namesrv", "config", "orderMessageEnable=true"]
    assert rocket(*change, answer="n").status == 1
    assert rocket(*change, "--yes").out.endswith("Applied 1 setting.\n")
    assert rocket("namesrv", "config", "--json").json[servers.addresses]["orderMessageEnable"] == "true"
    said = rocket("namesrv", "config", "unknown=1", "enableTopicList=true", "--yes")
    assert (said.status, ": unknown. " in said.err, "The other settings were applied." in said.err) == (1, True, True)
    assert rocket("namesrv", "kv", "set", "SPACE", "key", "value").out == "Set SPACE/key to value.\n"
    assert rocket("namesrv", "kv", "get", "SPACE", "key").out == "value\n"
    assert rocket("namesrv", "kv", "get", "SPACE", "key", "--json").json["value"] == "value"
    assert rocket("namesrv", "kv", "list", "SPACE", "--json").json == [{"key": "key", "value": "value"}]
    assert rocket("namesrv", "kv", "list", "SPACE").out == "KEY  VALUE\nkey  value\n"
    assert rocket("namesrv", "kv", "delete", "SPACE", "key", answer="n").status == 1
    assert rocket("namesrv", "kv", "delete", "SPACE", "key", "--yes").status == 0
    assert rocket("namesrv", "kv", "list", "SPACE").out == "No entries in SPACE.\n"
    for verb in ("get", "delete"):
        assert rocket("namesrv", "kv", verb, "SPACE", "key").failed("No entry 'key' in SPACE.")


def test_name_servers_that_differ(run: Run, tmp_path: Path) -> None:
    """An earlier change may have reached only the first one."""
    servers = Servers(tmp_path)
    first, second = (servers.add_name_server() for _ in range(2))
    both = ("-n", f"{first};{second}")
    try:
        change = ["namesrv", "config", "orderMessageEnable=true", "--yes"]
        assert run(*change, "-n", first).status == 0
        said = run(*change, *both)
        assert said.out.splitlines()[1].split() == ["orderMessageEnable", "true,", "false", "true"]
        settings = run("namesrv", "config", "--json", *both).json
        assert [settings[address]["orderMessageEnable"] for address in (first, second)] == ["true", "true"]
        assert run(*change, *both).out.endswith("Already up to date.\n")
        assert run("namesrv", "kv", "set", "SPACE", "key", "value", "-n", second).status == 0
        assert run("namesrv", "kv", "delete", "SPACE", "key", "--yes", *both).out.startswith("SPACE/key is value.\n")
        assert run("namesrv", "kv", "list", "SPACE", "-n", second).out == "No entries in SPACE.\n"
    finally:
        servers.close()


# --- connecting ------------------------------------------------------------------------------------------------------


def test_the_name_server_of_the_environment(servers: Servers, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    assert "127.0.0.1:1" in run("topic", "list", "--timeout", "1").err
    monkeypatch.setenv("ROCKETMQ_NAMESRV_ADDR", servers.addresses)
    assert run("topic", "list").status == 0
    assert "127.0.0.1:1" in run("topic", "list", "-n", "127.0.0.1:1").err


def test_incomplete_credentials(rocket: Run, tmp_path: object) -> None:
    assert rocket("topic", "list", "--access-key", "me").failed("without")
    assert rocket("topic", "list", "--access-key", "me", "--credentials", "f").status == 2
    assert rocket("topic", "list", "--credentials", f"{tmp_path}/none.yml").failed("none.yml: No such file")
    assert rocket("topic", "list", "--access-key", "me", "--secret-key", "very-secret").status == 0


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("rocket to", {"topic"}),
        ("rocket offsets re", {"reset"}),
        ("rocket topic show or", {"orders"}),
        ("rocket topic show TBW", {"TBW102"}),
        ("rocket group show TOOLS", {"TOOLS_CONSUMER"}),
        ("rocket broker runtime ", {"a", "b"}),
        ("rocket topic create --ty", {"--type"}),
    ],
)
def test_shell_completion(
    words: str, found: set[str], servers: Servers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", servers.addresses)
    monkeypatch.setenv("_ROCKET_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert main() == 0
    assert {line.partition(",")[2] for line in capsys.readouterr().out.splitlines()} == found


def test_completion_without_a_name_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    monkeypatch.setenv("_ROCKET_COMPLETE", "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", "rocket topic show ")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert main() == 0
    assert "orders" not in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_scripts(run: Run, shell: str) -> None:
    said = run("completion", shell)
    assert (said.status, "_ROCKET_COMPLETE" in said.out) == (0, True)
    assert sys.argv  # untouched


def test_a_cluster_with_access_control(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: operator\nsecretKey: very-secret-key\n")
    with LocalCluster(in_process=True, access_key="operator", secret_key="very-secret-key") as cluster:
        create = ["topic", "create", "orders", "-n", cluster.name_server]
        refused = run(*create)
        assert (refused.status, refused.out) == (1, "")
        wrong = run(*create, "--access-key", "operator", "--secret-key", "another-secret")
        assert (wrong.status, wrong.err.count("\n")) == (1, 1)
        assert "another-secret" not in wrong.err
        assert run(*create, "--credentials", file).status == 0
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "operator")
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "very-secret-key")
        for arguments in (["cluster", "list"], ["topic", "stats", "orders"], ["group", "list"]):
            said = run(*arguments, "-n", cluster.name_server)
            assert (said.status, "very-secret" in said.out) == (0, False)


def test_a_cluster_with_tls(run: Run, tmp_path: Path) -> None:
    with LocalCluster(in_process=True, tls="enforcing") as cluster:
        ask = ["topic", "list", "-n", cluster.name_server]
        assert run(*ask, "--timeout", "2").failed("A server that requires TLS closes connections without it")
        assert run(*ask, "--tls", "--timeout", "2").failed("certificate")
        assert cluster.tls is not None
        trust = ["--tls-ca", cluster.tls.client_trust_cert_path]
        assert run(*ask, *trust).status == 0
        assert run(*ask, "--tls", "--tls-verify", "none").status == 0
        own = ["--tls-cert", cluster.tls.server_cert_path]
        assert run(*ask, *trust, *own).failed("tls.client")
        assert run(*ask, *trust, *own, "--tls-key", cluster.tls.server_key_path).status == 0
        assert run(*ask, "--tls-verify", "some").status == 2


def test_descriptions_of_verification() -> None:
    option = next(parameter for parameter in topic.commands["list"].params if parameter.name == "tls_verify")
    assert isinstance(option.type, click.Choice)
    assert list(option.type.choices) == [verify.value for verify in Verify]
