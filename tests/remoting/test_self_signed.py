"""OpenSSL accepts our self-signed certificate for clients that trust it."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_rocket.remoting.tls.contexts import KeyPair, self_signed

HOSTS = ("localhost", "127.0.0.1", "::1")


def contexts(pair: KeyPair, directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    (directory / "certificate").write_bytes(pair.certificate)
    (directory / "key").write_bytes(pair.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "certificate", directory / "key")
    client = ssl.create_default_context(cadata=pair.certificate.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    return server, client


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> dict[str, object]:
    """The server's certificate, as the client accepted it."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=host)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for side in (theirs, ours):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    assert len(done) == 2
    found = theirs.getpeercert()
    assert found is not None
    return dict(found)


@pytest.mark.parametrize("host", HOSTS)
def test_a_trusting_client_accepts_the_certificate(tmp_path: Path, host: str) -> None:
    found = shake_hands(*contexts(self_signed(HOSTS), tmp_path), host)
    assert found["subjectAltName"] == (
        ("DNS", "localhost"),
        ("IP Address", "127.0.0.1"),
        ("IP Address", "0:0:0:0:0:0:0:1"),
    )


def test_other_hosts_and_other_clients_reject_the_certificate(tmp_path: Path) -> None:
    server, client = contexts(self_signed(("localhost",)), tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)mismatch"):
        shake_hands(server, client, "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self.signed"):
        shake_hands(server, ssl.create_default_context(), "localhost")


def test_validity_period(tmp_path: Path) -> None:
    server, client = contexts(self_signed(HOSTS, datetime(2045, 1, 2, 3, 4, 5, tzinfo=UTC)), tmp_path)
    client.check_hostname, client.verify_mode = False, ssl.CERT_OPTIONAL
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        shake_hands(server, client, "localhost")


def test_certificates_are_unique() -> None:
    first, second = self_signed(HOSTS), self_signed(HOSTS)
    assert first.key != second.key
    assert first.certificate != second.certificate
