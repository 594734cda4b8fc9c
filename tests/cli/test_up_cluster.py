"""``rocket up --brokers N``: one process for each broker. If one dies, the others serve. All stop together."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spark_rocket.broker.cluster_layout import cluster_members
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.cli import main
from spark_rocket.cli.servers.options import UpOptions
from spark_rocket.cli.servers.up_cluster import shared_settings, write_conf
from spark_rocket.client import Admin
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.wire.codes import ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from tests.broker.wire import Wire
from tests.cli.conftest import Run
from tests.cli.test_rocket import PORTS, found, started
from tests.kit.waiting import until


def test_ports_names_and_directories_of_a_cluster() -> None:
    members = cluster_members(2, slaves=True)
    assert [(m.label, m.broker_id, m.listen_port, m.ha_listen_port) for m in members] == [
        ("broker-a", 0, 10911, 10912),
        ("broker-b", 0, 10921, 10922),
        ("broker-a-slave", 1, 10916, 10917),
        ("broker-b-slave", 1, 10926, 10927),
    ]
    ports = [port for m in members for port in (m.listen_port - 2, m.listen_port, m.ha_listen_port)]
    assert len(set(ports)) == len(ports)
    assert members[2].settings(Path("s"))["brokerRole"] == "SLAVE"
    assert "brokerRole" not in members[0].settings(Path("s"))  # the shared file has the kind of masters


@pytest.mark.live
def test_two_brokers_one_of_them_killed(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    conf = tmp_path / "all.conf"
    conf.write_text("brokerClusterName=two\nautoCreateTopicEnable=false\nenablePropertyFilter=false\n")
    arguments = ["up", "--brokers", 2, "--data", data, "-c", conf, *PORTS]
    with started(*arguments, last="Press Ctrl-C to stop.", cwd=tmp_path) as (process, said):
        assert "2 brokers of two" in said
        name_server = found(r"name server +(127\.0\.0\.1:\d+)", said)
        brokers = dict(re.findall(r"(127\.0\.0\.1:\d+) \((broker-.), process", said))
        assert list(brokers.values()) == ["broker-a", "broker-b"]
        assert len(re.findall(r"gRPC +127\.0\.0\.1:\d+", said)) == 1  # for both
        with Admin(name_server) as admin, RemotingClient() as client:
            admin.create_topic("T", queues=2)
            assert {queues.broker_name for queues in admin.topic_route("T").queue_datas} == {"broker-a", "broker-b"}
            assert admin.broker_config("broker-b")["enablePropertyFilter"] == "false"
            assert admin.broker_config("broker-b")["recallMessageEnable"] == "true"
            for address in brokers:
                assert Wire(client, address).send("T", b"x").code == ResponseCode.SUCCESS
            os.kill(int(found(r"broker-b, process (\d+)", said)), signal.SIGKILL)
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "broker-b was terminated by SIGKILL. The other brokers keep running" in line
            assert Wire(client, next(iter(brokers))).send("T", b"y").code == ResponseCode.SUCCESS
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        assert (process.returncode, rest, errors) == (0, f"Stopped. The data is in {data}.\n", "")
    assert run("store", "check", data / "store").status == 0
    assert (data / "broker-b" / "store" / "abort").exists()
    # The printed command, and the first broker's messages where a plain `rocket up` stores them.
    again = found(r"Restart it with: rocket (broker -c \S+)", line).split()
    with started(*again, last="store  ") as (process, said):
        assert str(data / "broker-b" / "store") in said
        process.terminate()
        assert process.wait(60) == 0
    with started("up", "--data", data, *PORTS, last="Press Ctrl-C to stop.") as (_, said), RemotingClient() as client:
        assert len(Wire(client, found(r"broker +(127\.0\.0\.1:\d+)", said)).messages("T")) == 2


@pytest.mark.live
def test_a_master_and_its_slave_exit_with_their_parent(tmp_path: Path) -> None:
    conf = tmp_path / "all.conf"
    conf.write_text("brokerRole=SYNC_MASTER\n")
    arguments = ["up", "--slaves", "--data", tmp_path / "d", "-c", conf, *PORTS]
    with started(*arguments, last="Press Ctrl-C to stop.") as (_, said), RemotingClient() as client:
        found = re.findall(r"(127\.0\.0\.1:\d+) \(broker-a(?:-slave)?, process (\d+)\)", said)
        (master, _), (slave, _) = found
        # SYNC_MASTER: the slave has every acknowledged message.
        until(lambda: Wire(client, master).send("T", b"x").code == ResponseCode.SUCCESS)
        until(lambda: Wire(client, slave).messages("T"))
    # It was killed; the brokers stop normally.
    for label, (_, pid) in zip(("store", "broker-a-slave/store"), found, strict=True):
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists())  # type: ignore[misc]
        assert not (tmp_path / "d" / label / "abort").exists()


@pytest.mark.live
def test_a_failed_start_is_explained_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "broker-b" / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{")
    line = run("up", "--brokers", 2, "--data", tmp_path, *PORTS).error
    assert line.startswith("rocket: broker-b did not start. ")
    assert "topics.json, line 1" in line
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = run("up", "--brokers", 2, "--data", tmp_path, *PORTS[2:], "--nameserver-port", port).error
        assert f"127.0.0.1:{port}" in line


@pytest.mark.live
def test_settings_that_differ_between_brokers_are_refused(run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "all.conf"
    for setting in ("listenPort=10911", "storePathCommitLog=/d1/log"):
        conf.write_text(f"flushDiskType=SYNC_FLUSH\n{setting}\n")
        line = run("up", "--brokers", 2, "--data", tmp_path / "d", "-c", conf, *PORTS).error
        assert f"{conf}, line 2: {setting.partition('=')[0]} differs between brokers" in line
    assert not (tmp_path / "d").exists()


def test_accounts_beside_the_file_and_private_secrets(tmp_path: Path) -> None:
    conf = tmp_path / "conf" / "broker.conf"
    conf.parent.mkdir()
    conf.write_text('aclEnable=true\ninnerClientAuthenticationCredentials={"accessKey": "k", "secretKey": "s3cr3t"}\n')
    options = cast(UpOptions, SimpleNamespace(config=conf))
    shared = shared_settings(options, BrokerConfig.from_file(conf), "127.0.0.1:9876")
    (member,) = cluster_members(1, slaves=False)
    written = write_conf(member, shared, tmp_path / "data", tmp_path / "data" / "store")
    assert written.stat().st_mode & 0o077 == 0
    config = BrokerConfig.from_file(written)
    assert config.acl_path == conf.parent / "plain_acl.yml"
    assert config.own_credentials == Credentials("k", "s3cr3t")


@pytest.mark.parametrize("number", ["0", "27", "x", "-1"])
def test_an_invalid_number_of_brokers(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "--brokers", number])
    assert "use 1 to 26" in capsys.readouterr().err
