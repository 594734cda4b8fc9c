"""A cluster with TLS on every port: name server, broker, replication and gRPC, with clients that are refused."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from spark_rocket.client import Producer, PullStatus, Reader, TlsSettings
from spark_rocket.errors import ConfigError, NameServerUnreachableError, RemotingConnectError
from spark_rocket.model import Message, MessageQueue
from spark_rocket.protocol.record.messages import decode_messages
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.protocol.wire.ha import encode_report
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.tls.settings import TlsMode
from spark_rocket.testing import LocalCluster
from spark_rocket.testing.certificates import CertificateAuthority, tls_of
from tests.kit.waiting import until

pytestmark = pytest.mark.live

LIMIT = 30.0
MODE, AUTH = "tls.server.mode", "tls.server.need.client.auth"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A master that requires client certificates, and its slave."""
    config = {AUTH: "require", "grpcServerPort": 0}
    directory = tmp_path_factory.mktemp("pair")
    with LocalCluster(data_dir=directory, slaves=True, tls="enforcing", config=config) as cluster:
        yield cluster


def send(cluster: LocalCluster, topic: str, body: bytes, tls: TlsSettings | None) -> MessageQueue:
    with Producer("p", name_server=cluster.name_server, tls=tls, instance_name="sender") as producer:
        return producer.send(Message(topic, body)).queue


def read(cluster: LocalCluster, queue: MessageQueue, tls: TlsSettings | None) -> list[bytes]:
    """All of a queue."""
    found: list[bytes] = []
    with Reader(cluster.name_server, tls=tls) as reader:
        while (pulled := reader.pull(queue, len(found))).status is PullStatus.FOUND:
            found += [message.body for message in decode_messages(bytes(pulled.records))]
    return found


def test_all_ports_use_tls(pair: LocalCluster) -> None:
    """The broker registers and the slave follows its master, all with client certificates."""
    pair.create_topic("Secure", queues=1)
    large = b"x" * 3_000_000
    queue = send(pair, "Secure", large, pair.tls)
    send(pair, "Secure", b"second", pair.tls)
    assert read(pair, queue, pair.tls)[:1] == [large]
    slave = pair.slaves[0]

    def has_followed() -> bool:
        with RemotingClient(tls=pair.tls) as client:
            question = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO, {})
            state = client.invoke(slave.address, question, LIMIT)
            return state.code == ResponseCode.SUCCESS and b'"commitLogMaxOffset":"0"' not in state.body

    until(has_followed)
    assert "is not trusted" not in pair.log


def ports(cluster: LocalCluster) -> dict[str, tuple[str, int]]:
    master = cluster.brokers[0]
    name_server = cluster.name_servers[0]
    return {
        "name server": ("127.0.0.1", name_server.port),
        "broker": ("127.0.0.1", master.port),
        "HA port": ("127.0.0.1", master.port + 1),
        "gRPC": ("127.0.0.1", int(cluster.grpc_endpoint.rpartition(":")[2])),
    }


@pytest.mark.parametrize("port", ["name server", "broker", "HA port", "gRPC"])
def test_peers_that_are_not_served(pair: LocalCluster, port: str) -> None:
    address = ports(pair)[port]
    trusting = ssl.create_default_context(cafile=pair.tls.client_trust_cert_path)
    with socket.create_connection(address, timeout=LIMIT) as sock:  # without TLS
        sock.sendall(encode_report(0) + b"PRI * HTTP/2.0\r\n\r\n")
        assert ended(sock)
    with socket.create_connection(address, timeout=LIMIT) as raw:  # without a certificate
        sock = trusting.wrap_socket(raw, server_hostname="127.0.0.1")
        with sock:
            sock.sendall(encode_report(0))
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                raise EOFError if sock.recv(1) else ssl.SSLError
    trusting.load_cert_chain(pair.tls.client_cert_path, pair.tls.client_key_path)
    with (
        socket.create_connection(address, timeout=LIMIT) as raw,
        trusting.wrap_socket(raw, server_hostname="127.0.0.1") as sock,
    ):
        assert sock.version() == "TLSv1.3"


def ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_reports_about_them(pair: LocalCluster) -> None:
    address = ports(pair)["broker"]
    with socket.create_connection(address, timeout=LIMIT) as sock:
        sock.sendall(encode_report(0))
        assert ended(sock)
    until(lambda: "does not use TLS, and tls.server.mode=enforcing" in pair.brokers[0].log)


def test_clients_without_a_certificate_or_tls(pair: LocalCluster) -> None:
    bare = TlsSettings(enable=True, client_trust_cert_path=pair.tls.client_trust_cert_path)
    for tls, text in ((bare, "requires a client certificate"), (None, "closed by the peer|reset")):
        with Reader(pair.name_server, tls=tls) as reader, pytest.raises(NameServerUnreachableError, match=text):
            reader.topics()
        with RemotingClient(tls=tls) as client, pytest.raises(RemotingConnectError, match=text):
            client.invoke(pair.broker_address, RemotingCommand.request(RequestCode.GET_BROKER_CONFIG, {}), LIMIT)


def test_grpc_with_certificates(pair: LocalCluster) -> None:
    """gRPC's own client; any response of the service is enough here."""
    tls = pair.tls
    credentials = grpc.ssl_channel_credentials(
        Path(tls.client_trust_cert_path).read_bytes(),
        Path(tls.client_key_path).read_bytes(),
        Path(tls.client_cert_path).read_bytes(),
    )
    with grpc.secure_channel(pair.grpc_endpoint, credentials) as channel:
        call = channel.unary_unary("/grpc.health.v1.Health/Check", lambda value: value, lambda value: value)
        assert call(b"", timeout=LIMIT) == b"\x08\x01"  # SERVING


# --- a cluster that is switched, and never stopped ----------------------------------------------------------------


def test_from_disabled_to_enforcing_without_a_stop(tmp_path: Path) -> None:
    """Server by server, as in docs/guides/security.md; after each step, earlier clients are still served."""
    authority = CertificateAuthority(tmp_path / "tls")
    tls = tls_of(authority, authority.issue("server", ("127.0.0.1", "127.0.0.2")))
    files = {name: value for name, value in tls.properties().items() if name != "tls.enable"}
    with LocalCluster(data_dir=tmp_path / "cluster", brokers=1, config={"grpcServerPort": -1}) as running:
        running.create_topic("Switched", queues=1)
        queue = send(running, "Switched", b"0", None)

        def switch(settings: dict[str, str]) -> None:
            running.name_servers[0].restart(settings)
            running.brokers[0].restart(settings)

        switch({**files, MODE: "permissive", "tls.enable": "false"})  # 1: servers take both
        send_when_there(running, b"1", None)
        send_when_there(running, b"2", tls)
        switch({"tls.enable": "true"})  # 2: everybody calls with TLS, servers too
        send_when_there(running, b"3", tls)
        send_when_there(running, b"4", None)
        switch({MODE: "enforcing"})  # 3: TLS only
        send_when_there(running, b"5", tls)
        found = dict.fromkeys(read(running, queue, tls))  # an answer that was late had it sent again
        assert list(found) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        with pytest.raises(NameServerUnreachableError):
            read(running, queue, None)


def send_when_there(cluster: LocalCluster, body: bytes, tls: TlsSettings | None) -> None:
    """The name server has the topic once the broker, which was started later, is registered."""

    def sent() -> bool:
        with contextlib.suppress(Exception):
            send(cluster, "Switched", body, tls)
            return True
        return False

    until(sent)


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("sometimes", "invalid value of tls.server.mode: 'sometimes'. Use one of disabled, permissive, enforcing"),
        ("enforcing", "tls.server.mode=enforcing needs a certificate"),
    ],
)
def test_invalid_settings(tmp_path: Path, mode: str, text: str) -> None:
    cluster = LocalCluster(data_dir=tmp_path, in_process=True, config={MODE: mode})
    with pytest.raises(ConfigError, match=text), cluster:
        pass


def test_code_26_shows_no_passwords_and_25_sets_nothing(tmp_path: Path) -> None:
    from spark_rocket.broker.state.broker_config import BrokerConfig

    text = "tls.server.certPath=c.pem\ntls.server.keyPath=k.pem\ntls.server.keyPassword=hunter2\n"
    config = BrokerConfig.from_text(text)
    assert config.tls_settings().server_mode is TlsMode.PERMISSIVE
    assert config.tls_settings().server_key_password == "hunter2"
    assert "hunter2" not in config.to_text() + repr(config) + repr(config.tls_settings())
    assert "tls.server.certPath=c.pem" in config.to_text()
    with pytest.raises(ConfigError, match="cannot be changed while the broker runs"):
        config.update("tls.server.mode=disabled")


def test_certificates_of_the_security_guide(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    page = (Path(__file__).parents[2] / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
    commands = page.partition("### Certificates")[2].partition("```bash\n")[2].partition("```")[0]
    properties = page.partition("### Certificates")[2].partition("```properties\n")[2].partition("```")[0]
    assert "openssl x509" in commands
    subprocess.run(["bash", "-ec", commands], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    file = tmp_path / "tls.properties"
    file.write_text(properties.replace("/etc/rocket", str(tmp_path)) + "tls.server.mode=enforcing\n")
    with LocalCluster(data_dir=tmp_path / "data", in_process=True, config={"tls.config.file": str(file)}) as cluster:
        clients = TlsSettings(enable=True, client_trust_cert_path=str(tmp_path / "ca.pem"))
        until(lambda: read_topics(cluster, clients))
        with pytest.raises(NameServerUnreachableError):
            read_topics(cluster, None)


def read_topics(cluster: LocalCluster, tls: TlsSettings | None) -> list[str]:
    with Reader(cluster.name_server, tls=tls) as reader:
        return reader.topics()
