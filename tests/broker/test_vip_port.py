"""The VIP port (``listenPort`` - 2) for Apache's slaves and Java clients with ``vipChannelEnabled``."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.model import Message
from spark_rocket.protocol.auth import Credentials
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.tls.settings import TlsMode
from spark_rocket.testing.certificates import CertificateAuthority, tls_of
from spark_rocket.testing.network import Network
from tests.broker.wire import Wire
from tests.kit.brokers import running
from tests.kit.ports import listening

pytestmark = pytest.mark.live

HOST = "127.0.0.1"
#: What a slave of Apache's asks its master for there: topics, groups, offsets, delays, request modes, the timer.
ASKED_BY_SLAVES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_TIMER_METRICS,
)


@pytest.fixture
def port() -> Iterator[int]:
    """A ``listenPort`` with free ones around it."""
    network = Network()
    yield network.reserve(4) + 2
    network.close()


def serving(directory: Path, port: int, **settings: object) -> AbstractContextManager[Wire]:
    properties = {"storePathRootDir": directory / "store", "listenPort": port, "diskSpaceWarningLevelRatio": 100}
    return running(BrokerConfig.from_properties({**properties, **settings}))


def test_a_slave_of_apaches_is_answered_there(tmp_path: Path, port: int) -> None:
    with serving(tmp_path, port) as usual:
        vip = Wire(usual.client, f"{HOST}:{port - 2}")
        usual.send("T", b"x")
        usual.send("T", b"later", {"DELAY": "1"})
        usual.create_group("g")
        usual.commit("g", "T", 1)
        answers = {code: vip.ask(code) for code in ASKED_BY_SLAVES}
        assert {answer.code for answer in answers.values()} == {ResponseCode.SUCCESS}
        bodies = {code: bytes(answer.body) for code, answer in answers.items()}
        assert "T" in json.loads(bodies[RequestCode.GET_ALL_TOPIC_CONFIG])["topicConfigTable"]
        assert "g" in json.loads(bodies[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG])["subscriptionGroupTable"]
        assert b'"T@g":{0:1}' in bodies[RequestCode.GET_ALL_CONSUMER_OFFSET]
        assert vip.send("U", b"from a Java client with vipChannelEnabled").code == ResponseCode.SUCCESS
        assert usual.bodies("U") == [b"from a Java client with vipChannelEnabled"]


def test_without_its_vip_port_the_broker_serves_and_warns(
    tmp_path: Path, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    taken = socket.create_server((HOST, port - 2))
    with taken, caplog.at_level(logging.WARNING), serving(tmp_path, port) as wire:
        assert wire.send("T", b"x").code == ResponseCode.SUCCESS
    (line,) = [record.getMessage() for record in caplog.records if str(port - 2) in record.getMessage()]
    assert "the port is in use" in line
    assert "Apache slaves copy this broker's log, but not its topics, groups and offsets" in line


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux lets one look")
@pytest.mark.parametrize("settings", [{"vipChannelEnable": False}, {"listenPort": 0}], ids=str)
def test_without_the_setting(
    tmp_path: Path, port: int, settings: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """The neighbor of a port that the system chose may be in use by another server."""
    before = listening(os.getpid())
    with serving(tmp_path, port, **settings):
        opened = listening(os.getpid()) - before
    assert len(opened) == 2  # listenPort and haListenPort
    assert caplog.records == []


def test_its_access_control_is_the_other_ports(tmp_path: Path, port: int) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text("accounts:\n- {accessKey: slave-key, secretKey: sl4ve-s3cr3t, admin: true}\n", encoding="utf-8")

    with serving(tmp_path, port, aclEnable=True, aclFile=accounts):
        signed = RemotingClient(credentials=Credentials("slave-key", "sl4ve-s3cr3t"))
        with signed, RemotingClient() as nobody:
            for at in (port, port - 2):
                for code in ASKED_BY_SLAVES:
                    assert Wire(nobody, f"{HOST}:{at}").ask(code).code == ResponseCode.NO_PERMISSION
                    assert Wire(signed, f"{HOST}:{at}").ask(code).code == ResponseCode.SUCCESS
                assert Wire(nobody, f"{HOST}:{at}").send_batch("T", [Message("T", b"x")]).code != ResponseCode.SUCCESS


def test_its_tls_is_the_other_ports(tmp_path: Path, port: int) -> None:
    authority = CertificateAuthority(tmp_path)
    settings = tls_of(authority, authority.issue("server", (HOST,)))

    with serving(tmp_path, port, **{**settings.properties(), "tls.server.mode": TlsMode.ENFORCING.value}):
        with RemotingClient(tls=settings) as client:
            assert Wire(client, f"{HOST}:{port - 2}").ask(RequestCode.GET_ALL_TOPIC_CONFIG).code == ResponseCode.SUCCESS
        with socket.create_connection((HOST, port - 2), 30) as plain:
            plain.sendall(bytes.fromhex("000000010000") + b"{}")  # the beginning of a plaintext frame
            assert plain.recv(1) == b""
