"""Certificate files: reloaded, removed, unusable, encrypted, generated."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import shutil
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from spark_rocket.errors import ConfigError, RemotingConnectError
from spark_rocket.remoting.client.remoting_client import RemotingClient
from spark_rocket.remoting.tls.contexts import ClientTls, ServerTls
from spark_rocket.remoting.tls.settings import ClientAuth, TlsMode, TlsSettings
from spark_rocket.testing.certificates import CertificateAuthority
from tests.kit.forking import in_child
from tests.remoting.conftest import ServerThread, ask, request, serving
from tests.remoting.tls_world import LIMIT, Certificates

pytestmark = pytest.mark.live

ENFORCING = TlsMode.ENFORCING


def test_a_new_certificate_is_used_for_new_connections(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    authority = CertificateAuthority(tmp_path)
    pair = authority.issue("server")
    with serving(certificates.server_tls(pair)) as server:
        trusting = certificates.of_client(trust=authority.certificate)
        with RemotingClient(tls=trusting, connect_timeout=LIMIT) as old:
            assert old.invoke(server.address, request(), LIMIT).code == 0
            first = _serial(certificates, server.address)
            authority.issue("server")
            _touch(pair.certificate, 10)
            assert _serial(certificates, server.address) != first
            assert ask(server.address, trusting) == b"hello"
            assert old.invoke(server.address, request(), LIMIT).code == 0  # the existing connection continues
            second = _serial(certificates, server.address)
            for content in (b"nothing", certificates.strange.certificate.read_bytes()):
                pair.certificate.write_bytes(content)
                _touch(pair.certificate, 20 + len(content))
                for _ in range(3):
                    assert _serial(certificates, server.address) == second
            pair.certificate.unlink()
            assert _serial(certificates, server.address) == second
            authority.issue("server")
            assert _serial(certificates, server.address) not in (first, second)
    said = [record.getMessage() for record in caplog.records if "TLS files not reloaded" in record.getMessage()]
    assert len(said) == 3
    assert "is not the private key of" in said[1]


def test_a_port_of_the_event_loop_reloads_certificates(certificates: Certificates, tmp_path: Path) -> None:
    """Like HTTP: ``create_server(ssl=…)`` never replaces its context."""
    authority = CertificateAuthority(tmp_path)
    pair = authority.issue("server")
    context = certificates.server_tls(pair).listening()

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        first = await asyncio.to_thread(_serial, certificates, address)
        authority.issue("server")
        _touch(pair.certificate, 10)
        assert await asyncio.to_thread(_serial, certificates, address) != first
        server.close()
        await server.wait_closed()

    asyncio.run(serve())


def test_a_client_reloads_its_files(certificates: Certificates, tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    trust.write_bytes(certificates.stranger.certificate.read_bytes())
    with (
        serving(certificates.server_tls()) as server,
        RemotingClient(tls=certificates.of_client(trust=trust), connect_timeout=LIMIT) as client,
    ):
        with pytest.raises(RemotingConnectError, match="not trusted"):
            client.invoke(server.address, request(), LIMIT)
        trust.write_bytes(certificates.authority.certificate.read_bytes())
        _touch(trust, 10)
        assert client.invoke(server.address, request(), LIMIT).code == 0


def _touch(file: Path, seconds: int) -> None:
    """Set the modification time this many seconds ahead: file systems have coarse clocks."""
    moment = time.time_ns() + seconds * 1_000_000_000
    os.utime(file, ns=(moment, moment))


def _serial(certificates: Certificates, address: str) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with certificates.dial(address, context) as sock:
        found = sock.getpeercert(binary_form=True)
        assert found
        return found


def unreadable(certificates: Certificates, directory: Path) -> dict[str, tuple[TlsSettings, str]]:
    text = directory / "text.pem"
    text.write_text("nothing")
    server = certificates.server

    def of(certificate: object, key: object, **more: Any) -> TlsSettings:
        return TlsSettings(server_cert_path=str(certificate), server_key_path=str(key), **more)

    encrypted = certificates.encrypted
    return {
        "missing": (of(directory / "none", server.key), r"Cannot read tls\.server\.certPath=.*none: No such"),
        "folder": (of(server.certificate, directory), r"Cannot read tls\.server\.keyPath="),
        "text": (of(text, server.key), "Cannot use "),
        "not its key": (of(server.certificate, certificates.client.key), "is not the private key of"),
        "encrypted": (of(*encrypted), r"is encrypted\. Set tls\.server\.keyPassword"),
        "wrong password": (of(*encrypted, server_key_password="no"), "is not the password of"),
        "no ca": (
            of(*server, need_client_auth=ClientAuth.REQUIRE, server_trust_cert_path=str(text)),
            r"tls\.server\.trustCertPath=.* contains no CA certificate",
        ),
    }


@pytest.mark.parametrize("case", ["missing", "folder", "text", "not its key", "encrypted", "wrong password", "no ca"])
def test_unusable_files(certificates: Certificates, tmp_path: Path, case: str) -> None:
    wrong, text = unreadable(certificates, tmp_path)[case]
    with pytest.raises(ConfigError, match=text) as found:
        ServerTls(wrong)
    assert found.value.remedy
    assert found.value.message != "no"


def test_an_encrypted_key(certificates: Certificates) -> None:
    tls = certificates.server_tls(certificates.encrypted, server_key_password="secret")
    with serving(tls) as server:
        assert ask(server.address, certificates.of_client()) == b"hello"


def test_unusable_files_of_a_client(certificates: Certificates, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read tls\.client\.trustCertPath=.*none"):
        ClientTls(TlsSettings(enable=True, client_trust_cert_path=str(tmp_path / "none")))


def test_test_mode_creates_a_certificate(certificates: Certificates) -> None:
    with serving(ServerTls(TlsSettings(mode=ENFORCING, test_mode=True))) as server:
        assert ask(server.address, TlsSettings(enable=True, test_mode=True)) == b"hello"
        with pytest.raises(RemotingConnectError, match="not trusted"):
            ask(server.address, certificates.of_client())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_after_certificates_were_removed(
    permissive: ServerThread, certificates: Certificates, tmp_path: Path
) -> None:
    trusted = shutil.copy(certificates.of_client().client_trust_cert_path, tmp_path)
    tls = dataclasses.replace(certificates.of_client(), client_trust_cert_path=str(trusted))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RemotingClient(tls=one)) for one in (tls, None, tls, None)]
        for client in clients:
            assert client.invoke(permissive.address, request(), LIMIT).code == 0
        Path(trusted).unlink()
        in_child(lambda: not any(client.is_connected(permissive.address) for client in clients))
