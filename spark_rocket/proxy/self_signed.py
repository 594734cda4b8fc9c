"""A certificate for TLS that nobody has signed but itself, for an endpoint that is given none.

RocketMQ 5's clients for Java and Go call with TLS unless they are told otherwise, and trust whatever they meet:
Apache's proxy has such a certificate for them too. It keeps nobody from listening who can put himself in between.

The key is of the curve P-256, made anew by each process when the first client calls with TLS, and never written where
it stays. The library for it is loaded then.

Thread-safety: used on the event loop only. Corresponds to io.netty.handler.ssl.util.SelfSignedCertificate, and to
``tlsTestModeEnable`` of org.apache.rocketmq.proxy.config.ProxyConfig.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from spark_rocket.proxy.listener import tls_context

_DAYS = 3650
_NAME = "spark_rocket"


class KeyPair(NamedTuple):
    """Both as PEM."""

    certificate: bytes
    key: bytes


class SelfSigned:
    """A TLS context with such a certificate, made when it is first asked for."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = tuple(dict.fromkeys(hosts))
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        if self._context is None:
            pair = self_signed(self._hosts)
            # OpenSSL reads files, and only we may read this directory.
            with TemporaryDirectory(prefix="rocket-tls-") as directory:
                certificate, key = Path(directory, "certificate.pem"), Path(directory, "key.pem")
                certificate.write_bytes(pair.certificate)
                key.write_bytes(pair.key)
                self._context = tls_context(certificate, key)
        return self._context


def self_signed(hosts: Iterable[str], now: datetime | None = None) -> KeyPair:
    """A certificate for these names and addresses, good from the day before ``now`` for ten years."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def alternative(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host.encode("idna").decode())

    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(certificate.public_bytes(pem), private)
